//! UC-04, a worker crash at every step of a payout.
//!
//! For each fault point of the executor: a worker is killed there (SIGKILL, as if from outside), a second payout of the
//! same account arrives, and another worker settles both. What it does with the first is decided by the payout's state
//! and the submission's record, never by elapsed time (FR-24).

use super::crash_points::CrashRow;
use super::{Cx, SETTLE_WITHIN, Setup};
use crate::invariant::{Invariant, Verdict, absorb_all};
use crate::report::ScenarioReport;
use crate::stack::{Hurt, NodeState, Role, RunError, StackSpec, WorkerSpec, await_node};
use http_contract::payment::PayoutState;
use http_contract::rail::{FaultPlan, FaultRule};

/// How many stacks share the points at which the rail answers, so that a demo ends in time. Those at which it keeps
/// silent have one of their own: only there does the proxy give up soon.
const ANSWERED_LANES: usize = 2;

/// What the rail does with the payout on which a worker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rail {
    /// Executes and says so.
    Acks,
    /// Declines.
    Declines,
    /// Executes, and its answer is lost.
    TimesOut,
}

/// A crash: where a worker is killed, and what must be so for a worker to pass there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The fault point.
    pub point: &'static str,
    /// What the rail does with the payout.
    pub rail: Rail,
    /// What the worker does.
    pub role: Role,
    /// Where another worker was killed before, for the points of recovery.
    pub after: Option<&'static str>,
}

const fn crash(point: &'static str, rail: Rail, role: Role) -> Crash {
    Crash {
        point,
        rail,
        role,
        after: None,
    }
}

const fn recovering(point: &'static str, after: &'static str) -> Crash {
    Crash {
        after: Some(after),
        ..crash(point, Rail::Acks, Role::Pay)
    }
}

/// Every fault point of the executor. A test compares this list with the executor's source, so that no step can be added
/// without its crash.
pub const CRASHES: [Crash; 22] = [
    crash("executor.before_acquire", Rail::Acks, Role::Pay),
    crash("executor.after_acquire", Rail::Acks, Role::Pay),
    crash("executor.before_claim", Rail::Acks, Role::Pay),
    crash("executor.after_claim", Rail::Acks, Role::Pay),
    crash("executor.before_submit", Rail::Acks, Role::Pay),
    crash("executor.after_submit", Rail::Acks, Role::Pay),
    crash("executor.before_post", Rail::Acks, Role::Pay),
    crash("executor.after_post", Rail::Acks, Role::Pay),
    crash("executor.before_release", Rail::Acks, Role::Pay),
    crash("executor.after_release", Rail::Acks, Role::Pay),
    recovering("executor.before_fence", "executor.after_claim"),
    recovering("executor.after_fence", "executor.after_submit"),
    recovering("executor.before_submit", "executor.after_claim"),
    recovering("executor.before_post", "executor.after_submit"),
    crash("executor.before_fail", Rail::Declines, Role::Pay),
    crash("executor.after_fail", Rail::Declines, Role::Pay),
    crash("executor.before_ambiguous", Rail::TimesOut, Role::Pay),
    crash("executor.after_ambiguous", Rail::TimesOut, Role::Pay),
    crash("executor.before_lookup", Rail::TimesOut, Role::Both),
    crash("executor.after_lookup", Rail::TimesOut, Role::Both),
    crash("executor.before_resolve", Rail::TimesOut, Role::Both),
    crash("executor.after_resolve", Rail::TimesOut, Role::Both),
];

/// Runs it on stacks of its own.
///
/// # Errors
/// When it cannot be run.
pub async fn run(setup: &Setup) -> Result<ScenarioReport, RunError> {
    run_with_rows(setup).await.map(|(report, _)| report)
}

/// As [`run`], with what became of each crash.
///
/// # Errors
/// When it cannot be run.
pub async fn run_with_rows(setup: &Setup) -> Result<(ScenarioReport, Vec<CrashRow>), RunError> {
    let runs = lanes().into_iter().enumerate();
    let runs = runs.map(|(lane, (spec, crashes))| async move {
        let name = format!("uc-04-{}", lane + 1);
        setup.run(&name, spec, async |cx| run_on(cx, crashes).await).await
    });
    let (reports, rows): (Vec<_>, Vec<_>) = futures_util::future::try_join_all(runs).await?.into_iter().unzip();
    let mut rows: Vec<(usize, CrashRow)> = rows.into_iter().flatten().collect();
    rows.sort_by_key(|(n, _)| *n);
    Ok((merged(reports), rows.into_iter().map(|(_, row)| row).collect()))
}

/// The stacks and the crashes of each, every crash under its number. A worker that is to be killed after an answer of the
/// rail must get that answer on a slow machine too.
fn lanes() -> Vec<(StackSpec, Vec<(usize, Crash)>)> {
    let all = CRASHES.into_iter().enumerate();
    let (silent, answered): (Vec<_>, Vec<_>) = all.partition(|(_, crash)| crash.rail == Rail::TimesOut);
    let mut lanes = vec![(StackSpec::quick().patient(), Vec::new()); ANSWERED_LANES];
    for (at, crash) in answered.into_iter().enumerate() {
        lanes[at % ANSWERED_LANES].1.push(crash);
    }
    lanes.push((StackSpec::quick(), silent));
    lanes
}

/// Kills a worker at each of these points, one after the other.
///
/// # Errors
/// When it cannot be run.
pub async fn run_on(
    cx: Cx<'_>,
    crashes: Vec<(usize, Crash)>,
) -> Result<(ScenarioReport, Vec<(usize, CrashRow)>), RunError> {
    let rules = crashes
        .iter()
        .filter_map(|(n, crash)| {
            let fault = match crash.rail {
                Rail::Acks => return None,
                Rail::Declines => "decline",
                Rail::TimesOut => "timeout_executed",
            };
            Some(FaultRule {
                client_reference: payout(*n),
                fault: fault.to_owned(),
                times: None,
                latency_ms: None,
                reason: None,
            })
        })
        .collect();
    let plan = FaultPlan {
        rules,
        ..FaultPlan::default()
    };
    cx.apis
        .stub
        .set_faults(&plan, &cx.apis.trace())
        .await
        .map_err(RunError::call("planting the rail's faults"))?;
    let mut seen = Vec::new();
    for (n, crash) in &crashes {
        seen.push(at_point(&cx, *n, *crash).await?);
    }
    let (mut report, evidence) = cx
        .finish(
            "UC-04",
            "a worker killed at each step, every payout settled once by another",
        )
        .await?;
    let mut rows = Vec::new();
    for ((n, crash), seen) in crashes.iter().zip(seen) {
        let (first, second) = (payout(*n), next(*n));
        let expected = match crash.rail {
            Rail::Declines => (0, 0),
            Rail::Acks | Rail::TimesOut => (1, 2),
        };
        report.compare(
            format!("killed at {}: executions, legs", crash.point),
            (expected, (1, 2)),
            (
                (evidence.executions(&first), evidence.legs(&first)),
                (evidence.executions(&second), evidence.legs(&second)),
            ),
        );
        let state = evidence.payout(&first).map(|payout| payout.state.clone());
        rows.push((
            *n,
            CrashRow {
                component: "payout-executor".to_owned(),
                point: crash.point.to_owned(),
                action: "kill".to_owned(),
                seen: format!("{seen:?}"),
                state: state.unwrap_or_default(),
                executions: evidence.executions(&first),
                legs: evidence.legs(&first),
                payout: first,
                settled_ms: None,
            },
        ));
    }
    Ok((report, rows))
}

fn payout(n: usize) -> String {
    format!("uc04-{n:02}")
}

fn next(n: usize) -> String {
    format!("uc04-{n:02}-next")
}

async fn at_point(cx: &Cx<'_>, n: usize, crash: Crash) -> Result<NodeState, RunError> {
    let (account, first, second) = (format!("account-{n:02}"), payout(n), next(n));
    let amount = 1_000 + i64::try_from(cx.random.below(50_000)).unwrap_or(0);
    cx.account(&account, 1_000_000).await?;
    cx.payout(&first, &account, amount).await?;
    if let Some(before) = crash.after {
        killed(cx, &format!("V{n:02}"), before, Role::Pay).await?;
    }
    let seen = killed(cx, &format!("W{n:02}"), crash.point, crash.role).await?;
    let left = cx.look(&first).await?.state;
    cx.payout(&second, &account, amount).await?;
    let rescuer = format!("R{n:02}");
    cx.stack.worker(WorkerSpec::new(&rescuer, Role::Both)).await?;
    let expected = match crash.rail {
        Rail::Declines => PayoutState::Failed,
        Rail::Acks | Rail::TimesOut => PayoutState::Posted,
    };
    cx.await_state(&first, expected).await?;
    cx.await_state(&second, PayoutState::Posted).await?;
    cx.step(format!(
        "killed at {}, payout left {left}; {rescuer} brought it to {expected}",
        crash.point
    ));
    cx.stack.hurt(&rescuer, Hurt::Terminate)?;
    let ended = await_node(cx.stack, &rescuer, "ended", SETTLE_WITHIN, NodeState::ended).await?;
    cx.check(format!("{rescuer} drains"), "Exited(0)", format!("{ended:?}"));
    Ok(seen)
}

/// Starts a worker that is killed at this point.
async fn killed(cx: &Cx<'_>, worker: &str, point: &str, role: Role) -> Result<NodeState, RunError> {
    cx.stack
        .worker(WorkerSpec::new(worker, role).fault(point, "kill"))
        .await?;
    let ended = await_node(
        cx.stack,
        worker,
        &format!("killed at {point}"),
        SETTLE_WITHIN,
        NodeState::ended,
    )
    .await?;
    cx.check(format!("{worker} at {point}"), "Signalled(9)", format!("{ended:?}"));
    Ok(ended)
}

/// One report of several stacks' reports.
pub(super) fn merged(reports: Vec<ScenarioReport>) -> ScenarioReport {
    let mut reports = reports.into_iter();
    let mut sum = reports.next().expect("there is at least one lane");
    for report in reports {
        sum.took_ms = sum.took_ms.max(report.took_ms);
        sum.more_dirs.push(report.dir);
        sum.steps.extend(report.steps);
        sum.checks.extend(report.checks);
        sum.refusals.payment += report.refusals.payment;
        sum.refusals.rail += report.refusals.rail;
        let own: Vec<Verdict> = std::mem::replace(&mut sum.verdicts, Invariant::EVERY.map(Verdict::new).to_vec());
        absorb_all(&mut sum.verdicts, &own, "first stack");
        absorb_all(&mut sum.verdicts, &report.verdicts, "another stack");
    }
    sum.steps.sort_by_key(|step| step.at_ms);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_crash_has_its_lane_and_only_a_silent_rail_is_given_up_soon() {
        let lanes = lanes();
        let mut numbers: Vec<usize> = lanes
            .iter()
            .flat_map(|(_, crashes)| crashes.iter().map(|(n, _)| *n))
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..CRASHES.len()).collect::<Vec<_>>());
        for (spec, crashes) in &lanes {
            let silent = crashes.iter().any(|(_, crash)| crash.rail == Rail::TimesOut);
            let soon = spec.settings["rail.read-timeout"] == StackSpec::quick().settings["rail.read-timeout"];
            assert_eq!(silent, soon);
        }
    }

    #[test]
    fn case_p05_no_step_of_the_executor_is_without_its_crash() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../actors/executor-core/src");
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(source).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let points = text
                .split("\"executor.")
                .skip(1)
                .filter_map(|rest| rest.split_once('"'));
            found.extend(
                points
                    .map(|(name, _)| format!("executor.{name}"))
                    .filter(|name| name.contains(".before_") || name.contains(".after_")),
            );
        }
        let tested: BTreeSet<String> = CRASHES.iter().map(|crash| crash.point.to_owned()).collect();
        assert!(!found.is_empty());
        assert_eq!(found, tested);
    }
}
