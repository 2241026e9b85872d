//! Who may do what on PostgreSQL: each right and each missing right of each role, and the triggers that hold even for the
//! owner. The two fence points are independent because the database says so, not because the code is careful.

use crate::pg_schema::Schema;
use crate::support::{Bench, done};
use host_kit::Host;
use lock_api::StoreError;
use payment_store::{Fencing, PgPayments};
use std::collections::BTreeMap;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// A paydb in which every table of the payment resource has a row.
async fn filled() -> Bench {
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.post("P", 5, "r1").await);
    b
}

/// What becomes of a statement that is undone at once: none where it is allowed, else the SQLSTATE.
async fn refused(client: &Client, statement: &str) -> Option<String> {
    client.batch_execute("BEGIN").await.unwrap();
    let answer = client.batch_execute(statement).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    answer.err().map(|error| {
        error
            .code()
            .map_or_else(|| error.to_string(), |state| state.code().to_owned())
    })
}

const NEW_ACCOUNT: &str = "INSERT INTO account (account_id, currency, opening_balance_minor, balance_minor, opened_at)
    VALUES ('B', 'EUR', 0, 0, 0)";
const NEW_PAYOUT: &str =
    "INSERT INTO payout (payout_id, account_id, amount_minor, currency, creditor, state, created_at,
    updated_at) VALUES ('Q', 'A', 1, 'EUR', '{}', 'PENDING', 0, 0)";
const NEW_STEP: &str = "INSERT INTO payout_transition (payout_id, step, to_state, actor, at)
    VALUES ('P', 'claim', 'CLAIMED', 'x', 0)";
const NEW_LEG: &str = "INSERT INTO ledger_entry (payout_id, account_id, currency, amount_minor, at)
    VALUES ('P', 'A', 'EUR', -1, 0)";
const NEW_EVENT: &str = "INSERT INTO payment_event (at, kind, actor) VALUES (0, 'X', 'x')";
const NEW_KEY: &str = "INSERT INTO idempotency VALUES ('r', 'k', 'h', 'a', 0)";
const NEW_SUBMISSION: &str =
    "INSERT INTO rail_submission (submission_id, payout_id, account_id, token, idempotency_key,
    client_reference, amount_minor, currency, intent_at, fencing_enforced)
    VALUES ('s', 'P', 'A', 1, 'P', 'P', 1, 'EUR', 0, false)";

/// What the payment resource may and may not do.
const PAYMENT: &[(&str, bool)] = &[
    (
        "SELECT * FROM account, payout, payout_transition, ledger_entry, payment_event, idempotency, payout_tally",
        true,
    ),
    (NEW_ACCOUNT, true),
    ("UPDATE account SET fence = 6, barrier = 6, balance_minor = 1", true),
    ("SELECT 1 FROM account FOR NO KEY UPDATE", true),
    ("UPDATE account SET opening_balance_minor = 1", false),
    ("UPDATE account SET currency = 'USD'", false),
    ("DELETE FROM account", false),
    ("TRUNCATE account CASCADE", false),
    (NEW_PAYOUT, true),
    ("UPDATE payout SET state = 'FAILED', version = version + 1", true),
    ("UPDATE payout SET amount_minor = 1", false),
    ("UPDATE payout SET creditor = '{}'", false),
    ("UPDATE payout SET account_id = 'A'", false),
    ("DELETE FROM payout", false),
    (NEW_STEP, true),
    ("UPDATE payout_transition SET token = 1", false),
    ("DELETE FROM payout_transition", false),
    ("TRUNCATE payout_transition", false),
    (NEW_LEG, true),
    ("UPDATE ledger_entry SET amount_minor = 1", false),
    ("DELETE FROM ledger_entry", false),
    ("TRUNCATE ledger_entry", false),
    (NEW_EVENT, true),
    ("UPDATE payment_event SET actor = 'y'", false),
    ("DELETE FROM payment_event", false),
    (NEW_KEY, true),
    ("UPDATE idempotency SET answer = ''", false),
    ("DELETE FROM idempotency", false),
    ("UPDATE payout_tally SET n = 0", false),
    ("SELECT lineage, pay_lineage_stands() FROM pay_lineage", true),
    ("UPDATE pay_lineage SET state = 'OK'", false),
    ("UPDATE pay_schema SET version = 9", false),
    // The rail proxy's half: evidence can be read, nothing can be written, and the mark is not even seen.
    ("SELECT * FROM rail_submission, rail_lookup", true),
    ("SELECT 1 FROM rail_submission FOR SHARE", false),
    (NEW_SUBMISSION, false),
    ("UPDATE rail_submission SET outcome = 'ACKED'", false),
    ("DELETE FROM rail_submission", false),
    ("DELETE FROM rail_lookup", false),
    ("SELECT * FROM rail_high_water", false),
    ("INSERT INTO rail_high_water VALUES ('A', 9, 0)", false),
    ("UPDATE rail_high_water SET highest_token = 9", false),
    ("DELETE FROM rail_high_water", false),
    ("SELECT * FROM rail_exception", false),
    // Whoever could make a trigger or a table could go round the rest.
    ("CREATE TABLE mine (a int)", false),
    ("ALTER TABLE ledger_entry DISABLE TRIGGER USER", false),
    (
        "CREATE OR REPLACE FUNCTION pay_append_only() RETURNS trigger LANGUAGE sql AS 'SELECT NULL'",
        false,
    ),
    ("SET session_replication_role = replica", false),
];

/// What the rail proxy may and may not do with the payment resource's half.
const RAIL: &[(&str, bool)] = &[
    ("SELECT * FROM payout", true),
    ("SELECT 1 FROM payout FOR UPDATE", false),
    (NEW_PAYOUT, false),
    ("UPDATE payout SET state = 'POSTED'", false),
    ("UPDATE payout SET claim_token = 1", false),
    ("DELETE FROM payout", false),
    ("SELECT * FROM account", false),
    (NEW_ACCOUNT, false),
    ("UPDATE account SET fence = 9", false),
    ("SELECT * FROM ledger_entry", false),
    (NEW_LEG, false),
    ("DELETE FROM ledger_entry", false),
    ("SELECT * FROM payout_transition", false),
    (NEW_STEP, false),
    ("SELECT * FROM payment_event", false),
    (NEW_EVENT, false),
    ("SELECT * FROM idempotency", false),
    (NEW_KEY, false),
    ("SELECT * FROM payout_tally", false),
    ("SELECT * FROM pay_turnstile", false),
    ("UPDATE pay_turnstile SET id = 1", false),
    ("SELECT lineage, pay_lineage_stands() FROM pay_lineage", true),
    ("UPDATE pay_lineage SET written_by = pg_current_xact_id()", true),
    ("UPDATE pay_lineage SET lineage = 'another'", false),
    ("DELETE FROM pay_lineage", false),
    ("UPDATE pay_schema SET version = 9", false),
    ("CREATE TABLE mine (a int)", false),
];

#[tokio::test]
async fn each_role_may_do_what_it_must_and_nothing_else() {
    let b = filled().await;
    let schema = b.schema();
    for (role, statements) in [(&schema.payment_role, PAYMENT), (&schema.rail_role, RAIL)] {
        let client = schema.connect_as(role).await;
        for (statement, allowed) in statements {
            let expected = (!allowed).then(|| SqlState::INSUFFICIENT_PRIVILEGE.code().to_owned());
            assert_eq!(refused(&client, statement).await, expected, "{role}: {statement}");
        }
    }
}

/// The rights on whole tables: S(elect), I(nsert), U(pdate), D(elete), T(runcate); lower case where only on some columns.
#[tokio::test]
async fn no_table_has_a_right_that_nobody_decided() {
    let b = filled().await;
    let schema = b.schema();
    let rows = schema
        .admin()
        .await
        .query(
            "SELECT c.relname::text, r.role, string_agg(
                 CASE WHEN has_table_privilege(r.role, c.oid, p.name) THEN upper(left(p.name, 1))
                      WHEN p.name IN ('SELECT', 'INSERT', 'UPDATE') AND has_any_column_privilege(r.role, c.oid, p.name)
                      THEN lower(left(p.name, 1)) ELSE '' END, '' ORDER BY p.n)
               FROM pg_class c, unnest($2::text[]) AS r (role),
                    unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'])
                        WITH ORDINALITY AS p (name, n)
              WHERE c.relnamespace = $1::text::regnamespace AND c.relkind = 'r' GROUP BY 1, 2",
            &[
                &schema.name,
                &vec![schema.payment_role.as_str(), schema.rail_role.as_str()],
            ],
        )
        .await
        .unwrap();
    let mut found: BTreeMap<String, BTreeMap<bool, String>> = BTreeMap::new();
    for row in rows {
        let (table, role, rights): (String, String, String) = (row.get(0), row.get(1), row.get(2));
        found.entry(table).or_default().insert(role == schema.rail_role, rights);
    }
    // Table, the payment resource's rights, the rail proxy's.
    for (table, payment, rail) in [
        ("account", "SIu", ""),
        ("idempotency", "SI", ""),
        ("ledger_entry", "SI", ""),
        ("pay_lineage", "S", "Su"),
        ("pay_schema", "S", "S"),
        ("pay_turnstile", "SU", ""),
        ("payment_event", "SI", ""),
        ("payout", "SIu", "S"),
        ("payout_tally", "S", ""),
        ("payout_transition", "SI", ""),
    ] {
        let rights = found.remove(table).unwrap_or_else(|| panic!("no table {table}"));
        assert_eq!(
            (rights[&false].as_str(), rights[&true].as_str()),
            (payment, rail),
            "{table}"
        );
    }
    // The rail proxy's own tables: of the payment resource's rights on them only these are decided here.
    for (table, rights) in found {
        let payment = rights[&false].as_str();
        assert!(table.starts_with("rail_"), "nobody decided about {table}");
        assert_eq!(
            payment,
            if ["rail_submission", "rail_lookup"].contains(&table.as_str()) {
                "S"
            } else {
                ""
            },
            "{table}"
        );
    }
}

#[tokio::test]
async fn what_is_written_stays_even_for_the_owner() {
    // FR-25, FR-30: a right can be granted, so the triggers say it too.
    let b = filled().await;
    let owner = b.schema().admin().await;
    for statement in [
        "UPDATE ledger_entry SET amount_minor = 1",
        "DELETE FROM ledger_entry",
        "TRUNCATE ledger_entry",
        "UPDATE payout_transition SET token = 1",
        "DELETE FROM payout_transition",
        "TRUNCATE payout_transition",
        "UPDATE payment_event SET actor = 'x'",
        "DELETE FROM payment_event",
        "TRUNCATE payment_event",
        "UPDATE idempotency SET answer = ''",
        "DELETE FROM idempotency",
        "TRUNCATE idempotency",
        "DELETE FROM payout",
        "TRUNCATE payout CASCADE",
        "DELETE FROM account",
        "TRUNCATE account CASCADE",
        "UPDATE account SET fence = fence - 1",
        "UPDATE account SET opening_balance_minor = 7",
        "UPDATE payout SET amount_minor = 7",
        "UPDATE payout SET version = version - 1",
        "DELETE FROM pay_lineage",
        "DELETE FROM pay_turnstile",
    ] {
        assert_eq!(
            refused(&owner, statement).await.as_deref(),
            Some("DP009"),
            "{statement}"
        );
    }
}

#[tokio::test]
async fn a_schema_that_is_missing_older_or_newer_is_refused_with_what_to_do() {
    let schema = Schema::fresh().await;
    let open = async || {
        PgPayments::open(schema.options(), Fencing::Enforced, &Host::system())
            .await
            .map(|store| store.close())
    };
    open().await.unwrap();
    let admin = schema.admin().await;
    let newest = payment_store::SCHEMA_VERSION;
    admin
        .batch_execute(&format!("INSERT INTO pay_schema VALUES ({}, now())", newest + 1))
        .await
        .unwrap();
    let error = open().await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    admin
        .batch_execute(&format!("DELETE FROM pay_schema WHERE version >= {newest}"))
        .await
        .unwrap();
    let said = open().await.unwrap_err().to_string();
    assert!(said.contains("run dlock migrate as the schema's owner"), "{said}");
    let mut elsewhere = schema.options();
    elsewhere.schema = "nowhere".to_owned();
    let said = PgPayments::open(elsewhere, Fencing::Enforced, &Host::system())
        .await
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("nowhere is missing") && said.contains("dlock migrate"),
        "{said}"
    );
    admin
        .batch_execute(&format!(
            "REVOKE ALL ON SCHEMA {} FROM {}",
            schema.name, schema.payment_role
        ))
        .await
        .unwrap();
    let said = open().await.unwrap_err().to_string();
    assert!(said.contains("not open to this role"), "{said}");
}
