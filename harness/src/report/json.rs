//! `report.json`: the run for a machine. The fields are described in docs/report.md; a name that is there stays.
//!
//! Owns: the names and what stands under them.
//! Does not own: what was found.
//! On failure: plain data cannot fail.

use super::latency::{Percentiles, Verb, of_calls, of_load};
use super::timeline::{Refused, Timeline};
use super::tokens::{self, KeyTokens};
use super::{CellReport, Check, Control, Measured, Refusals, Run, StepTaken, Story, Timing, amount};
use crate::chaos::fault::FaultRecord;
use crate::invariant::Verdict;
use serde::Serialize;

/// The form of the file; another number when a field changes its meaning or goes.
const FORMAT: &str = "dlock-report/1";

#[derive(Serialize)]
pub(super) struct Document<'a> {
    format: &'static str,
    name: &'a str,
    seed: u64,
    took_ms: u64,
    replay: &'a str,
    ok: bool,
    void: bool,
    sentence: String,
    wrong: &'a [String],
    facts: u64,
    verdicts: Vec<Judged<'a>>,
    refusals: Refusals,
    control: Option<ControlOut<'a>>,
    matrix: Vec<Cell<'a>>,
    scenarios: Vec<Scenario<'a>>,
}

#[derive(Serialize)]
struct Judged<'a> {
    id: String,
    sentence: String,
    facts: u64,
    held: bool,
    violations: &'a [String],
}

#[derive(Serialize)]
struct ControlOut<'a> {
    #[serde(flatten)]
    control: &'a Control,
    lost: String,
    void: bool,
}

#[derive(Serialize)]
struct Cell<'a> {
    id: &'a str,
    payment_fencing: bool,
    rail_fencing: bool,
    paused_before: &'a str,
    expected: String,
    measured: String,
    ok: bool,
    lost_minor: i64,
    misstated_minor: i64,
}

#[derive(Serialize)]
struct CheckOut<'a> {
    #[serde(flatten)]
    check: &'a Check,
    ok: bool,
}

#[derive(Serialize)]
struct Scenario<'a> {
    id: &'a str,
    title: &'a str,
    seed: u64,
    took_ms: u64,
    ok: bool,
    steps: &'a [StepTaken],
    checks: Vec<CheckOut<'a>>,
    measured: &'a [Measured],
    faults: &'a [FaultRecord],
    verdicts: Vec<Judged<'a>>,
    refusals: Refusals,
    latency: Vec<Percentiles>,
    timings: &'a [Timing],
    calls: Vec<Verb>,
    stacks: Vec<Stack>,
}

#[derive(Serialize)]
struct Stack {
    name: String,
    calls: usize,
    payouts: usize,
    accounts: usize,
    grants: usize,
    executions: usize,
    keys: Vec<KeyTokens>,
    refused: Vec<Refused>,
}

fn judged(verdicts: &[Verdict]) -> Vec<Judged<'_>> {
    verdicts
        .iter()
        .map(|verdict| Judged {
            id: verdict.invariant.id().to_owned(),
            sentence: verdict.invariant.sentence().to_owned(),
            facts: verdict.facts,
            held: verdict.held(),
            violations: &verdict.violations,
        })
        .collect()
}

fn cell(cell: &CellReport) -> Cell<'_> {
    Cell {
        id: &cell.report.id,
        payment_fencing: cell.payment_fencing,
        rail_fencing: cell.rail_fencing,
        paused_before: &cell.paused_before,
        expected: cell.expected.to_string(),
        measured: cell.measured.to_string(),
        ok: cell.ok(),
        lost_minor: cell.lost_minor(),
        misstated_minor: cell.misstated_minor(),
    }
}

fn scenario(story: &Story) -> Scenario<'_> {
    let report = &story.report;
    let calls = story.stacks.iter().flat_map(|stack| &stack.evidence.calls);
    Scenario {
        id: &report.id,
        title: &report.title,
        seed: report.seed,
        took_ms: report.took_ms,
        ok: story.ok,
        steps: &report.steps,
        checks: report
            .checks
            .iter()
            .map(|check| CheckOut { check, ok: check.ok() })
            .collect(),
        measured: &report.measured,
        faults: &report.faults,
        verdicts: judged(&report.verdicts),
        refusals: report.refusals,
        latency: of_load(&report.timings),
        timings: &report.timings,
        calls: of_calls(calls),
        stacks: story
            .stacks
            .iter()
            .map(|stack| {
                let evidence = &stack.evidence;
                Stack {
                    name: stack.name.clone(),
                    calls: evidence.calls.len(),
                    payouts: evidence.payouts.len(),
                    accounts: evidence.accounts.len(),
                    grants: evidence.grants().len(),
                    executions: evidence.rail_book.iter().map(|entry| entry.executions.len()).sum(),
                    keys: tokens::of(evidence),
                    refused: Timeline::of(evidence, &[]).refused().into_iter().cloned().collect(),
                }
            })
            .collect(),
    }
}

/// The run for a machine.
pub(super) fn document(run: &Run) -> Document<'_> {
    Document {
        format: FORMAT,
        name: &run.name,
        seed: run.seed,
        took_ms: run.took_ms,
        replay: &run.replay,
        ok: run.ok(),
        void: run.void(),
        sentence: run.sentence(),
        wrong: &run.wrong,
        facts: run.facts(),
        verdicts: judged(&run.verdicts),
        refusals: run.refusals,
        control: run.control.as_ref().map(|control| ControlOut {
            control,
            lost: amount(control.lost_minor, &control.currency),
            void: control.void(),
        }),
        matrix: run.matrix.iter().map(cell).collect(),
        scenarios: run.stories.iter().map(scenario).collect(),
    }
}
