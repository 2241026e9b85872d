//! The reader: a connection of its own, so that no read waits for a commit.

use crate::SqlError;
use crate::connection::{Opened, file_name, open_reader};
use crate::error::undone;
use crate::sqlite::Shared;
use crate::writer::{Decision, Job, Order};
use crate::{Location, SqliteOptions};
use rusqlite::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use tokio::sync::oneshot;

/// The one owner of the reading connection.
pub(crate) struct Reader {
    opened: Option<Opened>,
    options: SqliteOptions,
    file: String,
    shared: Arc<Shared>,
    orders: Receiver<Order>,
}

impl Reader {
    pub(crate) fn new(options: SqliteOptions, shared: Arc<Shared>, orders: Receiver<Order>) -> Self {
        Self {
            opened: None,
            file: file_name(&options.location),
            options,
            shared,
            orders,
        }
    }

    /// Works until it is told to close or nobody can send any more.
    pub(crate) fn run(mut self) {
        while let Ok(order) = self.orders.recv() {
            if let Some(told) = self.work(order) {
                return self.close(told);
            }
        }
    }

    /// Works off what is queued now, on the caller. For a host without threads.
    pub(crate) fn run_queued(&mut self) -> Option<oneshot::Sender<()>> {
        while let Ok(order) = self.orders.try_recv() {
            if let Some(told) = self.work(order) {
                return Some(told);
            }
        }
        None
    }

    pub(crate) fn close(self, told: oneshot::Sender<()>) {
        drop(self);
        let _ = told.send(());
    }

    fn work(&mut self, order: Order) -> Option<oneshot::Sender<()>> {
        match order {
            Order::Close(told) => return Some(told),
            Order::Job(mut job) => {
                if !job.begin(self.shared.clock.mono()) {
                    job.finish(Ok(()));
                    return None;
                }
                let end = self.read(&mut job);
                if let Err(error) = &end {
                    self.shared.note(error);
                }
                job.finish(end);
            }
        }
        None
    }

    fn read(&mut self, job: &mut Box<dyn Job>) -> Result<(), SqlError> {
        let opened = match (self.opened.take(), &self.options.location) {
            (Some(opened), _) => opened,
            (None, Location::File(path)) => open_reader(path, &self.options)?,
            (None, Location::Memory) => return Err(SqlError::Unavailable("memory has no reader".to_owned())),
        };
        let opened = self.opened.insert(opened);
        opened.attach_missing();
        let read = one_snapshot(&opened.connection, job).map_err(|error| undone(&self.file, "read", &error));
        match read {
            Ok(true) => Ok(()),
            Ok(false) => Err(SqlError::Unavailable(format!("{}: the job panicked", self.file))),
            Err(error) => Err(error),
        }
    }
}

/// Runs the job in a transaction, so that all its statements see the same commit. False when it panicked.
fn one_snapshot(connection: &Connection, job: &mut Box<dyn Job>) -> rusqlite::Result<bool> {
    connection.execute_batch("BEGIN")?;
    let ran = catch_unwind(AssertUnwindSafe(|| job.run(connection)));
    if !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    match ran {
        Ok(ran) => ran.map(|_| true),
        Err(_) => Ok(false),
    }
}

/// A reading job in the shape of a writing one.
pub(crate) fn as_job<T>(
    read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send,
) -> impl FnOnce(&Connection) -> rusqlite::Result<Decision<T>> + Send {
    move |connection| read(connection).map(Decision::Rollback)
}
