//! The payment resource's HTTP gateway: P1–P10 over the payment row.
//!
//! ```text
//! request → extractors → bounds (400) → Payments::apply or the store → outcome → body, or a problem with the code's fields
//! ```
//!
//! Owns: the routes of C3.4, the bounds of what they take (C3.1), the exports of the ledger, the process.
//! Does not own: any decision about a payout, any state.
//! On failure: a refusal is a problem naming its code and changed nothing; 503 says whether it may have been done, and
//! the same request may be sent again, because every step replays.

mod bounds;
mod config;
mod document;
mod export;
mod render;
mod routes;
mod run;

pub use config::{Config, RunError};
pub use document::openapi;
pub use routes::{PaymentResource, configure};
pub use run::{migrate, run, run_and_tell};
