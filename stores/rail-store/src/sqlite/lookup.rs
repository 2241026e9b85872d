//! R3: records what a lookup saw, and what is concluded from it (C1.2 Evidence).

use super::{Tx, epoch, payout_view, rows};
use crate::decide::{found, lookup::decide};
use crate::payout::Known;
use crate::{LookupOutcome, LookupRecord};
use lock_api::UnixMillis;
use rusqlite::params;

pub(super) fn record(tx: &Tx<'_>, lookup: &LookupRecord) -> rusqlite::Result<Option<LookupOutcome>> {
    let submissions = rows::all_of_payout(tx.db, &lookup.payout_id)?;
    let silent_at = tx
        .db
        .prepare_cached("SELECT max(at) FROM rail_lookup WHERE payout_id = ?1 AND saw_nothing")?
        .query_row([&lookup.payout_id], |row| row.get::<_, Option<i64>>(0))?
        .map(UnixMillis);
    let settled = payout_view::settled(tx.db, &lookup.payout_id)?;
    let judged = match decide(lookup, submissions, silent_at, &settled, tx.now) {
        Some(judged) => judged,
        None => {
            let (Some(since), Known::Payout(payout)) = (
                epoch::unasked(tx.db, &lookup.payout_id)?,
                payout_view::payout(tx.db, &lookup.payout_id)?,
            ) else {
                return Ok(None);
            };
            let silent_at = epoch::silent_at(tx.db, &lookup.payout_id)?;
            let mut judged = found::decide(lookup, &payout, since, silent_at, tx.now);
            if let Some(row) = &mut judged.submission {
                row.seq = rows::insert(tx.db, row)?;
                tracing::warn!(
                    event = "submission_found",
                    payout_id = row.payout_id,
                    outcome = ?row.outcome,
                    "the rail knew of a submission that is lost here"
                );
            }
            judged
        }
    };
    let double_found = match &judged.double {
        Some(double) => rows::raise(tx, &lookup.payout_id, double)?,
        None => false,
    };
    for changed in &judged.changed {
        rows::write_outcome(tx.db, changed)?;
    }
    for raise in &judged.exceptions {
        rows::raise(tx, &lookup.payout_id, raise)?;
    }
    tx.db
        .prepare_cached(
            "INSERT INTO rail_lookup (lookup_id, payout_id, at, verdict, executions, rail_reference, saw_nothing)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            lookup.lookup_id,
            lookup.payout_id,
            lookup.asked_at.0,
            judged.verdict.as_str(),
            rows::signed(judged.executions),
            judged.submission.as_ref().and_then(|now| now.rail_reference.as_ref()),
            judged.saw_nothing,
        ])?;
    Ok(Some(LookupOutcome {
        verdict: judged.verdict,
        executions: judged.executions,
        submission: judged.submission,
        double_found,
    }))
}
