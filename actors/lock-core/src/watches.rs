//! Who watches which key at this replica.
//!
//! Owns: the subscriptions and their bound. A reader that does not keep up loses its subscription, never the process's
//! memory: it reads on from the store, from the last event it was given, and subscribes again.
//! Does not own: the events (the store's), the order of delivery beyond one subscription.
//! On failure: a subscription whose channel is closed or full ends.

use lock_api::{LockEvent, LockKey};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// How many events a subscription holds for its reader.
const BUFFERED_MAX: usize = 64;

/// All subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_key: BTreeMap<LockKey, Vec<mpsc::Sender<LockEvent>>>,
    count: usize,
}

impl Watches {
    /// A new subscription to the events of `key`.
    pub(crate) fn subscribe(&mut self, key: LockKey) -> mpsc::Receiver<LockEvent> {
        let (to, from) = mpsc::channel(BUFFERED_MAX);
        self.by_key.entry(key).or_default().push(to);
        self.count += 1;
        from
    }

    /// Hands an event to those who watch its key.
    pub(crate) fn deliver(&mut self, event: &LockEvent) {
        let Some(key) = &event.lock_key else { return };
        if let Some(readers) = self.by_key.get_mut(key) {
            readers.retain(|reader| reader.try_send(event.clone()).is_ok());
            if readers.is_empty() {
                self.by_key.remove(key);
            }
            self.recount();
        }
    }

    /// Drops subscriptions whose reader has gone.
    pub(crate) fn prune(&mut self) {
        self.by_key.retain(|_, readers| {
            readers.retain(|reader| !reader.is_closed());
            !readers.is_empty()
        });
        self.recount();
    }

    /// Ends all subscriptions.
    pub(crate) fn clear(&mut self) {
        self.by_key.clear();
        self.count = 0;
    }

    fn recount(&mut self) {
        self.count = self.by_key.values().map(Vec::len).sum();
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::{EventKind, UnixMillis};

    fn event(seq: u64, key: &str) -> LockEvent {
        LockEvent {
            seq,
            at: UnixMillis(0),
            kind: EventKind::Granted,
            lock_key: LockKey::new(key).ok(),
            session_id: None,
            token: None,
            actor: None,
            reason: None,
        }
    }

    #[test]
    fn a_reader_that_does_not_keep_up_loses_its_subscription() {
        let mut watches = Watches::default();
        let mut slow = watches.subscribe(LockKey::new("a").unwrap());
        let mut other = watches.subscribe(LockKey::new("b").unwrap());
        for seq in 1..=BUFFERED_MAX as u64 + 1 {
            watches.deliver(&event(seq, "a"));
        }
        watches.deliver(&event(100, "b"));
        assert_eq!(watches.len(), 1, "the slow one is gone, the other stays");
        let mut got = 0;
        while slow.try_recv().is_ok() {
            got += 1;
        }
        assert_eq!(got, BUFFERED_MAX, "what was handed over before is still read");
        assert_eq!(other.try_recv().unwrap().seq, 100);
        drop(other);
        watches.prune();
        assert_eq!(watches.len(), 0);
    }
}
