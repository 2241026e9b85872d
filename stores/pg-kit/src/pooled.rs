//! Connections in use, and the words for what became of a call.

use crate::access::Access;
use crate::connector::Connector;
use crate::fate::describe;
use crate::places::{Place, Places};
use crate::writes::Writes;
use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType, Timeouts,
};
use lock_api::StoreError;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tls_kit::Reloaded;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A parameter with its type, so that one round trip does.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Whether a call changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only reads.
    Reads,
    /// It writes.
    Writes,
}

/// What is left over for the answer's way back: rows are waited for this much less than the caller waits.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);

/// How long a connection may be idle.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A pool of connections to one database. Cheap to clone.
#[derive(Clone)]
pub struct Pooled {
    pool: Pool,
    /// How long making a connection may take.
    connect_within: Duration,
    tls: Reloaded<MakeRustlsConnect>,
    places: Places,
    writes: Arc<Writes>,
}

impl Pooled {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] naming what is wrong with the access.
    pub fn new(access: &Access) -> Result<Self, StoreError> {
        let connector = Connector::new(access)?;
        let tls = connector.tls();
        let manager = Manager::from_connect(
            connector.template(),
            connector,
            ManagerConfig {
                // A connection that is broken is noticed by the next call on it, which costs that call nothing but a
                // new one; a question before each call would cost every call a round trip.
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let pool = Pool::builder(manager)
            .max_size(access.pool_max)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| unavailable(error.to_string()))?;
        Ok(Self {
            pool,
            connect_within: access.connect_within,
            tls,
            places: Places::new(access.pool_max),
            writes: Arc::default(),
        })
    }

    /// A connection, by the deadline. One that is being made when the deadline passes is made to its end and is there for
    /// the next call: else a database that takes longer to let anybody in than a call may wait, as one does that everybody
    /// comes back to at once, would be connected to for ever and never used.
    ///
    /// Waiting takes half of the time that is left and no more. What a call does with a connection that it gets in the last
    /// moment comes to nothing, and costs the connection: with every call late in that way nobody would be served at all.
    ///
    /// A server that has no connection left for this role, or for anybody, costs nobody a call: who was refused waits for
    /// one that exists (case L46).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn get(&self, deadline: Instant) -> Result<Busy, StoreError> {
        let patience = left_until(deadline) / 2;
        let until = deadline - patience;
        let nothing_free = || unavailable("no connection became free in time");
        let mut refused = None;
        loop {
            let place = timeout_at(until, self.places.take())
                .await
                .map_err(|_| refused.take().unwrap_or_else(nothing_free))?;
            let got = self.object(until, patience).await;
            let error = match got {
                Ok(Ok(connection)) => {
                    self.give_up_idle();
                    return Ok(Busy {
                        connection: Some(connection),
                        tls: self.tls.clone(),
                        writes: self.writes.clone(),
                        _place: place,
                    });
                }
                Ok(Err(PoolError::Backend(error))) if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => error,
                Ok(Err(PoolError::Backend(error))) => {
                    return Err(unavailable(format!("no connection: {}", describe(&error))));
                }
                Ok(Err(PoolError::Timeout(TimeoutType::Wait))) | Err(_) => {
                    return Err(refused.unwrap_or_else(nothing_free));
                }
                Ok(Err(PoolError::Timeout(_))) => {
                    return Err(unavailable(
                        "no connection: the server accepted and did not answer in time",
                    ));
                }
                Ok(Err(error)) => return Err(unavailable(format!("no connection: {error}"))),
            };
            tracing::debug!(event = "database_connection_refused", error = describe(&error));
            refused = Some(unavailable(format!("no connection: {}", describe(&error))));
            self.places.refused(place, until).await;
        }
    }

    /// A connection of the pool below, an idle one or a new one.
    async fn object(&self, until: Instant, patience: Duration) -> Result<Result<Object, PoolError>, Elapsed> {
        let timeouts = Timeouts {
            wait: Some(patience),
            // The driver bounds the TCP handshake alone.
            create: Some(self.connect_within),
            recycle: None,
        };
        let now = self.pool.status();
        if now.available > 0 || now.size >= now.max_size {
            return timeout_at(until, self.pool.timeout_get(&timeouts)).await;
        }
        let pool = self.pool.clone();
        // It holds one of the pool's places, so there are never more of these than places.
        let making = tokio::spawn(async move { pool.timeout_get(&timeouts).await });
        timeout_at(until, making).await.map(|made| match made {
            Ok(made) => made,
            Err(_ended) => Err(PoolError::Closed),
        })
    }

    /// Closes what has been idle for long, one connection apart: another server of the same role may want it.
    fn give_up_idle(&self) {
        if self.places.looks_at_idle() {
            let mut kept = 0;
            let gone = self.pool.retain(|_, metrics| {
                kept += 1;
                kept == 1 || metrics.last_used() < IDLE_MAX
            });
            drop(gone);
        }
    }

    /// Whether a write would work, as far as is known: after one that the server refused for its own sake (a full disk, a
    /// server that is read-only), until a trial write works. The trial is one large object that is rolled back, at most one
    /// a second, and none while nothing was refused.
    ///
    /// # Errors
    /// [`StoreError`]; its text begins with `full`, `read_only` or `disk` where that is known.
    pub async fn writable(&self, deadline: Instant) -> Result<(), StoreError> {
        /// Incompressible, so that it takes pages.
        const TRIAL: &str =
            "BEGIN READ WRITE; SELECT pg_catalog.lo_from_bytea(0, (SELECT string_agg(sha256(n::text::bytea), '')
            FROM generate_series(1, 256) AS n)); ROLLBACK";
        let Some(trouble) = self.writes.trouble() else {
            return Ok(());
        };
        if !self.writes.looks() {
            return Err(trouble);
        }
        let connection = self.get(deadline).await?;
        let Ok(tried) = timeout_at(deadline, connection.batch_execute(TRIAL)).await else {
            return Err(trouble);
        };
        match tried {
            Ok(()) => {
                connection.done();
                self.writes.work_again();
                Ok(())
            }
            Err(error) => {
                if connection.batch_execute("ROLLBACK").await.is_ok() {
                    connection.done();
                }
                if self.writes.note(&error) {
                    return Err(self.writes.trouble().unwrap_or(trouble));
                }
                if error.code().is_none() {
                    return Err(unavailable(describe(&error)));
                }
                // A trial that this role may not make says nothing: the next write tells.
                self.writes.work_again();
                Ok(())
            }
        }
    }

    /// Connections now open, and how many of them are idle.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        let status = self.pool.status();
        (status.size, status.available)
    }

    /// Whether [`Pooled::close`] was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.pool.is_closed()
    }

    /// Gives all connections up; [`Pooled::get`] fails from now on.
    pub fn close(&self) {
        self.pool.close();
    }
}

/// A connection in use. Dropped in the middle of a call, it does not go back to the pool: an answer is still to come.
pub struct Busy {
    connection: Option<Object>,
    tls: Reloaded<MakeRustlsConnect>,
    writes: Arc<Writes>,
    /// Dropped after the connection.
    _place: Place,
}

impl Busy {
    /// Notes what the server refused: a disk that is full is remembered for [`Pooled::writable`].
    pub fn note(&self, error: &tokio_postgres::Error) {
        self.writes.note(error);
    }

    /// The answer is complete and no transaction is open: the connection is as good as before.
    pub fn done(mut self) {
        drop(self.connection.take());
    }
}

impl Deref for Busy {
    type Target = Client;

    fn deref(&self) -> &Client {
        // Taken by `done` and `drop` alone, which nothing outlives.
        #[allow(clippy::expect_used, reason = "there until it is consumed")]
        self.connection.as_ref().expect("a connection in use")
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let cancel = connection.cancel_token();
            drop(Object::take(connection));
            let tls = self.tls.clone();
            // Only where there is a runtime left to do it; the wait for a row ends by itself in any case.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { cancel.cancel_query(tls.current()).await });
            }
        }
    }
}

/// What is left until a moment.
#[must_use]
pub fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// How long rows are waited for, in milliseconds, at least one: 0 would be for ever.
#[must_use]
pub fn lock_wait_ms(left: Duration) -> i64 {
    let wait = left.saturating_sub(ANSWER_MARGIN.min(left / 4));
    i64::try_from(wait.as_millis())
        .unwrap_or(i64::from(i32::MAX))
        .clamp(1, i64::from(i32::MAX))
}

/// Nothing was done.
pub fn unavailable(detail: impl Into<String>) -> StoreError {
    StoreError::Unavailable { detail: detail.into() }
}

/// No answer: what a call that writes may have done is unknown.
#[must_use]
pub fn ambiguous(effect: Effect, detail: String) -> StoreError {
    match effect {
        Effect::Reads => StoreError::Unavailable { detail },
        Effect::Writes => StoreError::Unknown { detail },
    }
}
