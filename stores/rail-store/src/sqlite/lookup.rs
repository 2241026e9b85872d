//! R3: records what a lookup saw, and what is concluded from it (C1.2 Evidence).

use super::{Tx, payout_view, rows};
use crate::decide::lookup::decide;
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
    let payout = payout_view::settled(tx.db, &lookup.payout_id)?;
    let Some(judged) = decide(lookup, submissions, silent_at, &payout, tx.now) else {
        return Ok(None);
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
