//! `history.jsonl`: everything that anybody saw, in the order of time, one JSON object a line.
//!
//! Owns: merging the calls of all clients with faults, processes and steps.
//! Does not own: the histories themselves (each client wrote its own).
//! On failure: plain data cannot fail.

use super::Run;
use crate::history::Call;
use crate::model::NodeChange;
use serde::Serialize;

/// One line. `boot_us` is the machine's boot clock, the same for every line; `at_us` counts from the run's start.
#[derive(Serialize)]
pub(super) struct Event<'a> {
    at_us: u64,
    boot_us: u64,
    scenario: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<&'a str>,
    #[serde(flatten)]
    what: What<'a>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum What<'a> {
    Call(&'a Call),
    FaultInjected {
        kind: &'a str,
        target: &'a str,
        observed: &'a str,
    },
    FaultUndone {
        kind: &'a str,
        target: &'a str,
    },
    Recovered {
        kind: &'a str,
        target: &'a str,
        recovered_ms: u64,
    },
    Process {
        node: &'a str,
        what: NodeChange,
    },
    Step {
        text: &'a str,
    },
}

/// Everything, in the order of time; what happened at once stays in the order in which it was recorded.
pub(super) fn all(run: &Run) -> Vec<Event<'_>> {
    let mut events = Vec::new();
    for story in &run.stories {
        let (report, scenario) = (&story.report, story.report.id.as_str());
        for stack in &story.stacks {
            let began_us = stack.evidence.began_us;
            let mut push = |boot_us: u64, what| {
                events.push(Event {
                    at_us: boot_us.saturating_sub(began_us),
                    boot_us,
                    scenario,
                    stack: Some(&stack.name),
                    what,
                });
            };
            for call in &stack.evidence.calls {
                push(call.invoked_us, What::Call(call));
            }
            for node in &stack.evidence.nodes {
                push(
                    node.at_us,
                    What::Process {
                        node: &node.node,
                        what: node.what,
                    },
                );
            }
        }
        let began_us = match report.began_us {
            0 => story.stacks.first().map_or(0, |stack| stack.evidence.began_us),
            known => known,
        };
        let mut push = |at_ms: u64, what| {
            let at_us = at_ms.saturating_mul(1_000);
            events.push(Event {
                at_us,
                boot_us: began_us.saturating_add(at_us),
                scenario,
                stack: None,
                what,
            });
        };
        for fault in &report.faults {
            let (kind, target) = (fault.kind.as_str(), fault.target.as_str());
            push(
                fault.injected_ms,
                What::FaultInjected {
                    kind,
                    target,
                    observed: &fault.observed,
                },
            );
            push(fault.undone_ms, What::FaultUndone { kind, target });
            push(
                fault.undone_ms.saturating_add(fault.recovered_ms),
                What::Recovered {
                    kind,
                    target,
                    recovered_ms: fault.recovered_ms,
                },
            );
        }
        for step in &report.steps {
            push(step.at_ms, What::Step { text: &step.text });
        }
    }
    events.sort_by_key(|event| event.boot_us);
    events
}
