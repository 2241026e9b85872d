//! A schema brought up to date, migration by migration, inside one transaction.

use crate::fate::describe;
use crate::pooled::unavailable;
use lock_api::StoreError;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

/// One step of a schema. What was released is never changed.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// From 1, without gaps.
    pub version: i32,
    /// Its statements.
    pub sql: &'static str,
}

/// The steps of one schema.
#[derive(Clone, Copy, Debug)]
pub struct Migrations<'a> {
    /// What the schema is, for errors: `the schema`.
    pub what: &'a str,
    /// What programs that migrate take turns by, together with the schema's name.
    pub lock: &'a str,
    /// The schema; made where it is missing. The name has passed [`crate::check_name`].
    pub schema: &'a str,
    /// The table of the versions that were applied.
    pub table: &'a str,
    /// In order of version.
    pub steps: &'a [Migration],
}

impl Migrations<'_> {
    /// An error of the database on the way. Unavailable is right even for a lost commit: what may have been done is what
    /// the next run wants.
    #[must_use]
    pub fn failed(&self, error: &Error) -> StoreError {
        unavailable(format!("bringing {} up to date: {}", self.what, describe(error)))
    }

    /// Begins a transaction and applies what is missing, each step as `filled_in` has it. Answers the version that was
    /// found, 0 where there was none. The caller commits; whatever fails is rolled back with the connection.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] where the schema is newer than this program.
    pub async fn apply(&self, client: &Client, filled_in: impl Fn(&str) -> String) -> Result<i32, StoreError> {
        let failed = |error: Error| self.failed(&error);
        let (schema, table) = (self.schema, self.table);
        // The lock of migrations, for this transaction: programs that start at once take turns. What is asked afterwards
        // sees what the one before did.
        client
            .batch_execute(&format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED;
                 SET LOCAL synchronous_commit = on;
                 SELECT pg_advisory_xact_lock(hashtext('{}'), hashtext('{schema}'))",
                self.lock
            ))
            .await
            .map_err(failed)?;
        let exists = client
            .query_typed(
                "SELECT 1 FROM pg_namespace WHERE nspname = $1",
                &[(&schema, Type::TEXT)],
            )
            .await
            .map_err(failed)?;
        if exists.is_empty() {
            client
                .batch_execute(&format!("CREATE SCHEMA \"{schema}\""))
                .await
                .map_err(failed)?;
        }
        client
            .batch_execute(&format!(
                "SET LOCAL search_path = \"{schema}\", pg_temp;
                 CREATE TABLE IF NOT EXISTS {table} (version int PRIMARY KEY, applied_at timestamptz NOT NULL)"
            ))
            .await
            .map_err(failed)?;
        let found: i32 = client
            .query_typed(&format!("SELECT coalesce(max(version), 0) FROM {table}"), &[])
            .await
            .map_err(failed)?
            .first()
            .map_or(0, |row| row.get(0));
        let newest = self.steps.last().map_or(0, |step| step.version);
        if found > newest {
            return Err(StoreError::Corrupt {
                detail: format!(
                    "{} {schema} is of version {found}, this program knows up to {newest}",
                    self.what
                ),
            });
        }
        for step in self.steps.iter().filter(|step| step.version > found) {
            client.batch_execute(&filled_in(step.sql)).await.map_err(failed)?;
            client
                .batch_execute(&format!(
                    "INSERT INTO {table} VALUES ({}, clock_timestamp())",
                    step.version
                ))
                .await
                .map_err(failed)?;
        }
        Ok(found)
    }
}
