//! UC-08, the lock service is unavailable, then back.
//!
//! It is killed while a worker runs. Payouts that arrive meanwhile wait: no grant, no side effect (FR-27). Then it is
//! started again on the same store and address, and everything is paid; tokens go on where they were.

use super::Cx;
use crate::report::ScenarioReport;
use crate::scenario::SETTLE_WITHIN;
use crate::stack::{Hurt, LOCK_SERVER, NodeState, Role, RunError, StackSpec, WorkerSpec, await_node};
use http_contract::payment::PayoutState;
use std::time::Duration;

/// How long the service stays away: several polls and attempts of the worker.
const OUTAGE: Duration = Duration::from_millis(1_500);

/// Both fences on.
#[must_use]
pub fn spec() -> StackSpec {
    StackSpec::quick().patient()
}

/// Runs it.
///
/// # Errors
/// When it cannot be run.
pub async fn run(cx: Cx<'_>) -> Result<ScenarioReport, RunError> {
    cx.account("alpha", 1_000_000).await?;
    cx.account("beta", 1_000_000).await?;
    cx.payout("uc08-before", "alpha", 11_000).await?;
    cx.stack.worker(WorkerSpec::new("W1", Role::Both)).await?;
    cx.await_state("uc08-before", PayoutState::Posted).await?;
    cx.step("one payout is paid");
    cx.stack.hurt(LOCK_SERVER, Hurt::Kill)?;
    await_node(cx.stack, LOCK_SERVER, "ended", SETTLE_WITHIN, NodeState::ended).await?;
    cx.payout("uc08-during-1", "alpha", 12_000).await?;
    cx.payout("uc08-during-2", "beta", 13_000).await?;
    cx.step("the lock service is killed; two more payouts arrive");
    // Nothing may happen, so there is no state to await: the worker is given time to do wrong.
    cx.host().clock.sleep(OUTAGE).await;
    for payout in ["uc08-during-1", "uc08-during-2"] {
        cx.check(
            format!("{payout} without a lock service"),
            PayoutState::Pending,
            cx.look(payout).await?.state,
        );
        cx.check(format!("{payout}: executions"), 0, cx.executions(payout).await?);
    }
    cx.check("the worker", "Running", format!("{:?}", cx.stack.state("W1")?));
    cx.step("nothing was paid without a grant; the payouts wait");
    cx.stack.restart(LOCK_SERVER).await?;
    cx.step("the lock service is back on the same store");
    for payout in ["uc08-during-1", "uc08-during-2"] {
        cx.await_state(payout, PayoutState::Posted).await?;
    }
    cx.step("both payouts are paid");
    let (mut report, evidence) = cx
        .finish(
            "UC-08",
            "the lock service was killed: payouts waited, and were paid when it was back",
        )
        .await?;
    for payout in ["uc08-before", "uc08-during-1", "uc08-during-2"] {
        report.compare(
            format!("{payout}: executions, legs"),
            (1, 2),
            (evidence.executions(payout), evidence.legs(payout)),
        );
    }
    Ok(report)
}
