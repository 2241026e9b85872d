//! Rows as values.

#![allow(clippy::disallowed_methods, reason = "tokens come out of the store here")]

use super::error::sane;
use lock_api::{
    EventKind, FencingToken, Grant, HeldGrant, InvalidValue, KeyState, Lineage, LineageState, LockDelay, LockEvent,
    LockKey, Metadata, Operator, Owner, RequestId, Seal, SessionId, SessionView, StoreError, Ttl, UnixMillis,
    YieldAsked,
};
use serde::Deserialize;
use std::time::Duration;
use tokio_postgres::Row;

/// One row of `lock_answer`.
pub(super) struct Answer {
    ord: i64,
    pub(super) outcome: String,
    key: Option<String>,
    session: Option<String>,
    owner: Option<String>,
    token: Option<i64>,
    ttl_ms: Option<i64>,
    left_us: Option<i64>,
    since_ms: Option<i64>,
    request_id: Option<String>,
    metadata: Option<String>,
    number: Option<i64>,
    pub(super) detail: Option<String>,
}

impl Answer {
    pub(super) fn of(row: &Row) -> Self {
        Self {
            ord: row.get("ord"),
            outcome: row.get("outcome"),
            key: row.get("lock_key"),
            session: row.get("session_id"),
            owner: row.get("owner"),
            token: row.get("token"),
            ttl_ms: row.get("ttl_ms"),
            left_us: row.get("left_us"),
            since_ms: row.get("since_ms"),
            request_id: row.get("request_id"),
            metadata: row.get("metadata"),
            number: row.get("number"),
            detail: row.get("detail"),
        }
    }

    /// Which item of the batch it answers, from 0.
    pub(super) fn item(&self) -> Result<usize, StoreError> {
        usize::try_from(self.ord - 1).map_err(|_| misread("ord"))
    }

    pub(super) fn key(&self) -> Result<LockKey, StoreError> {
        sane(LockKey::new(there(&self.key, "lock_key")?))
    }

    pub(super) fn session(&self) -> Result<SessionId, StoreError> {
        sane(SessionId::new(there(&self.session, "session_id")?))
    }

    pub(super) fn token(&self) -> Result<FencingToken, StoreError> {
        token(there(&self.token, "token")?)
    }

    pub(super) fn left(&self) -> Option<Duration> {
        self.left_us
            .map(|us| Duration::from_micros(u64::try_from(us).unwrap_or(0)))
    }

    /// The number beside the outcome: the highest witness believed, the token minted by a revoke, the last heartbeat.
    pub(super) fn number(&self) -> Result<u64, StoreError> {
        number(there(&self.number, "number")?)
    }

    pub(super) fn minted(&self) -> Result<FencingToken, StoreError> {
        token(there(&self.number, "number")?)
    }

    pub(super) fn lowest(&self) -> Result<u64, StoreError> {
        number(there(&self.token, "token")?)
    }

    fn owner(&self) -> Result<Owner, StoreError> {
        sane(Owner::new(there(&self.owner, "owner")?))
    }

    fn ttl(&self) -> Result<Ttl, StoreError> {
        sane(Ttl::new(Duration::from_millis(number(there(&self.ttl_ms, "ttl_ms")?)?)))
    }

    fn metadata(&self) -> Result<Option<Metadata>, StoreError> {
        sane(self.metadata.clone().map(Metadata::new).transpose())
    }

    /// What the answer says of a grant beyond its columns.
    fn more(&self) -> Result<More, StoreError> {
        let Some(detail) = &self.detail else {
            return Ok(More::default());
        };
        serde_json::from_str(detail).map_err(|_| misread("detail"))
    }

    pub(super) fn grant(&self) -> Result<Grant, StoreError> {
        let more = self.more()?;
        Ok(Grant {
            key: self.key()?,
            token: self.token()?,
            session_id: self.session()?,
            owner: self.owner()?,
            ttl: self.ttl()?,
            expires_in: self.left().unwrap_or_default(),
            granted_at: UnixMillis(there(&self.since_ms, "since_ms")?),
            request_id: sane(self.request_id.clone().map(RequestId::new).transpose())?,
            metadata: self.metadata()?,
            lock_delay: more.lock_delay()?,
            yield_asked: more.yield_asked()?,
        })
    }

    pub(super) fn held(&self) -> Result<HeldGrant, StoreError> {
        Ok(HeldGrant {
            key: self.key()?,
            token: self.token()?,
            expires_in: self.left().unwrap_or_default(),
            yield_asked: self.more()?.yield_asked()?,
        })
    }

    pub(super) fn view(&self) -> Result<SessionView, StoreError> {
        Ok(SessionView {
            session_id: self.session()?,
            owner: self.owner()?,
            ttl: self.ttl()?,
            expires_in: self.left().unwrap_or_default(),
            opened_at: UnixMillis(there(&self.since_ms, "since_ms")?),
            last_heartbeat_at: UnixMillis(there(&self.number, "number")?),
            metadata: self.metadata()?,
            held: Vec::new(),
        })
    }

    pub(super) fn state(&self) -> Result<KeyState, StoreError> {
        Ok(KeyState {
            key: self.key()?,
            last_token: self.token.map(token).transpose()?,
            grant: (self.outcome == "HELD").then(|| self.grant()).transpose()?,
            closed_for: self.left().filter(|_| self.outcome == "CLOSED"),
        })
    }

    pub(super) fn lineage(&self) -> Result<Lineage, StoreError> {
        Ok(Lineage {
            lineage: there(&self.session, "lineage")?,
            token_floor: number(there(&self.token, "token_floor")?)?,
            last_token: self.number()?,
            // Whatever is not OK is a doubt.
            state: if self.outcome == "OK" {
                LineageState::Ok
            } else {
                LineageState::Regressed
            },
            changed_at: UnixMillis(there(&self.since_ms, "changed_at")?),
            changed_by: there(&self.owner, "changed_by")?,
            detail: self.detail.clone(),
        })
    }
}

/// The JSON that `lock_more` makes.
#[derive(Default, Deserialize)]
struct More {
    delay_ms: u64,
    by: Option<String>,
    reason: Option<String>,
    at: Option<i64>,
}

impl More {
    fn lock_delay(&self) -> Result<LockDelay, StoreError> {
        sane(LockDelay::new(Duration::from_millis(self.delay_ms)))
    }

    fn yield_asked(self) -> Result<Option<YieldAsked>, StoreError> {
        let Some(by) = self.by else { return Ok(None) };
        Ok(Some(YieldAsked {
            by: sane(Operator::new(by))?,
            reason: self.reason.unwrap_or_default(),
            at: UnixMillis(there(&self.at, "yield_at")?),
        }))
    }
}

/// A TTL in whole milliseconds, rounded up: never shorter than what was asked.
pub(super) fn ttl_ms(ttl: Ttl) -> i64 {
    i64::try_from(ttl.get().as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// As the database's integer. Tokens and seqs stay below 2^53.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The database keeps no NUL in a text.
pub(super) fn text(value: &str) -> String {
    value.replace('\0', "\u{fffd}")
}

fn misread(column: &'static str) -> StoreError {
    StoreError::Corrupt {
        detail: format!("an answer of the store's functions lacks {column}"),
    }
}

fn there<T: Clone>(value: &Option<T>, column: &'static str) -> Result<T, StoreError> {
    value.clone().ok_or_else(|| misread(column))
}

fn number(value: i64) -> Result<u64, StoreError> {
    sane(u64::try_from(value).map_err(|_| InvalidValue::new("number", "must not be negative")))
}

fn token(value: i64) -> Result<FencingToken, StoreError> {
    sane(FencingToken::from_store(number(value)?))
}

pub(super) const EVENT_COLUMNS: &str =
    "seq, (floor(extract(epoch FROM at) * 1000))::int8, kind, lock_key, session_id, token, actor, reason";

pub(super) fn event(row: &Row) -> Result<LockEvent, StoreError> {
    Ok(LockEvent {
        seq: number(row.get(0))?,
        at: UnixMillis(row.get(1)),
        kind: sane(EventKind::parse(row.get(2)).ok_or(InvalidValue::new("kind", "must be a known kind")))?,
        lock_key: sane(row.get::<_, Option<String>>(3).map(LockKey::new).transpose())?,
        session_id: sane(row.get::<_, Option<String>>(4).map(SessionId::new).transpose())?,
        token: row.get::<_, Option<i64>>(5).map(token).transpose()?,
        actor: row.get(6),
        reason: row.get(7),
    })
}

pub(super) const SEAL_COLUMNS: &str = "chain, n, first_seq, last_seq, prev_hash, hash";

pub(super) fn seal(row: &Row) -> Result<Seal, StoreError> {
    Ok(Seal {
        chain: row.get(0),
        n: number(row.get(1))?,
        first_seq: number(row.get(2))?,
        last_seq: number(row.get(3))?,
        prev_hash: row.get(4),
        hash: row.get(5),
    })
}
