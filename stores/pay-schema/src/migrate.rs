//! The schema: made, brought up to date, or refused.

use crate::{PaySchema, roles};
use host_kit::Host;
use lock_api::StoreError;
use pg_kit::{Connector, Migration, Migrations, unavailable};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

/// In order, without gaps. What was released is never changed.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        sql: include_str!("../migrations/0001_payments.sql"),
    },
    Migration {
        version: 2,
        sql: include_str!("../migrations/0002_rail.sql"),
    },
    Migration {
        version: 3,
        sql: include_str!("../migrations/0003_exceptions.sql"),
    },
];

/// The version this build makes.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// How long a run may take, with the wait for another run.
const WITHIN: Duration = Duration::from_secs(300);

/// What a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version that was found; 0 where there was none.
    pub from: i32,
    /// The version that is there now.
    pub to: i32,
    /// The id of this paydb, made with its first version.
    pub lineage: String,
}

/// Brings the schema up to date, in one transaction, one program at a time. Done twice, it does nothing the second time.
///
/// # Errors
/// [`StoreError::Unavailable`] naming what is missing: a role with the statement that makes it, a right, the database.
/// [`StoreError::Corrupt`] where the schema is newer than this program.
pub async fn migrate(options: &PaySchema, host: &Host) -> Result<Migrated, StoreError> {
    options.check()?;
    let connector = Connector::new(&options.access)?;
    let new_lineage = host.ids.uuid();
    let migrated = timeout(WITHIN, async {
        let (client, io) = connector.connect_alone().await?;
        let outcome = run(&client, options, &new_lineage).await;
        drop(client);
        drop(io.await);
        outcome
    })
    .await
    .unwrap_or_else(|_| Err(unavailable("the schema was not up to date in time")))?;
    tracing::info!(
        event = "pay_schema_migrated",
        schema = options.schema,
        from = migrated.from,
        to = migrated.to,
        lineage = migrated.lineage
    );
    Ok(migrated)
}

async fn run(client: &Client, options: &PaySchema, new_lineage: &str) -> Result<Migrated, StoreError> {
    let schema = &options.schema;
    let migrations = Migrations {
        what: "paydb's schema",
        lock: "dlock paydb schema",
        schema,
        table: "pay_schema",
        steps: MIGRATIONS,
    };
    let failed = |error: Error| migrations.failed(&error);
    roles::check(client, options).await?;
    let from = migrations.apply(client, |sql| filled_in(sql, options)).await?;
    if from == 0 {
        client
            .query_typed(
                "INSERT INTO pay_lineage (id, lineage, origin, written_by, token_floor, state, changed_at, changed_by)
                 VALUES (1, $1, pay_origin(), pg_current_xact_id(), 0, 'OK', pay_now_ms(), 'first migration')",
                &[(&new_lineage, Type::TEXT)],
            )
            .await
            .map_err(failed)?;
    }
    let lineage = client
        .query_typed("SELECT lineage FROM pay_lineage WHERE id = 1", &[])
        .await
        .map_err(failed)?;
    let Some(lineage) = lineage.first().map(|row| row.get(0)) else {
        return Err(StoreError::Corrupt {
            detail: format!("paydb's schema {schema} has lost its lineage"),
        });
    };
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(Migrated {
        from,
        to: VERSION,
        lineage,
    })
}

/// The statements with this run's names in them.
fn filled_in(sql: &str, options: &PaySchema) -> String {
    let quoted = |name: &str| format!("\"{name}\"");
    sql.replace("{schema}", &quoted(&options.schema))
        .replace("{payment_role}", &quoted(&options.payment_role))
        .replace("{rail_role}", &quoted(&options.rail_role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_no_gap_and_every_placeholder_is_known() {
        let options = PaySchema::at(pg_kit::Access::at("postgres://h/d"));
        for (migration, version) in MIGRATIONS.iter().zip(1..) {
            assert_eq!(migration.version, version);
            let sql = filled_in(migration.sql, &options);
            for placeholder in ["{schema", "{payment", "{rail"] {
                assert!(!sql.contains(placeholder), "version {version}: {placeholder}");
            }
        }
    }
}
