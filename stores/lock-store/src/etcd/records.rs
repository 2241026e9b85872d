//! What stands at each place: JSON, so that an operator can read it with etcd's own tools.

#![allow(clippy::disallowed_methods, reason = "the store reads back what it minted")]

use lock_api::{
    EventKind, FencingToken, InvalidValue, LockEvent, LockKey, Operator, Seal, SessionId, StoreError, UnixMillis,
    YieldAsked,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `u/<id>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    pub(super) owner: String,
    pub(super) ttl_ms: u64,
    pub(super) metadata: Option<String>,
    pub(super) opened_at: i64,
    /// The etcd lease of its `s`, `g`, `r` and `b`.
    pub(super) lease: i64,
    /// As granted by etcd.
    pub(super) lease_ttl_s: i64,
    /// True where the lease cannot tell whether it lives: shorter than etcd's shortest lease, told by its stamps.
    pub(super) stamped: bool,
    /// Its end has begun: it does nothing any more, and what it holds is being freed.
    pub(super) ending: Option<Ending>,
}

impl SessionRecord {
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    pub(super) fn lease_ttl(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.lease_ttl_s).unwrap_or(0))
    }
}

/// How a session ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ending {
    /// Closed by whoever opened it, else its time was over.
    pub(super) closed: bool,
    pub(super) actor: String,
}

/// `t/<key>`. Its ModRevision is the one of the grant, as both are written by the granting transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyRecord {
    pub(super) held: Option<HolderRecord>,
    /// The last token, where it is not this record's own revision and offset.
    pub(super) last: Option<u64>,
    /// What was added to revisions when this was written.
    pub(super) offset: u64,
    /// When it was freed, by the wall clock of whoever freed it.
    pub(super) freed_at: Option<i64>,
    /// Its last grant was lost uncleanly: how long nobody is granted the key, counted from when this record was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) closed_ms: Option<u64>,
}

/// Who holds a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HolderRecord {
    pub(super) session: String,
    pub(super) owner: String,
    pub(super) lease: i64,
    pub(super) ttl_ms: u64,
    pub(super) granted_at: i64,
    pub(super) request_id: String,
    pub(super) metadata: Option<String>,
    /// How long the key is to stay closed should this grant be lost uncleanly.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) lock_delay_ms: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// `n/<key>` and `y/<id>/<key>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct YieldRecord {
    /// Whose it is: one that a grant before left behind means nothing.
    pub(super) token: u64,
    pub(super) session: String,
    pub(super) by: String,
    pub(super) reason: String,
    pub(super) at: i64,
}

impl YieldRecord {
    /// That this grant's holder was asked.
    pub(super) fn of(record: Option<&Self>, token: u64) -> Result<Option<YieldAsked>, StoreError> {
        let Some(record) = record.filter(|record| record.token == token) else {
            return Ok(None);
        };
        Ok(Some(YieldAsked {
            by: sane(Operator::new(record.by.clone()))?,
            reason: record.reason.clone(),
            at: UnixMillis(record.at),
        }))
    }
}

/// `h/<id>/<key>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldRecord {
    pub(super) offset: u64,
    pub(super) ttl_ms: u64,
}

/// `head`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeadRecord {
    /// The seq of the next fact.
    pub(super) next: u64,
    /// The last token minted, where it is not this record's own revision and offset.
    pub(super) last: Option<u64>,
    pub(super) offset: u64,
}

/// `lineage`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LineageRecord {
    pub(super) lineage: String,
    /// The id of the etcd cluster.
    pub(super) cluster: u64,
    /// What is added to a revision to make a token: 0 until a floor was raised.
    pub(super) offset: u64,
    pub(super) floor: u64,
    pub(super) regressed: bool,
    pub(super) detail: Option<String>,
    pub(super) changed_at: i64,
    pub(super) changed_by: String,
    /// Other ids that an operator has taken this history for, the latest last.
    pub(super) accepted: Vec<String>,
}

/// `e/<seq>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EventRecord {
    pub(super) at: i64,
    pub(super) kind: String,
    pub(super) key: Option<String>,
    pub(super) session: Option<String>,
    pub(super) token: Option<u64>,
    /// The token is this record's own revision and this.
    pub(super) minted: Option<u64>,
    pub(super) actor: Option<String>,
    pub(super) reason: Option<String>,
    /// Which transaction recorded it: on its first fact alone. Tells whoever made the transaction that it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<String>,
}

/// `a/<first seq>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SealRecord {
    pub(super) chain: String,
    pub(super) n: u64,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
    pub(super) prev_hash: String,
    pub(super) hash: String,
    /// When its last fact was recorded.
    pub(super) last_at: i64,
}

/// `sealed`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SealedRecord {
    pub(super) chain: String,
    pub(super) n: u64,
    pub(super) last_seq: u64,
    pub(super) hash: String,
    pub(super) dropped_up_to: u64,
}

pub(super) fn text<T: Serialize>(record: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(record).map_err(|error| corrupt(&error))
}

pub(super) fn parse<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|error| corrupt(&format!("{} holds {error}", String::from_utf8_lossy(key))))
}

pub(super) fn corrupt(detail: &impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt {
        detail: detail.to_string(),
    }
}

/// A stored value that could never have been written.
pub(super) fn sane<T>(value: Result<T, InvalidValue>) -> Result<T, StoreError> {
    value.map_err(|error| corrupt(&error))
}

/// The token of a revision.
pub(super) fn minted(revision: i64, offset: u64) -> u64 {
    u64::try_from(revision).unwrap_or(0).saturating_add(offset)
}

pub(super) fn token(value: u64) -> Result<FencingToken, StoreError> {
    sane(FencingToken::from_store(value))
}

impl KeyRecord {
    pub(super) fn token(&self, revision: i64) -> u64 {
        self.last.unwrap_or_else(|| minted(revision, self.offset))
    }
}

impl HeadRecord {
    pub(super) fn last(&self, revision: i64) -> u64 {
        self.last.unwrap_or_else(|| minted(revision, self.offset))
    }
}

impl EventRecord {
    pub(super) fn event(self, seq: u64, revision: i64) -> Result<LockEvent, StoreError> {
        let number = self.token.or(self.minted.map(|offset| minted(revision, offset)));
        Ok(LockEvent {
            seq,
            at: UnixMillis(self.at),
            kind: EventKind::parse(&self.kind).ok_or_else(|| corrupt(&format!("a fact of kind {}", self.kind)))?,
            lock_key: self.key.map(LockKey::new).transpose().map_err(|e| corrupt(&e))?,
            session_id: self.session.map(SessionId::new).transpose().map_err(|e| corrupt(&e))?,
            token: number.map(token).transpose()?,
            actor: self.actor,
            reason: self.reason,
        })
    }
}

impl From<SealRecord> for Seal {
    fn from(record: SealRecord) -> Self {
        Self {
            chain: record.chain,
            n: record.n,
            first_seq: record.first_seq,
            last_seq: record.last_seq,
            prev_hash: record.prev_hash,
            hash: record.hash,
        }
    }
}
