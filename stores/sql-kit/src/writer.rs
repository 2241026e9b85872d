//! The writer: takes what is queued, runs each job in a savepoint of one transaction, commits once, answers all.

use crate::connection::{Exclusive, Opened, file_name, open_writer};
use crate::error::{Fault, commit_failed, fault, fault_of_file, undone};
use crate::mark::{self, Mark};
use crate::sqlite::Shared;
use crate::standing::{Standing, beside};
use crate::{BatchEnd, Location, SqlError, SqliteOptions};
use rusqlite::Connection;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;
use tokio::sync::oneshot;

/// What a job wants to become of what it wrote. Its answer is delivered either way, after the batch's commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<T> {
    /// Keep it.
    Commit(T),
    /// Undo what this job wrote, and nothing else.
    Rollback(T),
}

const QUEUED: u8 = 0;
const BEGUN: u8 = 1;
const ABANDONED: u8 = 2;

/// Who came first: the writer that begins a job, or the caller that gives up waiting for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn(Arc<AtomicU8>);

impl Turn {
    fn take(&self, to: u8) -> bool {
        self.0
            .compare_exchange(QUEUED, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The caller gives up. True when the job will certainly not run.
    pub(crate) fn abandon(&self) -> bool {
        self.take(ABANDONED) || self.0.load(Ordering::Acquire) == ABANDONED
    }

    pub(crate) fn begin(&self) -> bool {
        self.take(BEGUN)
    }
}

/// A job in the queue.
pub(crate) trait Job: Send {
    /// Claims the job for running; false when its caller has gone or its deadline has passed.
    fn begin(&mut self, now: Duration) -> bool;
    /// Runs it. True to keep what it wrote.
    fn run(&mut self, connection: &Connection) -> rusqlite::Result<bool>;
    /// Answers: what `run` found, or the error that overrides it.
    fn finish(self: Box<Self>, end: Result<(), SqlError>);
}

/// A job with its answer.
pub(crate) struct TypedJob<T, F> {
    pub(crate) work: Option<F>,
    pub(crate) answer: Option<T>,
    pub(crate) reply: oneshot::Sender<Result<T, SqlError>>,
    pub(crate) turn: Turn,
    pub(crate) deadline: Duration,
}

impl<T, F> Job for TypedJob<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> rusqlite::Result<Decision<T>> + Send,
{
    fn begin(&mut self, now: Duration) -> bool {
        now < self.deadline && !self.reply.is_closed() && self.turn.begin()
    }

    fn run(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        let Some(work) = self.work.take() else { return Ok(false) };
        let (answer, keep) = match work(connection)? {
            Decision::Commit(answer) => (answer, true),
            Decision::Rollback(answer) => (answer, false),
        };
        self.answer = Some(answer);
        Ok(keep)
    }

    fn finish(self: Box<Self>, end: Result<(), SqlError>) {
        let answer = match (end, self.answer) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(answer)) => Ok(answer),
            (Ok(()), None) => Err(SqlError::Unavailable("it was not begun before its deadline".to_owned())),
        };
        // A caller that has gone does not want the answer.
        let _ = self.reply.send(answer);
    }
}

/// What stands in the writer's queue.
pub(crate) enum Order {
    Job(Box<dyn Job>),
    /// The last order: close the connection, then free the file, then tell.
    Close(oneshot::Sender<()>),
}

/// The one owner of the writing connection.
pub(crate) struct Writer {
    /// None after the connection broke, until the next batch opens a new one.
    opened: Option<Opened>,
    /// Dropped after the connection.
    _lock: Option<Exclusive>,
    /// The files that are open. None in memory.
    standing: Option<Standing>,
    /// None in memory.
    mark: Option<Mark>,
    options: SqliteOptions,
    file: String,
    shared: Arc<Shared>,
    orders: Receiver<Order>,
}

impl Writer {
    pub(crate) fn new(
        opened: Opened,
        (lock, standing): (Option<Exclusive>, Option<Standing>),
        mark: Option<Mark>,
        options: SqliteOptions,
        shared: Arc<Shared>,
        orders: Receiver<Order>,
    ) -> Self {
        Self {
            opened: Some(opened),
            _lock: lock,
            standing,
            mark,
            file: file_name(&options.location),
            options,
            shared,
            orders,
        }
    }

    /// Works until it is told to close or nobody can send any more.
    pub(crate) fn run(mut self) {
        let mut closing = None;
        while closing.is_none() {
            let Ok(first) = self.orders.recv() else { break };
            closing = self.work_from(Some(first));
        }
        self.close(closing);
    }

    /// Works off what is queued now, on the caller. For a host without threads.
    pub(crate) fn run_queued(&mut self) -> Option<oneshot::Sender<()>> {
        self.work_from(None)
    }

    /// Closes the connection and frees the file.
    pub(crate) fn close(self, told: Option<oneshot::Sender<()>>) {
        drop(self);
        if let Some(told) = told {
            let _ = told.send(());
        }
    }

    fn work_from(&mut self, first: Option<Order>) -> Option<oneshot::Sender<()>> {
        let mut next = first;
        let mut closing = None;
        let mut batch = VecDeque::new();
        // Everything queued by now shares the commit: jobs that come while it runs make the next batch, so that the
        // batch grows with the load and nobody waits for a timer. Gathered before BEGIN, so that no job sees an older
        // snapshot of an attached file than the moment it was sent.
        while batch.len() < self.options.batch_max {
            match next.take().map_or_else(|| self.orders.try_recv(), Ok) {
                Ok(Order::Job(job)) => batch.push_back(job),
                Ok(Order::Close(told)) => {
                    closing = Some(told);
                    break;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        while !batch.is_empty() {
            self.commit_from(&mut batch);
        }
        closing
    }

    /// Runs jobs from the front of `batch` in one transaction. What is left over did not begin.
    fn commit_from(&mut self, batch: &mut VecDeque<Box<dyn Job>>) {
        // Taken out for the batch, put back when it has ended well enough to go on.
        let (opened, room, mut changed) = match self.begin() {
            Ok(begun) => begun,
            Err(error) => {
                for job in batch.drain(..) {
                    job.finish(Err(error.clone()));
                }
                return;
            }
        };
        let connection = &opened.connection;
        let (mut done, mut failed): (Vec<Box<dyn Job>>, Option<SqlError>) = (Vec::with_capacity(batch.len()), None);
        while let Some(mut job) = batch.pop_front() {
            if !job.begin(self.shared.clock.mono()) {
                job.finish(Ok(()));
                continue;
            }
            match in_savepoint(connection, &self.file, &self.shared, &mut job) {
                Ok(wrote) => {
                    changed |= wrote;
                    done.push(job);
                }
                Err(Undone::Job(error)) => job.finish(Err(error)),
                Err(Undone::Batch(error)) => {
                    done.push(job);
                    failed = Some(error);
                    break;
                }
            }
        }
        let end = match failed {
            Some(error) => Err(error),
            None => {
                let mark = self.mark.as_mut().filter(|_| changed);
                commit(connection, &self.file, &self.shared, mark).and_then(|()| {
                    // Nobody is told that something was done in a file that another process would not find.
                    let moved = self
                        .standing
                        .as_ref()
                        .and_then(Standing::moved)
                        .or_else(|| opened.moved());
                    moved.map_or(Ok(()), |said| {
                        self.shared.found_replaced(said.clone());
                        Err(SqlError::Unknown(said))
                    })
                })
            }
        };
        if end.is_ok() && room {
            self.shared.out_of_trouble();
        }
        if end.is_err()
            && !connection.is_autocommit()
            && let Err(error) = connection.execute_batch("ROLLBACK")
        {
            tracing::error!(event = "rollback_failed", file = self.file, %error);
        }
        // A connection that cannot even roll back is not used again. Memory has only this one.
        if connection.is_autocommit() || self.options.location == Location::Memory {
            self.opened = Some(opened);
        }
        match &end {
            Ok(()) if !done.is_empty() => self.shared.sizes.record(done.len() as u64),
            Ok(()) => {}
            Err(error) => {
                self.shared.note(error);
                tracing::error!(event = "commit_failed", file = self.file, jobs = done.len(), %error);
            }
        }
        if let Some(after_batch) = &self.options.after_batch {
            after_batch(if end.is_ok() {
                BatchEnd::Committed
            } else {
                BatchEnd::RolledBack
            });
        }
        for job in done {
            job.finish(end.clone());
        }
    }

    /// The connection, inside a new transaction; whether there is room for further ones, as far as is known; and whether
    /// something was written in it already.
    fn begin(&mut self) -> Result<(Opened, bool, bool), SqlError> {
        self.shared.standing()?;
        let moved = self.standing.as_ref().and_then(Standing::moved);
        if let Some(said) = moved.or_else(|| self.opened.as_ref().and_then(Opened::moved)) {
            self.shared.found_replaced(said);
            self.shared.standing()?;
        }
        let begun = match self.opened.take() {
            Some(opened) => Ok((opened, false)),
            None => {
                if let Some(standing) = &mut self.standing {
                    standing.forget_beside();
                }
                open_writer(&self.options).map(|opened| (opened, true))
            }
        }
        .and_then(|(mut opened, anew)| {
            opened.attach_missing();
            let room = self.has_room(&opened.connection);
            match begin_judged(&opened.connection, self.mark.as_ref(), self.shared.clock.wall_ms()) {
                Ok(changed) => {
                    if let Some(standing) = self.standing.as_mut().filter(|_| anew) {
                        standing.take_beside();
                    }
                    Ok((opened, room, changed))
                }
                Err(error) => {
                    self.opened = Some(opened);
                    let failed = undone(&self.file, "begin", &error);
                    self.shared.met(fault(&error), &failed);
                    Err(failed)
                }
            }
        });
        begun.inspect_err(|error| {
            self.shared.note(error);
            tracing::error!(event = "begin_failed", file = self.file, %error);
        })
    }

    /// After a write that the disk refused: whether it would take one of some size. A small one may find a place in the log
    /// although the next one does not, and a log that cannot grow is never emptied by a commit: it is emptied here, which
    /// takes room in the database, and a file of the probe's size is written beside it.
    fn has_room(&self, connection: &Connection) -> bool {
        let Location::File(path) = &self.options.location else {
            return true;
        };
        if self.shared.trouble().is_none() {
            return true;
        }
        // Readers are not waited for: what they hinder is done the next time.
        let emptied = connection
            .busy_timeout(Duration::ZERO)
            .and_then(|()| connection.query_row("PRAGMA main.wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
            .map_err(|error| (fault(&error), undone(&self.file, "checkpoint", &error)));
        let restored = connection.busy_timeout(self.options.busy_timeout);
        let written = probe(&beside(path, "-probe")).map_err(|error| {
            let fault = fault_of_file(&error);
            (
                fault,
                SqlError::Unavailable(format!("{}: a trial write: {error}", self.file)),
            )
        });
        for (fault, error) in [&emptied, &written].into_iter().filter_map(|done| done.as_ref().err()) {
            self.shared.met(*fault, error);
        }
        emptied.is_ok() && written.is_ok() && restored.is_ok()
    }
}

/// How much a trial write takes: more than any batch of a usual load.
const PROBE_BYTES: usize = 256 * 1024;

/// Writes a file durably and removes it.
fn probe(path: &Path) -> std::io::Result<()> {
    // One that a process left behind when it died.
    drop(std::fs::remove_file(path));
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(&vec![1; PROBE_BYTES])?;
        file.sync_all()
    });
    drop(std::fs::remove_file(path));
    written
}

/// Begins a transaction that has the write lock, and looks there whether the file is the one that was written last. Answers
/// whether that wrote something.
fn begin_judged(connection: &Connection, mark: Option<&Mark>, now_ms: i64) -> rusqlite::Result<bool> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let Some(mark) = mark else { return Ok(false) };
    let judged = mark.judge(connection, now_ms).or_else(|_| {
        // The table could not be made at the start.
        mark::prepare(connection)?;
        mark.judge(connection, now_ms)
    });
    if judged.is_err() && !connection.is_autocommit() {
        // The first error is the one to tell.
        let _ = connection.execute_batch("ROLLBACK");
    }
    judged
}

/// Commits. `mark`: what counts it; none where nothing was changed.
fn commit(connection: &Connection, file: &str, shared: &Shared, mark: Option<&mut Mark>) -> Result<(), SqlError> {
    let met = |error: &rusqlite::Error, failed: SqlError| {
        shared.met(fault(error), &failed);
        failed
    };
    let commit = || {
        connection
            .execute_batch("COMMIT")
            .map_err(|error| met(&error, commit_failed(file, &error)))
    };
    let Some(mark) = mark else { return commit() };
    let commits = mark
        .committing(connection)
        .map_err(|error| met(&error, undone(file, "mark", &error)))?;
    commit()?;
    mark.committed(commits);
    Ok(())
}

enum Undone {
    /// This job alone was undone.
    Job(SqlError),
    /// The whole transaction is lost.
    Batch(SqlError),
}

/// Answers whether the job changed something that is kept.
fn in_savepoint(connection: &Connection, file: &str, shared: &Shared, job: &mut Box<dyn Job>) -> Result<bool, Undone> {
    let failed = |what: &str, error: &rusqlite::Error| {
        let failed = undone(file, what, error);
        shared.met(fault(error), &failed);
        failed
    };
    let step = |sql: &str| {
        connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute([]))
            .map_err(|error| Undone::Batch(failed(sql, &error)))
    };
    step("SAVEPOINT job")?;
    let changes = connection.total_changes();
    // The job's state is thrown away after a panic, and what it wrote is rolled back.
    let error = match catch_unwind(AssertUnwindSafe(|| job.run(connection))) {
        Ok(Ok(true)) => {
            step("RELEASE job")?;
            return Ok(connection.total_changes() != changes);
        }
        Ok(Ok(false)) => None,
        Ok(Err(error)) => Some(match (failed("write", &error), fault(&error)) {
            // Damage leaves no trust in what the other jobs read. After a full disk or an I/O error SQLite may have
            // undone the whole transaction by itself.
            (error, Fault::Damage | Fault::Disk | Fault::Full) => return Err(Undone::Batch(error)),
            (error, _) if connection.is_autocommit() => return Err(Undone::Batch(error)),
            (error, _) => error,
        }),
        Err(_) => Some(SqlError::Unavailable(format!("{file}: the job panicked"))),
    };
    step("ROLLBACK TO job")?;
    step("RELEASE job")?;
    error.map_or(Ok(false), |error| Err(Undone::Job(error)))
}
