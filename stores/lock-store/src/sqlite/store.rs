//! The handle: each verb is one job.

use super::error::store_error;
use super::event::{self, last_seq};
use super::job::Job;
use super::observed::{GrantSeen, Observed, SessionSeen};
use super::rows::{lock_delay, token, ttl, yield_asked};
use host_kit::{Clock, Host, Ids};
use lock_api::{
    AcquireOutcome, AcquireRequest, EventQuery, ExpiredGrant, ExpiryReport, FloorOutcome, Heartbeat, HeartbeatOutcome,
    KeyState, Lineage, LineageState, LockEvent, LockKey, LockStore, OpenSession, Operator, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, RenewRequest, RevokeOutcome, RevokeRequest, Seal, SessionId, SessionRegistry,
    SessionView, StoreError, StoreFuture, StoreHealth, YieldOutcome, YieldRequest,
};
use rusqlite::Connection;
use sql_kit::{BatchEnd, BatchSizes, Decision, Location, Migration, Sqlite, SqliteOptions};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "lock_store",
        sql: include_str!("../../migrations/sqlite/0001_lock_store.sql"),
    },
    Migration {
        version: 2,
        name: "hand_over",
        sql: include_str!("../../migrations/sqlite/0002_hand_over.sql"),
    },
];

/// How long opening may take.
const OPEN_WITHIN: Duration = Duration::from_secs(60);

/// How to open an embedded lock store.
#[derive(Clone, Debug)]
pub struct SqliteLockStoreOptions {
    /// Where it lives. A file is this process's alone: a second process is refused.
    pub location: Location,
    /// The id that the store must have (`lock.store.lineage`); another one is a doubt, and nothing is granted until an
    /// operator has cleared it. None takes whatever is there.
    pub expected_lineage: Option<String>,
    /// The most jobs that share one durable commit.
    pub batch_max: usize,
}

impl SqliteLockStoreOptions {
    /// A store in a file.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Location::File(path.into()))
    }

    /// A store in memory, gone with its last handle.
    #[must_use]
    pub const fn memory() -> Self {
        Self::at(Location::Memory)
    }

    const fn at(location: Location) -> Self {
        Self {
            location,
            expected_lineage: None,
            batch_max: 512,
        }
    }
}

/// What the jobs share. Only one job runs at a time; the lock is never waited for.
struct Shared {
    observed: Mutex<Observed>,
    clock: Clock,
    ids: Ids,
    /// The highest seq on disk.
    seq: watch::Sender<u64>,
}

impl Shared {
    fn observed<T>(&self, f: impl FnOnce(&mut Observed) -> T) -> T {
        // A job that panicked has undone its part on the way out.
        f(&mut self.observed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end_of_batch(&self, end: BatchEnd) {
        self.observed(|observed| match end {
            BatchEnd::Committed => {
                observed.committed();
                self.seq
                    .send_if_modified(|seq| std::mem::replace(seq, observed.last_seq()) != observed.last_seq());
            }
            BatchEnd::RolledBack => observed.undo_to(0),
        });
    }
}

/// The embedded lock store. Cheap to clone.
#[derive(Clone)]
pub struct SqliteLockStore {
    sqlite: Sqlite,
    shared: Arc<Shared>,
    expected_lineage: Option<String>,
}

impl fmt::Debug for SqliteLockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLockStore")
            .field("sqlite", &self.sqlite)
            .finish_non_exhaustive()
    }
}

impl SqliteLockStore {
    /// Opens a store, initialises an empty one, and gives every live session and grant in it its full TTL from now, every
    /// closed key its full delay.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the file is in use by another process or cannot be written;
    /// [`StoreError::Corrupt`] when it is damaged or of an unknown schema.
    pub async fn open(options: SqliteLockStoreOptions, host: &Host) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared {
            observed: Mutex::new(Observed::default()),
            clock: host.clock.clone(),
            ids: host.ids.clone(),
            seq: watch::Sender::new(0),
        });
        let sqlite = Sqlite::open(
            SqliteOptions {
                exclusive: true,
                batch_max: options.batch_max,
                after_batch: Some({
                    let shared = shared.clone();
                    Arc::new(move |end| shared.end_of_batch(end))
                }),
                ..SqliteOptions::new(options.location, MIGRATIONS)
            },
            host,
        )
        .map_err(store_error)?;
        let store = Self {
            sqlite,
            shared,
            expected_lineage: options.expected_lineage,
        };
        let (expected, id) = (store.expected_lineage.clone(), host.ids.ulid());
        let (lineage, fresh, (sessions, grants)) = store
            .job(OPEN_WITHIN, move |job| {
                let fresh = job.initialise_lineage(&id)?;
                observe_all(job)?;
                job.check_restore()?;
                let lineage = job.check_lineage(expected.as_deref())?;
                Ok((lineage, fresh, job.observed.counts()))
            })
            .await?;
        tracing::info!(event = "lock_store_opened", lineage, fresh, sessions, grants);
        Ok(store)
    }

    /// Closes the store: when it answers, another process may open it. Other handles find it unavailable.
    pub async fn close(self) {
        self.sqlite.close().await;
    }

    /// How many jobs shared each commit so far.
    #[must_use]
    pub fn batch_sizes(&self) -> BatchSizes {
        self.sqlite.batch_sizes()
    }

    /// How many bytes of the file are in use: what was purged can be used again and does not count.
    ///
    /// # Errors
    /// As each call of the store.
    pub async fn used_bytes(&self, within: Duration) -> Result<u64, StoreError> {
        self.sqlite
            .read(within, |connection| {
                let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
                let pages = number("PRAGMA page_count")? - number("PRAGMA freelist_count")?;
                super::rows::number(pages * number("PRAGMA page_size")?)
            })
            .await
            .map_err(store_error)
    }

    /// Runs one job of the group commit.
    async fn job<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl FnOnce(&mut Job<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.job_that_decides(within, move |job| work(job).map(Decision::Commit))
            .await
    }

    /// Runs one job that may undo itself.
    async fn job_that_decides<T: Send + 'static>(
        &self,
        within: Duration,
        work: impl FnOnce(&mut Job<'_>) -> rusqlite::Result<Decision<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = self.shared.clone();
        self.sqlite
            .write(within, move |connection: &Connection| {
                // Read here, under the writer's turn: whatever was waited for is over.
                let now = (shared.clock.mono(), shared.clock.wall_ms());
                shared.observed(|observed| Job::run(connection, observed, now, work))
            })
            .await
            .map_err(store_error)
    }

    /// One job for a batch, item by item in order.
    fn batch<R, T>(
        &self,
        batch: Vec<R>,
        within: Duration,
        each: impl Fn(&mut Job<'_>, R) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, Vec<T>>
    where
        R: Send + 'static,
        T: Send + 'static,
    {
        Box::pin(self.job(within, move |job| {
            batch.into_iter().map(|item| each(job, item)).collect()
        }))
    }
}

/// Observes every row that lives, from now on for its full TTL or delay.
fn observe_all(job: &mut Job<'_>) -> rusqlite::Result<()> {
    let now = job.now;
    let mut statement = job
        .connection
        .prepare("SELECT session_id, owner, ttl_ms FROM lock_session")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let ttl = ttl(row.get(2)?)?.get();
        let seen = SessionSeen {
            owner: row.get::<_, Arc<str>>(1)?,
            ttl,
            deadline: now.saturating_add(ttl),
        };
        job.observed.set_session(row.get::<_, Arc<str>>(0)?, Some(seen));
    }
    let mut statement = job.connection.prepare(
        "SELECT lock_key, session_id, token, ttl_ms, yield_by, yield_reason, yield_at FROM lock_grant
             WHERE session_id IS NOT NULL",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let session: Arc<str> = row.get(1)?;
        let seen = GrantSeen {
            // The session's own copy of its id, where there is one.
            session: job
                .observed
                .session(&session)
                .map_or(session.clone(), |(name, _)| name.clone()),
            token: token(row.get(2)?)?,
            deadline: now.saturating_add(ttl(row.get(3)?)?.get()),
            yield_asked: yield_asked(row, 4)?.map(Arc::new),
        };
        job.observed.set_grant(row.get::<_, Arc<str>>(0)?, Some(seen));
    }
    let mut statement = job.connection.prepare(
        "SELECT lock_key, lock_delay_ms FROM lock_grant WHERE session_id IS NULL AND closed_until IS NOT NULL",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let until = now.saturating_add(lock_delay(row.get(1)?)?.get());
        job.observed.set_closed(row.get::<_, Arc<str>>(0)?, Some(until));
    }
    let seq = last_seq(job.connection)?;
    job.observed.set_last_seq(seq);
    Ok(())
}

impl SessionRegistry for SqliteLockStore {
    fn open(&self, batch: Vec<OpenSession>, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        Box::pin(async move {
            self.job_that_decides(within, move |job| {
                let mut views = Vec::with_capacity(batch.len());
                for request in batch {
                    match job.open(request)? {
                        Some(view) => views.push(view),
                        // The whole call is refused, and nothing of it is done.
                        None => return Ok(Decision::Rollback(None)),
                    }
                }
                Ok(Decision::Commit(Some(views)))
            })
            .await?
            .ok_or_else(|| StoreError::Unavailable {
                detail: "a session of that id exists with other fields".to_owned(),
            })
        })
    }

    fn heartbeat(&self, batch: Vec<Heartbeat>, within: Duration) -> StoreFuture<'_, Vec<HeartbeatOutcome>> {
        self.batch(batch, within, |job, request| job.heartbeat(&request))
    }

    fn close(&self, batch: Vec<SessionId>, within: Duration) -> StoreFuture<'_, Vec<Vec<ExpiredGrant>>> {
        self.batch(batch, within, |job, id| job.close(&id))
    }

    fn session(&self, id: SessionId, within: Duration) -> StoreFuture<'_, Option<SessionView>> {
        Box::pin(self.job(within, move |job| job.session(&id)))
    }

    fn sessions(&self, after: Option<SessionId>, limit: u32, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        Box::pin(self.job(within, move |job| job.sessions(after.as_ref(), limit)))
    }
}

impl LockStore for SqliteLockStore {
    fn acquire(&self, batch: Vec<AcquireRequest>, within: Duration) -> StoreFuture<'_, Vec<AcquireOutcome>> {
        self.batch(batch, within, |job, request| job.acquire(request))
    }

    fn renew(&self, batch: Vec<RenewRequest>, within: Duration) -> StoreFuture<'_, Vec<RenewOutcome>> {
        self.batch(batch, within, |job, request| job.renew(request))
    }

    fn release(&self, batch: Vec<ReleaseRequest>, within: Duration) -> StoreFuture<'_, Vec<ReleaseOutcome>> {
        self.batch(batch, within, |job, request| job.release(&request))
    }

    fn revoke(&self, request: RevokeRequest, within: Duration) -> StoreFuture<'_, RevokeOutcome> {
        Box::pin(self.job(within, move |job| job.revoke(&request)))
    }

    fn ask_to_yield(&self, request: YieldRequest, within: Duration) -> StoreFuture<'_, YieldOutcome> {
        Box::pin(self.job(within, move |job| job.ask_to_yield(request)))
    }

    fn inspect(&self, keys: Vec<LockKey>, within: Duration) -> StoreFuture<'_, Vec<KeyState>> {
        self.batch(keys, within, |job, key| job.inspect(key))
    }

    fn list(
        &self,
        prefix: String,
        after: Option<LockKey>,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<KeyState>> {
        Box::pin(self.job(within, move |job| job.list(&prefix, after.as_ref(), limit)))
    }

    fn expire_due(&self, limit: u32, within: Duration) -> StoreFuture<'_, ExpiryReport> {
        Box::pin(self.job(within, move |job| job.expire_due(limit)))
    }

    fn purge_tombstones(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32> {
        Box::pin(self.job(within, move |job| job.purge_tombstones(retention, limit)))
    }

    fn events(&self, query: EventQuery, within: Duration) -> StoreFuture<'_, Vec<LockEvent>> {
        Box::pin(async move {
            self.sqlite
                .read(within, move |connection| event::events(connection, &query))
                .await
                .map_err(store_error)
        })
    }

    fn changed_since(&self, after: u64, within: Duration) -> StoreFuture<'_, u64> {
        let mut seq = self.shared.seq.subscribe();
        Box::pin(async move {
            // The sender lives as long as this store, so that waiting ends by a change or by the time.
            let changed = tokio::time::timeout(within, seq.wait_for(|seq| *seq > after)).await;
            drop(changed);
            Ok(*seq.borrow())
        })
    }

    fn seal(&self, limit: u32, within: Duration) -> StoreFuture<'_, Option<Seal>> {
        let chain = self.shared.ids.ulid();
        Box::pin(self.job(within, move |job| job.seal(limit, chain)))
    }

    fn seals(&self, after: u64, limit: u32, within: Duration) -> StoreFuture<'_, Vec<Seal>> {
        Box::pin(async move {
            self.sqlite
                .read(within, move |connection| event::seals(connection, after, limit))
                .await
                .map_err(store_error)
        })
    }

    fn drop_sealed(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32> {
        Box::pin(self.job(within, move |job| job.drop_sealed(retention, limit)))
    }

    fn lineage(&self, within: Duration) -> StoreFuture<'_, Lineage> {
        Box::pin(self.job(within, |job| job.lineage()))
    }

    fn advance_floor(
        &self,
        floor: u64,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome> {
        let accepted = self.expected_lineage.clone();
        Box::pin(self.job(within, move |job| {
            job.advance_floor(floor, &operator, &reason, accepted.as_deref())
        }))
    }

    fn dismiss_regression(
        &self,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome> {
        let accepted = self.expected_lineage.clone();
        Box::pin(self.job(within, move |job| {
            job.dismiss_regression(&operator, &reason, accepted.as_deref())
        }))
    }

    fn health(&self, within: Duration) -> StoreFuture<'_, StoreHealth> {
        Box::pin(async move {
            let problem = match self.sqlite.health(within).await {
                Err(error) => Some(error.to_string()),
                Ok(()) => match self.job(within, |job| job.lineage()).await {
                    Err(error @ StoreError::Corrupt { .. }) => Some(format!("damaged: {}", error.detail())),
                    Err(error) => Some(format!("busy: {}", error.detail())),
                    Ok(lineage) => (lineage.state == LineageState::Regressed)
                        .then(|| format!("doubt: nothing is granted: {}", lineage.detail.unwrap_or_default())),
                },
            };
            Ok(StoreHealth {
                backend: "sqlite",
                problem,
            })
        })
    }
}
