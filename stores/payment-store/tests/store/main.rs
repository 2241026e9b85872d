//! The payment store against contract C1.6: every predicate, the cases, the negative control, kill and stop.

#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod barrier;
mod claim;
mod create;
mod interleavings;
mod ledger;
#[cfg(feature = "lab")]
mod matrix;
mod processes;
mod resolve;
mod settle;
mod support;
