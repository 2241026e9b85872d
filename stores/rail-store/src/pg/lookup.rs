//! R3: records what a lookup saw, and what is concluded from it (C1.2 Evidence).

use super::At;
use super::epoch::{EPOCH, Epoch};
use super::rows::{OF_PAYOUT_LOCKED, PAYOUT, PAYOUT_STATE_LOCKED, get, known, one, submissions_of};
use super::writes::Writes;
use crate::decide::{found, lookup};
use crate::payout::{Known, Payout};
use crate::{LookupOutcome, LookupRecord, Settled};
use lock_api::UnixMillis;
use pg_kit::{Param, Stopped, Transaction};
use tokio_postgres::types::Type;

/// When the rail was asked last and knew nothing, ever and in this epoch, of the lookups that counted.
pub(super) const SILENT_AT: &str =
    "SELECT max(at), max(at) FILTER (WHERE epoch = (SELECT epoch FROM pay_lineage WHERE id = 1))
       FROM rail_lookup WHERE payout_id = $1 AND saw_nothing";

/// Some(none): there is nothing to record it about. None: the database was restored, and the new epoch is to be recorded
/// first.
pub(super) async fn record(
    tx: Transaction,
    at: At,
    lookup: &LookupRecord,
) -> Result<Option<Option<LookupOutcome>>, Stopped> {
    let payout: [Param<'_>; 1] = [(&lookup.payout_id, Type::TEXT)];
    let (tx, answers) = tx
        .flight(&[
            (PAYOUT_STATE_LOCKED, &payout),
            (OF_PAYOUT_LOCKED, &payout),
            (SILENT_AT, &payout),
            (PAYOUT, &payout),
            (EPOCH, &payout),
        ])
        .await?;
    let silent = one(&answers, 2)?;
    let (ever, this_epoch): (Option<i64>, Option<i64>) = (get(silent, 0)?, get(silent, 1)?);
    let submissions = submissions_of(&answers, 1)?;
    // Read after its row was locked: it stands until the end of the transaction.
    let payout = match known(&answers, 3)? {
        Known::Payout(payout) => Some(payout),
        Known::Missing | Known::Nothing => None,
    };
    let settled = payout.as_ref().map_or(Settled::No, Payout::settled);
    let mut writes = Writes::default();
    let mut inserted = None;
    let judged = match lookup::decide(lookup, submissions, ever.map(UnixMillis), &settled, at.now) {
        Some(judged) => judged,
        None => {
            let epoch = Epoch::of(&answers, 4)?;
            if !epoch.stands {
                tx.rollback().await;
                return Ok(None);
            }
            let (true, Some(since), Some(payout)) = (epoch.rail_unasked, epoch.since, payout) else {
                tx.rollback().await;
                return Ok(Some(None));
            };
            let judged = found::decide(lookup, &payout, since, this_epoch.map(UnixMillis), at.now);
            inserted = judged.submission.as_ref().map(|row| writes.insert(row));
            judged
        }
    };
    for changed in &judged.changed {
        writes.outcome(changed);
    }
    let double = judged
        .double
        .as_ref()
        .map(|raise| writes.raise(&lookup.payout_id, raise, at.now));
    for raise in &judged.exceptions {
        writes.raise(&lookup.payout_id, raise, at.now);
    }
    writes.lookup(lookup, &judged);
    let written = writes.commit(tx).await?;
    let mut submission = judged.submission;
    if let (Some(place), Some(row)) = (inserted, &mut submission) {
        row.seq = written.seq(place)?;
        tracing::warn!(
            event = "submission_found",
            payout_id = row.payout_id,
            outcome = ?row.outcome,
            "the rail knew of a submission that is lost here"
        );
    }
    Ok(Some(Some(LookupOutcome {
        verdict: judged.verdict,
        executions: judged.executions,
        submission,
        double_found: match double {
            Some(place) => written.is_done(place)?,
            None => false,
        },
    })))
}
