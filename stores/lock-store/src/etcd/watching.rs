//! What other servers do, and what etcd does by itself: a watch on the whole prefix keeps the observation up to date and
//! wakes who waits.
//!
//! On failure: the watch goes on where it stopped; where that revision was compacted, or the store was rewound,
//! everything is listed again. Meanwhile nothing ends early: whoever ends something reads it first.

use super::error::{CallError, Fate, fate};
use super::layout::{Place, after_prefix, just_after};
use super::observed::SessionSeen;
use super::records::{HeadRecord, HeldRecord, SessionRecord, parse};
use super::shared::Shared;
use super::snapshot::{At, Wants};
use etcd_client::{Event, EventType, GetOptions, KeyValue, WatchOptions};
use lock_api::StoreError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a member may take to begin a watch.
const BEGIN_WITHIN: Duration = Duration::from_secs(2);
/// How long listing everything may take.
const LIST_WITHIN: Duration = Duration::from_secs(60);
const PAGE: i64 = 1000;

/// Why a watch ended.
enum Ended {
    /// It can go on where it stopped.
    Lost(String),
    /// What follows is not to be had any more.
    Gap,
}

/// Follows the store from a revision on, for ever.
pub(super) async fn follow(shared: Arc<Shared>, mut next: i64) {
    loop {
        let ended = tokio::select! {
            biased;
            () = shared.rewound.notified() => Ended::Gap,
            ended = follow_once(&shared, &mut next) => ended,
        };
        match ended {
            Ended::Lost(detail) => tracing::debug!(event = "etcd_watch_lost", detail),
            Ended::Gap => {
                tracing::info!(event = "etcd_watch_gap", from = next);
                loop {
                    match shared.list_everything(Instant::now() + LIST_WITHIN).await {
                        Ok(revision) => {
                            next = revision + 1;
                            break;
                        }
                        Err(error) => {
                            tracing::debug!(event = "etcd_list_failed", error = %StoreError::from(error));
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            }
        }
        tokio::time::sleep(shared.etcd.pause(PAUSE)).await;
    }
}

async fn follow_once(shared: &Shared, next: &mut i64) -> Ended {
    let options = WatchOptions::new().with_prefix().with_start_revision(*next);
    let begun = shared
        .etcd
        .watch(shared.layout.all(), options, Instant::now() + BEGIN_WITHIN);
    let (mut stream, member) = match begun.await {
        Ok(begun) => begun,
        Err(said) => return Ended::Lost(said),
    };
    loop {
        let news = tokio::select! {
            news = stream.message() => news,
            // It may be frozen: then nothing would come, and nothing would say so.
            () = shared.etcd.no_favourite_any_more(member) => return Ended::Lost("another member is asked now".to_owned()),
        };
        match news {
            Ok(Some(news)) if news.canceled() => {
                return if news.compact_revision() > 0 {
                    Ended::Gap
                } else {
                    Ended::Lost(news.cancel_reason().to_owned())
                };
            }
            Ok(Some(news)) => {
                for event in news.events() {
                    if let Some(row) = event.kv() {
                        *next = (*next).max(row.mod_revision() + 1);
                    }
                    if let Err(error) = shared.hear(event) {
                        // It is met again by whoever needs it.
                        tracing::warn!(event = "etcd_watch_unreadable", %error);
                    }
                }
                shared.observed(|observed| observed.watched(*next - 1));
            }
            Ok(None) => return Ended::Lost("the stream ended".to_owned()),
            Err(error) if fate(&error) == Fate::Compacted => return Ended::Gap,
            Err(error) => return Ended::Lost(error.to_string()),
        }
    }
}

impl Shared {
    fn hear(&self, event: &Event) -> Result<(), StoreError> {
        let Some(row) = event.kv() else { return Ok(()) };
        let (rev, now) = (row.mod_revision(), self.clock.mono());
        match (event.event_type(), self.layout.place(row.key())) {
            (EventType::Put, Place::Head) => {
                let head: HeadRecord = parse(row.key(), row.value())?;
                self.announce(head.next.saturating_sub(1));
                self.see_head(At { rev, value: head });
            }
            (EventType::Put, Place::Held(session, key)) => {
                let held: HeldRecord = parse(row.key(), row.value())?;
                let ttl = Duration::from_millis(held.ttl_ms);
                self.observed(|observed| observed.see_grant(key, session, (rev, 0), ttl, now));
            }
            (EventType::Delete, Place::Held(session, key)) => {
                self.observed(|observed| observed.forget_held(key, session, rev));
            }
            (EventType::Put, Place::Closed(key)) => {
                let delay = Duration::from_millis(parse(row.key(), row.value())?);
                self.observed(|observed| observed.see_closed(key, rev, delay, now));
            }
            (EventType::Delete, Place::Closed(key)) => self.observed(|observed| observed.forget_closed(key, rev)),
            (EventType::Put, Place::Renewed(key)) => {
                let ttl = Duration::from_millis(parse(row.key(), row.value())?);
                self.observed(|observed| observed.see_renewal(key, rev, ttl, now));
            }
            (EventType::Put, Place::Stamp(id)) => {
                let at: i64 = parse(row.key(), row.value())?;
                self.observed(|observed| observed.see_stamp(id, rev, Some(at), now));
            }
            (EventType::Put, Place::Session(id)) => {
                let record: SessionRecord = parse(row.key(), row.value())?;
                let seen = SessionSeen::new(&record, (rev, 0), true, now);
                self.observed(|observed| observed.see_session(id, seen, now));
            }
            (EventType::Delete, Place::Session(id)) => {
                self.observed(|observed| observed.forget_session(id, rev));
            }
            (EventType::Delete, Place::Pulse(id)) => self.observed(|observed| observed.lose_session(id, rev, now)),
            _ => {}
        }
        Ok(())
    }

    /// Looks at everything that lives, at one revision, and answers that.
    pub(super) async fn list_everything(&self, deadline: Instant) -> Result<i64, CallError> {
        loop {
            match self.list_once(deadline).await {
                Err(CallError::Compacted) => {}
                done => return done,
            }
        }
    }

    async fn list_once(&self, deadline: Instant) -> Result<i64, CallError> {
        let at = self.read(Wants::new(&self.layout), deadline).await?;
        let revision = at.revision;
        let mut sessions: BTreeMap<String, (i64, SessionRecord)> = BTreeMap::new();
        let mut stamps: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        let mut renewals: BTreeMap<String, (i64, u64)> = BTreeMap::new();
        let mut held: Vec<(String, String, i64, HeldRecord)> = Vec::new();
        let mut closed: BTreeMap<String, (i64, Duration)> = BTreeMap::new();
        let mut pulses = BTreeSet::new();
        for from in [
            self.layout.session(""),
            self.layout.pulse(""),
            self.layout.stamp(""),
            self.layout.renewed(""),
            self.layout.all_held(),
            self.layout.closed(""),
        ] {
            self.each(from, revision, deadline, |row| {
                let rev = row.mod_revision();
                match self.layout.place(row.key()) {
                    Place::Session(id) => {
                        sessions.insert(id.to_owned(), (rev, parse(row.key(), row.value())?));
                    }
                    Place::Pulse(id) => {
                        pulses.insert(id.to_owned());
                    }
                    Place::Stamp(id) => {
                        stamps.insert(id.to_owned(), (rev, parse(row.key(), row.value())?));
                    }
                    Place::Renewed(key) => {
                        renewals.insert(key.to_owned(), (rev, parse(row.key(), row.value())?));
                    }
                    Place::Closed(key) => {
                        let delay = Duration::from_millis(parse(row.key(), row.value())?);
                        closed.insert(key.to_owned(), (rev, delay));
                    }
                    Place::Held(id, key) => {
                        held.push((id.to_owned(), key.to_owned(), rev, parse(row.key(), row.value())?));
                    }
                    _ => {}
                }
                Ok(())
            })
            .await?;
        }
        let now = self.clock.mono();
        self.observed(|observed| {
            for (id, (rev, record)) in &sessions {
                let stamp = stamps.get(id).copied();
                let revs = (*rev, stamp.map_or(0, |(rev, _)| rev));
                let mut seen = SessionSeen::new(record, revs, pulses.contains(id), now);
                seen.heartbeat_at = stamp.map(|(_, at)| at);
                observed.see_session(id, seen, now);
            }
            let mut keys = BTreeSet::new();
            for (id, key, rev, record) in held {
                let renewal = renewals.get(&key).filter(|(renewed, _)| *renewed > rev);
                let ttl = Duration::from_millis(renewal.map_or(record.ttl_ms, |(_, ttl)| *ttl));
                let revs = (rev, renewal.map_or(0, |(renewed, _)| *renewed));
                observed.see_grant(&key, &id, revs, ttl, now);
                keys.insert(key);
            }
            for (key, (rev, delay)) in &closed {
                observed.see_closed(key, *rev, *delay, now);
            }
            observed.keep_only(&sessions.into_keys().collect(), &keys, &closed, revision);
            observed.watched(revision);
        });
        if let Some(head) = at.head {
            self.announce(head.value.next.saturating_sub(1));
        }
        Ok(revision)
    }

    /// Each row of a range as it was at a revision.
    async fn each(
        &self,
        mut from: Vec<u8>,
        revision: i64,
        deadline: Instant,
        mut row: impl FnMut(&KeyValue) -> Result<(), StoreError>,
    ) -> Result<(), CallError> {
        let end = after_prefix(from.clone());
        loop {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(PAGE)
                .with_revision(revision);
            let page = self.etcd.get(&from, &options, deadline).await?;
            let Some(last) = page.kvs().last() else { return Ok(()) };
            from = just_after(last.key().to_vec());
            page.kvs().iter().try_for_each(&mut row)?;
        }
    }
}
