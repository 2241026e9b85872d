//! The schema's version, in the table `schema_migration` and, for humans, in `PRAGMA user_version`.

use crate::error::undone;
use crate::{Migration, SqlError};
use rusqlite::{Connection, OptionalExtension, params};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_migration (
    version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at_ms INTEGER NOT NULL) STRICT";

/// Brings the schema to the newest known version, in one transaction: of two processes that start at once one does it
/// and the other finds it done.
pub(crate) fn migrate(
    connection: &Connection,
    file: &str,
    migrations: &[Migration],
    now_ms: i64,
) -> Result<(), SqlError> {
    debug_assert!(
        migrations.iter().zip(1..).all(|(m, v)| m.version == v),
        "versions are 1, 2, 3, …"
    );
    let native = |error: rusqlite::Error| undone(file, "schema", &error);
    // Nothing is written where nothing is to be done: a start needs no free disk.
    if applied(connection, file, migrations)? == migrations.len() {
        return Ok(());
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(native)?;
    let done = (|| {
        connection.execute_batch(TABLE).map_err(native)?;
        for migration in &migrations[applied(connection, file, migrations)?..] {
            connection.execute_batch(migration.sql).map_err(|error| {
                undone(
                    file,
                    &format!("migration {} {}", migration.version, migration.name),
                    &error,
                )
            })?;
            connection
                .execute(
                    "INSERT INTO schema_migration (version, name, applied_at_ms) VALUES (?1, ?2, ?3)",
                    params![migration.version, migration.name, now_ms],
                )
                .map_err(native)?;
            tracing::info!(
                event = "schema_migrated",
                file,
                version = migration.version,
                name = migration.name
            );
        }
        connection
            .pragma_update(
                None,
                "user_version",
                migrations.last().map(|migration| migration.version),
            )
            .map_err(native)?;
        connection.execute_batch("COMMIT").map_err(native)
    })();
    if done.is_err() && !connection.is_autocommit() {
        // The first error is the one to tell.
        let _ = connection.execute_batch("ROLLBACK");
    }
    done
}

/// How many of the known migrations the file has.
fn applied(connection: &Connection, file: &str, known: &[Migration]) -> Result<usize, SqlError> {
    let native = |error: rusqlite::Error| undone(file, "schema", &error);
    let exists: Option<i64> = connection
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migration'",
            [],
            |row| row.get(0),
        )
        .optional()
        .map_err(native)?;
    if exists.is_none() {
        let tables: i64 = connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .map_err(native)?;
        return if tables == 0 {
            Ok(0)
        } else {
            Err(SqlError::Corrupt(format!(
                "{file}: it holds tables of somebody else and no schema_migration: not a database of this program"
            )))
        };
    }
    let mut statement = connection
        .prepare("SELECT version, name FROM schema_migration ORDER BY version")
        .map_err(native)?;
    let rows: Vec<(u32, String)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .map_err(native)?;
    for (at, (version, name)) in rows.iter().enumerate() {
        match known.get(at) {
            None => {
                return Err(SqlError::Corrupt(format!(
                    "{file}: its schema has version {}, this program knows up to {}: start the newer program",
                    rows.last().map_or(*version, |last| last.0),
                    known.len()
                )));
            }
            Some(migration) if migration.version != *version || migration.name != name => {
                return Err(SqlError::Corrupt(format!(
                    "{file}: its schema version {version} is {name:?}, this program's version {} is {:?}: not a database of this program",
                    migration.version, migration.name
                )));
            }
            Some(_) => {}
        }
    }
    Ok(rows.len())
}
