//! Rows of `rail_submission` and `rail_exception`.

#![allow(clippy::disallowed_methods, reason = "a token comes out of the store here")]

use super::Tx;
use crate::decide::Raise;
use crate::{CloseException, CloseOutcome, Exception, ExceptionFilter, Lookup, Outcome, OutcomeFilter, Submission};
use lock_api::{FencingToken, UnixMillis};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

const COLUMNS: &str = "rowid, submission_id, payout_id, account_id, token, idempotency_key, client_reference,
    amount_minor, currency, body_hash, intent_at, forwarded_at, outcome, actor, cause, rail_reference, decline_reason,
    outcome_at, fencing_enforced";

/// Where a payout has several submissions (fence off), the one that says most about the money stands first.
const MOST_TELLING: &str = "CASE outcome WHEN 'ACKED' THEN 0 WHEN 'DECLINED' THEN 2 WHEN 'NOT_RECEIVED' THEN 3
    WHEN 'NOT_SENT' THEN 4 ELSE 1 END, rowid";

fn malformed(column: usize, what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, what.into())
}

/// A number that is never negative, out of a column. SQLite knows signed numbers alone.
pub(super) fn natural(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// A number into a column. Tokens stay below 2^53 and rows below 2^63; anything above is above all of them.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn submission(row: &Row<'_>) -> rusqlite::Result<Submission> {
    let token = FencingToken::from_store(natural(row, 4)?).map_err(|error| malformed(4, error.to_string()))?;
    let outcome = match row.get::<_, Option<String>>(12)? {
        None => None,
        Some(text) => Some(Outcome::parse(&text).ok_or_else(|| malformed(12, text))?),
    };
    Ok(Submission {
        seq: natural(row, 0)?,
        submission_id: row.get(1)?,
        payout_id: row.get(2)?,
        account_id: row.get(3)?,
        token,
        idempotency_key: row.get(5)?,
        client_reference: row.get(6)?,
        amount_minor: row.get(7)?,
        currency: row.get(8)?,
        body_hash: row.get(9)?,
        intent_at: UnixMillis(row.get(10)?),
        forwarded_at: row.get::<_, Option<i64>>(11)?.map(UnixMillis),
        outcome,
        actor: row.get(13)?,
        cause: row.get(14)?,
        rail_reference: row.get(15)?,
        decline_reason: row.get(16)?,
        outcome_at: row.get::<_, Option<i64>>(17)?.map(UnixMillis),
        fencing_enforced: row.get(18)?,
    })
}

pub(super) fn by_id(db: &Connection, submission_id: &str) -> rusqlite::Result<Option<Submission>> {
    db.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM rail_submission WHERE submission_id = ?1"
    ))?
    .query_row([submission_id], submission)
    .optional()
}

/// The most telling submission of a payout.
pub(super) fn of_payout(db: &Connection, payout_id: &str) -> rusqlite::Result<Option<Submission>> {
    db.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM rail_submission WHERE payout_id = ?1 ORDER BY {MOST_TELLING} LIMIT 1"
    ))?
    .query_row([payout_id], submission)
    .optional()
}

/// All submissions of a payout, in the order of their intents.
pub(super) fn all_of_payout(db: &Connection, payout_id: &str) -> rusqlite::Result<Vec<Submission>> {
    db.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM rail_submission WHERE payout_id = ?1 ORDER BY rowid"
    ))?
    .query_map([payout_id], submission)?
    .collect()
}

/// This token's submission of this payout.
pub(super) fn of_token(db: &Connection, payout_id: &str, token: FencingToken) -> rusqlite::Result<Option<Submission>> {
    db.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM rail_submission WHERE payout_id = ?1 AND token = ?2 ORDER BY {MOST_TELLING} LIMIT 1"
    ))?
    .query_row(params![payout_id, signed(token.get())], submission)
    .optional()
}

pub(super) fn list(
    db: &Connection,
    filter: OutcomeFilter,
    after: u64,
    limit: u32,
) -> rusqlite::Result<Vec<Submission>> {
    let (condition, outcome) = match filter {
        OutcomeFilter::All => ("?3 IS NULL", None),
        OutcomeFilter::Is(outcome) => ("outcome = ?3", Some(outcome.as_str())),
        OutcomeFilter::None => ("outcome IS ?3", None),
    };
    db.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM rail_submission WHERE rowid > ?1 AND {condition} ORDER BY rowid LIMIT ?2"
    ))?
    .query_map(params![signed(after), limit, outcome], submission)?
    .collect()
}

/// Inserts an intent, a final NOT_SENT, or what a lookup found after a restore.
pub(super) fn insert(db: &Connection, new: &Submission) -> rusqlite::Result<u64> {
    db.prepare_cached(
        "INSERT INTO rail_submission (submission_id, payout_id, account_id, token, idempotency_key, client_reference,
             amount_minor, currency, body_hash, intent_at, outcome, actor, cause, outcome_at, fencing_enforced,
             rail_reference, decline_reason)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
    )?
    .execute(params![
        new.submission_id,
        new.payout_id,
        new.account_id,
        signed(new.token.get()),
        new.idempotency_key,
        new.client_reference,
        new.amount_minor,
        new.currency,
        new.body_hash,
        new.intent_at.0,
        new.outcome.map(Outcome::as_str),
        new.actor,
        new.cause,
        new.outcome_at.map(|at| at.0),
        new.fencing_enforced,
        new.rail_reference,
        new.decline_reason,
    ])?;
    Ok(u64::try_from(db.last_insert_rowid()).unwrap_or(0))
}

/// Writes what became of a submission.
pub(super) fn write_outcome(db: &Connection, submission: &Submission) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE rail_submission
            SET outcome = ?2, cause = ?3, rail_reference = ?4, decline_reason = ?5, outcome_at = ?6
          WHERE submission_id = ?1",
    )?
    .execute(params![
        submission.submission_id,
        submission.outcome.map(Outcome::as_str),
        submission.cause,
        submission.rail_reference,
        submission.decline_reason,
        submission.outcome_at.map(|at| at.0),
    ])
    .map(drop)
}

/// Raises an exception for a human. Answers whether it is a new one.
pub(super) fn raise(tx: &Tx<'_>, payout_id: &str, raise: &Raise) -> rusqlite::Result<bool> {
    let raised = tx
        .db
        .prepare_cached(
            "INSERT INTO rail_exception (payout_id, at, kind, detail) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (payout_id, kind, detail) DO NOTHING",
        )?
        .execute(params![payout_id, tx.now.0, raise.kind.as_str(), raise.detail])?;
    Ok(raised == 1)
}

/// The newest lookups of a payout, oldest first.
pub(super) fn lookups(db: &Connection, payout_id: &str, limit: u32) -> rusqlite::Result<Vec<Lookup>> {
    let mut newest: Vec<Lookup> = db
        .prepare_cached(
            "SELECT at, verdict, executions, rail_reference
               FROM rail_lookup WHERE payout_id = ?1 ORDER BY at DESC, lookup_id DESC LIMIT ?2",
        )?
        .query_map(params![payout_id, limit], |row| {
            Ok(Lookup {
                at: UnixMillis(row.get(0)?),
                verdict: row.get(1)?,
                executions: natural(row, 2)?,
                rail_reference: row.get(3)?,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    newest.reverse();
    Ok(newest)
}

const EXCEPTION: &str =
    "SELECT exception_id, payout_id, at, kind, detail, closed_by, closed_at, closed_reason FROM rail_exception";

fn exception(row: &Row<'_>) -> rusqlite::Result<Exception> {
    Ok(Exception {
        seq: natural(row, 0)?,
        payout_id: row.get(1)?,
        at: UnixMillis(row.get(2)?),
        kind: row.get(3)?,
        detail: row.get(4)?,
        closed_by: row.get(5)?,
        closed_at: row.get::<_, Option<i64>>(6)?.map(UnixMillis),
        closed_reason: row.get(7)?,
    })
}

pub(super) fn exceptions(
    db: &Connection,
    filter: ExceptionFilter,
    after: u64,
    limit: u32,
) -> rusqlite::Result<Vec<Exception>> {
    let condition = match filter {
        ExceptionFilter::All => "",
        ExceptionFilter::Open => "AND closed_by IS NULL",
        ExceptionFilter::Closed => "AND closed_by IS NOT NULL",
    };
    db.prepare_cached(&format!(
        "{EXCEPTION} WHERE exception_id > ?1 {condition} ORDER BY exception_id LIMIT ?2"
    ))?
    .query_map(params![signed(after), limit], exception)?
    .collect()
}

pub(super) fn exception_by_id(db: &Connection, seq: u64) -> rusqlite::Result<Option<Exception>> {
    db.prepare_cached(&format!("{EXCEPTION} WHERE exception_id = ?1"))?
        .query_row([signed(seq)], exception)
        .optional()
}

pub(super) fn close_exception(tx: &Tx<'_>, close: &CloseException) -> rusqlite::Result<CloseOutcome> {
    let outcome = crate::decide::close(close, exception_by_id(tx.db, close.seq)?, tx.now);
    if let CloseOutcome::Closed(_) = outcome {
        tx.db
            .prepare_cached(
                "UPDATE rail_exception SET closed_by = ?2, closed_at = ?3, closed_reason = ?4 WHERE exception_id = ?1",
            )?
            .execute(params![signed(close.seq), close.operator, tx.now.0, close.reason])?;
    }
    Ok(outcome)
}
