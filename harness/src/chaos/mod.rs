//! Chaos: the catalogue of faults, and what injects, observes and undoes them.
//!
//! ```text
//! catalogue ── Kind: name, where it is available, how it is undone
//!     │ drawn by a seed, or each in turn
//!     ▼
//! driver: healthy? ▶ inject ▶ observe its effect ▶ (hold) ▶ undo ▶ healthy? ──▶ FaultRecord
//! ```
//!
//! Owns: every fault of every level, one file a level; the order of a fault's life; what is recorded of it.
//! Does not own: the load that runs meanwhile, and the verdicts.
//! On failure: a fault whose effect was never seen, or after which the stack did not become healthy, makes the run
//! impossible or failed; it is never passed over.

pub mod actor;
pub mod catalogue;
pub mod driver;
pub mod etcd;
pub mod fault;
mod lineage;
pub mod link;
pub mod network;
pub mod operator;
mod own;
pub mod postgres;
pub mod process;
pub mod rail;
