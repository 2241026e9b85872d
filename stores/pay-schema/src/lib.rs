//! The schema of paydb on PostgreSQL 16 (contract C1.2): tables, triggers, roles and their rights.
//!
//! ```text
//! dlock migrate (as the owner) → lock of migrations → each file of migrations/ that is missing → COMMIT
//! ```
//!
//! Owns: the migrations of all of paydb, the two roles' rights, and the random id of a new paydb.
//! Does not own: any verb. The payment resource and the rail proxy run as their own roles, which can change no table;
//! they look at the version when they start and refuse one that they do not know.
//! On failure: everything of a run is rolled back. A run whose commit was not answered may have been done; the next run
//! finds out.
//!
//! Migration files are plain SQL. In them `{schema}`, `{payment_role}` and `{rail_role}` stand for quoted identifiers.

mod migrate;
mod options;
mod roles;

pub use migrate::{Migrated, VERSION, migrate};
pub use options::PaySchema;
pub use roles::create_roles;
