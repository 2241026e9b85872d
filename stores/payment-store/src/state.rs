//! The payout's state machine: the one table that the store's predicates, the documentation and the tests come from.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a payout stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PayoutState {
    /// Asked for, nothing done.
    Pending,
    /// Held by a claim.
    Claimed,
    /// The rail's outcome is not known.
    RailAmbiguous,
    /// Paid.
    Posted,
    /// Not paid.
    Failed,
}

impl PayoutState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Claimed,
        Self::RailAmbiguous,
        Self::Posted,
        Self::Failed,
    ];

    /// The state as it stands in the table and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Claimed => "CLAIMED",
            Self::RailAmbiguous => "RAIL_AMBIGUOUS",
            Self::Posted => "POSTED",
            Self::Failed => "FAILED",
        }
    }

    /// Reads what [`PayoutState::as_str`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether the payout's amount is set aside in this state: a hold never expires, only a step frees it (C1.6).
    #[must_use]
    pub const fn is_hold(self) -> bool {
        matches!(self, Self::Claimed | Self::RailAmbiguous)
    }

    /// Whether no step leads out of this state.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Posted | Self::Failed)
    }
}

impl fmt::Display for PayoutState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What can be done to a payout. Resolving has two ends, so it stands here twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// P2.
    Create,
    /// P4.
    Claim,
    /// P5.
    Post,
    /// P6.
    Fail,
    /// P7.
    Ambiguous,
    /// P8 with `POSTED`.
    ResolvePosted,
    /// P8 with `FAILED`.
    ResolveFailed,
    /// P9.
    Cancel,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 8] = [
        Self::Create,
        Self::Claim,
        Self::Post,
        Self::Fail,
        Self::Ambiguous,
        Self::ResolvePosted,
        Self::ResolveFailed,
        Self::Cancel,
    ];

    /// The step as it stands in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Claim => "claim",
            Self::Post => "post",
            Self::Fail => "fail",
            Self::Ambiguous => "ambiguous",
            Self::ResolvePosted => "resolve_posted",
            Self::ResolveFailed => "resolve_failed",
            Self::Cancel => "cancel",
        }
    }

    /// Where the step leads.
    #[must_use]
    pub const fn to(self) -> PayoutState {
        match self {
            Self::Create => PayoutState::Pending,
            Self::Claim => PayoutState::Claimed,
            Self::Post | Self::ResolvePosted => PayoutState::Posted,
            Self::Fail | Self::ResolveFailed | Self::Cancel => PayoutState::Failed,
            Self::Ambiguous => PayoutState::RailAmbiguous,
        }
    }
}

/// What a step demands of the presented token T and the account's mark m (C1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRule {
    /// No token: the step carries no holder's decision.
    None,
    /// T > m, and m becomes T in the same transaction. Resolving by hand as well.
    Advances,
    /// T = m, and T is the payout's `claim_token`.
    Stands,
}

impl TokenRule {
    /// The rule in words, for the generated table.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Advances => "above the mark, which it advances",
            Self::Stands => "equal to the mark and to claim_token",
        }
    }
}

/// One arrow of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The step.
    pub step: Step,
    /// From where; none for the creation.
    pub from: Option<PayoutState>,
    /// To where.
    pub to: PayoutState,
    /// What the token must be.
    pub token: TokenRule,
    /// What the rail must have recorded, in words; empty for nothing.
    pub evidence: &'static str,
    /// What else is demanded or done, in words.
    pub note: &'static str,
}

/// The whole state machine. Every arrow is here and nothing is allowed that is not (INV-08).
pub const TRANSITIONS: &[Transition] = &[
    Transition {
        step: Step::Create,
        from: None,
        to: PayoutState::Pending,
        token: TokenRule::None,
        evidence: "",
        note: "the account exists and has the same currency; funds are not looked at",
    },
    Transition {
        step: Step::Claim,
        from: Some(PayoutState::Pending),
        to: PayoutState::Claimed,
        token: TokenRule::Advances,
        evidence: "",
        note: "balance less all holds covers the amount; the version is the one the worker re-read; the amount is held",
    },
    Transition {
        step: Step::Claim,
        from: Some(PayoutState::Claimed),
        to: PayoutState::Claimed,
        token: TokenRule::Advances,
        evidence: "",
        note: "recovery: the former claim had a lower token; the hold exists already, funds are not looked at again",
    },
    Transition {
        step: Step::Post,
        from: Some(PayoutState::Claimed),
        to: PayoutState::Posted,
        token: TokenRule::Stands,
        evidence: "ACKED with this very reference",
        note: "both ledger legs and the balance are written with it",
    },
    Transition {
        step: Step::Fail,
        from: Some(PayoutState::Claimed),
        to: PayoutState::Failed,
        token: TokenRule::Stands,
        evidence: "DECLINED, NOT_RECEIVED or NOT_SENT",
        note: "the hold is freed",
    },
    Transition {
        step: Step::Ambiguous,
        from: Some(PayoutState::Claimed),
        to: PayoutState::RailAmbiguous,
        token: TokenRule::Stands,
        evidence: "TIMEOUT, or an intent without outcome",
        note: "the hold stays",
    },
    Transition {
        step: Step::ResolvePosted,
        from: Some(PayoutState::RailAmbiguous),
        to: PayoutState::Posted,
        token: TokenRule::Advances,
        evidence: "ACKED; by hand nothing that contradicts",
        note: "both ledger legs and the balance are written with it",
    },
    Transition {
        step: Step::ResolveFailed,
        from: Some(PayoutState::RailAmbiguous),
        to: PayoutState::Failed,
        token: TokenRule::Advances,
        evidence: "DECLINED or NOT_RECEIVED; by hand nothing that contradicts",
        note: "the hold is freed",
    },
    Transition {
        step: Step::Cancel,
        from: Some(PayoutState::Pending),
        to: PayoutState::Failed,
        token: TokenRule::None,
        evidence: "",
        note: "by an operator; failure_reason is CANCELLED",
    },
];

/// The arrow of `step` out of `from`, if there is one.
#[must_use]
pub fn transition(step: Step, from: Option<PayoutState>) -> Option<&'static Transition> {
    TRANSITIONS.iter().find(|t| t.step == step && t.from == from)
}

/// Where a payout in `from` may go, in the table's order, each once.
#[must_use]
pub fn allowed_from(from: PayoutState) -> Vec<PayoutState> {
    let mut allowed = Vec::new();
    for t in TRANSITIONS.iter().filter(|t| t.from == Some(from)) {
        if !allowed.contains(&t.to) {
            allowed.push(t.to);
        }
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arrow_leads_where_its_step_says() {
        for t in TRANSITIONS {
            assert_eq!(t.to, t.step.to(), "{:?}", t.step);
        }
    }

    #[test]
    fn final_states_have_no_way_out_and_all_others_have_one() {
        for state in PayoutState::ALL {
            assert_eq!(allowed_from(state).is_empty(), state.is_final(), "{state}");
            assert_eq!(PayoutState::parse(state.as_str()), Some(state));
        }
    }

    #[test]
    fn an_ambiguous_payout_cannot_be_claimed_again() {
        // FR-23: the state, not the lock, is the guard.
        assert_eq!(transition(Step::Claim, Some(PayoutState::RailAmbiguous)), None);
    }
}
