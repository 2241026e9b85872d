//! What the forwarder writes: `forwarded_at` before it opens a connection, the outcome after it closed it (C1.2).

use super::{Tx, payout_view, rows};
use crate::decide::{forward, take};
use crate::{Evidence, ForwardClaim, Source, Submission};
use rusqlite::params;

/// Sets `forwarded_at`, once, over an intent without outcome alone.
pub(super) fn claim(tx: &Tx<'_>, submission_id: &str) -> rusqlite::Result<ForwardClaim> {
    let Some(own) = rows::by_id(tx.db, submission_id)? else {
        return Ok(ForwardClaim::Refused { duplicate: false });
    };
    let claim = forward::decide(submission_id, &rows::all_of_payout(tx.db, &own.payout_id)?, tx.fencing);
    if let ForwardClaim::Forward { .. } = claim {
        let claimed = tx
            .db
            .prepare_cached(
                "UPDATE rail_submission SET forwarded_at = ?2
                  WHERE submission_id = ?1 AND outcome IS NULL AND forwarded_at IS NULL",
            )?
            .execute(params![submission_id, tx.now.0])?;
        if claimed != 1 {
            return Ok(ForwardClaim::Refused { duplicate: false });
        }
    }
    Ok(claim)
}

/// Records what the forwarder learned, and answers what is recorded afterwards.
pub(super) fn record(tx: &Tx<'_>, submission_id: &str, evidence: &Evidence) -> rusqlite::Result<Option<Submission>> {
    let Some(mut submission) = rows::by_id(tx.db, submission_id)? else {
        return Ok(None);
    };
    let payout = payout_view::settled(tx.db, &submission.payout_id)?;
    let taken = take(&mut submission, evidence, Source::Answer, &payout, tx.now);
    if taken.changed {
        rows::write_outcome(tx.db, &submission)?;
    }
    if let Some(raise) = &taken.exception {
        rows::raise(tx, &submission.payout_id, raise)?;
    }
    Ok(Some(submission))
}
