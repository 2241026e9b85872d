//! What is looked at from time to time rather than at each step.

use super::{Tx, payout_view, rows};
use crate::Gauges;
use crate::decide::late_ack;
use lock_api::UnixMillis;
use rusqlite::Connection;

/// Payouts that are FAILED although a submission of theirs is ACKED, and for which nobody has been called yet: the two
/// files have no common transaction, so a settlement and a late ack of the same moment may each have missed the other.
pub(super) fn settled_against_the_rail(db: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    if !payout_view::is_there(db)? {
        return Ok(Vec::new());
    }
    db.prepare_cached(
        "SELECT s.payout_id, s.rail_reference FROM payment.payout AS p
           JOIN rail_submission AS s ON s.payout_id = p.payout_id AND s.outcome = 'ACKED'
          WHERE p.state = 'FAILED'
            AND NOT EXISTS (SELECT 1 FROM rail_exception AS e
                             WHERE e.payout_id = s.payout_id AND e.kind = 'LATE_ACK_AFTER_FAILED')
          LIMIT 100",
    )?
    .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
    .collect()
}

pub(super) fn raise(tx: &Tx<'_>, found: &[(String, String)]) -> rusqlite::Result<()> {
    for (payout_id, reference) in found {
        rows::raise(tx, payout_id, &late_ack(reference))?;
    }
    Ok(())
}

pub(super) fn gauges(db: &Connection) -> rusqlite::Result<Gauges> {
    // A payout that a human settled leaves its submission as it was: it is nobody's worry any more.
    let settled = if payout_view::is_there(db)? {
        "AND NOT EXISTS (SELECT 1 FROM payment.payout AS p
                          WHERE p.payout_id = s.payout_id AND p.state IN ('POSTED', 'FAILED'))"
    } else {
        ""
    };
    let ambiguous_since: Option<i64> = db
        .prepare_cached(&format!(
            "SELECT MIN(at) FROM (
                 SELECT intent_at AS at FROM rail_submission AS s WHERE outcome IS NULL {settled}
                 UNION ALL
                 SELECT outcome_at FROM rail_submission AS s WHERE outcome = 'TIMEOUT' {settled})"
        ))?
        .query_row([], |row| row.get(0))?;
    let exceptions_open = db
        .prepare_cached("SELECT COUNT(*) FROM rail_exception WHERE closed_by IS NULL")?
        .query_row([], |row| rows::natural(row, 0))?;
    Ok(Gauges {
        ambiguous_since: ambiguous_since.map(UnixMillis),
        exceptions_open,
    })
}
