//! paydb's rail half on SQLite: `rail.db`, written here, beside `payment.db`, which payment-resource writes and which is
//! attached read-only, so that a process stopped inside a transaction of one file never stops the writer of the other
//! (C1.2).
//!
//! `BEGIN IMMEDIATE` locks the whole file, so the row locks that the contract speaks of are taken by beginning. The
//! statements still stand in the contract's order, which is the order a database with row locks needs.

mod ack;
mod epoch;
mod fence;
mod forward;
mod high_water;
mod lookup;
mod payout_view;
mod rows;
mod submit;
mod survey;

use crate::{
    AccountFence, Ack, AckOutcome, CloseException, CloseOutcome, Evidence, Exception, ExceptionFilter, FenceOutcome,
    FenceRequest, Fencing, ForwardClaim, Gauges, HighWater, Lookup, LookupOutcome, LookupRecord, OutcomeFilter,
    RailStore, Submission, SubmitOutcome, SubmitRequest,
};
use host_kit::{Clock, Host};
use lock_api::{FencingToken, StoreError, StoreFuture, UnixMillis};
use sql_kit::{Attach, BatchSizes, Decision, Location, Migration, SqlError, Sqlite, SqliteOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "rail",
        sql: include_str!("../../migrations/001_rail.sql"),
    },
    Migration {
        version: 2,
        name: "exceptions",
        sql: include_str!("../../migrations/002_exceptions.sql"),
    },
];

/// Where the store lives and whose payouts it looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteRailStoreOptions {
    /// Where the submissions live.
    pub location: Location,
    /// The payment row's file, read only. May not exist yet.
    pub payments: PathBuf,
    /// The kill switch.
    pub fencing: Fencing,
}

impl SqliteRailStoreOptions {
    /// paydb's directory: `rail.db` beside `payment.db`.
    #[must_use]
    pub fn directory(directory: &Path, fencing: Fencing) -> Self {
        Self {
            location: Location::File(directory.join("rail.db")),
            payments: directory.join("payment.db"),
            fencing,
        }
    }
}

/// The rail's ledger in `rail.db`. Several processes may have it open. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SqliteRailStore {
    sql: Sqlite,
    fencing: Fencing,
    clock: Clock,
}

/// One transaction's view: the connection, the switch, and the instant that is recorded with what it writes.
struct Tx<'a> {
    db: &'a rusqlite::Connection,
    fencing: Fencing,
    now: UnixMillis,
}

impl SqliteRailStore {
    /// Opens the store and brings its schema up to date. Blocks: for the start of a process.
    ///
    /// # Errors
    /// [`StoreError`] when the file cannot be opened, is damaged, or is of an unknown schema.
    pub fn open(options: SqliteRailStoreOptions, host: &Host) -> Result<Self, StoreError> {
        let mut sqlite = SqliteOptions::new(options.location, MIGRATIONS);
        sqlite.noted_at_restore = Some(epoch::LAST_LOOKUP);
        sqlite.attach = vec![Attach {
            schema: payout_view::SCHEMA,
            path: options.payments,
        }];
        Ok(Self {
            sql: Sqlite::open(sqlite, host).map_err(store_error)?,
            fencing: options.fencing,
            clock: host.clock.clone(),
        })
    }

    /// The switch this store was opened with.
    #[must_use]
    pub const fn fencing(&self) -> Fencing {
        self.fencing
    }

    /// How many jobs shared a commit.
    #[must_use]
    pub fn batch_sizes(&self) -> BatchSizes {
        self.sql.batch_sizes()
    }

    /// Closes the file. What was answered is durable without it.
    pub async fn close(self) {
        self.sql.close().await;
    }

    fn write<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(&Tx<'_>) -> rusqlite::Result<Decision<T>> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (fencing, clock) = (self.fencing, self.clock.clone());
        Box::pin(async move {
            self.sql
                .write(within, move |db| {
                    job(&Tx {
                        db,
                        fencing,
                        now: UnixMillis(clock.wall_ms()),
                    })
                })
                .await
                .map_err(store_error)
        })
    }

    fn read<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        Box::pin(async move { self.sql.read(within, job).await.map_err(store_error) })
    }
}

fn malformed(what: crate::payout::Malformed) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(what))
}

fn store_error(error: SqlError) -> StoreError {
    match error {
        SqlError::Unavailable(detail) => StoreError::Unavailable { detail },
        SqlError::Unknown(detail) => StoreError::Unknown { detail },
        SqlError::Corrupt(detail) => StoreError::Corrupt { detail },
    }
}

impl RailStore for SqliteRailStore {
    fn submit(&self, request: SubmitRequest, within: Duration) -> StoreFuture<'_, SubmitOutcome> {
        self.write(within, move |tx| {
            let outcome = submit::submit(tx, &request)?;
            // A refusal leaves the mark where it was (C1.6).
            Ok(match outcome {
                SubmitOutcome::Intent(_) => Decision::Commit(outcome),
                refused => Decision::Rollback(refused),
            })
        })
    }

    fn claim_forward(&self, submission_id: String, within: Duration) -> StoreFuture<'_, ForwardClaim> {
        self.write(within, move |tx| {
            forward::claim(tx, &submission_id).map(Decision::Commit)
        })
    }

    fn record_answer(
        &self,
        submission_id: String,
        evidence: Evidence,
        within: Duration,
    ) -> StoreFuture<'_, Option<Submission>> {
        self.write(within, move |tx| {
            forward::record(tx, &submission_id, &evidence).map(Decision::Commit)
        })
    }

    fn submission(&self, payout_id: String, within: Duration) -> StoreFuture<'_, Option<Submission>> {
        self.read(within, move |db| rows::of_payout(db, &payout_id))
    }

    fn submissions(
        &self,
        filter: OutcomeFilter,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<Submission>> {
        self.read(within, move |db| rows::list(db, filter, after, limit))
    }

    fn rail_unasked(&self, payout_id: String, within: Duration) -> StoreFuture<'_, bool> {
        self.read(within, move |db| epoch::rail_unasked(db, &payout_id))
    }

    fn record_lookup(&self, lookup: LookupRecord, within: Duration) -> StoreFuture<'_, Option<LookupOutcome>> {
        self.write(within, move |tx| lookup::record(tx, &lookup).map(Decision::Commit))
    }

    fn record_ack(&self, ack: Ack, within: Duration) -> StoreFuture<'_, AckOutcome> {
        self.write(within, move |tx| ack::record(tx, &ack).map(Decision::Commit))
    }

    fn high_water(&self, account_id: String, within: Duration) -> StoreFuture<'_, HighWater> {
        self.read(within, move |db| high_water::read(db, &account_id))
    }

    fn fence_submission(&self, request: FenceRequest, within: Duration) -> StoreFuture<'_, FenceOutcome> {
        self.write(within, move |tx| {
            let outcome = fence::submission(tx, &request)?;
            Ok(match outcome {
                FenceOutcome::Fenced { .. } => Decision::Commit(outcome),
                refused => Decision::Rollback(refused),
            })
        })
    }

    fn fence_account(
        &self,
        account_id: String,
        token: FencingToken,
        within: Duration,
    ) -> StoreFuture<'_, AccountFence> {
        self.write(within, move |tx| {
            fence::account(tx, &account_id, token).map(Decision::Commit)
        })
    }

    fn lookups(&self, payout_id: String, limit: u32, within: Duration) -> StoreFuture<'_, Vec<Lookup>> {
        self.read(within, move |db| rows::lookups(db, &payout_id, limit))
    }

    fn exceptions(
        &self,
        filter: ExceptionFilter,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<Exception>> {
        self.read(within, move |db| rows::exceptions(db, filter, after, limit))
    }

    fn exception(&self, seq: u64, within: Duration) -> StoreFuture<'_, Option<Exception>> {
        self.read(within, move |db| rows::exception_by_id(db, seq))
    }

    fn close_exception(&self, close: CloseException, within: Duration) -> StoreFuture<'_, CloseOutcome> {
        self.write(within, move |tx| {
            let outcome = rows::close_exception(tx, &close)?;
            Ok(match outcome {
                CloseOutcome::Closed(_) => Decision::Commit(outcome),
                unchanged => Decision::Rollback(unchanged),
            })
        })
    }

    fn survey(&self, within: Duration) -> StoreFuture<'_, Gauges> {
        Box::pin(async move {
            // Looked for among readers first: nothing is written where nothing is found.
            let found = self.read(within, survey::settled_against_the_rail).await?;
            if !found.is_empty() {
                self.write(within, move |tx| survey::raise(tx, &found).map(Decision::Commit))
                    .await?;
            }
            self.read(within, survey::gauges).await
        })
    }

    fn health(&self, within: Duration) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.sql.health(within).await.map_err(store_error) })
    }
}
