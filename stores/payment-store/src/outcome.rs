//! What a verb can come to. A refusal is an answer of a healthy system and changed zero rows (INV-05).

use crate::{Payout, PayoutState};
use lock_api::FencingToken;

/// What became of a [`crate::Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// It was done now, and is durable.
    Done(Box<Payout>),
    /// This very token had done it before: what is recorded now. Nothing changed.
    Replayed(Box<Payout>),
    /// It was not done. Nothing changed.
    Refused(Refusal),
}

impl StepOutcome {
    /// The payout, unless refused.
    #[must_use]
    pub fn payout(&self) -> Option<&Payout> {
        match self {
            Self::Done(payout) | Self::Replayed(payout) => Some(payout),
            Self::Refused(_) => None,
        }
    }
}

/// Why a token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FenceReason {
    /// A later token, or a barrier, stands on the account.
    Stale,
    /// The token was used before: one grant gives at most one external side effect.
    TokenSpent,
    /// The token is above the mark: it has claimed nothing that could be settled.
    NotClaimed,
}

impl FenceReason {
    /// The reason as it stands on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::TokenSpent => "token_spent",
            Self::NotClaimed => "not_claimed",
        }
    }
}

/// Why a step was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such payout.
    PayoutNotFound,
    /// The fence held.
    FencedOut {
        /// Why.
        reason: FenceReason,
        /// What was presented.
        presented: FencingToken,
        /// The account's mark.
        highest: u64,
    },
    /// The state machine has no such arrow.
    IllegalTransition {
        /// Where the payout stands.
        from: PayoutState,
        /// Where the step would have led.
        to: PayoutState,
    },
    /// The payout changed since the worker re-read it.
    VersionConflict {
        /// What the worker re-read.
        expected: u64,
        /// What is recorded.
        actual: u64,
    },
    /// The balance less all holds does not cover the amount.
    InsufficientFunds {
        /// What is available.
        available_minor: i64,
        /// What was asked for.
        amount_minor: i64,
        /// The currency of both.
        currency: String,
    },
    /// The rail has recorded nothing that supports the step, or something that contradicts it.
    EvidenceMissing {
        /// What would support it.
        needed: &'static str,
        /// What is recorded: an outcome, `INTENT` for one without outcome, `NONE`.
        found: String,
    },
}

/// What became of a request to make something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome<T> {
    /// Made now, and durable.
    Created(T),
    /// It was there already, with the same contents.
    Existing(T),
    /// The same identity has other contents.
    Conflict {
        /// What differs.
        detail: String,
    },
    /// The idempotency key was used with another body.
    KeyReused,
    /// No such account.
    AccountNotFound,
    /// The account has another currency.
    CurrencyMismatch {
        /// The account's.
        currency: String,
    },
    /// The balance would leave the range of a JSON number.
    BalanceTooLarge,
}

/// What became of an account fence (P10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceOutcome {
    /// The mark is at least T − 1, and a barrier stands there.
    Raised {
        /// The mark.
        fence: u64,
    },
    /// The mark is at T or above.
    FencedOut {
        /// Why.
        reason: FenceReason,
        /// The mark.
        highest: u64,
    },
    /// No such account.
    AccountNotFound,
}
