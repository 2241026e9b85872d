//! Rows of `rail_submission`, `rail_exception` and, read only, `payout`.

#![allow(clippy::disallowed_methods, reason = "a token comes out of the store here")]

use crate::payout::{Known, Malformed, Payout};
use crate::{Exception, ExceptionFilter, Lookup, Outcome, OutcomeFilter, Settled, Submission};
use lock_api::{FencingToken, StoreError, UnixMillis};
use pg_kit::{Param, Transactions};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSqlOwned, Type};

macro_rules! submissions {
    ($($rest:literal),*) => {
        concat!(
            "SELECT seq, submission_id, payout_id, account_id, token, idempotency_key, client_reference, amount_minor,
                 currency, body_hash, intent_at, forwarded_at, outcome, actor, cause, rail_reference, decline_reason,
                 outcome_at, fencing_enforced
               FROM rail_submission ",
            $($rest),*
        )
    };
}
pub(super) use submissions;

/// All submissions of a payout. Most have one, so the most telling one is chosen here and not there.
pub(super) const OF_PAYOUT: &str = submissions!("WHERE payout_id = $1 ORDER BY seq");

/// The same, to be changed.
pub(super) const OF_PAYOUT_LOCKED: &str = submissions!("WHERE payout_id = $1 ORDER BY seq FOR UPDATE");

/// A token's submissions of a payout.
pub(super) const OF_TOKEN: &str = submissions!("WHERE payout_id = $1 AND token = $2 ORDER BY seq");

pub(super) const PAYOUT: &str =
    "SELECT account_id, amount_minor, currency, creditor, state, claim_token, rail_reference
       FROM payout WHERE payout_id = $1";

/// Whether a payout is settled, and with which reference. Read after its row was locked.
pub(super) const SETTLED: &str = "SELECT state, rail_reference FROM payout WHERE payout_id = $1";

/// A payout's state, its row locked in share mode.
pub(super) const PAYOUT_STATE_LOCKED: &str = "SELECT rail_payout_state($1)";

pub(super) fn corrupt(detail: impl Into<String>) -> StoreError {
    StoreError::Corrupt { detail: detail.into() }
}

impl From<Malformed> for StoreError {
    fn from(what: Malformed) -> Self {
        corrupt(what.to_string())
    }
}

pub(super) fn get<T: FromSqlOwned>(row: &Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| corrupt(error.to_string()))
}

/// A number that is never negative, out of a column. PostgreSQL knows signed numbers alone.
pub(super) fn natural(row: &Row, column: usize) -> Result<u64, StoreError> {
    let value: i64 = get(row, column)?;
    u64::try_from(value).map_err(|_| corrupt(format!("{value} where a number cannot be negative")))
}

/// A number into a column. Tokens stay below 2^53 and rows below 2^63; anything above is above all of them.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The rows of the `n`th statement of a flight.
pub(super) fn nth(answers: &[Vec<Row>], n: usize) -> Result<&[Row], StoreError> {
    answers
        .get(n)
        .map(Vec::as_slice)
        .ok_or_else(|| corrupt("the database answered fewer statements than it was sent"))
}

/// The one row of the `n`th statement of a flight.
pub(super) fn one(answers: &[Vec<Row>], n: usize) -> Result<&Row, StoreError> {
    nth(answers, n)?
        .first()
        .ok_or_else(|| corrupt("the database answered no row where there always is one"))
}

fn submission(row: &Row) -> Result<Submission, StoreError> {
    let outcome = match get::<Option<String>>(row, 12)? {
        None => None,
        Some(text) => Some(Outcome::parse(&text).ok_or_else(|| corrupt(format!("{text} is no outcome")))?),
    };
    Ok(Submission {
        seq: natural(row, 0)?,
        submission_id: get(row, 1)?,
        payout_id: get(row, 2)?,
        account_id: get(row, 3)?,
        token: FencingToken::from_store(natural(row, 4)?).map_err(|error| corrupt(error.to_string()))?,
        idempotency_key: get(row, 5)?,
        client_reference: get(row, 6)?,
        amount_minor: get(row, 7)?,
        currency: get(row, 8)?,
        body_hash: get(row, 9)?,
        intent_at: UnixMillis(get(row, 10)?),
        forwarded_at: get::<Option<i64>>(row, 11)?.map(UnixMillis),
        outcome,
        actor: get(row, 13)?,
        cause: get(row, 14)?,
        rail_reference: get(row, 15)?,
        decline_reason: get(row, 16)?,
        outcome_at: get::<Option<i64>>(row, 17)?.map(UnixMillis),
        fencing_enforced: get(row, 18)?,
    })
}

/// The submissions that the `n`th statement of a flight answered.
pub(super) fn submissions_of(answers: &[Vec<Row>], n: usize) -> Result<Vec<Submission>, StoreError> {
    nth(answers, n)?.iter().map(submission).collect()
}

/// The most telling of the submissions that the `n`th statement of a flight answered.
pub(super) fn telling(answers: &[Vec<Row>], n: usize) -> Result<Option<Submission>, StoreError> {
    Ok(crate::decide::most_telling(&submissions_of(answers, n)?).cloned())
}

/// The payout that the `n`th statement of a flight answered.
pub(super) fn known(answers: &[Vec<Row>], n: usize) -> Result<Known, StoreError> {
    let Some(row) = nth(answers, n)?.first() else {
        return Ok(Known::Missing);
    };
    Ok(Known::Payout(Payout {
        account_id: get(row, 0)?,
        amount_minor: get(row, 1)?,
        currency: get(row, 2)?,
        creditor: get(row, 3)?,
        state: get(row, 4)?,
        // A token that no lock store can have minted is nobody's.
        claim_token: get::<Option<i64>>(row, 5)?.and_then(|token| u64::try_from(token).ok()),
        rail_reference: get(row, 6)?,
    }))
}

/// Where the payout that the `n`th statement of a flight answered stands. A later statement than the one that locks it.
pub(super) fn settled(answers: &[Vec<Row>], n: usize) -> Result<Settled, StoreError> {
    let Some(row) = nth(answers, n)?.first() else {
        return Ok(Settled::No);
    };
    Ok(Settled::of(&get::<String>(row, 0)?, get(row, 1)?))
}

pub(super) async fn read_of_payout(
    transactions: &Transactions,
    payout_id: &str,
    within: Duration,
) -> Result<Option<Submission>, StoreError> {
    let params: [Param<'_>; 1] = [(&payout_id, Type::TEXT)];
    let answers = transactions.read(within, &[(OF_PAYOUT, &params)]).await?;
    telling(&answers, 0)
}

pub(super) async fn list(
    transactions: &Transactions,
    filter: OutcomeFilter,
    after: u64,
    limit: u32,
    within: Duration,
) -> Result<Vec<Submission>, StoreError> {
    let (after, limit) = (signed(after), i64::from(limit));
    let mut params: Vec<Param<'_>> = vec![(&after, Type::INT8), (&limit, Type::INT8)];
    let outcome;
    let sql = match filter {
        OutcomeFilter::All => submissions!("WHERE seq > $1 ORDER BY seq LIMIT $2"),
        OutcomeFilter::None => submissions!("WHERE seq > $1 AND outcome IS NULL ORDER BY seq LIMIT $2"),
        OutcomeFilter::Is(wanted) => {
            outcome = wanted.as_str();
            params.push((&outcome, Type::TEXT));
            submissions!("WHERE seq > $1 AND outcome = $3 ORDER BY seq LIMIT $2")
        }
    };
    let answers = transactions.read(within, &[(sql, &params)]).await?;
    submissions_of(&answers, 0)
}

/// The newest lookups of a payout, oldest first.
pub(super) async fn lookups(
    transactions: &Transactions,
    payout_id: &str,
    limit: u32,
    within: Duration,
) -> Result<Vec<Lookup>, StoreError> {
    let limit = i64::from(limit);
    let params: [Param<'_>; 2] = [(&payout_id, Type::TEXT), (&limit, Type::INT8)];
    let sql = "SELECT at, verdict, executions, rail_reference
                 FROM rail_lookup WHERE payout_id = $1 ORDER BY at DESC, lookup_id DESC LIMIT $2";
    let answers = transactions.read(within, &[(sql, &params)]).await?;
    let mut newest = nth(&answers, 0)?
        .iter()
        .map(|row| {
            Ok(Lookup {
                at: UnixMillis(get(row, 0)?),
                verdict: get(row, 1)?,
                executions: natural(row, 2)?,
                rail_reference: get(row, 3)?,
            })
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    newest.reverse();
    Ok(newest)
}

macro_rules! exceptions {
    ($rest:literal) => {
        concat!(
            "SELECT exception_id, payout_id, at, kind, detail, closed_by, closed_at, closed_reason FROM rail_exception ",
            $rest
        )
    };
}

/// One exception.
pub(super) const EXCEPTION: &str = exceptions!("WHERE exception_id = $1");

/// The same, to be changed.
pub(super) const EXCEPTION_LOCKED: &str = exceptions!("WHERE exception_id = $1 FOR UPDATE");

/// The exceptions that the `n`th statement of a flight answered.
pub(super) fn exceptions_of(answers: &[Vec<Row>], n: usize) -> Result<Vec<Exception>, StoreError> {
    nth(answers, n)?
        .iter()
        .map(|row| {
            Ok(Exception {
                seq: natural(row, 0)?,
                payout_id: get(row, 1)?,
                at: UnixMillis(get(row, 2)?),
                kind: get(row, 3)?,
                detail: get(row, 4)?,
                closed_by: get(row, 5)?,
                closed_at: get::<Option<i64>>(row, 6)?.map(UnixMillis),
                closed_reason: get(row, 7)?,
            })
        })
        .collect()
}

pub(super) async fn exceptions(
    transactions: &Transactions,
    filter: ExceptionFilter,
    after: u64,
    limit: u32,
    within: Duration,
) -> Result<Vec<Exception>, StoreError> {
    let (after, limit) = (signed(after), i64::from(limit));
    let params: [Param<'_>; 2] = [(&after, Type::INT8), (&limit, Type::INT8)];
    let sql = match filter {
        ExceptionFilter::All => exceptions!("WHERE exception_id > $1 ORDER BY exception_id LIMIT $2"),
        ExceptionFilter::Open => {
            exceptions!("WHERE exception_id > $1 AND closed_by IS NULL ORDER BY exception_id LIMIT $2")
        }
        ExceptionFilter::Closed => {
            exceptions!("WHERE exception_id > $1 AND closed_by IS NOT NULL ORDER BY exception_id LIMIT $2")
        }
    };
    exceptions_of(&transactions.read(within, &[(sql, &params)]).await?, 0)
}

pub(super) async fn exception(
    transactions: &Transactions,
    seq: u64,
    within: Duration,
) -> Result<Option<Exception>, StoreError> {
    let seq = signed(seq);
    let params: [Param<'_>; 1] = [(&seq, Type::INT8)];
    let answers = transactions.read(within, &[(EXCEPTION, &params)]).await?;
    Ok(exceptions_of(&answers, 0)?.pop())
}
