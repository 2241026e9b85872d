//! The verbs that move a payout. Each carries its token as a required field (INV-07).

use crate::Step;
use lock_api::FencingToken;

/// How an ambiguous payout is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It was paid.
    Posted,
    /// It was not.
    Failed,
}

/// Who settles by hand, and why (FR-26).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByHand {
    /// The operator.
    pub operator: String,
    /// The reason, recorded.
    pub reason: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// P4: hold the money and the right to submit.
    Claim {
        /// The grant's token.
        token: FencingToken,
        /// The version the worker re-read under its lock (FR-14).
        expected_version: Option<u64>,
    },
    /// P5: the rail paid.
    Post {
        /// The grant's token.
        token: FencingToken,
        /// The reference the rail acknowledged with.
        rail_reference: String,
    },
    /// P6: the rail did not pay.
    Fail {
        /// The grant's token.
        token: FencingToken,
        /// Why.
        reason: String,
    },
    /// P7: it is not known whether the rail paid.
    Ambiguous {
        /// The grant's token.
        token: FencingToken,
        /// Why.
        reason: String,
    },
    /// P8: what was ambiguous is known now.
    Resolve {
        /// The grant's token.
        token: FencingToken,
        /// How.
        outcome: Resolution,
        /// The rail's reference, where the caller knows it.
        rail_reference: Option<String>,
        /// Set when a human decides instead of the evidence.
        by_hand: Option<ByHand>,
    },
    /// P9: nobody wants it any more.
    Cancel {
        /// The operator.
        operator: String,
        /// Why.
        reason: Option<String>,
    },
}

/// A verb on a payout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Which payout.
    pub payout_id: String,
    /// The owner of the session on whose behalf it is done; recorded (FR-30).
    pub actor: Option<String>,
    /// What.
    pub verb: Verb,
}

impl Command {
    /// The step of the state machine this asks for.
    #[must_use]
    pub const fn step(&self) -> Step {
        match &self.verb {
            Verb::Claim { .. } => Step::Claim,
            Verb::Post { .. } => Step::Post,
            Verb::Fail { .. } => Step::Fail,
            Verb::Ambiguous { .. } => Step::Ambiguous,
            Verb::Resolve {
                outcome: Resolution::Posted,
                ..
            } => Step::ResolvePosted,
            Verb::Resolve {
                outcome: Resolution::Failed,
                ..
            } => Step::ResolveFailed,
            Verb::Cancel { .. } => Step::Cancel,
        }
    }

    /// The presented token; none for the one verb that carries no holder's decision.
    #[must_use]
    pub const fn token(&self) -> Option<FencingToken> {
        match &self.verb {
            Verb::Claim { token, .. }
            | Verb::Post { token, .. }
            | Verb::Fail { token, .. }
            | Verb::Ambiguous { token, .. }
            | Verb::Resolve { token, .. } => Some(*token),
            Verb::Cancel { .. } => None,
        }
    }
}
