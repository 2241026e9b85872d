//! The schema: made, brought up to date, or refused.

use super::call::no_lineage;
use lock_api::StoreError;
use pg_kit::{Connector, describe, unavailable};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::{Client, Error};

struct Migration {
    version: i32,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    sql: include_str!("../../migrations/pg/0001_lock_store.sql"),
}];

/// Brings the schema up to date, in one transaction, one program at a time. Answers whether it was made.
pub(super) async fn migrate(
    connector: &Connector,
    schema: &str,
    new_lineage: &str,
    within: Duration,
) -> Result<bool, StoreError> {
    timeout(within, async {
        let (client, io) = connector.connect_alone().await?;
        let outcome = run(&client, schema, new_lineage).await;
        drop(client);
        drop(io.await);
        outcome
    })
    .await
    .unwrap_or_else(|_| Err(unavailable("the schema was not up to date in time")))
}

async fn run(client: &Client, schema: &str, new_lineage: &str) -> Result<bool, StoreError> {
    // Whatever fails is rolled back with the connection. Unavailable is right even for a lost commit: what may have been
    // done is what the next start wants.
    let failed = |error: Error| unavailable(format!("bringing the schema up to date: {}", describe(&error)));
    client.batch_execute("BEGIN").await.map_err(failed)?;
    // The lock of migrations, for this transaction: programs that start at once take turns.
    client
        .batch_execute(&format!(
            "SELECT pg_advisory_xact_lock(hashtext('dlock schema'), hashtext('{schema}'))"
        ))
        .await
        .map_err(failed)?;
    let exists = client
        .query_typed(
            "SELECT 1 FROM pg_namespace WHERE nspname = $1",
            &[(&schema, tokio_postgres::types::Type::TEXT)],
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
             CREATE TABLE IF NOT EXISTS lock_schema (version int PRIMARY KEY, applied_at timestamptz NOT NULL)"
        ))
        .await
        .map_err(failed)?;
    let found: i32 = client
        .query_typed("SELECT coalesce(max(version), 0) FROM lock_schema", &[])
        .await
        .map_err(failed)?
        .first()
        .map_or(0, |row| row.get(0));
    let newest = MIGRATIONS.last().map_or(0, |migration| migration.version);
    if found > newest {
        return Err(StoreError::Corrupt {
            detail: format!("the schema is of version {found}, this program knows up to {newest}"),
        });
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        client.batch_execute(migration.sql).await.map_err(failed)?;
        client
            .batch_execute(&format!(
                "INSERT INTO lock_schema VALUES ({}, clock_timestamp())",
                migration.version
            ))
            .await
            .map_err(failed)?;
    }
    if found == 0 {
        client
            .query_typed(
                "INSERT INTO lock_lineage (id, lineage, origin, written_by, token_floor, state, changed_at, changed_by)
                 VALUES (1, $1, lock_origin(), pg_current_xact_id(), 0, 'OK', lock_now(), 'store')",
                &[(&new_lineage, tokio_postgres::types::Type::TEXT)],
            )
            .await
            .map_err(failed)?;
    }
    let lineage = client
        .query_typed("SELECT 1 FROM lock_lineage WHERE id = 1", &[])
        .await
        .map_err(failed)?;
    if lineage.is_empty() {
        return Err(no_lineage());
    }
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(found == 0)
}
