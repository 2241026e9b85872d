//! A run as its files are written from: what was judged, and the evidence that was kept beside each report.
//!
//! Owns: reading the evidence of each stack; the verdict of the whole; the negative control out of UC-03's cells.
//! Does not own: the form of any file.
//! On failure: [`RunError`] when the evidence of a stack cannot be read; a report without its evidence proves nothing.

use super::{CellReport, Control, DemoReport, LEDGER, Refusals, ScenarioReport};
use crate::invariant::Verdict;
use crate::model::Evidence;
use crate::stack::RunError;
use std::path::Path;

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was run, in a few words (`the demo`, `UC-04`).
    pub name: String,
    /// The seed that replays its choices.
    pub seed: u64,
    /// How long it took.
    pub took_ms: u64,
    /// The command line that replays it, seed and stores included.
    pub replay: String,
    /// What was wrong, one sentence each; none when everything came out as it must.
    pub wrong: Vec<String>,
    /// The verdicts over everything that ran with both fences on.
    pub verdicts: Vec<Verdict>,
    /// Stale writes refused, over everything.
    pub refusals: Refusals,
    /// The negative control, where it was part of the run.
    pub control: Option<Control>,
    /// UC-03's cells, where they were part of the run.
    pub matrix: Vec<CellReport>,
    /// Its scenarios, the cells among them.
    pub stories: Vec<Story>,
}

/// One scenario of a run.
#[derive(Clone, Debug)]
pub struct Story {
    /// What it found.
    pub report: ScenarioReport,
    /// Whether it came out as it must: a cell with a fence off must break what the fence protects.
    pub ok: bool,
    /// What its stacks left.
    pub stacks: Vec<StackSeen>,
}

/// What one stack left.
#[derive(Clone, Debug)]
pub struct StackSeen {
    /// Its directory's name.
    pub name: String,
    /// The evidence.
    pub evidence: Evidence,
    /// Its ledger in plain-text accounting, where it was kept.
    pub ledger: Option<String>,
}

impl Run {
    /// The run of one scenario.
    ///
    /// # Errors
    /// When its evidence cannot be read.
    pub fn of_scenario(report: &ScenarioReport, replay: &str) -> Result<Self, RunError> {
        let story = Story::read(report, report.ok())?;
        Ok(Self::of_stories(
            &format!("{} — {}", report.id, report.title),
            report,
            replay,
            story,
        ))
    }

    fn of_stories(name: &str, report: &ScenarioReport, replay: &str, story: Story) -> Self {
        let replay = if report.replay.is_empty() {
            replay
        } else {
            &report.replay
        };
        Self {
            name: name.to_owned(),
            seed: report.seed,
            took_ms: report.took_ms,
            replay: replay.to_owned(),
            wrong: report.complaints(),
            verdicts: report.verdicts.clone(),
            refusals: report.refusals,
            control: report.control.clone(),
            matrix: Vec::new(),
            stories: vec![story],
        }
    }

    /// The run of one scenario whose evidence is at hand.
    #[must_use]
    pub fn with_evidence(report: &ScenarioReport, evidence: Evidence, replay: &str) -> Self {
        let story = Story {
            report: report.clone(),
            ok: report.ok(),
            stacks: vec![StackSeen {
                name: report.id.clone(),
                evidence,
                ledger: None,
            }],
        };
        Self::of_stories(&format!("{} — {}", report.id, report.title), report, replay, story)
    }

    /// The run of UC-03's cells alone.
    ///
    /// # Errors
    /// When the evidence of one cannot be read.
    pub fn of_cells(cells: &[CellReport], seed: u64, took_ms: u64, replay: &str) -> Result<Self, RunError> {
        let mut whole = DemoReport::new(seed, took_ms, Vec::new(), cells.to_vec());
        // The rule that a demo has scenarios beside its matrix is the demo's own.
        whole.wrong.retain(|what| !what.starts_with("only 0 scenarios and 12 "));
        let mut run = Self::of_demo(&whole, replay)?;
        "UC-03 — the paused worker, with each fence on and off".clone_into(&mut run.name);
        Ok(run)
    }

    /// The run of the whole demo.
    ///
    /// # Errors
    /// When the evidence of a part cannot be read.
    pub fn of_demo(demo: &DemoReport, replay: &str) -> Result<Self, RunError> {
        let mut stories = Vec::new();
        for report in &demo.scenarios {
            stories.push(Story::read(report, report.ok())?);
        }
        for cell in &demo.matrix {
            stories.push(Story::read(&cell.report, cell.ok())?);
        }
        Ok(Self {
            name: "the demo — payouts while workers are paused and killed, and with the fences off".to_owned(),
            seed: demo.seed,
            took_ms: demo.took_ms,
            replay: replay.to_owned(),
            wrong: demo.wrong.clone(),
            verdicts: demo.verdicts.clone(),
            refusals: demo.refusals,
            control: control_of(&demo.matrix),
            matrix: demo.matrix.clone(),
            stories,
        })
    }

    /// Whether everything came out as it must.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Whether its control lost nothing.
    #[must_use]
    pub fn void(&self) -> bool {
        self.control.as_ref().is_some_and(Control::void)
    }

    /// The facts that all verdicts looked at.
    #[must_use]
    pub fn facts(&self) -> u64 {
        self.verdicts.iter().map(|verdict| verdict.facts).sum()
    }

    /// The verdict of the whole in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let held = self.verdicts.iter().filter(|verdict| verdict.held()).count();
        let all = self.verdicts.len();
        let facts = self.facts();
        if self.void() {
            format!("VOID: {}.", super::VOID)
        } else if all == 0 {
            "FAILED: no verdict was reached.".to_owned()
        } else if self.ok() {
            format!("HELD: all {all} verdicts held over {facts} facts, and every check came out as it must.")
        } else {
            format!(
                "FAILED: {held} of {all} verdicts held over {facts} facts; {} wrong.",
                counted(self.wrong.len(), "thing is", "things are")
            )
        }
    }
}

/// `1 thing`, `2 things`.
pub(super) fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// The cells with a fence off, as one control; none where no such cell was run.
fn control_of(matrix: &[CellReport]) -> Option<Control> {
    let off: Vec<_> = matrix
        .iter()
        .filter(|cell| !(cell.payment_fencing && cell.rail_fencing))
        .collect();
    if off.is_empty() {
        return None;
    }
    let executions = |cell: &&&CellReport| u64::try_from(cell.measured.executions).unwrap_or(u64::MAX);
    Some(Control {
        lost_minor: off.iter().map(|cell| cell.lost_minor()).sum(),
        currency: crate::scenario::CURRENCY.to_owned(),
        executions: off.iter().map(|cell| executions(&cell)).sum(),
        payouts_paid_twice: off.iter().map(|cell| u64::from(cell.lost_minor() > 0)).sum(),
        what: format!(
            "{} with a fence switched off: W1 is stopped past its lease, W2 takes over, W1 wakes up and goes on",
            counted(off.len(), "cell of UC-03", "cells of UC-03")
        ),
    })
}

impl Story {
    fn read(report: &ScenarioReport, ok: bool) -> Result<Self, RunError> {
        let dirs = std::iter::once(&report.dir).chain(&report.more_dirs);
        Ok(Self {
            report: report.clone(),
            ok,
            stacks: dirs
                .map(|dir| StackSeen::read(Path::new(dir)))
                .collect::<Result<_, _>>()?,
        })
    }
}

impl StackSeen {
    fn read(dir: &Path) -> Result<Self, RunError> {
        let path = dir.join("evidence.json");
        let text = std::fs::read(&path).map_err(RunError::io(format!("reading {}", path.display())))?;
        let evidence = serde_json::from_slice(&text)
            .map_err(|error| RunError::Other(format!("{} is no evidence: {error}", path.display())))?;
        Ok(Self {
            name: dir
                .file_name()
                .map_or_else(|| "stack".to_owned(), |name| name.to_string_lossy().into_owned()),
            evidence,
            ledger: std::fs::read_to_string(dir.join(LEDGER)).ok(),
        })
    }
}
