//! paydb on SQLite: `payment.db`, written here, beside `rail.db`, which the rail proxy writes and which is attached
//! read-only, so that a process stopped inside a transaction of one file never stops the writer of the other (C1.2).
//!
//! `BEGIN IMMEDIATE` locks the whole file, so the row locks that the contract speaks of are taken by beginning. The
//! statements still stand in the contract's order, which is the order a database with row locks needs.

mod ambiguous;
mod barrier;
mod cancel;
mod claim;
mod create;
mod escalate;
mod fail;
mod ledger;
mod list;
mod post;
mod rail_view;
mod resolve;
mod rows;
mod seen;
mod verify;

use crate::decide::{self, Seen};
use crate::{
    Account, AuditRow, Command, CreateOutcome, FenceOutcome, Fencing, LedgerRow, NewAccount, NewCredit, NewPayout,
    PaymentFuture, PaymentStore, Payout, PayoutQuery, RaiseFence, StepOutcome, Tally, TransitionRow, Verb,
    VerifyReport,
};
use host_kit::{Clock, Faults, Host, fault_point};
use lock_api::StoreError;
use sql_kit::{Attach, BatchSizes, Decision, Location, Migration, SqlError, Sqlite, SqliteOptions};
use std::path::Path;
use std::time::Duration;

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "payments",
    sql: include_str!("../../migrations/0001_payments.sql"),
}];

/// How long a start waits for another process that migrates the same file.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

/// paydb's payment half in a directory.
#[derive(Clone)]
pub struct SqlitePayments {
    sql: Sqlite,
    /// A second reader of the same file, for what reads all of it: nobody else waits behind that.
    whole: Sqlite,
    fencing: Fencing,
    clock: Clock,
    faults: Faults,
}

/// One transaction's view: the connection, the switch, and the instant that is recorded with what it writes.
pub(crate) struct Tx<'a> {
    pub(crate) db: &'a rusqlite::Connection,
    pub(crate) fencing: Fencing,
    pub(crate) now_ms: i64,
    pub(crate) faults: &'a Faults,
}

impl SqlitePayments {
    /// Opens `payment.db` in `directory`, making both where they are missing. `rail.db` beside it is read as soon as
    /// it exists.
    ///
    /// # Errors
    /// [`StoreError`] when the file cannot be opened, is damaged, or is of an unknown schema.
    pub async fn open(directory: &Path, fencing: Fencing, host: &Host) -> Result<Self, StoreError> {
        let mut options = SqliteOptions::new(Location::File(directory.join("payment.db")), MIGRATIONS);
        options.attach = vec![Attach {
            schema: rail_view::SCHEMA,
            path: directory.join("rail.db"),
        }];
        Self::with(options, fencing, host).await
    }

    /// A store in memory, for simulations. There is no rail beside it, so evidence is always missing.
    ///
    /// # Errors
    /// [`StoreError`] when SQLite refuses.
    pub async fn in_memory(fencing: Fencing, host: &Host) -> Result<Self, StoreError> {
        Self::with(SqliteOptions::new(Location::Memory, MIGRATIONS), fencing, host).await
    }

    async fn with(options: SqliteOptions, fencing: Fencing, host: &Host) -> Result<Self, StoreError> {
        let sql = Sqlite::open(options.clone(), host).map_err(store_error)?;
        let whole = match options.location {
            Location::File(_) => Sqlite::open(options, host).map_err(store_error)?,
            Location::Memory => sql.clone(),
        };
        let store = Self {
            sql,
            whole,
            fencing,
            clock: host.clock.clone(),
            faults: host.faults.clone(),
        };
        let lineage = host.ids.uuid();
        let lineage = store
            .write(OPEN_WITHIN, move |tx| rows::lineage(tx, &lineage).map(Decision::Commit))
            .await?;
        tracing::info!(
            event = "paydb_opened",
            lineage,
            fencing_enforced = fencing.is_enforced()
        );
        Ok(store)
    }

    /// How many jobs shared a commit.
    #[must_use]
    pub fn batch_sizes(&self) -> BatchSizes {
        self.sql.batch_sizes()
    }

    /// The switch this store was opened with.
    #[must_use]
    pub const fn fencing(&self) -> Fencing {
        self.fencing
    }

    /// Closes the files. What was answered is durable without it.
    pub async fn close(self) {
        self.whole.close().await;
        self.sql.close().await;
    }

    async fn write<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(&Tx<'_>) -> rusqlite::Result<Decision<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (fencing, clock, faults) = (self.fencing, self.clock.clone(), self.faults.clone());
        self.sql
            .write(within, move |db| {
                job(&Tx {
                    db,
                    fencing,
                    now_ms: clock.wall_ms(),
                    faults: &faults,
                })
            })
            .await
            .map_err(store_error)
    }

    async fn read<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.sql.read(within, job).await.map_err(store_error)
    }
}

fn store_error(error: SqlError) -> StoreError {
    match error {
        SqlError::Unavailable(detail) => StoreError::Unavailable { detail },
        SqlError::Unknown(detail) => StoreError::Unknown { detail },
        SqlError::Corrupt(detail) => StoreError::Corrupt { detail },
    }
}

/// A refusal: whatever the transaction did so far is undone.
fn refuse(refusal: crate::Refusal) -> rusqlite::Result<Decision<StepOutcome>> {
    Ok(Decision::Rollback(StepOutcome::Refused(refusal)))
}

/// Records a step that was written, and answers the payout as it is now.
fn done(tx: &Tx<'_>, command: &Command, seen: &Seen) -> rusqlite::Result<Decision<StepOutcome>> {
    let payout_id = &seen.payout.payout_id;
    rows::record(
        tx,
        &rows::Done {
            step: command.step(),
            payout_id,
            account_id: &seen.payout.account_id,
            from: Some(seen.payout.state),
            token: command.token().map(lock_api::FencingToken::get),
            actor: decide::actor(command),
            detail: decide::detail(command, &seen.evidence),
        },
    )?;
    rows::payout_again(tx, payout_id).map(|now| Decision::Commit(StepOutcome::Done(Box::new(now))))
}

fn apply(tx: &Tx<'_>, command: &Command) -> rusqlite::Result<Decision<StepOutcome>> {
    match &command.verb {
        Verb::Claim {
            token,
            expected_version,
        } => {
            let outcome = claim::claim(tx, command, *token, *expected_version);
            fault_point!(tx.faults, "payment_resource.before_claim_commit");
            outcome
        }
        Verb::Post { token, rail_reference } => {
            let outcome = post::post(tx, command, *token, rail_reference);
            fault_point!(tx.faults, "payment_resource.before_post_commit");
            outcome
        }
        Verb::Fail { token, reason } => {
            let outcome = fail::fail(tx, command, *token, reason);
            fault_point!(tx.faults, "payment_resource.before_fail_commit");
            outcome
        }
        Verb::Ambiguous { token, reason } => {
            let outcome = ambiguous::ambiguous(tx, command, *token, reason);
            fault_point!(tx.faults, "payment_resource.before_ambiguous_commit");
            outcome
        }
        Verb::Resolve {
            token,
            outcome,
            rail_reference,
            by_hand,
        } => {
            let outcome = resolve::resolve(
                tx,
                command,
                *token,
                *outcome,
                rail_reference.as_deref(),
                by_hand.as_ref(),
            );
            fault_point!(tx.faults, "payment_resource.before_resolve_commit");
            outcome
        }
        Verb::Cancel { .. } => {
            let outcome = cancel::cancel(tx, command);
            fault_point!(tx.faults, "payment_resource.before_cancel_commit");
            outcome
        }
    }
}

impl SqlitePayments {
    fn after(&self, command: &Command) {
        match command.verb {
            Verb::Claim { .. } => fault_point!(self.faults, "payment_resource.after_claim_commit"),
            Verb::Post { .. } => fault_point!(self.faults, "payment_resource.after_post_commit"),
            Verb::Fail { .. } => fault_point!(self.faults, "payment_resource.after_fail_commit"),
            Verb::Ambiguous { .. } => fault_point!(self.faults, "payment_resource.after_ambiguous_commit"),
            Verb::Resolve { .. } => fault_point!(self.faults, "payment_resource.after_resolve_commit"),
            Verb::Cancel { .. } => fault_point!(self.faults, "payment_resource.after_cancel_commit"),
        }
    }
}

impl PaymentStore for SqlitePayments {
    fn open_account(&self, new: NewAccount, within: Duration) -> PaymentFuture<'_, CreateOutcome<Account>> {
        Box::pin(async move {
            let outcome = self
                .write(within, move |tx| {
                    let outcome = create::open_account(tx, &new);
                    fault_point!(tx.faults, "payment_resource.before_account_commit");
                    outcome
                })
                .await;
            fault_point!(self.faults, "payment_resource.after_account_commit");
            outcome
        })
    }

    fn credit(&self, new: NewCredit, within: Duration) -> PaymentFuture<'_, CreateOutcome<Account>> {
        Box::pin(async move {
            let outcome = self
                .write(within, move |tx| {
                    let outcome = create::credit(tx, &new);
                    fault_point!(tx.faults, "payment_resource.before_credit_commit");
                    outcome
                })
                .await;
            fault_point!(self.faults, "payment_resource.after_credit_commit");
            outcome
        })
    }

    fn account(&self, account_id: String, within: Duration) -> PaymentFuture<'_, Option<Account>> {
        Box::pin(self.read(within, move |db| rows::account(db, &account_id)))
    }

    fn accounts(&self, after: Option<String>, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<Account>> {
        Box::pin(self.read(within, move |db| list::accounts(db, after.as_deref(), limit)))
    }

    fn create_payout(&self, new: NewPayout, within: Duration) -> PaymentFuture<'_, CreateOutcome<Payout>> {
        Box::pin(async move {
            let outcome = self
                .write(within, move |tx| {
                    let outcome = create::create_payout(tx, &new);
                    fault_point!(tx.faults, "payment_resource.before_payout_commit");
                    outcome
                })
                .await;
            fault_point!(self.faults, "payment_resource.after_payout_commit");
            outcome
        })
    }

    fn apply(&self, command: Command, within: Duration) -> PaymentFuture<'_, StepOutcome> {
        Box::pin(async move {
            let job = command.clone();
            let outcome = self.write(within, move |tx| apply(tx, &job)).await;
            self.after(&command);
            outcome
        })
    }

    fn raise_fence(&self, request: RaiseFence, within: Duration) -> PaymentFuture<'_, FenceOutcome> {
        Box::pin(async move {
            let outcome = self
                .write(within, move |tx| {
                    let outcome = barrier::raise(tx, &request);
                    fault_point!(tx.faults, "payment_resource.before_fence_commit");
                    outcome
                })
                .await;
            fault_point!(self.faults, "payment_resource.after_fence_commit");
            outcome
        })
    }

    fn payout(&self, payout_id: String, within: Duration) -> PaymentFuture<'_, Option<Payout>> {
        Box::pin(self.read(within, move |db| rows::payout(db, &payout_id)))
    }

    fn payouts(&self, query: PayoutQuery, within: Duration) -> PaymentFuture<'_, Vec<Payout>> {
        Box::pin(self.read(within, move |db| list::payouts(db, &query)))
    }

    fn history(
        &self,
        payout_id: String,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> PaymentFuture<'_, Option<Vec<TransitionRow>>> {
        Box::pin(self.read(within, move |db| list::history(db, &payout_id, after, limit)))
    }

    fn ledger(
        &self,
        account_id: Option<String>,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> PaymentFuture<'_, Vec<LedgerRow>> {
        Box::pin(self.read(within, move |db| ledger::list(db, account_id.as_deref(), after, limit)))
    }

    fn last_entry(&self, within: Duration) -> PaymentFuture<'_, u64> {
        Box::pin(self.read(within, ledger::last))
    }

    fn verify(&self, within: Duration) -> PaymentFuture<'_, VerifyReport> {
        Box::pin(async move { self.whole.read(within, verify::verify).await.map_err(store_error) })
    }

    fn audit(&self, after: u64, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<AuditRow>> {
        Box::pin(self.read(within, move |db| list::audit(db, after, limit)))
    }

    fn escalate(&self, since_max_ms: i64, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<String>> {
        Box::pin(async move {
            let escalated = self
                .write(within, move |tx| {
                    let escalated = escalate::escalate(tx, since_max_ms, limit);
                    fault_point!(tx.faults, "payment_resource.before_escalate_commit");
                    escalated
                })
                .await;
            fault_point!(self.faults, "payment_resource.after_escalate_commit");
            escalated
        })
    }

    fn tally(&self, within: Duration) -> PaymentFuture<'_, Tally> {
        let clock = self.clock.clone();
        Box::pin(self.read(within, move |db| list::tally(db, clock.wall_ms())))
    }

    fn health(&self, within: Duration) -> PaymentFuture<'_, ()> {
        Box::pin(async move { self.sql.health(within).await.map_err(store_error) })
    }
}
