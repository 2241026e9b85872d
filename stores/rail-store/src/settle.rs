//! What a piece of evidence does to a submission (C3.7). Pure: one table for the forwarder's answer, late acks and
//! lookups, so that no two orders of arrival lead to two different ends (case P14). `docs/payout-states.md` shows it.

use crate::{Evidence, ExceptionKind, Outcome, Source, Submission};

/// Recorded as the reason of a refusal that came without one, where the outcome does not say that it was refused.
pub(crate) const NO_REASON: &str = "no reason given";

/// Where the payout of a submission stands, as far as evidence is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Not settled, or not known.
    No,
    /// Settled as FAILED: the money was given back.
    Failed,
    /// Settled as POSTED: the money counts as paid.
    Posted {
        /// The rail's reference that it was posted with; by hand there may be none.
        rail_reference: Option<String>,
    },
}

impl Settled {
    /// Reads it from a payout's row.
    #[must_use]
    pub fn of(state: &str, rail_reference: Option<String>) -> Self {
        match state {
            "FAILED" => Self::Failed,
            "POSTED" => Self::Posted { rail_reference },
            _ => Self::No,
        }
    }
}

/// What is to be done with a piece of evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Whether it becomes the recorded outcome. Where it does not, its reference or reason is kept beside the outcome all
    /// the same, if none is recorded yet.
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

    fn but(self, kind: ExceptionKind, detail: String) -> Self {
        Self {
            exception: Some((kind, detail)),
            ..self
        }
    }
}

/// Judges evidence about `submission`, whose payout stands as `payout` says.
#[must_use]
pub fn settle(submission: &Submission, evidence: &Evidence, source: Source, payout: &Settled) -> Settlement {
    match evidence {
        Evidence::Acked { rail_reference } => acked(submission, rail_reference, source, payout),
        Evidence::Declined { reason } => declined(submission, reason.as_deref(), source, payout),
        // Written by the forwarder alone, over an intent without outcome: whatever is known already is better.
        Evidence::Timeout { .. } if submission.outcome.is_none() => Settlement::outcome(),
        Evidence::Timeout { .. } => Settlement::nothing(),
    }
}

/// A refusal in words.
fn refusal(reason: Option<&str>) -> String {
    reason.map_or_else(|| "declined it".to_owned(), |reason| format!("declined it ({reason})"))
}

fn acked(submission: &Submission, reference: &str, source: Source, payout: &Settled) -> Settlement {
    if let Some(recorded) = submission.rail_reference.as_deref() {
        if recorded == reference {
            return again(submission, payout);
        }
        let detail = format!("the rail executed it as {recorded} and says now that it executed it as {reference}");
        return Settlement::exception(ExceptionKind::DoublePaymentSuspected, detail);
    }
    let refused = submission.decline_reason.as_deref();
    let both = || {
        format!(
            "the rail {} and says now that it executed it as {reference}",
            refusal(refused)
        )
    };
    match (submission.outcome, payout) {
        (None | Some(Outcome::Timeout | Outcome::NotReceived), Settled::Failed) => Settlement {
            // The rail's own answer to the submission is recorded as the fact it is; a human hears of it all the same.
            becomes_outcome: source == Source::Answer && submission.outcome.is_none(),
            exception: Some((
                ExceptionKind::LateAckAfterFailed,
                format!("the rail executed it as {reference} after the payout was settled as FAILED"),
            )),
        },
        (
            None | Some(Outcome::Timeout | Outcome::NotReceived),
            Settled::Posted {
                rail_reference: Some(posted),
            },
        ) if posted != reference => Settlement::outcome().but(
            ExceptionKind::DoublePaymentSuspected,
            format!("the payout is POSTED as {posted} and the rail says that it executed it as {reference}"),
        ),
        (None | Some(Outcome::Timeout | Outcome::NotReceived), _) if refused.is_some() => {
            Settlement::outcome().but(ExceptionKind::ConflictingOutcome, both())
        }
        // NOT_RECEIVED was concluded from silence, and the rail has broken it in time (case D02).
        (None | Some(Outcome::Timeout | Outcome::NotReceived), _) => Settlement::outcome(),
        (Some(Outcome::Declined), Settled::Failed) => Settlement::exception(
            ExceptionKind::LateAckAfterFailed,
            format!("{}, after the payout was settled as FAILED", both()),
        ),
        // An ACKED row has its reference, and was judged above.
        (Some(Outcome::Declined | Outcome::Acked), _) => {
            Settlement::exception(ExceptionKind::ConflictingOutcome, both())
        }
        (Some(Outcome::NotSent), _) => Settlement::exception(
            ExceptionKind::AckWithoutSubmission,
            format!("it was never sent, and the rail says that it executed it as {reference}"),
        ),
    }
}

/// The rail names again the reference that is recorded. Where the outcome is not ACKED, the reference came too late to
/// become one, and was reported then.
fn again(submission: &Submission, payout: &Settled) -> Settlement {
    let open = matches!(submission.outcome, None | Some(Outcome::Timeout | Outcome::NotReceived));
    if open && *payout != Settled::Failed {
        Settlement::outcome()
    } else {
        Settlement::nothing()
    }
}

fn declined(submission: &Submission, reason: Option<&str>, source: Source, payout: &Settled) -> Settlement {
    let recorded = submission.decline_reason.as_deref();
    if let Some(executed) = submission.rail_reference.as_deref()
        && submission.outcome != Some(Outcome::NotSent)
    {
        let open = !matches!(submission.outcome, Some(Outcome::Acked | Outcome::Declined));
        let known = recorded.is_some() && recorded == Some(reason.unwrap_or(NO_REASON));
        if known || (submission.outcome == Some(Outcome::Declined) && reason.is_none()) {
            return Settlement::nothing();
        }
        let detail = format!(
            "the rail executed it as {executed} and says now that it {}",
            refusal(reason)
        );
        return Settlement {
            becomes_outcome: open,
            exception: Some((ExceptionKind::ConflictingOutcome, detail)),
        };
    }
    match (submission.outcome, payout) {
        (None | Some(Outcome::Timeout | Outcome::NotReceived), Settled::Posted { .. }) => {
            if recorded == Some(reason.unwrap_or(NO_REASON)) {
                return Settlement::nothing();
            }
            Settlement {
                becomes_outcome: source == Source::Answer && submission.outcome.is_none(),
                exception: Some((
                    ExceptionKind::LateDeclineAfterPosted,
                    format!("the rail {} after the payout was settled as POSTED", refusal(reason)),
                )),
            }
        }
        (None | Some(Outcome::Timeout | Outcome::NotReceived), _) => Settlement::outcome(),
        (Some(Outcome::NotSent), _) => Settlement::exception(
            ExceptionKind::AckWithoutSubmission,
            "it was never sent, and the rail says that it declined it".to_owned(),
        ),
        (Some(Outcome::Declined | Outcome::Acked), _) => match (recorded, reason) {
            (Some(recorded), Some(reason)) if recorded != reason => Settlement::exception(
                ExceptionKind::ConflictingOutcome,
                format!("the rail declined it for {recorded:?} and says now for {reason:?}"),
            ),
            _ => Settlement::nothing(),
        },
    }
}
