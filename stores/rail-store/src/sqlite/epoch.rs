//! Whether `rail.db` is the file that was written last, or an older copy that was put in its place (case P35).
//!
//! An older copy has lost submissions that the rail has executed. From the first transaction that notices it, a payout
//! without a submission is sent only after the rail was asked about it in this epoch, as on PostgreSQL (case D13).

use super::{payout_view, rows};
use crate::payout::Known;
use lock_api::UnixMillis;
use rusqlite::{Connection, params};
use sql_kit::Restored;

/// The last lookup that an older copy has brought back. Lookups are never deleted, so their numbers only rise.
pub(super) const LAST_LOOKUP: &str = "SELECT coalesce(max(rowid), 0) FROM rail_lookup";

/// When the restore was noticed, where the rail must be asked before a payout without a submission is sent.
pub(super) fn unasked(db: &Connection, payout_id: &str) -> rusqlite::Result<Option<UnixMillis>> {
    let Some(Restored { at_ms, noted, .. }) = sql_kit::restored(db)? else {
        return Ok(None);
    };
    let was_asked = db
        .prepare_cached("SELECT 1 FROM rail_lookup WHERE payout_id = ?1 AND rowid > ?2 AND verdict = 'NOT_RECEIVED'")?
        .exists(params![payout_id, noted])?;
    Ok((!was_asked).then_some(UnixMillis(at_ms)))
}

/// When the rail was asked last in this epoch and knew nothing, of the lookups that counted.
pub(super) fn silent_at(db: &Connection, payout_id: &str) -> rusqlite::Result<Option<UnixMillis>> {
    let noted = sql_kit::restored(db)?.map_or(0, |restored| restored.noted);
    db.prepare_cached("SELECT max(at) FROM rail_lookup WHERE payout_id = ?1 AND rowid > ?2 AND saw_nothing")?
        .query_row(params![payout_id, noted], |row| row.get::<_, Option<i64>>(0))
        .map(|at| at.map(UnixMillis))
}

/// Whether the rail must be asked about a payout that has no submission.
pub(super) fn rail_unasked(db: &Connection, payout_id: &str) -> rusqlite::Result<bool> {
    Ok(unasked(db, payout_id)?.is_some()
        && matches!(payout_view::payout(db, payout_id)?, Known::Payout(_))
        && rows::of_payout(db, payout_id)?.is_none())
}
