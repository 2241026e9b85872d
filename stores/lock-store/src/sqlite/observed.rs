//! When each live session and grant is due, on the monotonic clock of this process.
//!
//! Changed only inside a job, in step with the rows. Every change is noted so that it can be undone: by the job, when
//! its savepoint is rolled back, or by the end of the batch, when the commit failed.

use lock_api::{FencingToken, YieldAsked};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// An id or key, shared by the places that mention it.
pub(super) type Name = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionSeen {
    pub(super) owner: Name,
    pub(super) ttl: Duration,
    pub(super) deadline: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrantSeen {
    pub(super) session: Name,
    pub(super) token: FencingToken,
    /// The grant's own; it ends at the earlier of this and its session's.
    pub(super) deadline: Duration,
    /// That its holder was asked to give it up.
    pub(super) yield_asked: Option<Arc<YieldAsked>>,
}

/// What falls due. Grants before sessions, so that a grant whose own lease ended is reported as such.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Grant(Name),
    Session(Name),
    /// The end of the delay of a key that was lost uncleanly.
    Delay(Name),
}

#[derive(Debug)]
enum Undo {
    Session(Name, Option<SessionSeen>),
    Grant(Name, Option<GrantSeen>),
    Closed(Name, Option<Duration>),
    LastSeq(u64),
}

#[derive(Debug, Default)]
pub(super) struct Observed {
    sessions: HashMap<Name, SessionSeen>,
    grants: HashMap<Name, GrantSeen>,
    held: HashMap<Name, BTreeSet<Name>>,
    /// Until when each free key is closed.
    closed: HashMap<Name, Duration>,
    due: BTreeSet<(Duration, Due)>,
    last_seq: u64,
    undo: Vec<Undo>,
}

impl Observed {
    pub(super) fn session(&self, id: &str) -> Option<(&Name, &SessionSeen)> {
        self.sessions.get_key_value(id)
    }

    /// A session that is not due yet.
    pub(super) fn live_session(&self, id: &str, now: Duration) -> Option<(&Name, &SessionSeen)> {
        self.session(id).filter(|(_, seen)| now < seen.deadline)
    }

    pub(super) fn grant(&self, key: &str) -> Option<&GrantSeen> {
        self.grants.get(key)
    }

    /// What is left of a grant: to the earlier of its own end and its session's.
    pub(super) fn remaining(&self, grant: &GrantSeen, now: Duration) -> Duration {
        let session = self
            .sessions
            .get(&grant.session)
            .map_or(Duration::ZERO, |seen| seen.deadline);
        grant.deadline.min(session).saturating_sub(now)
    }

    /// The keys a session holds, in byte order.
    pub(super) fn held_by(&self, id: &str) -> impl Iterator<Item = &Name> {
        self.held.get(id).into_iter().flatten()
    }

    /// What is left of the delay of a free key, while it runs.
    pub(super) fn closed_for(&self, key: &str, now: Duration) -> Option<Duration> {
        self.closed
            .get(key)
            .map(|until| until.saturating_sub(now))
            .filter(|left| !left.is_zero())
    }

    /// The keys whose delay has passed and that were not opened yet.
    pub(super) fn to_be_opened(&self, now: Duration) -> Vec<Name> {
        self.due
            .iter()
            .take_while(|(at, _)| *at <= now)
            .filter_map(|(_, due)| match due {
                Due::Delay(key) => Some(key.clone()),
                Due::Grant(_) | Due::Session(_) => None,
            })
            .collect()
    }

    pub(super) fn first_due(&self) -> Option<&(Duration, Due)> {
        self.due.first()
    }

    pub(super) const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        (self.sessions.len(), self.grants.len())
    }

    pub(super) fn set_session(&mut self, id: Name, seen: Option<SessionSeen>) {
        let before = self.put_session(id.clone(), seen);
        self.undo.push(Undo::Session(id, before));
    }

    pub(super) fn set_grant(&mut self, key: Name, seen: Option<GrantSeen>) {
        let before = self.put_grant(key.clone(), seen);
        self.undo.push(Undo::Grant(key, before));
    }

    pub(super) fn set_closed(&mut self, key: Name, until: Option<Duration>) {
        let before = self.put_closed(key.clone(), until);
        if before != until {
            self.undo.push(Undo::Closed(key, before));
        }
    }

    pub(super) fn set_last_seq(&mut self, seq: u64) {
        self.undo.push(Undo::LastSeq(self.last_seq));
        self.last_seq = seq;
    }

    /// Where the undoing of what comes now would stop.
    pub(super) fn mark(&self) -> usize {
        self.undo.len()
    }

    /// Undoes everything after the mark.
    pub(super) fn undo_to(&mut self, mark: usize) {
        while self.undo.len() > mark {
            match self.undo.pop() {
                Some(Undo::Session(id, before)) => drop(self.put_session(id, before)),
                Some(Undo::Grant(key, before)) => drop(self.put_grant(key, before)),
                Some(Undo::Closed(key, before)) => drop(self.put_closed(key, before)),
                Some(Undo::LastSeq(before)) => self.last_seq = before,
                None => break,
            }
        }
    }

    /// What was done is on disk and is not undone any more.
    pub(super) fn committed(&mut self) {
        self.undo.clear();
        // One huge batch does not keep its memory for ever.
        self.undo.shrink_to(4096);
    }

    fn put_session(&mut self, id: Name, seen: Option<SessionSeen>) -> Option<SessionSeen> {
        if let Some(before) = self.sessions.get(&id) {
            self.due.remove(&(before.deadline, Due::Session(id.clone())));
        }
        match seen {
            Some(seen) => {
                self.due.insert((seen.deadline, Due::Session(id.clone())));
                self.sessions.insert(id, seen)
            }
            None => self.sessions.remove(&id),
        }
    }

    fn put_grant(&mut self, key: Name, seen: Option<GrantSeen>) -> Option<GrantSeen> {
        let before = self.grants.remove(&key);
        if let Some(before) = &before {
            self.due.remove(&(before.deadline, Due::Grant(key.clone())));
            if let Some(keys) = self.held.get_mut(&before.session) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.held.remove(&before.session);
                }
            }
        }
        if let Some(seen) = seen {
            self.due.insert((seen.deadline, Due::Grant(key.clone())));
            self.held.entry(seen.session.clone()).or_default().insert(key.clone());
            self.grants.insert(key, seen);
        }
        before
    }

    fn put_closed(&mut self, key: Name, until: Option<Duration>) -> Option<Duration> {
        let before = self.closed.remove(&key);
        if let Some(before) = before {
            self.due.remove(&(before, Due::Delay(key.clone())));
        }
        if let Some(until) = until {
            self.due.insert((until, Due::Delay(key.clone())));
            self.closed.insert(key, until);
        }
        before
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test of a store")]
    use super::*;
    use proptest::prelude::*;

    fn name(n: u8) -> Name {
        format!("n{n}").into()
    }

    fn act(observed: &mut Observed, step: (u8, u8, u8, bool)) {
        let (kind, id, at, some) = step;
        let deadline = Duration::from_secs(u64::from(at));
        match kind {
            0 => observed.set_session(
                name(id),
                some.then(|| SessionSeen {
                    owner: name(0),
                    ttl: deadline,
                    deadline,
                }),
            ),
            1 => observed.set_grant(
                name(id),
                some.then(|| GrantSeen {
                    session: name(at % 3),
                    token: FencingToken::from_store(u64::from(at) + 1).unwrap(),
                    deadline,
                    yield_asked: None,
                }),
            ),
            2 => observed.set_closed(name(id), some.then_some(deadline)),
            _ => observed.set_last_seq(u64::from(at)),
        }
    }

    fn shown(o: &Observed) -> impl PartialEq + std::fmt::Debug + use<> {
        let sorted = |mut v: Vec<String>| {
            v.sort();
            v
        };
        (
            sorted(o.sessions.iter().map(|s| format!("{s:?}")).collect()),
            sorted(o.grants.iter().map(|g| format!("{g:?}")).collect()),
            sorted(o.held.iter().map(|h| format!("{h:?}")).collect()),
            sorted(o.closed.iter().map(|c| format!("{c:?}")).collect()),
            o.due.clone(),
            o.last_seq,
        )
    }

    proptest! {
        #[test]
        fn undoing_leaves_everything_as_it_was(
            before in prop::collection::vec((0u8..4, 0u8..5, 0u8..9, any::<bool>()), 0..30),
            after in prop::collection::vec((0u8..4, 0u8..5, 0u8..9, any::<bool>()), 0..30),
        ) {
            let mut observed = Observed::default();
            before.into_iter().for_each(|step| act(&mut observed, step));
            let (mark, then) = (observed.mark(), shown(&observed));
            after.into_iter().for_each(|step| act(&mut observed, step));
            observed.undo_to(mark);
            prop_assert_eq!(shown(&observed), then);
            // Each live thing stands in the order of what is due exactly once.
            let all = observed.sessions.len() + observed.grants.len() + observed.closed.len();
            prop_assert_eq!(observed.due.len(), all);
            observed.undo_to(0);
            prop_assert_eq!(shown(&observed), shown(&Observed::default()));
        }
    }
}
