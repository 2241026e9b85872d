//! How a database is opened.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where a database lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file. Its directory is made if it is missing; SQLite keeps `-wal` and `-shm` files beside it.
    File(PathBuf),
    /// Memory alone, gone with the last handle: for simulations and tests.
    Memory,
}

/// One step of a schema. Steps are applied in order of their version, each exactly once, and never change afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// 1, 2, 3, … without a gap.
    pub version: u32,
    /// What it does, for the table `schema_migration`.
    pub name: &'static str,
    /// Statements, separated by semicolons.
    pub sql: &'static str,
}

/// Another database file, read under a schema name of its own and never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The schema name in SQL.
    pub schema: &'static str,
    /// The file. It may not exist yet: it is attached as soon as it does, and until then its tables are unknown.
    pub path: PathBuf,
}

/// How a batch of jobs ended, told on the writer before the next batch begins and before anybody is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchEnd {
    /// What its jobs did is on disk.
    Committed,
    /// What its jobs did is undone in this process's view of the file.
    RolledBack,
}

/// Called at the end of each batch.
pub(crate) type AfterBatch = Arc<dyn Fn(BatchEnd) + Send + Sync>;

/// How to open a database. [`SqliteOptions::new`] gives the defaults.
#[derive(Clone)]
pub struct SqliteOptions {
    /// Where it lives.
    pub location: Location,
    /// Its schema.
    pub migrations: &'static [Migration],
    /// Files that are read beside it.
    pub attach: Vec<Attach>,
    /// Only one process may have it open: a second one is refused at once (locks on the file itself and on `<file>.lock`).
    pub exclusive: bool,
    /// The most jobs that share one commit.
    pub batch_max: usize,
    /// The most jobs that wait for the writer, and for the reader; above it a call is refused at once (NFR-11).
    pub queue_max: usize,
    /// How long to wait for another process that writes the same file.
    pub busy_timeout: Duration,
    /// A file up to this size is checked from end to end when it is opened; a larger one where it is touched, so that
    /// the start stays within NFR-10.
    pub check_bytes_max: u64,
    /// A query for one number that is kept when a restore of the file is noticed, as it is then: [`crate::Restored::noted`].
    pub noted_at_restore: Option<&'static str>,
    /// Called at the end of each batch, on the writer.
    pub after_batch: Option<AfterBatch>,
}

impl SqliteOptions {
    /// The defaults: not exclusive, 512 jobs a commit, 16,384 jobs waiting, 5 s for another writer, a check up to 16 MiB.
    #[must_use]
    pub fn new(location: Location, migrations: &'static [Migration]) -> Self {
        Self {
            location,
            migrations,
            attach: Vec::new(),
            exclusive: false,
            batch_max: 512,
            queue_max: 16_384,
            busy_timeout: Duration::from_secs(5),
            check_bytes_max: 16 << 20,
            noted_at_restore: None,
            after_batch: None,
        }
    }
}

impl fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("location", &self.location)
            .field("migrations", &self.migrations.len())
            .field("attach", &self.attach)
            .field("exclusive", &self.exclusive)
            .field("batch_max", &self.batch_max)
            .field("queue_max", &self.queue_max)
            .field("busy_timeout", &self.busy_timeout)
            .finish_non_exhaustive()
    }
}
