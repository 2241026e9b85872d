//! What can go wrong, by who has to act on it.

use crate::{FencingToken, HeldByOther};
use core::fmt;

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

/// What a user of the lock can meet (C2.6).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockError {
    /// A value was refused before or by the server.
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
    /// The lock service could not be reached or did not know. No grant (FR-27).
    Unavailable {
        /// For the log.
        detail: String,
    },
    /// The service refuses to grant because its store may have been rewound (FR-09).
    TokenRegression {
        /// For the log.
        detail: String,
    },
    /// The grant ended.
    Lost(LockLost),
    /// The session ended.
    SessionLost,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { detail } => write!(f, "invalid: {detail}"),
            Self::HeldByOther(held) => write!(f, "held by {} (token {})", held.holder.owner, held.holder.token),
            Self::ContentionExceeded { attempts } => write!(f, "still held by others after {attempts} attempts"),
            Self::Unavailable { detail } => write!(f, "the lock service is unavailable: {detail}"),
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
