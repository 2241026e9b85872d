//! Escalation: a flag on payouts that have been ambiguous for longer than the SLA. It changes no state; look-ups
//! go on, and only P8 ends the ambiguity.

use super::Tx;
use super::rows::{Event, event};
use rusqlite::params;
use sql_kit::Decision;

pub(super) fn escalate(tx: &Tx<'_>, since_max_ms: i64, limit: u32) -> rusqlite::Result<Decision<Vec<String>>> {
    // Recorded while the clock was ahead (case P31). A second of it is no news.
    let put_right = tx
        .db
        .prepare_cached(
            "UPDATE payout SET ambiguous_since = min(ambiguous_since, ?1), escalated_at = min(escalated_at, ?1)
              WHERE state = 'RAIL_AMBIGUOUS' AND (ambiguous_since > ?1 + 1000 OR escalated_at > ?1 + 1000)",
        )?
        .execute([tx.now_ms])?;
    let due: Vec<(String, String)> = tx
        .db
        .prepare_cached(
            "SELECT payout_id, account_id FROM payout
              WHERE state = 'RAIL_AMBIGUOUS' AND escalated_at IS NULL AND ambiguous_since <= ?1
              ORDER BY ambiguous_since LIMIT ?2",
        )?
        .query_map(params![since_max_ms, limit], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    if due.is_empty() && put_right == 0 {
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
