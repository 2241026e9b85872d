//! The one seam behind which every backend stands (C2.5). The conformance suite in `lock-store` is its definition;
//! this page says what is atomic and what a failed call may have done.
//!
//! **Batches.** The verbs of the hot path take many requests, so that a backend pays one round trip and one durable
//! commit for many callers. Answers come in the order of the requests, one each. A batch is *not* one transaction to
//! its callers: each item succeeds or is refused on its own. A key or session may stand in a batch more than once; the
//! items then act in the order given.
//!
//! **Deadlines.** `within` is the time left to the caller, counted from the call. When it passes, the call fails with
//! [`StoreError::Unavailable`] if it certainly was not begun and with [`StoreError::Unknown`] if it may have taken
//! effect. An [`StoreError::Unknown`] acquire is looked up by its request id or released; it is never a grant (FR-27).
//!
//! **Time.** Expiry is judged by the store, inside the statement that depends on it, by its own clock: a database's
//! clock read after the row lock, or a monotonic observation. Nothing here takes an instant from the caller. A grant
//! ends at the earlier of its own and its session's expiry. Acquire judges only the grant's own expiry and never ends
//! a session; only [`SessionRegistry::close`] and [`LockStore::expire_due`] end one (C1.1).
//!
//! **Delays.** A grant that asked for a delay ([`crate::LockDelay`]) and is lost uncleanly (its time or its session's is
//! over, or it is revoked) leaves its key closed: until the delay has passed, counted by the store from the moment it
//! recorded the loss or later, nobody is granted the key, the loser included. A release and a close leave none.
//!
//! **Tokens.** A token is minted in the granting transaction, above the key's own last token, above the floor and
//! above the caller's witness; where that is impossible the store is in doubt and grants nothing until
//! [`LockStore::advance_floor`] or [`LockStore::dismiss_regression`].

use crate::{
    AcquireOutcome, AcquireRequest, EventQuery, ExpiredGrant, ExpiryReport, FloorOutcome, Heartbeat, HeartbeatOutcome,
    KeyState, Lineage, LockEvent, LockKey, OpenSession, Operator, ReleaseOutcome, ReleaseRequest, RenewOutcome,
    RenewRequest, RevokeOutcome, RevokeRequest, Seal, SessionId, SessionView, StoreError, StoreHealth, YieldOutcome,
    YieldRequest,
};
use core::future::Future;
use core::pin::Pin;
use core::time::Duration;

/// What a store call returns. It can be sent between threads; dropping it before it is ready abandons the wait, not the
/// work: what the call was to do may still be done.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Sessions: who is alive.
pub trait SessionRegistry: Send + Sync {
    /// Opens sessions. The ids are new by construction; an id that exists already is answered with the existing
    /// session unchanged when all its fields agree, so that a repeated call is harmless.
    fn open(&self, batch: Vec<OpenSession>, within: Duration) -> StoreFuture<'_, Vec<SessionView>>;

    /// Extends sessions: one durable write for the whole batch (FR-02). Does not stretch any grant's own TTL.
    fn heartbeat(&self, batch: Vec<Heartbeat>, within: Duration) -> StoreFuture<'_, Vec<HeartbeatOutcome>>;

    /// Ends sessions and frees their grants in the same transaction (FR-04). Answers what was freed; an unknown
    /// session frees nothing.
    fn close(&self, batch: Vec<SessionId>, within: Duration) -> StoreFuture<'_, Vec<Vec<ExpiredGrant>>>;

    /// One live session with what it holds.
    fn session(&self, id: SessionId, within: Duration) -> StoreFuture<'_, Option<SessionView>>;

    /// Live sessions in order of id, after `after`, at most `limit`.
    fn sessions(&self, after: Option<SessionId>, limit: u32, within: Duration) -> StoreFuture<'_, Vec<SessionView>>;
}

/// Locks: who holds what, under which token.
pub trait LockStore: SessionRegistry {
    /// Grants free keys, minting a token for each. See the module's words on tokens and time.
    fn acquire(&self, batch: Vec<AcquireRequest>, within: Duration) -> StoreFuture<'_, Vec<AcquireOutcome>>;

    /// Extends grants whose session and token match. Never revives one that has ended.
    fn renew(&self, batch: Vec<RenewRequest>, within: Duration) -> StoreFuture<'_, Vec<RenewOutcome>>;

    /// Frees grants whose session and token match. Never frees another's.
    fn release(&self, batch: Vec<ReleaseRequest>, within: Duration) -> StoreFuture<'_, Vec<ReleaseOutcome>>;

    /// Breaks a live grant and mints a higher token in the same transaction (FR-08).
    fn revoke(&self, request: RevokeRequest, within: Duration) -> StoreFuture<'_, RevokeOutcome>;

    /// Asks the holder of a live grant to give it up. Ends nothing.
    fn ask_to_yield(&self, request: YieldRequest, within: Duration) -> StoreFuture<'_, YieldOutcome>;

    /// The state of each key.
    fn inspect(&self, keys: Vec<LockKey>, within: Duration) -> StoreFuture<'_, Vec<KeyState>>;

    /// Known keys that begin with `prefix` byte for byte, in byte order, after `after`, at most `limit`.
    fn list(
        &self,
        prefix: String,
        after: Option<LockKey>,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<KeyState>>;

    /// Ends what is due, at most `limit` grants and sessions together, in time proportional to what it ends (NFR-04).
    fn expire_due(&self, limit: u32, within: Duration) -> StoreFuture<'_, ExpiryReport>;

    /// Forgets keys that have been free for `retention`, at most `limit`. Answers how many. Tokens still rise
    /// afterwards, because their source is global (C1.1).
    fn purge_tombstones(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32>;

    /// Facts, in order. A cursor of `seq` misses none.
    fn events(&self, query: EventQuery, within: Duration) -> StoreFuture<'_, Vec<LockEvent>>;

    /// Ready as soon as there is an event with a `seq` above `after`, or when `within` has passed; answers the highest
    /// `seq`. What wakes watches and waiters; a safety net against a lost wake-up is the bound `within`.
    fn changed_since(&self, after: u64, within: Duration) -> StoreFuture<'_, u64>;

    /// Seals up to `limit` events that are not sealed yet. Answers the new seal, none when there was nothing.
    fn seal(&self, limit: u32, within: Duration) -> StoreFuture<'_, Option<Seal>>;

    /// Seals of all chains in order of their first event, after event `after`, at most `limit`.
    fn seals(&self, after: u64, limit: u32, within: Duration) -> StoreFuture<'_, Vec<Seal>>;

    /// Drops whole sealed segments whose last event is older than `retention` (`lock.audit.retention`), at most
    /// `limit` events. Answers how many events went.
    fn drop_sealed(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32>;

    /// The identity of the store's history and its token floor.
    fn lineage(&self, within: Duration) -> StoreFuture<'_, Lineage>;

    /// Raises the floor and clears a doubt (C1.7). Recorded as FLOOR_ADVANCED.
    fn advance_floor(
        &self,
        floor: u64,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome>;

    /// Clears a doubt without raising the floor: the operator knows that a witness lied. Recorded as
    /// REGRESSION_DISMISSED.
    fn dismiss_regression(&self, operator: Operator, reason: String, within: Duration)
    -> StoreFuture<'_, FloorOutcome>;

    /// Whether the store can do its work: writable, undamaged, of the right lineage.
    fn health(&self, within: Duration) -> StoreFuture<'_, StoreHealth>;
}
