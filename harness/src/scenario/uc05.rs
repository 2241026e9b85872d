//! UC-05, an ambiguous rail outcome and its reconciliation.
//!
//! Three payouts, three ways not to know: the rail executed and the answer was lost; it never executed; nobody can be
//! asked. All are RAIL_AMBIGUOUS, their money stays held, and no worker may submit them again. Reconciliation asks the
//! rail, read-only: the first is POSTED, the second FAILED, the third escalated to a human once the SLA has passed.

use super::Cx;
use crate::report::ScenarioReport;
use crate::stack::{Role, RunError, StackSpec, WorkerSpec};
use http_contract::payment::PayoutState;
use http_contract::rail::{FaultPlan, FaultRule};

const EXECUTED: &str = "uc05-executed";
const NOT_EXECUTED: &str = "uc05-not-executed";
const UNKNOWABLE: &str = "uc05-unknowable";

/// Both fences on.
#[must_use]
pub fn spec() -> StackSpec {
    StackSpec::quick()
}

fn rule(payout: &str, fault: &str) -> FaultRule {
    FaultRule {
        client_reference: payout.to_owned(),
        fault: fault.to_owned(),
        times: None,
        latency_ms: None,
        reason: None,
    }
}

/// Runs it.
///
/// # Errors
/// When it cannot be run.
pub async fn run(cx: Cx<'_>) -> Result<ScenarioReport, RunError> {
    let payouts = [
        (EXECUTED, "alpha", 30_000),
        (NOT_EXECUTED, "beta", 20_000),
        (UNKNOWABLE, "gamma", 10_000),
    ];
    let plan = FaultPlan {
        rules: vec![
            rule(EXECUTED, "timeout_executed"),
            rule(NOT_EXECUTED, "timeout_not_executed"),
            rule(UNKNOWABLE, "timeout_executed"),
            rule(UNKNOWABLE, "lookup_error"),
        ],
        ..FaultPlan::default()
    };
    cx.apis
        .stub
        .set_faults(&plan, &cx.apis.trace())
        .await
        .map_err(RunError::call("planting time-outs"))?;
    for (payout, account, amount) in payouts {
        cx.account(account, 50_000).await?;
        cx.payout(payout, account, amount).await?;
    }
    cx.stack.worker(WorkerSpec::new("W1", Role::Pay)).await?;
    for (payout, account, amount) in payouts {
        cx.await_state(payout, PayoutState::RailAmbiguous).await?;
        let seen = cx
            .apis
            .payments
            .account(account, &cx.apis.trace())
            .await
            .map_err(RunError::call("reading an account"))?;
        let euros = |minor: i64| money_kit::amount(minor, "EUR");
        cx.check(
            format!("{payout}: money held while ambiguous"),
            euros(amount),
            euros(seen.held_minor),
        );
        cx.check(
            format!("{payout}: money booked while ambiguous"),
            euros(50_000),
            euros(seen.balance_minor),
        );
    }
    cx.step("all three timed out at the rail: RAIL_AMBIGUOUS, money held, nothing booked, nobody submits again");
    cx.stack.worker(WorkerSpec::new("R1", Role::Reconcile)).await?;
    cx.await_state(EXECUTED, PayoutState::Posted).await?;
    cx.step("the rail says it executed the first: POSTED");
    cx.await_state(NOT_EXECUTED, PayoutState::Failed).await?;
    cx.step("past the horizon the rail says it never received the second: FAILED");
    cx.await_payout(UNKNOWABLE, "escalated", |payout| payout.escalated_at.is_some())
        .await?;
    cx.step("nobody could say anything about the third: escalated to a human, still held");
    cx.check(
        "the third",
        PayoutState::RailAmbiguous,
        cx.look(UNKNOWABLE).await?.state,
    );
    let (mut report, evidence) = cx
        .finish(
            "UC-05",
            "three ambiguous payouts: one POSTED, one FAILED, one escalated, none sent twice",
        )
        .await?;
    for (payout, expected) in [
        (EXECUTED, (1, 1, 2)),
        (NOT_EXECUTED, (1, 0, 0)),
        (UNKNOWABLE, (1, 1, 0)),
    ] {
        let read = evidence
            .rail_book
            .iter()
            .find(|entry| entry.client_reference == payout)
            .map_or(0, |entry| entry.bodies_read);
        report.compare(
            format!("{payout}: submissions the rail read, executions, legs"),
            expected,
            (read, evidence.executions(payout), evidence.legs(payout)),
        );
    }
    Ok(report)
}
