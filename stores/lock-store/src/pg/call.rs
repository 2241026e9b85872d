//! One call of the database within its deadline.
//!
//! On failure: see [`pg_kit::Fate`]. What is tried again inside is tried with the same words, and only after the database
//! has rolled the attempt back.

use super::db_clock::DbClock;
use super::error::{Fate, fate};
use super::options::PgLockStoreOptions;
use host_kit::{Host, Random};
use lock_api::StoreError;
use pg_kit::{Effect, Param, Pooled, ambiguous, describe, left_until, lock_wait_ms, unavailable};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// How far the database's clock may move unseen (C1.1); `lock_begin` has the same.
const TOLERANCE_MS: i64 = 1000;

pub(super) struct Database {
    pool: Pooled,
    /// Quoted.
    pub(super) schema: String,
    pub(super) clock: DbClock,
    /// The id that the store must have: the configured one, else the one that it had when it was opened, so that a schema
    /// that is dropped and made anew under a running lock server is found out.
    lineage: OnceLock<String>,
    random: Random,
    /// One at a time gives everything its full TTL again.
    restoring: Mutex<()>,
}

impl Database {
    pub(super) fn new(options: &PgLockStoreOptions, host: &Host) -> Result<Self, StoreError> {
        Ok(Self {
            pool: Pooled::new(&options.bounded_access())?,
            schema: format!("\"{}\"", options.schema),
            clock: DbClock::new(host.clock.clone()),
            lineage: options.expected_lineage.clone().map(OnceLock::from).unwrap_or_default(),
            random: host.random.clone(),
            restoring: Mutex::new(()),
        })
    }

    /// Connections now open, and how many of them are idle.
    pub(super) fn connections(&self) -> (usize, usize) {
        self.pool.connections()
    }

    /// Whether a write would work, as far as is known; see [`Pooled::writable`].
    pub(super) async fn writable(&self, within: Duration) -> Result<(), StoreError> {
        self.pool.writable(Instant::now() + within).await
    }

    pub(super) fn close(&self) {
        self.pool.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.pool.is_closed()
    }

    /// Calls a verb: a function whose first three parameters are the time for locks, the clock and the lineage.
    pub(super) async fn verb(
        &self,
        name: &str,
        effect: Effect,
        within: Duration,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let places = (1..=params.len() + 3)
            .map(|n| format!("${n}"))
            .collect::<Vec<_>>()
            .join(", ");
        let sql = format!("SELECT * FROM {}.{name}({places})", self.schema);
        self.run(&sql, effect, within, Some(params), &[]).await
    }

    /// Any other statement.
    pub(super) async fn statement(
        &self,
        sql: &str,
        effect: Effect,
        within: Duration,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.run(sql, effect, within, None, params).await
    }

    /// A statement whose first parameter is the time for locks.
    pub(super) async fn bounded(
        &self,
        sql: &str,
        within: Duration,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let wait = lock_wait_ms(within);
        let mut all: Vec<Param<'_>> = vec![(&wait, Type::INT8)];
        all.extend(params.iter().cloned());
        self.run(sql, Effect::Writes, within, None, &all).await
    }

    async fn run(
        &self,
        sql: &str,
        effect: Effect,
        within: Duration,
        verb: Option<&[Param<'_>]>,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        if within.is_zero() {
            return Err(unavailable("there was no time left"));
        }
        let deadline = Instant::now() + within;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let connection = self.pool.get(deadline).await?;
            let left = left_until(deadline);
            let lineage = self.lineage();
            let (wait, expected, generation) = (lock_wait_ms(left), self.clock.expected_us(), self.clock.generation());
            let sent = self.clock.mono();
            let answer = match verb {
                Some(params) => {
                    let mut all: Vec<Param<'_>> =
                        vec![(&wait, Type::INT8), (&expected, Type::INT8), (&lineage, Type::TEXT)];
                    all.extend(params.iter().cloned());
                    timeout_at(deadline, connection.query_typed(sql, &all)).await
                }
                None => timeout_at(deadline, connection.query_typed(sql, params)).await,
            };
            let Ok(answer) = answer else {
                // Dropping it gives the connection up and cancels.
                drop(connection);
                return Err(ambiguous(effect, "the database did not answer in time".to_owned()));
            };
            if let Err(error) = &answer {
                connection.note(error);
            }
            // The answer is complete: the connection is as good as before.
            connection.done();
            match answer {
                Ok(rows) => {
                    if verb.is_some()
                        && let Some(at) = rows.iter().find_map(|row| row.get::<_, Option<i64>>("at_us"))
                    {
                        self.clock.observe(sent, at);
                    }
                    return Ok(rows);
                }
                Err(error) => {
                    let detail = describe(&error);
                    match fate(&error) {
                        Fate::Other(pg_kit::Fate::Again) => {
                            let pause = self.random.up_to(Duration::from_millis(2 << attempt.min(5)));
                            if Instant::now() + pause >= deadline {
                                return Err(unavailable(format!("rolled back {attempt} times, last by {detail}")));
                            }
                            tracing::debug!(event = "database_rollback", attempt, detail);
                            tokio::time::sleep(pause).await;
                        }
                        // Each of these ends the state that led to it, so that it does not come again at once.
                        Fate::ClockMoved if attempt < 10 => {
                            tracing::warn!(event = "database_clock_moved", detail);
                            Box::pin(self.full_ttl_again(Some(generation), left_until(deadline))).await?;
                        }
                        Fate::Restored if attempt < 10 => {
                            Box::pin(self.adopt(left_until(deadline))).await?;
                        }
                        Fate::OtherStore if attempt < 10 => {
                            Box::pin(self.check_lineage(left_until(deadline))).await?;
                        }
                        Fate::Other(pg_kit::Fate::Refused) | Fate::ClockMoved | Fate::Restored | Fate::OtherStore => {
                            return Err(unavailable(detail));
                        }
                        Fate::Other(pg_kit::Fate::Unknown) => return Err(ambiguous(effect, detail)),
                        Fate::Other(pg_kit::Fate::Corrupt) => return Err(StoreError::Corrupt { detail }),
                    }
                }
            }
        }
    }

    /// Gives everything that lives its full TTL, and takes the database's clock as it is now. With a generation: unless
    /// another call has done so since.
    pub(super) async fn full_ttl_again(&self, since: Option<u64>, within: Duration) -> Result<(), StoreError> {
        let turn = self.restoring.lock().await;
        if since.is_some_and(|generation| generation != self.clock.generation()) {
            return Ok(());
        }
        let sql = format!("SELECT {}.lock_full_ttl_again($1) AS at_us", self.schema);
        self.bounded(&sql, within, &[]).await?;
        self.take_clock(within).await?;
        drop(turn);
        Ok(())
    }

    /// Takes the database's clock as it is now. A question of its own: one that waits for rows says nothing of when.
    async fn take_clock(&self, within: Duration) -> Result<(), StoreError> {
        let sent = self.clock.mono();
        let sql = format!("SELECT {0}.lock_us({0}.lock_now())", self.schema);
        let rows = self.statement(&sql, Effect::Reads, within, &[]).await?;
        if let Some(row) = rows.first() {
            self.clock.restart(sent, row.get(0));
        }
        Ok(())
    }

    /// The first look at the clock: the time in which no lock server watched it does not count against any lease.
    pub(super) async fn resume(&self, within: Duration) -> Result<(), StoreError> {
        let sql = format!("SELECT {}.lock_resume($1, $2)", self.schema);
        let rows = self.bounded(&sql, within, &[(&TOLERANCE_MS, Type::INT8)]).await?;
        let unwatched_ms: i64 = rows.first().map_or(0, |row| row.get(0));
        if unwatched_ms != 0 {
            tracing::info!(event = "lock_store_resumed", unwatched_ms);
        }
        self.take_clock(within).await
    }

    /// Takes a restored or moved store as a new part of its history: the floor jumps (C1.7).
    pub(super) async fn adopt(&self, within: Duration) -> Result<bool, StoreError> {
        let sql = format!("SELECT {}.lock_adopt($1)", self.schema);
        let rows = self.bounded(&sql, within, &[]).await?;
        let adopted = rows.first().is_some_and(|row| row.get(0));
        if adopted {
            tracing::warn!(event = "lock_store_restored", "the token floor has jumped");
        }
        Ok(adopted)
    }

    /// Compares the store's id with the configured one. Answers the id.
    pub(super) async fn check_lineage(&self, within: Duration) -> Result<String, StoreError> {
        let sql = format!("SELECT {}.lock_check_lineage($1, $2)", self.schema);
        let rows = self.bounded(&sql, within, &[(&self.lineage(), Type::TEXT)]).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(no_lineage)
    }

    /// The id that the store must have, once one is known.
    pub(super) fn lineage(&self) -> Option<&str> {
        self.lineage.get().map(String::as_str)
    }

    /// Where none was configured: the store that was opened is the one that stays.
    pub(super) fn keep_lineage(&self, found: &str) {
        drop(self.lineage.set(found.to_owned()));
    }
}

pub(super) fn no_lineage() -> StoreError {
    StoreError::Corrupt {
        detail: "the store has no lineage row".to_owned(),
    }
}
