//! The account's mark at the rail: the fenced statement of point (c) (C1.5, FR-16). Written where an intent is inserted
//! and where a fence is raised, nowhere else.

use super::rows::{natural, signed};
use crate::decide::mark::{Advance, barrier};
use crate::{FencedOut, HighWater};
use lock_api::{FencingToken, UnixMillis};
use rusqlite::{Connection, OptionalExtension, params};

/// Raises the mark to `to` where it is lower. Answers whether it rose. The statement that takes the mark's row lock:
/// whatever must see the previous holder's work is a later one.
fn rise(db: &Connection, account_id: &str, to: u64, now: UnixMillis) -> rusqlite::Result<bool> {
    let rose = db
        .prepare_cached(
            "INSERT INTO rail_high_water (account_id, highest_token, updated_at) VALUES (?1, ?2, ?3)
             ON CONFLICT (account_id) DO UPDATE SET highest_token = excluded.highest_token,
                                                    updated_at = excluded.updated_at
              WHERE rail_high_water.highest_token < excluded.highest_token",
        )?
        .execute(params![account_id, signed(to), now.0])?;
    Ok(rose == 1)
}

/// Advances the mark to the token of a submission, if it stands below.
pub(super) fn advance(
    db: &Connection,
    account_id: &str,
    token: FencingToken,
    now: UnixMillis,
) -> rusqlite::Result<Advance> {
    let rose = rise(db, account_id, token.get(), now)?;
    if rose {
        return Ok(Advance {
            rose,
            highest_token: token.get(),
            token_used: false,
        });
    }
    Ok(Advance {
        rose,
        highest_token: read(db, account_id)?.highest_token,
        token_used: db
            .prepare_cached("SELECT 1 FROM rail_submission WHERE account_id = ?1 AND token = ?2")?
            .exists(params![account_id, signed(token.get())])?,
    })
}

/// Raises the mark to one below the token, so that no older token passes and this one is not yet spent.
pub(super) fn raise_below(
    db: &Connection,
    account_id: &str,
    token: FencingToken,
    now: UnixMillis,
) -> rusqlite::Result<Result<HighWater, FencedOut>> {
    let below = token.get() - 1;
    if below > 0 {
        rise(db, account_id, below, now)?;
    }
    Ok(barrier(read(db, account_id)?, token))
}

pub(super) fn read(db: &Connection, account_id: &str) -> rusqlite::Result<HighWater> {
    let mark = db
        .prepare_cached("SELECT highest_token, updated_at FROM rail_high_water WHERE account_id = ?1")?
        .query_row([account_id], |row| {
            Ok(HighWater {
                highest_token: natural(row, 0)?,
                updated_at: Some(UnixMillis(row.get(1)?)),
            })
        })
        .optional()?;
    Ok(mark.unwrap_or(HighWater {
        highest_token: 0,
        updated_at: None,
    }))
}
