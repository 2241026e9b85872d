//! The rail proxy's file, read only: the evidence of C1.2. Where the file or its table does not exist yet there is no
//! evidence. A file that exists and cannot be read is an error, never a guess.

use crate::{Evidence, RailOutcome, Submission};
use rusqlite::{Connection, params};

/// The schema name under which `rail.db` is attached.
pub(super) const SCHEMA: &str = "rail";

/// Whether the rail's submissions can be read.
pub(super) fn is_there(db: &Connection) -> rusqlite::Result<bool> {
    let attached = db
        .prepare_cached("SELECT 1 FROM pragma_database_list WHERE name = ?1")?
        .exists([SCHEMA])?;
    Ok(attached
        && db
            .prepare_cached("SELECT 1 FROM rail.sqlite_master WHERE type = 'table' AND name = 'rail_submission'")?
            .exists([])?)
}

/// What is recorded about a payout's submissions.
pub(super) fn evidence(db: &Connection, payout_id: &str) -> rusqlite::Result<Evidence> {
    if !is_there(db)? {
        return Ok(Evidence::default());
    }
    let mut statement = db.prepare_cached(
        "SELECT outcome, rail_reference, decline_reason FROM rail.rail_submission WHERE payout_id = ?1
          ORDER BY submission_id",
    )?;
    let rows = statement.query_map(params![payout_id], |row| {
        Ok(Submission {
            // A word that this version does not know proves nothing: it reads like an intent without outcome.
            outcome: row.get::<_, Option<String>>(0)?.as_deref().and_then(RailOutcome::parse),
            rail_reference: row.get(1)?,
            decline_reason: row.get(2)?,
        })
    })?;
    Ok(Evidence(rows.collect::<Result<_, _>>()?))
}
