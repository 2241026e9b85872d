//! Where marks and open requests are kept.
//!
//! Owns: the interface, what it says is atomic, and what a failed call may have done. Does not own: the decision
//! ([`crate::admit`]).
//! On failure: [`lock_api::StoreError`]. An answer that did not arrive is `Unknown`: the intent may stand; nothing is sent, and the
//! intent is taken back with the next call ([`Begin::ended`]).

mod sqlite;

pub use sqlite::SqliteMarks;

use crate::admission::StaleReason;
use crate::predicate::RuleKind;
use lock_api::{FencingToken, LockKey, StoreFuture, UnixMillis};
use std::time::Duration;

/// The name of one request, made by whoever begins it: unique for ever.
pub type RequestId = String;

/// A request that wants to be begun.
#[derive(Clone, Debug)]
pub struct Begin {
    /// Its name.
    pub id: RequestId,
    /// What it acts on.
    pub key: LockKey,
    /// The token it carries.
    pub token: FencingToken,
    /// What the mark's own token may do.
    pub rule: RuleKind,
    /// For whoever has to clear it one day: what was asked (method and path).
    pub what: String,
    /// Requests whose end could not be written when it was known. They are ended first, whatever becomes of this one.
    pub ended: Vec<Ended>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was answered: it has no effect any more that it did not have by now.
    Answered,
    /// It certainly never left: it has no effect, and did not use its token up.
    NeverSent,
}

/// A request and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub id: RequestId,
    /// How it ended.
    pub end: End,
}

/// A request that was begun and not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// Its name.
    pub id: RequestId,
    /// What it acts on.
    pub key: String,
    /// The token it carried.
    pub token: FencingToken,
    /// What was asked.
    pub what: String,
    /// When it was begun.
    pub begun_at: UnixMillis,
    /// Why there is no answer, where the guard lived to see it.
    pub cause: Option<String>,
}

/// What became of a request that wanted to be begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is open now, durably. Only then may it be sent.
    Begun,
    /// Its token is out.
    FencedOut {
        /// Why.
        reason: StaleReason,
        /// The highest token that is known.
        highest: FencingToken,
    },
    /// Requests of lower tokens are open: at most [`BLOCKING_MAX`] of them, oldest first. The token is announced.
    InDoubt {
        /// Those.
        blocking: Vec<OpenRequest>,
    },
}

/// The most open requests that an [`Admission::InDoubt`] names.
pub const BLOCKING_MAX: u32 = 64;

/// Who says that a request has no effect any more although nobody saw its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClearedBy {
    /// A human, with a reason.
    Operator {
        /// Who.
        name: String,
        /// Why.
        reason: String,
    },
    /// The bound that the service declares ([`crate::KeeperOptions::settled_after`]).
    Bound,
}

/// A key as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkRow {
    /// The highest token under which a request was begun.
    pub mark: Option<FencingToken>,
    /// The highest token that was presented.
    pub announced: Option<FencingToken>,
    /// How many requests are open.
    pub open: u64,
}

/// The store of a guard. Every call is one transaction; what it answered is durable.
pub trait Marks: Send + Sync {
    /// Judges a request and, where it may go, raises the mark and writes it down as open, in one transaction that reads
    /// the key under its lock.
    fn begin(&self, request: Begin, within: Duration) -> StoreFuture<'_, Admission>;

    /// Ends requests. One that is not open any more is passed over: ending twice is ending once.
    fn end(&self, ended: Vec<Ended>, within: Duration) -> StoreFuture<'_, ()>;

    /// Writes down why a request has no answer. It stays open.
    fn unanswered(&self, id: RequestId, cause: String, within: Duration) -> StoreFuture<'_, ()>;

    /// Ends requests that nobody saw answered, and records who said so and why. Answers those that were open.
    fn clear(&self, ids: Vec<RequestId>, by: ClearedBy, within: Duration) -> StoreFuture<'_, Vec<OpenRequest>>;

    /// Open requests, oldest first, of one key or of all.
    fn open_requests(&self, key: Option<LockKey>, limit: u32, within: Duration) -> StoreFuture<'_, Vec<OpenRequest>>;

    /// How many requests are open in all.
    fn open_count(&self, within: Duration) -> StoreFuture<'_, u64>;

    /// A key's mark.
    fn mark(&self, key: LockKey, within: Duration) -> StoreFuture<'_, MarkRow>;

    /// Whether the store can be written.
    fn health(&self, within: Duration) -> StoreFuture<'_, ()>;
}
