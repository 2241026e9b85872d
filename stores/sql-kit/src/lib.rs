//! SQLite as a server keeps it: one writer, group commit, deadlines, migrations.
//!
//! ```text
//! write(job) → bounded queue → [take what is queued] → BEGIN IMMEDIATE → savepoint per job → one COMMIT → all answers
//! read(job)  → reader's own connection (WAL snapshot)                                         → answer
//! ```
//!
//! Owns: the connections of one database file, their pragmas (WAL, `synchronous=FULL`, foreign keys), the order of
//! writes, the one durable commit that many callers share, and the schema's version.
//! Does not own: any table but `schema_migration`; what a job reads and writes.
//! On failure: nobody is told that something was done before it is on disk. [`SqlError`] says which of three things a
//! failed call means: certainly not done, may have been done, or the file is damaged. Once damage was seen, or the path
//! leads to other files than those that are open, nothing is written any more before a restart.

mod batch_sizes;
mod connection;
mod error;
mod mark;
mod migrate;
mod options;
mod reader;
mod sqlite;
mod standing;
mod writer;

pub use batch_sizes::BatchSizes;
pub use error::SqlError;
pub use mark::{Restored, restore_was_told, restored};
pub use options::{Attach, BatchEnd, Location, Migration, SqliteOptions};
pub use rusqlite;
pub use sqlite::Sqlite;
pub use writer::Decision;
