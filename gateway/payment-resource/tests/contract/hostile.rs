//! What nobody should send: 4xx naming the field, never 5xx, never a panic.

use crate::support::Api;
use gateway_kit::testing::Fuzz;
use serde_json::json;

#[actix_web::test]
async fn no_request_is_answered_with_a_server_error() {
    let api = Api::start().await;
    api.account("A", 1_000_000).await;
    api.payout("P", "A", 100).await;
    let report = Fuzz::new(&payment_resource::openapi())
        .path("account_id", "A")
        .path("payout_id", "P")
        .header("X-Operator", "op")
        // Each is a day or an instant, and the second one lies after the first.
        .query("export_ledger", "from", "2026-01-01")
        .query("export_ledger", "to", "2026-02-01")
        .body("create_payout", json!({"account_id": "A", "currency": "EUR"}))
        // The balance has a bound of its own, which no schema can say.
        .body("credit_account", json!({"amount_minor": 7}))
        .body(
            "resolve_payout",
            json!({"outcome": "POSTED", "reason": "seen on the statement"}),
        )
        .run(&api.socket)
        .await;
    println!("{report:?}");
    assert_eq!(report.operations, 19);
    api.verified().await;
}

/// Ids that are accepted although they look odd.
const ODD: [&str; 13] = [
    "...",
    "....",
    "-",
    "--",
    "-x",
    ".a",
    "a.",
    "a..b",
    ":",
    "a:b",
    "_",
    "house",
    "00000000000000000000000000000000035",
];

#[actix_web::test]
async fn case_p27_every_accepted_id_works_in_every_route_and_dots_are_refused() {
    let api = Api::start().await;
    for id in ODD {
        api.account(id, 1_000).await;
        api.pay(id, id, 400, 5).await;
        let credit = json!({"amount_minor": 50, "reference": "top-up"});
        let path = format!("/v1/accounts/{id}/credit");
        assert_eq!(
            api.post(&path, &[("X-Idempotency-Key", id)], credit).await.status,
            201,
            "{id}"
        );
        for (path, field) in [
            (format!("/v1/accounts/{id}"), "account_id"),
            (format!("/v1/payouts/{id}"), "payout_id"),
        ] {
            assert_eq!(api.get(&path).await.json()[field], id);
        }
        let fence = api
            .post(
                &format!("/v1/accounts/{id}/fence"),
                &[("X-Fencing-Token", "9")],
                json!({}),
            )
            .await;
        assert_eq!(fence.status, 200, "{id}");
        for (path, count) in [
            (format!("/v1/accounts/{id}/ledger"), 2),
            (format!("/v1/payouts/{id}/history"), 3),
            (format!("/v1/payouts?account_id={id}"), 1),
        ] {
            assert_eq!(
                api.get(&path).await.json()["items"].as_array().unwrap().len(),
                count,
                "{path}"
            );
        }
        for (format, lines) in [
            ("csv", 3),
            ("jsonl", 2),
            ("camt053", 6),
            ("hledger", 1),
            ("beancount", 1),
        ] {
            let answer = api
                .get(&format!("/v1/ledger/export?format={format}&account_id={id}"))
                .await;
            let text = String::from_utf8(answer.body).unwrap();
            assert!(
                answer.status == 200 && text.lines().count() >= lines,
                "{id} {format}: {text}"
            );
        }
        // The steps that this payout is past: each is found, and refused by its state or its token.
        for verb in ["claim", "post", "fail", "ambiguous", "resolve", "cancel"] {
            let body = match verb {
                "post" => json!({"rail_reference": format!("r-{id}")}),
                "fail" | "ambiguous" => json!({"reason": "for the test"}),
                "resolve" => json!({"outcome": "FAILED", "reason": "for the test"}),
                _ => json!({}),
            };
            let headers = [("X-Fencing-Token", "10"), ("X-Operator", "op")];
            let answer = api.post(&format!("/v1/payouts/{id}/{verb}"), &headers, body).await;
            assert!(
                [200, 409].contains(&answer.status),
                "{id} {verb}: {}",
                String::from_utf8_lossy(&answer.body)
            );
        }
        // A list goes on after it.
        assert_eq!(api.get(&format!("/v1/accounts?cursor={id}")).await.status, 200, "{id}");
    }
    api.verified().await;
    for id in [".", ".."] {
        for (path, body, field) in [
            (
                "/v1/accounts",
                json!({"account_id": id, "currency": "EUR", "opening_balance_minor": 0}),
                "account_id",
            ),
            ("/v1/payouts", crate::support::new_payout(id, "a:b", 1), "payout_id"),
            ("/v1/payouts", crate::support::new_payout("P", id, 1), "account_id"),
        ] {
            let refused = api.post(path, &[("X-Idempotency-Key", "k")], body).await;
            assert_eq!(
                crate::support::problem(&refused, 400, "INVALID_REQUEST")["field"],
                field
            );
        }
        let encoded = id.replace('.', "%2E");
        for (path, field) in [
            (format!("/v1/accounts/{encoded}"), "account_id"),
            (format!("/v1/accounts/{encoded}/ledger"), "account_id"),
            (format!("/v1/payouts/{encoded}"), "payout_id"),
            (format!("/v1/payouts/{encoded}/history"), "payout_id"),
            (format!("/v1/payouts?account_id={encoded}"), "account_id"),
        ] {
            assert_eq!(
                crate::support::problem(&api.get(&path).await, 400, "INVALID_REQUEST")["field"],
                field,
                "{path}"
            );
        }
    }
}

#[actix_web::test]
async fn case_p28_a_currency_that_does_not_circulate_is_refused_wherever_one_is_given() {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    for currency in [
        "ZZZ", "EUT", "XXX", "XAU", "XTS", "XDR", "CLF", "USN", "HRK", "BGN", "eur", "EURO", "",
    ] {
        let account = json!({"account_id": "B", "currency": currency, "opening_balance_minor": 0});
        let mut payout = crate::support::new_payout("P", "A", 1);
        payout["currency"] = json!(currency);
        for (path, body) in [("/v1/accounts", account), ("/v1/payouts", payout)] {
            let refused = api.post(path, &[("X-Idempotency-Key", "k")], body).await;
            assert_eq!(
                crate::support::problem(&refused, 400, "INVALID_REQUEST")["field"],
                "currency",
                "{currency}"
            );
        }
    }
    assert_eq!(api.get("/v1/accounts/B").await.status, 404);
    assert_eq!(api.get("/v1/payouts/P").await.status, 404);
    for currency in ["JPY", "KWD", "VES", "XOF", "CHF"] {
        let account = json!({"account_id": currency, "currency": currency, "opening_balance_minor": 0});
        assert_eq!(api.post("/v1/accounts", &[], account).await.status, 201, "{currency}");
    }
}
