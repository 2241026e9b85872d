//! Delays after unclean losses and requests to yield, over HTTP (L2, L4, L5, L7, L11).
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Answer, Server, token};
use serde_json::{Value, json};

const REASON: &str = "this node is drained at noon";

async fn by_hand(server: &Server, verb: &str, key: &str, body: Value) -> Answer {
    let path = format!("/v1/locks/{key}/{verb}");
    server
        .raw("POST", &path, &[("X-Operator", "ann")], Some(&body.to_string()))
        .await
}

async fn revoke(server: &Server, key: &str, grant: &Value) -> Value {
    let body = json!({"revoke_token": token(grant), "reason": REASON});
    by_hand(server, "revoke", key, body).await.is(200)
}

#[actix_web::test]
async fn a_key_is_closed_after_an_unclean_loss_and_open_after_a_release() {
    let server = Server::start().await;
    let session = server.session().await;
    let with_delay = json!({"session_id": session, "lock_delay_ms": 60_000});
    let grant = server.acquire("k", with_delay.clone()).await.is(200);
    assert_eq!(grant["lock_delay_ms"], 60_000);
    let shown = server.lock("k").await;
    assert_eq!(
        (&shown["lock_delay_ms"], shown.get("closed_for_ms")),
        (&json!(60_000), None)
    );
    server.release("k", &session, token(&grant)).await.is(200);
    assert!(
        server.lock("k").await.get("closed_for_ms").is_none(),
        "a release is a clean end"
    );

    let grant = server.acquire("k", with_delay).await.is(200);
    let broken = revoke(&server, "k", &grant).await;
    let other = server.session().await;
    for asks in [&other, &session] {
        for wait in [0, 50] {
            let answer = server.acquire("k", json!({"session_id": asks, "wait_ms": wait})).await;
            assert!(answer.retry_after);
            let delayed = answer.refused(409, "LOCK_DELAYED");
            assert_eq!(delayed["retryable"], true);
            assert_eq!(
                (&delayed["key"], &delayed["token"], &delayed["waiters"]),
                (&json!("k"), &broken["token"], &json!(0))
            );
            let left = delayed["expires_in_ms"].as_u64().unwrap();
            assert!((1..=60_000).contains(&left), "{left}");
            assert!(delayed["retry_after_ms"].as_u64().unwrap() >= left);
        }
    }
    let shown = server.lock("k").await;
    assert_eq!((&shown["state"], &shown["token"]), (&json!("FREE"), &broken["token"]));
    assert!(shown["closed_for_ms"].as_u64().unwrap() > 0 && shown.get("lock_delay_ms").is_none());
    assert_eq!(
        server.metric("lock_acquire_total{outcome=\"delayed\"}").await,
        Some(4.0)
    );
    assert_eq!(
        server.metric("lock_acquire_total{outcome=\"unavailable\"}").await,
        Some(0.0)
    );
}

#[actix_web::test]
async fn a_waiter_is_granted_when_the_delay_has_passed() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session().await);
    let grant = server
        .acquire("k", json!({"session_id": one, "lock_delay_ms": 300}))
        .await
        .is(200);
    let broken = revoke(&server, "k", &grant).await;
    let next = server
        .acquire("k", json!({"session_id": two, "wait_ms": 30_000}))
        .await
        .is(200);
    assert!(token(&next) > token(&broken));
    // Counted by the store from the revoke on; the call came later, by less than the delay on any machine that is alive.
    assert_eq!(next["lock_delay_ms"], 0);
    let rows = server.get("/v1/locks/k/history").await.is(200);
    let at = |kind: &str, of: u64| {
        let found = rows["items"].as_array().unwrap().iter();
        let mut found = found.filter(|row| row["kind"] == kind && row["token"].as_u64().is_some_and(|seen| seen >= of));
        let text = found.next().unwrap()["at"].as_str().unwrap().to_owned();
        time::OffsetDateTime::parse(&text, &time::format_description::well_known::Rfc3339).unwrap()
    };
    let (lost, granted) = (at("REVOKED", token(&grant)), at("GRANTED", token(&next)));
    // The clock that counts and the one that dates the rows are two, read a moment apart.
    assert!((granted - lost).whole_milliseconds() >= 290, "{lost} {granted}");
}

#[actix_web::test]
async fn a_delay_out_of_bounds_names_its_field_and_grants_nothing() {
    let server = Server::start().await;
    let session = server.session().await;
    for bad in [json!(60_001), json!(u64::MAX), json!(-1), json!("5s"), json!(null)] {
        let answer = server
            .acquire("k", json!({"session_id": session, "lock_delay_ms": bad}))
            .await;
        answer.names("lock_delay_ms");
    }
    assert_eq!(server.lock("k").await["token"], Value::Null);
}

// operation: ask_to_yield
#[actix_web::test]
async fn the_holder_reads_that_it_is_asked_and_nothing_ends_by_it() {
    let server = Server::start().await;
    let session = server.session().await;
    let ask =
        async |key: &str, token: u64| by_hand(&server, "yield", key, json!({"token": token, "reason": REASON})).await;
    ask("k", 1).await.refused(404, "LOCK_NOT_FOUND");
    let grant = server.acquire("k", json!({"session_id": session})).await.is(200);
    assert!(grant.get("yield_requested").is_none());
    server
        .post("/v1/locks/k/yield", json!({"token": token(&grant), "reason": REASON}))
        .await
        .names("X-Operator");
    by_hand(
        &server,
        "yield",
        "k",
        json!({"token": token(&grant), "reason": "short"}),
    )
    .await
    .names("reason");
    ask("k", 0).await.names("token");
    ask("k", token(&grant) + 1).await.refused(409, "NOT_HOLDER");

    let asked = ask("k", token(&grant)).await.is(200);
    assert_eq!(
        (&asked["key"], &asked["token"], &asked["owner"]),
        (&json!("k"), &grant["token"], &json!("w1"))
    );
    let said = &asked["yield_requested"];
    assert_eq!((&said["by"], &said["reason"]), (&json!("ann"), &json!(REASON)));
    assert!(said["at"].as_str().unwrap().ends_with('Z'));
    let again = server
        .raw(
            "POST",
            "/v1/locks/k/yield",
            &[("X-Operator", "bob")],
            Some(&json!({"token": token(&grant), "reason": "another sentence"}).to_string()),
        )
        .await
        .is(200);
    assert_eq!(again, asked, "the first to ask is the one that is kept");

    let beat = server
        .post(&format!("/v1/sessions/{session}/heartbeat"), json!({}))
        .await
        .is(200);
    assert_eq!(&beat["held"][0]["yield_requested"], said);
    let renew = server
        .raw(
            "POST",
            "/v1/locks/k/renew",
            &[("X-Fencing-Token", &token(&grant).to_string())],
            Some(&json!({"session_id": session}).to_string()),
        )
        .await
        .is(200);
    assert_eq!(&renew["yield_requested"], said);
    let shown = server.lock("k").await;
    assert_eq!((&shown["state"], &shown["yield_requested"]), (&json!("HELD"), said));
    let seen = server.get(&format!("/v1/sessions/{session}")).await.is(200);
    assert_eq!(&seen["held"][0]["yield_requested"], said);

    server.release("k", &session, token(&grant)).await.is(200);
    ask("k", token(&grant)).await.refused(409, "NOT_HELD");
    let next = server.acquire("k", json!({"session_id": session})).await.is(200);
    assert!(next.get("yield_requested").is_none(), "a request is one grant's");
    let rows = server.get("/v1/locks/k/history").await.is(200);
    let rows: Vec<_> = rows["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kind"] == "YIELD_REQUESTED")
        .collect();
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(
        (&row["token"], &row["session_id"], &row["actor"], &row["reason"]),
        (&grant["token"], &json!(session), &json!("ann"), &json!(REASON))
    );
}
