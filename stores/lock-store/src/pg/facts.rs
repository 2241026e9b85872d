//! The facts: read in their order, waited for, sealed and dropped by whole sealed segments.

use super::rows::{EVENT_COLUMNS, SEAL_COLUMNS, event, int, millis, seal};
use super::store::PgLockStore;
use crate::canonical::{FIRST_PREV_HASH, seal_hash};
use lock_api::{EventQuery, LockEvent, Seal, StoreError};
use pg_kit::{Effect, Param};
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::types::Type;

impl PgLockStore {
    async fn last_seq(&self, within: Duration) -> Result<u64, StoreError> {
        let sql = format!("SELECT {}.lock_event_last()", self.database.schema);
        let rows = self.database.statement(&sql, Effect::Reads, within, &[]).await?;
        let seq: i64 = rows.first().map_or(0, |row| row.get(0));
        Ok(u64::try_from(seq).unwrap_or(0))
    }

    pub(super) async fn wait_for_change(&self, after: u64, within: Duration) -> Result<u64, StoreError> {
        /// Time to look once, for whoever does not want to wait.
        const LOOK: Duration = Duration::from_secs(10);
        let deadline = Instant::now() + within;
        let mut heard = self.heard.clone();
        loop {
            heard.mark_unchanged();
            let seq = self
                .last_seq(LOOK.max(deadline.saturating_duration_since(Instant::now())))
                .await?;
            let left = deadline.saturating_duration_since(Instant::now());
            if seq > after || left.is_zero() {
                return Ok(seq);
            }
            let pause = self.poll_every.min(left);
            // Nobody listens behind a pooler: then the channel is closed, and looking again is all there is.
            if let Ok(Err(_)) = tokio::time::timeout(pause, heard.changed()).await {
                tokio::time::sleep(pause).await;
            }
        }
    }

    pub(super) async fn seal_next(&self, limit: u32, within: Duration) -> Result<Option<Seal>, StoreError> {
        let deadline = Instant::now() + within;
        let left = || deadline.saturating_duration_since(Instant::now());
        let schema = &self.database.schema;
        loop {
            let before = self
                .database
                .statement(
                    &format!("SELECT {SEAL_COLUMNS} FROM {schema}.lock_event_seal ORDER BY last_seq DESC LIMIT 1"),
                    Effect::Reads,
                    left(),
                    &[],
                )
                .await?
                .first()
                .map(seal)
                .transpose()?;
            let query = EventQuery {
                key: None,
                after: before.as_ref().map_or(0, |seal| seal.last_seq),
                limit,
            };
            let segment = self.read_events(query, left()).await?;
            let (Some(first), Some(last)) = (segment.first(), segment.last()) else {
                return Ok(None);
            };
            let (chain, n, prev_hash) = before.map_or_else(
                || (self.ids.ulid(), 1, FIRST_PREV_HASH.to_owned()),
                |seal| (seal.chain, seal.n + 1, seal.hash),
            );
            let next = Seal {
                n,
                first_seq: first.seq,
                last_seq: last.seq,
                hash: seal_hash(&prev_hash, &segment),
                chain,
                prev_hash,
            };
            // Only where no other sealer was quicker; the trigger and the unique first_seq say the same.
            let written = self
                .database
                .statement(
                    &format!(
                        "INSERT INTO {schema}.lock_event_seal ({SEAL_COLUMNS})
                         SELECT $1, $2, $3, $4, $5, $6
                         WHERE NOT EXISTS (SELECT 1 FROM {schema}.lock_event_seal WHERE last_seq >= $3)
                         ON CONFLICT DO NOTHING RETURNING n"
                    ),
                    Effect::Writes,
                    left(),
                    &[
                        (&next.chain, Type::TEXT),
                        (&int(next.n), Type::INT8),
                        (&int(next.first_seq), Type::INT8),
                        (&int(next.last_seq), Type::INT8),
                        (&next.prev_hash, Type::TEXT),
                        (&next.hash, Type::TEXT),
                    ],
                )
                .await?;
            if !written.is_empty() {
                return Ok(Some(next));
            }
        }
    }

    pub(super) async fn read_events(&self, query: EventQuery, within: Duration) -> Result<Vec<LockEvent>, StoreError> {
        let schema = &self.database.schema;
        let (after, limit) = (int(query.after), i64::from(query.limit));
        let rows = match query.key {
            Some(key) => {
                let sql = format!(
                    "SELECT {EVENT_COLUMNS} FROM {schema}.lock_event WHERE lock_key = $1 AND seq > $2
                     ORDER BY seq LIMIT $3"
                );
                let params: [Param<'_>; 3] = [(&key.as_str(), Type::TEXT), (&after, Type::INT8), (&limit, Type::INT8)];
                self.database.statement(&sql, Effect::Reads, within, &params).await?
            }
            None => {
                let sql =
                    format!("SELECT {EVENT_COLUMNS} FROM {schema}.lock_event WHERE seq > $1 ORDER BY seq LIMIT $2");
                let params: [Param<'_>; 2] = [(&after, Type::INT8), (&limit, Type::INT8)];
                self.database.statement(&sql, Effect::Reads, within, &params).await?
            }
        };
        rows.iter().map(event).collect()
    }

    /// A statement that answers how many it dropped.
    pub(super) async fn dropped(
        &self,
        name: &str,
        retention: Duration,
        limit: u32,
        within: Duration,
    ) -> Result<u32, StoreError> {
        let sql = format!("SELECT {}.{name}($1, $2)", self.database.schema);
        let params: [Param<'_>; 2] = [(&millis(retention), Type::INT8), (&i64::from(limit), Type::INT8)];
        let rows = self.database.statement(&sql, Effect::Writes, within, &params).await?;
        let gone: i64 = rows.first().map_or(0, |row| row.get(0));
        Ok(u32::try_from(gone).unwrap_or(u32::MAX))
    }
}
