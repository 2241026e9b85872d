//! When each live session and grant is due, on the monotonic clock of this process: its whole TTL after it was last seen
//! to change, told by the revisions of its rows.
//!
//! A hint for whoever looks for what is due; whoever ends something reads it again and compares in the transaction what
//! was judged here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// An id or key, shared by the places that mention it.
pub(super) type Name = Arc<str>;

/// How much longer than a lease is waited before its session is looked at.
const AFTER_LEASE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionSeen {
    pub(super) record_rev: i64,
    pub(super) stamp_rev: i64,
    pub(super) ttl: Duration,
    pub(super) stamped: bool,
    pub(super) lease: i64,
    pub(super) lease_ttl: Duration,
    /// It ended, and the end is still to be recorded.
    pub(super) ended: bool,
    /// When it is to be looked at. A stamped session has ended then.
    pub(super) deadline: Duration,
    /// Until when its lease lives for certain, where this process knows.
    pub(super) alive_until: Option<Duration>,
    /// The wall clock of the last heartbeat that this process knows of.
    pub(super) heartbeat_at: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrantSeen {
    pub(super) session: Name,
    pub(super) rev: i64,
    pub(super) renewed_rev: i64,
    pub(super) ttl: Duration,
    /// The grant's own; it ends at the earlier of this and its session's.
    pub(super) deadline: Duration,
}

/// What falls due. Grants before sessions, so that a grant whose own lease ended is reported as such.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Due {
    Grant(Name),
    Session(Name),
    /// The end of the delay of a key that was lost uncleanly.
    Delay(Name),
}

/// A key that is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClosedSeen {
    rev: i64,
    until: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Observed {
    sessions: HashMap<Name, SessionSeen>,
    grants: HashMap<Name, GrantSeen>,
    closed: HashMap<Name, ClosedSeen>,
    due: BTreeSet<(Duration, Due)>,
    /// What this process removed ahead of the watch, and at which revision: older news of it are not taken.
    gone: HashMap<Due, i64>,
    /// The highest token that this process has seen minted.
    pub(super) last_token: u64,
}

impl Observed {
    pub(super) fn session(&self, id: &str) -> Option<&SessionSeen> {
        self.sessions.get(id)
    }

    pub(super) fn grant(&self, key: &str) -> Option<&GrantSeen> {
        self.grants.get(key)
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        (self.sessions.len(), self.grants.len())
    }

    /// The leases of live sessions.
    pub(super) fn leases(&self) -> Vec<(Name, i64)> {
        let live = self.sessions.iter().filter(|(_, seen)| !seen.ended);
        live.map(|(id, seen)| (id.clone(), seen.lease)).collect()
    }

    /// What is left of a grant: to the earlier of its own end and its session's, as far as that is known.
    pub(super) fn remaining(&self, grant: &GrantSeen, now: Duration) -> Duration {
        let own = grant.deadline.saturating_sub(now);
        self.sessions
            .get(&grant.session)
            .map_or(own, |session| own.min(session.left(now)))
    }

    /// What is due, earliest first.
    pub(super) fn due(&self, now: Duration) -> impl Iterator<Item = &Due> {
        self.due
            .iter()
            .take_while(move |(at, _)| *at <= now)
            .map(|(_, due)| due)
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    fn is_old_news(&self, due: &Due, rev: i64) -> bool {
        self.gone.get(due).is_some_and(|gone| *gone >= rev)
    }

    /// A grant was seen under these revisions. Its deadline stands while they stand.
    pub(super) fn see_grant(
        &mut self,
        key: &str,
        session: &str,
        (rev, renewed_rev): (i64, i64),
        ttl: Duration,
        now: Duration,
    ) -> GrantSeen {
        if let Some(known) = self.grants.get(key)
            && (known.rev, known.renewed_rev) >= (rev, renewed_rev)
        {
            return known.clone();
        }
        let name: Name = key.into();
        // What is known to have ended has no time left, whoever still reads of it: its own request, asked again, would be
        // told a whole lease more. (What is decided on such a reading compares the row, which has changed.)
        let ended = self.is_old_news(&Due::Grant(name.clone()), rev);
        let seen = GrantSeen {
            session: session.into(),
            rev,
            renewed_rev,
            ttl,
            deadline: if ended { now } else { now.saturating_add(ttl) },
        };
        if !ended {
            self.put_grant(name, Some(seen.clone()));
        }
        seen
    }

    /// A renewal was seen.
    pub(super) fn see_renewal(&mut self, key: &str, renewed_rev: i64, ttl: Duration, now: Duration) {
        if let Some(known) = self
            .grants
            .get(key)
            .filter(|known| known.rev < renewed_rev && known.renewed_rev < renewed_rev)
        {
            let mut seen = known.clone();
            (seen.renewed_rev, seen.ttl, seen.deadline) = (renewed_rev, ttl, now.saturating_add(ttl));
            self.put_grant(key.into(), Some(seen));
        }
    }

    /// A key was free at `rev`.
    pub(super) fn forget_grant(&mut self, key: &str, rev: i64) {
        let name: Name = key.into();
        if self.grants.get(key).is_none_or(|known| known.rev <= rev) {
            self.put_grant(name.clone(), None);
            self.gone.insert(Due::Grant(name), rev);
        }
    }

    /// A grant was lost at `rev`: its key is free, and closed for its delay.
    pub(super) fn lose_grant(&mut self, key: &str, delay_ms: u64, rev: i64, now: Duration) {
        self.forget_grant(key, rev);
        if delay_ms > 0 {
            self.see_closed(key, rev, Duration::from_millis(delay_ms), now);
        }
    }

    /// A free key was closed at `rev` for this delay. Answers until when: its whole delay after this process first saw it so.
    pub(super) fn see_closed(&mut self, key: &str, rev: i64, delay: Duration, now: Duration) -> Duration {
        if let Some(known) = self.closed.get(key).filter(|known| known.rev >= rev) {
            return known.until;
        }
        let name: Name = key.into();
        // Open again, or granted: whoever decides on such a reading compares the row, which has changed.
        if self.is_old_news(&Due::Delay(name.clone()), rev) {
            return now;
        }
        let until = now.saturating_add(delay);
        self.put_closed(name, Some(ClosedSeen { rev, until }));
        until
    }

    /// A key was not closed any more at `rev`.
    pub(super) fn forget_closed(&mut self, key: &str, rev: i64) {
        if self.closed.get(key).is_some_and(|known| known.rev <= rev) {
            let name: Name = key.into();
            self.put_closed(name.clone(), None);
            self.gone.insert(Due::Delay(name), rev);
        }
    }

    /// A session did not hold a key any more at `rev`; another may.
    pub(super) fn forget_held(&mut self, key: &str, session: &str, rev: i64) {
        if self
            .grants
            .get(key)
            .is_some_and(|known| &*known.session == session && known.rev < rev)
        {
            self.put_grant(key.into(), None);
        }
    }

    /// A session was seen under these revisions.
    pub(super) fn see_session(&mut self, id: &str, seen: SessionSeen, now: Duration) -> SessionSeen {
        if let Some(known) = self.sessions.get(id)
            && (known.record_rev, known.stamp_rev) >= (seen.record_rev, seen.stamp_rev)
        {
            if seen.ended {
                self.lose_session(id, seen.record_rev, now);
            }
            return self.sessions.get(id).cloned().unwrap_or(seen);
        }
        let name: Name = id.into();
        if !self.is_old_news(&Due::Session(name.clone()), seen.record_rev) {
            let mut seen = seen.clone();
            if let Some(known) = self.sessions.get(id) {
                seen.alive_until = seen.alive_until.max(known.alive_until);
                seen.heartbeat_at = seen.heartbeat_at.max(known.heartbeat_at);
            }
            self.put_session(name, Some(seen));
        }
        seen
    }

    /// A stamp was seen.
    pub(super) fn see_stamp(&mut self, id: &str, stamp_rev: i64, at: Option<i64>, now: Duration) {
        if let Some(known) = self
            .sessions
            .get(id)
            .filter(|known| known.stamp_rev < stamp_rev && !known.ended)
        {
            let mut seen = known.clone();
            seen.stamp_rev = stamp_rev;
            seen.heartbeat_at = at.or(seen.heartbeat_at);
            seen.deadline = now.saturating_add(seen.ttl);
            self.put_session(id.into(), Some(seen));
        }
    }

    /// A session's lease was kept alive at some moment since `sent`, or is known to live on for `left` from then.
    pub(super) fn see_alive(&mut self, id: &str, sent: Duration, left: Duration, at: Option<i64>) {
        if let Some(known) = self.sessions.get(id).filter(|known| !known.ended && !known.stamped) {
            let mut seen = known.clone();
            seen.alive_until = seen.alive_until.max(Some(sent.saturating_add(left.min(seen.ttl))));
            seen.heartbeat_at = seen.heartbeat_at.max(at);
            seen.deadline = seen.deadline.max(sent.saturating_add(left).saturating_add(AFTER_LEASE));
            self.put_session(id.into(), Some(seen));
        }
    }

    /// A session's lease was gone, or its end had begun, at `rev`. One that was opened under the same id since lives on.
    pub(super) fn lose_session(&mut self, id: &str, rev: i64, now: Duration) {
        self.lose(id, now, |known| known.record_rev <= rev);
    }

    /// This lease is gone, and with it the session that has it.
    pub(super) fn lose_lease(&mut self, id: &str, lease: i64, now: Duration) {
        self.lose(id, now, |known| known.lease == lease);
    }

    fn lose(&mut self, id: &str, now: Duration, is_it: impl Fn(&SessionSeen) -> bool) {
        if let Some(known) = self.sessions.get(id).filter(|known| !known.ended && is_it(known)) {
            let mut seen = known.clone();
            seen.ended = true;
            seen.deadline = now;
            self.put_session(id.into(), Some(seen));
        }
    }

    /// A session was not there any more at `rev`.
    pub(super) fn forget_session(&mut self, id: &str, rev: i64) {
        let name: Name = id.into();
        if self.sessions.get(id).is_none_or(|known| known.record_rev <= rev) {
            self.put_session(name.clone(), None);
            self.gone.insert(Due::Session(name), rev);
        }
    }

    /// The watch has come to `rev`: no older news will come.
    pub(super) fn watched(&mut self, rev: i64) {
        self.gone.retain(|_, gone| *gone > rev);
        if self.gone.capacity() > 4096 && self.gone.is_empty() {
            self.gone.shrink_to_fit();
        }
    }

    /// Everything that lived at `rev` has been seen: what is not among it and not younger has ended.
    pub(super) fn keep_only(
        &mut self,
        sessions: &BTreeSet<String>,
        grants: &BTreeSet<String>,
        closed: &BTreeMap<String, (i64, Duration)>,
        rev: i64,
    ) {
        let dead: Vec<_> = self
            .sessions
            .iter()
            .filter(|(id, seen)| seen.record_rev <= rev && !sessions.contains(&***id))
            .map(|(id, _)| id.clone())
            .collect();
        dead.into_iter().for_each(|id| self.put_session(id, None));
        let freed: Vec<_> = self
            .grants
            .iter()
            .filter(|(key, seen)| seen.rev <= rev && !grants.contains(&***key))
            .map(|(key, _)| key.clone())
            .collect();
        freed.into_iter().for_each(|key| self.put_grant(key, None));
        let open: Vec<_> = self
            .closed
            .iter()
            .filter(|(key, seen)| seen.rev <= rev && !closed.contains_key(&***key))
            .map(|(key, _)| key.clone())
            .collect();
        open.into_iter().for_each(|key| self.put_closed(key, None));
    }

    /// Forgets everything: the history is another one.
    pub(super) fn clear(&mut self) {
        let last_token = self.last_token;
        *self = Self {
            last_token,
            ..Self::default()
        };
    }

    fn put_session(&mut self, id: Name, seen: Option<SessionSeen>) {
        if let Some(before) = self.sessions.remove(&id) {
            self.due.remove(&(before.deadline, Due::Session(id.clone())));
        }
        if let Some(seen) = seen {
            self.due.insert((seen.deadline, Due::Session(id.clone())));
            self.sessions.insert(id, seen);
        }
    }

    fn put_closed(&mut self, key: Name, seen: Option<ClosedSeen>) {
        if let Some(before) = self.closed.remove(&key) {
            self.due.remove(&(before.until, Due::Delay(key.clone())));
        }
        if let Some(seen) = seen {
            self.due.insert((seen.until, Due::Delay(key.clone())));
            self.closed.insert(key, seen);
        }
    }

    fn put_grant(&mut self, key: Name, seen: Option<GrantSeen>) {
        if let Some(before) = self.grants.remove(&key) {
            self.due.remove(&(before.deadline, Due::Grant(key.clone())));
        }
        if let Some(seen) = seen {
            self.due.insert((seen.deadline, Due::Grant(key.clone())));
            self.grants.insert(key, seen);
        }
    }
}

impl SessionSeen {
    /// One that is seen for the first time, now.
    pub(super) fn new(
        record: &super::records::SessionRecord,
        (record_rev, stamp_rev): (i64, i64),
        pulse: bool,
        now: Duration,
    ) -> Self {
        let ended = record.ending.is_some() || !pulse;
        let until = if record.stamped {
            record.ttl()
        } else {
            record.lease_ttl().saturating_add(AFTER_LEASE)
        };
        Self {
            record_rev,
            stamp_rev,
            ttl: record.ttl(),
            stamped: record.stamped,
            lease: record.lease,
            lease_ttl: record.lease_ttl(),
            ended,
            deadline: if ended { now } else { now.saturating_add(until) },
            alive_until: None,
            heartbeat_at: None,
        }
    }

    /// Whether it may still do something.
    pub(super) fn lives(&self, now: Duration) -> bool {
        !self.ended && (!self.stamped || now < self.deadline)
    }

    /// What is left of it. Where its lease is kept alive by another server, the most that can be.
    pub(super) fn left(&self, now: Duration) -> Duration {
        if self.ended {
            Duration::ZERO
        } else if self.stamped {
            self.deadline.saturating_sub(now)
        } else {
            self.alive_until
                .filter(|until| *until > now)
                .map_or(self.ttl, |until| until.saturating_sub(now))
        }
    }

    /// Whether this process does not know for long enough that the lease lives.
    pub(super) fn is_uncertain(&self, now: Duration) -> bool {
        !self.stamped
            && !self.ended
            && self
                .alive_until
                .is_none_or(|until| until < now.saturating_add(self.ttl / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_stands_while_the_revisions_stand() {
        let mut observed = Observed::default();
        observed.see_grant("a", "s", (5, 0), S * 2, S);
        assert_eq!(observed.see_grant("a", "s", (5, 0), S * 2, S * 2).deadline, S * 3);
        observed.see_renewal("a", 7, S * 2, S * 2);
        assert_eq!(observed.grant("a").map(|seen| seen.deadline), Some(S * 4));
        observed.see_renewal("a", 6, S * 9, S * 2);
        assert_eq!(observed.grant("a").map(|seen| seen.deadline), Some(S * 4), "older news");
        assert_eq!(observed.see_grant("a", "t", (9, 0), S, S * 9).deadline, S * 10);
        assert_eq!(observed.due(S * 9).count(), 0);
        assert_eq!(observed.due(S * 10).count(), 1);
    }

    /// A read that began before a grant ended was answered after it: its own request, asked again, was told a whole lease.
    #[test]
    fn a_grant_that_is_known_to_have_ended_is_given_no_time_by_a_late_reading() {
        let mut observed = Observed::default();
        observed.see_grant("a", "s", (5, 0), S * 2, S);
        observed.forget_grant("a", 8);
        let late = observed.see_grant("a", "s", (5, 0), S * 2, S * 4);
        assert_eq!(late.deadline, S * 4, "nothing is left of it");
        assert!(observed.grant("a").is_none() && observed.next_due().is_none());
        assert_eq!(observed.see_grant("a", "t", (9, 0), S * 2, S * 4).deadline, S * 6);
    }

    /// The watch told of a lease's end after another session had been opened under the same id: that one was taken for dead.
    #[test]
    fn late_news_of_an_ended_session_do_not_end_the_next_of_the_same_id() {
        let opened = |rev| SessionSeen {
            record_rev: rev,
            stamp_rev: 0,
            ttl: S,
            stamped: false,
            lease: rev,
            lease_ttl: S,
            ended: false,
            deadline: S * 9,
            alive_until: None,
            heartbeat_at: None,
        };
        let mut observed = Observed::default();
        observed.see_session("s", opened(5), S);
        observed.see_session("s", opened(8), S);
        observed.lose_session("s", 7, S);
        observed.lose_lease("s", 5, S);
        let old = SessionSeen {
            ended: true,
            ..opened(5)
        };
        assert!(!observed.see_session("s", old, S).ended);
        observed.lose_session("s", 9, S);
        assert!(observed.see_session("s", opened(8), S).ended);
    }

    #[test]
    fn a_delay_is_counted_from_the_first_sight_of_it() {
        let mut observed = Observed::default();
        assert_eq!(observed.see_closed("a", 5, S * 4, S), S * 5);
        assert_eq!(observed.see_closed("a", 5, S * 4, S * 3), S * 5);
        assert_eq!(observed.next_due(), Some(S * 5));
        observed.forget_closed("a", 4);
        assert_eq!(
            observed.see_closed("a", 5, S * 4, S * 3),
            S * 5,
            "it was closed after that"
        );
        observed.forget_closed("a", 7);
        assert_eq!(observed.see_closed("a", 5, S * 4, S * 3), S * 3, "a late reading");
        assert_eq!(observed.next_due(), None);
        assert_eq!(observed.see_closed("a", 9, S, S * 6), S * 7);
        let still = BTreeMap::from([("a".to_owned(), (9, S))]);
        observed.keep_only(&BTreeSet::new(), &BTreeSet::new(), &still, 10);
        assert_eq!(observed.next_due(), Some(S * 7));
        observed.keep_only(&BTreeSet::new(), &BTreeSet::new(), &BTreeMap::new(), 10);
        assert_eq!(observed.next_due(), None);
    }

    #[test]
    fn what_was_freed_does_not_come_back_with_old_news() {
        let mut observed = Observed::default();
        observed.see_grant("a", "s", (5, 0), S, S);
        observed.forget_grant("a", 8);
        observed.see_grant("a", "s", (5, 0), S, S);
        assert_eq!(observed.counts(), (0, 0));
        observed.see_grant("a", "s", (9, 0), S, S);
        observed.forget_grant("a", 8);
        assert_eq!(observed.counts(), (0, 1), "a younger grant");
        observed.watched(8);
        assert!(observed.gone.is_empty());
        assert_eq!(observed.next_due(), Some(S * 2));
    }
}
