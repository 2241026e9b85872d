//! Rows as values.

#![allow(clippy::disallowed_methods, reason = "tokens come out of the store here")]

use super::error::sane;
use lock_api::{
    EventKind, FencingToken, InvalidValue, Lineage, LineageState, LockDelay, LockEvent, LockKey, Metadata, Operator,
    Owner, RequestId, SessionId, Ttl, UnixMillis, YieldAsked,
};
use rusqlite::{Connection, OptionalExtension, Row};
use std::time::Duration;

/// A key's row.
pub(super) struct KeyRow {
    pub(super) token: FencingToken,
    pub(super) ttl: Ttl,
    pub(super) granted_at: UnixMillis,
    /// None for a tombstone.
    pub(super) session_id: Option<SessionId>,
    pub(super) request_id: Option<RequestId>,
    pub(super) metadata: Option<Metadata>,
    /// What the grant asked for.
    pub(super) lock_delay: LockDelay,
    pub(super) yield_asked: Option<YieldAsked>,
}

/// The columns that [`key_row`] reads.
pub(super) const KEY_COLUMNS: &str = "token, ttl_ms, granted_at, session_id, request_id, metadata, lock_delay_ms,
    yield_by, yield_reason, yield_at";

pub(super) fn token(value: i64) -> rusqlite::Result<FencingToken> {
    sane(
        u64::try_from(value)
            .map_err(|_| InvalidValue::new("token", "must be positive"))
            .and_then(FencingToken::from_store),
    )
}

pub(super) fn number(value: i64) -> rusqlite::Result<u64> {
    sane(u64::try_from(value).map_err(|_| InvalidValue::new("number", "must not be negative")))
}

pub(super) fn ttl(value: i64) -> rusqlite::Result<Ttl> {
    sane(Ttl::new(Duration::from_millis(number(value)?)))
}

/// A TTL in whole milliseconds, rounded up: never shorter than what was asked.
pub(super) fn ttl_ms(ttl: Ttl) -> i64 {
    i64::try_from(ttl.get().as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

pub(super) fn maybe<T>(
    text: Option<String>,
    make: impl FnOnce(String) -> Result<T, InvalidValue>,
) -> rusqlite::Result<Option<T>> {
    text.map(|text| sane(make(text))).transpose()
}

/// Reads [`KEY_COLUMNS`] from column `at` on.
pub(super) fn key_row(row: &Row<'_>, at: usize) -> rusqlite::Result<KeyRow> {
    Ok(KeyRow {
        token: token(row.get(at)?)?,
        ttl: ttl(row.get(at + 1)?)?,
        granted_at: UnixMillis(row.get(at + 2)?),
        session_id: maybe(row.get(at + 3)?, SessionId::new)?,
        request_id: maybe(row.get(at + 4)?, RequestId::new)?,
        metadata: maybe(row.get(at + 5)?, Metadata::new)?,
        lock_delay: lock_delay(row.get(at + 6)?)?,
        yield_asked: yield_asked(row, at + 7)?,
    })
}

pub(super) fn lock_delay(value: i64) -> rusqlite::Result<LockDelay> {
    sane(LockDelay::new(Duration::from_millis(number(value)?)))
}

/// Reads `yield_by, yield_reason, yield_at` from column `at` on.
pub(super) fn yield_asked(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<YieldAsked>> {
    let Some(by) = maybe(row.get(at)?, Operator::new)? else {
        return Ok(None);
    };
    Ok(Some(YieldAsked {
        by,
        reason: row.get::<_, Option<String>>(at + 1)?.unwrap_or_default(),
        at: UnixMillis(row.get::<_, Option<i64>>(at + 2)?.unwrap_or(0)),
    }))
}

pub(super) fn find_key(connection: &Connection, key: &LockKey) -> rusqlite::Result<Option<KeyRow>> {
    connection
        .prepare_cached(&format!("SELECT {KEY_COLUMNS} FROM lock_grant WHERE lock_key = ?1"))?
        .query_row([key.as_str()], |row| key_row(row, 0))
        .optional()
}

/// A session's row.
pub(super) struct SessionRow {
    pub(super) session_id: SessionId,
    pub(super) owner: Owner,
    pub(super) metadata: Option<Metadata>,
    pub(super) ttl: Ttl,
    pub(super) opened_at: UnixMillis,
    pub(super) last_heartbeat_at: UnixMillis,
}

/// The columns that [`session_row`] reads.
pub(super) const SESSION_COLUMNS: &str = "session_id, owner, metadata, ttl_ms, opened_at, last_heartbeat_at";

pub(super) fn session_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        session_id: sane(SessionId::new(row.get::<_, String>(0)?))?,
        owner: sane(Owner::new(row.get::<_, String>(1)?))?,
        metadata: maybe(row.get(2)?, Metadata::new)?,
        ttl: ttl(row.get(3)?)?,
        opened_at: UnixMillis(row.get(4)?),
        last_heartbeat_at: UnixMillis(row.get(5)?),
    })
}

pub(super) fn find_session(connection: &Connection, id: &SessionId) -> rusqlite::Result<Option<SessionRow>> {
    connection
        .prepare_cached(&format!(
            "SELECT {SESSION_COLUMNS} FROM lock_session WHERE session_id = ?1"
        ))?
        .query_row([id.as_str()], session_row)
        .optional()
}

/// The columns that [`event_row`] reads.
pub(super) const EVENT_COLUMNS: &str = "seq, at, kind, lock_key, session_id, token, actor, reason";

pub(super) fn event_row(row: &Row<'_>) -> rusqlite::Result<LockEvent> {
    Ok(LockEvent {
        seq: number(row.get(0)?)?,
        at: UnixMillis(row.get(1)?),
        kind: sane(
            EventKind::parse(&row.get::<_, String>(2)?).ok_or(InvalidValue::new("kind", "must be a known kind")),
        )?,
        lock_key: maybe(row.get(3)?, LockKey::new)?,
        session_id: maybe(row.get(4)?, SessionId::new)?,
        token: row.get::<_, Option<i64>>(5)?.map(token).transpose()?,
        actor: row.get(6)?,
        reason: row.get(7)?,
    })
}

pub(super) fn find_lineage(connection: &Connection) -> rusqlite::Result<Lineage> {
    connection
        .prepare_cached(
            "SELECT l.lineage, l.token_floor, t.last, l.state, l.changed_at, l.changed_by, l.detail
             FROM lock_lineage l, lock_token_seq t WHERE l.id = 1 AND t.id = 1",
        )?
        .query_row([], |row| {
            Ok(Lineage {
                lineage: row.get(0)?,
                token_floor: number(row.get(1)?)?,
                last_token: number(row.get(2)?)?,
                // Whatever is not OK is a doubt.
                state: if row.get::<_, String>(3)? == "OK" {
                    LineageState::Ok
                } else {
                    LineageState::Regressed
                },
                changed_at: UnixMillis(row.get(4)?),
                changed_by: row.get(5)?,
                detail: row.get(6)?,
            })
        })
}

/// A delay in whole milliseconds.
pub(super) fn delay_ms(delay: LockDelay) -> i64 {
    int(delay.as_millis())
}

/// As SQLite's integer. Tokens and seqs stay below 2^53.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
