//! What a run says: the scenario's own report, the cells of the matrix, and the demo's, as JSON and as text.
//!
//! Owns: the shape of the results and how a human reads them.
//! Does not own: producing them.
//! On failure: plain data cannot fail.

use crate::chaos::fault::FaultRecord;
use crate::invariant::{Invariant, Verdict};
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Something that happened, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTaken {
    /// Since the scenario's start.
    pub at_ms: u64,
    /// What.
    pub text: String,
}

/// Something that was expected and measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at.
    pub what: String,
    /// What it must be.
    pub expected: String,
    /// What it was.
    pub measured: String,
}

impl Check {
    /// Whether it was as it must be.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.expected == self.measured
    }
}

/// How long something took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// What.
    pub what: String,
    /// In milliseconds.
    pub ms: u64,
    /// What is wanted on a quiet machine, where the requirements say so.
    pub wanted_ms: Option<u64>,
}

/// What a scenario found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScenarioReport {
    /// UC-01 …, or the name of a cell.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// The seed that replays its choices.
    pub seed: u64,
    /// How long it took, its stack's start included.
    pub took_ms: u64,
    /// What happened.
    pub steps: Vec<StepTaken>,
    /// What was expected and measured.
    pub checks: Vec<Check>,
    /// What was measured and judges nothing: it depends on the machine.
    #[serde(default)]
    pub measured: Vec<Measured>,
    /// The faults that were injected, in order.
    #[serde(default)]
    pub faults: Vec<FaultRecord>,
    /// The invariants.
    pub verdicts: Vec<Verdict>,
    /// How often a fence point turned a stale write away: payment, rail.
    pub refusals: Refusals,
    /// Where its histories, logs and evidence are, when they are kept.
    pub dir: String,
}

/// Refusals with FENCED_OUT, by fence point, as the clients saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// At the payment resource, fence point (a).
    pub payment: u64,
    /// At the rail proxy, fence point (c).
    pub rail: u64,
}

impl ScenarioReport {
    /// Something more was expected and measured.
    pub fn compare<T: std::fmt::Debug>(&mut self, what: impl Into<String>, expected: T, measured: T) {
        self.checks.push(Check {
            what: what.into(),
            expected: format!("{expected:?}"),
            measured: format!("{measured:?}"),
        });
    }

    /// Whether every check and every verdict came out as it must.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.checks.iter().all(Check::ok) && self.verdicts.iter().all(Verdict::held)
    }

    /// The facts all verdicts looked at.
    #[must_use]
    pub fn facts(&self) -> u64 {
        self.verdicts.iter().map(|verdict| verdict.facts).sum()
    }

    /// What was wrong, one sentence each.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.failed_checks()
            .chain(self.verdicts.iter().flat_map(complaints))
            .collect()
    }

    fn failed_checks(&self) -> impl Iterator<Item = String> {
        self.checks.iter().filter(|check| !check.ok()).map(|check| {
            format!(
                "{}: expected {}, measured {}",
                check.what, check.expected, check.measured
            )
        })
    }

    /// The report for a human.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{} — {} (seed {})\n\n", self.id, self.title, self.seed);
        for step in &self.steps {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "  {:>6} ms  {}", step.at_ms, step.text);
        }
        let mut table = plain_table(["what", "expected", "measured", ""]);
        for check in &self.checks {
            table.add_row([
                Cell::new(&check.what),
                Cell::new(&check.expected),
                Cell::new(&check.measured),
                Cell::new(mark(check.ok())),
            ]);
        }
        let _ = write!(text, "\n{table}\n\n{}\n", verdict_table(&self.verdicts));
        for measured in &self.measured {
            let wanted = measured.wanted_ms.map(|ms| format!(" (wanted: at most {ms} ms)"));
            let _ = writeln!(
                text,
                "  {}: {} ms{}",
                measured.what,
                measured.ms,
                wanted.unwrap_or_default()
            );
        }
        let _ = writeln!(
            text,
            "\nStale writes refused: {} at the payment resource, {} at the rail proxy.",
            self.refusals.payment, self.refusals.rail
        );
        let _ = writeln!(
            text,
            "\n{}: {}",
            self.id,
            if self.ok() { "as it must be" } else { "FAILED" }
        );
        text
    }
}

fn complaints(verdict: &Verdict) -> Vec<String> {
    if verdict.facts == 0 {
        return vec![format!("{}: no facts to look at", verdict.invariant)];
    }
    let not_checked = verdict.not_checked.iter().map(|what| format!("not checked: {what}"));
    let violations = verdict.violations.iter().cloned();
    violations
        .chain(not_checked)
        .map(|what| format!("{}: {what}", verdict.invariant))
        .collect()
}

/// What a cell of the matrix must come to, or came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellOutcome {
    /// Executions at the rail.
    pub executions: usize,
    /// Legs in the ledger.
    pub legs: usize,
    /// Which of INV-02 and INV-03 were broken.
    pub broken: Vec<Invariant>,
}

impl std::fmt::Display for CellOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} execution{}, {} legs",
            self.executions,
            if self.executions == 1 { "" } else { "s" },
            self.legs
        )?;
        for (n, invariant) in self.broken.iter().enumerate() {
            write!(f, "{}{invariant}", if n == 0 { "; broken: " } else { ", " })?;
        }
        Ok(())
    }
}

/// One cell of UC-03's matrix.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellReport {
    /// Fence point (a) stood.
    pub payment_fencing: bool,
    /// Fence point (c) stood.
    pub rail_fencing: bool,
    /// Where W1 was paused: `claim`, `submit`, `post`.
    pub paused_before: String,
    /// What it must come to.
    pub expected: CellOutcome,
    /// What it came to.
    pub measured: CellOutcome,
    /// The payout's amount.
    pub amount_minor: i64,
    /// Everything else about the cell.
    pub report: ScenarioReport,
}

impl CellReport {
    /// Whether it came out as it must. With both fences on every invariant must hold as well.
    #[must_use]
    pub fn ok(&self) -> bool {
        let all_held = self.report.verdicts.iter().all(Verdict::held);
        self.measured == self.expected
            && self.report.checks.iter().all(Check::ok)
            && (all_held || !(self.payment_fencing && self.rail_fencing))
    }

    /// Money that left although it must not have, in minor units.
    #[must_use]
    pub fn lost_minor(&self) -> i64 {
        let again = i64::try_from(self.measured.executions.saturating_sub(1)).unwrap_or(i64::MAX);
        again.saturating_mul(self.amount_minor)
    }

    /// Money that the ledger states wrongly, in minor units.
    #[must_use]
    pub fn misstated_minor(&self) -> i64 {
        if !self.measured.broken.contains(&Invariant::Inv03) {
            return 0;
        }
        let pairs = i64::try_from(self.measured.legs / 2).unwrap_or(i64::MAX);
        // One pair under a payout that is not POSTED is as wrong as one pair too many.
        (pairs - 1).max(1).saturating_mul(self.amount_minor)
    }
}

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
            for (sum, verdict) in verdicts.iter_mut().zip(&report.verdicts) {
                sum.absorb(verdict, &report.id);
            }
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
            wrong.push(
                "with the fences off no money was lost: the control shows nothing, so the run is void".to_owned(),
            );
        }
        if self.refusals.payment == 0 || self.refusals.rail == 0 {
            wrong.push("no stale write was refused at one of the fence points: nothing was proved there".to_owned());
        }
        wrong
    }

    /// The summary for a human.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for what in &self.wrong {
            let _ = writeln!(text, "WRONG: {what}");
        }
        text.push_str("Payouts while workers are paused and killed, both fences on\n\n");
        let mut table = plain_table(["scenario", "what happened", "facts", "took", ""]);
        for report in &self.scenarios {
            table.add_row([
                Cell::new(&report.id),
                Cell::new(&report.title),
                Cell::new(report.facts()).set_alignment(CellAlignment::Right),
                Cell::new(seconds(report.took_ms)).set_alignment(CellAlignment::Right),
                Cell::new(mark(report.ok())),
            ]);
        }
        let _ = write!(text, "{table}\n\n");
        text.push_str(&matrix_text(&self.matrix));
        let _ = write!(text, "{}\n\n", verdict_table(&self.verdicts));
        let _ = writeln!(
            text,
            "Stale writes refused: {} at the payment resource, {} at the rail proxy.",
            self.refusals.payment, self.refusals.rail
        );
        text.push_str(&money(&self.matrix));
        for complaint in self.complaints() {
            let _ = writeln!(text, "  WRONG: {complaint}");
        }
        let _ = writeln!(
            text,
            "\n{} in {} (seed {}).",
            if self.ok {
                "Everything came out as it must"
            } else {
                "FAILED"
            },
            seconds(self.took_ms),
            self.seed
        );
        text
    }
}

/// The point of it all, in two lines.
#[must_use]
pub fn money(matrix: &[CellReport]) -> String {
    let fenced: Vec<_> = matrix
        .iter()
        .filter(|cell| cell.payment_fencing && cell.rail_fencing)
        .collect();
    let lost = |cells: &mut dyn Iterator<Item = &CellReport>| cells.map(CellReport::lost_minor).sum::<i64>();
    let doubled = matrix.iter().filter(|cell| cell.lost_minor() > 0).count();
    let crooked = matrix.iter().filter(|cell| cell.misstated_minor() > 0).count();
    let misstated: i64 = matrix.iter().map(CellReport::misstated_minor).sum();
    format!(
        "Both fences on:  {} paused workers, {} lost.\n\
         A fence off:     {} left the bank twice ({doubled} payouts paid double); the ledger is wrong by {} in {crooked} runs.\n",
        fenced.len(),
        euros(lost(&mut fenced.iter().copied())),
        euros(lost(&mut matrix.iter())),
        euros(misstated),
    )
}

/// UC-03's matrix as text.
#[must_use]
pub fn matrix_text(matrix: &[CellReport]) -> String {
    let mut table = plain_table([
        "payment fence",
        "rail fence",
        "W1 paused before claim",
        "before submit",
        "before post",
    ]);
    for (payment, rail) in [(true, true), (false, true), (true, false), (false, false)] {
        let cells = ["claim", "submit", "post"].map(|point| {
            matrix
                .iter()
                .find(|cell| {
                    (cell.payment_fencing, cell.rail_fencing, cell.paused_before.as_str()) == (payment, rail, point)
                })
                .map_or_else(|| "not run".to_owned(), cell_text)
        });
        let mut row = vec![on_off(payment).to_owned(), on_off(rail).to_owned()];
        row.extend(cells);
        table.add_row(row);
    }
    format!(
        "UC-03, the paused worker: W1 is stopped past its lease, W2 takes over, W1 wakes up and goes on.\n\
         One payout per cell; executions at the rail and ledger legs as measured (expected in brackets).\n\n{table}\n\n"
    )
}

fn cell_text(cell: &CellReport) -> String {
    let measured = &cell.measured;
    let mut text = format!("paid {}x, {} legs", measured.executions, measured.legs);
    if measured != &cell.expected {
        let _ = write!(text, "\nWRONG, expected {}", cell.expected);
        return text;
    }
    if !cell.ok() {
        text.push_str("\nWRONG, see below");
        return text;
    }
    let _ = write!(text, " [{}x, {}]", cell.expected.executions, cell.expected.legs);
    for invariant in &measured.broken {
        let _ = write!(text, "\n{invariant} broken");
    }
    if cell.lost_minor() > 0 {
        let _ = write!(text, "\n{} LOST", euros(cell.lost_minor()));
    }
    text
}

fn plain_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    table
}

/// INV-01..08 as a table.
#[must_use]
pub fn verdict_table(verdicts: &[Verdict]) -> Table {
    let mut table = plain_table(["invariant", "", "facts", "violations", ""]);
    for verdict in verdicts {
        table.add_row([
            Cell::new(verdict.invariant),
            Cell::new(verdict.invariant.sentence()),
            Cell::new(verdict.facts).set_alignment(CellAlignment::Right),
            Cell::new(verdict.violations.len()).set_alignment(CellAlignment::Right),
            Cell::new(mark(verdict.held())),
        ]);
    }
    table
}

const fn mark(ok: bool) -> &'static str {
    if ok { "ok" } else { "WRONG" }
}

const fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "OFF" }
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// Minor units of the demo's currency, for a human.
#[must_use]
pub fn euros(minor: i64) -> String {
    format!("EUR {}.{:02}", minor / 100, (minor % 100).abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::{check_all, sample};

    fn report(id: &str) -> ScenarioReport {
        ScenarioReport {
            id: id.to_owned(),
            title: "a run".to_owned(),
            seed: 1,
            took_ms: 1_250,
            steps: vec![],
            checks: vec![],
            measured: Vec::new(),
            faults: Vec::new(),
            verdicts: check_all(&sample::good()),
            refusals: Refusals { payment: 1, rail: 1 },
            dir: String::new(),
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
            text.contains("EUR 0.00 lost") && text.contains("EUR 3000.00 left the bank twice"),
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
