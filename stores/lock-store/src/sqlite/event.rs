//! Facts: reading them, sealing them, and dropping what is sealed and old.

use super::error::exactly_one;
use super::job::Job;
use super::rows::{EVENT_COLUMNS, event_row, int, number};
use crate::canonical::{FIRST_PREV_HASH, seal_hash};
use lock_api::{EventQuery, LockEvent, Seal};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;

const SEAL_COLUMNS: &str = "chain, n, first_seq, last_seq, prev_hash, hash";

pub(super) fn events(connection: &Connection, query: &EventQuery) -> rusqlite::Result<Vec<LockEvent>> {
    match &query.key {
        Some(key) => connection
            .prepare_cached(&format!(
                "SELECT {EVENT_COLUMNS} FROM lock_event WHERE lock_key = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3"
            ))?
            .query_map(params![key.as_str(), int(query.after), query.limit], event_row)?
            .collect(),
        None => connection
            .prepare_cached(&format!(
                "SELECT {EVENT_COLUMNS} FROM lock_event WHERE seq > ?1 ORDER BY seq LIMIT ?2"
            ))?
            .query_map(params![int(query.after), query.limit], event_row)?
            .collect(),
    }
}

pub(super) fn seals(connection: &Connection, after: u64, limit: u32) -> rusqlite::Result<Vec<Seal>> {
    connection
        .prepare_cached(&format!(
            "SELECT {SEAL_COLUMNS} FROM lock_event_seal WHERE first_seq > ?1 ORDER BY first_seq LIMIT ?2"
        ))?
        .query_map(params![int(after), limit], seal_row)?
        .collect()
}

/// The highest seq ever given, also when its row was dropped.
pub(super) fn last_seq(connection: &Connection) -> rusqlite::Result<u64> {
    number(connection.query_row(
        "SELECT max(coalesce((SELECT max(seq) FROM lock_event), 0), coalesce((SELECT max(last_seq) FROM lock_event_seal), 0))",
        [],
        |row| row.get(0),
    )?)
}

fn seal_row(row: &Row<'_>) -> rusqlite::Result<Seal> {
    Ok(Seal {
        chain: row.get(0)?,
        n: number(row.get(1)?)?,
        first_seq: number(row.get(2)?)?,
        last_seq: number(row.get(3)?)?,
        prev_hash: row.get(4)?,
        hash: row.get(5)?,
    })
}

impl Job<'_> {
    /// Seals what follows the last seal. `chain` names a new chain where there is no seal to follow.
    pub(super) fn seal(&self, limit: u32, chain: String) -> rusqlite::Result<Option<Seal>> {
        let before = self
            .connection
            .prepare_cached(&format!(
                "SELECT {SEAL_COLUMNS} FROM lock_event_seal ORDER BY last_seq DESC LIMIT 1"
            ))?
            .query_row([], seal_row)
            .optional()?;
        let segment = events(
            self.connection,
            &EventQuery {
                key: None,
                after: before.as_ref().map_or(0, |seal| seal.last_seq),
                limit,
            },
        )?;
        let (Some(first), Some(last)) = (segment.first(), segment.last()) else {
            return Ok(None);
        };
        let (chain, n, prev_hash) = before.map_or_else(
            || (chain, 1, FIRST_PREV_HASH.to_owned()),
            |seal| (seal.chain, seal.n + 1, seal.hash),
        );
        let seal = Seal {
            n,
            first_seq: first.seq,
            last_seq: last.seq,
            hash: seal_hash(&prev_hash, &segment),
            chain,
            prev_hash,
        };
        self.connection
            .prepare_cached(
                "INSERT INTO lock_event_seal (chain, n, first_seq, last_seq, prev_hash, hash)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                seal.chain,
                int(seal.n),
                int(seal.first_seq),
                int(seal.last_seq),
                seal.prev_hash,
                seal.hash
            ])?;
        Ok(Some(seal))
    }

    /// Drops whole sealed segments from the oldest on. The last seal that was dropped from stays: the next one's
    /// `prev_hash` is its hash, so that what is left can be verified from its first row on.
    pub(super) fn drop_sealed(&self, retention: Duration, limit: u32) -> rusqlite::Result<u32> {
        let dropped_up_to: i64 = self.connection.query_row(
            "SELECT dropped_up_to FROM lock_event_retention WHERE id = 1",
            [],
            |row| row.get(0),
        )?;
        let cut = self.wall_before(retention);
        let (mut up_to, mut gone) = (dropped_up_to, 0);
        {
            let mut statement = self.connection.prepare_cached(
                "SELECT s.first_seq, s.last_seq, e.at FROM lock_event_seal s JOIN lock_event e ON e.seq = s.last_seq
                 WHERE s.last_seq > ?1 ORDER BY s.first_seq",
            )?;
            let mut rows = statement.query([dropped_up_to])?;
            while let Some(row) = rows.next()? {
                let (first, last, at): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                let size = last - first + 1;
                if at > cut || gone + size > i64::from(limit) {
                    break;
                }
                (up_to, gone) = (last, gone + size);
            }
        }
        if gone > 0 {
            let moved = self
                .connection
                .prepare_cached("UPDATE lock_event_retention SET dropped_up_to = ?1 WHERE id = 1")?
                .execute([up_to])?;
            exactly_one(moved)?;
            self.connection
                .prepare_cached("DELETE FROM lock_event WHERE seq <= ?1")?
                .execute([up_to])?;
            self.connection
                .prepare_cached("DELETE FROM lock_event_seal WHERE last_seq < ?1")?
                .execute([up_to])?;
        }
        Ok(u32::try_from(gone).unwrap_or(u32::MAX))
    }
}
