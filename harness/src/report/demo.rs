//! What the whole demo found, and the judgement of the whole.
//!
//! Owns: the sum over scenarios and cells, and what makes it void.
//! Does not own: running them.
//! On failure: plain data cannot fail.

use super::{CellReport, Refusals, ScenarioReport, complaints};
use crate::invariant::{Invariant, Verdict, absorb_all};
use serde::{Deserialize, Serialize};

/// What the demo found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DemoReport {
    /// What was wrong, one sentence each: nothing else has to be read of a run that failed. First, so that it stands at
    /// the top of a long report.
    #[serde(default)]
    pub wrong: Vec<String>,
    /// The seed that replays it.
    pub seed: u64,
    /// How long it took.
    pub took_ms: u64,
    /// UC-01, 02, 04, 05, 06, 08.
    pub scenarios: Vec<ScenarioReport>,
    /// UC-03.
    pub matrix: Vec<CellReport>,
    /// INV-01..08 and the lock's contract over everything that ran with both fences on.
    pub verdicts: Vec<Verdict>,
    /// Stale writes turned away, over everything.
    pub refusals: Refusals,
    /// Whether everything came out as it must.
    pub ok: bool,
    /// Where data and histories are, when they are kept.
    pub kept: Option<String>,
}

impl DemoReport {
    /// Sums up, and judges the whole: every scenario, every cell and every invariant must be as it must, stale writes
    /// must have been refused at both points, and switching fences off must have lost money, or the run proves nothing.
    #[must_use]
    pub fn new(seed: u64, took_ms: u64, scenarios: Vec<ScenarioReport>, matrix: Vec<CellReport>) -> Self {
        let fenced_cells = matrix
            .iter()
            .filter(|cell| cell.payment_fencing && cell.rail_fencing)
            .map(|cell| &cell.report);
        let mut verdicts = Invariant::EVERY.map(Verdict::new).to_vec();
        for report in scenarios.iter().chain(fenced_cells) {
            absorb_all(&mut verdicts, &report.verdicts, &report.id);
        }
        let mut refusals = Refusals::default();
        for report in scenarios.iter().chain(matrix.iter().map(|cell| &cell.report)) {
            refusals.payment += report.refusals.payment;
            refusals.rail += report.refusals.rail;
        }
        let mut demo = Self {
            wrong: Vec::new(),
            seed,
            took_ms,
            scenarios,
            matrix,
            verdicts,
            refusals,
            ok: false,
            kept: None,
        };
        demo.wrong = demo.complaints();
        demo.ok = demo.wrong.is_empty();
        demo
    }

    /// Money that left twice with every fence that would have prevented it switched off, in minor units.
    #[must_use]
    pub fn lost_minor(&self) -> i64 {
        self.matrix.iter().map(CellReport::lost_minor).sum()
    }

    /// What was wrong, one sentence each; none when everything is as it must be.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for report in &self.scenarios {
            wrong.extend(
                report
                    .complaints()
                    .into_iter()
                    .map(|what| format!("{}: {what}", report.id)),
            );
        }
        for cell in self.matrix.iter().filter(|cell| !cell.ok()) {
            let id = &cell.report.id;
            if cell.measured != cell.expected {
                wrong.push(format!("{id}: expected {}, measured {}", cell.expected, cell.measured));
            }
            // With a fence off, broken invariants are what the cell is for.
            let fenced = cell.payment_fencing && cell.rail_fencing;
            let verdicts = cell.report.verdicts.iter().filter(|_| fenced).flat_map(complaints);
            let checks = cell.report.failed_checks();
            wrong.extend(checks.chain(verdicts).map(|what| format!("{id}: {what}")));
        }
        wrong.extend(self.verdicts.iter().flat_map(complaints));
        if self.scenarios.is_empty() || self.matrix.len() != 12 {
            wrong.push(format!(
                "only {} scenarios and {} of 12 cells were run",
                self.scenarios.len(),
                self.matrix.len()
            ));
        }
        if self.lost_minor() == 0 {
            wrong.push(super::VOID.to_owned());
        }
        if self.refusals.payment == 0 || self.refusals.rail == 0 {
            wrong.push("no stale write was refused at one of the fence points: nothing was proved there".to_owned());
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::{check_all, sample};
    use crate::report::{CellOutcome, Check};

    fn report(id: &str) -> ScenarioReport {
        ScenarioReport {
            took_ms: 1_250,
            verdicts: check_all(&sample::good()),
            refusals: Refusals { payment: 1, rail: 1 },
            ..ScenarioReport::new(id, "a run", 1)
        }
    }

    fn matrix() -> Vec<CellReport> {
        crate::scenario::uc03::CELLS
            .iter()
            .map(|cell| CellReport {
                payment_fencing: cell.payment_fencing,
                rail_fencing: cell.rail_fencing,
                paused_before: cell.paused_before.to_owned(),
                expected: cell.expected(),
                measured: cell.expected(),
                amount_minor: 100_000,
                report: report(&cell.id()),
            })
            .collect()
    }

    #[test]
    fn a_demo_as_expected_is_ok_and_says_what_was_lost() {
        let demo = DemoReport::new(1, 2_000, vec![report("UC-01")], matrix());
        assert!(demo.ok, "{:?}", demo.complaints());
        let text = demo.text();
        assert!(
            text.contains("0.00 EUR lost") && text.contains("3000.00 EUR left the bank twice"),
            "{text}"
        );
    }

    #[test]
    fn a_control_that_loses_nothing_voids_the_run() {
        let mut cells = matrix();
        for cell in &mut cells {
            cell.measured = CellOutcome {
                executions: 1,
                legs: 2,
                broken: vec![],
            };
        }
        let demo = DemoReport::new(1, 2_000, vec![report("UC-01")], cells);
        assert!(!demo.ok);
        assert!(demo.complaints().iter().any(|what| what.contains("void")));
    }

    #[test]
    fn a_broken_cell_a_missing_cell_and_a_broken_invariant_each_fail_the_demo() {
        let mut cells = matrix();
        cells[0].measured.executions = 2;
        assert!(!DemoReport::new(1, 1, vec![report("UC-01")], cells).ok);

        let mut cells = matrix();
        cells.pop();
        assert!(!DemoReport::new(1, 1, vec![report("UC-01")], cells).ok);

        let mut wrong = report("UC-01");
        wrong.verdicts[1].violations.push("planted".to_owned());
        assert!(!DemoReport::new(1, 1, vec![wrong], matrix()).ok);

        let mut empty = report("UC-01");
        empty.verdicts[4].facts = 0;
        assert!(!DemoReport::new(1, 1, vec![empty], matrix()).ok);

        let mut cells = matrix();
        cells[2].report.verdicts[5].violations.push("planted".to_owned());
        assert!(
            !DemoReport::new(1, 1, vec![report("UC-01")], cells).ok,
            "a fenced cell is held to every invariant"
        );
    }

    #[test]
    fn a_failed_demo_says_at_its_top_what_failed() {
        let mut cells = matrix();
        let unfenced = cells.iter_mut().find(|cell| !cell.rail_fencing).unwrap();
        let id = unfenced.report.id.clone();
        unfenced.report.checks.push(Check {
            what: "W2 drains".to_owned(),
            expected: "Exited(0)".to_owned(),
            measured: "Signalled(9)".to_owned(),
        });
        let demo = DemoReport::new(1, 1, vec![report("UC-01")], cells);
        let what = format!("{id}: W2 drains: expected Exited(0), measured Signalled(9)");
        assert!(!demo.ok);
        assert_eq!(
            demo.wrong,
            [what.as_str()],
            "the check alone, not the cell that came out as expected"
        );
        assert!(demo.text().starts_with(&format!("WRONG: {what}\n")), "{}", demo.text());
        let json = serde_json::to_string_pretty(&demo).unwrap();
        assert!(json.starts_with("{\n  \"wrong\": ["), "{json}");
    }

    #[test]
    fn fences_that_refused_nothing_prove_nothing() {
        let (mut scenario, mut cells) = (report("UC-01"), matrix());
        scenario.refusals = Refusals::default();
        for cell in &mut cells {
            cell.report.refusals = Refusals { payment: 1, rail: 0 };
        }
        assert!(!DemoReport::new(1, 1, vec![scenario], cells).ok);
    }
}
