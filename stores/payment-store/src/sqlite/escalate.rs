//! Escalation: a flag on payouts that have been ambiguous for longer than the SLA. It changes no state; look-ups
//! go on, and only P8 ends the ambiguity.

use super::Tx;
use super::rows::{Event, event};
use rusqlite::params;
use sql_kit::Decision;
use std::time::Duration;

pub(super) fn escalate(tx: &Tx<'_>, sla: Duration, limit: u32) -> rusqlite::Result<Decision<Vec<String>>> {
    let before = tx
        .now_ms
        .saturating_sub(i64::try_from(sla.as_millis()).unwrap_or(i64::MAX));
    let due: Vec<(String, String)> = tx
        .db
        .prepare_cached(
            "SELECT payout_id, account_id FROM payout
              WHERE state = 'RAIL_AMBIGUOUS' AND escalated_at IS NULL AND ambiguous_since <= ?1
              ORDER BY ambiguous_since LIMIT ?2",
        )?
        .query_map(params![before, limit], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    if due.is_empty() {
        return Ok(Decision::Rollback(Vec::new()));
    }
    for (payout_id, account_id) in &due {
        tx.db
            .prepare_cached("UPDATE payout SET escalated_at = ?2 WHERE payout_id = ?1 AND state = 'RAIL_AMBIGUOUS'")?
            .execute(params![payout_id, tx.now_ms])?;
        event(
            tx,
            &Event {
                kind: "ESCALATED",
                account_id: Some(account_id),
                payout_id: Some(payout_id),
                token: None,
                actor: "payment-resource",
                reason: Some("ambiguous for longer than executor.ambiguous-sla"),
            },
        )?;
    }
    Ok(Decision::Commit(
        due.into_iter().map(|(payout_id, _)| payout_id).collect(),
    ))
}
