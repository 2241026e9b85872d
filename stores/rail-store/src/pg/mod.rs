//! paydb's rail half on PostgreSQL 16: any number of proxies on one database, none of them with state of its own.
//!
//! ```text
//! verb → BEGIN, the mark's row lock, what must be seen behind it ─▶ decide ─▶ writes, COMMIT ─▶ answer
//!        └──────────────── one round trip ────────────────────┘               └ one more ─┘
//! ```
//!
//! Owns: the statements, one file per fenced one, in the order the contract gives them: the statement that takes the
//! mark's row lock first, what must see the previous holder's work later (READ COMMITTED). Locks are taken account,
//! payout, submission.
//! Does not own: the tables (`pay-schema` makes them, as another role), how a transaction is sent and tried again
//! (`pg-kit`), what is decided ([`crate::decide`], the same for every backend).
//! On failure: before COMMIT was sent nothing was done, and what the database rolled back for another transaction's sake
//! is tried again inside (case P13); a first submission that meets a concurrent one is tried again and then sees its row
//! (case P11). An unanswered COMMIT is `Unknown`, and so never a permission to send.
//!
//! A payout that is settled as FAILED and an acknowledgement of the same moment cannot miss each other here: evidence is
//! recorded under a share lock of the payout's row, which the payment row locks before it reads the evidence.

mod ack;
mod close;
mod epoch;
mod fence;
mod forward;
mod high_water;
mod lookup;
mod rows;
mod submit;
mod survey;
#[cfg(test)]
mod tests;
mod writes;

use crate::{
    AccountFence, Ack, AckOutcome, CloseException, CloseOutcome, Evidence, Exception, ExceptionFilter, FenceOutcome,
    FenceRequest, Fencing, ForwardClaim, Gauges, HighWater, Lookup, LookupOutcome, LookupRecord, OutcomeFilter,
    RailStore, Submission, SubmitOutcome, SubmitRequest,
};
use host_kit::{Clock, Host};
use lock_api::{FencingToken, StoreError, StoreFuture, UnixMillis};
use pg_kit::{Access, Effect, Pooled, Stopped, Transaction, Transactions, check_name, check_schema};
use std::fmt;
use std::future::Future;
use std::time::Duration;

/// The version of paydb's schema that this program works on.
pub const SCHEMA_VERSION: i32 = 3;

/// How long opening may take.
const OPEN_WITHIN: Duration = Duration::from_secs(30);

/// Where paydb is.
#[derive(Clone, Debug)]
pub struct PgRailOptions {
    /// How the database is reached, as the rail's role.
    pub access: Access,
    /// paydb's schema, made by `dlock migrate`. 1 to 40 characters of `[a-z0-9_]`.
    pub schema: String,
    /// The kill switch.
    pub fencing: Fencing,
}

/// The rail's ledger on PostgreSQL. Cheap to clone.
#[derive(Clone)]
pub struct PgRail {
    transactions: Transactions,
    fencing: Fencing,
    clock: Clock,
}

impl fmt::Debug for PgRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgRail")
            .field("fencing", &self.fencing)
            .finish_non_exhaustive()
    }
}

/// What a verb needs beside its transaction.
#[derive(Clone, Copy)]
struct At {
    fencing: Fencing,
    /// The instant that is recorded with what is written.
    now: UnixMillis,
}

impl PgRail {
    /// Opens the store. The schema is never made or changed here: its version is looked at.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the database cannot be reached, or the schema is missing or too old;
    /// [`StoreError::Corrupt`] where it is newer than this program.
    pub async fn open(options: PgRailOptions, host: &Host) -> Result<Self, StoreError> {
        check_name("schema", &options.schema)?;
        let pool = Pooled::new(&options.access)?;
        check_schema(&pool, &options.schema, "pay_schema", SCHEMA_VERSION, OPEN_WITHIN).await?;
        Ok(Self {
            transactions: Transactions::new(pool, &options.schema, host.random.clone()),
            fencing: options.fencing,
            clock: host.clock.clone(),
        })
    }

    /// Connections now open, and how many of them are idle.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        self.transactions.pool().connections()
    }

    /// Gives its connections up: other handles find the store unavailable.
    pub fn close(&self) {
        self.transactions.pool().close();
    }

    /// One transaction that writes, tried again where that is harmless.
    async fn write<T, F, Fut>(&self, within: Duration, mut verb: F) -> Result<T, StoreError>
    where
        F: FnMut(Transaction, At) -> Fut,
        Fut: Future<Output = Result<T, Stopped>>,
    {
        self.transactions
            .run(Effect::Writes, within, |transaction| {
                let at = At {
                    fencing: self.fencing,
                    now: UnixMillis(self.clock.wall_ms()),
                };
                verb(transaction, at)
            })
            .await
    }

    /// As [`Self::write`], for a verb that looks at the history's epoch: one that finds the database restored is made
    /// again after the new epoch was recorded.
    async fn write_in_epoch<T, F, Fut>(&self, within: Duration, mut verb: F) -> Result<T, StoreError>
    where
        F: FnMut(Transaction, At) -> Fut,
        Fut: Future<Output = Result<Option<T>, Stopped>>,
    {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let left = pg_kit::left_until(deadline);
            if let Some(answer) = self.write(left, &mut verb).await? {
                return Ok(answer);
            }
            self.write(pg_kit::left_until(deadline), epoch::begin).await?;
        }
    }
}

impl RailStore for PgRail {
    fn submit(&self, request: SubmitRequest, within: Duration) -> StoreFuture<'_, SubmitOutcome> {
        Box::pin(async move {
            let request = &request;
            self.write_in_epoch(within, |tx, at| submit::submit(tx, at, request))
                .await
        })
    }

    fn claim_forward(&self, submission_id: String, within: Duration) -> StoreFuture<'_, ForwardClaim> {
        Box::pin(async move {
            let id = &submission_id;
            self.write(within, |tx, at| forward::claim(tx, at, id)).await
        })
    }

    fn record_answer(
        &self,
        submission_id: String,
        evidence: Evidence,
        within: Duration,
    ) -> StoreFuture<'_, Option<Submission>> {
        Box::pin(async move {
            let (id, evidence) = (&submission_id, &evidence);
            self.write(within, |tx, at| forward::record(tx, at, id, evidence)).await
        })
    }

    fn submission(&self, payout_id: String, within: Duration) -> StoreFuture<'_, Option<Submission>> {
        Box::pin(async move { rows::read_of_payout(&self.transactions, &payout_id, within).await })
    }

    fn submissions(
        &self,
        filter: OutcomeFilter,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<Submission>> {
        Box::pin(async move { rows::list(&self.transactions, filter, after, limit, within).await })
    }

    fn rail_unasked(&self, payout_id: String, within: Duration) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let payout_id = &payout_id;
            self.write_in_epoch(within, |tx, _| epoch::rail_unasked(tx, payout_id))
                .await
        })
    }

    fn record_lookup(&self, lookup: LookupRecord, within: Duration) -> StoreFuture<'_, Option<LookupOutcome>> {
        Box::pin(async move {
            let lookup = &lookup;
            self.write_in_epoch(within, |tx, at| lookup::record(tx, at, lookup))
                .await
        })
    }

    fn record_ack(&self, ack: Ack, within: Duration) -> StoreFuture<'_, AckOutcome> {
        Box::pin(async move {
            let ack = &ack;
            self.write(within, |tx, at| ack::record(tx, at, ack)).await
        })
    }

    fn high_water(&self, account_id: String, within: Duration) -> StoreFuture<'_, HighWater> {
        Box::pin(async move { high_water::read(&self.transactions, &account_id, within).await })
    }

    fn fence_submission(&self, request: FenceRequest, within: Duration) -> StoreFuture<'_, FenceOutcome> {
        Box::pin(async move {
            let request = &request;
            self.write_in_epoch(within, |tx, at| fence::submission(tx, at, request))
                .await
        })
    }

    fn fence_account(
        &self,
        account_id: String,
        token: FencingToken,
        within: Duration,
    ) -> StoreFuture<'_, AccountFence> {
        Box::pin(async move {
            if !self.fencing.is_enforced() {
                let mark = high_water::read(&self.transactions, &account_id, within).await?;
                return Ok(AccountFence::Fenced(mark));
            }
            let account_id = &account_id;
            self.write(within, |tx, at| fence::account(tx, at, account_id, token))
                .await
        })
    }

    fn lookups(&self, payout_id: String, limit: u32, within: Duration) -> StoreFuture<'_, Vec<Lookup>> {
        Box::pin(async move { rows::lookups(&self.transactions, &payout_id, limit, within).await })
    }

    fn exceptions(
        &self,
        filter: ExceptionFilter,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<Exception>> {
        Box::pin(async move { rows::exceptions(&self.transactions, filter, after, limit, within).await })
    }

    fn exception(&self, seq: u64, within: Duration) -> StoreFuture<'_, Option<Exception>> {
        Box::pin(async move { rows::exception(&self.transactions, seq, within).await })
    }

    fn close_exception(&self, close: CloseException, within: Duration) -> StoreFuture<'_, CloseOutcome> {
        Box::pin(async move {
            let close = &close;
            self.write(within, |tx, at| close::close(tx, at, close)).await
        })
    }

    fn survey(&self, within: Duration) -> StoreFuture<'_, Gauges> {
        Box::pin(async move {
            let (found, gauges) = survey::look(&self.transactions, within).await?;
            if found.is_empty() {
                return Ok(gauges);
            }
            let found = &found;
            self.write(within, |tx, at| survey::raise(tx, at, found)).await?;
            survey::look(&self.transactions, within).await.map(|(_, gauges)| gauges)
        })
    }

    fn health(&self, within: Duration) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.transactions
                .health("SELECT 1 FROM rail_high_water LIMIT 1", within)
                .await
        })
    }
}
