//! Results as text for a terminal.
//!
//! Owns: how a human reads them without a browser.
//! Does not own: the results; the page (`html/`).
//! On failure: nothing can fail.

use super::{CellReport, DemoReport, ScenarioReport, amount};
use crate::invariant::Verdict;
use comfy_table::{Cell, CellAlignment, Table, presets};
use std::fmt::Write as _;

impl ScenarioReport {
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
        if let Some(control) = &self.control {
            let lost = amount(control.lost_minor, &control.currency);
            let void = if control.void() {
                ": VOID, the control shows nothing"
            } else {
                ""
            };
            let _ = writeln!(text, "With the fences off: {lost} lost{void} ({}).", control.what);
        }
        let _ = writeln!(
            text,
            "\n{}: {}",
            self.id,
            if self.ok() { "as it must be" } else { "FAILED" }
        );
        text
    }
}

impl DemoReport {
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
    amount(minor, "EUR")
}
