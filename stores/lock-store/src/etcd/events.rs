//! Facts: reading them, waiting for them, sealing them, and dropping what is sealed and old.

use super::error::CallError;
use super::layout::{Place, just_after};
use super::plan::Plan;
use super::records::{EventRecord, SealRecord, SealedRecord, parse, text};
use super::shared::Shared;
use super::snapshot::{Snapshot, Wants};
use crate::canonical::{FIRST_PREV_HASH, seal_hash};
use etcd_client::{GetOptions, KeyValue, TxnOp};
use lock_api::{EventQuery, LockEvent, Seal, StoreError};
use std::time::Duration;
use tokio::time::Instant;

/// What is read at once.
const PAGE: usize = 1000;
/// How long a look at the head may take that nobody asked for.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

impl Shared {
    pub(super) async fn events(&self, query: &EventQuery, deadline: Instant) -> Result<Vec<LockEvent>, CallError> {
        let limit = query.limit as usize;
        let (mut after, mut found) = (query.after, Vec::new());
        while found.len() < limit {
            // Of one key: the page is looked through, since the facts have one order and no index.
            let wanted = if query.key.is_some() {
                PAGE
            } else {
                PAGE.min(limit - found.len())
            };
            let page = self.page_of_events(after, wanted, deadline).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            let full = page.len() == wanted;
            found.extend(
                page.into_iter()
                    .filter(|fact| query.key.is_none() || fact.lock_key == query.key),
            );
            if !full {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn page_of_events(&self, after: u64, limit: usize, deadline: Instant) -> Result<Vec<LockEvent>, CallError> {
        let Some(first) = after.checked_add(1) else {
            return Ok(Vec::new());
        };
        let options = GetOptions::new()
            .with_range(self.layout.end_of_events())
            .with_limit(i64::try_from(limit).unwrap_or(i64::MAX));
        let answer = self.etcd.get(&self.layout.event(first), &options, deadline).await?;
        let facts: Result<Vec<_>, StoreError> = answer.kvs().iter().map(|row| self.event(row)).collect();
        Ok(facts?)
    }

    fn event(&self, row: &KeyValue) -> Result<LockEvent, StoreError> {
        let Place::Event(seq) = self.layout.place(row.key()) else {
            return Err(super::records::corrupt(&"a fact without a number"));
        };
        parse::<EventRecord>(row.key(), row.value())?.event(seq, row.mod_revision())
    }

    /// Waits for a fact above `after`; the highest seq heard of. Woken by this process's own facts and by the watch, and
    /// looks for itself now and then, in case the watch is lost.
    pub(super) async fn changed_since(&self, after: u64, within: Duration) -> Result<u64, StoreError> {
        let until = Instant::now() + within.min(Duration::from_secs(24 * 60 * 60));
        let mut heard = self.heard.subscribe();
        loop {
            let seq = *heard.borrow_and_update();
            let left = until.saturating_duration_since(Instant::now());
            if seq > after || left.is_zero() {
                return Ok(seq);
            }
            let pause = self.options.poll_every.min(left);
            if tokio::time::timeout(pause, heard.changed()).await.is_err() && pause < left {
                self.look(until.min(Instant::now() + LOOK_WITHIN)).await;
            }
        }
    }

    /// Looks at the head. One that cannot be looked at is looked at again later.
    async fn look(&self, until: Instant) {
        if let Ok(Snapshot { head: Some(head), .. }) = self.read(Wants::new(&self.layout), until).await {
            self.announce(head.value.next - 1);
        }
    }

    /// Seals what follows the last seal; a new chain where there is none to follow.
    pub(super) async fn seal(&self, limit: u32, deadline: Instant) -> Result<Option<Seal>, CallError> {
        let _turn = self.turn(deadline).await?;
        loop {
            let mut wants = Wants::new(&self.layout);
            wants.sealed();
            let snapshot = self.read(wants, deadline).await?;
            let before = snapshot.sealed.as_ref();
            let query = EventQuery {
                key: None,
                after: before.map_or(0, |sealed| sealed.value.last_seq),
                limit,
            };
            let segment = self.events(&query, deadline).await?;
            let (Some(first), Some(last)) = (segment.first(), segment.last()) else {
                return Ok(None);
            };
            let (chain, n, prev_hash) = before.map_or_else(
                || (self.ids.ulid(), 1, FIRST_PREV_HASH.to_owned()),
                |sealed| {
                    (
                        sealed.value.chain.clone(),
                        sealed.value.n + 1,
                        sealed.value.hash.clone(),
                    )
                },
            );
            let seal = SealRecord {
                chain,
                n,
                first_seq: first.seq,
                last_seq: last.seq,
                hash: seal_hash(&prev_hash, &segment),
                prev_hash,
                last_at: last.at.0,
            };
            let sealed = SealedRecord {
                chain: seal.chain.clone(),
                n,
                last_seq: seal.last_seq,
                hash: seal.hash.clone(),
                dropped_up_to: before.map_or(0, |sealed| sealed.value.dropped_up_to),
            };
            let mut plan = Plan::new(&self.layout, &snapshot, self.clock.wall_ms());
            plan.unchanged(self.layout.sealed(), before.map_or(0, |sealed| sealed.rev));
            plan.put(self.layout.sealed(), text(&sealed)?);
            plan.put(self.layout.seal(seal.first_seq), text(&seal)?);
            if self.commit_aside(plan, deadline).await? {
                return Ok(Some(seal.into()));
            }
        }
    }

    pub(super) async fn seals(&self, after: u64, limit: u32, deadline: Instant) -> Result<Vec<Seal>, CallError> {
        let records = self.seal_records(after, limit as usize, deadline).await?;
        Ok(records.into_iter().map(Seal::from).collect())
    }

    /// Seals whose first event is after `after`.
    async fn seal_records(&self, after: u64, limit: usize, deadline: Instant) -> Result<Vec<SealRecord>, CallError> {
        let (mut from, mut records) = (just_after(self.layout.seal(after)), Vec::new());
        while records.len() < limit {
            let wanted = PAGE.min(limit - records.len());
            let options = GetOptions::new()
                .with_range(self.layout.end_of_seals())
                .with_limit(i64::try_from(wanted).unwrap_or(i64::MAX));
            let answer = self.etcd.get(&from, &options, deadline).await?;
            let Some(last) = answer.kvs().last() else { break };
            from = just_after(last.key().to_vec());
            for row in answer.kvs() {
                records.push(parse::<SealRecord>(row.key(), row.value())?);
            }
        }
        Ok(records)
    }

    /// Drops whole sealed segments from the oldest on. The last seal that was dropped from stays: the next one's
    /// `prev_hash` is its hash, so that what is left can be verified from its first row on.
    pub(super) async fn drop_sealed(
        &self,
        retention: Duration,
        limit: u32,
        deadline: Instant,
    ) -> Result<u32, CallError> {
        let _turn = self.turn(deadline).await?;
        loop {
            let mut wants = Wants::new(&self.layout);
            wants.sealed();
            let snapshot = self.read(wants, deadline).await?;
            let Some(sealed) = snapshot.sealed.clone() else {
                return Ok(0);
            };
            let dropped = sealed.value.dropped_up_to;
            let wall = self.clock.wall_ms();
            let cut = wall.saturating_sub(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX));
            let (mut up_to, mut gone, mut kept_seal) = (dropped, 0_u64, None);
            'seals: loop {
                // A segment begins right behind the one before it.
                let page = self.seal_records(up_to, 100, deadline).await?;
                if page.is_empty() {
                    break;
                }
                for seal in page {
                    let size = seal.last_seq - seal.first_seq + 1;
                    if seal.last_at > cut || gone + size > u64::from(limit) {
                        break 'seals;
                    }
                    (up_to, gone, kept_seal) = (seal.last_seq, gone + size, Some(seal.first_seq));
                }
            }
            let Some(kept_seal) = kept_seal else { return Ok(0) };
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            let mut now = sealed.value;
            now.dropped_up_to = up_to;
            plan.unchanged(self.layout.sealed(), sealed.rev);
            plan.put(self.layout.sealed(), text(&now)?);
            plan.delete_range(self.layout.event(0), self.layout.event(up_to + 1));
            plan.delete_range(self.layout.seal(0), self.layout.seal(kept_seal));
            if self.commit_aside(plan, deadline).await? {
                return Ok(u32::try_from(gone).unwrap_or(u32::MAX));
            }
        }
    }

    /// Makes a plan without facts. Whether it was made.
    async fn commit_aside(&self, plan: Plan<'_>, deadline: Instant) -> Result<bool, CallError> {
        self.commit(plan, deadline).await.map(|revision| revision.is_some())
    }
}

impl Plan<'_> {
    fn delete_range(&mut self, from: Vec<u8>, to: Vec<u8>) {
        let options = etcd_client::DeleteOptions::new().with_range(to);
        self.operation(TxnOp::delete(from, Some(options)));
    }
}
