//! The top of the page: the invariants, and the negative control.

use super::{ROWS_MAX, left_out, sign, table};
use crate::invariant::Verdict;
use crate::report::run::counted;
use crate::report::{CellReport, Run, amount};
use crate::scenario::CURRENCY;
use maud::{Markup, html};

/// The invariants with the facts each looked at.
pub(super) fn section(run: &Run) -> Markup {
    let rows = html! {
        thead { tr {
            th scope="col" { "Invariant" }
            th scope="col" { "Verdict" }
            th.n scope="col" { "Facts looked at" }
            th.n scope="col" { "Violations" }
            th scope="col" { "What it says" }
        } }
        tbody { @for verdict in &run.verdicts { tr {
            th scope="row" { (verdict.invariant.id()) }
            td { (judged(verdict)) }
            td.n { (verdict.facts) }
            td.n { (verdict.violations.len()) }
            td.say { (verdict.invariant.sentence()) }
        } } }
    };
    let violations: Vec<_> = run
        .verdicts
        .iter()
        .flat_map(|verdict| {
            let all = verdict.violations.iter().chain(&verdict.not_checked);
            all.map(|what| (verdict.invariant.id(), what))
        })
        .collect();
    html! {
        section id="invariants" {
            h2 { "Invariants" }
            @if run.verdicts.is_empty() { p.failed { "✘ FAILED: no verdict was reached." } }
            @else {
                p { "A verdict that looked at no facts has failed: a check of nothing proves nothing." }
                (table("Every invariant, over everything that ran with both fences on", &rows))
            }
            @if !violations.is_empty() {
                h3 { "Violations, and what could not be checked" }
                ul { @for (id, what) in violations.iter().take(ROWS_MAX) { li { (id) ": " (what) } } }
                (left_out(violations.len(), "violation", "violations"))
            }
        }
    }
}

/// A verdict in words.
pub(super) fn judged(verdict: &Verdict) -> Markup {
    html! {
        @if verdict.held() { span.held { "✔ held" } }
        @else if verdict.facts == 0 { span.failed { "✘ FAILED: no facts" } }
        @else if !verdict.broken() { span.failed { "✘ FAILED: not all could be checked" } }
        @else { span.failed { "✘ FAILED" } }
    }
}

/// The same with the fences off.
pub(super) fn control(run: &Run) -> Markup {
    html! {
        section id="control" {
            h2 { "Negative control: the fences off" }
            @match &run.control {
                None => p { "Not part of this run. Without it the run does not show that the fences are what saves the money; "
                    code { "dlock demo" } " runs it." }
                Some(control) => {
                    @if control.void() {
                        p.verdict.failed {
                            "✘ VOID: with the fences off no money was lost, although it must be. The control shows nothing, so the run proves nothing."
                        }
                    } @else {
                        p.verdict { "✔ " (amount(control.lost_minor, &control.currency)) " lost, as it must be: "
                            (counted(usize::try_from(control.payouts_paid_twice).unwrap_or(usize::MAX), "payout was", "payouts were")) " paid more than once." }
                    }
                    p { (control.what) ". The rail executed " (control.executions) " times in it." }
                }
            }
            @if !run.matrix.is_empty() { (matrix(&run.matrix)) }
        }
    }
}

fn matrix(cells: &[CellReport]) -> Markup {
    let on_off = |on| if on { "on" } else { "OFF" };
    let rows = html! {
        thead { tr {
            th scope="col" { "Payment fence" }
            th scope="col" { "Rail fence" }
            th scope="col" { "Paused before" }
            th scope="col" { "Measured" }
            th scope="col" { "Must be" }
            th.n scope="col" { "Money lost" }
            th.n scope="col" { "Ledger wrong by" }
            th scope="col" { "Cell" }
        } }
        tbody { @for cell in cells { tr {
            td { (on_off(cell.payment_fencing)) }
            td { (on_off(cell.rail_fencing)) }
            th scope="row" { (cell.paused_before) }
            td.say { (cell.measured) }
            td.say { (cell.expected) }
            td.n { (amount(cell.lost_minor(), CURRENCY)) }
            td.n { (amount(cell.misstated_minor(), CURRENCY)) }
            td {
                @if cell.ok() { span.held { (sign(true)) " as it must be" } }
                @else { span.failed { (sign(false)) " WRONG" } }
            }
        } } }
    };
    html! {
        h3 { "Each fence on and off" }
        p { "W1 is stopped past its lease, W2 takes over, W1 wakes up and goes on under its old token. One payout a row." }
        (table("UC-03: what a stale worker does with each fence on and off", &rows))
    }
}
