//! P1 and P10.

use crate::support::{Api, problem};
use serde_json::json;

// operation: open_account, get_account
#[actix_web::test]
async fn an_account_is_opened_once() {
    let api = Api::start().await;
    let body = json!({"account_id": "A", "currency": "EUR", "opening_balance_minor": 1000});
    let opened = api.post("/v1/accounts", &[], body.clone()).await;
    assert_eq!(opened.status, 201);
    let expected = json!({
        "account_id": "A", "currency": "EUR", "opening_balance_minor": 1000, "balance_minor": 1000, "held_minor": 0,
        "available_minor": 1000, "fence": 0,
    });
    assert_eq!(opened.json(), expected);
    assert_eq!(api.post("/v1/accounts", &[], body).await.status, 200);
    let other = json!({"account_id": "A", "currency": "EUR", "opening_balance_minor": 1001});
    problem(&api.post("/v1/accounts", &[], other).await, 409, "CONFLICT");
    assert_eq!(api.get("/v1/accounts/A").await.json(), expected);
    problem(&api.get("/v1/accounts/nobody").await, 404, "ACCOUNT_NOT_FOUND");
    let house = json!({"account_id": "house:payouts:EUR", "currency": "EUR", "opening_balance_minor": 1});
    assert_eq!(
        problem(&api.post("/v1/accounts", &[], house).await, 400, "INVALID_REQUEST")["field"],
        "account_id"
    );
}

// operation: list_accounts
#[actix_web::test]
async fn accounts_are_listed_in_pages() {
    let api = Api::start().await;
    for id in ["c", "a", "b", "d", "e"] {
        api.account(id, 1).await;
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("/v1/accounts?limit=2{cursor}")).await.json();
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["account_id"].as_str().unwrap().to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
    for bad in ["limit=0", "limit=1001", "limit=x", "cursor=%2F", "wrong=1"] {
        problem(&api.get(&format!("/v1/accounts?{bad}")).await, 400, "INVALID_REQUEST");
    }
}

// operation: credit_account
#[actix_web::test]
async fn a_credit_is_made_once_per_key() {
    let api = Api::start().await;
    api.account("A", 100).await;
    let key = [("X-Idempotency-Key", "k1")];
    let body = json!({"amount_minor": 50, "reference": "top-up"});
    let first = api.post("/v1/accounts/A/credit", &key, body.clone()).await;
    assert_eq!((first.status, first.json()["balance_minor"].as_i64()), (201, Some(150)));
    let again = api.post("/v1/accounts/A/credit", &key, body.clone()).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(again.json(), first.json());
    assert_eq!(api.get("/v1/accounts/A").await.json()["balance_minor"], 150);
    problem(
        &api.post(
            "/v1/accounts/nobody/credit",
            &[("X-Idempotency-Key", "k2")],
            body.clone(),
        )
        .await,
        404,
        "ACCOUNT_NOT_FOUND",
    );
    let missing = problem(
        &api.post("/v1/accounts/A/credit", &[], body).await,
        400,
        "INVALID_REQUEST",
    );
    assert_eq!(missing["field"], "X-Idempotency-Key");
    api.verified().await;
}

/// One code for a reused key on every route, and the contract says the same.
#[actix_web::test]
async fn case_p34_the_same_credit_key_with_another_amount_is_a_reused_key() {
    let api = Api::start().await;
    api.account("A", 100).await;
    let key = [("X-Idempotency-Key", "k")];
    let credit = |amount: i64, reference: &str| json!({"amount_minor": amount, "reference": reference});
    assert_eq!(
        api.post("/v1/accounts/A/credit", &key, credit(5, "top-up"))
            .await
            .status,
        201
    );
    for other in [credit(6, "top-up"), credit(5, "another")] {
        problem(
            &api.post("/v1/accounts/A/credit", &key, other).await,
            422,
            "IDEMPOTENCY_KEY_REUSED",
        );
    }
    assert_eq!(api.get("/v1/accounts/A").await.json()["balance_minor"], 105);
    let contract = include_str!("../../../../docs/04-contracts.md");
    let row = contract.lines().find(|line| line.starts_with("| P1 |")).unwrap();
    assert!(row.contains("422 `IDEMPOTENCY_KEY_REUSED`"), "{row}");
}

#[actix_web::test]
async fn case_p10_a_reused_key_with_another_body_is_422_on_every_route_that_takes_one() {
    let api = Api::start().await;
    api.account("A", 100).await;
    let key = [("X-Idempotency-Key", "the same")];
    let credit = |amount: i64| json!({"amount_minor": amount, "reference": "top-up"});
    assert_eq!(api.post("/v1/accounts/A/credit", &key, credit(5)).await.status, 201);
    problem(
        &api.post("/v1/accounts/A/credit", &key, credit(6)).await,
        422,
        "IDEMPOTENCY_KEY_REUSED",
    );
    // The same key on another route is another request.
    let payout = crate::support::new_payout("P", "A", 5);
    assert_eq!(api.post("/v1/payouts", &key, payout).await.status, 201);
    let other = crate::support::new_payout("P", "A", 6);
    problem(
        &api.post("/v1/payouts", &key, other).await,
        422,
        "IDEMPOTENCY_KEY_REUSED",
    );
    assert_eq!(api.get("/v1/accounts/A").await.json()["balance_minor"], 105);
}

// operation: fence_account
#[actix_web::test]
async fn case_d07_a_fenced_account_refuses_the_revoked_holder() {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    api.payout("P", "A", 100).await;
    api.payout("Q", "A", 100).await;
    // W1 holds 7 and has claimed; the revoke minted 8, and nobody acquires.
    assert_eq!(api.step("P", "claim", 7, json!({})).await.status, 200);
    let fenced = api
        .send(
            "POST",
            "/v1/accounts/A/fence",
            &[("X-Fencing-Token", "8"), ("X-Operator", "op")],
            None,
        )
        .await;
    assert_eq!(
        (fenced.status, fenced.json()),
        (200, json!({"account_id": "A", "fence": 7}))
    );
    api.rail("P", Some("ACKED"), Some("r"));
    for (payout, verb, body) in [
        ("P", "claim", json!({})),
        ("Q", "claim", json!({})),
        ("P", "post", json!({"rail_reference": "r"})),
        ("P", "fail", json!({"reason": "x"})),
        ("P", "ambiguous", json!({"reason": "x"})),
        ("P", "resolve", json!({"outcome": "POSTED"})),
    ] {
        let refused = problem(&api.step(payout, verb, 7, body).await, 409, "FENCED_OUT");
        assert_eq!(
            (
                refused["reason"].as_str(),
                refused["presented_token"].as_u64(),
                refused["highest_token"].as_u64()
            ),
            (Some("stale"), Some(7), Some(7)),
            "{verb}"
        );
    }
    problem(
        &api.send("POST", "/v1/accounts/A/fence", &[("X-Fencing-Token", "7")], None)
            .await,
        409,
        "FENCED_OUT",
    );
    problem(
        &api.send("POST", "/v1/accounts/nobody/fence", &[("X-Fencing-Token", "7")], None)
            .await,
        404,
        "ACCOUNT_NOT_FOUND",
    );
    problem(
        &api.send("POST", "/v1/accounts/A/fence", &[], None).await,
        400,
        "FENCING_TOKEN_REQUIRED",
    );
    let facts = api.get("/v1/audit").await.json();
    let last = facts["items"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (last["kind"].as_str(), last["actor"].as_str()),
        (Some("FENCE_RAISED"), Some("op"))
    );
}
