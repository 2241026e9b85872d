//! What a fenced verb comes to (C1.6), decided from what was seen under the account's row lock. Pure, and the same for
//! every backend: a backend reads [`Seen`], asks here, and writes.
//!
//! T is the presented token, m the account's mark. T < m is stale. T > m may advance. T = m belongs to the one payout that
//! is recorded under T, as a replay; for any other it is spent; where nothing is recorded under T a barrier stands there,
//! and it is stale.

use crate::{
    ByHand, Command, Evidence, FenceOutcome, FenceReason, Fencing, Payout, PayoutState, Refusal, Resolution, Step,
};
use lock_api::FencingToken;

/// The mark of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    /// The highest token that has written.
    pub(crate) fence: u64,
    /// The highest token that was shut out by hand.
    pub(crate) barrier: u64,
}

impl Mark {
    fn out(self, reason: FenceReason, presented: FencingToken) -> Refusal {
        Refusal::FencedOut {
            reason,
            presented,
            highest: self.fence,
        }
    }
}

/// What the history says of the presented token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    /// It did this very step to this payout.
    pub(crate) step: bool,
    /// It did something to this payout.
    pub(crate) payout: bool,
    /// It did something to a payout of this account. A token of another account may be the same number (C1.7).
    pub(crate) account: bool,
}

/// What stood when the account's row was locked: read by statements later than the one that took the lock.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) mark: Mark,
    pub(crate) payout: Payout,
    pub(crate) recorded: Recorded,
    /// Balance less all holds.
    pub(crate) available_minor: i64,
    pub(crate) evidence: Evidence,
}

/// What a verb comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is to be written.
    Do,
    /// This very token did it before.
    Replay,
    /// It is refused, and nothing changes.
    Refuse(Refusal),
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}

/// P4.
pub(crate) fn claim(seen: &Seen, fencing: Fencing, token: FencingToken, expected_version: Option<u64>) -> Verdict {
    let (mark, payout) = (seen.mark, &seen.payout);
    if !fencing.is_enforced() {
        return if payout.state == PayoutState::Claimed && payout.claim_token == Some(token.get()) {
            Verdict::Replay
        } else {
            Verdict::Do
        };
    }
    if token.get() <= mark.fence {
        let own = mark.fence == token.get() && mark.barrier < token.get();
        return if own && seen.recorded.step {
            Verdict::Replay
        } else {
            not_above(seen, token).into()
        };
    }
    if crate::transition(Step::Claim, Some(payout.state)).is_none() {
        return illegal(payout, Step::Claim).into();
    }
    // A claim above the mark is possible only where the fence was off for a while.
    if let Some(claimed) = payout.claim_token.filter(|claimed| *claimed >= token.get()) {
        return Verdict::Refuse(Refusal::FencedOut {
            reason: FenceReason::Stale,
            presented: token,
            highest: claimed,
        });
    }
    if let Some(expected) = expected_version.filter(|expected| *expected != payout.version) {
        return Verdict::Refuse(Refusal::VersionConflict {
            expected,
            actual: payout.version,
        });
    }
    // A claim taken over has its hold already.
    if payout.state == PayoutState::Pending && seen.available_minor < payout.amount_minor {
        return Verdict::Refuse(Refusal::InsufficientFunds {
            available_minor: seen.available_minor,
            amount_minor: payout.amount_minor,
            currency: payout.currency.clone(),
        });
    }
    Verdict::Do
}

/// P5.
pub(crate) fn post(seen: &Seen, fencing: Fencing, token: FencingToken, rail_reference: &str) -> Verdict {
    settle(
        seen,
        fencing,
        Step::Post,
        token,
        seen.evidence.supports_post(rail_reference),
        "ACKED with this reference",
    )
}

/// P6.
pub(crate) fn fail(seen: &Seen, fencing: Fencing, token: FencingToken) -> Verdict {
    settle(
        seen,
        fencing,
        Step::Fail,
        token,
        seen.evidence.supports_fail(),
        "DECLINED, NOT_RECEIVED or NOT_SENT",
    )
}

/// P7.
pub(crate) fn ambiguous(seen: &Seen, fencing: Fencing, token: FencingToken) -> Verdict {
    settle(
        seen,
        fencing,
        Step::Ambiguous,
        token,
        seen.evidence.supports_ambiguous(),
        "TIMEOUT, or an intent without outcome",
    )
}

/// P8.
pub(crate) fn resolve(
    seen: &Seen,
    fencing: Fencing,
    token: FencingToken,
    outcome: Resolution,
    rail_reference: Option<&str>,
    by_hand: Option<&ByHand>,
) -> Verdict {
    let step = match outcome {
        Resolution::Posted => Step::ResolvePosted,
        Resolution::Failed => Step::ResolveFailed,
    };
    if seen.recorded.step {
        return Verdict::Replay;
    }
    if fencing.is_enforced() {
        if token.get() <= seen.mark.fence {
            return not_above(seen, token).into();
        }
        if crate::transition(step, Some(seen.payout.state)).is_none() {
            return illegal(&seen.payout, step).into();
        }
    }
    // The reconciler needs the evidence on his side, a human only not against him.
    let (allowed, needed) = match (by_hand, outcome) {
        (None, Resolution::Posted) => (seen.evidence.supports_resolution(outcome, rail_reference), "ACKED"),
        (None, Resolution::Failed) => (
            seen.evidence.supports_resolution(outcome, rail_reference),
            "DECLINED or NOT_RECEIVED",
        ),
        (Some(_), _) => (
            !seen.evidence.contradicts(outcome, rail_reference),
            "nothing that contradicts what the operator says",
        ),
    };
    supported(seen, allowed, needed)
}

/// P10: none where the mark may be raised to T − 1.
pub(crate) fn raise(mark: Mark, recorded_on_account: bool, token: FencingToken) -> Option<FenceOutcome> {
    (mark.fence >= token.get()).then(|| FenceOutcome::FencedOut {
        reason: if mark.fence > token.get() {
            FenceReason::Stale
        } else {
            spent(mark, recorded_on_account, token)
        },
        highest: mark.fence,
    })
}

/// What a resolution writes: the rail's reference, and why it failed.
pub(crate) fn resolution<'a>(
    evidence: &'a Evidence,
    outcome: Resolution,
    rail_reference: Option<&'a str>,
    by_hand: Option<&'a ByHand>,
) -> (Option<&'a str>, Option<&'a str>) {
    match outcome {
        Resolution::Posted => (
            rail_reference.or_else(|| evidence.acked_reference(None).flatten()),
            None,
        ),
        Resolution::Failed => (
            None,
            Some(
                by_hand
                    .map(|hand| hand.reason.as_str())
                    .or_else(|| evidence.failure_reason())
                    .unwrap_or("NOT_RECEIVED"),
            ),
        ),
    }
}

/// A step that needs `account.fence = T`, `payout.claim_token = T`, the state CLAIMED, and evidence.
fn settle(
    seen: &Seen,
    fencing: Fencing,
    step: Step,
    token: FencingToken,
    allowed: bool,
    needed: &'static str,
) -> Verdict {
    if seen.recorded.step {
        return Verdict::Replay;
    }
    if fencing.is_enforced()
        && let Some(refusal) = standing(seen, step, token)
    {
        return refusal.into();
    }
    supported(seen, allowed, needed)
}

fn standing(seen: &Seen, step: Step, token: FencingToken) -> Option<Refusal> {
    let (mark, payout) = (seen.mark, &seen.payout);
    if token.get() < mark.fence {
        return Some(mark.out(FenceReason::Stale, token));
    }
    if token.get() > mark.fence {
        return Some(mark.out(FenceReason::NotClaimed, token));
    }
    if mark.barrier >= token.get() {
        return Some(mark.out(FenceReason::Stale, token));
    }
    // Recorded under T by whatever step: T's own payout, and only its state can stand against the step.
    let claimed = payout.claim_token == Some(token.get());
    if !claimed && !seen.recorded.payout {
        return Some(mark.out(spent(mark, seen.recorded.account, token), token));
    }
    if crate::transition(step, Some(payout.state)).is_none() {
        return Some(illegal(payout, step));
    }
    (!claimed).then(|| mark.out(FenceReason::Stale, token))
}

/// Judges a step that advances the mark, when T ≤ m.
fn not_above(seen: &Seen, token: FencingToken) -> Refusal {
    let reason = if token.get() < seen.mark.fence {
        FenceReason::Stale
    } else {
        spent(seen.mark, seen.recorded.account, token)
    };
    seen.mark.out(reason, token)
}

/// Why T = m does not give the step.
fn spent(mark: Mark, recorded_on_account: bool, token: FencingToken) -> FenceReason {
    if mark.barrier < token.get() && recorded_on_account {
        FenceReason::TokenSpent
    } else {
        FenceReason::Stale
    }
}

fn illegal(payout: &Payout, step: Step) -> Refusal {
    Refusal::IllegalTransition {
        from: payout.state,
        to: step.to(),
    }
}

fn supported(seen: &Seen, allowed: bool, needed: &'static str) -> Verdict {
    if allowed {
        Verdict::Do
    } else {
        Verdict::Refuse(Refusal::EvidenceMissing {
            needed,
            found: seen.evidence.summary(),
        })
    }
}

/// What is recorded with a step beside its token, as JSON text.
pub(crate) fn detail(command: &Command, evidence: &Evidence) -> Option<String> {
    use crate::Verb::{Ambiguous, Cancel, Claim, Fail, Post, Resolve};
    let detail = match &command.verb {
        Claim { .. } | Cancel { reason: None, .. } => return None,
        Post { rail_reference, .. } => serde_json::json!({ "rail_reference": rail_reference }),
        Fail { reason, .. } | Ambiguous { reason, .. } => {
            serde_json::json!({ "reason": reason, "evidence": evidence.summary() })
        }
        Resolve {
            outcome,
            rail_reference,
            by_hand,
            ..
        } => {
            let mut detail = serde_json::json!({ "evidence": evidence.summary() });
            let (reference, _) = resolution(evidence, *outcome, rail_reference.as_deref(), by_hand.as_ref());
            if let Some(reference) = reference {
                detail["rail_reference"] = reference.into();
            }
            if let Some(hand) = by_hand {
                detail["by_hand"] = true.into();
                detail["reason"] = hand.reason.as_str().into();
            }
            detail
        }
        Cancel {
            reason: Some(reason), ..
        } => serde_json::json!({ "reason": reason }),
    };
    Some(detail.to_string())
}

/// Who is recorded where nobody said who he is.
const UNNAMED: &str = "unnamed";

/// The actor to be recorded.
pub(crate) fn named(actor: Option<&str>) -> &str {
    actor.unwrap_or(UNNAMED)
}

/// Who is recorded with a step: the operator where one decided.
pub(crate) fn actor(command: &Command) -> &str {
    match &command.verb {
        crate::Verb::Resolve {
            by_hand: Some(hand), ..
        } => &hand.operator,
        crate::Verb::Cancel { operator, .. } => operator,
        _ => named(command.actor.as_deref()),
    }
}
