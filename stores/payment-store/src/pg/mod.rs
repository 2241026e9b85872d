//! paydb on PostgreSQL 16: any number of payment resources on one database, none of them with state of its own.
//!
//! ```text
//! verb ─▶ flight 1: BEGIN, account's row lock, payout's row lock, then reads ─▶ decide ─▶ flight 2: turnstile, writes, COMMIT ─▶ answer
//! ```
//!
//! Owns: the statements. The schema, its rights and its triggers are made by `dlock migrate` as another role; here only
//! the version is looked at. `rail_submission` is read, never written: this role has no right to.
//! On failure: before the second flight nothing was done; its COMMIT sent and not answered is `Unknown`. What the database
//! rolled back for another transaction's sake is done again inside the deadline (case P13).
//!
//! Every verb reads in statements later than the one that locked the account's row, and its fenced write repeats in its
//! predicate what was decided. Writes of one verb hang together: the history's row names the payout through what the
//! fenced write must have left, so that a write that found nothing rolls everything back by itself, COMMIT sent or not.

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
mod record;
mod resolve;
mod rows;
mod seen;
mod verify;

use crate::{
    Account, AuditRow, Command, CreateOutcome, FenceOutcome, Fencing, LedgerRow, NewAccount, NewCredit, NewPayout,
    PaymentFuture, PaymentStore, Payout, PayoutQuery, RaiseFence, StepOutcome, Tally, TransitionRow, Verb,
    VerifyReport,
};
use host_kit::{Faults, Host, fault_point};
use lock_api::StoreError;
use pg_kit::{Access, Effect, Pooled, Stopped, Transaction, Transactions, check_name, check_schema};
use std::time::Duration;

/// The version of paydb's schema that this build works with: the newest of `stores/pay-schema`.
pub const SCHEMA_VERSION: i32 = 3;

/// How long a start waits for the database.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// How to open paydb's payment half on PostgreSQL.
#[derive(Clone, Debug)]
pub struct PgPaymentsOptions {
    /// How the database is reached, as the role of the payment resource.
    pub access: Access,
    /// The schema that `dlock migrate` made. 1 to 40 characters of `[a-z0-9_]`.
    pub schema: String,
}

impl PgPaymentsOptions {
    /// paydb at a URL, in the schema `pay`.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            access: Access::at(url),
            schema: "pay".to_owned(),
        }
    }
}

/// paydb's payment half in a schema of a database. Cheap to clone.
#[derive(Clone)]
pub struct PgPayments {
    database: Transactions,
    fencing: Fencing,
    faults: Faults,
}

/// What a verb has besides its transaction.
#[derive(Clone, Copy)]
struct At<'a> {
    fencing: Fencing,
    faults: &'a Faults,
}

impl PgPayments {
    /// Looks at the schema, which it never changes.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the database cannot be reached, or the schema is missing or older than this build;
    /// [`StoreError::Corrupt`] when it is newer.
    pub async fn open(options: PgPaymentsOptions, fencing: Fencing, host: &Host) -> Result<Self, StoreError> {
        let schema = &options.schema;
        check_name("schema", schema)?;
        let pool = Pooled::new(&options.access)?;
        check_schema(&pool, schema, "pay_schema", SCHEMA_VERSION, OPEN_WITHIN).await?;
        let database = Transactions::new(pool, schema, host.random.clone());
        let known = database
            .read(
                OPEN_WITHIN,
                &[(
                    "SELECT lineage, pay_lineage_stands(),
                            has_table_privilege('rail_high_water', 'SELECT, INSERT, UPDATE, DELETE')
                            OR has_table_privilege('rail_submission', 'INSERT, UPDATE, DELETE')
                       FROM pay_lineage WHERE id = 1",
                    &[],
                )],
            )
            .await?;
        let Some(known) = known.first().and_then(|rows| rows.first()) else {
            return Err(StoreError::Corrupt {
                detail: format!("the schema {schema} has lost its lineage"),
            });
        };
        let (lineage, stands, can_too_much): (String, bool, bool) = (known.get(0), known.get(1), known.get(2));
        tracing::info!(
            event = "paydb_opened",
            lineage,
            fencing_enforced = fencing.is_enforced()
        );
        if !stands {
            tracing::warn!(
                event = "paydb_restored",
                lineage,
                "paydb was restored or moved since its lineage was written"
            );
        }
        if can_too_much {
            tracing::warn!(
                event = "role_too_strong",
                schema,
                "this role may write what is the rail proxy's alone: the two fence points are not independent"
            );
        }
        Ok(Self {
            database,
            fencing,
            faults: host.faults.clone(),
        })
    }

    /// The switch this store was opened with.
    #[must_use]
    pub const fn fencing(&self) -> Fencing {
        self.fencing
    }

    /// Connections now open, and how many of them are idle.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        self.database.pool().connections()
    }

    /// Closes the connections; calls fail from now on.
    pub fn close(&self) {
        self.database.pool().close();
    }

    const fn at(&self) -> At<'_> {
        At {
            fencing: self.fencing,
            faults: &self.faults,
        }
    }

    async fn write<T, Fut>(&self, within: Duration, attempt: impl FnMut(Transaction) -> Fut) -> Result<T, StoreError>
    where
        Fut: Future<Output = Result<T, Stopped>>,
    {
        self.database.run(Effect::Writes, within, attempt).await
    }
}

/// A refusal, or whatever else leaves no trace.
async fn undone<T>(transaction: Transaction, answer: T) -> Result<T, Stopped> {
    transaction.rollback().await;
    Ok(answer)
}

async fn refuse(transaction: Transaction, refusal: crate::Refusal) -> Result<StepOutcome, Stopped> {
    undone(transaction, StepOutcome::Refused(refusal)).await
}

async fn replay(transaction: Transaction, payout: Payout) -> Result<StepOutcome, Stopped> {
    undone(transaction, StepOutcome::Replayed(Box::new(payout))).await
}

async fn apply(transaction: Transaction, at: At<'_>, command: &Command) -> Result<StepOutcome, Stopped> {
    match &command.verb {
        Verb::Claim {
            token,
            expected_version,
        } => claim::claim(transaction, at, command, *token, *expected_version).await,
        Verb::Post { token, rail_reference } => post::post(transaction, at, command, *token, rail_reference).await,
        Verb::Fail { token, reason } => fail::fail(transaction, at, command, *token, reason).await,
        Verb::Ambiguous { token, .. } => ambiguous::ambiguous(transaction, at, command, *token).await,
        Verb::Resolve {
            token,
            outcome,
            rail_reference,
            by_hand,
        } => {
            resolve::resolve(
                transaction,
                at,
                command,
                *token,
                *outcome,
                rail_reference.as_deref(),
                by_hand.as_ref(),
            )
            .await
        }
        Verb::Cancel { .. } => cancel::cancel(transaction, at, command).await,
    }
}

impl PgPayments {
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

impl PaymentStore for PgPayments {
    fn open_account(&self, new: NewAccount, within: Duration) -> PaymentFuture<'_, CreateOutcome<Account>> {
        Box::pin(async move {
            let outcome = self.write(within, |tx| create::open_account(tx, self.at(), &new)).await;
            fault_point!(self.faults, "payment_resource.after_account_commit");
            outcome
        })
    }

    fn credit(&self, new: NewCredit, within: Duration) -> PaymentFuture<'_, CreateOutcome<Account>> {
        Box::pin(async move {
            let outcome = self.write(within, |tx| create::credit(tx, self.at(), &new)).await;
            fault_point!(self.faults, "payment_resource.after_credit_commit");
            outcome
        })
    }

    fn account(&self, account_id: String, within: Duration) -> PaymentFuture<'_, Option<Account>> {
        Box::pin(async move { list::account(&self.database, &account_id, within).await })
    }

    fn accounts(&self, after: Option<String>, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<Account>> {
        Box::pin(async move { list::accounts(&self.database, after.as_deref(), limit, within).await })
    }

    fn create_payout(&self, new: NewPayout, within: Duration) -> PaymentFuture<'_, CreateOutcome<Payout>> {
        Box::pin(async move {
            let outcome = self
                .write(within, |tx| create::create_payout(tx, self.at(), &new))
                .await;
            fault_point!(self.faults, "payment_resource.after_payout_commit");
            outcome
        })
    }

    fn apply(&self, command: Command, within: Duration) -> PaymentFuture<'_, StepOutcome> {
        Box::pin(async move {
            let outcome = self.write(within, |tx| apply(tx, self.at(), &command)).await;
            self.after(&command);
            outcome
        })
    }

    fn raise_fence(&self, request: RaiseFence, within: Duration) -> PaymentFuture<'_, FenceOutcome> {
        Box::pin(async move {
            let outcome = self.write(within, |tx| barrier::raise(tx, self.at(), &request)).await;
            fault_point!(self.faults, "payment_resource.after_fence_commit");
            outcome
        })
    }

    fn payout(&self, payout_id: String, within: Duration) -> PaymentFuture<'_, Option<Payout>> {
        Box::pin(async move { list::payout(&self.database, &payout_id, within).await })
    }

    fn payouts(&self, query: PayoutQuery, within: Duration) -> PaymentFuture<'_, Vec<Payout>> {
        Box::pin(async move { list::payouts(&self.database, &query, within).await })
    }

    fn history(
        &self,
        payout_id: String,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> PaymentFuture<'_, Option<Vec<TransitionRow>>> {
        Box::pin(async move { list::history(&self.database, &payout_id, after, limit, within).await })
    }

    fn ledger(
        &self,
        account_id: Option<String>,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> PaymentFuture<'_, Vec<LedgerRow>> {
        Box::pin(async move { ledger::list(&self.database, account_id.as_deref(), after, limit, within).await })
    }

    fn last_entry(&self, within: Duration) -> PaymentFuture<'_, u64> {
        Box::pin(async move { ledger::last(&self.database, within).await })
    }

    fn verify(&self, within: Duration) -> PaymentFuture<'_, VerifyReport> {
        Box::pin(async move { verify::verify(&self.database, within).await })
    }

    fn audit(&self, after: u64, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<AuditRow>> {
        Box::pin(async move { list::audit(&self.database, after, limit, within).await })
    }

    fn escalate(&self, since_max_ms: i64, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<String>> {
        Box::pin(async move {
            let escalated = self
                .write(within, |tx| escalate::escalate(tx, self.at(), since_max_ms, limit))
                .await;
            fault_point!(self.faults, "payment_resource.after_escalate_commit");
            escalated
        })
    }

    fn tally(&self, within: Duration) -> PaymentFuture<'_, Tally> {
        Box::pin(async move { list::tally(&self.database, within).await })
    }

    fn health(&self, within: Duration) -> PaymentFuture<'_, ()> {
        // A standby, or a server that takes no writes, refuses to begin.
        Box::pin(async move {
            self.database
                .health("SELECT 1 FROM pay_lineage WHERE id = 1", within)
                .await
        })
    }
}
