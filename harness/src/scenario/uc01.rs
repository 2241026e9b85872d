//! UC-01, the happy path: three payouts on two accounts, one of them declined by the rail.
//!
//! ```text
//! PENDING ─acquire T, re-read, claim T─▶ CLAIMED ─submit T, ACKED─▶ post T ─▶ POSTED ─release T
//!                                               └─submit T, DECLINED─▶ fail T ─▶ FAILED
//! ```

use super::Cx;
use crate::report::ScenarioReport;
use crate::stack::{Role, RunError, StackSpec, WorkerSpec};
use http_contract::payment::PayoutState;
use http_contract::rail::{FaultPlan, FaultRule};

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
    cx.account("beta", 500_000).await?;
    let plan = FaultPlan {
        rules: vec![FaultRule {
            client_reference: "uc01-declined".to_owned(),
            fault: "decline".to_owned(),
            times: None,
            latency_ms: None,
            reason: Some("account closed".to_owned()),
        }],
        ..FaultPlan::default()
    };
    cx.apis
        .stub
        .set_faults(&plan, &cx.apis.trace())
        .await
        .map_err(RunError::call("planting a decline"))?;
    let amounts = [0; 3].map(|_| 1_000 + i64::try_from(cx.random.below(100_000)).unwrap_or(0));
    cx.payout("uc01-first", "alpha", amounts[0]).await?;
    cx.payout("uc01-second", "beta", amounts[1]).await?;
    cx.payout("uc01-declined", "beta", amounts[2]).await?;
    cx.step("three payouts are asked for, one of which the rail will decline");
    cx.stack.worker(WorkerSpec::new("W1", Role::Both)).await?;
    for (payout, state) in [
        ("uc01-first", PayoutState::Posted),
        ("uc01-second", PayoutState::Posted),
        ("uc01-declined", PayoutState::Failed),
    ] {
        cx.await_state(payout, state).await?;
        cx.step(format!("{payout} is {state}"));
    }
    let (mut report, evidence) = cx.finish("UC-01", "three payouts, two paid once, one declined").await?;
    for (payout, executions, legs) in [("uc01-first", 1, 2), ("uc01-second", 1, 2), ("uc01-declined", 0, 0)] {
        report.compare(
            format!("{payout}: executions, legs"),
            (executions, legs),
            (evidence.executions(payout), evidence.legs(payout)),
        );
    }
    Ok(report)
}
