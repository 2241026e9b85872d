//! What a verb writes: statements collected while it decides, sent together with COMMIT.

use super::rows::{corrupt, get, nth, one, signed};
use crate::decide::Raise;
use crate::{CloseException, LookupRecord, Outcome, Submission, decide};
use lock_api::{StoreError, UnixMillis};
use pg_kit::{Param, Stopped, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

struct Write {
    sql: &'static str,
    params: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

/// The statements of a verb's last flight, in the order of the locks.
#[derive(Default)]
pub(super) struct Writes(Vec<Write>);

/// What the last flight answered.
pub(super) struct Written(Vec<Vec<Row>>);

impl Write {
    fn new(sql: &'static str) -> Self {
        Self {
            sql,
            params: Vec::new(),
        }
    }

    fn text(mut self, value: impl Into<String>) -> Self {
        self.params.push((Box::new(value.into()), Type::TEXT));
        self
    }

    fn maybe_text(mut self, value: Option<&str>) -> Self {
        self.params.push((Box::new(value.map(str::to_owned)), Type::TEXT));
        self
    }

    fn int(mut self, value: i64) -> Self {
        self.params.push((Box::new(value), Type::INT8));
        self
    }

    fn maybe_at(mut self, value: Option<UnixMillis>) -> Self {
        self.params.push((Box::new(value.map(|at| at.0)), Type::INT8));
        self
    }

    fn bool(mut self, value: bool) -> Self {
        self.params.push((Box::new(value), Type::BOOL));
        self
    }
}

impl Writes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, write: Write) -> usize {
        self.0.push(write);
        self.0.len() - 1
    }

    /// An intent, a final NOT_SENT, or what a lookup found. Answers its place, for [`Written::seq`].
    pub(super) fn insert(&mut self, row: &Submission) -> usize {
        let write = Write::new(
            "INSERT INTO rail_submission (submission_id, payout_id, account_id, token, idempotency_key,
                 client_reference, amount_minor, currency, body_hash, intent_at, forwarded_at, outcome, actor, cause,
                 rail_reference, decline_reason, outcome_at, fencing_enforced)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) RETURNING seq",
        )
        .text(&row.submission_id)
        .text(&row.payout_id)
        .text(&row.account_id)
        .int(signed(row.token.get()))
        .text(&row.idempotency_key)
        .text(&row.client_reference)
        .int(row.amount_minor)
        .text(&row.currency)
        .maybe_text(row.body_hash.as_deref())
        .int(row.intent_at.0)
        .maybe_at(row.forwarded_at)
        .maybe_text(row.outcome.map(Outcome::as_str))
        .maybe_text(row.actor.as_deref())
        .maybe_text(row.cause.as_deref())
        .maybe_text(row.rail_reference.as_deref())
        .maybe_text(row.decline_reason.as_deref())
        .maybe_at(row.outcome_at)
        .bool(row.fencing_enforced);
        self.push(write)
    }

    /// What became of a submission.
    pub(super) fn outcome(&mut self, row: &Submission) {
        let write = Write::new(
            "UPDATE rail_submission
                SET outcome = $2, cause = $3, rail_reference = $4, decline_reason = $5, outcome_at = $6
              WHERE submission_id = $1",
        )
        .text(&row.submission_id)
        .maybe_text(row.outcome.map(Outcome::as_str))
        .maybe_text(row.cause.as_deref())
        .maybe_text(row.rail_reference.as_deref())
        .maybe_text(row.decline_reason.as_deref())
        .maybe_at(row.outcome_at);
        self.push(write);
    }

    /// The last step before the socket. Answers its place, for [`Written::is_done`].
    pub(super) fn forwarded(&mut self, submission_id: &str, now: UnixMillis) -> usize {
        let write = Write::new(
            "UPDATE rail_submission SET forwarded_at = $2
              WHERE submission_id = $1 AND outcome IS NULL AND forwarded_at IS NULL RETURNING seq",
        )
        .text(submission_id)
        .int(now.0);
        self.push(write)
    }

    /// An exception for a human. Answers its place, for [`Written::is_done`]: whether it is a new one.
    pub(super) fn raise(&mut self, payout_id: &str, raise: &Raise, now: UnixMillis) -> usize {
        let write = Write::new(
            "INSERT INTO rail_exception (payout_id, at, kind, detail) VALUES ($1, $2, $3, $4)
             ON CONFLICT (payout_id, kind, detail) DO NOTHING RETURNING exception_id",
        )
        .text(payout_id)
        .int(now.0)
        .text(raise.kind.as_str())
        .text(&raise.detail);
        self.push(write)
    }

    /// An exception's end.
    pub(super) fn close(&mut self, close: &CloseException, now: UnixMillis) {
        let write = Write::new(
            "UPDATE rail_exception SET closed_by = $2, closed_at = $3, closed_reason = $4 WHERE exception_id = $1",
        )
        .int(signed(close.seq))
        .text(&close.operator)
        .int(now.0)
        .text(&close.reason);
        self.push(write);
    }

    /// A lookup, of the epoch that stands when it is written.
    pub(super) fn lookup(&mut self, lookup: &LookupRecord, judged: &decide::lookup::Judged) {
        let write = Write::new(
            "INSERT INTO rail_lookup (lookup_id, payout_id, at, verdict, executions, rail_reference, saw_nothing, epoch)
             SELECT $1, $2, $3, $4, $5, $6, $7, epoch FROM pay_lineage WHERE id = 1",
        )
        .text(&lookup.lookup_id)
        .text(&lookup.payout_id)
        .int(lookup.asked_at.0)
        .text(judged.verdict.as_str())
        .int(signed(judged.executions))
        .maybe_text(judged.submission.as_ref().and_then(|now| now.rail_reference.as_deref()))
        .bool(judged.saw_nothing);
        self.push(write);
    }

    /// Sends them with COMMIT.
    pub(super) async fn commit(self, tx: Transaction) -> Result<Written, Stopped> {
        let params: Vec<Vec<Param<'_>>> = self
            .0
            .iter()
            .map(|write| {
                write
                    .params
                    .iter()
                    .map(|(value, kind)| -> Param<'_> { (&**value as &(dyn ToSql + Sync), kind.clone()) })
                    .collect()
            })
            .collect();
        let statements: Vec<_> = self
            .0
            .iter()
            .zip(&params)
            .map(|(write, params)| (write.sql, params.as_slice()))
            .collect();
        tx.commit(&statements).await.map(Written)
    }

    /// Sends them with COMMIT, or ends a transaction that has nothing to write.
    pub(super) async fn end(self, tx: Transaction) -> Result<Written, Stopped> {
        if self.is_empty() {
            tx.rollback().await;
            return Ok(Written(Vec::new()));
        }
        self.commit(tx).await
    }
}

impl Written {
    /// The place in the order of intents that an insert was given.
    pub(super) fn seq(&self, place: usize) -> Result<u64, StoreError> {
        let seq: i64 = get(one(&self.0, place)?, 0)?;
        u64::try_from(seq).map_err(|_| corrupt("a place below zero"))
    }

    /// Whether the statement at that place changed a row.
    pub(super) fn is_done(&self, place: usize) -> Result<bool, StoreError> {
        Ok(!nth(&self.0, place)?.is_empty())
    }
}
