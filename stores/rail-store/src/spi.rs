//! The seam behind which the rail's store stands. This page says what is atomic and what a failed call may have done.
//!
//! **Atomicity.** Each call is one transaction. Several processes may call on one store: nothing is cached.
//!
//! **Deadlines.** `within` is the time left to the caller. A call fails with [`lock_api::StoreError::Unavailable`] if it
//! certainly did nothing and with [`lock_api::StoreError::Unknown`] if it may have taken effect. A submit that is
//! `Unknown` may have committed its intent: it is never forwarded, and read as ambiguous.
//!
//! **Refusals** are answers, not errors.

use crate::{
    AccountFence, Ack, AckOutcome, CloseException, CloseOutcome, Evidence, Exception, FenceOutcome, FenceRequest,
    ForwardClaim, Gauges, HighWater, Lookup, LookupOutcome, LookupRecord, Outcome, Submission, SubmitOutcome,
    SubmitRequest,
};
use lock_api::{FencingToken, StoreFuture};
use std::time::Duration;

/// Which submissions a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeFilter {
    /// All.
    All,
    /// Those with this outcome.
    Is(Outcome),
    /// Intents without outcome.
    None,
}

/// Which exceptions a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionFilter {
    /// All.
    All,
    /// Those that nobody has closed.
    Open,
    /// Those that were closed.
    Closed,
}

/// The rail's ledger of submissions and the account's marks: fence point (c).
pub trait RailStore: Send + Sync {
    /// R1: judges the request in the order shape, replay, mark, existing submission, payout, and commits the intent
    /// with the advanced mark (FR-16, FR-18, FR-19). A refusal changes nothing, the mark included.
    fn submit(&self, request: SubmitRequest, within: Duration) -> StoreFuture<'_, SubmitOutcome>;

    /// The forwarder's last step before it opens a connection: `forwarded_at` is set once, over an intent without
    /// outcome alone. `Unknown` is no permission to send.
    fn claim_forward(&self, submission_id: String, within: Duration) -> StoreFuture<'_, ForwardClaim>;

    /// What the forwarder learned. Answers the submission as it is recorded afterwards, which may be better known from
    /// elsewhere. Calling it again with the same evidence changes nothing.
    fn record_answer(
        &self,
        submission_id: String,
        evidence: Evidence,
        within: Duration,
    ) -> StoreFuture<'_, Option<Submission>>;

    /// R2: a payout's submission. Where there are several (fence off), the one that says most about the money.
    fn submission(&self, payout_id: String, within: Duration) -> StoreFuture<'_, Option<Submission>>;

    /// R2: submissions in the order of their intents, after `after`, at most `limit`.
    fn submissions(
        &self,
        filter: OutcomeFilter,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<Submission>>;

    /// R3: whether the rail must be asked about this payout although it has no submission: paydb was restored, the rail
    /// was not asked since, and until it was R1 answers [`SubmitOutcome::RailUnasked`]. False where the store cannot tell
    /// a restored file.
    fn rail_unasked(&self, payout_id: String, within: Duration) -> StoreFuture<'_, bool>;

    /// R3: records what a lookup saw and concludes what may be concluded (C1.2 Evidence), under the row's lock. None
    /// where the payout has no submission, and the rail need not be asked all the same.
    fn record_lookup(&self, lookup: LookupRecord, within: Duration) -> StoreFuture<'_, Option<LookupOutcome>>;

    /// R3: the newest `limit` lookups of a payout, oldest first.
    fn lookups(&self, payout_id: String, limit: u32, within: Duration) -> StoreFuture<'_, Vec<Lookup>>;

    /// R4: records an asynchronous ack.
    fn record_ack(&self, ack: Ack, within: Duration) -> StoreFuture<'_, AckOutcome>;

    /// R5: an account's mark.
    fn high_water(&self, account_id: String, within: Duration) -> StoreFuture<'_, HighWater>;

    /// R6: raises the mark to one below the token and reads the payout's submission in the same transaction.
    fn fence_submission(&self, request: FenceRequest, within: Duration) -> StoreFuture<'_, FenceOutcome>;

    /// R7: raises the mark to one below the token.
    fn fence_account(&self, account_id: String, token: FencingToken, within: Duration)
    -> StoreFuture<'_, AccountFence>;

    /// R7: what waits or waited for a human, in order, after `after`, at most `limit`.
    fn exceptions(
        &self,
        filter: ExceptionFilter,
        after: u64,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<Exception>>;

    /// R8: one exception.
    fn exception(&self, seq: u64, within: Duration) -> StoreFuture<'_, Option<Exception>>;

    /// R8: closes an exception, once (case P23). Nothing else changes: not the payout, not the submission.
    fn close_exception(&self, close: CloseException, within: Duration) -> StoreFuture<'_, CloseOutcome>;

    /// Looks for payouts that were settled as FAILED while the rail acknowledged them in the same moment, and as POSTED
    /// while it declined them (two files have no common transaction), raises an exception for each, and answers what the metrics show.
    fn survey(&self, within: Duration) -> StoreFuture<'_, Gauges>;

    /// Whether the store can do its work.
    fn health(&self, within: Duration) -> StoreFuture<'_, ()>;
}
