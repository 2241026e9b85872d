//! The seam behind which every backend of paydb stands.
//!
//! **Atomic.** Each verb is one transaction. The statement that takes the account's row lock comes first; whatever must
//! see the previous holder's work (the sum of holds, the payout's state, the rail's evidence) is read by a later
//! statement (C1.6). Locks are taken in the order account, payout, submission. A refused verb leaves no trace.
//!
//! **Deadlines.** `within` is the time left to the caller. When it passes, the call fails with
//! [`StoreError::Unavailable`] if it certainly was not done and with [`StoreError::Unknown`] if it may have been. An
//! unknown verb is repeated under the same token: it replays what was done, or does it now. Busy, serialization and
//! deadlock errors of a database are retried inside (case P13), never shown as a refusal.
//!
//! **Several processes** may serve one database: an implementation keeps no state of its own between calls.

use crate::{
    Account, AuditRow, Command, CreateOutcome, FenceOutcome, LedgerRow, NewAccount, NewCredit, NewPayout, Payout,
    PayoutQuery, RaiseFence, StepOutcome, Tally, TransitionRow, VerifyReport,
};
use core::future::Future;
use core::pin::Pin;
use core::time::Duration;
use lock_api::StoreError;

/// What a store call returns. Dropping it before it is ready abandons the wait, not the work.
pub type PaymentFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Accounts, payouts and their ledger.
pub trait PaymentStore: Send + Sync {
    /// P1: opens an account; the same again answers the existing one.
    fn open_account(&self, new: NewAccount, within: Duration) -> PaymentFuture<'_, CreateOutcome<Account>>;

    /// P1: adds money, once per idempotency key.
    fn credit(&self, new: NewCredit, within: Duration) -> PaymentFuture<'_, CreateOutcome<Account>>;

    /// P1: one account, with its holds.
    fn account(&self, account_id: String, within: Duration) -> PaymentFuture<'_, Option<Account>>;

    /// P1: accounts in order of id, after `after`, at most `limit`.
    fn accounts(&self, after: Option<String>, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<Account>>;

    /// P2: makes a payout, once per idempotency key.
    fn create_payout(&self, new: NewPayout, within: Duration) -> PaymentFuture<'_, CreateOutcome<Payout>>;

    /// P4–P9: one verb on one payout, in one transaction.
    fn apply(&self, command: Command, within: Duration) -> PaymentFuture<'_, StepOutcome>;

    /// P10: raises the mark to T − 1 and puts a barrier there.
    fn raise_fence(&self, request: RaiseFence, within: Duration) -> PaymentFuture<'_, FenceOutcome>;

    /// P3: one payout.
    fn payout(&self, payout_id: String, within: Duration) -> PaymentFuture<'_, Option<Payout>>;

    /// P3: payouts in order of creation.
    fn payouts(&self, query: PayoutQuery, within: Duration) -> PaymentFuture<'_, Vec<Payout>>;

    /// P3: a payout's steps in order, after `after`, at most `limit`; none when there is no such payout.
    fn history(
        &self,
        payout_id: String,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> PaymentFuture<'_, Option<Vec<TransitionRow>>>;

    /// P9: ledger entries in order, after `after`, at most `limit`; of one account or of all.
    fn ledger(
        &self,
        account_id: Option<String>,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> PaymentFuture<'_, Vec<LedgerRow>>;

    /// The place of the last ledger entry, 0 when there is none: where an export ends.
    fn last_entry(&self, within: Duration) -> PaymentFuture<'_, u64>;

    /// P9: whether the ledger holds together (INV-03, FR-25), read in one snapshot.
    fn verify(&self, within: Duration) -> PaymentFuture<'_, VerifyReport>;

    /// P9: facts in order, after `after`, at most `limit`.
    fn audit(&self, after: u64, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<AuditRow>>;

    /// Marks payouts that are ambiguous since `since_max_ms` or longer, at most `limit`. Answers their ids. An instant
    /// of an ambiguous payout that stands in the future, because the clock was ahead when it was recorded, is put to now.
    fn escalate(&self, since_max_ms: i64, limit: u32, within: Duration) -> PaymentFuture<'_, Vec<String>>;

    /// How many payouts stand where. Its cost does not grow with the number of settled payouts.
    fn tally(&self, within: Duration) -> PaymentFuture<'_, Tally>;

    /// Whether the store can be written, undamaged.
    fn health(&self, within: Duration) -> PaymentFuture<'_, ()>;
}
