//! Marks in one SQLite file, WAL and `synchronous=FULL`: what was answered survives a kill and a power cut.
//!
//! Owns: the file, which one process at a time may have open. That is more than the marks need, and is what makes
//! clearing safe: whoever clears knows every request that is still on its way ([`crate::Keeper`]).

use super::{Admission, BLOCKING_MAX, Begin, ClearedBy, End, Ended, MarkRow, Marks, OpenRequest, RequestId};
use crate::admission::{Decision, Standing, admit};
use host_kit::{Clock, Host};
use lock_api::{FencingToken, LockKey, StoreError, StoreFuture, UnixMillis};
use rusqlite::{Connection, OptionalExtension, Row, params};
use sql_kit::{Decision as Keep, Location, Migration, SqlError, Sqlite, SqliteOptions};
use std::path::Path;
use std::time::Duration;

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "fence",
    sql: include_str!("001_fence.sql"),
}];

/// Marks in a file. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SqliteMarks {
    sql: Sqlite,
    clock: Clock,
}

impl SqliteMarks {
    /// Opens the file, makes it where it is missing. Blocks: for the start of a process.
    ///
    /// # Errors
    /// [`StoreError`] when another process has it open, or it cannot be written, is damaged, or of an unknown schema.
    pub fn open(path: &Path, host: &Host) -> Result<Self, StoreError> {
        Self::at(Location::File(path.to_owned()), host)
    }

    /// In memory: for tests alone, forgotten with the last handle.
    ///
    /// # Errors
    /// [`StoreError`] when there is no memory.
    pub fn in_memory(host: &Host) -> Result<Self, StoreError> {
        Self::at(Location::Memory, host)
    }

    fn at(location: Location, host: &Host) -> Result<Self, StoreError> {
        let mut options = SqliteOptions::new(location, MIGRATIONS);
        options.exclusive = true;
        Ok(Self {
            sql: Sqlite::open(options, host).map_err(store_error)?,
            clock: host.clock.clone(),
        })
    }

    /// Closes the file. What was answered is durable without it.
    pub async fn close(self) {
        self.sql.close().await;
    }

    fn write<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(&Connection, UnixMillis) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let clock = self.clock.clone();
        Box::pin(async move {
            self.sql
                .write(within, move |db| job(db, UnixMillis(clock.wall_ms())).map(Keep::Commit))
                .await
                .map_err(store_error)
        })
    }

    fn read<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        Box::pin(async move { self.sql.read(within, job).await.map_err(store_error) })
    }
}

impl Marks for SqliteMarks {
    fn begin(&self, request: Begin, within: Duration) -> StoreFuture<'_, Admission> {
        self.write(within, move |db, now| begin(db, now, &request))
    }

    fn end(&self, ended: Vec<Ended>, within: Duration) -> StoreFuture<'_, ()> {
        self.write(within, move |db, _| ended.iter().try_for_each(|one| end(db, one)))
    }

    fn unanswered(&self, id: RequestId, cause: String, within: Duration) -> StoreFuture<'_, ()> {
        self.write(within, move |db, _| {
            db.prepare_cached("UPDATE fence_open SET cause = ?2 WHERE id = ?1")?
                .execute(params![id, cause])
                .map(drop)
        })
    }

    fn clear(&self, ids: Vec<RequestId>, by: ClearedBy, within: Duration) -> StoreFuture<'_, Vec<OpenRequest>> {
        self.write(within, move |db, now| {
            let mut cleared = Vec::new();
            for id in &ids {
                cleared.extend(clear(db, now, id, &by)?);
            }
            Ok(cleared)
        })
    }

    fn open_requests(&self, key: Option<LockKey>, limit: u32, within: Duration) -> StoreFuture<'_, Vec<OpenRequest>> {
        self.read(within, move |db| {
            db.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM fence_open WHERE ?1 IS NULL OR key = ?1 ORDER BY seq LIMIT ?2"
            ))?
            .query_map(params![key.as_ref().map(LockKey::as_str), limit], open_request)?
            .collect()
        })
    }

    fn open_count(&self, within: Duration) -> StoreFuture<'_, u64> {
        self.read(within, |db| {
            let count: i64 = db
                .prepare_cached("SELECT count(*) FROM fence_open")?
                .query_row([], |row| row.get(0))?;
            Ok(u64::try_from(count).unwrap_or_default())
        })
    }

    fn mark(&self, key: LockKey, within: Duration) -> StoreFuture<'_, MarkRow> {
        self.read(within, move |db| {
            let standing = standing(db, key.as_str())?;
            let open: i64 = db
                .prepare_cached("SELECT count(*) FROM fence_open WHERE key = ?1")?
                .query_row([key.as_str()], |row| row.get(0))?;
            Ok(MarkRow {
                mark: standing.mark,
                announced: standing.announced,
                open: u64::try_from(open).unwrap_or_default(),
            })
        })
    }

    fn health(&self, within: Duration) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.sql.health(within).await.map_err(store_error) })
    }
}

/// `BEGIN IMMEDIATE` has locked the file before any of this: nothing is read that another writer could still change.
fn begin(db: &Connection, now: UnixMillis, request: &Begin) -> rusqlite::Result<Admission> {
    request.ended.iter().try_for_each(|one| end(db, one))?;
    let (key, token) = (request.key.as_str(), signed(request.token));
    let standing = standing(db, key)?;
    match admit(request.rule, standing, request.token) {
        Decision::Go => {
            db.prepare_cached(
                "INSERT INTO fence_mark (key, mark, spent, announced, updated_at) VALUES (?1, ?2, 1, ?2, ?3)
                 ON CONFLICT (key) DO UPDATE SET mark = excluded.mark, spent = 1, updated_at = excluded.updated_at,
                                                 announced = max(announced, excluded.announced)",
            )?
            .execute(params![key, token, now.0])?;
            db.prepare_cached("INSERT INTO fence_open (id, key, token, what, begun_at) VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![request.id, key, token, request.what, now.0])?;
            Ok(Admission::Begun)
        }
        Decision::FencedOut { reason, highest } => Ok(Admission::FencedOut { reason, highest }),
        Decision::InDoubt { .. } => {
            db.prepare_cached(
                "INSERT INTO fence_mark (key, announced, updated_at) VALUES (?1, ?2, ?3)
                 ON CONFLICT (key) DO UPDATE SET announced = excluded.announced, updated_at = excluded.updated_at
                  WHERE announced < excluded.announced",
            )?
            .execute(params![key, token, now.0])?;
            let blocking = db
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM fence_open WHERE key = ?1 AND token < ?2 ORDER BY seq LIMIT ?3"
                ))?
                .query_map(params![key, token, BLOCKING_MAX], open_request)?
                .collect::<rusqlite::Result<_>>()?;
            Ok(Admission::InDoubt { blocking })
        }
    }
}

fn standing(db: &Connection, key: &str) -> rusqlite::Result<Standing> {
    let mut standing = db
        .prepare_cached("SELECT mark, spent, announced FROM fence_mark WHERE key = ?1")?
        .query_row([key], |row| {
            Ok(Standing {
                mark: token(row, 0)?,
                spent: row.get(1)?,
                announced: token(row, 2)?,
                lowest_open: None,
            })
        })
        .optional()?
        .unwrap_or_default();
    standing.lowest_open = db
        .prepare_cached("SELECT min(token) FROM fence_open WHERE key = ?1")?
        .query_row([key], |row| token(row, 0))?;
    Ok(standing)
}

fn end(db: &Connection, ended: &Ended) -> rusqlite::Result<()> {
    let open = db
        .prepare_cached("DELETE FROM fence_open WHERE id = ?1 RETURNING key, token")?
        .query_row([&ended.id], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))
        .optional()?;
    if let (Some((key, token)), End::NeverSent) = (open, ended.end) {
        // The token has had no effect by this one; under the strict rule there was no other.
        db.prepare_cached("UPDATE fence_mark SET spent = 0 WHERE key = ?1 AND mark = ?2")?
            .execute(params![key, token])?;
    }
    Ok(())
}

fn clear(db: &Connection, now: UnixMillis, id: &str, by: &ClearedBy) -> rusqlite::Result<Option<OpenRequest>> {
    let open = db
        .prepare_cached(&format!("DELETE FROM fence_open WHERE id = ?1 RETURNING {COLUMNS}"))?
        .query_row([id], open_request)
        .optional()?;
    if let Some(open) = &open {
        let (operator, reason) = match by {
            ClearedBy::Operator { name, reason } => (Some(name.as_str()), reason.as_str()),
            ClearedBy::Bound => (None, "the bound that the service declares has passed"),
        };
        db.prepare_cached(
            "INSERT INTO fence_cleared (at, id, key, token, what, begun_at, cause, operator, reason)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            now.0,
            open.id,
            open.key,
            signed(open.token),
            open.what,
            open.begun_at.0,
            open.cause,
            operator,
            reason
        ])?;
    }
    Ok(open)
}

const COLUMNS: &str = "id, key, token, what, begun_at, cause";

fn open_request(row: &Row<'_>) -> rusqlite::Result<OpenRequest> {
    Ok(OpenRequest {
        id: row.get(0)?,
        key: row.get(1)?,
        token: token(row, 2)?.ok_or(rusqlite::Error::IntegralValueOutOfRange(2, 0))?,
        what: row.get(3)?,
        begun_at: UnixMillis(row.get(4)?),
        cause: row.get(5)?,
    })
}

#[allow(clippy::disallowed_methods, reason = "this is a store of tokens")]
fn token(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<FencingToken>> {
    let Some(value) = row.get::<_, Option<i64>>(at)? else {
        return Ok(None);
    };
    let malformed = || rusqlite::Error::IntegralValueOutOfRange(at, value);
    let natural = u64::try_from(value).map_err(|_| malformed())?;
    FencingToken::from_store(natural).map(Some).map_err(|_| malformed())
}

fn signed(token: FencingToken) -> i64 {
    // Below 2^53 by its type.
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

fn store_error(error: SqlError) -> StoreError {
    match error {
        SqlError::Unavailable(detail) => StoreError::Unavailable { detail },
        SqlError::Unknown(detail) => StoreError::Unknown { detail },
        SqlError::Corrupt(detail) => StoreError::Corrupt { detail },
    }
}
