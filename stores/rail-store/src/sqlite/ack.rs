//! R4: asynchronous acks of the rail (C3.5, C3.7).

use super::{Tx, rows};
use crate::{Ack, AckOutcome, Evidence, ExceptionKind, Outcome, Source, Submission};

pub(super) fn record(tx: &Tx<'_>, ack: &Ack) -> rusqlite::Result<AckOutcome> {
    // The rail's reference for us is the payout's id (C1.2).
    let submissions = rows::all_of_payout(tx.db, &ack.client_reference)?;
    let Some(meant) = meant(&submissions, &ack.evidence) else {
        return Ok(AckOutcome::Unknown);
    };
    if (meant.amount_minor, meant.currency.as_str()) != (ack.amount_minor, ack.currency.as_str()) {
        let detail = format!(
            "an ack speaks of {} {}, submitted were {} {}",
            ack.amount_minor, ack.currency, meant.amount_minor, meant.currency
        );
        rows::raise(tx, &meant.payout_id, ExceptionKind::AmountMismatch, &detail)?;
        return Ok(AckOutcome::Anomaly);
    }
    Ok(match rows::settle(tx, meant, &ack.evidence, Source::Ack)? {
        (true, _) => AckOutcome::Recorded,
        (false, true) => AckOutcome::Anomaly,
        (false, false) => AckOutcome::Duplicate,
    })
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
