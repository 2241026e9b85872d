//! UC-02, contended acquire with bounded wait.
//!
//! W1 holds the account's lock, with most of its lease to run, and stands still before its submit until W2 has been seen
//! to give up. W2 wants the same payout: it is told who holds the lock, tries at most five times with jittered backoff and
//! leaves it without having touched anything. W1 goes on and pays.

use super::{Cx, SETTLE_WITHIN};
use crate::history::Outcome;
use crate::report::ScenarioReport;
use crate::stack::{Hurt, NodeState, Role, RunError, StackSpec, WorkerSpec, await_node};
use http_contract::payment::PayoutState;

/// Both fences on. The lease outlives W1's pause without a renew, for the pause stops W1's renewals too: a minute, where
/// W2 needs a second to give up.
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
    cx.account("alpha", 1_000_000).await?;
    cx.payout("uc02-payout", "alpha", 42_000).await?;
    let paused = WorkerSpec::new("W1", Role::Pay).fault("executor.before_submit", "stop");
    cx.stack.worker(paused).await?;
    await_node(cx.stack, "W1", "stopped", SETTLE_WITHIN, |state| {
        state == NodeState::Stopped
    })
    .await?;
    cx.step("W1 has claimed the payout and holds the lock, stopped before its submit");
    cx.stack.worker(WorkerSpec::new("W2", Role::Pay)).await?;
    cx.await_log("W2", "that its attempts are used up", |line| {
        line["event"] == "lock_contended" && line["code"] == "CONTENTION_EXCEEDED"
    })
    .await?;
    cx.step("W2 has used up its attempts and left the payout alone");
    let seen = cx.look("uc02-payout").await?;
    cx.check("while W1 holds the lock", PayoutState::Claimed, seen.state);
    cx.check("executions before W1 goes on", 0, cx.executions("uc02-payout").await?);
    cx.stack.hurt("W1", Hurt::Resume)?;
    cx.await_state("uc02-payout", PayoutState::Posted).await?;
    cx.step("W1 went on and paid");
    for worker in ["W2", "W1"] {
        cx.stack.hurt(worker, Hurt::Terminate)?;
        let ended = await_node(cx.stack, worker, "ended", SETTLE_WITHIN, NodeState::ended).await?;
        cx.check(format!("{worker} drains"), "Exited(0)", format!("{ended:?}"));
    }
    let (mut report, evidence) = cx
        .finish(
            "UC-02",
            "W2 met a held lock, gave up within its bound and touched nothing",
        )
        .await?;
    let by_w2 = |verb: &str, outcome: Outcome| {
        evidence
            .calls
            .iter()
            .filter(|call| call.client == "W2" && call.verb == verb && call.outcome == outcome)
            .count()
    };
    report.compare("W2 was refused the lock", true, by_w2("acquire", Outcome::Refused) > 0);
    report.compare("W2 submitted", 0, by_w2("submit", Outcome::Ok));
    report.compare(
        "executions, legs",
        (1, 2),
        (evidence.executions("uc02-payout"), evidence.legs("uc02-payout")),
    );
    Ok(report)
}
