//! Acquire: attempts until a grant, a final refusal or the end of patience (FR-28).
//!
//! One logical acquire has one request id over all its attempts and servers, so that a grant whose answer was lost is
//! found again by the next attempt (case L22). An asker that goes away ends its attempt: the connection closes, the
//! server takes it out of the queue, and a grant that was made all the same is seen by the next heartbeat and released
//! (case L18).

use crate::client::Shared;
use crate::core::{
    Core, Keeping, Meaning, Mode, PENDING_MAX, Pending, SessionState, Tell, as_ms, in_doubt, meaning, messages, ms,
    ttl_ms, unavailable,
};
use crate::deadline::{Lease, SessionLife, deadline};
use crate::held_lock::HeldLock;
use crate::options::check_ttl;
use crate::transport::CallFailure;
use crate::yields;
use actor_kit::{Ask, Cx, Receive, Reply};
use http_contract::lock::{AcquireBody, GrantAnswer, Holder};
use http_contract::{Code, Problem};
use lock_api::{
    Fate, FencingToken, Grant, HeldByOther, LockDelay, LockError, LockKey, Metadata, Owner, RequestId, SessionId, Ttl,
    UnixMillis, YieldAsked,
};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

messages! {
    /// Somebody wants a key.
    Acquire {
        key: LockKey, mode: Mode, ttl: Option<Duration>, lock_delay: LockDelay, metadata: Option<Value>,
        shared: Arc<Shared>, tell: Tell<HeldLock>
    } = "acquire";
    /// The next attempt of this acquire, or the end of its patience.
    AttemptDue { id: u64 } = "attempt_due";
    /// L4 was answered, or was not; no result when the asker went away first. `sent` is boot time, `wait` what the server
    /// was to wait.
    AttemptAnswered {
        id: u64, at: usize, session_id: SessionId, life: Arc<SessionLife>, sent: Duration, wait: Duration,
        result: Option<Result<GrantAnswer, CallFailure>>, tell: Tell<HeldLock>
    } = "attempt_answered";
}

impl Receive<Acquire> for Core {
    fn receive(&mut self, message: Acquire, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let Acquire {
            key,
            mode,
            ttl,
            lock_delay,
            metadata,
            shared,
            tell,
        } = message;
        let refusal = if matches!(self.session, SessionState::Closing) {
            Some(LockError::SessionLost)
        } else if self.acquires.len() >= PENDING_MAX {
            Some(unavailable("too many acquires at once in this process"))
        } else {
            ttl.and_then(|ttl| check_ttl("ttl", ttl, self.options.safety_margin).err())
        };
        if let Some(error) = refusal {
            drop(tell.send(Err(error)));
            return;
        }
        let Ok(request_id) = RequestId::new(cx.host().ids.prefixed("r")) else {
            drop(tell.send(Err(unavailable("no request id could be made"))));
            return;
        };
        let until = match mode {
            Mode::Within(budget) => Some(cx.clock().mono().saturating_add(budget)),
            Mode::Try | Mode::Attempts => None,
        };
        let id = self.next_id();
        self.acquires.insert(
            id,
            Pending {
                key,
                mode,
                ttl: ttl.or(self.options.grant_ttl),
                lock_delay,
                metadata,
                request_id,
                tell: Some(tell),
                shared: Some(shared),
                attempts: 0,
                hasty: 0,
                trace: *cx.trace(),
                perhaps_granted: false,
                parked: false,
                until,
                due: None,
            },
        );
        self.attempt(id, cx);
    }
}

impl Core {
    /// Makes an attempt, or waits for a session that could carry one.
    fn attempt(&mut self, id: u64, cx: &mut Cx<'_, Self>) {
        let (boot, mono) = (cx.clock().boot(), cx.clock().mono());
        let (at, server) = self.work();
        let session = self
            .usable_session(boot)
            .map(|session| (session.id.clone(), session.life.clone()));
        let witness = self.witness.map(FencingToken::get);
        let Some(pending) = self.acquires.get_mut(&id) else {
            return;
        };
        if let Some(timer) = pending.due.take() {
            timer.cancel();
        }
        if pending
            .tell
            .as_ref()
            .is_none_or(tokio::sync::oneshot::Sender::is_closed)
        {
            // Gone, or an attempt is under way.
            if pending.tell.is_some() {
                self.acquires.remove(&id);
            }
            return;
        }
        let left = pending.until.map(|until| until.saturating_sub(mono));
        let Some((session_id, life)) = session else {
            pending.parked = true;
            if let Some(left) = left {
                pending.due = Some(cx.notify_later(AttemptDue { id }, left));
            }
            match self.session {
                SessionState::Opening { .. } => self.open_session(cx),
                // Open by name, but past its deadline: only a heartbeat can tell whether it lives.
                SessionState::Open(_) => self.heartbeat_now(cx),
                SessionState::Closing => {}
            }
            return;
        };
        pending.parked = false;
        let wait = left.unwrap_or_default().min(self.wait_max.unwrap_or(Duration::MAX));
        let body = AcquireBody {
            session_id: session_id.as_str().to_owned(),
            request_id: Some(pending.request_id.as_str().to_owned()),
            ttl_ms: pending.ttl.map(ttl_ms),
            wait_ms: (!wait.is_zero()).then(|| as_ms(wait)),
            witness_token: witness,
            lock_delay_ms: (!pending.lock_delay.is_none()).then(|| pending.lock_delay.as_millis()),
            metadata: pending.metadata.clone(),
        };
        let (key, tell) = (pending.key.clone(), pending.tell.take());
        let Some(mut tell) = tell else { return };
        let call = self.call(self.options.call_timeout.saturating_add(wait), cx);
        let call = server.acquire(key, body, call);
        cx.pipe(
            async move {
                let result = tokio::select! {
                    biased;
                    result = call => Some(result),
                    () = tell.closed() => None,
                };
                (result, tell)
            },
            move |(result, tell)| AttemptAnswered {
                id,
                at,
                session_id,
                life,
                sent: boot,
                wait,
                result,
                tell,
            },
        );
    }

    /// The session is usable: those who waited for it go on.
    pub fn wake_parked(&mut self, cx: &mut Cx<'_, Self>) {
        let parked: Vec<_> = self
            .acquires
            .iter()
            .filter(|(_, p)| p.parked)
            .map(|(id, p)| (*id, p.trace))
            .collect();
        for (id, trace) in parked {
            cx.in_trace(trace, |cx| self.attempt(id, cx));
        }
    }

    /// One more attempt to reach a session failed. Whoever waited for it long enough is told.
    pub fn fail_parked(&mut self, error: &LockError, cx: &mut Cx<'_, Self>) {
        let parked: Vec<u64> = self
            .acquires
            .iter()
            .filter(|(_, p)| p.parked)
            .map(|(id, _)| *id)
            .collect();
        for id in parked {
            let Some(pending) = self.acquires.get_mut(&id) else {
                continue;
            };
            pending.attempts += 1;
            let patient = match pending.mode {
                Mode::Within(_) => pending.until.is_some_and(|until| cx.clock().mono() < until),
                Mode::Try | Mode::Attempts => pending.attempts < self.options.attempts_max,
            };
            if !patient || !matches!(error, LockError::Unavailable { .. }) {
                self.finish(id, Err(error.clone()));
            }
        }
    }

    fn finish(&mut self, id: u64, result: Result<HeldLock, LockError>) {
        let Some(mut pending) = self.acquires.remove(&id) else {
            return;
        };
        if let Some(timer) = pending.due.take() {
            timer.cancel();
        }
        if let Some(tell) = pending.tell.take() {
            // An asker that has gone gives the lock back here, by dropping it.
            drop(tell.send(result.map_err(|error| in_doubt(error, pending.perhaps_granted))));
        }
    }

    /// Another attempt after a wait, while patience lasts; else the error.
    fn again(&mut self, id: u64, error: LockError, cx: &mut Cx<'_, Self>) {
        let Some(pending) = self.acquires.get_mut(&id) else {
            return;
        };
        pending.attempts += 1;
        pending.hasty += 1;
        let wait = self.backoff.wait(pending.hasty, &cx.host().random);
        let patient = match pending.mode {
            Mode::Try => !is_refusal(&error) && pending.attempts < self.options.attempts_max,
            Mode::Attempts => pending.attempts < self.options.attempts_max,
            Mode::Within(_) => pending
                .until
                .is_some_and(|until| cx.clock().mono().saturating_add(wait) < until),
        };
        if patient {
            pending.due = Some(cx.notify_later(AttemptDue { id }, wait));
            return;
        }
        let error = match (error, pending.mode) {
            (held @ LockError::HeldByOther(_), Mode::Try) => held,
            (LockError::HeldByOther(_), _) => LockError::ContentionExceeded {
                attempts: pending.attempts,
            },
            (
                LockError::Delayed {
                    last_token, ends_in, ..
                },
                _,
            ) => LockError::Delayed {
                last_token,
                ends_in,
                attempts: pending.attempts,
            },
            (other, _) => other,
        };
        let ambiguous = matches!(error, LockError::Unavailable { .. });
        self.finish(id, Err(error));
        if ambiguous {
            // An attempt without an answer may have been granted; the heartbeat's answer shows it.
            self.heartbeat_now(cx);
        }
    }

    /// A grant arrived.
    fn granted(
        &mut self,
        id: u64,
        grant: &Granted,
        session_id: &SessionId,
        life: &Arc<SessionLife>,
        cx: &mut Cx<'_, Self>,
    ) {
        self.saw(grant.token);
        let clock = cx.clock().clone();
        let Some(pending) = self.acquires.get_mut(&id) else {
            return;
        };
        let lease = Arc::new(Lease::new(
            pending.key.clone(),
            grant.token,
            grant.ttl,
            life.clone(),
            grant.deadline,
            clock.clone(),
            self.count.loss.clone(),
        ));
        let end = grant.deadline.min(life.deadline());
        if life.is_lost() || clock.boot() >= end {
            // It took so long that it must be given up already. Given back, so that nobody waits for it to expire; the
            // next attempt is another request, because this one's grant has ended.
            let key = pending.key.clone();
            if let Ok(fresh) = RequestId::new(cx.host().ids.prefixed("r")) {
                pending.request_id = fresh;
            }
            pending.perhaps_granted = true;
            self.release_orphan(key, grant.token, session_id.clone(), cx);
            self.again(id, unavailable("the grant arrived after its own deadline"), cx);
            return;
        }
        let Some(shared) = pending.shared.take() else { return };
        self.lease_seen(&lease, grant.sent);
        let lease_id = self.next_id();
        self.kept.leases.borrow_mut().insert(lease_id, lease.clone());
        self.leases.insert(
            lease_id,
            Keeping {
                lease: lease.clone(),
                session_id: session_id.clone(),
                failures: 0,
                unanswered: false,
                due: None,
                reason_waiters: Vec::new(),
            },
        );
        self.schedule_renewal(lease_id, None, cx);
        self.arm_watch(cx);
        lease.asked_to_yield(grant.yield_asked.as_ref());
        self.finish(id, Ok(HeldLock::new(lease_id, lease, shared, *cx.trace())));
    }

    /// The key is held by this very session under a token that nobody here answers for, and no other acquire of this
    /// process could be the one it was granted to: what is left of an acquire whose asker went away. It would block
    /// this one until it expires.
    fn release_if_orphan(
        &mut self,
        id: u64,
        key: &LockKey,
        token: FencingToken,
        session_id: &SessionId,
        cx: &mut Cx<'_, Self>,
    ) {
        let owned = self
            .leases
            .values()
            .any(|k| k.lease.token == token && k.lease.key == *key)
            || self.releases.values().any(|r| r.token == token && r.key == *key)
            || self
                .acquires
                .iter()
                .any(|(other, pending)| *other != id && pending.key == *key);
        if !owned {
            self.release_orphan(key.clone(), token, session_id.clone(), cx);
        }
    }
}

/// Whether a server has answered that the key is not to be had now.
const fn is_refusal(error: &LockError) -> bool {
    matches!(error, LockError::HeldByOther(_) | LockError::Delayed { .. })
}

/// The longest wait in its queue that a server takes (`lock.acquire.wait-max`), where this is its refusal of a longer one:
/// whoever speaks to it without this client asks again for that long, under the same request id.
#[must_use]
pub fn wait_bound(refusal: &Problem) -> Option<Duration> {
    if refusal.code != Code::InvalidRequest || refusal.text("field") != Some("wait_ms") {
        return None;
    }
    // Servers before the field was there say it in the reason alone: "must be between 0 and 30000".
    let in_reason = || refusal.text("reason")?.rsplit(' ').next()?.parse().ok();
    refusal.number("maximum").or_else(in_reason).map(ms)
}

/// What a grant's answer says, read and checked.
struct Granted {
    yield_asked: Option<YieldAsked>,
    token: FencingToken,
    /// When the request was sent.
    sent: Duration,
    ttl: Duration,
    deadline: Duration,
}

fn read_grant(answer: &GrantAnswer, key: &LockKey, sent: Duration, margin: Duration) -> Result<Granted, String> {
    if answer.key != key.as_str() {
        return Err(format!("it speaks of key {:?}", answer.key));
    }
    let token = http_contract::token(answer.token).map_err(|error| error.to_string())?;
    let ttl = Ttl::new(ms(answer.ttl_ms)).map_err(|error| error.to_string())?;
    Ok(Granted {
        yield_asked: yields::read(answer.yield_requested.as_ref()),
        token,
        sent,
        ttl: ttl.get(),
        deadline: deadline(sent, ms(answer.waited_ms), ms(answer.expires_in_ms), margin),
    })
}

/// Reads the refusal of L4. The holder's session is not shown to others, and its TTL is not said: what is left of the
/// lease stands for it.
fn read_holder(problem: &Problem, key: &LockKey) -> Option<HeldByOther> {
    let holder: Holder = serde_json::from_value(problem.fields.get("holder")?.clone()).ok()?;
    let expires_in = ms(problem.number("expires_in_ms")?);
    let since = time::OffsetDateTime::parse(&holder.since, &time::format_description::well_known::Rfc3339).ok()?;
    Some(HeldByOther {
        is_self: holder.is_self,
        holder: Grant {
            key: key.clone(),
            token: http_contract::token(holder.token).ok()?,
            session_id: SessionId::new("undisclosed").ok()?,
            owner: Owner::new(holder.owner).ok()?,
            ttl: Ttl::new(expires_in.clamp(ms(1), Ttl::MAX)).ok()?,
            expires_in,
            granted_at: UnixMillis(i64::try_from(since.unix_timestamp_nanos() / 1_000_000).ok()?),
            request_id: None,
            metadata: holder
                .metadata
                .and_then(|metadata| Metadata::new(metadata.to_string()).ok()),
            // Not said of another's grant.
            lock_delay: LockDelay::NONE,
            yield_asked: None,
        },
    })
}

/// Reads the other refusal of L4: the last token of the key, and what is left of its delay.
fn read_delay(problem: &Problem) -> Option<(FencingToken, Duration)> {
    let token = http_contract::token(problem.number("token")?).ok()?;
    Some((token, ms(problem.number("expires_in_ms")?)))
}

impl Receive<AttemptDue> for Core {
    fn receive(&mut self, AttemptDue { id }: AttemptDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let Some(pending) = self.acquires.get_mut(&id) else {
            return;
        };
        let over = pending.until.is_some_and(|until| cx.clock().mono() >= until);
        if pending.parked && over {
            let why = self.complaints.back().cloned().unwrap_or_default();
            self.finish(id, Err(unavailable(format!("no session within the budget; {why}"))));
            return;
        }
        self.attempt(id, cx);
    }
}

impl Receive<AttemptAnswered> for Core {
    fn receive(&mut self, message: AttemptAnswered, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let AttemptAnswered {
            id,
            at,
            session_id,
            life,
            sent,
            wait,
            result,
            tell,
        } = message;
        let took = cx.clock().boot().saturating_sub(sent);
        let Some(pending) = self.acquires.get_mut(&id) else {
            // Closed meanwhile: the session went with whatever was granted.
            drop(tell.send(Err(LockError::SessionLost)));
            return;
        };
        let key = pending.key.clone();
        pending.tell = Some(tell);
        // It stood in the server's line: the next attempt may be made at once, and finds its place there (case L38).
        let stood_in_line = !wait.is_zero() && took >= self.backoff.cap;
        if stood_in_line {
            pending.hasty = 0;
        }
        let Some(result) = result else {
            // The asker has gone. The attempt may have been granted all the same.
            self.acquires.remove(&id);
            self.heartbeat_now(cx);
            return;
        };
        let margin = self.options.safety_margin;
        let result = result.and_then(|answer| {
            read_grant(&answer, &key, sent, margin)
                .map_err(|detail| CallFailure::Ambiguous(format!("an unreadable grant: {detail}")))
        });
        let failure = match result {
            Ok(grant) => return self.granted(id, &grant, &session_id, &life, cx),
            Err(failure) => failure,
        };
        let bound = match &failure {
            CallFailure::Problem(refusal) => wait_bound(refusal),
            CallFailure::NotSent(_) | CallFailure::Ambiguous(_) => None,
        };
        if let Some(bound) = bound.filter(|bound| *bound < wait) {
            // Each refusal names a smaller bound than was asked for: it ends.
            self.wait_max = Some(bound);
            self.attempt(id, cx);
            return;
        }
        self.complain("acquire", &failure);
        // The place is at that server. One that does not answer at all is left as ever.
        let was_cut =
            matches!(failure, CallFailure::Ambiguous(_)) && took < wait.saturating_add(self.options.call_timeout);
        let perhaps_granted = failure.fate() == Fate::Indefinite;
        if let Some(pending) = self.acquires.get_mut(&id) {
            pending.perhaps_granted |= perhaps_granted;
        }
        match meaning(failure) {
            Meaning::HeldByOther(problem) => match read_holder(&problem, &key) {
                Some(held) => {
                    self.saw(held.holder.token);
                    if held.is_self {
                        self.release_if_orphan(id, &key, held.holder.token, &session_id, cx);
                    }
                    self.again(id, LockError::HeldByOther(Box::new(held)), cx);
                }
                None => self.again(id, unavailable("an unreadable refusal"), cx),
            },
            Meaning::Delayed(problem) => match read_delay(&problem) {
                Some((last_token, ends_in)) => {
                    self.saw(last_token);
                    let delayed = LockError::Delayed {
                        last_token,
                        ends_in,
                        attempts: 1,
                    };
                    self.again(id, delayed, cx);
                }
                None => self.again(id, unavailable("an unreadable refusal"), cx),
            },
            Meaning::SessionNotFound => {
                self.finish(id, Err(LockError::SessionLost));
                self.session_lost(&session_id, cx);
            }
            Meaning::TokenRegression(detail) => self.finish(id, Err(LockError::TokenRegression { detail })),
            Meaning::Invalid(detail) => self.finish(id, Err(LockError::Invalid { detail })),
            Meaning::NotHolder => self.finish(id, Err(unavailable("an answer that does not fit the question"))),
            Meaning::Unavailable(detail) => {
                if !(stood_in_line && was_cut) {
                    self.fail_over(at);
                }
                self.again(id, unavailable(detail), cx);
            }
        }
    }
}
