//! paydb of the version before is brought to this program's schema with everything in it. The version before is made from
//! its own migrations, which never change (`a_published_migration_never_changes` in `lock-store`).

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use host_kit::Host;
use pay_schema::{PaySchema, VERSION, create_roles, migrate};
use pg_kit::Access;
use std::path::Path;
use tokio_postgres::{Client, NoTls};

/// What stands in paydb when version [`VERSION`] comes. Whoever adds a version extends this by what the one before can hold.
const FILL: &str = "
    INSERT INTO account (account_id, currency, opening_balance_minor, balance_minor, fence, barrier, opened_at)
    VALUES ('a', 'EUR', 10000, 10000, 7, 5, 1), ('b', 'EUR', 500, 500, 0, 0, 2);
    INSERT INTO payout (payout_id, account_id, amount_minor, currency, creditor, state, claim_token, created_at, updated_at)
    VALUES ('p1', 'a', 100, 'EUR', '{\"name\":\"n\",\"account\":\"c\"}', 'CLAIMED', 7, 3, 4),
           ('p2', 'b', 200, 'EUR', '{\"name\":\"n\",\"account\":\"c\"}', 'PENDING', NULL, 5, 5);
    INSERT INTO pay_lineage (id, lineage, origin, written_by, token_floor, state, changed_at, changed_by)
    VALUES (1, 'the old one', pay_origin(), pg_current_xact_id(), 0, 'OK', pay_now_ms(), 'test');";

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The texts of the migrations, in order.
fn migrations() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect()
}

/// Every row of every table that was there before, in the columns that it had, as text. A new column is no change.
async fn rows(client: &Client, schema: &str, tables: &[(String, String)]) -> Vec<String> {
    let mut all = Vec::new();
    for (table, columns) in tables {
        for row in client
            .query(
                &format!("SELECT row_to_json(t)::text FROM (SELECT {columns} FROM {schema}.{table}) t ORDER BY 1"),
                &[],
            )
            .await
            .unwrap()
        {
            all.push(format!("{table} {}", row.get::<_, String>(0)));
        }
    }
    all
}

#[tokio::test]
async fn the_version_before_is_brought_up_to_date_with_its_data() {
    let url = test_servers::postgres_or_skip().await;
    let schema = test_servers::fresh_schema();
    let options = PaySchema {
        payment_role: format!("{schema}_p"),
        rail_role: format!("{schema}_r"),
        schema: schema.clone(),
        ..PaySchema::at(Access::at(&url))
    };
    let admin = connect(&url).await;
    create_roles(&options).await.unwrap();
    let texts = migrations();
    assert_eq!(
        i32::try_from(texts.len()).unwrap(),
        VERSION,
        "each file of migrations/ is applied"
    );

    let before = VERSION - 1;
    let mut sql = format!(
        "BEGIN; CREATE SCHEMA {schema}; SET LOCAL search_path = {schema}, pg_temp;
         CREATE TABLE pay_schema (version int PRIMARY KEY, applied_at timestamptz NOT NULL);"
    );
    for (text, version) in texts.iter().zip(1..=before) {
        sql += &text
            .replace("{schema}", &schema)
            .replace("{payment_role}", &options.payment_role)
            .replace("{rail_role}", &options.rail_role);
        sql += &format!("; INSERT INTO pay_schema VALUES ({version}, clock_timestamp());");
    }
    sql += FILL;
    sql += "; COMMIT;";
    admin.batch_execute(&sql).await.unwrap();
    let tables: Vec<(String, String)> = admin
        .query(
            "SELECT relname::text, string_agg(quote_ident(attname), ', ' ORDER BY attnum)
             FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
             WHERE relnamespace = $1::text::regnamespace AND relkind = 'r' AND relname <> 'pay_schema'
             GROUP BY 1 ORDER BY 1",
            &[&schema],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let there = rows(&admin, &schema, &tables).await;
    assert!(
        there.iter().any(|row| row.starts_with("payout ") && row.contains("p1")),
        "{there:?}"
    );

    let migrated = migrate(&options, &Host::system()).await.unwrap();
    assert_eq!((migrated.from, migrated.to), (before, VERSION));
    assert_eq!(migrated.lineage, "the old one", "it is the same paydb");
    // A migration that changes rows on purpose says here which, and to what.
    assert_eq!(rows(&admin, &schema, &tables).await, there);
    let again = migrate(&options, &Host::system()).await.unwrap();
    assert_eq!((again.from, again.to), (VERSION, VERSION));

    admin
        .batch_execute(&format!(
            "DROP SCHEMA {schema} CASCADE; DROP ROLE {}, {}",
            options.payment_role, options.rail_role
        ))
        .await
        .unwrap();
}
