//! The schema: made, brought up to date, or refused.

use super::call::no_lineage;
use lock_api::StoreError;
use pg_kit::{Connector, Migration, Migrations, unavailable};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        sql: include_str!("../../migrations/pg/0001_lock_store.sql"),
    },
    Migration {
        version: 2,
        sql: include_str!("../../migrations/pg/0002_hand_over.sql"),
    },
    Migration {
        version: 3,
        sql: include_str!("../../migrations/pg/0003_doubt.sql"),
    },
];

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
    let migrations = Migrations {
        what: "the schema",
        lock: "dlock schema",
        schema,
        table: "lock_schema",
        steps: MIGRATIONS,
    };
    let failed = |error: Error| migrations.failed(&error);
    let found = migrations.apply(client, str::to_owned).await?;
    if found == 0 {
        client
            .query_typed(
                "INSERT INTO lock_lineage (id, lineage, origin, written_by, token_floor, state, changed_at, changed_by)
                 VALUES (1, $1, lock_origin(), pg_current_xact_id(), 0, 'OK', lock_now(), 'store')",
                &[(&new_lineage, Type::TEXT)],
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
