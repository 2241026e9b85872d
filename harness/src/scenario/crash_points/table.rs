//! What became of each point, for a human and for the documents.
//!
//! Owns: the table's shape. Does not own: filling it. On failure: plain data cannot fail.

use crate::invariant::Verdict;
use crate::report::ScenarioReport;
use crate::scenario::uc04;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// One point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashRow {
    /// Whose point.
    pub component: String,
    /// Its name.
    pub point: String,
    /// `kill` or `stop`.
    pub action: String,
    /// What the kernel said of the process.
    pub seen: String,
    /// The payout that spans the crash.
    pub payout: String,
    /// What it came to.
    pub state: String,
    /// How often the rail executed it.
    pub executions: usize,
    /// How many ledger legs it has.
    pub legs: usize,
    /// From the process seen dead or stopped to the payout settled, where it was measured.
    pub settled_ms: Option<u64>,
}

impl CrashRow {
    /// Whether it was hit where it was told to be, and the payout settled once.
    #[must_use]
    pub fn ok(&self) -> bool {
        let once = match self.state.as_str() {
            "POSTED" => (1, 2),
            "FAILED" => (0, 0),
            _ => return false,
        };
        let seen = if self.action == "kill" {
            "Signalled(9)"
        } else {
            "Stopped"
        };
        (self.executions, self.legs) == once && self.seen == seen
    }
}

/// What the scenario found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CrashReport {
    /// Steps, checks and verdicts.
    pub report: ScenarioReport,
    /// The points, component by component.
    pub rows: Vec<CrashRow>,
}

impl CrashReport {
    /// Whether every point, check and verdict came out as it must.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.report.ok() && !self.rows.is_empty() && self.rows.iter().all(CrashRow::ok)
    }

    /// Adds what UC-04 found: the executor's points.
    pub(super) fn and_the_executor(mut self, executor: (ScenarioReport, Vec<CrashRow>)) -> Self {
        self.rows.extend(executor.1);
        let (id, title) = (self.report.id.clone(), self.report.title.clone());
        self.report = uc04::merged(vec![self.report, executor.0]);
        (self.report.id, self.report.title) = (id, title);
        self
    }

    fn summary(&self) -> String {
        let kills = self.rows.iter().filter(|row| row.action == "kill").count();
        let stops = self.rows.len() - kills;
        let violations: usize = self
            .report
            .verdicts
            .iter()
            .map(|verdict| verdict.violations.len())
            .sum();
        let held = self
            .report
            .verdicts
            .iter()
            .filter(|verdict| Verdict::held(verdict))
            .count();
        let longest = self.rows.iter().filter_map(|row| row.settled_ms).max().unwrap_or(0);
        format!(
            "{kills} kills and {stops} stops, {} payouts settled once; {held} of {} invariants held over {} facts, {violations} violations; the longest recovery took {longest} ms",
            self.rows.iter().filter(|row| row.ok()).count(),
            self.report.verdicts.len(),
            self.report.facts(),
        )
    }

    /// The table for a document.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| component | fault point | told to | seen | its payout | executions, legs | settled after |\n|---|---|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let after = row.settled_ms.map_or_else(String::new, |ms| format!("{ms} ms"));
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "| {} | `{}` | {} | {} | {}{} | {}, {} | {after} |",
                row.component,
                row.point,
                row.action,
                row.seen,
                row.state,
                if row.ok() { "" } else { " **WRONG**" },
                row.executions,
                row.legs,
            );
        }
        let _ = writeln!(text, "\n{}.", self.summary());
        text
    }

    /// The report for a human.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.report.text(), self.markdown());
        for row in self.rows.iter().filter(|row| !row.ok()) {
            let _ = writeln!(text, "WRONG: {row:?}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_was_survived_or_paid_twice_is_wrong() {
        let good = CrashRow {
            component: "rail-proxy".to_owned(),
            point: "rail_proxy.after_send".to_owned(),
            action: "kill".to_owned(),
            seen: "Signalled(9)".to_owned(),
            payout: "crash-001".to_owned(),
            state: "POSTED".to_owned(),
            executions: 1,
            legs: 2,
            settled_ms: Some(1),
        };
        assert!(good.ok());
        let wrong = |change: fn(&mut CrashRow)| {
            let mut row = good.clone();
            change(&mut row);
            !row.ok()
        };
        assert!(wrong(|row| row.seen = "Exited(0)".to_owned()));
        assert!(wrong(|row| row.seen = "Stopped".to_owned()));
        assert!(wrong(|row| row.executions = 2));
        assert!(wrong(|row| row.legs = 0));
        assert!(wrong(|row| row.state = "RAIL_AMBIGUOUS".to_owned()));
        assert!(wrong(|row| row.state = "FAILED".to_owned()));
    }
}
