//! The proof: scenarios on a running system, faults, histories, verdicts, reports, and the benchmark.
//!
//! ```text
//! scenario ──starts, stops, kills──▶ stack ──children──▶ dlock <component>…
//!    │ asks over HTTP                                        │ each client writes its history
//!    ▼                                                       ▼
//! evidence ◀──exported tables, the rail's own book── histories
//!    │
//!    ▼
//! invariant INV-01..08, LOCK-… ──verdicts──▶ report ──▶ demo
//! ```
//!
//! Owns: starting stacks, injecting faults, collecting evidence, judging it, measuring.
//! Does not own: any part of the system it judges; it speaks HTTP and signals only. It never reads a database file.
//! On failure: what could not be run is an error (exit 2), what ran and was wrong is a failed verdict (exit 1).

pub mod bench;
pub mod chaos;
pub mod demo;
pub mod evidence;
pub mod history;
pub mod invariant;
pub mod linearizability;
pub mod model;
pub mod mutation;
pub mod progress;
pub mod report;
pub mod scenario;
pub mod servers;
pub mod stack;
pub mod traces;
pub mod up;
pub mod wire;
pub mod workdir;
