//! What is looked at from time to time rather than at each step.

use super::{Tx, payout_view, rows};
use crate::Gauges;
use crate::decide::{Raise, late_ack, late_decline};
use lock_api::UnixMillis;
use rusqlite::Connection;

/// Payouts that are FAILED although a submission of theirs is ACKED, or POSTED although it was declined, and for which nobody has been called yet: the two
/// files have no common transaction, so a settlement and late evidence of the same moment may each have missed the other.
pub(super) fn settled_against_the_rail(db: &Connection) -> rusqlite::Result<Vec<(String, Raise)>> {
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
    .query_map([], |row| Ok((row.get(0)?, late_ack(&row.get::<_, String>(1)?))))?
    .chain(
        db.prepare_cached(
            "SELECT s.payout_id, s.outcome FROM rail_submission AS s
               JOIN payment.payout AS p ON p.payout_id = s.payout_id AND p.state = 'POSTED'
              WHERE s.outcome = 'DECLINED'
                AND NOT EXISTS (SELECT 1 FROM rail_submission AS o
                                 WHERE o.payout_id = s.payout_id AND o.outcome = 'ACKED')
                AND NOT EXISTS (SELECT 1 FROM rail_exception AS e
                                 WHERE e.payout_id = s.payout_id AND e.kind = 'LATE_DECLINE_AFTER_POSTED')
              LIMIT 100",
        )?
        .query_map([], |row| Ok((row.get(0)?, late_decline(&row.get::<_, String>(1)?))))?,
    )
    .collect()
}

pub(super) fn raise(tx: &Tx<'_>, found: &[(String, Raise)]) -> rusqlite::Result<()> {
    for (payout_id, raise) in found {
        rows::raise(tx, payout_id, raise)?;
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
