//! What can go wrong, by who has to act on it.

use crate::{FencingToken, HeldByOther};
use core::fmt;
use core::time::Duration;

/// A value that the contract does not admit. Names the field, so that whoever sent it can be told (C3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// The field, by its name on the wire.
    pub field: &'static str,
    /// What it must be.
    pub reason: &'static str,
}

impl InvalidValue {
    /// A refusal of `field` with the reason.
    #[must_use]
    pub const fn new(field: &'static str, reason: &'static str) -> Self {
        Self { field, reason }
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.reason)
    }
}

impl core::error::Error for InvalidValue {}

/// Why a store did not answer a call. The distinction that matters is what the call may have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Nothing was done: the store could not be reached, was busy past the deadline, is full, or refused the whole call.
    Unavailable {
        /// For the log.
        detail: String,
    },
    /// The answer did not arrive: the call may or may not have been done. Never a grant (FR-27).
    Unknown {
        /// For the log.
        detail: String,
    },
    /// The store's contents are damaged or of an unknown schema. Nothing was done, and nothing will be before an
    /// operator has acted.
    Corrupt {
        /// For the log.
        detail: String,
    },
}

impl StoreError {
    /// Whether the call may have taken effect although no answer arrived.
    #[must_use]
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }

    /// What happened, without what it means for the call.
    #[must_use]
    pub const fn detail(&self) -> &str {
        match self {
            Self::Unavailable { detail } | Self::Unknown { detail } | Self::Corrupt { detail } => detail.as_str(),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { detail } => write!(f, "the store is unavailable, nothing was done: {detail}"),
            Self::Unknown { detail } => write!(f, "the store's answer is unknown: {detail}"),
            Self::Corrupt { detail } => write!(f, "the store is damaged: {detail}"),
        }
    }
}

impl core::error::Error for StoreError {}

/// Why a holder no longer holds (FR-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LostReason {
    /// The local deadline lapsed before a renewal was answered.
    DeadlineLapsed,
    /// An operator revoked the grant.
    Revoked,
    /// The session ended: closed, expired, or unknown to the server.
    SessionLost,
    /// The server knows a later grant of the key, or none of this token.
    Superseded,
}

impl LostReason {
    /// The reason as a label: lower case, words joined by underscores.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DeadlineLapsed => "deadline_lapsed",
            Self::Revoked => "revoked",
            Self::SessionLost => "session_lost",
            Self::Superseded => "superseded",
        }
    }
}

/// The lock is no longer held: stop before the next side effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLost {
    /// The token that is now stale.
    pub token: FencingToken,
    /// Why.
    pub reason: LostReason,
}

impl fmt::Display for LockLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock lost ({}); token {} is stale", self.reason.as_str(), self.token)
    }
}

impl core::error::Error for LockLost {}

impl From<LockLost> for LockError {
    fn from(lost: LockLost) -> Self {
        Self::Lost(lost)
    }
}

/// What an error leaves behind: whether what was asked for may have been done. It is what a caller has to know before
/// it tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Nothing was done, and nothing will be: trying again is free of doubt.
    Definite,
    /// It may have been done, or may still be done. A lock that was asked for may be kept by the server for nobody,
    /// until the client has found it and given it back, or until its TTL has ended at the latest.
    Indefinite,
    /// The lock was held and is not any more: what is under way under its token will be refused by whoever checks it.
    Lost,
}

impl Fate {
    /// The fate as a label: lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Definite => "definite",
            Self::Indefinite => "indefinite",
            Self::Lost => "lost",
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a user of the lock can meet (C2.6). In no case is anything held that was not held before (FR-27);
/// [`LockError::fate`] says what else is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockError {
    /// A value was refused before or by the server: the same will be refused again.
    Invalid {
        /// The field and what it must be.
        detail: String,
    },
    /// One attempt found the key held.
    HeldByOther(Box<HeldByOther>),
    /// All attempts found the key held (FR-28). Nothing was executed.
    ContentionExceeded {
        /// How many attempts were made.
        attempts: u32,
    },
    /// Nobody held the key, and it stayed closed to everybody: its last grant was lost uncleanly and asked for a delay
    /// ([`crate::LockDelay`]). Nothing was executed.
    Delayed {
        /// The last token minted for the key.
        last_token: FencingToken,
        /// What was left of the delay at the last answer.
        ends_in: Duration,
        /// How many attempts were made.
        attempts: u32,
    },
    /// The lock service could not be reached or did not know. No grant (FR-27).
    Unavailable {
        /// For the log.
        detail: String,
        /// Whether what was asked for may have been done all the same: a request left and no answer that settles it came.
        perhaps_done: bool,
    },
    /// The service refuses to grant because its store may have been rewound (FR-09). An operator has to act.
    TokenRegression {
        /// For the log.
        detail: String,
    },
    /// The grant ended.
    Lost(LockLost),
    /// The session ended, or the client was closed, before there was a grant. What it may have been granted has ended
    /// with the session.
    SessionLost,
}

impl LockError {
    /// What this error leaves behind, for deciding what to do:
    ///
    /// | error | fate | what to do |
    /// |---|---|---|
    /// | [`LockError::Invalid`] | definite | correct the value; the same is refused again |
    /// | [`LockError::HeldByOther`], [`LockError::ContentionExceeded`] | definite | somebody else does it: leave it, or try later |
    /// | [`LockError::Delayed`] | definite | try again when the delay has passed |
    /// | [`LockError::Unavailable`], `perhaps_done: false` | definite | try again, with a pause |
    /// | [`LockError::Unavailable`], `perhaps_done: true` | indefinite | try again, and expect the key to be busy until the TTL has ended |
    /// | [`LockError::TokenRegression`] | definite | call an operator; nothing is granted before |
    /// | [`LockError::SessionLost`] | definite | try again: the client opens another session; not after a `close` |
    /// | [`LockError::Lost`] | lost | stop, before the next side effect; another may hold it by now |
    ///
    /// It speaks of this request as the service answered it. What an earlier attempt of a refused acquire may still be
    /// granted, from a packet that was late, is used by nobody: the client finds and returns it.
    #[must_use]
    pub const fn fate(&self) -> Fate {
        match self {
            Self::Invalid { .. }
            | Self::HeldByOther(_)
            | Self::ContentionExceeded { .. }
            | Self::Delayed { .. }
            | Self::TokenRegression { .. }
            | Self::SessionLost
            | Self::Unavailable {
                perhaps_done: false, ..
            } => Fate::Definite,
            Self::Unavailable { perhaps_done: true, .. } => Fate::Indefinite,
            Self::Lost(_) => Fate::Lost,
        }
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { detail } => write!(f, "invalid: {detail}"),
            Self::HeldByOther(held) => write!(f, "held by {} (token {})", held.holder.owner, held.holder.token),
            Self::ContentionExceeded { attempts } => write!(f, "still held by others after {attempts} attempts"),
            Self::Unavailable {
                detail,
                perhaps_done: false,
            } => write!(f, "the lock service is unavailable: {detail}"),
            Self::Unavailable {
                detail,
                perhaps_done: true,
            } => write!(
                f,
                "the lock service did not answer, and what was asked for may have been done: {detail}"
            ),
            Self::Delayed {
                last_token, ends_in, ..
            } => write!(
                f,
                "closed for {ends_in:?} more after the unclean loss of token {last_token}, or of one below it"
            ),
            Self::TokenRegression { detail } => write!(
                f,
                "the lock service refuses to grant, its store may have been rewound: {detail}"
            ),
            Self::Lost(lost) => lost.fmt(f),
            Self::SessionLost => f.write_str("the session ended"),
        }
    }
}

impl core::error::Error for LockError {}
