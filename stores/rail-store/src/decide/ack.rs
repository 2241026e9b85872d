//! R4: asynchronous acks of the rail (C3.5, C3.7).

use super::{Raise, take};
use crate::{Ack, AckOutcome, Evidence, ExceptionKind, Outcome, Settled, Source, Submission};
use lock_api::UnixMillis;

/// What an ack did.
pub(crate) struct Acknowledged {
    pub outcome: AckOutcome,
    /// The submission that it changed, as it is to be written.
    pub changed: Option<Submission>,
    pub exception: Option<Raise>,
}

/// Judges an ack by all submissions of the payout, in the order of their intents.
pub(crate) fn decide(ack: &Ack, submissions: &[Submission], payout: &Settled, now: UnixMillis) -> Acknowledged {
    let Some(mut meant) = meant(submissions, &ack.evidence).cloned() else {
        return Acknowledged {
            outcome: AckOutcome::Unknown,
            changed: None,
            exception: None,
        };
    };
    if (meant.amount_minor, meant.currency.as_str()) != (ack.amount_minor, ack.currency.as_str()) {
        let detail = format!(
            "an ack speaks of {}, submitted were {}",
            money_kit::amount(ack.amount_minor, &ack.currency),
            money_kit::amount(meant.amount_minor, &meant.currency)
        );
        return Acknowledged {
            outcome: AckOutcome::Anomaly,
            changed: None,
            exception: Some(Raise {
                kind: ExceptionKind::AmountMismatch,
                detail,
            }),
        };
    }
    let taken = take(&mut meant, &ack.evidence, Source::Ack, payout, now);
    Acknowledged {
        outcome: match (taken.became_outcome, &taken.exception) {
            (true, _) => AckOutcome::Recorded,
            (false, Some(_)) => AckOutcome::Anomaly,
            (false, None) => AckOutcome::Duplicate,
        },
        changed: taken.changed.then_some(meant),
        exception: taken.exception,
    }
}

/// Which submission of a payout an ack speaks of. With the fence on there is one. With it off: the one it says again,
/// else the oldest that is still open, else the last.
fn meant<'a>(submissions: &'a [Submission], evidence: &Evidence) -> Option<&'a Submission> {
    let says_again = |submission: &&Submission| match evidence {
        Evidence::Acked { rail_reference } => submission.rail_reference.as_ref() == Some(rail_reference),
        _ => false,
    };
    let open = |submission: &&Submission| matches!(submission.outcome, None | Some(Outcome::Timeout));
    submissions
        .iter()
        .find(says_again)
        .or_else(|| submissions.iter().find(open))
        .or_else(|| submissions.last())
}
