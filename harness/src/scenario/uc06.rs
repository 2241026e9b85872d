//! UC-06, an operator's force-revoke of a live holder.
//!
//! W1 holds the lock with a minute of its lease to run, and stands still before its submit. An operator breaks the
//! grant, with name and reason, and brings the revoke's token to both fence points at once, before anybody else has acquired. W1 goes on
//! under its revoked token, ignoring that its SDK says so, and is refused. W2 pays.

use super::{Cx, SETTLE_WITHIN};
use crate::report::ScenarioReport;
use crate::stack::{NodeState, Role, RunError, StackSpec, WorkerSpec, ask_to_end, await_node};
use http_contract::lock::RevokeBody;
use http_contract::payment::PayoutState;

const PAYOUT: &str = "uc06-payout";
const ACCOUNT: &str = "alpha";
const OPERATOR: &str = "operator.synthetic";
const REASON: &str = "worker W1 is stalled, payout overdue";

/// Both fences on. The lease is long: only the revoke ends it.
#[must_use]
pub fn spec() -> StackSpec {
    StackSpec::quick()
        .patient()
        .with("lock.session.ttl", "60s")
        .with("lock.grant.ttl", "60s")
}

/// Runs it.
///
/// # Errors
/// When it cannot be run.
pub async fn run(cx: Cx<'_>) -> Result<ScenarioReport, RunError> {
    cx.account(ACCOUNT, 1_000_000).await?;
    cx.payout(PAYOUT, ACCOUNT, 77_000).await?;
    let w1 = WorkerSpec::new("W1", Role::Pay)
        .fault("executor.before_submit", "stop")
        .with("executor.ignore-lock-lost", "true");
    cx.stack.worker(w1).await?;
    await_node(cx.stack, "W1", "stopped", SETTLE_WITHIN, |state| {
        state == NodeState::Stopped
    })
    .await?;
    let claimed = cx.await_state(PAYOUT, PayoutState::Claimed).await?;
    let key = cx.key(ACCOUNT)?;
    let trace = cx.apis.trace();
    let held = cx
        .apis
        .locks
        .lock(&key, &trace)
        .await
        .map_err(RunError::call("looking at the lock"))?;
    let holder = held
        .holder
        .ok_or_else(|| RunError::Other("the lock is free although W1 holds it".to_owned()))?;
    cx.check("the holder, as the operator sees it", "W1", &holder.owner);
    cx.check("its token", claimed.claim_token.unwrap_or(0), holder.token);
    let body = RevokeBody {
        revoke_token: holder.token,
        reason: REASON.to_owned(),
    };
    let revoked = cx
        .apis
        .locks
        .revoke(&key, OPERATOR, &body, &trace)
        .await
        .map_err(RunError::call("revoking"))?;
    cx.step(format!(
        "the operator revoked token {}; the revoke is token {}",
        revoked.revoked_token, revoked.token
    ));
    cx.check(
        "the revoke's token is higher",
        true,
        revoked.token > revoked.revoked_token,
    );
    let token = http_contract::token(revoked.token).map_err(|error| RunError::Other(error.to_string()))?;
    cx.apis
        .payments
        .fence(ACCOUNT, token, &trace)
        .await
        .map_err(RunError::call("fencing the payment resource"))?;
    cx.apis
        .rail
        .fence_account(ACCOUNT, token, &trace)
        .await
        .map_err(RunError::call("fencing the rail proxy"))?;
    cx.step("both fence points stand above the revoked token, before anybody has acquired");

    ask_to_end(cx.stack, &["W1".to_owned()], SETTLE_WITHIN).await?;
    cx.check("executions after W1 went on", 0, cx.executions(PAYOUT).await?);
    cx.step("W1 went on under its revoked token and got nothing through");

    cx.stack.worker(WorkerSpec::new("W2", Role::Pay)).await?;
    cx.await_state(PAYOUT, PayoutState::Posted).await?;
    cx.step("W2 acquired, recovered the claim and paid");
    let (mut report, evidence) = cx
        .finish(
            "UC-06",
            "a live holder was revoked, fenced out at the rail, and another paid",
        )
        .await?;
    let refused = evidence
        .calls
        .iter()
        .filter(|call| call.client == "W1" && call.verb == "submit" && call.fenced_out())
        .count();
    report.compare("W1's submit was FENCED_OUT", 1, refused);
    let audited = evidence.lock_events.iter().any(|event| {
        event.kind == "REVOKED" && event.actor.as_deref() == Some(OPERATOR) && event.reason.as_deref() == Some(REASON)
    });
    report.compare("the revoke is audited with operator and reason", true, audited);
    report.compare(
        "executions, legs",
        (1, 2),
        (evidence.executions(PAYOUT), evidence.legs(PAYOUT)),
    );
    Ok(report)
}
