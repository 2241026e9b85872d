//! P9: ledger, exports, verify, audit.

use crate::support::{Api, problem};
use serde_json::{Value, json};

async fn with_ledger() -> Api {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    api.account("b.c", 500).await;
    api.pay("P", "A", 400, 5).await;
    api.pay("Q", "b.c", 7, 6).await;
    let credit = json!({"amount_minor": 50, "reference": "top-up"});
    assert_eq!(
        api.post("/v1/accounts/A/credit", &[("X-Idempotency-Key", "k")], credit)
            .await
            .status,
        201
    );
    api
}

// operation: account_ledger, verify_ledger
#[actix_web::test]
async fn an_accounts_ledger_sums_to_its_balance() {
    let api = with_ledger().await;
    let entries = api.get("/v1/accounts/A/ledger").await.json();
    let amounts: Vec<_> = entries["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["amount_minor"].as_i64().unwrap())
        .collect();
    assert_eq!(amounts, [-400, 50]);
    assert_eq!(api.get("/v1/accounts/A").await.json()["balance_minor"], 650);
    let house = api.get("/v1/accounts/house:payouts:EUR/ledger").await.json();
    assert_eq!(house["items"].as_array().unwrap().len(), 2);
    problem(&api.get("/v1/accounts/nobody/ledger").await, 404, "ACCOUNT_NOT_FOUND");
    api.verified().await;
    // A balance that does not follow from its entries is said.
    let db = rusqlite::Connection::open(api.dir.join("payment.db")).unwrap();
    db.execute_batch("UPDATE account SET balance_minor = 651 WHERE account_id = 'A'")
        .unwrap();
    let said = api.get("/v1/ledger/verify").await.json();
    assert_eq!(said["ok"], false);
    assert!(
        said["violations"][0]
            .as_str()
            .unwrap()
            .contains("stored balance of 6.51 EUR"),
        "{said}"
    );
}

// operation: export_ledger
#[actix_web::test]
async fn the_ledger_is_exported_in_five_forms() {
    let api = with_ledger().await;
    let export = async |format: &str| {
        let answer = api.get(&format!("/v1/ledger/export?format={format}")).await;
        assert_eq!(answer.status, 200);
        String::from_utf8(answer.body.clone()).unwrap()
    };
    let csv = export("csv").await;
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("entry_id,payout_id,account_id,amount_minor,currency,exponent,token,at,rail_reference")
    );
    assert!(lines.next().unwrap().starts_with("1,P,A,-400,EUR,2,5,"));
    assert_eq!(csv.lines().count(), 7);

    let jsonl = export("jsonl").await;
    let rows: Vec<Value> = jsonl.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 6);
    assert_eq!(
        rows.iter()
            .map(|row| row["amount_minor"].as_i64().unwrap())
            .sum::<i64>(),
        0
    );
    assert_eq!(rows[0]["rail_reference"], "r-P");

    let beancount = export("beancount").await;
    for wanted in [
        "1970-01-01 open Assets:Clients:AA EUR",
        "1970-01-01 open Assets:Clients:Ab-2Ec EUR",
        "* \"payout P\"",
        "  Assets:Clients:AA  -4.00 EUR",
        "  Equity:House:Payouts:EUR  4.00 EUR",
        "  Equity:House:Credits:EUR  -0.50 EUR",
    ] {
        assert!(beancount.contains(wanted), "{wanted} is not in\n{beancount}");
    }

    let hledger = export("hledger").await;
    for wanted in [
        "decimal-mark .\n",
        "commodity 1000.00 EUR\n",
        "account assets:clients:b.c\n",
        "1970-01-01 * opening balance\n    assets:clients:A  10.00 EUR\n    equity:house:opening:EUR  -10.00 EUR\n",
        " * payout P\n",
        "    ; token:5\n    ; rail_reference:r-P\n    assets:clients:A  -4.00 EUR  ; entry_id:1\n",
        "    equity:house:payouts:EUR  4.00 EUR  ; entry_id:2\n",
        "    equity:house:credits:EUR  -0.50 EUR",
    ] {
        assert!(hledger.contains(wanted), "{wanted} is not in\n{hledger}");
    }

    let camt = export("camt053").await;
    assert_eq!(camt.matches("<Stmt>").count(), 2);
    assert_eq!(camt.matches("<Ntry>").count(), 3);
    assert!(camt.contains("<EndToEndId>P</EndToEndId>") && camt.contains("<Amt Ccy=\"EUR\">6.50</Amt>"));

    let refused = api.get("/v1/ledger/export?format=xls").await;
    assert_eq!(problem(&refused, 400, "INVALID_REQUEST")["field"], "format");
    let refused = api.get("/v1/ledger/export").await;
    assert_eq!(problem(&refused, 400, "INVALID_REQUEST")["field"], "format");
}

// operation: audit
#[actix_web::test]
async fn the_audit_trail_holds_every_fact_in_order() {
    let api = with_ledger().await;
    let (mut facts, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/audit?limit=3{cursor}")).await.json();
        facts.extend(page["items"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let kinds: Vec<_> = facts.iter().map(|fact| fact["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "ACCOUNT_OPENED",
            "ACCOUNT_OPENED",
            "CREATE",
            "CLAIM",
            "POST",
            "CREATE",
            "CLAIM",
            "POST",
            "CREDITED"
        ]
    );
    assert!(
        facts
            .iter()
            .all(|fact| fact["actor"].is_string() && fact["at"].is_string())
    );
    let after = facts[4]["seq"].as_u64().unwrap();
    let rest = api.get(&format!("/v1/audit?after={after}")).await.json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 4);
}
