//! What a grant is.

use crate::session::{is_id, text_newtype};
use crate::{FencingToken, InvalidValue, LockKey, Operator, Owner, SessionId};
use core::fmt;
use core::time::Duration;

/// An instant of the wall clock, in milliseconds since 1970-01-01T00:00:00Z. For showing and for the audit trail only:
/// no expiry is ever decided by comparing two of them (C1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub i64);

/// How long a lease or a session lives without renewal: at least 1 ms, at most [`Ttl::MAX`]. A TTL is a lower bound of
/// what the server keeps: a lease may live longer, never shorter (C1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(Duration);

impl Ttl {
    /// The longest TTL any backend has to represent: 24 h. Gateways set narrower bounds (C3.3 L1).
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);

    /// Checks and takes a TTL.
    ///
    /// # Errors
    /// [`InvalidValue`] naming `ttl` when it is below 1 ms or above [`Ttl::MAX`].
    pub const fn new(ttl: Duration) -> Result<Self, InvalidValue> {
        if ttl.as_millis() < 1 || ttl.as_millis() > Self::MAX.as_millis() {
            Err(InvalidValue::new("ttl", "must be between 1 ms and 24 h"))
        } else {
            Ok(Self(ttl))
        }
    }

    /// The TTL as a duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The TTL in whole milliseconds.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        // 24 h fit into an u64 of milliseconds many times over.
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

/// How long a key stays closed to everybody after an *unclean* loss of a grant: one that expired, whose session expired,
/// or that was revoked. After a release or the close of the session the key is free at once. 0 to [`LockDelay::MAX`].
///
/// It covers what no lease can: a holder that went on a little past its end while nothing behind it checks tokens. As a
/// TTL it is a lower bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockDelay(Duration);

impl LockDelay {
    /// The longest delay: 60 s.
    pub const MAX: Duration = Duration::from_secs(60);
    /// No delay: the key is free as soon as its grant has ended.
    pub const NONE: Self = Self(Duration::ZERO);

    /// Checks and takes a delay; a part of a millisecond counts as a whole one.
    ///
    /// # Errors
    /// [`InvalidValue`] naming `lock_delay` when it is above [`LockDelay::MAX`].
    pub const fn new(delay: Duration) -> Result<Self, InvalidValue> {
        if delay.as_nanos() > Self::MAX.as_nanos() {
            return Err(InvalidValue::new("lock_delay", "must be between 0 and 60 s"));
        }
        // At most 60,000 and one, so nothing is cut off.
        #[allow(clippy::cast_possible_truncation, reason = "bounded above")]
        let millis = delay.as_nanos().div_ceil(1_000_000) as u64;
        Ok(Self(Duration::from_millis(millis)))
    }

    /// The delay as a duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The delay in whole milliseconds.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        // 60 s fit into an u64 of milliseconds many times over.
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0.is_zero()
    }
}

/// That the holder of a grant has been asked to give it up by itself. Nothing ends by it: the lease runs on until the
/// holder releases, somebody revokes, or its time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YieldAsked {
    /// Who asked.
    pub by: Operator,
    /// Why.
    pub reason: String,
    /// When, by the store's wall clock.
    pub at: UnixMillis,
}

text_newtype! {
    /// Names one logical acquire over all its attempts, so that a repeated one finds its own grant (case L22):
    /// 1–64 characters of `[A-Za-z0-9._:-]`.
    RequestId
}

impl RequestId {
    /// Checks and takes an id.
    ///
    /// # Errors
    /// [`InvalidValue`] naming `request_id` when it is empty, too long, or holds another character.
    pub fn new(id: impl Into<String>) -> Result<Self, InvalidValue> {
        let id = id.into();
        if is_id(&id, 64) {
            Ok(Self(id))
        } else {
            Err(InvalidValue::new(
                "request_id",
                "must be 1 to 64 characters of [A-Za-z0-9._:-]",
            ))
        }
    }
}

text_newtype! {
    /// Free metadata of a session or a grant as compact JSON text, at most 4,096 bytes (C3.1). Whoever reads it off the
    /// wire makes sure that it is JSON; here it is text that is kept and given back unchanged.
    Metadata
}

impl Metadata {
    /// Checks and takes metadata.
    ///
    /// # Errors
    /// [`InvalidValue`] naming `metadata` when it is longer than 4,096 bytes.
    pub fn new(json: impl Into<String>) -> Result<Self, InvalidValue> {
        let json = json.into();
        if json.len() <= 4096 {
            Ok(Self(json))
        } else {
            Err(InvalidValue::new(
                "metadata",
                "must be at most 4096 bytes as compact JSON",
            ))
        }
    }
}

/// A live lease on a key together with its token, as the store recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What is locked.
    pub key: LockKey,
    /// The token minted with this grant.
    pub token: FencingToken,
    /// The session that holds it.
    pub session_id: SessionId,
    /// The owner name of that session.
    pub owner: Owner,
    /// The lease's own TTL.
    pub ttl: Ttl,
    /// What is left of the lease at the moment of the answer, never past the session's own end (FR-05).
    pub expires_in: Duration,
    /// When it was granted, by the store's wall clock.
    pub granted_at: UnixMillis,
    /// The request that made it.
    pub request_id: Option<RequestId>,
    /// Metadata given with the acquire.
    pub metadata: Option<Metadata>,
    /// How long the key stays closed should this grant be lost uncleanly.
    pub lock_delay: LockDelay,
    /// That its holder was asked to give it up; the first to ask is the one that is kept.
    pub yield_asked: Option<YieldAsked>,
}

/// A grant in the short form that a heartbeat answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldGrant {
    /// What is locked.
    pub key: LockKey,
    /// Its token.
    pub token: FencingToken,
    /// What is left of the lease.
    pub expires_in: Duration,
    /// That its holder was asked to give it up.
    pub yield_asked: Option<YieldAsked>,
}

/// The refusal of an acquire: somebody holds the key. An outcome, not an error (C3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldByOther {
    /// The live grant. Its session id is for the server's own use and is not shown to others.
    pub holder: Grant,
    /// Whether the asking session is itself the holder, under another request (case D03).
    pub is_self: bool,
}
