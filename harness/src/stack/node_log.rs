//! What became of the nodes of a stack, in the order of time: what the report draws as pauses, kills and starts.
//!
//! Owns: which sightings are news. Does not own: looking, hurting.
//! On failure: it cannot fail.

use super::{Hurt, NodeState};
use crate::model::{NodeChange, NodeEvent};
use host_kit::Clock;
use std::cell::RefCell;

/// What was done to the nodes of one stack, and seen of them.
#[derive(Debug)]
pub struct NodeLog {
    clock: Clock,
    events: RefCell<Vec<NodeEvent>>,
}

impl NodeLog {
    /// Nothing happened yet.
    pub fn new(clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            events: RefCell::default(),
        }
    }

    /// Everything so far.
    pub fn events(&self) -> Vec<NodeEvent> {
        self.events.borrow().clone()
    }

    /// A node was started.
    pub fn started(&self, node: &str) {
        self.note(node, NodeChange::Started);
    }

    /// A node was hurt.
    pub fn hurt(&self, node: &str, hurt: Hurt) {
        self.note(
            node,
            match hurt {
                Hurt::Pause => NodeChange::Stopped,
                Hurt::Resume => NodeChange::Resumed,
                Hurt::Kill => NodeChange::Killed,
                Hurt::Terminate => NodeChange::AskedToEnd,
            },
        );
    }

    /// A node was looked at.
    pub fn seen(&self, node: &str, state: NodeState) {
        match state {
            // A process that was asked to end, or told to go on, may be seen stopped a moment longer: that is no news of it.
            NodeState::Stopped if self.about_to_move(node) => {}
            NodeState::Stopped => self.note(node, NodeChange::Stopped),
            NodeState::Running => {}
            NodeState::Exited(_) => self.note(node, NodeChange::Ended),
            NodeState::Signalled(_) => self.note(node, NodeChange::Killed),
        }
    }

    /// Whether the last news of a node is that it was asked to end, or told to go on.
    fn about_to_move(&self, node: &str) -> bool {
        matches!(self.last(node), Some(NodeChange::AskedToEnd | NodeChange::Resumed))
    }

    fn last(&self, node: &str) -> Option<NodeChange> {
        let events = self.events.borrow();
        events
            .iter()
            .rev()
            .find(|event| event.node == node)
            .map(|event| event.what)
    }

    /// What was the last news of a node already is none.
    fn note(&self, node: &str, what: NodeChange) {
        if self.last(node) == Some(what) {
            return;
        }
        self.events.borrow_mut().push(NodeEvent {
            node: node.to_owned(),
            at_us: u64::try_from(self.clock.boot().as_micros()).unwrap_or(u64::MAX),
            what,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host_kit::ManualClock;

    #[test]
    fn only_news_is_remembered() {
        let log = NodeLog::new(&ManualClock::new().clock());
        log.started("W1");
        log.seen("W1", NodeState::Running);
        log.hurt("W1", Hurt::Pause);
        log.seen("W1", NodeState::Stopped);
        log.hurt("W1", Hurt::Resume);
        log.seen("W1", NodeState::Stopped);
        log.seen("W2", NodeState::Stopped);
        log.hurt("W1", Hurt::Kill);
        log.seen("W1", NodeState::Signalled(9));
        log.seen("W2", NodeState::Exited(0));
        let told: Vec<_> = log.events().into_iter().map(|event| (event.node, event.what)).collect();
        let expected = [
            ("W1", NodeChange::Started),
            ("W1", NodeChange::Stopped),
            ("W1", NodeChange::Resumed),
            ("W2", NodeChange::Stopped),
            ("W1", NodeChange::Killed),
            ("W2", NodeChange::Ended),
        ];
        assert_eq!(told, expected.map(|(node, what)| (node.to_owned(), what)));
    }
}
