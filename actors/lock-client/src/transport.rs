//! The port through which the client reaches lock servers.

use http_contract::lock::{
    AcquireBody, AuditRow, GrantAnswer, HeartbeatAnswer, HeartbeatRequest, LockView, OpenSessionAnswer,
    OpenSessionRequest, ReleaseAnswer, RenewBody,
};
use http_contract::{Code, Problem};
use lock_api::{Fate, FencingToken, LockKey, SessionId};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use actor_kit::TraceContext;

/// Why a call brought no answer of the kind that was asked for.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallFailure {
    /// The server answered with a problem.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The request certainly never left.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The request may have been carried out: time-out, broken connection, an answer that cannot be read.
    #[error("no readable answer: {0}")]
    Ambiguous(String),
}

impl CallFailure {
    /// Whether what was asked for may have been done. A server's refusal says that it was not, except where the server
    /// itself does not know: a defect of it, or a store that did not answer. Never [`Fate::Lost`].
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self {
            Self::Problem(problem)
                if problem.status < 500 || matches!(problem.code, Code::Overloaded | Code::TokenRegression) =>
            {
                Fate::Definite
            }
            Self::NotSent(_) => Fate::Definite,
            Self::Problem(_) | Self::Ambiguous(_) => Fate::Indefinite,
        }
    }
}

/// What a call returns. Dropping it closes the connection it used; what was asked for may still be done.
pub type CallFuture<T> = Pin<Box<dyn Future<Output = Result<T, CallFailure>>>>;

/// What belongs to every call: how long it may take, and which trace it belongs to (NFR-08).
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The call fails as ambiguous, or not sent, when it took this long.
    pub within: Duration,
    /// Sent along as `traceparent`.
    pub trace: TraceContext,
}

/// One lock server as seen from one connection pool. Lives on the client's thread; a call returns at once, its future
/// does the work.
pub trait Transport {
    /// L1.
    fn open_session(&self, request: OpenSessionRequest, call: Call) -> CallFuture<OpenSessionAnswer>;
    /// L2.
    fn heartbeat(&self, session: SessionId, request: HeartbeatRequest, call: Call) -> CallFuture<HeartbeatAnswer>;
    /// L3.
    fn close_session(&self, session: SessionId, call: Call) -> CallFuture<()>;
    /// L4.
    fn acquire(&self, key: LockKey, body: AcquireBody, call: Call) -> CallFuture<GrantAnswer>;
    /// L5.
    fn renew(&self, key: LockKey, token: FencingToken, body: RenewBody, call: Call) -> CallFuture<GrantAnswer>;
    /// L6.
    fn release(&self, key: LockKey, token: FencingToken, session: SessionId, call: Call) -> CallFuture<ReleaseAnswer>;
    /// L7: one key.
    fn inspect(&self, key: LockKey, call: Call) -> CallFuture<LockView>;
    /// L7: what happened to one key, the latest first or last; enough rows to find a recent revoke.
    fn history(&self, key: LockKey, call: Call) -> CallFuture<Vec<AuditRow>>;
}

/// The servers of a client, in order of preference, each over two connection pools: heartbeats have their own, so that
/// work never starves them (C2.6).
pub struct Servers {
    /// For everything but heartbeats.
    pub work: Vec<Rc<dyn Transport>>,
    /// For heartbeats alone.
    pub heartbeat: Vec<Rc<dyn Transport>>,
}

/// Makes the servers' connections on the client's own thread.
pub type Connect = Box<dyn FnOnce() -> Servers + Send>;
