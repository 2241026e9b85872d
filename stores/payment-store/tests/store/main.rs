//! The payment store against contract C1.6: every predicate, the cases, the negative control, kill and stop. One list of
//! cases, run on every backend; what only one of them can show stands apart.

#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]
#![allow(
    clippy::duplicate_mod,
    reason = "the list of cases is compiled once for each backend"
)]

mod on_pg;
mod on_sqlite;
mod pg_concurrency;
mod pg_rights;
mod pg_schema;
mod processes;
mod sqlite_only;
mod support;
