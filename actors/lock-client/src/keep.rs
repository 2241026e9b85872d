//! Leases while they are held, and their end: renewal, loss, release.

use crate::core::{Core, Meaning, PENDING_MAX, Releasing, Tell, in_doubt, meaning, messages, ms, unavailable};
use crate::deadline::deadline;
use crate::transport::{Call, CallFailure, Transport};
use crate::yields;
use actor_kit::{Ask, Cx, Receive, Reply};
use host_kit::Clock;
use http_contract::lock::{GrantAnswer, HeartbeatRequest, ReleaseAnswer, RenewBody};
use lock_api::{Fate, FencingToken, LockError, LockKey, LockLost, LostReason, SessionId};
use std::rc::Rc;
use std::time::Duration;

/// How long one look for the reason of a loss that the server has shown may take. The loss itself does not wait for it:
/// checks say lost meanwhile.
const REASON_WITHIN: Duration = Duration::from_millis(500);
/// How often it is looked for, at one server after the other: whoever is told waits two seconds at most.
const REASON_ATTEMPTS: usize = 4;
/// Between two looks, where the first one failed at once.
const REASON_PAUSE: Duration = Duration::from_millis(50);

messages! {
    /// Renew now, and tell what came of it.
    Renew { lease: u64, tell: Tell<()> } = "renew";
    /// The next renewal of this lease.
    RenewDue { lease: u64 } = "renew_due";
    /// L5 was answered, or was not. `sent` is boot time.
    RenewAnswered {
        lease: u64, at: usize, sent: Duration, result: Result<GrantAnswer, CallFailure>, tell: Vec<Tell<()>>
    } = "renew_answered";
    /// Why the server does not know this lease any more, as far as that could be found out.
    ReasonKnown { lease: u64, reason: LostReason } = "reason_known";
    /// The guard has ended, in whatever way.
    Release { lease: u64, tell: Option<Tell<()>> } = "release";
    /// The next attempt of this release.
    ReleaseDue { id: u64 } = "release_due";
    /// L6 was answered, or was not.
    ReleaseAnswered { id: u64, at: usize, result: Result<ReleaseAnswer, CallFailure> } = "release_answered";
    /// Look at every lease's deadline.
    WatchDue {} = "watch_due";
}

impl Core {
    /// The next renewal of a lease: every third of its TTL, or within half of what is left where that is less.
    pub fn schedule_renewal(&mut self, lease: u64, sooner: Option<Duration>, cx: &mut Cx<'_, Self>) {
        let boot = cx.clock().boot();
        let random = cx.host().random.clone();
        let Some(keeping) = self.leases.get_mut(&lease) else {
            return;
        };
        if let Some(timer) = keeping.due.take() {
            timer.cancel();
        }
        let third = keeping.lease.ttl / 3;
        let left = keeping.lease.deadline().saturating_sub(boot);
        let regular = (third - random.up_to(third / 10)).min(left / 2);
        let after = sooner.map_or(regular, |sooner| sooner.min(regular)).max(ms(1));
        keeping.due = Some(cx.notify_later(RenewDue { lease }, after));
    }

    fn renew(&mut self, lease: u64, tell: Vec<Tell<()>>, cx: &mut Cx<'_, Self>) {
        let sent = cx.clock().boot();
        let (mut at, mut server) = self.work();
        let Some(keeping) = self.leases.get_mut(&lease) else {
            for tell in tell {
                drop(tell.send(Err(LockError::SessionLost)));
            }
            return;
        };
        if let Err(lost) = keeping.lease.check() {
            if keeping.lease.is_condemned() {
                keeping.reason_waiters.extend(tell);
                return;
            }
            for tell in tell {
                drop(tell.send(Err(LockError::Lost(lost))));
            }
            return;
        }
        if keeping.unanswered {
            // The one before is still on its way: perhaps its server is silent.
            self.fail_over(at);
            (at, server) = self.work();
        }
        let Some(keeping) = self.leases.get_mut(&lease) else {
            return;
        };
        keeping.unanswered = true;
        let body = RenewBody {
            session_id: keeping.session_id.as_str().to_owned(),
            ttl_ms: None,
        };
        let (key, token) = (keeping.lease.key.clone(), keeping.lease.token);
        // An answer after the deadline is of no use.
        let within = keeping.lease.deadline().saturating_sub(sent);
        let call = server.renew(key, token, body, self.call(within, cx));
        cx.pipe(call, move |result| RenewAnswered {
            lease,
            at,
            sent,
            result,
            tell,
        });
    }

    /// The server does not know this lease any more. Checks say lost from here on; the reason is looked up, once, for
    /// those who are told.
    pub fn condemn(&mut self, lease: u64, tell: Vec<Tell<()>>, cx: &mut Cx<'_, Self>) {
        let within = REASON_WITHIN.min(self.options.call_timeout);
        let call = self.call(within, cx);
        let (at, _) = self.work();
        let Some(keeping) = self.leases.get_mut(&lease) else {
            return;
        };
        let fresh = keeping.lease.condemn();
        if !fresh && !keeping.lease.is_condemned() {
            let lost = keeping.lease.check().err();
            for tell in tell {
                drop(tell.send(Err(lost.map_or(LockError::SessionLost, LockError::Lost))));
            }
            return;
        }
        keeping.reason_waiters.extend(tell);
        if !fresh {
            // A renewal and a heartbeat both showed it: the look that is under way serves both.
            return;
        }
        let gone = Gone {
            key: keeping.lease.key.clone(),
            token: keeping.lease.token,
            session: keeping.session_id.clone(),
        };
        let mut servers = self.servers.work.clone();
        servers.rotate_left(at);
        let clock = cx.clock().clone();
        cx.pipe(gone.why(servers, call, clock), move |reason| ReasonKnown {
            lease,
            reason,
        });
    }

    /// Gives back a grant that nobody here owns.
    pub fn release_orphan(&mut self, key: LockKey, token: FencingToken, session_id: SessionId, cx: &mut Cx<'_, Self>) {
        if self.releases.len() >= PENDING_MAX {
            // It expires by itself: nobody renews it.
            return;
        }
        tracing::info!(event = "orphan_released", %key, token = token.get(), %session_id, trace_id = cx.trace().trace_id_hex());
        let until = cx.clock().boot().saturating_add(self.options.session_ttl);
        let id = self.next_id();
        let releasing = Releasing {
            key,
            token,
            session_id,
            until,
            failures: 0,
            perhaps_done: false,
            tell: None,
        };
        self.releases.insert(id, releasing);
        self.release(id, cx);
    }

    fn release(&mut self, id: u64, cx: &mut Cx<'_, Self>) {
        let (at, server) = self.work();
        let boot = cx.clock().boot();
        let Some(releasing) = self.releases.get(&id) else {
            return;
        };
        let within = self.options.call_timeout.min(releasing.until.saturating_sub(boot));
        let (key, session) = (releasing.key.clone(), releasing.session_id.clone());
        let call = server.release(key, releasing.token, session, self.call(within, cx));
        cx.pipe(call, move |result| ReleaseAnswered { id, at, result });
    }

    /// A loss has to be noticed although nobody asks: the next look is at the earliest deadline, or a quarter of the
    /// safety margin from now where that is sooner. Timers stand still while the host is suspended, boot time does not;
    /// the short step bounds how long a loss can stay unnoticed after waking up.
    pub fn arm_watch(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some(timer) = self.watch.take() {
            timer.cancel();
        }
        let boot = cx.clock().boot();
        let next = self
            .leases
            .values()
            .filter(|keeping| keeping.lease.is_held())
            .map(|keeping| keeping.lease.deadline().saturating_sub(boot))
            .min();
        if let Some(next) = next {
            let step = (self.options.safety_margin / 4).max(ms(10));
            self.watch = Some(cx.notify_later(WatchDue {}, next.min(step).max(ms(1))));
        }
    }
}

/// A grant that a server has called gone.
struct Gone {
    key: LockKey,
    token: FencingToken,
    session: SessionId,
}

impl Gone {
    /// Why a token that was ours holds nothing any more: with its session, by an operator's hand, or else. Where nobody
    /// can be asked it is the else, which is true in any case: the token is stale.
    async fn why(self, servers: Vec<Rc<dyn Transport>>, call: Call, clock: Clock) -> LostReason {
        for (attempt, server) in servers.iter().cycle().take(REASON_ATTEMPTS).enumerate() {
            if attempt > 0 {
                clock.sleep(REASON_PAUSE).await;
            }
            if let Some(reason) = self.ask(server, call).await {
                return reason;
            }
        }
        LostReason::Superseded
    }

    /// None when this server did not say.
    async fn ask(&self, server: &Rc<dyn Transport>, call: Call) -> Option<LostReason> {
        let alive = server.heartbeat(self.session.clone(), HeartbeatRequest::default(), call);
        let (alive, rows) = tokio::join!(alive, server.history(self.key.clone(), call));
        if let Err(failure) = alive
            && matches!(meaning(failure), Meaning::SessionNotFound)
        {
            return Some(LostReason::SessionLost);
        }
        let revoked = rows.ok()?.iter().any(|row| {
            row.kind == "REVOKED"
                && row.session_id.as_deref() == Some(self.session.as_str())
                && row.token.is_some_and(|at| at >= self.token.get())
        });
        Some(if revoked {
            LostReason::Revoked
        } else {
            LostReason::Superseded
        })
    }
}

impl Receive<Renew> for Core {
    fn receive(&mut self, Renew { lease, tell }: Renew, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.renew(lease, vec![tell], cx);
        self.schedule_renewal(lease, None, cx);
    }
}

impl Receive<RenewDue> for Core {
    fn receive(&mut self, RenewDue { lease }: RenewDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if self
            .leases
            .get(&lease)
            .is_some_and(|keeping| keeping.lease.check().is_ok())
        {
            self.renew(lease, Vec::new(), cx);
            self.schedule_renewal(lease, None, cx);
        }
    }
}

impl Receive<RenewAnswered> for Core {
    fn receive(&mut self, message: RenewAnswered, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let RenewAnswered {
            lease,
            at,
            sent,
            result,
            tell,
        } = message;
        let margin = self.options.safety_margin;
        let Some(keeping) = self.leases.get_mut(&lease) else {
            // Released meanwhile.
            for tell in tell {
                drop(tell.send(Err(LockError::SessionLost)));
            }
            return;
        };
        keeping.unanswered = false;
        let result = result.and_then(|answer| {
            if answer.key == keeping.lease.key.as_str() && answer.token == keeping.lease.token.get() {
                let until = deadline(sent, ms(answer.waited_ms), ms(answer.expires_in_ms), margin);
                Ok((until, yields::read(answer.yield_requested.as_ref())))
            } else {
                Err(CallFailure::Ambiguous("an answer about another grant".to_owned()))
            }
        });
        let failure = match result {
            Ok((until, asked)) => {
                keeping.failures = 0;
                keeping.lease.extend(until);
                let extended = keeping.lease.clone();
                let held = keeping.lease.check().map(drop).map_err(LockError::Lost);
                if held.is_err() && keeping.lease.is_condemned() {
                    // An answer that a heartbeat has overtaken.
                    keeping.reason_waiters.extend(tell);
                    return;
                }
                for tell in tell {
                    drop(tell.send(held.clone()));
                }
                self.lease_seen(&extended, sent);
                extended.asked_to_yield(asked.as_ref());
                self.schedule_renewal(lease, None, cx);
                return;
            }
            Err(failure) => failure,
        };
        let session_id = keeping.session_id.clone();
        self.complain("renew", &failure);
        let perhaps = failure.fate() == Fate::Indefinite;
        let error = match meaning(failure) {
            Meaning::NotHolder => return self.condemn(lease, tell, cx),
            Meaning::SessionNotFound => {
                self.session_lost(&session_id, cx);
                LockError::SessionLost
            }
            Meaning::Invalid(detail) => LockError::Invalid { detail },
            Meaning::TokenRegression(detail) => LockError::TokenRegression { detail },
            Meaning::HeldByOther(_) | Meaning::Delayed(_) => unavailable("an answer that does not fit the question"),
            Meaning::Unavailable(detail) => {
                self.fail_over(at);
                in_doubt(unavailable(detail), perhaps)
            }
        };
        for tell in tell {
            drop(tell.send(Err(error.clone())));
        }
        let Some(keeping) = self.leases.get_mut(&lease) else {
            return;
        };
        keeping.failures = keeping.failures.saturating_add(1);
        let wait = self.backoff.wait(keeping.failures, &cx.host().random);
        if keeping.lease.is_held() {
            self.schedule_renewal(lease, Some(wait), cx);
        }
    }
}

impl Receive<ReasonKnown> for Core {
    fn receive(&mut self, ReasonKnown { lease, reason }: ReasonKnown, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if reason == LostReason::SessionLost {
            let session = self.leases.get(&lease).map(|keeping| keeping.session_id.clone());
            if let Some(session) = session {
                self.session_lost(&session, cx);
            }
        }
        // Released meanwhile where there is none: the end of its guard has settled it.
        let Some(keeping) = self.leases.get_mut(&lease) else {
            return;
        };
        keeping.lease.lose(reason);
        let lost = keeping.lease.check().err().unwrap_or(LockLost {
            token: keeping.lease.token,
            reason,
        });
        for tell in std::mem::take(&mut keeping.reason_waiters) {
            drop(tell.send(Err(LockError::Lost(lost))));
        }
    }
}

impl Receive<Release> for Core {
    fn receive(&mut self, Release { lease, tell }: Release, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.kept.leases.borrow_mut().remove(&lease);
        let Some(mut keeping) = self.leases.remove(&lease) else {
            // The actor was restarted, or closed: the session is gone, and with it the grant.
            if let Some(tell) = tell {
                drop(tell.send(Err(LockError::SessionLost)));
            }
            return;
        };
        if let Some(timer) = keeping.due.take() {
            timer.cancel();
        }
        let id = self.next_id();
        // The server may keep the lease longer than we count on it, by the margin and more.
        let until = cx.clock().boot().saturating_add(keeping.lease.ttl);
        self.releases.insert(
            id,
            Releasing {
                key: keeping.lease.key.clone(),
                token: keeping.lease.token,
                session_id: keeping.session_id,
                until,
                failures: 0,
                perhaps_done: false,
                tell,
            },
        );
        self.release(id, cx);
        self.arm_watch(cx);
    }
}

impl Receive<ReleaseDue> for Core {
    fn receive(&mut self, ReleaseDue { id }: ReleaseDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.release(id, cx);
    }
}

impl Receive<ReleaseAnswered> for Core {
    fn receive(&mut self, ReleaseAnswered { id, at, result }: ReleaseAnswered, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let attempts_max = self.options.attempts_max;
        let Some(releasing) = self.releases.get_mut(&id) else {
            return;
        };
        let lost = |reason| {
            LockError::Lost(LockLost {
                token: releasing.token,
                reason,
            })
        };
        // A server that was killed with the answer may have given it back, and the key may be the next holder's by now.
        let was_done = releasing.perhaps_done;
        let perhaps_done = match &result {
            Ok(_) | Err(CallFailure::NotSent(_)) => was_done,
            Err(CallFailure::Ambiguous(_)) => true,
            Err(failure @ CallFailure::Problem(_)) => was_done || failure.fate() == Fate::Indefinite,
        };
        let (answer, again) = match result {
            Ok(_) => (Ok(()), false),
            Err(failure) => match meaning(failure) {
                Meaning::NotHolder if was_done => (Ok(()), false),
                Meaning::NotHolder => (Err(lost(LostReason::Superseded)), false),
                Meaning::SessionNotFound => (Err(lost(LostReason::SessionLost)), false),
                Meaning::Invalid(detail) => (Err(LockError::Invalid { detail }), false),
                Meaning::TokenRegression(detail) | Meaning::Unavailable(detail) => (Err(unavailable(detail)), true),
                Meaning::HeldByOther(problem) | Meaning::Delayed(problem) => (Err(unavailable(problem.detail)), true),
            },
        };
        releasing.perhaps_done = perhaps_done;
        let again = again && cx.clock().boot() < releasing.until;
        releasing.failures = releasing.failures.saturating_add(u32::from(answer.is_err()));
        let failures = releasing.failures;
        if !again || failures >= attempts_max {
            // Told what is known now; the attempts go on for as long as the lease could.
            if let Some(tell) = releasing.tell.take() {
                drop(tell.send(answer));
            }
        }
        if again {
            self.fail_over(at);
            let wait = self.backoff.wait(failures, &cx.host().random);
            cx.notify_later(ReleaseDue { id }, wait);
        } else {
            self.releases.remove(&id);
        }
    }
}

impl Receive<WatchDue> for Core {
    fn receive(&mut self, _: WatchDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        for keeping in self.leases.values() {
            if keeping.lease.is_held() {
                // A loss found here is told from here.
                let _ = keeping.lease.check();
            }
        }
        self.arm_watch(cx);
    }
}
