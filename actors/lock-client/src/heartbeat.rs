//! The session: opened, kept alive, lost, opened again.
//!
//! A heartbeat goes out at the server's rhythm whether or not the one before was answered, over its own connections, and
//! to the next server as soon as one keeps silent. A failed one is repeated after a jittered wait until the session's
//! deadline has passed and beyond (case L11): a server that restarts gives the session its full TTL again.

use crate::core::{
    CLOSE_ATTEMPTS, Core, Meaning, Session, SessionState, Tell, as_ms, meaning, messages, ms, ttl_ms, unavailable,
};
use crate::deadline::{SessionLife, deadline};
use crate::options::check_ttl;
use crate::transport::CallFailure;
use crate::yields;
use actor_kit::{Ask, Cx, Receive, Reply};
use http_contract::lock::{HeartbeatAnswer, HeartbeatRequest, OpenSessionAnswer, OpenSessionRequest};
use lock_api::{Fate, FencingToken, LockError, LockKey, LostReason, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Heartbeats under way at most: the server's rhythm is a third of the TTL, and an answer older than the TTL is of no use.
const HEARTBEATS_IN_FLIGHT_MAX: u32 = 4;

messages! {
    /// Try to open a session.
    OpenDue {} = "open_due";
    /// L1 was answered, or was not. `sent` is boot time.
    Opened { at: usize, sent: Duration, result: Result<OpenSessionAnswer, CallFailure> } = "opened";
    /// The next heartbeat of this session.
    HeartbeatDue { session_id: SessionId } = "heartbeat_due";
    /// L2 was answered, or was not. `sent` is boot time.
    HeartbeatAnswered { session_id: SessionId, at: usize, sent: Duration, result: Result<HeartbeatAnswer, CallFailure> } = "heartbeat_answered";
}

impl Core {
    /// L1, unless a session is open or being opened.
    pub fn open_session(&mut self, cx: &mut Cx<'_, Self>) {
        let SessionState::Opening { in_flight, .. } = &mut self.session else {
            return;
        };
        if std::mem::replace(in_flight, true) {
            return;
        }
        let (at, server) = self.work();
        let request = OpenSessionRequest {
            owner: self.options.owner.as_str().to_owned(),
            ttl_ms: Some(ttl_ms(self.options.session_ttl)),
            metadata: self.options.metadata.clone(),
        };
        let sent = cx.clock().boot();
        let call = server.open_session(request, self.call(self.options.call_timeout, cx));
        cx.pipe(call, move |result| Opened { at, sent, result });
    }

    fn opened(&mut self, sent: Duration, answer: &OpenSessionAnswer, cx: &mut Cx<'_, Self>) -> Result<(), LockError> {
        let garbled = |what: &str| unavailable(format!("an unreadable answer to the opening of a session: {what}"));
        let id = SessionId::new(answer.session_id.as_str()).map_err(|error| garbled(&error.to_string()))?;
        let (ttl, margin) = (ms(answer.ttl_ms), self.options.safety_margin);
        check_ttl("the session TTL the server gave", ttl, margin)?;
        let interval = ms(answer.heartbeat_interval_ms).clamp(ms(1), ttl / 3);
        let life = Arc::new(SessionLife::until(deadline(
            sent,
            Duration::ZERO,
            ms(answer.expires_in_ms),
            margin,
        )));
        tracing::info!(
            event = "session_opened",
            session_id = %id,
            owner = self.options.owner.as_str(),
            ttl_ms = answer.ttl_ms,
            trace_id = cx.trace().trace_id_hex()
        );
        self.session = SessionState::Open(Session {
            id,
            life,
            ttl,
            interval,
            in_flight: 0,
            failures: 0,
            unanswered: false,
            due: None,
        });
        self.schedule_heartbeat(None, cx);
        for tell in std::mem::take(&mut self.ready) {
            drop(tell.send(Ok(())));
        }
        self.wake_parked(cx);
        Ok(())
    }

    /// The client was closed meanwhile. Nobody would keep the session alive, and nobody waits for it to expire.
    fn opened_too_late(
        &mut self,
        tell: Option<Tell<()>>,
        result: Result<OpenSessionAnswer, CallFailure>,
        cx: &mut Cx<'_, Self>,
    ) {
        let opened = result.map(|answer| SessionId::new(answer.session_id));
        match opened {
            Ok(Ok(id)) => self.close_session(id, tell, CLOSE_ATTEMPTS, cx),
            Ok(Err(error)) => self.end(tell, Err(unavailable(error.to_string())), cx),
            Err(failure) if failure.fate() == Fate::Definite => self.end(tell, Ok(()), cx),
            Err(failure) => self.end(tell, Err(unavailable(failure.to_string())), cx),
        }
    }

    /// Nobody could be reached, or nobody would: whoever waits for a session is told in due time.
    fn session_failed(&mut self, failures: u32, error: &LockError, cx: &mut Cx<'_, Self>) {
        let final_answer = !matches!(error, LockError::Unavailable { .. });
        if final_answer || failures >= self.options.attempts_max {
            for tell in std::mem::take(&mut self.ready) {
                drop(tell.send(Err(error.clone())));
            }
        }
        self.fail_parked(error, cx);
    }

    /// When the next heartbeat is due: at the session's rhythm with a little jitter, so that a thousand clients that
    /// started together spread out; sooner where `sooner` says so.
    fn schedule_heartbeat(&mut self, sooner: Option<Duration>, cx: &mut Cx<'_, Self>) {
        let SessionState::Open(session) = &mut self.session else {
            return;
        };
        if let Some(timer) = session.due.take() {
            timer.cancel();
        }
        let regular = session.interval - cx.host().random.up_to(session.interval / 10);
        let after = sooner.map_or(regular, |sooner| sooner.min(regular));
        let due = HeartbeatDue {
            session_id: session.id.clone(),
        };
        session.due = Some(cx.notify_later(due, after));
    }

    /// A heartbeat out of turn: the answer says what the server believes this session holds.
    pub fn heartbeat_now(&mut self, cx: &mut Cx<'_, Self>) {
        self.schedule_heartbeat(Some(Duration::ZERO), cx);
    }

    /// The server does not know the session: every grant of it is lost, and a new session is opened.
    pub fn session_lost(&mut self, id: &SessionId, cx: &mut Cx<'_, Self>) {
        let Some(session) = self.session_of(id) else { return };
        session.life.lose();
        if let Some(timer) = session.due.take() {
            timer.cancel();
        }
        tracing::warn!(event = "session_lost", session_id = %id, trace_id = cx.trace().trace_id_hex());
        self.session = SessionState::Opening {
            failures: 0,
            in_flight: false,
        };
        for keeping in self.leases.values().filter(|keeping| keeping.session_id == *id) {
            keeping.lease.lose(LostReason::SessionLost);
        }
        self.open_session(cx);
    }

    /// Reads what a heartbeat answered.
    fn alive(
        &mut self,
        id: &SessionId,
        sent: Duration,
        answer: &HeartbeatAnswer,
        cx: &mut Cx<'_, Self>,
    ) -> Result<(), String> {
        if answer.session_id != id.as_str() {
            return Err(format!("it speaks of session {:?}", answer.session_id));
        }
        let mut held = BTreeMap::new();
        for item in &answer.held {
            let key = LockKey::new(item.key.as_str()).map_err(|error| error.to_string())?;
            let token = http_contract::token(item.token).map_err(|error| error.to_string())?;
            held.insert((key, token), yields::read(item.yield_requested.as_ref()));
        }
        let margin = self.options.safety_margin;
        let Some(session) = self.session_of(id) else {
            return Ok(());
        };
        session.failures = 0;
        session
            .life
            .extend(deadline(sent, Duration::ZERO, ms(answer.expires_in_ms), margin));
        for (_, token) in held.keys() {
            self.saw(*token);
        }
        for keeping in self.leases.values() {
            let lease = &keeping.lease;
            if keeping.session_id == *id
                && let Some(asked) = held.get(&(lease.key.clone(), lease.token))
            {
                self.lease_seen(lease, sent);
                lease.asked_to_yield(asked.as_ref());
            }
        }
        self.wake_parked(cx);
        for tell in std::mem::take(&mut self.ready) {
            drop(tell.send(Ok(())));
        }
        // Grants that we hold and the server does not. One that came after this heartbeat left may be missing rightly.
        let gone: Vec<u64> = self
            .leases
            .iter()
            .filter(|(_, keeping)| {
                keeping.session_id == *id
                    && keeping.lease.since < sent
                    && keeping.lease.is_held()
                    && !held.contains_key(&(keeping.lease.key.clone(), keeping.lease.token))
            })
            .map(|(id, _)| *id)
            .collect();
        for lease in gone {
            self.condemn(lease, Vec::new(), cx);
        }
        // Grants that the server holds for us and nobody here owns: an acquire whose answer was lost and whose asker has
        // gone. A lost lock whose guard still lives is owned: its holder may not have noticed yet, so the lease runs out
        // at its own time.
        for (key, token) in held.into_keys() {
            if !self.owns(&key, token) {
                self.release_orphan(key, token, id.clone(), cx);
            }
        }
        Ok(())
    }

    /// Whether a guard, a pending acquire or a release under way answers for this grant.
    fn owns(&self, key: &LockKey, token: FencingToken) -> bool {
        self.leases
            .values()
            .any(|keeping| keeping.lease.token == token && keeping.lease.key == *key)
            || self.acquires.values().any(|pending| pending.key == *key)
            || self
                .releases
                .values()
                .any(|releasing| releasing.token == token && releasing.key == *key)
    }
}

impl Receive<OpenDue> for Core {
    fn receive(&mut self, _: OpenDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.open_session(cx);
    }
}

impl Receive<Opened> for Core {
    fn receive(&mut self, Opened { at, sent, result }: Opened, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let SessionState::Opening { failures, .. } = self.session else {
            if let Some(tell) = self.close_when_opened.take() {
                self.opened_too_late(tell, result, cx);
            }
            return;
        };
        let error = match result {
            Ok(answer) => match self.opened(sent, &answer, cx) {
                Ok(()) => return,
                Err(error) => error,
            },
            Err(failure) => {
                self.complain("open session", &failure);
                match meaning(failure) {
                    Meaning::Invalid(detail) => LockError::Invalid { detail },
                    Meaning::TokenRegression(detail) => LockError::TokenRegression { detail },
                    Meaning::Unavailable(detail) => unavailable(detail),
                    _ => unavailable("an answer that does not fit the question"),
                }
            }
        };
        self.fail_over(at);
        let failures = failures.saturating_add(1);
        self.session = SessionState::Opening {
            failures,
            in_flight: false,
        };
        self.session_failed(failures, &error, cx);
        let wait = self.backoff.wait(failures, &cx.host().random);
        cx.notify_later(OpenDue {}, wait);
    }
}

impl Receive<HeartbeatDue> for Core {
    fn receive(&mut self, HeartbeatDue { session_id }: HeartbeatDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let servers = self.servers.heartbeat.len();
        let silent = self.session_of(&session_id).map(|session| session.unanswered);
        let Some(silent) = silent else { return };
        if silent {
            self.heartbeat_server = (self.heartbeat_server + 1) % servers;
        }
        let (at, witness) = (self.heartbeat_server % servers, self.witness);
        let Some(session) = self.session_of(&session_id) else {
            return;
        };
        if session.in_flight < HEARTBEATS_IN_FLIGHT_MAX {
            session.in_flight += 1;
            session.unanswered = true;
            let within = session.ttl;
            let request = HeartbeatRequest {
                witness_token: witness.map(FencingToken::get),
            };
            let sent = cx.clock().boot();
            let call = self.servers.heartbeat[at].heartbeat(session_id.clone(), request, self.call(within, cx));
            cx.pipe(call, move |result| HeartbeatAnswered {
                session_id,
                at,
                sent,
                result,
            });
        }
        self.schedule_heartbeat(None, cx);
    }
}

impl Receive<HeartbeatAnswered> for Core {
    fn receive(&mut self, message: HeartbeatAnswered, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let HeartbeatAnswered {
            session_id,
            at,
            sent,
            result,
        } = message;
        let Some(session) = self.session_of(&session_id) else {
            return;
        };
        session.in_flight = session.in_flight.saturating_sub(1);
        session.unanswered = false;
        let result = result.and_then(|answer| {
            self.alive(&session_id, sent, &answer, cx)
                .map_err(|detail| CallFailure::Ambiguous(format!("an unreadable heartbeat answer: {detail}")))
        });
        let Err(failure) = result else { return };
        self.count.heartbeat_failures.inc();
        self.complain("heartbeat", &failure);
        if let Meaning::SessionNotFound = meaning(failure) {
            self.session_lost(&session_id, cx);
            return;
        }
        let servers = self.servers.heartbeat.len();
        if self.heartbeat_server % servers == at {
            self.heartbeat_server = (at + 1) % servers;
        }
        let random = cx.host().random.clone();
        let backoff = self.backoff;
        let Some(session) = self.session_of(&session_id) else {
            return;
        };
        session.failures = session.failures.saturating_add(1);
        let wait = backoff.wait(session.failures, &random).min(session.interval);
        let (failures, lapsed) = (session.failures, cx.clock().boot() >= session.life.deadline());
        tracing::warn!(
            event = "heartbeat_failed",
            %session_id,
            failures,
            retry_in_ms = as_ms(wait),
            trace_id = cx.trace().trace_id_hex()
        );
        if lapsed {
            self.session_failed(failures, &unavailable("heartbeats are not answered"), cx);
        }
        self.schedule_heartbeat(Some(wait), cx);
    }
}
