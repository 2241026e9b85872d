//! The behaviour of the payment row: one actor per payout at work, its supervisor, and the clock that watches the SLA.
//!
//! ```text
//! Payments::apply ─▶ Payouts (supervisor) ─▶ PayoutActor: one step of its payout at a time ─▶ one store transaction ─▶ answer
//! SlaClock ─▶ escalates what has been ambiguous for too long, and refreshes the gauges
//! ```
//!
//! Owns: the order in which one process works on one payout; the metrics of the row; the escalation flag; the state
//! machine's documentation, generated from its one table ([`payment_store::TRANSITIONS`]).
//! Does not own: any decision about a payout (the store's transaction decides, because other processes may work on the
//! same payout); any state that outlives a message; HTTP.
//! On failure: an actor that panics is rebuilt and nothing is lost, since nothing is kept; its askers are told that the
//! step may have been done, and repeating it under the same token is safe.

mod diagram;
mod metrics;
mod payout;
mod payouts;
mod service;
mod sla_clock;

pub use diagram::state_machine_page;
pub use metrics::{Metrics, POINT};
pub use payout::{Apply, PayoutActor, StepError};
pub use payouts::Payouts;
pub use service::Payments;
pub use sla_clock::SlaClock;
