//! The handle.

use crate::batch_sizes::Counters;
use crate::connection::{check, lock_exclusively, make_directory, make_file, open_writer};
use crate::error::{Fault, undone};
use crate::mark::{self, Mark};
use crate::migrate::migrate;
use crate::reader::{Reader, as_job};
use crate::standing::Standing;
use crate::writer::{Decision, Order, Turn, TypedJob, Writer};
use crate::{BatchSizes, Location, SqlError, SqliteOptions};
use host_kit::{Blocking, Clock, Host};
use rusqlite::Connection;
use std::fmt;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// What handle, writer and reader share.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) sizes: Counters,
    damage: Mutex<Option<String>>,
    /// Set for good once the path led to other files (case L41).
    replaced: OnceLock<String>,
    /// The last write that the disk refused, with its word; none once a write of some size works again (case L36).
    trouble: Mutex<Option<(&'static str, SqlError)>>,
}

impl Shared {
    /// Refuses what must not be begun any more.
    pub(crate) fn standing(&self) -> Result<(), SqlError> {
        if let Some(damage) = self.damage() {
            return Err(SqlError::Corrupt(damage));
        }
        self.replaced
            .get()
            .map_or(Ok(()), |said| Err(SqlError::Unavailable(said.clone())))
    }

    /// The path leads to other files than those that are open.
    pub(crate) fn found_replaced(&self, said: String) {
        if self.replaced.set(said.clone()).is_ok() {
            tracing::error!(event = "database_replaced", detail = said);
        }
    }

    /// Remembers what a later write would meet again.
    pub(crate) fn met(&self, fault: Fault, error: &SqlError) {
        if let Some(word) = fault.lasting() {
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some((word, error.clone()));
        }
    }

    pub(crate) fn trouble(&self) -> Option<(&'static str, SqlError)> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn out_of_trouble(&self) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The error of a readiness write with the word for it.
    fn named(&self, error: SqlError) -> SqlError {
        let word = match (&error, self.replaced.get(), self.trouble()) {
            (SqlError::Corrupt(_), ..) => "damaged",
            (_, Some(_), _) => "replaced",
            (_, None, Some((word, _))) => word,
            // Locked by another process, or more work than the disk keeps up with.
            (_, None, None) => "busy",
        };
        error.named(word)
    }

    /// Remembers damage: nothing is written over it.
    pub(crate) fn note(&self, error: &SqlError) {
        if let SqlError::Corrupt(detail) = error {
            let mut damage = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
            damage.get_or_insert_with(|| detail.clone());
        }
    }

    pub(crate) fn damage(&self) -> Option<String> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Who works an order off.
enum Worker<W> {
    /// A thread of its own.
    Thread,
    /// Whoever sends: for a host without threads. None after closing.
    Caller(Mutex<Option<W>>),
}

struct Lane<W> {
    orders: SyncSender<Order>,
    worker: Worker<W>,
}

struct Inner {
    writer: Lane<Writer>,
    /// None in memory, where reading is the writer's work too.
    reader: Option<Lane<Reader>>,
    shared: Arc<Shared>,
    version: i64,
}

/// A database. Cheap to clone; the file is closed after the last handle has gone, or by [`Sqlite::close`].
#[derive(Clone)]
pub struct Sqlite(Arc<Inner>);

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite")
            .field("sizes", &self.batch_sizes())
            .finish_non_exhaustive()
    }
}

impl Sqlite {
    /// Opens the database, checks it and brings its schema up to date. Blocks: for the start of a process.
    ///
    /// # Errors
    /// [`SqlError::Unavailable`] when the file is in use by another process, cannot be opened or written;
    /// [`SqlError::Corrupt`] when it is damaged, no database, or of a schema newer than this program.
    pub fn open(options: SqliteOptions, host: &Host) -> Result<Self, SqlError> {
        make_directory(&options.location)?;
        let lock = if options.exclusive {
            lock_exclusively(&options.location)?
        } else {
            None
        };
        make_file(&options.location)?;
        let mut standing = Standing::of(&options)?;
        let file = crate::connection::file_name(&options.location);
        let opened = open_writer(&options).and_then(|opened| {
            check(&opened.connection, &options)?;
            migrate(&opened.connection, &file, options.migrations, host.clock.wall_ms())?;
            Ok(opened)
        });
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if let Some(lock) = lock {
                    lock.withdraw();
                }
                return Err(error);
            }
        };
        let mut mark = Mark::of(&options.location, options.noted_at_restore);
        if let Err(error) = judge(&opened.connection, mark.as_mut(), host.clock.wall_ms()) {
            // A start needs no free disk and waits for no other process. Each batch is judged again before it runs.
            let error = undone(&file, "mark", &error);
            tracing::warn!(event = "file_not_judged", file, %error);
        }

        let shared = Arc::new(Shared {
            clock: host.clock.clone(),
            sizes: Counters::default(),
            damage: Mutex::new(None),
            replaced: OnceLock::new(),
            trouble: Mutex::new(None),
        });
        if let Some(standing) = &mut standing {
            standing.take_beside();
            if let Some(said) = standing.moved() {
                return Err(SqlError::Unavailable(said));
            }
        }
        let version = i64::from(options.migrations.last().map_or(0, |migration| migration.version));
        let reader = match options.location {
            Location::Memory => None,
            Location::File(_) => Some(lane(
                host,
                "sql-reader",
                options.queue_max,
                |orders| Reader::new(options.clone(), shared.clone(), orders),
                Reader::run,
            )?),
        };
        let writer = lane(
            host,
            "sql-writer",
            options.queue_max,
            |orders| Writer::new(opened, (lock, standing), mark, options.clone(), shared.clone(), orders),
            Writer::run,
        )?;
        Ok(Self(Arc::new(Inner {
            writer,
            reader,
            shared,
            version,
        })))
    }

    /// Runs a job that may write, in a savepoint of its own inside a transaction shared with others, and answers after
    /// the commit. Jobs run in the order they were sent. A job that did not begin within `within`, or whose caller has
    /// gone, is not run.
    ///
    /// # Errors
    /// See [`SqlError`]. An error of the job itself undoes this job alone.
    pub async fn write<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(&Connection) -> rusqlite::Result<Decision<T>> + Send + 'static,
    ) -> Result<T, SqlError> {
        self.0
            .writer
            .send(&self.0.shared.clock, within, job, Writer::run_queued)
            .await
    }

    /// Runs a job that only reads. It sees one snapshot: everything that was answered before the call, nothing half.
    ///
    /// # Errors
    /// See [`SqlError`].
    pub async fn read<T: Send + 'static>(
        &self,
        within: Duration,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, SqlError> {
        let clock = &self.0.shared.clock;
        match &self.0.reader {
            Some(reader) => reader.send(clock, within, as_job(job), Reader::run_queued).await,
            None => self.0.writer.send(clock, within, as_job(job), Writer::run_queued).await,
        }
    }

    /// How many jobs shared each commit so far.
    #[must_use]
    pub fn batch_sizes(&self) -> BatchSizes {
        self.0.shared.sizes.read()
    }

    /// Whether the database can be written: writes a page and commits it. After a write that the disk refused, until there
    /// is room for one of some size again, that refusal is told.
    ///
    /// # Errors
    /// What is wrong. Its text begins with a word: `full`, `read_only`, `disk` (it failed), `replaced` (the path leads to
    /// other files), `damaged`, or `busy` (not written in time). Damage and replaced files are told until the process ends.
    pub async fn health(&self, within: Duration) -> Result<(), SqlError> {
        let shared = &self.0.shared;
        shared.standing().map_err(|error| shared.named(error))?;
        let version = self.0.version;
        let written = self.write(within, move |connection| {
            // The same number again: the page is written all the same.
            connection.pragma_update(None, "user_version", version)?;
            Ok(Decision::Commit(()))
        });
        written.await.map_err(|error| shared.named(error))?;
        shared.trouble().map_or(Ok(()), |(word, error)| Err(error.named(word)))
    }

    /// Closes the database after what is queued before: when it answers, the file is free for another process.
    pub async fn close(self) {
        if let Some(reader) = &self.0.reader {
            reader.close(Reader::run_queued, Reader::close).await;
        }
        self.0
            .writer
            .close(Writer::run_queued, |writer, told| writer.close(Some(told)))
            .await;
    }
}

/// Looks whether the file is the one that was written last, and records it where it is not. Writes only where there is
/// something to write.
fn judge(connection: &Connection, mark: Option<&mut Mark>, now_ms: i64) -> rusqlite::Result<()> {
    mark::prepare(connection)?;
    let Some(mark) = mark else { return Ok(()) };
    if !mark.suspects(connection)? {
        return Ok(());
    }
    let transaction = rusqlite::Transaction::new_unchecked(connection, rusqlite::TransactionBehavior::Immediate)?;
    if !mark.judge(&transaction, now_ms)? {
        return Ok(());
    }
    let commits = mark.committing(&transaction)?;
    transaction.commit()?;
    mark.committed(commits);
    Ok(())
}

fn lane<W: Send + 'static>(
    host: &Host,
    name: &str,
    queue_max: usize,
    make: impl FnOnce(std::sync::mpsc::Receiver<Order>) -> W,
    run: impl FnOnce(W) + Send + 'static,
) -> Result<Lane<W>, SqlError> {
    let (orders, queue) = sync_channel(queue_max);
    let worker = make(queue);
    let worker = match &host.blocking {
        Blocking::Threads(spawn) => {
            spawn(name, Box::new(move || run(worker)))
                .map_err(|error| SqlError::Unavailable(format!("cannot start the thread {name}: {error}")))?;
            Worker::Thread
        }
        Blocking::Inline => Worker::Caller(Mutex::new(Some(worker))),
    };
    Ok(Lane { orders, worker })
}

impl<W> Lane<W> {
    async fn send<T: Send + 'static>(
        &self,
        clock: &Clock,
        within: Duration,
        work: impl FnOnce(&Connection) -> rusqlite::Result<Decision<T>> + Send + 'static,
        run_queued: impl Fn(&mut W) -> Option<oneshot::Sender<()>>,
    ) -> Result<T, SqlError> {
        let (reply, answer) = oneshot::channel();
        let turn = Turn::default();
        let job = TypedJob {
            work: Some(work),
            answer: None,
            reply,
            turn: turn.clone(),
            deadline: clock.mono().saturating_add(within),
        };
        self.orders.try_send(Order::Job(Box::new(job))).map_err(|error| {
            SqlError::Unavailable(match error {
                TrySendError::Full(_) => "too many calls are waiting for the database".to_owned(),
                TrySendError::Disconnected(_) => "the database is closed".to_owned(),
            })
        })?;
        let answered = match &self.worker {
            Worker::Thread => tokio::time::timeout(within, answer).await.ok(),
            Worker::Caller(worker) => {
                if let Some(worker) = &mut *worker.lock().unwrap_or_else(PoisonError::into_inner) {
                    run_queued(worker);
                }
                Some(answer.await)
            }
        };
        match answered {
            Some(Ok(answer)) => answer,
            // The worker ended, or the time did.
            Some(Err(_)) | None if turn.abandon() => Err(SqlError::Unavailable(
                "the database did not begin it in time".to_owned(),
            )),
            Some(Err(_)) => Err(SqlError::Unknown("the database ended while working on it".to_owned())),
            None => Err(SqlError::Unknown("the database did not answer in time".to_owned())),
        }
    }

    async fn close(
        &self,
        run_queued: impl Fn(&mut W) -> Option<oneshot::Sender<()>>,
        close: impl Fn(W, oneshot::Sender<()>),
    ) {
        let (told, closed) = oneshot::channel();
        let mut order = Order::Close(told);
        loop {
            match self.orders.try_send(order) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) => {
                    order = back;
                    tokio::task::yield_now().await;
                }
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
        if let Worker::Caller(worker) = &self.worker {
            let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some(mut open) = worker.take() {
                match run_queued(&mut open) {
                    Some(told) => close(open, told),
                    None => *worker = Some(open),
                }
            }
        }
        // An error means that the worker ended before: closed as well.
        let _ = closed.await;
    }
}
