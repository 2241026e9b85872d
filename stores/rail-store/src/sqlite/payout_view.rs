//! The payment row's file, read only. Where the file or its table does not exist yet nothing is known about payouts, and
//! nothing is guessed. A file that exists and cannot be read is an error.

use crate::Settled;
use crate::payout::{Known, Payout};
use rusqlite::{Connection, OptionalExtension};

/// The schema name under which `payment.db` is attached.
pub(super) const SCHEMA: &str = "payment";

/// Whether the payouts can be read.
pub(super) fn is_there(db: &Connection) -> rusqlite::Result<bool> {
    let attached = db
        .prepare_cached("SELECT 1 FROM pragma_database_list WHERE name = ?1")?
        .exists([SCHEMA])?;
    Ok(attached
        && db
            .prepare_cached("SELECT 1 FROM payment.sqlite_master WHERE type = 'table' AND name = 'payout'")?
            .exists([])?)
}

pub(super) fn payout(db: &Connection, payout_id: &str) -> rusqlite::Result<Known> {
    if !is_there(db)? {
        return Ok(Known::Nothing);
    }
    let mut statement = db.prepare_cached(
        "SELECT account_id, amount_minor, currency, creditor, state, claim_token, rail_reference
           FROM payment.payout WHERE payout_id = ?1",
    )?;
    let payout = statement
        .query_row([payout_id], |row| {
            Ok(Payout {
                account_id: row.get(0)?,
                amount_minor: row.get(1)?,
                currency: row.get(2)?,
                creditor: row.get(3)?,
                state: row.get(4)?,
                // A token that no lock store can have minted is nobody's.
                claim_token: row
                    .get::<_, Option<i64>>(5)?
                    .and_then(|token| u64::try_from(token).ok()),
                rail_reference: row.get(6)?,
            })
        })
        .optional()?;
    Ok(payout.map_or(Known::Missing, Known::Payout))
}

/// Whether the payout is settled, and as what, as far as can be seen.
pub(super) fn settled(db: &Connection, payout_id: &str) -> rusqlite::Result<Settled> {
    if !is_there(db)? {
        return Ok(Settled::No);
    }
    let settled = db
        .prepare_cached("SELECT state, rail_reference FROM payment.payout WHERE payout_id = ?1")?
        .query_row([payout_id], |row| {
            Ok(Settled::of(&row.get::<_, String>(0)?, row.get(1)?))
        })
        .optional()?;
    Ok(settled.unwrap_or(Settled::No))
}
