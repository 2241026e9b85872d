//! What a piece of evidence does to a submission (C3.7). Pure: one table for the forwarder's answer, late acks and
//! lookups, so that no order of arrival can lead to two different ends (case P14).

use crate::{Evidence, ExceptionKind, Outcome, Source, Submission};

/// What is to be done with a piece of evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Whether it becomes the recorded outcome.
    pub becomes_outcome: bool,
    /// What a human has to look at.
    pub exception: Option<(ExceptionKind, String)>,
}

impl Settlement {
    const fn nothing() -> Self {
        Self {
            becomes_outcome: false,
            exception: None,
        }
    }

    const fn outcome() -> Self {
        Self {
            becomes_outcome: true,
            exception: None,
        }
    }

    const fn exception(kind: ExceptionKind, detail: String) -> Self {
        Self {
            becomes_outcome: false,
            exception: Some((kind, detail)),
        }
    }
}

/// Judges evidence about `submission`. `payout_failed`: the payout is settled as FAILED, so money that moved now moved
/// although it was given back.
#[must_use]
pub fn settle(submission: &Submission, evidence: &Evidence, source: Source, payout_failed: bool) -> Settlement {
    match evidence {
        Evidence::Acked { rail_reference } => acked(submission, rail_reference, source, payout_failed),
        Evidence::Declined { reason } => declined(submission, reason.as_deref()),
        // Written by the forwarder alone, over an intent without outcome: whatever is known already is better.
        Evidence::Timeout { .. } if submission.outcome.is_none() => Settlement::outcome(),
        Evidence::Timeout { .. } => Settlement::nothing(),
    }
}

fn acked(submission: &Submission, reference: &str, source: Source, payout_failed: bool) -> Settlement {
    let late = || {
        let detail = format!("the rail executed it as {reference} after the payout was settled as FAILED");
        (ExceptionKind::LateAckAfterFailed, detail)
    };
    match submission.outcome {
        // The rail's own answer to the submission is recorded as the fact it is; a human hears of it all the same.
        None if payout_failed && source == Source::Answer => Settlement {
            becomes_outcome: true,
            exception: Some(late()),
        },
        None | Some(Outcome::Timeout | Outcome::NotReceived) if payout_failed => {
            let (kind, detail) = late();
            Settlement::exception(kind, detail)
        }
        // NOT_RECEIVED was concluded from silence, and the rail has broken it in time (case D02).
        None | Some(Outcome::Timeout | Outcome::NotReceived) => Settlement::outcome(),
        Some(Outcome::Acked) if submission.rail_reference.as_deref() == Some(reference) => Settlement::nothing(),
        Some(Outcome::Acked) => {
            let recorded = submission.rail_reference.as_deref().unwrap_or_default();
            let detail = format!("the rail executed it as {recorded} and says now that it executed it as {reference}");
            Settlement::exception(ExceptionKind::DoublePaymentSuspected, detail)
        }
        Some(Outcome::Declined) if payout_failed => {
            let (kind, detail) = late();
            Settlement::exception(kind, detail)
        }
        Some(Outcome::Declined) => {
            let detail = format!("the rail declined it and says now that it executed it as {reference}");
            Settlement::exception(ExceptionKind::ConflictingOutcome, detail)
        }
        Some(Outcome::NotSent) => {
            let detail = format!("it was never sent, and the rail says that it executed it as {reference}");
            Settlement::exception(ExceptionKind::AckWithoutSubmission, detail)
        }
    }
}

fn declined(submission: &Submission, reason: Option<&str>) -> Settlement {
    match submission.outcome {
        None | Some(Outcome::Timeout | Outcome::NotReceived) => Settlement::outcome(),
        Some(Outcome::Declined) => {
            let recorded = submission.decline_reason.as_deref();
            match (recorded, reason) {
                (Some(recorded), Some(reason)) if recorded != reason => Settlement::exception(
                    ExceptionKind::ConflictingOutcome,
                    format!("the rail declined it for {recorded:?} and says now for {reason:?}"),
                ),
                _ => Settlement::nothing(),
            }
        }
        Some(Outcome::Acked) => {
            let recorded = submission.rail_reference.as_deref().unwrap_or_default();
            let detail = format!("the rail executed it as {recorded} and says now that it declined it");
            Settlement::exception(ExceptionKind::ConflictingOutcome, detail)
        }
        Some(Outcome::NotSent) => Settlement::exception(
            ExceptionKind::AckWithoutSubmission,
            "it was never sent, and the rail says that it declined it".to_owned(),
        ),
    }
}
