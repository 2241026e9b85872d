//! What a fenced verb looks at before it decides, in the contract's order: on a database with row locks the first
//! statement is the one that locks the account.

use super::rows::{account_of, payout, signed, unsigned};
use super::{Tx, rail_view};
use crate::Step;
use crate::decide::{Mark, Recorded, Seen};
use lock_api::FencingToken;
use rusqlite::params;

/// Reads it all; none where there is no such payout.
pub(super) fn seen(tx: &Tx<'_>, payout_id: &str, step: Step, token: FencingToken) -> rusqlite::Result<Option<Seen>> {
    let Some(account_id) = account_of(tx, payout_id)? else {
        return Ok(None);
    };
    let mark = mark(tx, &account_id)?;
    let Some(payout) = payout(tx.db, payout_id)? else {
        return Ok(None);
    };
    Ok(Some(Seen {
        mark,
        recorded: recorded(tx, payout_id, &account_id, step, token)?,
        available_minor: available(tx, &account_id)?,
        evidence: rail_view::evidence(tx.db, payout_id)?,
        payout,
    }))
}

/// Reads the mark of an account.
pub(super) fn mark(tx: &Tx<'_>, account_id: &str) -> rusqlite::Result<Mark> {
    tx.db
        .prepare_cached("SELECT fence, barrier FROM account WHERE account_id = ?1")?
        .query_row([account_id], |row| {
            Ok(Mark {
                fence: unsigned(row.get(0)?),
                barrier: unsigned(row.get(1)?),
            })
        })
}

fn recorded(
    tx: &Tx<'_>,
    payout_id: &str,
    account_id: &str,
    step: Step,
    token: FencingToken,
) -> rusqlite::Result<Recorded> {
    let token = signed(token.get());
    let of_payout = "SELECT 1 FROM payout_transition WHERE token = ?1 AND payout_id = ?2";
    Ok(Recorded {
        step: tx
            .db
            .prepare_cached(&format!("{of_payout} AND step = ?3"))?
            .exists(params![token, payout_id, step.as_str()])?,
        payout: tx.db.prepare_cached(of_payout)?.exists(params![token, payout_id])?,
        account: recorded_on_account(tx, account_id, token)?,
    })
}

/// Whether a token did anything to a payout of this account.
pub(super) fn recorded_on_account(tx: &Tx<'_>, account_id: &str, token: i64) -> rusqlite::Result<bool> {
    tx.db
        .prepare_cached(
            "SELECT 1 FROM payout_transition t JOIN payout p ON p.payout_id = t.payout_id
              WHERE t.token = ?1 AND p.account_id = ?2",
        )?
        .exists(params![token, account_id])
}

/// Balance less all holds.
fn available(tx: &Tx<'_>, account_id: &str) -> rusqlite::Result<i64> {
    tx.db
        .prepare_cached(
            "SELECT a.balance_minor - (SELECT coalesce(sum(p.amount_minor), 0) FROM payout p
                WHERE p.account_id = a.account_id AND p.state IN ('CLAIMED', 'RAIL_AMBIGUOUS'))
               FROM account a WHERE a.account_id = ?1",
        )?
        .query_row([account_id], |row| row.get(0))
}

/// Advances the mark to T where it is lower.
pub(super) fn advance(tx: &Tx<'_>, account_id: &str, token: FencingToken) -> rusqlite::Result<()> {
    let changed = tx
        .db
        .prepare_cached("UPDATE account SET fence = ?2 WHERE account_id = ?1 AND fence < ?2")?
        .execute(params![account_id, signed(token.get())])?;
    super::rows::exactly_one(changed)
}
