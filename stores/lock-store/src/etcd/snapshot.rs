//! What a decision rests on: some places of the store as they were at one revision.

use super::error::{CallError, unavailable};
use super::layout::{Layout, Place};
use super::records::{
    HeadRecord, HeldRecord, KeyRecord, LineageRecord, SealedRecord, SessionRecord, YieldRecord, parse,
};
use etcd_client::{GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};
use lock_api::StoreError;
use std::collections::BTreeMap;

/// Something with the revision that last changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct At<T> {
    pub(super) rev: i64,
    pub(super) value: T,
}

/// The rows of a session.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionRows {
    pub(super) record: Option<At<SessionRecord>>,
    /// The revision of its pulse, 0 when its lease is gone.
    pub(super) pulse: i64,
    /// The wall clock of its last stamp; revision 0 when there is none.
    pub(super) stamp: i64,
    pub(super) stamped_at: Option<i64>,
}

/// The rows of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyRows {
    pub(super) record: Option<At<KeyRecord>>,
    /// The revision of its grant, 0 when there is none.
    pub(super) grant: i64,
    /// That its holder was asked to give it up, under this token or one before.
    pub(super) yield_asked: Option<YieldRecord>,
    /// The revision of its last renewal, 0 when there is none, and the TTL that it brought.
    pub(super) renewed: i64,
    pub(super) renewed_ttl_ms: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) revision: i64,
    /// The highest token that this process had seen minted before it read this.
    pub(super) seen_before: u64,
    pub(super) cluster: u64,
    pub(super) head: Option<At<HeadRecord>>,
    pub(super) lineage: Option<At<LineageRecord>>,
    pub(super) sealed: Option<At<SealedRecord>>,
    sessions: BTreeMap<String, SessionRows>,
    keys: BTreeMap<String, KeyRows>,
    held: BTreeMap<String, BTreeMap<String, At<HeldRecord>>>,
    yielding: BTreeMap<String, BTreeMap<String, YieldRecord>>,
}

/// What is to be read.
pub(super) struct Wants<'a> {
    layout: &'a Layout,
    ops: Vec<TxnOp>,
}

impl<'a> Wants<'a> {
    /// The head and the lineage, without which nothing is decided.
    pub(super) fn new(layout: &'a Layout) -> Self {
        let ops = vec![TxnOp::get(layout.head(), None), TxnOp::get(layout.lineage(), None)];
        Self { layout, ops }
    }

    fn one(&mut self, key: Vec<u8>) {
        self.ops.push(TxnOp::get(key, None));
    }

    /// Costs one operation.
    pub(super) fn sealed(&mut self) {
        self.one(self.layout.sealed());
    }

    /// Costs four operations.
    pub(super) fn key(&mut self, key: &str) {
        self.one(self.layout.key(key));
        self.one(self.layout.grant(key));
        self.one(self.layout.renewed(key));
        self.one(self.layout.asked(key));
    }

    /// Costs three operations.
    pub(super) fn session(&mut self, id: &str) {
        self.one(self.layout.session(id));
        self.one(self.layout.pulse(id));
        self.one(self.layout.stamp(id));
    }

    /// The first `limit` keys that a session holds, and what it was asked to give up. Costs two operations.
    pub(super) fn held(&mut self, id: &str, limit: usize) {
        let from = self.layout.held(id, "");
        let options = GetOptions::new()
            .with_range(super::layout::after_prefix(from.clone()))
            .with_limit(i64::try_from(limit).unwrap_or(i64::MAX));
        self.ops.push(TxnOp::get(from, Some(options)));
        let from = self.layout.yielding(id, "");
        let options = GetOptions::new().with_range(super::layout::after_prefix(from.clone()));
        self.ops.push(TxnOp::get(from, Some(options)));
    }

    pub(super) fn txn(self) -> Txn {
        Txn::new().and_then(self.ops)
    }
}

impl Snapshot {
    pub(super) fn of(layout: &Layout, answer: &TxnResponse) -> Result<Self, CallError> {
        let header = answer
            .header()
            .ok_or_else(|| CallError::from(unavailable("an answer without a header")))?;
        let mut snapshot = Self {
            revision: header.revision(),
            cluster: header.cluster_id(),
            ..Self::default()
        };
        for response in answer.op_responses() {
            if let TxnOpResponse::Get(got) = response {
                for row in got.kvs() {
                    snapshot.take(layout, row)?;
                }
            }
        }
        Ok(snapshot)
    }

    fn take(&mut self, layout: &Layout, row: &KeyValue) -> Result<(), StoreError> {
        let rev = row.mod_revision();
        fn at<T: serde::de::DeserializeOwned>(row: &KeyValue) -> Result<At<T>, StoreError> {
            Ok(At {
                rev: row.mod_revision(),
                value: parse(row.key(), row.value())?,
            })
        }
        match layout.place(row.key()) {
            Place::Head => self.head = Some(at(row)?),
            Place::Lineage => self.lineage = Some(at(row)?),
            Place::Sealed => self.sealed = Some(at(row)?),
            Place::Key(key) => self.keys.entry(key.to_owned()).or_default().record = Some(at(row)?),
            Place::Grant(key) => self.keys.entry(key.to_owned()).or_default().grant = rev,
            Place::Asked(key) => {
                let asked = parse(row.key(), row.value())?;
                self.keys.entry(key.to_owned()).or_default().yield_asked = Some(asked);
            }
            Place::Yielding(id, key) => {
                let asked = parse(row.key(), row.value())?;
                self.yielding
                    .entry(id.to_owned())
                    .or_default()
                    .insert(key.to_owned(), asked);
            }
            Place::Renewed(key) => {
                let rows = self.keys.entry(key.to_owned()).or_default();
                rows.renewed = rev;
                rows.renewed_ttl_ms = Some(parse(row.key(), row.value())?);
            }
            Place::Session(id) => self.sessions.entry(id.to_owned()).or_default().record = Some(at(row)?),
            Place::Pulse(id) => self.sessions.entry(id.to_owned()).or_default().pulse = rev,
            Place::Stamp(id) => {
                let rows = self.sessions.entry(id.to_owned()).or_default();
                rows.stamp = rev;
                rows.stamped_at = Some(parse(row.key(), row.value())?);
            }
            Place::Held(id, key) => {
                self.held
                    .entry(id.to_owned())
                    .or_default()
                    .insert(key.to_owned(), at(row)?);
            }
            Place::Closed(_) | Place::Event(_) | Place::Seal(_) | Place::Other => {}
        }
        Ok(())
    }

    pub(super) fn key(&self, key: &str) -> KeyRows {
        self.keys.get(key).cloned().unwrap_or_default()
    }

    pub(super) fn session(&self, id: &str) -> SessionRows {
        self.sessions.get(id).cloned().unwrap_or_default()
    }

    /// What a session holds, in byte order of keys.
    pub(super) fn held(&self, id: &str) -> impl Iterator<Item = (&String, &At<HeldRecord>)> {
        self.held.get(id).into_iter().flatten()
    }

    /// That a session was asked to give a key up, under this token or one before.
    pub(super) fn yielding(&self, id: &str, key: &str) -> Option<&YieldRecord> {
        self.yielding.get(id)?.get(key)
    }

    pub(super) fn head_rev(&self) -> i64 {
        self.head.as_ref().map_or(0, |head| head.rev)
    }

    /// The same rows under a later head: right where the transaction compares each row that its decision rests on, since then
    /// they stand as they stood.
    pub(super) fn under(mut self, head: Option<At<HeadRecord>>) -> Self {
        if let Some(head) = head.filter(|head| head.rev > self.head_rev()) {
            self.revision = self.revision.max(head.rev);
            self.head = Some(head);
        }
        self
    }

    pub(super) fn offset(&self) -> u64 {
        self.lineage.as_ref().map_or(0, |lineage| lineage.value.offset)
    }

    /// The last token minted, or the floor where that is above it.
    pub(super) fn last_token(&self) -> u64 {
        let last = self.head.as_ref().map_or(0, |head| head.value.last(head.rev));
        last.max(self.lineage.as_ref().map_or(0, |lineage| lineage.value.floor))
    }

    /// The lowest token that a transaction decided on this can mint.
    pub(super) fn next_token(&self) -> u64 {
        super::records::minted(self.revision, self.offset()).saturating_add(1)
    }
}
