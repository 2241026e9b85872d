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
