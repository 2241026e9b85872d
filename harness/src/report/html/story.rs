//! One scenario: what happened, its timelines, latency, tokens, faults and checks.

use super::chart::at_ms;
use super::{ROWS_MAX, latency, left_out, sign, table, timeline, tokens, verdicts};
use crate::report::run::counted;
use crate::report::{ScenarioReport, Story};
use maud::{Markup, html};

pub(super) fn section(n: usize, story: &Story) -> Markup {
    let report = &story.report;
    html! {
        section id={ "s" (n) } {
            h2 { (report.id) ": " (report.title) }
            p {
                @if story.ok { span.held { (sign(true)) " as it must be" } } @else { span.failed { (sign(false)) " FAILED" } }
                ": " (counted(report.verdicts.iter().filter(|verdict| verdict.held()).count(), "verdict", "verdicts"))
                " of " (report.verdicts.len()) " held over " (report.facts()) " facts, "
                (report.checks.iter().filter(|check| check.ok()).count()) " of " (report.checks.len()) " checks as expected; seed "
                (report.seed) ", " (at_ms(report.took_ms as f64)) "."
            }
            (broken(story))
            @if !report.steps.is_empty() {
                h3 { "What happened" }
                ol.steps { @for step in report.steps.iter().take(ROWS_MAX) { li { time { (at_ms(step.at_ms as f64)) } span { (step.text) } } } }
                (left_out(report.steps.len(), "step", "steps"))
            }
            @for (m, stack) in story.stacks.iter().enumerate() {
                h3 { "Timeline" @if story.stacks.len() > 1 { " of " (stack.name) } }
                // Faults are told of the run's first stack: a run with faults has one.
                (timeline::section(&format!("s{n}-{m}"), stack, if m == 0 { &report.faults } else { &[] }))
            }
            @if story.stacks.is_empty() { h3 { "Timeline" } p { "No stack left any evidence." } }
            (latency::section(&format!("s{n}"), story))
            @for (m, stack) in story.stacks.iter().enumerate() {
                h3 { "Tokens" @if story.stacks.len() > 1 { " of " (stack.name) } }
                (tokens::section(&format!("s{n}-{m}"), stack))
            }
            (faults(report))
            (checks(report))
        }
    }
}

/// What was broken, and whether it had to be.
fn broken(story: &Story) -> Markup {
    let broken: Vec<_> = story.report.verdicts.iter().filter(|verdict| !verdict.held()).collect();
    html! {
        @if !broken.is_empty() {
            p { @if story.ok { "Broken, as it must be with a fence off:" } @else { "Not held:" } }
            ul { @for verdict in broken { li {
                (verdict.invariant.id()) " (" (verdict.invariant.sentence()) ")"
                @if verdict.facts == 0 { ": " (verdicts::judged(verdict)) " were looked at" }
                @else {
                    ": " (verdict.violations.iter().take(5).map(String::as_str).collect::<Vec<_>>().join("; "))
                    @if verdict.violations.len() > 5 { "; and " (verdict.violations.len() - 5) " more" }
                }
            } } }
        }
    }
}

fn faults(report: &ScenarioReport) -> Markup {
    let rows = html! {
        thead { tr {
            th.n scope="col" { "No." }
            th scope="col" { "Kind" }
            th scope="col" { "Target" }
            th.n scope="col" { "Injected at" }
            th scope="col" { "Observed" }
            th.n scope="col" { "Undone at" }
            th.n scope="col" { "Recovered after" }
        } }
        tbody { @for (n, fault) in report.faults.iter().take(ROWS_MAX).enumerate() { tr {
            td.n { (n + 1) }
            th scope="row" { (fault.kind) }
            td { (fault.target) }
            td.n { (at_ms(fault.injected_ms as f64)) }
            td { @if fault.observed.is_empty() { span.failed { (sign(false)) " not observed" } } @else { (fault.observed) } }
            td.n { (at_ms(fault.undone_ms as f64)) }
            td.n { (fault.recovered_ms) " ms" }
        } } }
    };
    html! {
        h3 { "Fault schedule" }
        @if report.faults.is_empty() { p { "No fault of the catalogue was injected; what the scenario itself did to its processes stands on the timeline." } }
        @else {
            (table("Every injected fault: its effect was observed before it was undone", &rows))
            (left_out(report.faults.len(), "fault", "faults"))
        }
    }
}

fn checks(report: &ScenarioReport) -> Markup {
    // What failed stands first, so that a long list does not hide it.
    let mut checks: Vec<_> = report.checks.iter().collect();
    checks.sort_by_key(|check| check.ok());
    let rows = html! {
        thead { tr {
            th scope="col" { "What" }
            th scope="col" { "Expected" }
            th scope="col" { "Measured" }
            th scope="col" { "Verdict" }
        } }
        tbody { @for check in checks.iter().take(ROWS_MAX) { tr {
            th scope="row" { (check.what) }
            td { (check.expected) }
            td { (check.measured) }
            td { @if check.ok() { span.held { (sign(true)) " ok" } } @else { span.failed { (sign(false)) " WRONG" } } }
        } } }
    };
    let measured = html! {
        thead { tr { th scope="col" { "What" } th.n scope="col" { "Took" } th.n scope="col" { "Wanted, on a quiet machine" } } }
        tbody { @for measured in &report.measured { tr {
            th scope="row" { (measured.what) }
            td.n { (measured.ms) " ms" }
            td.n { @match measured.wanted_ms { Some(ms) => { "at most " (ms) " ms" } None => { "—" } } }
        } } }
    };
    html! {
        h3 { "Checks" }
        @if checks.is_empty() { p { "This scenario makes no checks beside its verdicts." } }
        @else {
            (table("What was expected and what was measured", &rows))
            (left_out(checks.len(), "check", "checks"))
        }
        @if !report.measured.is_empty() { (table("Measured; it judges nothing, since it depends on the machine", &measured)) }
    }
}
