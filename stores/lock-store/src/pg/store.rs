//! The handle: each verb is one call of one function.

use super::call::Database;
use super::clock_watch::watch_clock;
use super::error::sane;
use super::listen::listen;
use super::migrate::migrate;
use super::options::PgLockStoreOptions;
use super::pooler::refuse_a_pooler;
use super::rows::{Answer, int, text};
use host_kit::{Host, Ids};
use lock_api::{FloorOutcome, InvalidValue, Operator, StoreError};
use pg_kit::{Connector, Effect, Param};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// How long opening may take.
const OPEN_WITHIN: Duration = Duration::from_secs(60);

/// The lock store on PostgreSQL. Cheap to clone.
#[derive(Clone)]
pub struct PgLockStore {
    pub(super) database: Arc<Database>,
    pub(super) ids: Ids,
    pub(super) poll_every: Duration,
    /// The highest seq heard of.
    pub(super) heard: watch::Receiver<u64>,
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
    pub(super) async fn answers<T>(
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
    pub(super) fn with_held(rows: &[Row], items: Option<usize>) -> Result<Vec<(Answer, Vec<Answer>)>, StoreError> {
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

    pub(super) async fn clear_doubt(
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
}

/// An answer that the functions of the schema do not give.
pub(super) fn odd() -> StoreError {
    StoreError::Corrupt {
        detail: "the store's functions answered something else than was asked".to_owned(),
    }
}

pub(super) fn unknown_outcome<T>() -> Result<T, StoreError> {
    sane(Err(InvalidValue::new("outcome", "must be a known outcome")))
}

pub(super) fn detail_of(answer: &Answer) -> String {
    answer.detail.clone().unwrap_or_default()
}

pub(super) fn texts<'a>(values: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    values.into_iter().collect()
}
