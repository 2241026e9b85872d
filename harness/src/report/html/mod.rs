//! `report.html`: the run for a human, as one file that needs nothing else.
//!
//! Owns: the order of the page and its words. Charts stand in files of their own.
//! Does not own: what was found.
//! On failure: nothing can fail. Every text of the run is escaped; the page has no script and loads nothing.

mod chart;
mod latency;
mod story;
#[cfg(test)]
mod tests;
mod timeline;
mod tokens;
mod verdicts;

use super::run::counted;
use super::{Run, Story, amount};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Nothing may be loaded, run or sent; the one style sheet stands in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The longest list or table; what is left out is said under it, and stands in the other files.
const ROWS_MAX: usize = 200;

/// The page.
#[must_use]
pub fn page(run: &Run) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                title { (word(run)) ": " (run.name) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                a class="skip" href="#invariants" { "Skip to the verdicts" }
                header {
                    h1 { "dlock: " (run.name) }
                    p.verdict.failed[!run.ok()] { (sign(run.ok())) " " (run.sentence()) }
                    @if !run.wrong.is_empty() {
                        h2 { "What is wrong" }
                        ul { @for what in run.wrong.iter().take(ROWS_MAX) { li { (what) } } }
                        (left_out(run.wrong.len(), "sentence", "sentences"))
                    }
                    (facts(run))
                }
                nav aria-label="Contents" {
                    h2 { "Contents" }
                    ol {
                        li { a href="#invariants" { "Invariants" } }
                        li { a href="#control" { "Negative control" } }
                        @for (n, story) in run.stories.iter().enumerate() {
                            li { a href={ "#s" (n) } { (story.report.id) ": " (story.report.title) } " (" (word_of(story)) ")" }
                        }
                        li { a href="#replay" { "The line that replays this run" } }
                    }
                }
                main {
                    (verdicts::section(run))
                    (verdicts::control(run))
                    @for (n, story) in run.stories.iter().enumerate() { (story::section(n, story)) }
                    @if run.stories.is_empty() {
                        section { h2 { "Scenarios" } p.failed { "✘ FAILED: nothing was run." } }
                    }
                    section id="replay" {
                        h2 { "The line that replays this run" }
                        @if run.replay.is_empty() { p { "The run did not say how it was started; its seed is " (run.seed) "." } }
                        @else { pre tabindex="0" { code { (run.replay) } } }
                        p.muted {
                            "The seed replays the choices of the run: which fault strikes which target, and when. What the "
                            "kernel, the network and the databases do in between is theirs."
                        }
                    }
                }
            }
        }
    }
    .into_string()
}

const fn word(run: &Run) -> &'static str {
    if run.wrong.is_empty() { "HELD" } else { "FAILED" }
}

const fn word_of(story: &Story) -> &'static str {
    if story.ok { "as it must be" } else { "FAILED" }
}

/// A shape for who does not see the colour.
const fn sign(ok: bool) -> &'static str {
    if ok { "✔" } else { "✘" }
}

fn facts(run: &Run) -> Markup {
    let stacks = || run.stories.iter().flat_map(|story| &story.stacks);
    let faults: usize = run.stories.iter().map(|story| story.report.faults.len()).sum();
    let payouts: usize = stacks().map(|stack| stack.evidence.payouts.len()).sum();
    let calls: usize = stacks().map(|stack| stack.evidence.calls.len()).sum();
    let workers: usize = stacks()
        .map(|stack| {
            let clients = stack.evidence.calls.iter().map(|call| call.client.as_str());
            let mut clients: Vec<_> = clients.filter(|client| *client != "harness").collect();
            clients.sort_unstable();
            clients.dedup();
            clients.len()
        })
        .sum();
    html! {
        h2 { "What was run" }
        dl.facts {
            dt { "Ran" } dd { (counted(run.stories.len(), "scenario", "scenarios")) " on " (counted(stacks().count(), "stack", "stacks")) }
            dt { "Load" } dd { (counted(payouts, "payout", "payouts")) " by " (counted(workers, "worker", "workers")) ", " (counted(calls, "call", "calls")) " recorded" }
            dt { "Faults injected" } dd { (faults) }
            dt { "Stale writes refused" } dd { (run.refusals.payment) " at the payment resource, " (run.refusals.rail) " at the rail proxy" }
            dt { "Money lost, fences off" }
            dd {
                @match &run.control {
                    Some(control) => { (amount(control.lost_minor, &control.currency)) }
                    None => { "not part of this run" }
                }
            }
            dt { "Seed" } dd { (run.seed) }
            dt { "Took" } dd { (chart::seconds(run.took_ms)) }
        }
    }
}

/// What a list that was cut off has left out.
fn left_out(all: usize, one: &str, many: &str) -> Markup {
    html! {
        @if all > ROWS_MAX {
            p.muted { (counted(all - ROWS_MAX, one, many)) " more, left out here; all stand in report.json and history.jsonl." }
        }
    }
}

/// A table that may be wider than the screen.
fn table(caption: &str, content: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table { caption { (caption) } (content) }
        }
    }
}
