//! UC-03, the paused worker: the negative control, with the matrix of both kill switches (C1.6).
//!
//! ```text
//! W1 ─acquire T1─▶ … SIGSTOP at a point, longer than the lease …………………… SIGCONT ─▶ goes on under T1
//! W2                └─lease expired─▶ acquire T2 > T1 ─claim─submit─post─▶ POSTED, ends
//! ```
//! W1 ignores that its own SDK tells it the lock is lost, so that nothing but the fences stands between its stale token
//! and the money. A cell is measured when W1 and W2 have ended; there is no third worker.

use super::{Cx, SETTLE_WITHIN, Setup};
use crate::invariant::Invariant;
use crate::report::{CellOutcome, CellReport};
use crate::stack::{Hurt, NodeState, Role, RunError, StackSpec, WorkerSpec, ask_to_end, await_node};
use http_contract::payment::PayoutState;

/// The amount of each cell's payout: a thousand euros.
const AMOUNT_MINOR: i64 = 100_000;
/// The payout of a cell.
const PAYOUT: &str = "uc03-payout";
/// The account of a cell.
const ACCOUNT: &str = "alpha";

/// A cell: a setting of the switches and the step before which W1 is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixCell {
    /// Fence point (a) stands.
    pub payment_fencing: bool,
    /// Fence point (c) stands.
    pub rail_fencing: bool,
    /// `claim`, `submit` or `post`.
    pub paused_before: &'static str,
    executions: usize,
    legs: usize,
}

const fn cell(
    payment_fencing: bool,
    rail_fencing: bool,
    paused_before: &'static str,
    executions: usize,
    legs: usize,
) -> MatrixCell {
    MatrixCell {
        payment_fencing,
        rail_fencing,
        paused_before,
        executions,
        legs,
    }
}

/// The table of C1.6.
pub const CELLS: [MatrixCell; 12] = [
    cell(true, true, "claim", 1, 2),
    cell(true, true, "submit", 1, 2),
    cell(true, true, "post", 1, 2),
    cell(false, true, "claim", 1, 2),
    cell(false, true, "submit", 1, 2),
    cell(false, true, "post", 1, 4),
    cell(true, false, "claim", 1, 2),
    cell(true, false, "submit", 2, 2),
    cell(true, false, "post", 1, 2),
    cell(false, false, "claim", 2, 4),
    cell(false, false, "submit", 2, 4),
    cell(false, false, "post", 1, 4),
];

impl MatrixCell {
    /// What it must come to: what the switches that are off let through, and nothing else.
    #[must_use]
    pub fn expected(&self) -> CellOutcome {
        let mut broken = Vec::new();
        if self.executions > 1 {
            broken.push(Invariant::Inv02);
        }
        // With the payment fence alone off, a claim by the stale W1 pushes the posted payout back to CLAIMED, so that
        // its two legs stand under a payout that is not POSTED.
        let pushed_back = !self.payment_fencing && self.rail_fencing && self.paused_before == "claim";
        if self.legs != 2 || pushed_back {
            broken.push(Invariant::Inv03);
        }
        CellOutcome {
            executions: self.executions,
            legs: self.legs,
            broken,
        }
    }

    /// The cell of this name, with or without its `uc-03-` (`on-on-submit`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let full = format!("uc-03-{}", text.trim_start_matches("uc-03-"));
        CELLS.into_iter().find(|cell| cell.id() == full)
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> String {
        let on_off = |on| if on { "on" } else { "off" };
        format!(
            "uc-03-{}-{}-{}",
            on_off(self.payment_fencing),
            on_off(self.rail_fencing),
            self.paused_before
        )
    }
}

/// Runs one cell on a stack of its own.
///
/// # Errors
/// When it cannot be run.
pub async fn run(setup: &Setup, cell: MatrixCell) -> Result<CellReport, RunError> {
    let spec = StackSpec::quick()
        .patient()
        .fencing(cell.payment_fencing, cell.rail_fencing);
    setup.run(&cell.id(), spec, async |cx| run_on(cx, cell).await).await
}

/// Runs one cell on this stack.
///
/// # Errors
/// When it cannot be run.
pub async fn run_on(cx: Cx<'_>, cell: MatrixCell) -> Result<CellReport, RunError> {
    cx.account(ACCOUNT, 10 * AMOUNT_MINOR).await?;
    cx.payout(PAYOUT, ACCOUNT, AMOUNT_MINOR).await?;
    let point = format!("executor.before_{}", cell.paused_before);
    let w1 = WorkerSpec::new("W1", Role::Pay)
        .fault(&point, "stop")
        .with("executor.ignore-lock-lost", "true");
    cx.stack.worker(w1).await?;
    await_node(cx.stack, "W1", "stopped", SETTLE_WITHIN, |state| {
        state == NodeState::Stopped
    })
    .await?;
    cx.step(format!(
        "W1 holds the lock and is stopped before its {}",
        cell.paused_before
    ));

    cx.stack.worker(WorkerSpec::new("W2", Role::Pay)).await?;
    cx.await_state(PAYOUT, PayoutState::Posted).await?;
    cx.step("W1's lease ran out; W2 took over and paid");
    end(&cx, "W2").await?;

    // W1 is asked to end before it wakes: it finishes the payout it has in hand, and polls for no other.
    ask_to_end(cx.stack, &["W1".to_owned()], SETTLE_WITHIN).await?;
    cx.step("W1 woke up, went on under its old token, and ended");

    let measured_state = cx.look(PAYOUT).await?.state;
    let id = cell.id();
    let (report, evidence) = cx
        .finish(&id, &format!("W1 paused before {}", cell.paused_before))
        .await?;
    let broken = |invariant: Invariant| {
        report
            .verdicts
            .iter()
            .any(|verdict| verdict.invariant == invariant && verdict.broken())
    };
    let measured = CellOutcome {
        executions: evidence.executions(PAYOUT),
        legs: evidence.legs(PAYOUT),
        broken: [Invariant::Inv02, Invariant::Inv03]
            .into_iter()
            .filter(|invariant| broken(*invariant))
            .collect(),
    };
    tracing::debug!(event = "cell", id, state = %measured_state, %measured);
    Ok(CellReport {
        payment_fencing: cell.payment_fencing,
        rail_fencing: cell.rail_fencing,
        paused_before: cell.paused_before.to_owned(),
        expected: cell.expected(),
        measured,
        amount_minor: AMOUNT_MINOR,
        report,
    })
}

async fn end(cx: &Cx<'_>, worker: &str) -> Result<(), RunError> {
    cx.stack.hurt(worker, Hurt::Terminate)?;
    await_node(cx.stack, worker, "ended", SETTLE_WITHIN, NodeState::ended)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_found_by_its_name() {
        for cell in CELLS {
            assert_eq!(MatrixCell::parse(&cell.id()), Some(cell));
        }
        assert_eq!(MatrixCell::parse("on-on-submit"), Some(CELLS[1]));
        assert_eq!(MatrixCell::parse("on-on-pay"), None);
    }

    #[test]
    fn the_table_of_the_contract() {
        let expected: Vec<String> = CELLS.iter().map(|cell| cell.expected().to_string()).collect();
        assert_eq!(
            expected,
            [
                "1 execution, 2 legs",
                "1 execution, 2 legs",
                "1 execution, 2 legs",
                "1 execution, 2 legs; broken: INV-03",
                "1 execution, 2 legs",
                "1 execution, 4 legs; broken: INV-03",
                "1 execution, 2 legs",
                "2 executions, 2 legs; broken: INV-02",
                "1 execution, 2 legs",
                "2 executions, 4 legs; broken: INV-02, INV-03",
                "2 executions, 4 legs; broken: INV-02, INV-03",
                "1 execution, 4 legs; broken: INV-03",
            ]
        );
    }
}
