//! The embedded backend: one file, one process, one writer.
//!
//! ```text
//! verb(batch) → one job of the group commit: rows (SQL, each write with its session and token in the predicate)
//!                                          + observed deadlines (memory, undone with the job's savepoint)
//!             → COMMIT (fsync) → wake who waits for events → answers
//! ```
//!
//! Owns: the tables of C1.1 on SQLite, and beside them in memory when each session and grant is due on this process's
//! monotonic clock. A restart observes every live row anew, with its full TTL; the wall clock is only recorded.
//! Does not own: the file's handling (`sql-kit`).
//! On failure: an error rolls its job back, rows and deadlines alike; a commit that failed rolls back all its jobs.

mod error;
mod event;
mod expiry;
mod grant;
mod job;
mod observed;
mod rows;
mod session;
mod store;
mod token;

pub use store::{SqliteLockStore, SqliteLockStoreOptions};
