//! The rail submission: intent, forward once, outcome.
//!
//! ```text
//! Submit ─→ desk ─spawns→ submission: line in hand → intent │ → forwarded_at │ → the rail, once → outcome │ → answer
//! lookup ─→ the rail, read-only → rail_lookup and what may be concluded │          (│ = committed)
//! ```
//!
//! Owns: the order of those steps, what a rail's answer means (C3.7), when it may be asked again what it knows.
//! Does not own: the predicates of the fence (`rail-store`), HTTP (the gateway; the rail is reached through the port
//! [`Rail`]), any retry of a submission: there is none, on no error and on no restart (FR-20).
//! On failure: an intent without outcome is ambiguous to everyone who reads it.

mod desk;
mod lookup;
mod metrics;
mod rail;
mod rail_submission;
mod watch;

pub use desk::{AwaitQuiet, RailDesk, SUBMISSIONS_MAX};
pub use lookup::Reconciler;
pub use metrics::RailMetrics;
pub use rail::{Line, NoAnswer, Rail, RailBookEntry, RailCall, RailReply, Unprepared, classify, read_book};
pub use rail_submission::{RailSubmission, SubmissionLimits, Submit, Submitted};
pub use watch::RailWatch;
