//! The handle: each verb is one call of one function.

use super::call::Database;
use super::clock_watch::watch_clock;
use super::error::sane;
use super::listen::listen;
use super::migrate::migrate;
use super::options::PgLockStoreOptions;
use super::pooler::refuse_a_pooler;
use super::rows::{Answer, EVENT_COLUMNS, SEAL_COLUMNS, event, int, millis, seal, text, ttl_ms};
use crate::canonical::{FIRST_PREV_HASH, seal_hash};
use host_kit::{Host, Ids};
use lock_api::{
    AcquireOutcome, AcquireRequest, EventQuery, ExpiredGrant, ExpiredSession, ExpiryReport, FloorOutcome, Heartbeat,
    HeartbeatOutcome, HeldByOther, InvalidValue, KeyState, Lineage, LineageState, LockEvent, LockKey, LockStore,
    OpenSession, Operator, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, RevokeOutcome, RevokeRequest,
    Seal, SessionId, SessionRegistry, SessionView, StoreError, StoreFuture, StoreHealth,
};
use pg_kit::{Connector, Effect, Param, unavailable};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// How long opening may take.
const OPEN_WITHIN: Duration = Duration::from_secs(60);

/// Above every key: a key has at most 256 bytes.
fn above_every_key() -> String {
    "\u{10ffff}".repeat(65)
}

/// The lowest text above all texts with this prefix.
fn above_prefix(prefix: &str) -> String {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // The gap of the surrogates is stepped over.
        let next = match u32::from(last) {
            0xd7ff => Some('\u{e000}'),
            code => char::from_u32(code + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return chars.into_iter().collect();
        }
    }
    above_every_key()
}

/// The lock store on PostgreSQL. Cheap to clone.
#[derive(Clone)]
pub struct PgLockStore {
    database: Arc<Database>,
    ids: Ids,
    poll_every: Duration,
    /// The highest seq heard of.
    heard: watch::Receiver<u64>,
}

impl fmt::Debug for PgLockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgLockStore")
            .field("schema", &self.database.schema)
            .finish_non_exhaustive()
    }
}

impl PgLockStore {
    /// Opens a store, makes and initialises it where there is none. Where no lock server has watched the database's clock
    /// meanwhile, every live session and grant has left what it had left when the last one did.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the database cannot be reached or refuses; [`StoreError::Corrupt`] when the
    /// schema is one that this program does not know.
    pub async fn open(options: PgLockStoreOptions, host: &Host) -> Result<Self, StoreError> {
        options.check()?;
        if !options.through_pooler {
            refuse_a_pooler(&Connector::new(&options.access)?, OPEN_WITHIN).await?;
        }
        let connector = Connector::new(&options.bounded_access())?;
        let database = Arc::new(Database::new(&options, host)?);
        let fresh = migrate(&connector, &options.schema, &host.ids.ulid(), OPEN_WITHIN).await?;
        database.adopt(OPEN_WITHIN).await?;
        let lineage = database.check_lineage(OPEN_WITHIN).await?;
        database.keep_lineage(&lineage);
        database.resume(OPEN_WITHIN).await?;
        tokio::spawn(watch_clock(Arc::downgrade(&database), options.watch_every));
        let (sender, heard) = watch::channel(0);
        if !options.through_pooler {
            tokio::spawn(listen(connector, options.schema.clone(), sender));
        }
        tracing::info!(event = "lock_store_opened", lineage, fresh);
        Ok(Self {
            database,
            ids: host.ids.clone(),
            poll_every: options.poll_every,
            heard,
        })
    }

    /// Gives its connections up: other handles find the store unavailable.
    pub fn close(self) {
        self.database.close();
    }

    /// Connections now open, and how many of them are idle.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        self.database.connections()
    }

    /// Answers of a verb, as many as the batch has items and in their order.
    async fn answers<T>(
        &self,
        name: &str,
        effect: Effect,
        within: Duration,
        items: usize,
        params: &[Param<'_>],
        read: impl Fn(&Answer) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.database.verb(name, effect, within, params).await?;
        let mut answers: Vec<Option<T>> = std::iter::repeat_with(|| None).take(items).collect();
        for row in &rows {
            let answer = Answer::of(row);
            let slot = answers.get_mut(answer.item()?).ok_or_else(odd)?;
            *slot = Some(read(&answer)?);
        }
        answers.into_iter().map(|answer| answer.ok_or_else(odd)).collect()
    }

    /// Sessions of an answer with what they hold: each session's row comes first.
    fn with_held(rows: &[Row], items: Option<usize>) -> Result<Vec<(Answer, Vec<Answer>)>, StoreError> {
        let mut found: Vec<(Answer, Vec<Answer>)> = Vec::new();
        let (held, mut sessions): (Vec<_>, Vec<_>) =
            rows.iter().map(Answer::of).partition(|answer| answer.outcome == "HELD");
        sessions.sort_by_key(|answer| answer.item().unwrap_or(usize::MAX));
        if items.is_some_and(|items| items != sessions.len()) {
            return Err(odd());
        }
        found.extend(sessions.into_iter().map(|session| (session, Vec::new())));
        for grant in held {
            found.get_mut(grant.item()?).ok_or_else(odd)?.1.push(grant);
        }
        Ok(found)
    }

    async fn last_seq(&self, within: Duration) -> Result<u64, StoreError> {
        let sql = format!("SELECT {}.lock_event_last()", self.database.schema);
        let rows = self.database.statement(&sql, Effect::Reads, within, &[]).await?;
        let seq: i64 = rows.first().map_or(0, |row| row.get(0));
        Ok(u64::try_from(seq).unwrap_or(0))
    }

    async fn wait_for_change(&self, after: u64, within: Duration) -> Result<u64, StoreError> {
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

    async fn clear_doubt(
        &self,
        floor: Option<u64>,
        operator: &Operator,
        reason: &str,
        within: Duration,
    ) -> Result<FloorOutcome, StoreError> {
        // What is above every bound is refused as such.
        let floor = floor.map(int);
        let reason = text(reason);
        let rows = self
            .database
            .bounded(
                &format!(
                    "SELECT * FROM {}.lock_clear_doubt($1, $2, $3, $4, $5)",
                    self.database.schema
                ),
                within,
                &[
                    (&floor, Type::INT8),
                    (&operator.as_str(), Type::TEXT),
                    (&reason, Type::TEXT),
                    (&self.database.lineage(), Type::TEXT),
                ],
            )
            .await?;
        let answer = rows.first().map(Answer::of).ok_or_else(odd)?;
        Ok(match answer.outcome.as_str() {
            "NOTHING" => FloorOutcome::NothingToDismiss,
            "OUT_OF_BOUNDS" => FloorOutcome::OutOfBounds {
                lowest: answer.lowest()?,
                highest: answer.number()?,
            },
            _ => {
                tracing::warn!(event = "token_doubt_cleared", operator = operator.as_str(), reason);
                FloorOutcome::Changed(answer.lineage()?)
            }
        })
    }

    async fn seal_next(&self, limit: u32, within: Duration) -> Result<Option<Seal>, StoreError> {
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

    async fn read_events(&self, query: EventQuery, within: Duration) -> Result<Vec<LockEvent>, StoreError> {
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
    async fn dropped(&self, name: &str, retention: Duration, limit: u32, within: Duration) -> Result<u32, StoreError> {
        let sql = format!("SELECT {}.{name}($1, $2)", self.database.schema);
        let params: [Param<'_>; 2] = [(&millis(retention), Type::INT8), (&i64::from(limit), Type::INT8)];
        let rows = self.database.statement(&sql, Effect::Writes, within, &params).await?;
        let gone: i64 = rows.first().map_or(0, |row| row.get(0));
        Ok(u32::try_from(gone).unwrap_or(u32::MAX))
    }
}

/// An answer that the functions of the schema do not give.
fn odd() -> StoreError {
    StoreError::Corrupt {
        detail: "the store's functions answered something else than was asked".to_owned(),
    }
}

fn unknown_outcome<T>() -> Result<T, StoreError> {
    sane(Err(InvalidValue::new("outcome", "must be a known outcome")))
}

fn detail_of(answer: &Answer) -> String {
    answer.detail.clone().unwrap_or_default()
}

fn texts<'a>(values: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    values.into_iter().collect()
}

impl SessionRegistry for PgLockStore {
    fn open(&self, batch: Vec<OpenSession>, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        Box::pin(async move {
            let ids = texts(batch.iter().map(|s| s.session_id.as_str()));
            let owners = texts(batch.iter().map(|s| s.owner.as_str()));
            let ttls: Vec<i64> = batch.iter().map(|s| ttl_ms(s.ttl)).collect();
            let metadata: Vec<Option<&str>> = batch
                .iter()
                .map(|s| s.metadata.as_ref().map(lock_api::Metadata::as_str))
                .collect();
            let rows = self
                .database
                .verb(
                    "lock_open",
                    Effect::Writes,
                    within,
                    &[
                        (&ids, Type::TEXT_ARRAY),
                        (&owners, Type::TEXT_ARRAY),
                        (&ttls, Type::INT8_ARRAY),
                        (&metadata, Type::TEXT_ARRAY),
                    ],
                )
                .await?;
            Self::with_held(&rows, Some(batch.len()))?
                .into_iter()
                .zip(&batch)
                .map(|((answer, held), asked)| {
                    if answer.outcome == "SESSION_NOT_FOUND" {
                        // It was opened before and has ended since; its row waits to be swept.
                        return Ok(SessionView {
                            session_id: asked.session_id.clone(),
                            owner: asked.owner.clone(),
                            ttl: asked.ttl,
                            expires_in: Duration::ZERO,
                            opened_at: lock_api::UnixMillis(0),
                            last_heartbeat_at: lock_api::UnixMillis(0),
                            metadata: asked.metadata.clone(),
                            held: Vec::new(),
                        });
                    }
                    view(&answer, &held)
                })
                .collect()
        })
    }

    fn heartbeat(&self, batch: Vec<Heartbeat>, within: Duration) -> StoreFuture<'_, Vec<HeartbeatOutcome>> {
        Box::pin(async move {
            let ids = texts(batch.iter().map(|h| h.session_id.as_str()));
            let witnesses: Vec<Option<i64>> = batch.iter().map(|h| h.witness.map(|w| int(w.get()))).collect();
            let rows = self
                .database
                .verb(
                    "lock_heartbeat",
                    Effect::Writes,
                    within,
                    &[(&ids, Type::TEXT_ARRAY), (&witnesses, Type::INT8_ARRAY)],
                )
                .await?;
            Self::with_held(&rows, Some(batch.len()))?
                .into_iter()
                .zip(&batch)
                .map(|((answer, held), asked)| {
                    if answer.outcome == "SESSION_NOT_FOUND" {
                        return Ok(HeartbeatOutcome::SessionNotFound);
                    }
                    let believed = answer.number()?;
                    if asked.witness.is_some_and(|witness| witness.get() > believed) {
                        return Ok(HeartbeatOutcome::WitnessRefused {
                            highest_believed: believed,
                        });
                    }
                    Ok(HeartbeatOutcome::Alive {
                        expires_in: answer.left().unwrap_or_default(),
                        held: held.iter().map(Answer::held).collect::<Result<_, _>>()?,
                    })
                })
                .collect()
        })
    }

    fn close(&self, batch: Vec<SessionId>, within: Duration) -> StoreFuture<'_, Vec<Vec<ExpiredGrant>>> {
        Box::pin(async move {
            let ids = texts(batch.iter().map(SessionId::as_str));
            let rows = self
                .database
                .verb("lock_close", Effect::Writes, within, &[(&ids, Type::TEXT_ARRAY)])
                .await?;
            let mut freed: Vec<Vec<ExpiredGrant>> = batch.iter().map(|_| Vec::new()).collect();
            for answer in rows.iter().map(Answer::of) {
                freed.get_mut(answer.item()?).ok_or_else(odd)?.push(ended(&answer)?);
            }
            Ok(freed)
        })
    }

    fn session(&self, id: SessionId, within: Duration) -> StoreFuture<'_, Option<SessionView>> {
        Box::pin(async move {
            let rows = self
                .database
                .verb(
                    "lock_sessions",
                    Effect::Reads,
                    within,
                    &[
                        (&vec![id.as_str()], Type::TEXT_ARRAY),
                        (&"", Type::TEXT),
                        (&1_i64, Type::INT8),
                    ],
                )
                .await?;
            Self::with_held(&rows, Some(1))?
                .iter()
                .find(|(answer, _)| answer.outcome == "SESSION")
                .map(|(answer, held)| view(answer, held))
                .transpose()
        })
    }

    fn sessions(&self, after: Option<SessionId>, limit: u32, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        Box::pin(async move {
            let rows = self
                .database
                .verb(
                    "lock_sessions",
                    Effect::Reads,
                    within,
                    &[
                        (&None::<Vec<&str>>, Type::TEXT_ARRAY),
                        (&after.as_ref().map_or("", SessionId::as_str), Type::TEXT),
                        (&i64::from(limit), Type::INT8),
                    ],
                )
                .await?;
            Self::with_held(&rows, None)?
                .iter()
                // One that was closed between the page and its rows.
                .filter(|(answer, _)| answer.outcome == "SESSION")
                .map(|(answer, held)| view(answer, held))
                .collect()
        })
    }
}

fn view(answer: &Answer, held: &[Answer]) -> Result<SessionView, StoreError> {
    let mut view = answer.view()?;
    view.held = held.iter().map(Answer::held).collect::<Result<_, _>>()?;
    Ok(view)
}

fn ended(answer: &Answer) -> Result<ExpiredGrant, StoreError> {
    Ok(ExpiredGrant {
        key: answer.key()?,
        token: answer.token()?,
        session_id: answer.session()?,
    })
}

impl LockStore for PgLockStore {
    fn acquire(&self, batch: Vec<AcquireRequest>, within: Duration) -> StoreFuture<'_, Vec<AcquireOutcome>> {
        Box::pin(async move {
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            let keys = texts(batch.iter().map(|r| r.key.as_str()));
            let sessions = texts(batch.iter().map(|r| r.session_id.as_str()));
            let requests = texts(batch.iter().map(|r| r.request_id.as_str()));
            let ttls: Vec<i64> = batch.iter().map(|r| ttl_ms(r.ttl)).collect();
            let metadata: Vec<Option<&str>> = batch
                .iter()
                .map(|r| r.metadata.as_ref().map(lock_api::Metadata::as_str))
                .collect();
            let witnesses: Vec<Option<i64>> = batch.iter().map(|r| r.witness.map(|w| int(w.get()))).collect();
            self.answers(
                "lock_acquire",
                Effect::Writes,
                within,
                batch.len(),
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&sessions, Type::TEXT_ARRAY),
                    (&requests, Type::TEXT_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                    (&metadata, Type::TEXT_ARRAY),
                    (&witnesses, Type::INT8_ARRAY),
                ],
                |answer| {
                    Ok(match answer.outcome.as_str() {
                        outcome @ ("GRANTED" | "REPLAYED") => AcquireOutcome::Granted {
                            grant: answer.grant()?,
                            replayed: outcome == "REPLAYED",
                        },
                        outcome @ ("HELD_BY_OTHER" | "HELD_BY_SELF") => AcquireOutcome::HeldByOther(HeldByOther {
                            holder: answer.grant()?,
                            is_self: outcome == "HELD_BY_SELF",
                        }),
                        "SESSION_NOT_FOUND" => AcquireOutcome::SessionNotFound,
                        "WITNESS_REFUSED" => AcquireOutcome::WitnessRefused {
                            highest_believed: answer.number()?,
                        },
                        "TOKEN_REGRESSION" => AcquireOutcome::TokenRegression {
                            detail: detail_of(answer),
                        },
                        _ => return unknown_outcome(),
                    })
                },
            )
            .await
        })
    }

    fn renew(&self, batch: Vec<RenewRequest>, within: Duration) -> StoreFuture<'_, Vec<RenewOutcome>> {
        Box::pin(async move {
            let keys = texts(batch.iter().map(|r| r.key.as_str()));
            let sessions = texts(batch.iter().map(|r| r.session_id.as_str()));
            let tokens: Vec<i64> = batch.iter().map(|r| int(r.token.get())).collect();
            let ttls: Vec<Option<i64>> = batch.iter().map(|r| r.ttl.map(ttl_ms)).collect();
            self.answers(
                "lock_renew",
                Effect::Writes,
                within,
                batch.len(),
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&sessions, Type::TEXT_ARRAY),
                    (&tokens, Type::INT8_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                ],
                |answer| {
                    Ok(match answer.outcome.as_str() {
                        "RENEWED" => RenewOutcome::Renewed(answer.grant()?),
                        "NOT_HOLDER" => RenewOutcome::NotHolder,
                        "NOT_FOUND" => RenewOutcome::NotFound,
                        _ => return unknown_outcome(),
                    })
                },
            )
            .await
        })
    }

    fn release(&self, batch: Vec<ReleaseRequest>, within: Duration) -> StoreFuture<'_, Vec<ReleaseOutcome>> {
        Box::pin(async move {
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            let keys = texts(batch.iter().map(|r| r.key.as_str()));
            let sessions = texts(batch.iter().map(|r| r.session_id.as_str()));
            let tokens: Vec<i64> = batch.iter().map(|r| int(r.token.get())).collect();
            self.answers(
                "lock_release",
                Effect::Writes,
                within,
                batch.len(),
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&sessions, Type::TEXT_ARRAY),
                    (&tokens, Type::INT8_ARRAY),
                ],
                |answer| {
                    Ok(match answer.outcome.as_str() {
                        "RELEASED" => ReleaseOutcome::Released,
                        "ALREADY_FREE" => ReleaseOutcome::AlreadyFree,
                        "NOT_HOLDER" => ReleaseOutcome::NotHolder,
                        "NOT_FOUND" => ReleaseOutcome::NotFound,
                        _ => return unknown_outcome(),
                    })
                },
            )
            .await
        })
    }

    fn revoke(&self, request: RevokeRequest, within: Duration) -> StoreFuture<'_, RevokeOutcome> {
        Box::pin(async move {
            let reason = text(&request.reason);
            let mut answers = self
                .answers(
                    "lock_revoke",
                    Effect::Writes,
                    within,
                    1,
                    &[
                        (&request.key.as_str(), Type::TEXT),
                        (&int(request.revoke_token.get()), Type::INT8),
                        (&request.operator.as_str(), Type::TEXT),
                        (&reason, Type::TEXT),
                    ],
                    |answer| {
                        Ok(match answer.outcome.as_str() {
                            "REVOKED" => RevokeOutcome::Revoked {
                                revoked: answer.grant()?,
                                token: answer.minted()?,
                            },
                            "NOT_HOLDER" => RevokeOutcome::NotHolder {
                                holder: Box::new(answer.grant()?),
                            },
                            "NOT_HELD" => RevokeOutcome::NotHeld,
                            "NOT_FOUND" => RevokeOutcome::NotFound,
                            "TOKEN_REGRESSION" => RevokeOutcome::TokenRegression {
                                detail: detail_of(answer),
                            },
                            _ => return unknown_outcome(),
                        })
                    },
                )
                .await?;
            answers.pop().ok_or_else(odd)
        })
    }

    fn inspect(&self, keys: Vec<LockKey>, within: Duration) -> StoreFuture<'_, Vec<KeyState>> {
        Box::pin(async move {
            let names = texts(keys.iter().map(LockKey::as_str));
            self.answers(
                "lock_inspect",
                Effect::Reads,
                within,
                keys.len(),
                &[(&names, Type::TEXT_ARRAY)],
                Answer::state,
            )
            .await
        })
    }

    fn list(
        &self,
        prefix: String,
        after: Option<LockKey>,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<KeyState>> {
        Box::pin(async move {
            let (prefix, below) = (text(&prefix), above_prefix(&text(&prefix)));
            let rows = self
                .database
                .verb(
                    "lock_list",
                    Effect::Reads,
                    within,
                    &[
                        (&prefix, Type::TEXT),
                        (&after.as_ref().map_or("", LockKey::as_str), Type::TEXT),
                        (&below, Type::TEXT),
                        (&i64::from(limit), Type::INT8),
                    ],
                )
                .await?;
            let mut answers: Vec<_> = rows.iter().map(Answer::of).collect();
            answers.sort_by_key(|answer| answer.item().unwrap_or(usize::MAX));
            answers
                .iter()
                // One that was purged between the page and its rows.
                .filter(|answer| answer.outcome != "UNKNOWN")
                .map(Answer::state)
                .collect()
        })
    }

    fn expire_due(&self, limit: u32, within: Duration) -> StoreFuture<'_, ExpiryReport> {
        Box::pin(async move {
            let params: [Param<'_>; 1] = [(&i64::from(limit), Type::INT8)];
            let rows = self
                .database
                .verb("lock_expire", Effect::Writes, within, &params)
                .await?;
            let mut report = ExpiryReport::default();
            let mut released = Vec::new();
            for answer in rows.iter().map(Answer::of) {
                match answer.outcome.as_str() {
                    "EXPIRED" => report.grants.push(ended(&answer)?),
                    "RELEASED" => released.push(ended(&answer)?),
                    "SESSION_EXPIRED" => report.sessions.push(ExpiredSession {
                        session_id: answer.session()?,
                        released: Vec::new(),
                    }),
                    "MORE" | "END" => {
                        report.more = answer.outcome == "MORE";
                        report.next_due_in = answer.left();
                    }
                    _ => return unknown_outcome(),
                }
            }
            let place: std::collections::HashMap<SessionId, usize> = report
                .sessions
                .iter()
                .enumerate()
                .map(|(at, session)| (session.session_id.clone(), at))
                .collect();
            for grant in released {
                match place.get(&grant.session_id).and_then(|at| report.sessions.get_mut(*at)) {
                    Some(session) => session.released.push(grant),
                    None => report.grants.push(grant),
                }
            }
            Ok(report)
        })
    }

    fn purge_tombstones(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32> {
        Box::pin(self.dropped("lock_purge", retention, limit, within))
    }

    fn events(&self, query: EventQuery, within: Duration) -> StoreFuture<'_, Vec<LockEvent>> {
        Box::pin(self.read_events(query, within))
    }

    fn changed_since(&self, after: u64, within: Duration) -> StoreFuture<'_, u64> {
        Box::pin(self.wait_for_change(after, within))
    }

    fn seal(&self, limit: u32, within: Duration) -> StoreFuture<'_, Option<Seal>> {
        Box::pin(self.seal_next(limit, within))
    }

    fn seals(&self, after: u64, limit: u32, within: Duration) -> StoreFuture<'_, Vec<Seal>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT {SEAL_COLUMNS} FROM {}.lock_event_seal WHERE first_seq > $1 ORDER BY first_seq LIMIT $2",
                self.database.schema
            );
            let params: [Param<'_>; 2] = [(&int(after), Type::INT8), (&i64::from(limit), Type::INT8)];
            let rows = self.database.statement(&sql, Effect::Reads, within, &params).await?;
            rows.iter().map(seal).collect()
        })
    }

    fn drop_sealed(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32> {
        Box::pin(self.dropped("lock_drop_sealed", retention, limit, within))
    }

    fn lineage(&self, within: Duration) -> StoreFuture<'_, Lineage> {
        Box::pin(async move {
            let sql = format!("SELECT * FROM {}.lock_lineage_row()", self.database.schema);
            let rows = self.database.statement(&sql, Effect::Reads, within, &[]).await?;
            rows.first()
                .map(Answer::of)
                .ok_or_else(super::call::no_lineage)?
                .lineage()
        })
    }

    fn advance_floor(
        &self,
        floor: u64,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome> {
        Box::pin(async move { self.clear_doubt(Some(floor), &operator, &reason, within).await })
    }

    fn dismiss_regression(
        &self,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome> {
        Box::pin(async move { self.clear_doubt(None, &operator, &reason, within).await })
    }

    fn health(&self, within: Duration) -> StoreFuture<'_, StoreHealth> {
        Box::pin(async move {
            let writable = self
                .database
                .statement(
                    "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'",
                    Effect::Reads,
                    within,
                    &[],
                )
                .await;
            let problem = match writable {
                Err(error) => Some(error.to_string()),
                Ok(rows) if rows.first().is_none_or(|row| row.get(0)) => {
                    Some(unavailable("the database is a standby, or read-only").to_string())
                }
                Ok(_) => match self.lineage(within).await {
                    Err(error) => Some(error.to_string()),
                    Ok(lineage) => (lineage.state == LineageState::Regressed)
                        .then(|| format!("nothing is granted: {}", lineage.detail.unwrap_or_default())),
                },
            };
            Ok(StoreHealth { backend: "pg", problem })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::above_prefix;

    #[test]
    fn what_is_above_a_prefix_is_above_its_texts_alone() {
        for prefix in ["a", "a/", "\u{d7ff}", "a\u{10ffff}", "\u{10ffff}", ""] {
            let above = above_prefix(prefix);
            for end in ["", "a", "\u{10ffff}\u{10ffff}"] {
                assert!(format!("{prefix}{end}") < above, "{prefix:?} {end:?}");
            }
        }
        assert_eq!(
            (above_prefix("a/").as_str(), above_prefix("a\u{10ffff}").as_str()),
            ("a0", "b")
        );
        assert_eq!(above_prefix("\u{d7ff}"), "\u{e000}");
    }
}
