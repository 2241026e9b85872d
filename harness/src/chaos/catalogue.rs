//! The catalogue: every kind of fault the harness can inject.

use super::fault::{Fault, Ground, Kind, Level, StoreKind};
use super::{actor, etcd, link, network, operator, postgres, process, rail};
use crate::scenario::StackKind;
use crate::stack::RunError;

/// How a fault of a kind is made: with its target chosen by the run's seed.
pub type Make = fn(&Ground<'_>) -> Result<Box<dyn Fault>, RunError>;

/// An entry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Makes one.
    pub make: Make,
}

/// All of them, level by level.
#[must_use]
pub fn all() -> Vec<Entry> {
    [
        process::ENTRIES,
        actor::ENTRIES,
        link::ENTRIES,
        network::ENTRIES,
        rail::ENTRIES,
        operator::ENTRIES,
        postgres::ENTRIES,
        etcd::ENTRIES,
    ]
    .concat()
}

/// Whether a kind can be injected with this store on such a stack.
#[must_use]
pub fn is_available(kind: &Kind, store: StoreKind, stack: StackKind) -> bool {
    kind.on.contains(&store)
        && match kind.level {
            Level::Network => stack == StackKind::Containers,
            // The wires run in the harness's process, beside the children on the loopback interface.
            Level::Link => stack == StackKind::Processes,
            _ => true,
        }
}

/// Those that can be injected with this store on such a stack.
#[must_use]
pub fn available(store: StoreKind, stack: StackKind) -> Vec<Entry> {
    let mut entries = all();
    entries.retain(|entry| is_available(&entry.kind, store, stack));
    entries
}

/// The entry of this name.
#[must_use]
pub fn named(name: &str) -> Option<Entry> {
    all().into_iter().find(|entry| entry.kind.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_has_a_name_of_its_own_that_begins_with_its_level() {
        let entries = all();
        let names: BTreeSet<_> = entries.iter().map(|entry| entry.kind.name).collect();
        assert_eq!(names.len(), entries.len());
        for Entry { kind, .. } in entries {
            let level = serde_json::to_value(kind.level).unwrap();
            let prefix = kind.name.split_once('.').unwrap().0;
            assert_eq!(level.as_str(), Some(prefix), "{}", kind.name);
            assert!(!kind.on.is_empty() && !kind.what.is_empty() && !kind.undo.is_empty());
            assert_eq!(named(kind.name).unwrap().kind, kind);
        }
    }
}
