//! A verb as one transaction, in few round trips.
//!
//! ```text
//! run(within) → attempt(transaction) → flight: BEGIN, row lock, reads ─▶ decide ─▶ commit: writes, COMMIT ─▶ answer
//!                      ▲                                                     │                    │
//!                      └── rolled back for another transaction's sake, or broken before COMMIT ───┘
//! ```
//!
//! Owns: when what is sent and believed. The statements of one flight are sent at once, in order, without waiting for
//! each other's answers; so nothing in a flight may depend on an answer of the same flight.
//! Does not own: the statements.
//! On failure: before COMMIT was sent nothing was done, whatever broke. A statement that fails in front of COMMIT turns it
//! into a rollback that reports success, so COMMIT is believed only after every statement before it has answered. COMMIT
//! sent and not answered is `Unknown`.

use crate::fate::{Fate, describe, fate, problem};
use crate::pooled::{Busy, Effect, Param, Pooled, left_until, lock_wait_ms, unavailable};
use host_kit::Random;
use lock_api::StoreError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::{Client, Error, Row};

/// A statement and its parameters, `$1` onwards.
pub type Statement<'a> = (&'a str, &'a [Param<'a>]);

/// The rows of each statement of a flight, in order.
pub type Answers = Vec<Vec<Row>>;

/// Why an attempt ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Nothing was done, and the same attempt may succeed when it is made again.
    Again(String),
    /// It ends here.
    For(StoreError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::For(error)
    }
}

/// Makes transactions in one schema of one database. Cheap to clone.
#[derive(Clone)]
pub struct Transactions {
    pool: Pooled,
    /// Quoted.
    schema: String,
    random: Random,
}

impl Transactions {
    /// Transactions whose statements find `schema` first. The name has passed [`crate::check_name`].
    #[must_use]
    pub fn new(pool: Pooled, schema: &str, random: Random) -> Self {
        Self {
            pool,
            schema: format!("\"{schema}\""),
            random,
        }
    }

    /// The pool below.
    #[must_use]
    pub const fn pool(&self) -> &Pooled {
        &self.pool
    }

    /// Runs a verb. Each attempt gets a transaction of its own and ends it by [`Transaction::commit`] or
    /// [`Transaction::rollback`]; one that is dropped is rolled back. Attempts that the database rolled back for another
    /// transaction's sake, and those whose connection broke before COMMIT was sent, are made again until `within` has
    /// passed (case P13).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: nothing was done. [`StoreError::Unknown`]: COMMIT was sent and not answered.
    pub async fn run<T, F, Fut>(&self, effect: Effect, within: Duration, mut attempt: F) -> Result<T, StoreError>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, Stopped>>,
    {
        let deadline = Instant::now() + within;
        let mut attempts = 0_u32;
        loop {
            attempts += 1;
            let transaction = self.begin(effect, deadline).await?;
            let sent = transaction.commit_sent.clone();
            let Ok(ended) = timeout_at(deadline, attempt(transaction)).await else {
                let detail = "the database did not answer in time".to_owned();
                return Err(if sent.load(Ordering::SeqCst) {
                    StoreError::Unknown { detail }
                } else {
                    StoreError::Unavailable { detail }
                });
            };
            match ended {
                Ok(answer) => return Ok(answer),
                Err(Stopped::For(error)) => return Err(error),
                Err(Stopped::Again(detail)) => {
                    let pause = self.random.up_to(Duration::from_millis(2 << attempts.min(6)));
                    if Instant::now() + pause >= deadline {
                        return Err(unavailable(format!("rolled back {attempts} times, last by {detail}")));
                    }
                    tracing::debug!(event = "database_rollback", attempts, detail);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Reads at one moment, in one round trip.
    ///
    /// # Errors
    /// [`StoreError`]; never [`StoreError::Unknown`].
    pub async fn read(&self, within: Duration, statements: &[Statement<'_>]) -> Result<Answers, StoreError> {
        self.run(Effect::Reads, within, |transaction| transaction.commit(statements))
            .await
    }

    /// Whether the database does its work: begins a transaction that may write, reads, and undoes it; after a write that the
    /// server refused also a trial write ([`Pooled::writable`]).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] whose text is that of [`crate::problem`].
    pub async fn health(&self, statement: &str, within: Duration) -> Result<(), StoreError> {
        let deadline = Instant::now() + within;
        let looked = self.run(Effect::Writes, within, async |transaction: Transaction| {
            let (transaction, _) = transaction.flight(&[(statement, &[])]).await?;
            transaction.rollback().await;
            Ok(())
        });
        let works = match looked.await {
            Ok(()) => self.pool.writable(deadline).await,
            Err(error) => Err(error),
        };
        works.map_err(|error| unavailable(problem(&error)))
    }

    async fn begin(&self, effect: Effect, deadline: Instant) -> Result<Transaction, StoreError> {
        let connection = self.pool.get(deadline).await?;
        let wait = lock_wait_ms(left_until(deadline));
        let begin = match effect {
            // Everything a verb reads is of one moment.
            Effect::Reads => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned(),
            // Each statement sees what was committed before it. Whatever the server's default is, an answer is durable. A
            // process that is stopped in the middle holds its rows no longer than its caller would have waited.
            Effect::Writes => format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on; \
                 SET LOCAL lock_timeout = {wait}; SET LOCAL idle_in_transaction_session_timeout = {wait}"
            ),
        };
        Ok(Transaction {
            connection,
            begin: Some(format!(
                "{begin}; SET LOCAL statement_timeout = {wait}; SET LOCAL search_path = {}, pg_temp",
                self.schema
            )),
            commit_sent: Arc::default(),
            effect,
        })
    }
}

/// One attempt.
pub struct Transaction {
    connection: Busy,
    /// What is to be sent in front of the first flight.
    begin: Option<String>,
    commit_sent: Arc<AtomicBool>,
    effect: Effect,
}

impl Transaction {
    /// Sends statements at once and answers the rows of each. The first flight begins the transaction.
    ///
    /// # Errors
    /// [`Stopped`]; nothing was done, and the transaction is over.
    pub async fn flight(mut self, statements: &[Statement<'_>]) -> Result<(Self, Answers), Stopped> {
        let begin = self.begin.take();
        match send(&self.connection, begin.as_deref(), statements, false).await {
            Ok(answers) => Ok((self, answers)),
            Err(failed) => {
                self.connection.note(&failed.error);
                Err(self.give_up(&failed).await)
            }
        }
    }

    /// Sends statements and COMMIT at once. Rows that a statement did not change are no error here: whatever must have
    /// changed has to be demanded by a later statement of the same flight, so that the database rolls back by itself.
    ///
    /// # Errors
    /// [`Stopped`]; [`StoreError::Unknown`] in it means that COMMIT was sent and not answered.
    pub async fn commit(mut self, statements: &[Statement<'_>]) -> Result<Answers, Stopped> {
        let begin = self.begin.take();
        self.commit_sent.store(self.effect == Effect::Writes, Ordering::SeqCst);
        let sent = send(&self.connection, begin.as_deref(), statements, true).await;
        if let Err(failed) = &sent {
            self.connection.note(&failed.error);
        }
        match sent {
            Ok(answers) => {
                self.connection.done();
                Ok(answers)
            }
            // The server refused something before it came to COMMIT, which rolled back; or COMMIT itself, as a whole. A
            // server that says nothing, or that it does not know, may have committed.
            Err(failed) if self.effect == Effect::Reads || failed.is_refused() => Err(self.give_up(&failed).await),
            Err(failed) => Err(Stopped::For(StoreError::Unknown {
                detail: describe(&failed.error),
            })),
        }
    }

    /// Ends the transaction without a trace. What was refused stays refused even where this is not answered.
    pub async fn rollback(self) {
        if self.begin.is_some() || self.connection.batch_execute("ROLLBACK").await.is_ok() {
            self.connection.done();
        }
    }

    /// Judges what failed while nothing was committed.
    async fn give_up(self, failed: &Failed) -> Stopped {
        let detail = describe(&failed.error);
        let verdict = match fate(&failed.error) {
            Fate::Again => Stopped::Again(detail),
            Fate::Corrupt => Stopped::For(StoreError::Corrupt { detail }),
            // The connection is gone, and with it the transaction: another one may do.
            Fate::Unknown if failed.is_broken() || self.connection.is_closed() => Stopped::Again(detail),
            Fate::Unknown | Fate::Refused => Stopped::For(unavailable(detail)),
        };
        self.rollback().await;
        verdict
    }
}

/// What failed in a flight.
struct Failed {
    error: Error,
    /// Whether it stands in front of COMMIT.
    before_commit: bool,
}

impl Failed {
    /// Whether the server has said that nothing was committed.
    fn is_refused(&self) -> bool {
        self.error.code().is_some() && (self.before_commit || fate(&self.error) != Fate::Unknown)
    }

    /// Whether the session ended: on the way, or by the server's will (class 57P).
    fn is_broken(&self) -> bool {
        self.error.code().map_or_else(
            || self.error.is_closed() || is_io(&self.error),
            |state| state.code().starts_with("57P"),
        )
    }
}

fn is_io(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

/// The answer to one message.
enum Answer {
    Rows(Vec<Row>),
    Ended,
}

type Sending<'a> = Pin<Box<dyn Future<Output = Result<Answer, Error>> + Send + 'a>>;

/// Sends everything before the first answer is waited for, and stops at the first failure in the order sent.
async fn send(
    client: &Client,
    begin: Option<&str>,
    statements: &[Statement<'_>],
    commit: bool,
) -> Result<Answers, Failed> {
    let simple = |sql: String| -> Sending<'_> {
        Box::pin(async move { client.batch_execute(&sql).await.map(|()| Answer::Ended) })
    };
    let mut messages: Vec<Sending<'_>> = Vec::with_capacity(statements.len() + 3);
    if let Some(begin) = begin {
        messages.push(simple(begin.to_owned()));
    }
    for (sql, params) in statements {
        messages.push(Box::pin(async move {
            client.query_typed(sql, params).await.map(Answer::Rows)
        }));
    }
    let before_commit = messages.len();
    if commit {
        // A COMMIT that is cancelled while it waits for a standby says that it has committed, although only here: so
        // nothing but the caller's own deadline cuts it short, and then it is unknown. A message of its own: the limit is
        // read when a message begins.
        messages.push(simple("SET LOCAL statement_timeout = 0".to_owned()));
        messages.push(simple("COMMIT".to_owned()));
    }
    let mut answers: Vec<Option<Answer>> = messages.iter().map(|_| None).collect();
    // Polling in order sends in order; answers come in that order too.
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (n, message) in messages.iter_mut().enumerate() {
            if answers[n].is_some() {
                continue;
            }
            match message.as_mut().poll(context) {
                Poll::Ready(Ok(answer)) => answers[n] = Some(answer),
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(Failed {
                        error,
                        before_commit: n < before_commit,
                    }));
                }
                Poll::Pending => waiting = true,
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
            Some(Answer::Rows(rows)) => Some(rows),
            Some(Answer::Ended) | None => None,
        })
        .collect())
}
