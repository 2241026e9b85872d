//! The payment store: accounts, payouts, the ledger, and fence point (a).
//!
//! ```text
//! Command ─▶ one transaction: lock the account ─▶ judge the token ─▶ re-read the payout ─▶ look at the rail's evidence ─▶ write ─▶ Answer
//! ```
//!
//! Owns: `account`, `payout`, `payout_transition`, `ledger_entry`, `idempotency`, `pay_lineage` and the audit trail
//! (contract C1.2); the state machine ([`TRANSITIONS`]); every predicate of C1.6 at point (a). A verb is one
//! transaction: either all of it is durable before its answer, or nothing is.
//! Does not own: grants (the lock row), `rail_high_water` and submissions (the rail row). The rail's outcomes are read,
//! never written, and never guessed: where they cannot be read, evidence is missing.
//! On failure: a refusal is an outcome in `Ok` and changed nothing. An error says whether the verb may have happened
//! ([`lock_api::StoreError`]); repeating the same verb under the same token is always safe, because it replays.

mod checks;
mod command;
mod decide;
mod evidence;
mod fencing;
mod model;
mod once;
mod outcome;
mod pg;
mod spi;
mod sqlite;
mod state;

pub use command::{ByHand, Command, Resolution, Verb};
pub use evidence::{Evidence, RailOutcome, Submission};
pub use fencing::Fencing;
pub use model::{
    Account, AuditRow, Creditor, LedgerRow, NewAccount, NewCredit, NewPayout, Payout, PayoutQuery, RaiseFence, Tally,
    TransitionRow, VerifyReport,
};
pub use outcome::{CreateOutcome, FenceOutcome, FenceReason, Refusal, StepOutcome};
pub use pg::{PgPayments, PgPaymentsOptions, SCHEMA_VERSION};
pub use spi::{PaymentFuture, PaymentStore};
pub use sqlite::SqlitePayments;
pub use state::{PayoutState, Step, TRANSITIONS, TokenRule, Transition, allowed_from, transition};

/// The largest amount or balance in minor units: 2^53 − 1, so that it survives a JSON number in any language.
pub const AMOUNT_MAX_MINOR: i64 = (1 << 53) - 1;
