//! The ledger: two legs for each fact, never changed afterwards, and the balance with them (FR-25).

use super::Tx;
use super::rows::{exactly_one, signed, unsigned};
use crate::{Account, LedgerRow, Payout};
use lock_api::FencingToken;
use rusqlite::{Connection, Row, params};

/// The two legs of a paid payout, and its account's balance.
pub(super) fn pay(tx: &Tx<'_>, payout: &Payout, token: FencingToken) -> rusqlite::Result<()> {
    let mut leg = tx.db.prepare_cached(
        "INSERT INTO ledger_entry (payout_id, account_id, currency, amount_minor, token, at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    let token = signed(token.get());
    let house = format!("house:payouts:{}", payout.currency);
    for (account_id, amount_minor) in [
        (&payout.account_id, -payout.amount_minor),
        (&house, payout.amount_minor),
    ] {
        leg.execute(params![
            payout.payout_id,
            account_id,
            payout.currency,
            amount_minor,
            token,
            tx.now_ms
        ])?;
    }
    move_balance(tx, &payout.account_id, -payout.amount_minor)
}

/// The two legs of a credit, and the account's balance.
pub(super) fn receive(tx: &Tx<'_>, account: &Account, credit_id: i64, amount_minor: i64) -> rusqlite::Result<()> {
    let mut leg = tx.db.prepare_cached(
        "INSERT INTO ledger_entry (credit_id, account_id, currency, amount_minor, at) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let house = format!("house:credits:{}", account.currency);
    for (account_id, amount_minor) in [(&account.account_id, amount_minor), (&house, -amount_minor)] {
        leg.execute(params![
            credit_id,
            account_id,
            account.currency,
            amount_minor,
            tx.now_ms
        ])?;
    }
    move_balance(tx, &account.account_id, amount_minor)
}

fn move_balance(tx: &Tx<'_>, account_id: &str, by_minor: i64) -> rusqlite::Result<()> {
    let changed = tx
        .db
        .prepare_cached("UPDATE account SET balance_minor = balance_minor + ?2 WHERE account_id = ?1")?
        .execute(params![account_id, by_minor])?;
    exactly_one(changed)
}

/// Entries in order; of one account or of all.
pub(super) fn list(
    db: &Connection,
    account_id: Option<&str>,
    after: u64,
    limit: u32,
) -> rusqlite::Result<Vec<LedgerRow>> {
    const COLUMNS: &str =
        "e.entry_id, e.payout_id, e.account_id, e.amount_minor, e.currency, e.token, e.at, p.rail_reference
        FROM ledger_entry e LEFT JOIN payout p ON p.payout_id = e.payout_id";
    let after = signed(after);
    match account_id {
        Some(account_id) => db
            .prepare_cached(&format!(
                "SELECT {COLUMNS} WHERE e.account_id = ?1 AND e.entry_id > ?2 ORDER BY e.entry_id LIMIT ?3"
            ))?
            .query_map(params![account_id, after, limit], row)?
            .collect(),
        None => db
            .prepare_cached(&format!(
                "SELECT {COLUMNS} WHERE e.entry_id > ?1 ORDER BY e.entry_id LIMIT ?2"
            ))?
            .query_map(params![after, limit], row)?
            .collect(),
    }
}

/// The place of the last entry.
pub(super) fn last(db: &Connection) -> rusqlite::Result<u64> {
    db.prepare_cached("SELECT coalesce(max(entry_id), 0) FROM ledger_entry")?
        .query_row([], |row| row.get(0).map(unsigned))
}

fn row(row: &Row<'_>) -> rusqlite::Result<LedgerRow> {
    Ok(LedgerRow {
        entry_id: unsigned(row.get(0)?),
        payout_id: row.get(1)?,
        account_id: row.get(2)?,
        amount_minor: row.get(3)?,
        currency: row.get(4)?,
        token: row.get::<_, Option<i64>>(5)?.map(unsigned),
        at_ms: row.get(6)?,
        rail_reference: row.get(7)?,
    })
}
