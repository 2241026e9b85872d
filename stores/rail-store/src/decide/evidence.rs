//! What a piece of evidence makes of a submission, and of several that of its payout.

use crate::settle::NO_REASON;
use crate::{Evidence, ExceptionKind, Outcome, Settled, Source, Submission, settle};
use lock_api::UnixMillis;

/// An exception to be raised for a human.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Raise {
    pub kind: ExceptionKind,
    pub detail: String,
}

/// What is said of an execution whose payout is settled as FAILED.
pub(crate) fn late_ack(reference: &str) -> Raise {
    Raise {
        kind: ExceptionKind::LateAckAfterFailed,
        detail: format!("the rail executed it as {reference} and the payout is settled as FAILED"),
    }
}

/// What is said of a refusal, or of a submission that never arrived, whose payout is settled as POSTED.
pub(crate) fn late_decline(outcome: &str) -> Raise {
    Raise {
        kind: ExceptionKind::LateDeclineAfterPosted,
        detail: format!("the submission is {outcome} and the payout is settled as POSTED"),
    }
}

/// What a piece of evidence did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// It became the outcome.
    pub became_outcome: bool,
    /// The row is to be written: it has a new outcome, or keeps the evidence beside it.
    pub changed: bool,
    /// What a human has to look at.
    pub exception: Option<Raise>,
}

/// Judges evidence about a submission and makes it what it becomes. What does not become the outcome is kept beside it: a
/// reference or a reason is filled in where there is none, and never changed (case P32).
pub(crate) fn take(
    submission: &mut Submission,
    evidence: &Evidence,
    source: Source,
    payout: &Settled,
    now: UnixMillis,
) -> Taken {
    let settlement = settle(submission, evidence, source, payout);
    let mut changed = settlement.becomes_outcome;
    if settlement.becomes_outcome {
        let (outcome, cause) = match evidence {
            Evidence::Acked { .. } => (Outcome::Acked, source.cause()),
            Evidence::Declined { .. } => (Outcome::Declined, source.cause()),
            Evidence::Timeout { cause } => (Outcome::Timeout, Some(cause.as_str())),
        };
        submission.outcome = Some(outcome);
        submission.cause = cause.map(str::to_owned);
        submission.outcome_at = Some(now);
    }
    let evidenced = |kept: &mut Option<String>, said: Option<&str>| {
        if let (None, Some(said)) = (&kept, said) {
            *kept = Some(said.to_owned());
            return true;
        }
        false
    };
    match evidence {
        Evidence::Acked { rail_reference } => {
            changed |= evidenced(&mut submission.rail_reference, Some(rail_reference));
        }
        // An outcome says by itself that it was refused.
        Evidence::Declined { reason } if submission.outcome == Some(Outcome::Declined) => {
            changed |= evidenced(&mut submission.decline_reason, reason.as_deref());
        }
        Evidence::Declined { reason } => {
            let reason = reason.as_deref().unwrap_or(NO_REASON);
            changed |= evidenced(&mut submission.decline_reason, Some(reason));
        }
        Evidence::Timeout { .. } => {}
    }
    Taken {
        became_outcome: settlement.becomes_outcome,
        changed,
        exception: settlement.exception.map(|(kind, detail)| Raise { kind, detail }),
    }
}

/// Where a payout has several submissions (fence off): the one that says most about the money, of equals the oldest.
pub(crate) fn most_telling(submissions: &[Submission]) -> Option<&Submission> {
    let rank = |submission: &&Submission| match submission.outcome {
        Some(Outcome::Acked) => 0,
        None | Some(Outcome::Timeout) => 1,
        Some(Outcome::Declined) => 2,
        Some(Outcome::NotReceived) => 3,
        Some(Outcome::NotSent) => 4,
    };
    submissions
        .iter()
        .min_by_key(|submission| (rank(submission), submission.seq))
}
