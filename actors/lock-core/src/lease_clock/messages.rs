//! What the lease clock is told: by the gateway, by its children, by itself.

use crate::answers::{Acquired, Refusal};
use crate::lease::Acquire;
use actor_kit::{Ask, Reply};
use lock_api::{
    AcquireRequest, ExpiredGrant, ExpiryReport, Heartbeat, HeartbeatOutcome, KeyState, LineageState, LockEvent,
    LockKey, OpenSession, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, RevokeOutcome, RevokeRequest,
    SessionId, SessionView, StoreError, Ttl, YieldOutcome, YieldRequest,
};
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::mpsc;

macro_rules! ask {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* } -> $answer:ty, $text:literal $(, always: $always:literal)?;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
        impl Ask for $name {
            type Answer = $answer;
            const NAME: &'static str = $text;
            $(const ALWAYS_HANDLED: bool = $always;)?
        }
    )*};
}

ask! {
    // ---- from the gateway, named by the contract's verbs ----

    /// L1.
    Open { request: OpenSession, caller: Option<IpAddr> } -> Result<SessionView, Refusal>, "OpenSession";
    /// L2.
    Beat { request: Heartbeat } -> Result<HeartbeatOutcome, Refusal>, "Heartbeat";
    /// L3. Whoever asked: the session is closed.
    Close { id: SessionId } -> Result<Vec<ExpiredGrant>, Refusal>, "CloseSession", always: true;
    /// L5.
    Renew { request: RenewRequest } -> Result<RenewOutcome, Refusal>, "Renew";
    /// L6. A release whose caller has gone is still a release.
    Release { request: ReleaseRequest } -> Result<ReleaseOutcome, Refusal>, "Release", always: true;
    /// L8. A break-glass action is not forgotten because its operator's connection broke.
    ForceRevoke { request: RevokeRequest } -> Result<RevokeOutcome, Refusal>, "ForceRevoke", always: true;
    /// L11.
    AskToYield { request: YieldRequest } -> Result<YieldOutcome, Refusal>, "AskToYield";
    /// L7.
    Inspect { key: LockKey } -> Result<(KeyState, u32), Refusal>, "Inspect";
    /// How many wait for each of these keys here.
    CountWaiters { keys: Vec<LockKey> } -> Vec<u32>, "CountWaiters";
    /// L7: the events of a key from now on.
    Subscribe { key: LockKey } -> Subscription, "Subscribe";
    /// A caller that waited at this key has gone.
    CallerGone { key: LockKey } -> (), "CallerGone";
    /// The replica stops: nobody waits any more.
    Drain {} -> (), "Drain";

    // ---- from the children ----

    /// The session of this acquire is alive.
    Vetted { message: Acquire, reply: Reply<Result<Acquired, Refusal>>, ttl: Ttl } -> (), "Vetted";
    /// A lease wants its head's request granted.
    Mint { request: AcquireRequest } -> (), "Mint";
    /// A lease wants to know who holds its key.
    LookUp { key: LockKey } -> (), "LookUp";
    /// A grant that nobody wants is given back.
    Unwanted { request: ReleaseRequest } -> (), "Unwanted";
    /// The same, and the key's lease waits for it.
    UnwantedThenTell { request: ReleaseRequest } -> (), "UnwantedThenTell";
    /// A session begins or ceases to wait at a key, or only the number of those who wait has changed.
    WaitChanged { key: LockKey, session: SessionId, begins: Option<bool>, waiters: u32 } -> (), "WaitChanged";
    /// A session is over; it waited at these keys.
    SessionOver { id: SessionId, keys: Vec<LockKey> } -> (), "SessionOver";
    /// A session actor has stopped.
    SessionGone { id: SessionId } -> (), "SessionGone";
    /// A lease actor has stopped.
    LeaseGone { key: LockKey } -> (), "LeaseGone";

    // ---- to itself ----

    /// Something may be due.
    ExpireDue {} -> (), "ExpireDue";
    /// The sweep goes on where it stopped at its limit.
    SweepOn {} -> (), "SweepOn";
    /// The sweep's report.
    Swept { report: Result<ExpiryReport, StoreError>, took: Duration } -> (), "Swept";
    /// The revoke's outcome.
    RevokeDone { key: LockKey, outcome: Result<RevokeOutcome, StoreError>, reply: Reply<Result<RevokeOutcome, Refusal>> } -> (), "RevokeDone";
    /// What became of the request to yield.
    YieldDone { outcome: Result<YieldOutcome, StoreError>, reply: Reply<Result<YieldOutcome, Refusal>> } -> (), "YieldDone";
    /// A grant could not be given back yet.
    UnwantedAgain { request: ReleaseRequest, tries: u32 } -> (), "UnwantedAgain";
    /// The event log is to be read.
    Listen {} -> (), "Listen";
    /// The event log was read.
    Listened { news: Result<News, StoreError> } -> (), "Listened";
    /// A chore is due.
    ChoreDue { chore: Chore } -> (), "ChoreDue";
    /// A chore is done.
    ChoreDone { chore: Chore, result: ChoreResult } -> (), "ChoreDone";
}

/// The events of a key as they happen.
pub(crate) type Subscription = Result<mpsc::Receiver<LockEvent>, Refusal>;

/// What the event log had.
#[derive(Debug)]
pub(crate) enum News {
    /// Where listening begins.
    From(u64),
    /// New events, perhaps none.
    Events(Vec<LockEvent>),
}

/// Work beside the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    PurgeTombstones,
    Seal,
    DropSealed,
    Count,
}

#[derive(Debug)]
pub(crate) enum ChoreResult {
    /// There is more to do at once.
    More,
    /// Done until next time.
    Done,
    /// Live sessions, held keys, and whether the store trusts its tokens.
    Counted {
        sessions: i64,
        held: i64,
        lineage: LineageState,
        took: Duration,
    },
    Failed(StoreError),
}
