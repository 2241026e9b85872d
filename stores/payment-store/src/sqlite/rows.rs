//! Reading single rows and recording facts: what several statements share.

use super::Tx;
use crate::{Account, Payout, PayoutState, Step, once};
use rusqlite::{Connection, OptionalExtension, Row, params};

/// A number that the schema keeps non-negative.
pub(super) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Tokens, versions and sequence numbers stay below 2^53.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Makes the lineage at the first start; answers it.
pub(super) fn lineage(tx: &Tx<'_>, fresh: &str) -> rusqlite::Result<String> {
    tx.db.execute(
        "INSERT INTO pay_lineage (id, lineage, changed_at, changed_by) VALUES (1, ?1, ?2, 'first start')
         ON CONFLICT (id) DO NOTHING",
        params![fresh, tx.now_ms],
    )?;
    tx.db
        .query_row("SELECT lineage FROM pay_lineage WHERE id = 1", [], |row| row.get(0))
}

pub(super) const ACCOUNT_COLUMNS: &str = "a.account_id, a.currency, a.opening_balance_minor, a.balance_minor, a.fence,
    (SELECT coalesce(sum(p.amount_minor), 0) FROM payout p
      WHERE p.account_id = a.account_id AND p.state IN ('CLAIMED', 'RAIL_AMBIGUOUS'))";

pub(super) fn account_row(row: &Row<'_>) -> rusqlite::Result<Account> {
    Ok(Account {
        account_id: row.get(0)?,
        currency: row.get(1)?,
        opening_balance_minor: row.get(2)?,
        balance_minor: row.get(3)?,
        fence: unsigned(row.get(4)?),
        held_minor: row.get(5)?,
    })
}

pub(super) fn account(db: &Connection, account_id: &str) -> rusqlite::Result<Option<Account>> {
    db.prepare_cached(&format!(
        "SELECT {ACCOUNT_COLUMNS} FROM account a WHERE a.account_id = ?1"
    ))?
    .query_row([account_id], account_row)
    .optional()
}

pub(super) const PAYOUT_COLUMNS: &str =
    "seq, payout_id, account_id, amount_minor, currency, creditor, reference, state,
    claim_token, rail_reference, failure_reason, created_at, updated_at, ambiguous_since, escalated_at, version";

pub(super) fn payout_row(row: &Row<'_>) -> rusqlite::Result<Payout> {
    let creditor: String = row.get(5)?;
    Ok(Payout {
        seq: unsigned(row.get(0)?),
        payout_id: row.get(1)?,
        account_id: row.get(2)?,
        amount_minor: row.get(3)?,
        currency: row.get(4)?,
        creditor: once::creditor(&creditor).map_err(|error| damaged(5, error))?,
        reference: row.get(6)?,
        state: state(row, 7)?,
        claim_token: row.get::<_, Option<i64>>(8)?.map(unsigned),
        rail_reference: row.get(9)?,
        failure_reason: row.get(10)?,
        created_at_ms: row.get(11)?,
        updated_at_ms: row.get(12)?,
        ambiguous_since_ms: row.get(13)?,
        escalated_at_ms: row.get(14)?,
        version: unsigned(row.get(15)?),
    })
}

/// A state as the schema's check admits it.
pub(super) fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<PayoutState> {
    let text: String = row.get(column)?;
    PayoutState::parse(&text).ok_or_else(|| damaged(column, format!("{text:?} is no state")))
}

pub(super) fn damaged(column: usize, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
}

pub(super) fn payout(db: &Connection, payout_id: &str) -> rusqlite::Result<Option<Payout>> {
    db.prepare_cached(&format!("SELECT {PAYOUT_COLUMNS} FROM payout WHERE payout_id = ?1"))?
        .query_row([payout_id], payout_row)
        .optional()
}

/// The payout again, after it was written in this transaction.
pub(super) fn payout_again(tx: &Tx<'_>, payout_id: &str) -> rusqlite::Result<Payout> {
    tx.db
        .prepare_cached(&format!("SELECT {PAYOUT_COLUMNS} FROM payout WHERE payout_id = ?1"))?
        .query_row([payout_id], payout_row)
}

/// The account of a payout: it never changes, so it may be read before the account is locked.
pub(super) fn account_of(tx: &Tx<'_>, payout_id: &str) -> rusqlite::Result<Option<String>> {
    tx.db
        .prepare_cached("SELECT account_id FROM payout WHERE payout_id = ?1")?
        .query_row([payout_id], |row| row.get(0))
        .optional()
}

/// A step as it is recorded.
pub(super) struct Done<'a> {
    pub(super) step: Step,
    pub(super) payout_id: &'a str,
    pub(super) account_id: &'a str,
    pub(super) from: Option<PayoutState>,
    pub(super) token: Option<u64>,
    pub(super) actor: &'a str,
    pub(super) detail: Option<String>,
}

/// Records a step in the payout's history and in the audit trail (FR-30).
pub(super) fn record(tx: &Tx<'_>, done: &Done<'_>) -> rusqlite::Result<()> {
    let token = done.token.map(signed);
    tx.db
        .prepare_cached(
            "INSERT INTO payout_transition (payout_id, step, from_state, to_state, token, actor, at, detail)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            done.payout_id,
            done.step.as_str(),
            done.from.map(PayoutState::as_str),
            done.step.to().as_str(),
            token,
            done.actor,
            tx.now_ms,
            done.detail,
        ])?;
    event(
        tx,
        &Event {
            kind: &done.step.as_str().to_ascii_uppercase(),
            account_id: Some(done.account_id),
            payout_id: Some(done.payout_id),
            token,
            actor: done.actor,
            reason: done.detail.as_deref(),
        },
    )?;
    Ok(())
}

/// A fact as it is recorded.
pub(super) struct Event<'a> {
    pub(super) kind: &'a str,
    pub(super) account_id: Option<&'a str>,
    pub(super) payout_id: Option<&'a str>,
    pub(super) token: Option<i64>,
    pub(super) actor: &'a str,
    pub(super) reason: Option<&'a str>,
}

/// Records a fact in the audit trail; answers its place.
pub(super) fn event(tx: &Tx<'_>, event: &Event<'_>) -> rusqlite::Result<i64> {
    tx.db
        .prepare_cached(
            "INSERT INTO payment_event (at, kind, account_id, payout_id, token, actor, reason)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .insert(params![
            tx.now_ms,
            event.kind,
            event.account_id,
            event.payout_id,
            event.token,
            event.actor,
            event.reason
        ])
}

/// Exactly one row must have changed: the statement repeats what was checked before it, so anything else is a defect
/// of this code, and the transaction is given up.
pub(super) fn exactly_one(changed: usize) -> rusqlite::Result<()> {
    if changed == 1 {
        Ok(())
    } else {
        Err(rusqlite::Error::StatementChangedRows(changed))
    }
}
