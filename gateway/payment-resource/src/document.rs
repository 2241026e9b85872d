//! The OpenAPI document of P1–P10, with the bounds that the handlers enforce.

use crate::bounds::{ACCOUNT_ID_CHARS_MAX, PAYOUT_ID_CHARS_MAX, TEXT_CHARS_MAX};
use crate::routes;
use gateway_kit::REASON_CHARS;
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
use utoipa::openapi::{OpenApi as OpenApiDocument, RefOr, Required};

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
pub fn openapi() -> OpenApiDocument {
    let mut document = Document::openapi();
    let id = |chars_max: usize| json!({"pattern": id_pattern(":", chars_max), "maxLength": chars_max});
    let account_id = json!({"pattern": id_pattern("", ACCOUNT_ID_CHARS_MAX), "maxLength": ACCOUNT_ID_CHARS_MAX});
    // Which codes circulate changes with the standard, so no list of them is part of the contract.
    let currency =
        json!({"pattern": "^[A-Z]{3}$", "description": "A circulating currency of ISO 4217", "example": "EUR"});
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
    for template in ["/v1/payouts/{payout_id}/claim", "/v1/payouts/{payout_id}/cancel"] {
        let operation = document
            .paths
            .paths
            .get_mut(template)
            .and_then(|path| path.post.as_mut());
        // Without a body these ask for nothing in particular.
        if let Some(RefOr::T(body)) = operation.and_then(|operation| operation.request_body.as_mut()) {
            body.required = Some(Required::False);
        }
    }
    document
}

/// An id of at most so many characters, these among them, that is neither `.` nor `..`; without a look-ahead, which many
/// readers of patterns do not have.
fn id_pattern(more: &str, chars_max: usize) -> String {
    let (first, any) = (format!("[A-Za-z0-9_{more}-]"), format!("[A-Za-z0-9._{more}-]"));
    let (one, two) = (chars_max - 1, chars_max - 2);
    format!("^({first}{any}{{0,{one}}}|[.]{first}{any}{{0,{two}}}|[.][.]{any}{{1,{two}}})$")
}

fn limit(document: &mut OpenApiDocument, schema: &str, field: &str, limits: &Value) {
    let schemas = document.components.as_mut().map(|components| &mut components.schemas);
    let schema = schemas
        .and_then(|schemas| schemas.get_mut(schema))
        .expect("the body stands in the contract");
    let mut json = serde_json::to_value(&*schema).expect("a schema is plain data");
    let property = json
        .pointer_mut(&format!("/properties/{field}"))
        .and_then(Value::as_object_mut)
        .expect("the field stands in the contract");
    for (name, value) in limits.as_object().into_iter().flatten() {
        property.insert(name.clone(), value.clone());
    }
    *schema = serde_json::from_value(json).expect("a schema with bounds is still one");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_carries_the_bounds() {
        let document = serde_json::to_value(openapi()).unwrap();
        let amount = &document["components"]["schemas"]["CreatePayoutBody"]["properties"]["amount_minor"];
        assert_eq!(
            (amount["minimum"].as_i64(), amount["maximum"].as_i64()),
            (Some(1), Some(AMOUNT_MAX_MINOR))
        );
        let claim = &document["paths"]["/v1/payouts/{payout_id}/claim"]["post"]["requestBody"];
        assert_ne!(claim["required"], true);
    }
}
