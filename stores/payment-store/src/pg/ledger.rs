//! The ledger: two legs for each fact, never changed afterwards, and the balance with them (FR-25).

use super::rows::{odd, signed, unsigned};
use crate::{LedgerRow, Payout};
use lock_api::{FencingToken, StoreError};
use pg_kit::{Param, Statement, Transactions};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Both legs in one statement, the account's first.
const LEGS: &str = "INSERT INTO ledger_entry (payout_id, account_id, currency, amount_minor, token, at)
  VALUES ($1, $2, $4, - $5::bigint, $6, $7), ($1, $3, $4, $5, $6, $7)";

/// The account's row is locked since before the payout was read.
const BALANCE: &str = "UPDATE account SET balance_minor = balance_minor - $2 WHERE account_id = $1";

/// The legs of a paid payout and its account's balance, as statements of the flight that posts it.
pub(super) struct Paid<'a> {
    legs: [Param<'a>; 7],
    balance: [Param<'a>; 2],
}

/// What [`Paid`] refers to.
pub(super) struct Payment<'a> {
    payout: &'a Payout,
    house: String,
    token: i64,
    now_ms: i64,
}

impl<'a> Payment<'a> {
    pub(super) fn new(payout: &'a Payout, token: FencingToken, now_ms: i64) -> Self {
        Self {
            payout,
            house: format!("house:payouts:{}", payout.currency),
            token: signed(token.get()),
            now_ms,
        }
    }

    pub(super) fn paid(&'a self) -> Paid<'a> {
        Paid {
            legs: [
                (&self.payout.payout_id, Type::TEXT),
                (&self.payout.account_id, Type::TEXT),
                (&self.house, Type::TEXT),
                (&self.payout.currency, Type::TEXT),
                (&self.payout.amount_minor, Type::INT8),
                (&self.token, Type::INT8),
                (&self.now_ms, Type::INT8),
            ],
            balance: [
                (&self.payout.account_id, Type::TEXT),
                (&self.payout.amount_minor, Type::INT8),
            ],
        }
    }
}

impl Paid<'_> {
    pub(super) fn statements(&self) -> [Statement<'_>; 2] {
        [(LEGS, &self.legs), (BALANCE, &self.balance)]
    }
}

/// Entries in order; of one account or of all.
pub(super) async fn list(
    database: &Transactions,
    account_id: Option<&str>,
    after: u64,
    limit: u32,
    within: Duration,
) -> Result<Vec<LedgerRow>, StoreError> {
    let filter = if account_id.is_some() {
        "e.account_id = $3"
    } else {
        "$3::text IS NULL"
    };
    let answers = database
        .read(
            within,
            &[(
                &format!(
                    "SELECT e.entry_id, e.payout_id, e.account_id, e.amount_minor, e.currency, e.token, e.at,
                            p.rail_reference
                       FROM ledger_entry e LEFT JOIN payout p ON p.payout_id = e.payout_id
                      WHERE e.entry_id > $1 AND {filter} ORDER BY e.entry_id LIMIT $2"
                ),
                &[
                    (&signed(after), Type::INT8),
                    (&i64::from(limit), Type::INT8),
                    (&account_id, Type::TEXT),
                ],
            )],
        )
        .await?;
    Ok(answers.iter().flatten().map(row).collect())
}

/// The place of the last entry.
pub(super) async fn last(database: &Transactions, within: Duration) -> Result<u64, StoreError> {
    let answers = database
        .read(within, &[("SELECT coalesce(max(entry_id), 0) FROM ledger_entry", &[])])
        .await?;
    let row = answers.iter().flatten().next().ok_or_else(|| odd("the last entry"))?;
    Ok(unsigned(row.get(0)))
}

fn row(row: &Row) -> LedgerRow {
    LedgerRow {
        entry_id: unsigned(row.get(0)),
        payout_id: row.get(1),
        account_id: row.get(2),
        amount_minor: row.get(3),
        currency: row.get(4),
        token: row.get::<_, Option<i64>>(5).map(unsigned),
        at_ms: row.get(6),
        rail_reference: row.get(7),
    }
}
