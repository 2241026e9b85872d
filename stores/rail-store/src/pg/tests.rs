//! Every statement that is sent while somebody waits finds its rows by an index, however many there are.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking"
)]

use super::{epoch, forward, high_water, lookup, rows, survey};
use host_kit::Host;
use pay_schema::PaySchema;
use pg_kit::Access;

#[tokio::test]
async fn every_statement_finds_its_rows_by_an_index() {
    let Some(url) = test_servers::postgres().await else {
        return;
    };
    let schema = test_servers::fresh_schema();
    let options = PaySchema {
        access: Access::at(&url),
        schema: schema.clone(),
        payment_role: format!("{schema}_p"),
        rail_role: format!("{schema}_r"),
    };
    pay_schema::create_roles(&options).await.unwrap();
    pay_schema::migrate(&options, &Host::system()).await.unwrap();
    let (admin, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // What has another way takes it, also where the tables are empty.
    admin
        .batch_execute(&format!(
            "SET search_path = {schema}; SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan"
        ))
        .await
        .unwrap();
    for (n, (types, values, sql)) in [
        ("text", "'p'", rows::OF_PAYOUT),
        ("text", "'p'", rows::OF_PAYOUT_LOCKED),
        ("text, bigint", "'p', 1", rows::OF_TOKEN),
        ("text", "'p'", rows::PAYOUT),
        ("text", "'p'", epoch::EPOCH),
        ("text", "'s'", forward::BESIDE),
        ("text, bigint, bigint", "'a', 1, 1", high_water::RISE),
        (
            "text, bigint, bigint, text",
            "'a', 1, 1, 'p'",
            high_water::RISE_TO_SUBMIT,
        ),
        ("text, bigint, bigint", "'p', 1, 1", high_water::RISE_OF_PAYOUT),
        ("text", "'a'", high_water::MARK),
        ("text", "'p'", high_water::MARK_OF_PAYOUT),
        ("text, bigint", "'a', 1", high_water::TOKEN_USED),
        ("text", "'p'", lookup::SILENT_AT),
        ("text", "'p'", rows::SETTLED),
        ("bigint", "1", rows::EXCEPTION),
        ("bigint", "1", rows::EXCEPTION_LOCKED),
        ("", "", survey::POSTED_AGAINST_THE_RAIL),
        ("", "", survey::SETTLED_AGAINST_THE_RAIL),
        ("", "", survey::AMBIGUOUS_SINCE),
        ("", "", survey::EXCEPTIONS_OPEN),
    ]
    .into_iter()
    .enumerate()
    {
        let (types, values) = if types.is_empty() {
            (String::new(), String::new())
        } else {
            (format!("({types})"), format!("({values})"))
        };
        admin
            .batch_execute(&format!("PREPARE q{n}{types} AS {sql}"))
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let plan: Vec<String> = admin
            .query(&format!("EXPLAIN EXECUTE q{n}{values}"), &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        for line in plan.iter().filter(|line| line.contains("Seq Scan on")) {
            assert!(line.contains("pay_lineage"), "{sql}\n{}", plan.join("\n"));
        }
    }
    admin
        .batch_execute(&format!(
            "SET client_min_messages = error; DROP SCHEMA {schema} CASCADE; DROP ROLE {schema}_p, {schema}_r"
        ))
        .await
        .unwrap();
}
