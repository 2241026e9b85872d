//! What the forwarder writes: `forwarded_at` before it opens a connection, the outcome after it closed it (C1.2).

use super::{Tx, rows};
use crate::{Evidence, ForwardClaim, Source, Submission};
use rusqlite::params;

/// Sets `forwarded_at`, once, over an intent without outcome alone.
pub(super) fn claim(tx: &Tx<'_>, submission_id: &str) -> rusqlite::Result<ForwardClaim> {
    let duplicate = tx
        .db
        .prepare_cached(
            "SELECT 1 FROM rail_submission AS other
               JOIN rail_submission AS own ON own.payout_id = other.payout_id
              WHERE own.submission_id = ?1 AND other.submission_id <> ?1 AND other.forwarded_at IS NOT NULL",
        )?
        .exists([submission_id])?;
    // The unique index makes this impossible with the fence on; were it to happen all the same, it is not sent.
    if duplicate && tx.fencing.is_enforced() {
        return Ok(ForwardClaim::Refused { duplicate });
    }
    let claimed = tx
        .db
        .prepare_cached(
            "UPDATE rail_submission SET forwarded_at = ?2
              WHERE submission_id = ?1 AND outcome IS NULL AND forwarded_at IS NULL",
        )?
        .execute(params![submission_id, tx.now.0])?;
    Ok(if claimed == 1 {
        ForwardClaim::Forward { duplicate }
    } else {
        ForwardClaim::Refused { duplicate: false }
    })
}

/// Records what the forwarder learned, and answers what is recorded afterwards.
pub(super) fn record(tx: &Tx<'_>, submission_id: &str, evidence: &Evidence) -> rusqlite::Result<Option<Submission>> {
    let Some(submission) = rows::by_id(tx.db, submission_id)? else {
        return Ok(None);
    };
    rows::settle(tx, &submission, evidence, Source::Answer)?;
    rows::by_id(tx.db, submission_id)
}
