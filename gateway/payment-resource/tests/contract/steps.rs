//! P4–P9.

use crate::support::{Api, problem};
use serde_json::{Value, json};

async fn with_payout() -> Api {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    api.payout("P", "A", 400).await;
    api
}

// operation: claim_payout
#[actix_web::test]
async fn a_claim_answers_what_it_decided() {
    let api = with_payout().await;
    api.payout("Q", "A", 601).await;
    let claimed = api.step("P", "claim", 5, json!({"expected_version": 1})).await;
    assert_eq!(claimed.status, 200);
    let payout = claimed.json();
    assert_eq!(
        (
            payout["state"].as_str(),
            payout["claim_token"].as_u64(),
            payout["version"].as_u64()
        ),
        (Some("CLAIMED"), Some(5), Some(2))
    );
    assert_eq!(claimed.header("idempotent-replayed"), None);
    // Without a body it is a claim without an expectation: here a replay.
    let again = api
        .send("POST", "/v1/payouts/P/claim", &[("X-Fencing-Token", "5")], None)
        .await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));

    let stale = problem(&api.step("P", "claim", 4, json!({})).await, 409, "FENCED_OUT");
    assert_eq!(
        (
            stale["reason"].as_str(),
            stale["presented_token"].as_u64(),
            stale["highest_token"].as_u64()
        ),
        (Some("stale"), Some(4), Some(5))
    );
    assert_eq!(stale["retryable"], false);
    let spent = problem(&api.step("Q", "claim", 5, json!({})).await, 409, "FENCED_OUT");
    assert_eq!(spent["reason"], "token_spent");
    let funds = problem(&api.step("Q", "claim", 6, json!({})).await, 422, "INSUFFICIENT_FUNDS");
    assert_eq!(
        (funds["available_minor"].as_i64(), funds["amount_minor"].as_i64()),
        (Some(600), Some(601))
    );
    problem(
        &api.step("P", "claim", 6, json!({"expected_version": 1})).await,
        409,
        "VERSION_CONFLICT",
    );
    problem(
        &api.step("nobody", "claim", 6, json!({})).await,
        404,
        "PAYOUT_NOT_FOUND",
    );
    assert_eq!(api.get("/v1/accounts/A").await.json()["fence"], 5);
}

#[actix_web::test]
async fn a_token_is_required_and_canonical_on_every_route_that_takes_one() {
    let api = with_payout().await;
    for (verb, body) in [
        ("claim", json!({})),
        ("post", json!({"rail_reference": "r"})),
        ("fail", json!({"reason": "x"})),
        ("ambiguous", json!({"reason": "x"})),
        ("resolve", json!({"outcome": "POSTED"})),
    ] {
        let target = format!("/v1/payouts/P/{verb}");
        problem(
            &api.post(&target, &[], body.clone()).await,
            400,
            "FENCING_TOKEN_REQUIRED",
        );
        for bad in ["0", "01", "+1", "-1", "1.0", "x", "", "9007199254740992"] {
            let refused = api.post(&target, &[("X-Fencing-Token", bad)], body.clone()).await;
            problem(&refused, 400, "FENCING_TOKEN_INVALID");
        }
        let twice = [("X-Fencing-Token", "5"), ("X-Fencing-Token", "5")];
        problem(&api.post(&target, &twice, body).await, 400, "FENCING_TOKEN_INVALID");
    }
}

// operation: post_payout
#[actix_web::test]
async fn case_p20_a_post_writes_two_legs_and_replays() {
    let api = with_payout().await;
    api.step("P", "claim", 5, json!({})).await;
    let body = json!({"rail_reference": "r1"});
    let missing = problem(
        &api.step("P", "post", 5, body.clone()).await,
        409,
        "OUTCOME_EVIDENCE_MISSING",
    );
    assert_eq!(missing["recorded"], "NONE");
    api.rail("P", Some("ACKED"), Some("r1"));
    problem(
        &api.step("P", "post", 5, json!({"rail_reference": "other"})).await,
        409,
        "OUTCOME_EVIDENCE_MISSING",
    );
    let ahead = problem(&api.step("P", "post", 6, body.clone()).await, 409, "FENCED_OUT");
    assert_eq!(ahead["reason"], "not_claimed");
    let posted = api.step("P", "post", 5, body.clone()).await;
    assert_eq!((posted.status, posted.json()["state"].as_str()), (200, Some("POSTED")));
    let again = api.step("P", "post", 5, body).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(again.json(), posted.json());
    let account = api.get("/v1/accounts/A").await.json();
    assert_eq!(
        (account["balance_minor"].as_i64(), account["held_minor"].as_i64()),
        (Some(600), Some(0))
    );
    assert_eq!(
        api.get("/v1/accounts/A/ledger").await.json()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    api.verified().await;
}

#[actix_web::test]
async fn case_p07_fifty_posts_at_once_over_http() {
    let api = with_payout().await;
    api.step("P", "claim", 5, json!({})).await;
    api.rail("P", Some("ACKED"), Some("r1"));
    let calls = (0..50).map(|_| api.step("P", "post", 5, json!({"rail_reference": "r1"})));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    let fresh = answers
        .iter()
        .filter(|answer| answer.header("idempotent-replayed").is_none())
        .count();
    assert_eq!(fresh, 1);
    assert_eq!(
        api.get("/v1/accounts/A/ledger").await.json()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    api.verified().await;
}

// operation: fail_payout
#[actix_web::test]
async fn case_p04_a_failed_payout_frees_its_hold_and_stays_failed() {
    let api = with_payout().await;
    api.step("P", "claim", 5, json!({})).await;
    problem(
        &api.step("P", "fail", 5, json!({"reason": "declined"})).await,
        409,
        "OUTCOME_EVIDENCE_MISSING",
    );
    api.rail("P", Some("DECLINED"), None);
    let failed = api.step("P", "fail", 5, json!({"reason": "declined"})).await;
    assert_eq!(
        (failed.status, failed.json()["failure_reason"].as_str()),
        (200, Some("declined"))
    );
    assert_eq!(api.get("/v1/accounts/A").await.json()["available_minor"], 1_000);
    let refused = problem(&api.step("P", "claim", 6, json!({})).await, 409, "ILLEGAL_TRANSITION");
    assert_eq!(
        (&refused["from"], &refused["to"], &refused["allowed"]),
        (&json!("FAILED"), &json!("CLAIMED"), &json!([]))
    );
    for bad in [
        json!({}),
        json!({"reason": ""}),
        json!({"reason": "x".repeat(141)}),
        json!({"reason": "a\nb"}),
    ] {
        let refused = problem(&api.step("P", "fail", 6, bad).await, 400, "INVALID_REQUEST");
        assert_eq!(refused["field"], "reason");
    }
}

// operation: mark_ambiguous
#[actix_web::test]
async fn case_p02_an_ambiguous_payout_keeps_its_money_and_is_claimed_by_nobody() {
    let api = with_payout().await;
    api.payout("Q", "A", 601).await;
    api.step("P", "claim", 5, json!({})).await;
    api.rail("P", Some("TIMEOUT"), None);
    let ambiguous = api.step("P", "ambiguous", 5, json!({"reason": "no answer"})).await;
    assert_eq!(
        (ambiguous.status, ambiguous.json()["state"].as_str()),
        (200, Some("RAIL_AMBIGUOUS"))
    );
    assert!(ambiguous.json()["ambiguous_since"].is_string());
    problem(&api.step("Q", "claim", 6, json!({})).await, 422, "INSUFFICIENT_FUNDS");
    let refused = problem(&api.step("P", "claim", 6, json!({})).await, 409, "ILLEGAL_TRANSITION");
    assert_eq!(refused["allowed"], json!(["POSTED", "FAILED"]));
}

// operation: resolve_payout
#[actix_web::test]
async fn case_d02_a_resolution_follows_the_evidence() {
    let api = with_payout().await;
    api.step("P", "claim", 5, json!({})).await;
    api.rail("P", Some("TIMEOUT"), None);
    api.step("P", "ambiguous", 5, json!({"reason": "no answer"})).await;
    problem(
        &api.step("P", "resolve", 6, json!({"outcome": "FAILED"})).await,
        409,
        "OUTCOME_EVIDENCE_MISSING",
    );
    // Between the lookup that said "not received" and the resolution the rail acks late.
    api.rail("P", Some("ACKED"), Some("late"));
    problem(
        &api.step("P", "resolve", 6, json!({"outcome": "FAILED"})).await,
        409,
        "OUTCOME_EVIDENCE_MISSING",
    );
    let posted = api.step("P", "resolve", 6, json!({"outcome": "POSTED"})).await;
    assert_eq!(
        (posted.status, posted.json()["rail_reference"].as_str()),
        (200, Some("late"))
    );
    api.verified().await;
}

#[actix_web::test]
async fn by_hand_needs_operator_reason_and_token() {
    let api = with_payout().await;
    api.step("P", "claim", 5, json!({})).await;
    api.rail("P", Some("TIMEOUT"), None);
    api.step("P", "ambiguous", 5, json!({"reason": "no answer"})).await;
    let hand = async |headers: &[(&str, &str)], body: Value| api.post("/v1/payouts/P/resolve", headers, body).await;
    let full = json!({"outcome": "FAILED", "reason": "the bank says no"});
    let both = [("X-Fencing-Token", "6"), ("X-Operator", "op")];
    problem(&hand(&both[1..], full.clone()).await, 400, "FENCING_TOKEN_REQUIRED");
    let no_reason = hand(&both, json!({"outcome": "FAILED"})).await;
    assert_eq!(problem(&no_reason, 400, "INVALID_REQUEST")["field"], "reason");
    let short = hand(&both, json!({"outcome": "FAILED", "reason": "no"})).await;
    assert_eq!(problem(&short, 400, "INVALID_REQUEST")["field"], "reason");
    let no_operator = hand(&both[..1], full.clone()).await;
    assert_eq!(problem(&no_operator, 400, "INVALID_REQUEST")["field"], "X-Operator");
    api.rail("P", Some("ACKED"), Some("r"));
    problem(&hand(&both, full.clone()).await, 409, "OUTCOME_EVIDENCE_MISSING");
    api.rail("P", Some("TIMEOUT"), None);
    let failed = hand(&both, full).await;
    assert_eq!((failed.status, failed.json()["state"].as_str()), (200, Some("FAILED")));
    let history = api.get("/v1/payouts/P/history").await.json();
    assert_eq!(history["items"].as_array().unwrap().last().unwrap()["actor"], "op");
}

// operation: cancel_payout
#[actix_web::test]
async fn only_a_pending_payout_is_cancelled() {
    let api = with_payout().await;
    api.payout("Q", "A", 1).await;
    let operator = [("X-Operator", "op")];
    let missing = api.send("POST", "/v1/payouts/Q/cancel", &[], None).await;
    assert_eq!(problem(&missing, 400, "INVALID_REQUEST")["field"], "X-Operator");
    let cancelled = api.send("POST", "/v1/payouts/Q/cancel", &operator, None).await;
    assert_eq!(
        (cancelled.status, cancelled.json()["failure_reason"].as_str()),
        (200, Some("CANCELLED"))
    );
    api.step("P", "claim", 5, json!({})).await;
    let refused = api
        .post("/v1/payouts/P/cancel", &operator, json!({"reason": "asked by phone"}))
        .await;
    problem(&refused, 409, "ILLEGAL_TRANSITION");
    problem(
        &api.post("/v1/payouts/nobody/cancel", &operator, json!({})).await,
        404,
        "PAYOUT_NOT_FOUND",
    );
}
