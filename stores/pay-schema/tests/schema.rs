//! The schema on a real server: made once, by one at a time, never an unknown one, and only for roles that are apart.

#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use host_kit::Host;
use lock_api::StoreError;
use pay_schema::{PaySchema, VERSION, create_roles, migrate};
use pg_kit::Access;
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A schema and roles of the test's own, gone when it ends well.
struct Bench {
    options: PaySchema,
    admin: Client,
}

impl Bench {
    async fn new() -> Self {
        let url = test_servers::postgres_or_skip().await;
        let schema = test_servers::fresh_schema();
        let options = PaySchema {
            payment_role: format!("{schema}_p"),
            rail_role: format!("{schema}_r"),
            schema,
            ..PaySchema::at(Access::at(&url))
        };
        Self {
            options,
            admin: connect(&url).await,
        }
    }

    async fn end(self) {
        let PaySchema {
            schema,
            payment_role,
            rail_role,
            ..
        } = &self.options;
        self.admin
            .batch_execute(&format!(
                "DROP SCHEMA IF EXISTS {schema} CASCADE; DROP ROLE IF EXISTS {payment_role}, {rail_role}"
            ))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_missing_role_is_named_with_the_statement_that_makes_it() {
    let b = Bench::new().await;
    let said = migrate(&b.options, &Host::system()).await.unwrap_err().to_string();
    assert!(
        said.contains(&format!("CREATE ROLE \"{}\" LOGIN", b.options.payment_role)),
        "{said}"
    );
    let made = create_roles(&b.options).await.unwrap();
    assert_eq!(made, [b.options.payment_role.clone(), b.options.rail_role.clone()]);
    assert_eq!(create_roles(&b.options).await.unwrap(), Vec::<String>::new());
    migrate(&b.options, &Host::system()).await.unwrap();
    b.end().await;
}

#[tokio::test]
async fn ten_at_once_make_one_schema_and_one_lineage() {
    let b = Bench::new().await;
    let runs: Vec<_> = (0..10)
        .map(|_| {
            let options = b.options.clone();
            tokio::spawn(async move {
                create_roles(&options).await.unwrap();
                migrate(&options, &Host::system()).await.unwrap()
            })
        })
        .collect();
    let mut migrated = Vec::new();
    for run in runs {
        migrated.push(run.await.unwrap());
    }
    assert_eq!(migrated.iter().filter(|m| m.from == 0).count(), 1, "{migrated:?}");
    assert!(
        migrated
            .iter()
            .all(|m| m.to == VERSION && m.lineage == migrated[0].lineage)
    );
    b.end().await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let b = Bench::new().await;
    create_roles(&b.options).await.unwrap();
    migrate(&b.options, &Host::system()).await.unwrap();
    b.admin
        .batch_execute(&format!(
            "INSERT INTO {}.pay_schema VALUES ({}, now())",
            b.options.schema,
            VERSION + 1
        ))
        .await
        .unwrap();
    let refused = migrate(&b.options, &Host::system()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused}");
    b.end().await;
}

#[tokio::test]
async fn roles_that_nothing_holds_apart_are_refused() {
    let b = Bench::new().await;
    create_roles(&b.options).await.unwrap();
    let same = PaySchema {
        rail_role: b.options.payment_role.clone(),
        ..b.options.clone()
    };
    let said = migrate(&same, &Host::system()).await.unwrap_err().to_string();
    assert!(said.contains("are both"), "{said}");
    for (change, word) in [
        (
            format!("GRANT {} TO {}", b.options.rail_role, b.options.payment_role),
            "may act as",
        ),
        (
            format!(
                "REVOKE {} FROM {}; ALTER ROLE {} SUPERUSER",
                b.options.rail_role, b.options.payment_role, b.options.rail_role
            ),
            "superuser",
        ),
    ] {
        b.admin.batch_execute(&change).await.unwrap();
        let said = migrate(&b.options, &Host::system()).await.unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
    let odd = PaySchema {
        schema: "a\"b".to_owned(),
        ..b.options.clone()
    };
    let said = migrate(&odd, &Host::system()).await.unwrap_err().to_string();
    assert!(said.contains("the schema"), "{said}");
    b.end().await;
}

#[tokio::test]
async fn the_lineage_says_when_its_row_was_written_by_somebody_else() {
    let b = Bench::new().await;
    create_roles(&b.options).await.unwrap();
    migrate(&b.options, &Host::system()).await.unwrap();
    let schema = &b.options.schema;
    let stands = async |role: &str| -> bool {
        b.admin.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
        let row = b
            .admin
            .query_one(&format!("SELECT {schema}.pay_lineage_stands()"), &[])
            .await
            .unwrap();
        b.admin.batch_execute("RESET ROLE").await.unwrap();
        row.get(0)
    };
    assert!(stands(&b.options.payment_role).await && stands(&b.options.rail_role).await);
    // What a restored dump does: the same row, written by another transaction.
    b.admin
        .batch_execute(&format!(
            "CREATE TEMP TABLE kept AS SELECT * FROM {schema}.pay_lineage;
             ALTER TABLE {schema}.pay_lineage DISABLE TRIGGER USER;
             DELETE FROM {schema}.pay_lineage;
             INSERT INTO {schema}.pay_lineage SELECT * FROM kept;
             ALTER TABLE {schema}.pay_lineage ENABLE TRIGGER USER"
        ))
        .await
        .unwrap();
    assert!(!stands(&b.options.payment_role).await && !stands(&b.options.rail_role).await);
    b.end().await;
}
