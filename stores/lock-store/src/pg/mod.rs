//! The backend on PostgreSQL 16: any number of lock servers on one database, none of them with state of its own.
//!
//! ```text
//! verb(batch) → one connection of the pool → one call of one function of the schema: rows locked in one order
//!             → clock_timestamp() → judged, minted, recorded → COMMIT → NOTIFY → answers
//! ```
//!
//! Owns: the tables and functions of C1.1 on PostgreSQL (`migrations/pg`), the connections, the deadlines, what each
//! SQLSTATE means, and the comparison of the database's clock and history with what this process knows of them.
//! Does not own: the server, its replication and its backups.
//! On failure: no grant. A statement that the server refused was rolled back and is `Unavailable`; one whose answer did
//! not arrive is `Unknown`, cancelled, and its connection is given up. Serialization failures and deadlocks are tried
//! again inside the caller's deadline.
//!
//! Four bounds end a call, each where the one before cannot: the wait for a row ends by itself (`lock_timeout`) a little
//! before the caller's deadline; at the deadline the caller has its answer, the statement is cancelled and its connection
//! closed; a server that hears of neither ends the statement after a minute (`statement_timeout`); and a peer that is
//! gone is noticed by keepalives.
//!
//! No statement is ever prepared under a name, and nothing is left set on a connection: so every verb works through a
//! pooler in transaction mode. Only LISTEN needs a connection of its own; see [`PgLockStoreOptions::through_pooler`].

mod call;
mod clock_watch;
mod db_clock;
mod error;
mod facts;
mod listen;
mod locks;
mod migrate;
mod options;
mod pooler;
mod rows;
mod sessions;
mod store;

pub use options::PgLockStoreOptions;
pub use store::PgLockStore;
