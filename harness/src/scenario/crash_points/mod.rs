//! A crash at every fault point of every component.
//!
//! ```text
//! killed ▶ started with POINT=kill ▶ driven there ▶ seen dead by SIGKILL ▶ started without ▶ the workers ride it out
//! ```
//!
//! Two workers run all the time. For each point its component is armed, a payout or a verb takes it there, the kernel
//! says that it died of SIGKILL, and it is started again on the same store: everything that was asked gets its answer, the
//! payout is settled once, and at the end every invariant holds over the whole stack. UC-04 is the executor's part.
//!
//! Owns: arming, seeing and mending; the table of what became of each point.
//! Does not own: the list (`points.rs`), the way to a point (`drive.rs`), the verdicts.
//! On failure: a point that was never reached makes the run impossible; what was not settled as it must be fails it.

pub mod drive;
pub mod points;
mod table;

use super::{Cx, SETTLE_WITHIN, Setup, uc04};
use crate::report::ScenarioReport;
use crate::stack::{Hurt, NodeState, Role, RunError, StackSpec, WorkerSpec, await_node};
use drive::Driver;
use points::{Action, Crash};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

pub use table::{CrashReport, CrashRow};

/// What the command line calls it.
pub const NAME: &str = "crash-points";
/// How many stacks share the points. More would keep a small machine from answering in time.
const LANES: usize = 3;
/// How long a component may take to its point and to be seen there. Generous: the machine may be busy.
const REACHED_WITHIN: Duration = Duration::from_secs(60);
/// Longer than any lease of the stack: how long a component stands still before it goes on.
const STANDS_STILL: Duration = Duration::from_millis(2_000);

/// Runs every crash, and UC-04 for the executor's own.
///
/// # Errors
/// When it cannot be run, a point that nobody reaches included.
pub async fn run(setup: &Setup) -> Result<CrashReport, RunError> {
    let crashes: Vec<Crash> = points::KILLS.iter().chain(points::STOPS).copied().collect();
    // One after the other: seven stacks at once keep a small machine and one database from starting any of them in time.
    let components = run_these(setup, &crashes).await?;
    Ok(components.and_the_executor(uc04::run_with_rows(setup).await?))
}

/// Runs some of them.
///
/// # Errors
/// As [`run`].
pub async fn run_these(setup: &Setup, crashes: &[Crash]) -> Result<CrashReport, RunError> {
    let mut lanes: Vec<Vec<(usize, Crash)>> = vec![Vec::new(); LANES.min(crashes.len()).max(1)];
    let many = lanes.len();
    for (n, crash) in crashes.iter().copied().enumerate() {
        lanes[n % many].push((n, crash));
    }
    let runs = lanes.into_iter().enumerate().map(|(lane, crashes)| async move {
        let name = format!("{NAME}-{}", lane + 1);
        setup
            .run(&name, StackSpec::quick(), async |cx| run_on(cx, crashes).await)
            .await
    });
    let (reports, rows): (Vec<_>, Vec<_>) = futures_util::future::try_join_all(runs).await?.into_iter().unzip();
    let mut rows: Vec<(usize, CrashRow)> = rows.into_iter().flatten().collect();
    rows.sort_by_key(|(n, _)| *n);
    let mut report = uc04::merged(reports);
    NAME.clone_into(&mut report.id);
    Ok(CrashReport {
        report,
        rows: rows.into_iter().map(|(_, row)| row).collect(),
    })
}

async fn run_on(
    cx: Cx<'_>,
    crashes: Vec<(usize, Crash)>,
) -> Result<(ScenarioReport, Vec<(usize, CrashRow)>), RunError> {
    for worker in ["W1", "W2"] {
        cx.stack.worker(WorkerSpec::new(worker, Role::Both)).await?;
    }
    let mut rows = Vec::new();
    for (n, crash) in crashes {
        rows.push((n, at_point(&cx, n, crash).await?));
    }
    let (mut report, evidence) = cx
        .finish(
            NAME,
            "each component killed at each of its steps, every payout settled once",
        )
        .await?;
    for (_, row) in &mut rows {
        let found = (evidence.executions(&row.payout), evidence.legs(&row.payout));
        let expected = if row.state == "POSTED" { (1, 2) } else { (0, 0) };
        report.compare(
            format!("{} at {}: executions, legs", row.action, row.point),
            expected,
            found,
        );
        (row.executions, row.legs) = found;
    }
    Ok((report, rows))
}

async fn at_point(cx: &Cx<'_>, n: usize, crash: Crash) -> Result<CrashRow, RunError> {
    let (stack, node, action) = (cx.stack, crash.node(), crash.action);
    let ended = |what| await_node(stack, node, what, SETTLE_WITHIN, NodeState::ended);
    stack.hurt(node, Hurt::Kill)?;
    ended("ended, to be armed").await?;
    let mut settings: BTreeMap<String, String> = crash
        .settings
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    settings.insert(
        "debug.fault-points".to_owned(),
        format!("{}={}@{}", crash.point, action.as_str(), crash.nth),
    );
    stack.restart_with(node, settings).await?;

    let driver = Driver::new(cx, crash.drive, &format!("{n:03}"), &cx.random);
    let seen_at = RefCell::new(cx.host().clock.mono());
    let watch = async {
        let what = format!("{} at {}", action.as_str(), crash.point);
        let seen = await_node(stack, node, &what, REACHED_WITHIN, |state| {
            state.ended() || state == NodeState::Stopped
        })
        .await?;
        *seen_at.borrow_mut() = cx.host().clock.mono();
        let expected = match action {
            Action::Kill => NodeState::Signalled(9),
            Action::Stop => NodeState::Stopped,
        };
        cx.check(what, format!("{expected:?}"), format!("{seen:?}"));
        match action {
            Action::Kill => stack.restart(node).await?,
            Action::Stop => {
                cx.host().clock.sleep(STANDS_STILL).await;
                stack.hurt(node, Hurt::Resume)?;
            }
        }
        Ok(seen)
    };
    let ((), seen) = tokio::try_join!(driver.run(), watch)?;
    // One that was stopped may be overtaken by the rail's silence: then the payout fails or is posted, once either way.
    let state = match action {
        Action::Kill => driver.settled(crash.fails).await?,
        Action::Stop => driver.settled_somehow().await?,
    };
    let settled_ms = cx.host().clock.mono().saturating_sub(seen_at.into_inner()).as_millis();
    cx.step(format!("{node} {seen:?} at {}, {} {state}", crash.point, driver.payout));
    Ok(CrashRow {
        component: node.to_owned(),
        point: crash.point.to_owned(),
        action: action.as_str().to_owned(),
        seen: format!("{seen:?}"),
        payout: driver.payout,
        state: state.to_string(),
        executions: 0,
        legs: 0,
        settled_ms: Some(u64::try_from(settled_ms).unwrap_or(u64::MAX)),
    })
}
