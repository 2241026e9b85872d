//! The cases, on a real PostgreSQL: the same list, each in a schema of its own.

use crate::support::Bench;
use payment_store::Fencing;

/// How many random walks: each step is a commit on a server that other tests use at the same time.
const RUNS: u64 = 2;
/// What so few walks have not met, the other backend's many have.
const RUNS_MAX: u64 = RUNS;
/// What the walks have to have met.
const WANTED: &[&str] = &["claim: done", "claim: refused", "post: refused"];

async fn bench() -> Bench {
    Bench::on_pg(Fencing::Enforced).await
}

#[cfg(feature = "lab")]
async fn bench_with(fencing: Fencing) -> Bench {
    Bench::on_pg(fencing).await
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
