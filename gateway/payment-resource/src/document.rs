//! The OpenAPI document of P1–P10, with the bounds that the handlers enforce.

use crate::bounds::{ACCOUNT_ID_CHARS_MAX, PAYOUT_ID_CHARS_MAX, REASON_CHARS, TEXT_CHARS_MAX};
use crate::routes;
use http_contract::payment::{
    AccountAnswer, CancelBody, ClaimBody, CreatePayoutBody, CreditBody, Creditor, FenceAnswer, LedgerRow,
    OpenAccountBody, PaymentAuditRow, PayoutAnswer, PayoutState, PostBody, ReasonBody, Resolution, ResolveBody,
    TransitionRow, VerifyAnswer,
};
use http_contract::{Page, Problem};
use lock_api::TOKEN_MAX;
use payment_store::AMOUNT_MAX_MINOR;
use serde_json::{Value, json};
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "dlock payment-resource",
        description = "Accounts, payouts and their ledger. It accepts a write only under a fencing token that passes the account's mark; it grants no locks.",
    ),
    paths(
        routes::open_account,
        routes::list_accounts,
        routes::get_account,
        routes::credit_account,
        routes::fence_account,
        routes::account_ledger,
        routes::create_payout,
        routes::list_payouts,
        routes::get_payout,
        routes::payout_history,
        routes::claim_payout,
        routes::post_payout,
        routes::fail_payout,
        routes::mark_ambiguous,
        routes::resolve_payout,
        routes::cancel_payout,
        routes::export_ledger,
        routes::verify_ledger,
        routes::audit,
    ),
    components(schemas(
        AccountAnswer, CancelBody, ClaimBody, CreatePayoutBody, CreditBody, Creditor, FenceAnswer, LedgerRow,
        OpenAccountBody, PaymentAuditRow, PayoutAnswer, PayoutState, PostBody, Problem, ReasonBody, Resolution,
        ResolveBody, TransitionRow, VerifyAnswer, Page<AccountAnswer>, Page<PayoutAnswer>, Page<TransitionRow>,
        Page<LedgerRow>, Page<PaymentAuditRow>
    )),
)]
struct Document;

/// The document.
///
/// # Panics
/// Never: the document is data of this crate, and a test walks it.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = serde_json::to_value(Document::openapi()).expect("a document is plain data");
    let id =
        |chars_max: usize| json!({"pattern": format!("^[A-Za-z0-9._:-]{{1,{chars_max}}}$"), "maxLength": chars_max});
    let account_id =
        json!({"pattern": format!("^[A-Za-z0-9._-]{{1,{ACCOUNT_ID_CHARS_MAX}}}$"), "maxLength": ACCOUNT_ID_CHARS_MAX});
    let currency = json!({"pattern": "^[A-Z]{3}$"});
    let amount = json!({"minimum": 1, "maximum": AMOUNT_MAX_MINOR});
    let line = json!({"minLength": 1, "maxLength": TEXT_CHARS_MAX});
    let reference = json!({"maxLength": TEXT_CHARS_MAX});
    let reason = json!({"minLength": REASON_CHARS.start(), "maxLength": REASON_CHARS.end()});
    for (schema, field, limits) in [
        ("OpenAccountBody", "account_id", &account_id),
        ("OpenAccountBody", "currency", &currency),
        (
            "OpenAccountBody",
            "opening_balance_minor",
            &json!({"minimum": 0, "maximum": AMOUNT_MAX_MINOR}),
        ),
        ("CreditBody", "amount_minor", &amount),
        ("CreditBody", "reference", &reference),
        ("CreatePayoutBody", "payout_id", &id(PAYOUT_ID_CHARS_MAX)),
        ("CreatePayoutBody", "account_id", &id(ACCOUNT_ID_CHARS_MAX)),
        ("CreatePayoutBody", "amount_minor", &amount),
        ("CreatePayoutBody", "currency", &currency),
        ("CreatePayoutBody", "reference", &reference),
        ("Creditor", "name", &line),
        ("Creditor", "account", &line),
        (
            "ClaimBody",
            "expected_version",
            &json!({"minimum": 0, "maximum": TOKEN_MAX}),
        ),
        ("PostBody", "rail_reference", &line),
        ("ReasonBody", "reason", &line),
        ("ResolveBody", "rail_reference", &line),
        ("ResolveBody", "reason", &reason),
        ("CancelBody", "reason", &reason),
    ] {
        limit(&mut document, schema, field, limits);
    }
    serde_json::from_value(document).expect("a document with bounds is still one")
}

fn limit(document: &mut Value, schema: &str, field: &str, limits: &Value) {
    let property = document
        .pointer_mut(&format!("/components/schemas/{schema}/properties/{field}"))
        .and_then(Value::as_object_mut)
        .expect("the field stands in the contract");
    for (name, value) in limits.as_object().into_iter().flatten() {
        property.insert(name.clone(), value.clone());
    }
}
