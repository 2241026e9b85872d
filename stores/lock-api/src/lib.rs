//! The contract of dlock: **a grant is a lease plus a strictly increasing fencing token**.
//!
//! Owns: the types that every other package speaks ([`LockKey`], [`SessionId`], [`FencingToken`], [`Grant`], …)
//! and the one seam behind which every backend stands ([`SessionRegistry`], [`LockStore`]).
//! Does not own: any behaviour, any transport, any framework. It depends on nothing but the standard library
//! (NFR-16), so that an application can embed it beside whatever versions it pins itself.
//! On failure: there is no code path here that can fail at run time, other than refusing a malformed value.

mod error;
mod grant;
mod key;
mod outcome;
mod session;
mod spi;
mod token;

pub use error::{Fate, InvalidValue, LockError, LockLost, LostReason, StoreError};
pub use grant::{Grant, HeldByOther, HeldGrant, LockDelay, Metadata, RequestId, Ttl, UnixMillis, YieldAsked};
pub use key::{LOCK_KEY_BYTES_MAX, LockKey};
pub use outcome::{
    AcquireOutcome, AcquireRequest, EventKind, EventQuery, ExpiredGrant, ExpiredSession, ExpiryReport, FloorOutcome,
    Heartbeat, HeartbeatOutcome, KeyState, Lineage, LineageState, LockEvent, OpenSession, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, RenewRequest, RevokeOutcome, RevokeRequest, Seal, SessionView, StoreHealth,
    YieldOutcome, YieldRequest,
};
pub use session::{OWNER_CHARS_MAX, Operator, Owner, SESSION_ID_BYTES_MAX, SessionId};
pub use spi::{LockStore, SessionRegistry, StoreFuture};
pub use token::{FencingToken, TOKEN_FLOOR_JUMP, TOKEN_MAX, WITNESS_REACH};
