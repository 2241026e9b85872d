//! The client's actor: one session, its acquires, its leases.
//!
//! Owns: the session and its heartbeats, every acquire until it is answered, every lease until its guard has gone, every
//! release until it is answered, and the highest token ever seen (the witness of 01 §1.6).
//! Does not own: whether a lock is held ([`crate::deadline`] decides that without this actor).
//! On failure: a panic loses all of the above; the restarted actor tells every holder that the session is lost and opens
//! a new one. A stopped or frozen actor renews nothing, so the deadlines lapse.
//! Messages: [`Acquire`], [`Renew`], [`Release`], [`Inspect`], [`Ready`], [`Close`] from outside; what is due and what was
//! answered from itself. Split by concern: `heartbeat` (session), `acquire`, `keep` (renew, release, watch).

use crate::backoff::Backoff;
use crate::client::Shared;
use crate::deadline::{CountLoss, Lease, SessionLife};
use crate::options::{ClientOptions, LeaseSeen};
use crate::transport::{Call, CallFailure, Servers, Transport};
use actor_kit::{Ask, Behaviour, Cx, Receive, Reply, TimerHandle, TraceContext};
use http_contract::lock::LockView;
use http_contract::{Code, Problem};
use lock_api::{FencingToken, LockDelay, LockError, LockKey, LostReason, RequestId, SessionId, Ttl};
use prometheus::IntCounter;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How many acquires, releases or sessions' waiters one client keeps at most; past it the answer is a clear refusal
/// (NFR-11).
pub(crate) const PENDING_MAX: usize = 10_000;

/// Where an outcome is told to somebody outside.
pub(crate) type Tell<T> = oneshot::Sender<Result<T, LockError>>;

/// What outlives a restart of the actor: the leases, so that their holders can be told, and the source of ids.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    pub leases: Rc<RefCell<BTreeMap<u64, Arc<Lease>>>>,
    next_id: Rc<Cell<u64>>,
}

impl Kept {
    fn next_id(&self) -> u64 {
        let id = self.next_id.get() + 1;
        self.next_id.set(id);
        id
    }

    /// Nobody looks after these leases any more.
    pub fn abandon(&self) {
        for lease in std::mem::take(&mut *self.leases.borrow_mut()).into_values() {
            lease.lose(LostReason::SessionLost);
        }
    }
}

/// The session as far as it is known.
pub(crate) enum SessionState {
    /// Being opened, or waiting to be opened again.
    Opening {
        failures: u32,
        in_flight: bool,
    },
    Open(Session),
    /// [`Close`] was asked for.
    Closing,
}

pub(crate) struct Session {
    pub id: SessionId,
    pub life: Arc<SessionLife>,
    pub ttl: Duration,
    pub interval: Duration,
    /// Heartbeats under way. A slow answer does not hold up the next heartbeat.
    pub in_flight: u32,
    pub failures: u32,
    /// Whether the latest heartbeat still waits for its answer.
    pub unanswered: bool,
    pub due: Option<TimerHandle>,
}

/// What kind of acquire it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The first refusal is the answer.
    Try,
    /// Refusals are retried up to the configured number of attempts (FR-28).
    Attempts,
    /// Waits in the server's queue for this long in all.
    Within(Duration),
}

/// An acquire that is not answered yet.
pub(crate) struct Pending {
    pub key: LockKey,
    pub mode: Mode,
    pub ttl: Option<Duration>,
    pub lock_delay: LockDelay,
    pub metadata: Option<Value>,
    /// One id over all attempts and servers (C2.6), renewed only after a grant of it was given back.
    pub request_id: RequestId,
    /// None while an attempt is under way: the attempt watches it, to end when the asker goes.
    pub tell: Option<Tell<crate::HeldLock>>,
    /// Kept alive by who waits, and handed to the guard.
    pub shared: Option<Arc<Shared>>,
    pub attempts: u32,
    /// Attempts in a row that ended at once: what the wait before the next one grows with.
    pub hasty: u32,
    /// What it belongs to, whoever makes an attempt of it possible.
    pub trace: TraceContext,
    /// An attempt that brought no grant may have been granted at the server.
    pub perhaps_granted: bool,
    /// Waits for a usable session.
    pub parked: bool,
    /// In monotonic time, for [`Mode::Within`].
    pub until: Option<Duration>,
    pub due: Option<TimerHandle>,
}

/// A lease and what is being done for it.
pub(crate) struct Keeping {
    pub lease: Arc<Lease>,
    pub session_id: SessionId,
    pub failures: u32,
    pub unanswered: bool,
    pub due: Option<TimerHandle>,
    /// Who asked for a renewal and is told why the lock is lost, once that is known.
    pub reason_waiters: Vec<Tell<()>>,
}

/// A release that is not answered yet.
pub(crate) struct Releasing {
    pub key: LockKey,
    pub token: FencingToken,
    pub session_id: SessionId,
    /// In boot time: past this the lease has expired anyway.
    pub until: Duration,
    pub failures: u32,
    /// An attempt whose answer did not arrive may have given the lock back.
    pub perhaps_done: bool,
    pub tell: Option<Tell<()>>,
}

/// What the client counts.
#[derive(Clone)]
pub(crate) struct Counts {
    pub loss: CountLoss,
    pub heartbeat_failures: IntCounter,
}

/// The behaviour.
pub(crate) struct Core {
    pub options: ClientOptions,
    pub backoff: Backoff,
    pub servers: Rc<Servers>,
    pub count: Counts,
    pub kept: Kept,
    pub session: SessionState,
    /// Who waits for the session to be open.
    pub ready: Vec<Tell<()>>,
    /// The highest token ever seen, wherever.
    pub witness: Option<FencingToken>,
    pub acquires: BTreeMap<u64, Pending>,
    pub leases: BTreeMap<u64, Keeping>,
    pub releases: BTreeMap<u64, Releasing>,
    pub work_server: usize,
    pub heartbeat_server: usize,
    pub watch: Option<TimerHandle>,
    /// Ends the client's own thread, where it has one.
    pub done: Rc<RefCell<Option<oneshot::Sender<()>>>>,
    /// The longest wait that a server takes, as far as one has said so (`lock.acquire.wait-max` is the server's).
    pub wait_max: Option<Duration>,
    /// [`Close`] came while a session was being opened: it is closed as soon as its id is known.
    pub close_when_opened: Option<Option<Tell<()>>>,
    /// The session that is being closed.
    pub closing_id: Option<SessionId>,
    /// Recent failures, for whoever looks.
    pub complaints: VecDeque<String>,
}

impl Core {
    pub fn new(
        options: ClientOptions,
        servers: Rc<Servers>,
        count: Counts,
        kept: Kept,
        done: Rc<RefCell<Option<oneshot::Sender<()>>>>,
    ) -> Self {
        // After a restart: what the lost state knew of these leases is gone.
        kept.abandon();
        Self {
            backoff: Backoff {
                base: options.backoff_min,
                cap: options.backoff_max,
            },
            options,
            servers,
            count,
            kept,
            session: SessionState::Opening {
                failures: 0,
                in_flight: false,
            },
            ready: Vec::new(),
            witness: None,
            acquires: BTreeMap::new(),
            leases: BTreeMap::new(),
            releases: BTreeMap::new(),
            work_server: 0,
            heartbeat_server: 0,
            watch: None,
            done,
            wait_max: None,
            close_when_opened: None,
            closing_id: None,
            complaints: VecDeque::new(),
        }
    }

    pub fn next_id(&self) -> u64 {
        self.kept.next_id()
    }

    /// The server that work goes to, and its number.
    pub fn work(&self) -> (usize, Rc<dyn Transport>) {
        let at = self.work_server % self.servers.work.len();
        (at, self.servers.work[at].clone())
    }

    /// A call to server `at` failed: the next one goes to its neighbour. A failure of a server that was given up
    /// meanwhile changes nothing.
    pub fn fail_over(&mut self, at: usize) {
        if self.work_server % self.servers.work.len() == at {
            self.work_server = (at + 1) % self.servers.work.len();
        }
    }

    pub fn call(&self, within: Duration, cx: &Cx<'_, Self>) -> Call {
        Call {
            within: within.max(Duration::from_millis(1)),
            trace: *cx.trace(),
        }
    }

    /// A token was seen: the witness never goes back.
    pub fn saw(&mut self, token: FencingToken) {
        self.witness = self.witness.max(Some(token));
    }

    pub fn complain(&mut self, what: &'static str, failure: &CallFailure) {
        const COMPLAINTS_MAX: usize = 8;
        tracing::debug!(event = "lock_client_call_failed", call = what, error = %failure);
        if self.complaints.len() == COMPLAINTS_MAX {
            self.complaints.pop_front();
        }
        self.complaints.push_back(format!("{what}: {failure}"));
    }

    /// An answer to what was sent at `sent` began or extended this lease: whoever watches is told what it promised.
    pub fn lease_seen(&self, lease: &Lease, sent: Duration) {
        if let Some(watch) = &self.options.lease_watch {
            watch.tell(&LeaseSeen {
                key: lease.key.clone(),
                token: lease.token,
                sent,
                until: lease.deadline().saturating_add(self.options.safety_margin),
            });
        }
    }

    /// The session when new grants can come of it: open, and not past its own deadline.
    pub fn usable_session(&self, now: Duration) -> Option<&Session> {
        match &self.session {
            SessionState::Open(session) if !session.life.is_lost() && now < session.life.deadline() => Some(session),
            _ => None,
        }
    }

    /// The open session of this id.
    pub fn session_of(&mut self, id: &SessionId) -> Option<&mut Session> {
        match &mut self.session {
            SessionState::Open(session) if session.id == *id => Some(session),
            _ => None,
        }
    }
}

impl Behaviour for Core {
    const KIND: &'static str = "lock_client";

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        self.open_session(cx);
    }

    fn observe(&self) -> Value {
        let session = match &self.session {
            SessionState::Opening { failures, .. } => json!({ "state": "opening", "failures": failures }),
            SessionState::Closing => json!({ "state": "closing" }),
            SessionState::Open(session) => json!({
                "state": "open", "session_id": session.id.as_str(), "failures": session.failures,
                "in_flight": session.in_flight,
            }),
        };
        json!({
            "session": session,
            "witness": self.witness.map(FencingToken::get),
            "acquires": self.acquires.len(),
            "held": self.leases.values().filter(|keeping| keeping.lease.is_held()).count(),
            "guards": self.leases.len(),
            "releases": self.releases.len(),
            "work_server": self.work_server,
            "heartbeat_server": self.heartbeat_server,
            "complaints": self.complaints,
        })
    }
}

/// What a failure means to whoever asked.
pub(crate) enum Meaning {
    SessionNotFound,
    NotHolder,
    HeldByOther(Box<Problem>),
    Delayed(Box<Problem>),
    TokenRegression(String),
    /// The server will say the same again.
    Invalid(String),
    /// Another attempt, or another server, may do better. What was asked for may have been done.
    Unavailable(String),
}

pub(crate) fn meaning(failure: CallFailure) -> Meaning {
    let problem = match failure {
        CallFailure::Problem(problem) => problem,
        other => return Meaning::Unavailable(other.to_string()),
    };
    match problem.code {
        Code::SessionNotFound => Meaning::SessionNotFound,
        Code::NotHolder | Code::LockNotFound => Meaning::NotHolder,
        Code::HeldByOther => Meaning::HeldByOther(problem),
        Code::LockDelayed => Meaning::Delayed(problem),
        Code::TokenRegression => Meaning::TokenRegression(problem.detail.clone()),
        // A lock server has every route that is asked for here.
        Code::NotFound | Code::MethodNotAllowed => {
            Meaning::Invalid(format!("what answers at this address is no lock server: {problem}"))
        }
        _ if problem.status < 500 => Meaning::Invalid(problem.to_string()),
        _ => Meaning::Unavailable(problem.to_string()),
    }
}

/// Nothing was done.
pub(crate) fn unavailable(detail: impl Into<String>) -> LockError {
    LockError::Unavailable {
        detail: detail.into(),
        perhaps_done: false,
    }
}

/// What was asked for may have been done, where `perhaps` says so.
pub(crate) fn in_doubt(mut error: LockError, perhaps: bool) -> LockError {
    if let LockError::Unavailable { perhaps_done, .. } = &mut error {
        *perhaps_done |= perhaps;
    }
    error
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A TTL as the wire wants it; values were checked before.
pub(crate) fn ttl_ms(ttl: Duration) -> u64 {
    Ttl::new(ttl).map_or(0, Ttl::as_millis)
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident : $type:ty),* $(,)? } = $text:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name { $($(#[$field_doc])* pub $field: $type,)* }

            impl Ask for $name {
                type Answer = ();
                const NAME: &'static str = $text;
            }
        )*
    };
}
pub(crate) use messages;

messages! {
    /// Tell when the session is open, or that it could not be opened.
    Ready { tell: Tell<()> } = "ready";
    /// L7 through the client's own connections.
    Inspect { key: LockKey, tell: Tell<LockView> } = "inspect";
    /// End the session and the client.
    Close { tell: Option<Tell<()>> } = "close";
    /// L3 was answered, or was not.
    Closed { tell: Option<Tell<()>>, left: u32, result: Result<(), CallFailure> } = "closed";
}

impl Receive<Ready> for Core {
    fn receive(&mut self, Ready { tell }: Ready, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        match &self.session {
            SessionState::Closing => drop(tell.send(Err(LockError::SessionLost))),
            _ if self.usable_session(cx.clock().boot()).is_some() => drop(tell.send(Ok(()))),
            _ if self.ready.len() >= PENDING_MAX => drop(tell.send(Err(unavailable("too many wait for the session")))),
            _ => self.ready.push(tell),
        }
    }
}

impl Receive<Inspect> for Core {
    fn receive(&mut self, Inspect { key, tell }: Inspect, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let (at, server) = self.work();
        let call = server.inspect(key, self.call(self.options.call_timeout, cx));
        cx.pipe(call, move |result| Inspected { at, result, tell });
    }
}

messages! {
    /// L7 was answered, or was not.
    Inspected { at: usize, result: Result<LockView, CallFailure>, tell: Tell<LockView> } = "inspected";
}

impl Receive<Inspected> for Core {
    fn receive(&mut self, Inspected { at, result, tell }: Inspected, _: Reply<()>, _: &mut Cx<'_, Self>) {
        let answer = result.map_err(|failure| {
            self.complain("inspect", &failure);
            match meaning(failure) {
                Meaning::Invalid(detail) => LockError::Invalid { detail },
                Meaning::Unavailable(detail) => {
                    self.fail_over(at);
                    unavailable(detail)
                }
                _ => unavailable("an answer that does not fit the question"),
            }
        });
        drop(tell.send(answer));
    }
}

/// How often L3 is tried before the session is left to expire by itself.
pub(crate) const CLOSE_ATTEMPTS: u32 = 3;

impl Receive<Close> for Core {
    fn receive(&mut self, Close { tell }: Close, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let state = std::mem::replace(&mut self.session, SessionState::Closing);
        for pending in std::mem::take(&mut self.acquires).into_values() {
            if let Some(tell) = pending.tell {
                drop(tell.send(Err(LockError::SessionLost)));
            }
        }
        for tell in std::mem::take(&mut self.ready) {
            drop(tell.send(Err(LockError::SessionLost)));
        }
        match state {
            SessionState::Open(session) => {
                session.life.lose();
                self.kept.abandon();
                self.leases.clear();
                self.close_session(session.id, tell, CLOSE_ATTEMPTS, cx);
            }
            // Closed twice: the first one is under way and ends the actor.
            SessionState::Closing => {}
            SessionState::Opening { in_flight: true, .. } => self.close_when_opened = Some(tell),
            SessionState::Opening { in_flight: false, .. } => self.end(tell, Ok(()), cx),
        }
    }
}

impl Core {
    pub fn close_session(&mut self, id: SessionId, tell: Option<Tell<()>>, left: u32, cx: &mut Cx<'_, Self>) {
        let (at, server) = self.work();
        let call = server.close_session(id.clone(), self.call(self.options.call_timeout, cx));
        let left = left.saturating_sub(1);
        // The next attempt, if there is one, goes to another server.
        self.fail_over(at);
        self.closing_id = Some(id);
        cx.pipe(call, move |result| Closed { tell, left, result });
    }

    pub fn end(&mut self, tell: Option<Tell<()>>, result: Result<(), LockError>, cx: &mut Cx<'_, Self>) {
        if let Some(tell) = tell {
            drop(tell.send(result));
        }
        cx.stop();
        if let Some(done) = self.done.borrow_mut().take() {
            let _ = done.send(());
        }
    }
}

impl Receive<Closed> for Core {
    fn receive(&mut self, Closed { tell, left, result }: Closed, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        match (result, self.closing_id.take()) {
            (Err(failure), Some(id))
                if left > 0 && matches!(failure, CallFailure::NotSent(_) | CallFailure::Ambiguous(_)) =>
            {
                self.complain("close session", &failure);
                self.close_session(id, tell, left, cx);
            }
            // It had ended before: by itself, or by an attempt whose answer was lost.
            (Err(CallFailure::Problem(problem)), _) if problem.code == Code::SessionNotFound => {
                self.end(tell, Ok(()), cx);
            }
            (Err(failure), _) => self.end(tell, Err(unavailable(failure.to_string())), cx),
            (Ok(()), _) => self.end(tell, Ok(()), cx),
        }
    }
}
