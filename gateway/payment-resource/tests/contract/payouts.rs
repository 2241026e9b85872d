//! P2 and P3.

use crate::support::{Api, new_payout, problem};
use serde_json::{Value, json};

// operation: create_payout, get_payout
#[actix_web::test]
async fn a_payout_is_made_once_per_key() {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    let body = json!({
        "account_id": "A", "amount_minor": 400, "currency": "EUR", "creditor": {"name": "n", "account": "a"},
    });
    let key = [("X-Idempotency-Key", "k")];
    let made = api.post("/v1/payouts", &key, body.clone()).await;
    assert_eq!(made.status, 201);
    let payout = made.json();
    let id = payout["payout_id"].as_str().unwrap().to_owned();
    assert_eq!(id.len(), 26, "a ULID");
    assert_eq!(
        (
            payout["state"].as_str(),
            payout["version"].as_u64(),
            &payout["claim_token"]
        ),
        (Some("PENDING"), Some(1), &Value::Null)
    );
    let again = api.post("/v1/payouts", &key, body.clone()).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(again.json(), payout);
    assert_eq!(api.get(&format!("/v1/payouts/{id}")).await.json(), payout);
    problem(&api.get("/v1/payouts/nobody").await, 404, "PAYOUT_NOT_FOUND");
    let mut elsewhere = body.clone();
    elsewhere["account_id"] = "nobody".into();
    problem(
        &api.post("/v1/payouts", &[("X-Idempotency-Key", "k2")], elsewhere).await,
        404,
        "ACCOUNT_NOT_FOUND",
    );
    let mut dollars = body;
    dollars["currency"] = "USD".into();
    let refused = api.post("/v1/payouts", &[("X-Idempotency-Key", "k3")], dollars).await;
    assert_eq!(problem(&refused, 400, "INVALID_REQUEST")["field"], "currency");
    api.payout("mine", "A", 1).await;
    problem(
        &api.post(
            "/v1/payouts",
            &[("X-Idempotency-Key", "k4")],
            new_payout("mine", "A", 1),
        )
        .await,
        409,
        "CONFLICT",
    );
}

#[actix_web::test]
async fn case_p18_amounts_that_are_no_amounts_are_refused_by_name() {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    let amounts = [
        "1.15",
        "1e2",
        "\"100\"",
        "-1",
        "0",
        "9007199254740993",
        "9223372036854775808",
        "null",
        "true",
        "1e400",
        "-0.0",
    ];
    for amount in amounts {
        let body = format!(
            r#"{{"account_id":"A","amount_minor":{amount},"currency":"EUR","creditor":{{"name":"n","account":"a"}}}}"#
        );
        let refused = api
            .send("POST", "/v1/payouts", &[("X-Idempotency-Key", "k")], Some(body))
            .await;
        let said = refused.json();
        assert!(matches!(refused.status, 400 | 422), "{amount}: {said}");
        assert!(
            said["field"] == "amount_minor" || amount == "1e400" && said["field"] == "body",
            "{amount}: {said}"
        );
        let body = format!(r#"{{"amount_minor":{amount},"reference":"x"}}"#);
        let refused = api
            .send(
                "POST",
                "/v1/accounts/A/credit",
                &[("X-Idempotency-Key", "k")],
                Some(body),
            )
            .await;
        assert!(matches!(refused.status, 400 | 422), "{amount}: {}", refused.json());
    }
    assert_eq!(api.get("/v1/payouts").await.json()["items"], json!([]));
    assert_eq!(api.get("/v1/accounts/A").await.json()["balance_minor"], 1_000);
}

#[actix_web::test]
async fn case_p12_text_comes_back_byte_for_byte_or_is_refused() {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    let texts = [
        "\u{e9}",
        "e\u{301}",
        "👩‍🚀",
        "\u{5e9}\u{5dc}\u{5d5}\u{5dd}",
        "a\u{2028}b",
        "\u{202e}abc",
    ];
    for (n, text) in texts.into_iter().enumerate() {
        let id = format!("P{n}");
        let mut body = new_payout(&id, "A", 1);
        body["creditor"] = json!({"name": text, "account": text});
        body["reference"] = text.into();
        assert_eq!(
            api.post("/v1/payouts", &[("X-Idempotency-Key", &id)], body)
                .await
                .status,
            201
        );
        let kept = api.get(&format!("/v1/payouts/{id}")).await.json();
        for kept in [
            &kept["creditor"]["name"],
            &kept["creditor"]["account"],
            &kept["reference"],
        ] {
            assert_eq!(kept.as_str().unwrap().as_bytes(), text.as_bytes());
        }
    }
    for control in ["a\u{0}b", "a\nb", "a\u{7f}b", "a\u{85}b"] {
        for field in ["creditor.name", "creditor.account", "reference"] {
            let mut body = new_payout("X", "A", 1);
            match field.split_once('.') {
                Some((outer, inner)) => body[outer][inner] = control.into(),
                None => body[field] = control.into(),
            }
            let refused = api.post("/v1/payouts", &[("X-Idempotency-Key", "x")], body).await;
            assert_eq!(problem(&refused, 400, "INVALID_REQUEST")["field"], field, "{control:?}");
        }
    }
}

// operation: list_payouts
#[actix_web::test]
async fn payouts_are_listed_by_state_and_account_in_the_order_of_creation() {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    api.account("B", 1_000).await;
    for n in 0..7 {
        api.payout(&format!("P{n}"), if n % 2 == 0 { "A" } else { "B" }, 1)
            .await;
    }
    api.step("P4", "claim", 1, json!({})).await;
    let listed = async |query: &str| -> Vec<String> {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = api.get(&format!("/v1/payouts?limit=2&{query}{cursor}")).await.json();
            let items = page["items"].as_array().unwrap().clone();
            seen.extend(items.iter().map(|item| item["payout_id"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break seen,
            }
        }
    };
    assert_eq!(listed("").await, ["P0", "P1", "P2", "P3", "P4", "P5", "P6"]);
    assert_eq!(listed("account_id=A").await, ["P0", "P2", "P4", "P6"]);
    assert_eq!(listed("state=CLAIMED").await, ["P4"]);
    assert_eq!(listed("state=PENDING&account_id=A").await, ["P0", "P2", "P6"]);
    assert_eq!(listed("state=POSTED").await, [""; 0]);
    for (bad, field) in [
        ("state=pending", "state"),
        ("account_id=%20", "account_id"),
        ("cursor=x", "cursor"),
    ] {
        let refused = api.get(&format!("/v1/payouts?{bad}")).await;
        assert_eq!(problem(&refused, 400, "INVALID_REQUEST")["field"], field);
    }
}

// operation: payout_history
#[actix_web::test]
async fn a_history_names_every_step_with_its_actor_and_token() {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    api.pay("P", "A", 400, 5).await;
    let history = api.get("/v1/payouts/P/history").await.json();
    let steps: Vec<_> = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| {
            let text = |name: &str| step[name].as_str().map(str::to_owned);
            (
                text("from_state"),
                text("to_state"),
                step["token"].as_u64(),
                text("actor"),
            )
        })
        .collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        steps,
        [
            (None, some("PENDING"), None, some("unnamed")),
            (some("PENDING"), some("CLAIMED"), Some(5), some("w1")),
            (some("CLAIMED"), some("POSTED"), Some(5), some("w1")),
        ]
    );
    problem(&api.get("/v1/payouts/nobody/history").await, 404, "PAYOUT_NOT_FOUND");
    let first = api.get("/v1/payouts/P/history?limit=1").await.json();
    assert!(first["next_cursor"].is_string());
}
