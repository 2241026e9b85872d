//! PostgreSQL as a store keeps it.
//!
//! ```text
//! call(deadline) → connection of the pool (made with the password as it is now, over TLS where the URL says so)
//!                → statements, never prepared under a name → answer
//! ```
//!
//! Owns: how a database is reached (URL, hosts, TLS, password), the pool, what becomes of a connection whose call was given up,
//! how a schema is brought up to date, what each SQLSTATE class means, and when a transaction that was written out statement by statement is believed.
//! Does not own: any table; what a call says.
//! On failure: [`Fate`] says whether a call was not done, may have been done, or is to be made again. A connection that is
//! dropped in the middle of a call is closed and its statement cancelled, so that no answer meets the wrong question.
//!
//! No statement is prepared under a name and nothing is left set on a connection, so that every call works through a
//! pooler in transaction mode.

mod access;
mod connector;
mod fate;
mod hosts;
mod migrate;
mod places;
mod pooled;
mod schema;
mod tls;
mod transaction;
mod writes;

pub use access::{Access, PasswordSource};
pub use connector::Connector;
pub use fate::{Fate, describe, fate, fate_of_code, problem};
pub use migrate::{Migration, Migrations};
pub use pooled::{Busy, Effect, Param, Pooled, ambiguous, left_until, lock_wait_ms, unavailable};
pub use schema::{check_name, check_schema};
pub use tls::Tls;
pub use transaction::{Answers, Statement, Stopped, Transaction, Transactions};
