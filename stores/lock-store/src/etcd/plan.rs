//! One transaction in the making: what it compares, what it changes, which facts it records.

use super::layout::Layout;
use super::records::{EventRecord, HeadRecord, HeldRecord, HolderRecord, KeyRecord, LineageRecord, YieldRecord, text};
use super::snapshot::{KeyRows, Snapshot};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};
use lock_api::{EventKind, StoreError};
use std::collections::BTreeMap;

/// What `actor` says when no session and no operator did it.
pub(super) const LEASE_CLOCK: &str = "lease-clock";

/// A fact to be recorded; what does not apply stays at its default.
#[derive(Default)]
pub(super) struct Fact<'a> {
    pub(super) key: Option<&'a str>,
    pub(super) session: Option<&'a str>,
    pub(super) token: Option<u64>,
    /// The token is the one that this transaction mints.
    pub(super) minted: bool,
    pub(super) actor: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
}

/// How a grant ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Given back, or its session was closed.
    Clean,
    /// Lost: its key is closed for as long as it asked.
    Unclean,
}

/// The last token of a key that is freed.
#[derive(Clone, Copy)]
pub(super) enum LastToken {
    /// The grant's own.
    Own(u64),
    /// The one that this transaction mints.
    Minted,
}

pub(super) struct Plan<'a> {
    layout: &'a Layout,
    head: HeadRecord,
    head_rev: i64,
    lineage_rev: i64,
    offset: u64,
    wall_ms: i64,
    compares: BTreeMap<Vec<u8>, i64>,
    ops: Vec<TxnOp>,
    facts: Vec<EventRecord>,
    mints: bool,
}

/// A transaction, and what tells whether it was made.
pub(super) struct Finished {
    /// Where it is not made it reads the head, and the place of its first fact.
    pub(super) txn: Txn,
    /// The highest seq after it.
    pub(super) last_seq: u64,
    /// None where it records no fact.
    pub(super) mark: Option<Mark>,
    /// The head after it; what it says under this transaction's revision.
    pub(super) head: HeadRecord,
}

/// What a transaction that records facts leaves behind: no other one writes a fact of the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its first fact's number.
    pub(super) seq: u64,
    /// What its first fact says about who recorded it.
    pub(super) by: String,
    /// The revision of the head that it compares.
    pub(super) head_rev: i64,
    /// The head that it compares, so that it keeps what it says under a later revision.
    pub(super) head: HeadRecord,
}

impl<'a> Plan<'a> {
    pub(super) fn new(layout: &'a Layout, snapshot: &Snapshot, wall_ms: i64) -> Self {
        let last = snapshot.head.as_ref().map_or(0, |head| head.value.last(head.rev));
        Self {
            layout,
            head: HeadRecord {
                next: snapshot.head.as_ref().map_or(1, |head| head.value.next),
                last: Some(last),
                offset: 0,
            },
            head_rev: snapshot.head_rev(),
            lineage_rev: snapshot.lineage.as_ref().map_or(0, |lineage| lineage.rev),
            offset: snapshot.offset(),
            wall_ms,
            compares: BTreeMap::new(),
            ops: Vec::new(),
            facts: Vec::new(),
            mints: false,
        }
    }

    /// The transaction is made only while this was last changed at `rev`; 0: while it is not there.
    pub(super) fn unchanged(&mut self, key: Vec<u8>, rev: i64) {
        self.compares.insert(key, rev);
    }

    /// The transaction is made only while everything about this key is as it was read.
    pub(super) fn rests_on(&mut self, key: &str, rows: &KeyRows) {
        self.unchanged(self.layout.grant(key), rows.grant);
        self.unchanged(self.layout.renewed(key), rows.renewed);
        self.unchanged(
            self.layout.key(key),
            rows.record.as_ref().map_or(0, |record| record.rev),
        );
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.ops.push(TxnOp::put(key, value, None));
    }

    pub(super) fn put_leased(&mut self, key: Vec<u8>, value: Vec<u8>, lease: i64) {
        self.ops
            .push(TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease))));
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.ops.push(TxnOp::delete(key, None));
    }

    pub(super) fn operation(&mut self, operation: TxnOp) {
        self.ops.push(operation);
    }

    /// Records a fact.
    pub(super) fn fact(&mut self, kind: EventKind, fact: &Fact<'_>) {
        self.facts.push(EventRecord {
            at: self.wall_ms,
            kind: kind.as_str().to_owned(),
            key: fact.key.map(str::to_owned),
            session: fact.session.map(str::to_owned),
            token: fact.token,
            minted: fact.minted.then_some(self.offset),
            actor: fact.actor.map(str::to_owned),
            reason: fact.reason.map(str::to_owned),
            by: None,
        });
    }

    /// Grants a key whose rows are those, and records it. What it was before, a grant that has ended included, is written
    /// over.
    pub(super) fn grant(&mut self, key: &str, rows: &KeyRows, holder: HolderRecord) -> Result<(), StoreError> {
        let layout = self.layout;
        self.rests_on(key, rows);
        self.put_leased(layout.grant(key), holder.session.clone().into_bytes(), holder.lease);
        if rows.renewed != 0 {
            self.delete(layout.renewed(key));
        }
        let record = rows.record.as_ref().map(|record| &record.value);
        if record.is_some_and(|record| record.closed_ms.is_some()) {
            self.delete(layout.closed(key));
        }
        let before = record.and_then(|record| record.held.as_ref());
        self.forget_asked(key, rows);
        if let Some(before) = before.filter(|before| before.session != holder.session) {
            self.delete(layout.held(&before.session, key));
        }
        let held = HeldRecord {
            offset: self.offset,
            ttl_ms: holder.ttl_ms,
        };
        self.put(layout.held(&holder.session, key), text(&held)?);
        self.fact(
            EventKind::Granted,
            &Fact {
                key: Some(key),
                session: Some(&holder.session),
                minted: true,
                actor: Some(&holder.owner),
                ..Fact::default()
            },
        );
        let record = KeyRecord {
            held: Some(holder),
            last: None,
            offset: self.offset,
            freed_at: None,
            closed_ms: None,
        };
        self.put(layout.key(key), text(&record)?);
        self.mints = true;
        Ok(())
    }

    /// Notes beside a live grant that its holder was asked to give it up, and records it. The grant is not touched: its token
    /// is its revision, and its lease runs on as it did.
    pub(super) fn ask_to_yield(
        &mut self,
        key: &str,
        rows: &KeyRows,
        lease: i64,
        asked: &YieldRecord,
    ) -> Result<(), StoreError> {
        self.rests_on(key, rows);
        self.put_leased(self.layout.asked(key), text(asked)?, lease);
        self.put_leased(self.layout.yielding(&asked.session, key), text(asked)?, lease);
        self.fact(
            EventKind::YieldRequested,
            &Fact {
                key: Some(key),
                session: Some(&asked.session),
                token: Some(asked.token),
                actor: Some(&asked.by),
                reason: Some(&asked.reason),
                ..Fact::default()
            },
        );
        Ok(())
    }

    /// What a holder was asked goes with its grant. Where this was not seen it stays until the session's lease ends, under a
    /// token that is no live grant's, and means nothing.
    fn forget_asked(&mut self, key: &str, rows: &KeyRows) {
        if let Some(asked) = &rows.yield_asked {
            self.delete(self.layout.asked(key));
            self.delete(self.layout.yielding(&asked.session, key));
        }
    }

    /// Opens a free key again whose delay has passed, if it is closed. No fact.
    pub(super) fn open_again(&mut self, key: &str, rows: &KeyRows) -> Result<(), StoreError> {
        let (layout, record) = (self.layout, rows.record.as_ref());
        self.unchanged(layout.key(key), record.map_or(0, |record| record.rev));
        self.delete(layout.closed(key));
        if let Some(record) = record.filter(|record| record.value.closed_ms.is_some()) {
            let mut open = record.value.clone();
            (open.last, open.closed_ms) = (Some(record.value.token(record.rev)), None);
            self.put(layout.key(key), text(&open)?);
        }
        Ok(())
    }

    /// Frees a key of its holder. The fact is the caller's.
    pub(super) fn free(
        &mut self,
        key: &str,
        rows: &KeyRows,
        holder: &HolderRecord,
        (last, end): (LastToken, End),
    ) -> Result<(), StoreError> {
        let layout = self.layout;
        let delay = (end == End::Unclean && holder.lock_delay_ms > 0).then_some(holder.lock_delay_ms);
        if let Some(delay) = delay {
            self.put(layout.closed(key), text(&delay)?);
        }
        self.forget_asked(key, rows);
        self.delete(layout.grant(key));
        // Also where none was seen: one that is made meanwhile goes as well.
        self.delete(layout.renewed(key));
        self.delete(layout.held(&holder.session, key));
        let record = KeyRecord {
            held: None,
            last: match last {
                LastToken::Own(token) => Some(token),
                LastToken::Minted => None,
            },
            offset: self.offset,
            freed_at: Some(self.wall_ms),
            closed_ms: delay,
        };
        self.mints |= matches!(last, LastToken::Minted);
        self.put(layout.key(key), text(&record)?);
        Ok(())
    }

    pub(super) fn lineage(&mut self, record: &LineageRecord) -> Result<(), StoreError> {
        self.put(self.layout.lineage(), text(record)?);
        self.unchanged(self.layout.lineage(), self.lineage_rev);
        Ok(())
    }

    /// Whether another item fits in, of however many operations.
    pub(super) fn has_room(&self, operations_max: usize) -> bool {
        // The largest item, the end of a session with it, and the head.
        self.ops.len() + self.facts.len() + 13 <= operations_max || self.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.facts.is_empty()
    }

    /// The transaction. `by` is an id that no other has.
    pub(super) fn finish(mut self, by: String) -> Result<Finished, StoreError> {
        let (first, mut mark) = (self.head.next, None);
        if let Some(fact) = self.facts.first_mut() {
            fact.by = Some(by.clone());
            mark = Some(Mark {
                seq: first,
                by,
                head_rev: self.head_rev,
                head: self.head.clone(),
            });
        }
        for (seq, fact) in (first..).zip(std::mem::take(&mut self.facts)) {
            self.put(self.layout.event(seq), text(&fact)?);
            self.head.next = seq + 1;
        }
        if mark.is_some() || self.mints {
            self.unchanged(self.layout.head(), self.head_rev);
            // The offset of a token, and whether any may be minted.
            self.unchanged(self.layout.lineage(), self.lineage_rev);
            if self.mints {
                self.head.last = None;
                self.head.offset = self.offset;
            }
            let head = text(&self.head)?;
            self.put(self.layout.head(), head);
        }
        let compares: Vec<_> = self
            .compares
            .into_iter()
            .map(|(key, rev)| Compare::mod_revision(key, CompareOp::Equal, rev))
            .collect();
        let mut txn = Txn::new().when(compares).and_then(self.ops);
        if mark.is_some() {
            let otherwise = [self.layout.head(), self.layout.event(first)];
            txn = txn.or_else(otherwise.map(|key| TxnOp::get(key, None)));
        }
        Ok(Finished {
            txn,
            last_seq: self.head.next - 1,
            mark,
            head: self.head,
        })
    }
}

impl Mark {
    /// A transaction that keeps the marked one from ever being made: the head is of another revision then.
    pub(super) fn prevented(&self, layout: &Layout) -> Result<Txn, StoreError> {
        let otherwise = [layout.head(), layout.event(self.seq)];
        Ok(Txn::new()
            .when([Compare::mod_revision(layout.head(), CompareOp::Equal, self.head_rev)])
            .and_then([TxnOp::put(layout.head(), text(&self.head)?, None)])
            .or_else(otherwise.map(|key| TxnOp::get(key, None))))
    }
}
