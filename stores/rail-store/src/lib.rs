//! The ledger of submissions and the rail's high-water marks: fence point (c).
//!
//! ```text
//! submit: replay? → mark < T, raised to T → no submission of the payout → payout CLAIMED under T → intent │ commit
//! forward: forwarded_at, once │ commit → (the connection opens) → outcome │ commit
//! ```
//!
//! Owns: `rail_submission`, `rail_high_water`, `rail_exception`, `rail_lookup` (C1.2), the predicates of C1.6 at point
//! (c), and what counts as evidence (C3.7).
//! Does not own: payouts (read only, from the payment row's own file or table), the call to the rail, any retry.
//! On failure: a call says whether it may have taken effect; an intent without outcome is ambiguous to everyone.

mod decide;
mod fencing;
mod model;
mod payout;
mod pg;
mod settle;
mod spi;
mod sqlite;

pub use fencing::Fencing;
pub use model::{
    AccountFence, Ack, AckOutcome, CloseException, CloseOutcome, Evidence, Exception, ExceptionKind, Execution,
    FenceOutcome, FenceReason, FenceRequest, FencedOut, ForwardClaim, Gauges, HighWater, Lookup, LookupOutcome,
    LookupRecord, Outcome, Sighting, Source, Submission, SubmitOutcome, SubmitRequest, Verdict,
};
pub use pg::{PgRail, PgRailOptions, SCHEMA_VERSION};
pub use settle::{Settled, Settlement, settle};
pub use spi::{ExceptionFilter, OutcomeFilter, RailStore};
pub use sql_kit::Location;
pub use sqlite::{SqliteRailStore, SqliteRailStoreOptions};
