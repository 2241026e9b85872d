//! Sessions, leases and the lease clock as actors: the behaviour of the lock server, without HTTP.
//!
//! ```text
//!              ┌ SessionActor (one per session known here: where does it wait?)
//! LockService → LeaseClock ┤
//!              └ LeaseActor (one per live key: who is next?)
//!                  │ Mint / Release / Renew / Heartbeat … in lanes, one store call per kind at a time
//!                  ↓
//!              LockStore (who holds what, under which token: the only authority)
//! ```
//!
//! Owns: the fair queue of each key, the coalescing of requests into batches, the sweep of what is due, housekeeping.
//! Does not own: grants, tokens, expiry decisions (the store behind [`lock_api::LockStore`]); HTTP; what a key protects.
//! On failure: fails closed (FR-27). A store that does not answer means no grant; an unknown answer is looked up and
//! given back before its caller is told.

mod answers;
mod callers;
mod config;
mod lane;
mod lease;
mod lease_clock;
mod metrics;
mod queue;
mod service;
mod session;
mod watches;

pub use answers::{Acquired, Granted, Refusal};
pub use config::Config;
pub use metrics::Metrics;
pub use service::{AcquireCall, LockService};
