//! What a run says: the scenario's own report, the cells of the matrix, the demo's, and the files made of them.
//!
//! ```text
//! ScenarioReport, CellReport, DemoReport ──▶ text (a terminal)
//!        │ + the evidence that was kept beside each
//!        ▼
//!       Run ──▶ files: report.html · report.json · history.jsonl · junit.xml · ledger.beancount
//! ```
//!
//! Owns: the shape of the results and how a human or a machine reads them.
//! Does not own: producing them; judging (`invariant/`).
//! On failure: plain data cannot fail; a file that cannot be written is a [`crate::stack::RunError`] with its path.

mod cells;
mod demo;
mod events;
mod files;
mod html;
mod json;
mod junit;
pub mod latency;
mod ledger;
mod run;
mod text;
pub mod timeline;
pub mod tokens;

pub use cells::{CellOutcome, CellReport};
pub use demo::DemoReport;
pub use files::writable;
pub use html::page;
pub use ledger::{LEDGER, balances};
pub use money_kit::amount;
pub use run::{Run, StackSeen, Story};
pub use text::{euros, matrix_text, money, verdict_table};

use crate::chaos::fault::FaultRecord;
use crate::invariant::Verdict;
use serde::{Deserialize, Serialize};

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

/// How long one thing of the load took, from when it was meant to begin: a load that waits for a slow system before it
/// sends the next request would otherwise hide exactly the slow ones (coordinated omission).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// What (`payout`).
    pub what: String,
    /// When it was to begin, in milliseconds since the run's start.
    pub intended_ms: u64,
    /// When it was settled, in milliseconds since the run's start; nothing while it never was.
    pub done_ms: Option<u64>,
}

/// The negative control: the same with the fences off. It must lose money, or the run shows nothing and is void.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Money that left although it must not have, in minor units of `currency`.
    pub lost_minor: i64,
    /// ISO 4217.
    pub currency: String,
    /// Executions at the rail, over all its payouts.
    pub executions: u64,
    /// Payouts that the rail executed more than once.
    pub payouts_paid_twice: u64,
    /// What was run, in one sentence.
    pub what: String,
}

impl Control {
    /// Whether it lost nothing, so that the run proves nothing.
    #[must_use]
    pub const fn void(&self) -> bool {
        self.lost_minor <= 0
    }
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
    /// The same of its further stacks, where it ran on several.
    #[serde(default)]
    pub more_dirs: Vec<String>,
    /// When it began, in microseconds of the machine's boot clock, which its calls carry: zero of every `…_ms` above.
    #[serde(default)]
    pub began_us: u64,
    /// How long the things of its load took, where there was one.
    #[serde(default)]
    pub timings: Vec<Timing>,
    /// The negative control, where it was run.
    #[serde(default)]
    pub control: Option<Control>,
    /// The command line that replays it, seed and stores included.
    #[serde(default)]
    pub replay: String,
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
    /// A report of nothing yet.
    #[must_use]
    pub fn new(id: &str, title: &str, seed: u64) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            seed,
            took_ms: 0,
            steps: Vec::new(),
            checks: Vec::new(),
            measured: Vec::new(),
            faults: Vec::new(),
            verdicts: Vec::new(),
            refusals: Refusals::default(),
            dir: String::new(),
            more_dirs: Vec::new(),
            began_us: 0,
            timings: Vec::new(),
            control: None,
            replay: String::new(),
        }
    }

    /// Something more was expected and measured.
    pub fn compare<T: std::fmt::Debug>(&mut self, what: impl Into<String>, expected: T, measured: T) {
        self.checks.push(Check {
            what: what.into(),
            expected: format!("{expected:?}"),
            measured: format!("{measured:?}"),
        });
    }

    /// Whether every check and every verdict came out as it must, and the control, where it was run, lost money.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.checks.iter().all(Check::ok)
            && self.verdicts.iter().all(Verdict::held)
            && !self.control.as_ref().is_some_and(Control::void)
    }

    /// The facts all verdicts looked at.
    #[must_use]
    pub fn facts(&self) -> u64 {
        self.verdicts.iter().map(|verdict| verdict.facts).sum()
    }

    /// What was wrong, one sentence each.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let void = self.control.iter().filter(|control| control.void());
        self.failed_checks()
            .chain(self.verdicts.iter().flat_map(complaints))
            .chain(void.map(|_| VOID.to_owned()))
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
}

/// What is said of a control that lost nothing.
const VOID: &str = "with the fences off no money was lost: the control shows nothing, so the run is void";

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
