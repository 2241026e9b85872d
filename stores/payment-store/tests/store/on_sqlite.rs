//! The cases, on files.

use crate::support::Bench;
use payment_store::Fencing;

/// How many random walks.
const RUNS: u64 = 24;
/// Walks that have not met everything by then go on: what is rare may be late, but not absent.
const RUNS_MAX: u64 = 20 * RUNS;
/// What the walks have to have met.
const WANTED: &[&str] = &[
    "claim: done",
    "post: done",
    "fail: done",
    "ambiguous: done",
    "resolve_posted: done",
    "resolve_failed: done",
    "post: replayed",
    "claim: refused",
    "post: refused",
];

async fn bench() -> Bench {
    Bench::on_sqlite(Fencing::Enforced).await
}

#[cfg(feature = "lab")]
async fn bench_with(fencing: Fencing) -> Bench {
    Bench::on_sqlite(fencing).await
}

#[path = "barrier.rs"]
mod barrier;
#[path = "claim.rs"]
mod claim;
#[path = "create.rs"]
mod create;
#[path = "interleavings.rs"]
mod interleavings;
#[path = "ledger.rs"]
mod ledger;
#[cfg(feature = "lab")]
#[path = "matrix.rs"]
mod matrix;
#[path = "resolve.rs"]
mod resolve;
#[path = "settle.rs"]
mod settle;
