//! What a piece of evidence makes of a submission, and of several that of its payout.

use crate::{Evidence, ExceptionKind, Outcome, Source, Submission, settle};
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

/// What a piece of evidence did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// It became the outcome: the row is to be written.
    pub became_outcome: bool,
    /// What a human has to look at.
    pub exception: Option<Raise>,
}

/// Judges evidence about a submission and makes it what it becomes.
pub(crate) fn take(
    submission: &mut Submission,
    evidence: &Evidence,
    source: Source,
    payout_failed: bool,
    now: UnixMillis,
) -> Taken {
    let settlement = settle(submission, evidence, source, payout_failed);
    if settlement.becomes_outcome {
        let (outcome, cause, rail_reference, decline_reason) = match evidence {
            Evidence::Acked { rail_reference } => (Outcome::Acked, source.cause(), Some(rail_reference), None),
            Evidence::Declined { reason } => (Outcome::Declined, source.cause(), None, reason.as_ref()),
            Evidence::Timeout { cause } => (Outcome::Timeout, Some(cause.as_str()), None, None),
        };
        submission.outcome = Some(outcome);
        submission.cause = cause.map(str::to_owned);
        submission.rail_reference = rail_reference.cloned();
        submission.decline_reason = decline_reason.cloned();
        submission.outcome_at = Some(now);
    }
    Taken {
        became_outcome: settlement.becomes_outcome,
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
