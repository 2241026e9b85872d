//! A run to look at: its status as a file that the console shows, a console beside its stack, and a stop at its end.
//!
//! Owns: what the status says and when it is written; when a held run goes on.
//! Does not own: the run; the console.
//! On failure: a status that cannot be written is logged; a run is not worth less for it.

use crate::model::{NodeChange, NodeEvent};
use crate::report::StepTaken;
use futures_util::future::LocalBoxFuture;
use serde_json::{Value, json};
use std::path::Path;
use std::rc::Rc;

/// The status file in the directory of a stack.
pub const STATUS: &str = "status.json";
/// How many steps and faults a status has: the latest.
const LATEST: usize = 200;

/// Told a run's name and its console's address.
pub type Began = Rc<dyn Fn(&str, &str)>;
/// The same, awaited.
pub type Until = Rc<dyn Fn(&str, &str) -> LocalBoxFuture<'static, ()>>;

/// Where a run stops at its end, with its components still there, before the harness probes the fences and judges.
#[derive(Clone)]
pub struct Hold {
    /// Told the name of the run and the address of its console as soon as there is one.
    pub began: Began,
    /// Awaited when the run's story is over, with its name and the console's address.
    pub until: Until,
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}

/// A run that is being held, with where its console is.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) hold: Hold,
    pub(super) console: String,
}

/// What a run has come to so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status<'a> {
    pub(super) name: &'a str,
    pub(super) seed: u64,
    pub(super) state: &'a str,
    pub(super) began_us: u64,
    pub(super) steps: &'a [StepTaken],
    pub(super) nodes: &'a [NodeEvent],
}

fn latest<T>(all: &[T]) -> &[T] {
    &all[all.len().saturating_sub(LATEST)..]
}

impl Status<'_> {
    /// What was done to the nodes: a first start is none of it.
    fn faults(&self) -> Vec<Value> {
        let faults: Vec<&NodeEvent> = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(n, event)| {
                event.what != NodeChange::Started || self.nodes[..*n].iter().any(|before| before.node == event.node)
            })
            .map(|(_, event)| event)
            .collect();
        latest(&faults)
            .iter()
            .map(|event| {
                let last = self.nodes.iter().rev().find(|other| other.node == event.node);
                let lasts = matches!(event.what, NodeChange::Stopped | NodeChange::Killed);
                json!({
                    "at_ms": event.at_us.saturating_sub(self.began_us) / 1_000,
                    "target": event.node,
                    "what": words(event.what),
                    "active": lasts && last.is_some_and(|last| last == *event),
                })
            })
            .collect()
    }

    fn json(&self) -> Value {
        let steps = latest(self.steps).iter();
        json!({
            "name": self.name,
            "seed": self.seed,
            "state": self.state,
            "steps": steps.map(|step| json!({"at_ms": step.at_ms, "text": step.text})).collect::<Vec<_>>(),
            "faults": self.faults(),
        })
    }

    /// Writes it whole, so that no reader sees half of it.
    pub(super) fn write(&self, dir: &Path) {
        let (path, part) = (dir.join(STATUS), dir.join("status.json.part"));
        let written = std::fs::write(&part, self.json().to_string()).and_then(|()| std::fs::rename(&part, &path));
        if let Err(error) = written {
            tracing::warn!(event = "status_not_written", path = %path.display(), %error);
        }
    }
}

const fn words(change: NodeChange) -> &'static str {
    match change {
        NodeChange::Started => "started again",
        NodeChange::Stopped => "stopped: it stands still with all that it believes",
        NodeChange::Resumed => "woken: it goes on where it stood",
        NodeChange::AskedToEnd => "asked to end",
        NodeChange::Killed => "killed",
        NodeChange::Ended => "ended by itself",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_says_which_fault_is_in_force() {
        let event = |node: &str, at_us, what| NodeEvent {
            node: node.to_owned(),
            at_us,
            what,
        };
        let nodes = [
            event("W1", 1_000_000, NodeChange::Started),
            event("W1", 3_000_000, NodeChange::Stopped),
            event("W2", 4_000_000, NodeChange::Started),
            event("W2", 5_000_000, NodeChange::Stopped),
            event("W2", 6_000_000, NodeChange::Resumed),
        ];
        let steps = [StepTaken {
            at_ms: 2_000,
            text: "W1 is stopped".to_owned(),
        }];
        let status = Status {
            name: "UC-03",
            seed: 7,
            state: "runs",
            began_us: 1_000_000,
            steps: &steps,
            nodes: &nodes,
        };
        let json = status.json();
        let faults: Vec<_> = json["faults"]
            .as_array()
            .unwrap()
            .iter()
            .map(|fault| {
                (
                    fault["target"].as_str().unwrap(),
                    fault["at_ms"].as_u64().unwrap(),
                    fault["active"] == true,
                )
            })
            .collect();
        assert_eq!(
            faults,
            [("W1", 2_000, true), ("W2", 4_000, false), ("W2", 5_000, false)]
        );
        assert_eq!(json["steps"][0]["text"], "W1 is stopped");
    }
}
