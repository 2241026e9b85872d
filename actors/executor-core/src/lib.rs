//! The payout worker and the reconciler.
//!
//! ```text
//! poller: CLAIMED before PENDING → worker: acquire payout:{A} → re-read → (R6 →) claim → submit once → post │ fail │ ambiguous → release
//! reconciler: RAIL_AMBIGUOUS → ask the rail (R3, no grant) → acquire → re-read → resolve → release
//! ```
//!
//! Owns: the order of the steps of a payout, the decision what comes after each answer, who in this process works on
//! what, the record of what this client saw.
//! Does not own: fencing (it presents the token and obeys), money, the lock; any transport (the ports are implemented by
//! the gateway).
//! On failure: whatever is not certain leaves the payout as it stands, CLAIMED at worst; the next holder of the account's
//! lock decides by the payout's state and the submission's record, never by elapsed time (FR-24). Without a grant nothing
//! is done (FR-27); a submission is sent once per claim, never again (C3.8).

mod decide;
mod executor;
mod flow;
mod history;
mod metrics;
mod poller;
mod ports;
mod reconciler;
mod worker;

pub use decide::{AfterSubmit, Evidence, Final, Reread, after_reread, after_submit, evidence};
pub use executor::{Executor, ExecutorConfig, Roles};
pub use flow::Ending;
pub use history::{History, Invocation, Line};
pub use metrics::ExecutorMetrics;
pub use ports::{Payments, PortError, PortFuture, Rail};

/// Every fault point of the executor: before and after each durable step and each send (`debug.fault-points`). A test
/// holds this list against the source; a crash test stands for each in the harness.
pub const FAULT_POINTS: &[&str] = &[
    "executor.before_acquire",
    "executor.after_acquire",
    "executor.before_fence",
    "executor.after_fence",
    "executor.before_claim",
    "executor.after_claim",
    "executor.before_submit",
    "executor.after_submit",
    "executor.before_post",
    "executor.after_post",
    "executor.before_fail",
    "executor.after_fail",
    "executor.before_ambiguous",
    "executor.after_ambiguous",
    "executor.before_release",
    "executor.after_release",
    "executor.before_lookup",
    "executor.after_lookup",
    "executor.before_resolve",
    "executor.after_resolve",
];

/// The lock key of an account's payouts.
#[must_use]
pub fn lock_key_text(account_id: &str) -> String {
    format!("payout:{account_id}")
}
