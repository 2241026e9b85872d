//! P2 and P3.

use super::PaymentResource;
use crate::{bounds, render};
use actix_web::HttpResponse;
use actix_web::web::Data;
use gateway_kit::{ActorName, ApiError, Id, IdempotencyKey, Json, Noted, Query};
use http_contract::payment::{CreatePayoutBody, PayoutAnswer, PayoutState, TransitionRow};
use http_contract::{Page, Problem};
use payment_store::{Creditor, NewPayout, PayoutQuery};
use serde::Deserialize;
use utoipa::IntoParams;

/// P2: asks for a payout.
#[utoipa::path(
    post, path = "/v1/payouts", operation_id = "create_payout", tag = "payouts",
    params(("X-Idempotency-Key" = String, Header, description = "Makes a repeated request recognisable", min_length = 1, max_length = 255)),
    request_body = CreatePayoutBody,
    responses(
        (status = 201, description = "Recorded as PENDING", body = PayoutAnswer),
        (status = 200, description = "Recorded before under this key; Idempotent-Replayed: true", body = PayoutAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "ACCOUNT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "CONFLICT: the payout_id exists under another key", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn create_payout(
    server: Data<PaymentResource>,
    key: IdempotencyKey,
    ActorName(actor): ActorName,
    noted: Noted,
    Json(body): Json<CreatePayoutBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::create_payout(&body)?;
    if let Some(payout_id) = &body.payout_id {
        noted.payout(payout_id);
    }
    let new = NewPayout {
        idempotency_key: bounds::key(key),
        chosen_id: body.payout_id,
        fresh_id: server.host.ids.ulid(),
        account_id: body.account_id,
        amount_minor: body.amount_minor,
        currency: body.currency,
        creditor: Creditor {
            name: body.creditor.name,
            account: body.creditor.account,
        },
        reference: body.reference,
        actor,
    };
    let outcome = server.payments.store().create_payout(new, server.within).await?;
    render::created(outcome, true, render::payout)
}

/// Which payouts, and which page of them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PayoutsParams {
    /// Only those in this state.
    state: Option<PayoutState>,
    /// Only those of this account.
    #[param(
        pattern = "^([A-Za-z0-9_:-][A-Za-z0-9._:-]{0,63}|[.][A-Za-z0-9_:-][A-Za-z0-9._:-]{0,62}|[.][.][A-Za-z0-9._:-]{1,62})$"
    )]
    account_id: Option<String>,
    /// How many items, 1–1000; 100 where it is missing.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[param(pattern = "^[0-9]{1,15}$")]
    cursor: Option<String>,
}

/// P3: payouts.
#[utoipa::path(
    get, path = "/v1/payouts", operation_id = "list_payouts", tag = "payouts",
    params(PayoutsParams),
    responses(
        (status = 200, description = "A page of payouts in order of their creation", body = Page<PayoutAnswer>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list_payouts(
    server: Data<PaymentResource>,
    Query(query): Query<PayoutsParams>,
) -> Result<HttpResponse, ApiError> {
    let limit = bounds::limit(query.limit)?;
    if let Some(account_id) = &query.account_id {
        bounds::account_id(account_id)?;
    }
    let asked = PayoutQuery {
        state: query.state.map(render::asked_state),
        account_id: query.account_id,
        after: bounds::place(query.cursor.as_deref())?,
        limit: limit + 1,
    };
    let payouts = server.payments.store().payouts(asked, server.within).await?;
    Ok(HttpResponse::Ok().json(render::page(
        payouts,
        limit,
        |payout| payout.seq.to_string(),
        render::payout,
    )))
}

/// P3: one payout.
#[utoipa::path(
    get, path = "/v1/payouts/{payout_id}", operation_id = "get_payout", tag = "payouts",
    params(("payout_id" = String, Path, description = "The payout")),
    responses(
        (status = 200, description = "The payout", body = PayoutAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn get_payout(server: Data<PaymentResource>, Id(payout_id): Id) -> Result<HttpResponse, ApiError> {
    bounds::payout_id(&payout_id)?;
    match server.payments.store().payout(payout_id, server.within).await? {
        Some(payout) => Ok(HttpResponse::Ok().json(render::payout(payout))),
        None => Err(render::payout_not_found()),
    }
}

/// A page of a list whose order is the order of writing.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageParams {
    /// How many items, 1–1000; 100 where it is missing.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[param(pattern = "^[0-9]{1,15}$")]
    pub(crate) cursor: Option<String>,
}

/// P3: a payout's steps.
#[utoipa::path(
    get, path = "/v1/payouts/{payout_id}/history", operation_id = "payout_history", tag = "payouts",
    params(("payout_id" = String, Path, description = "The payout"), PageParams),
    responses(
        (status = 200, description = "A page of the payout's steps in their order", body = Page<TransitionRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn payout_history(
    server: Data<PaymentResource>,
    Id(payout_id): Id,
    Query(query): Query<PageParams>,
) -> Result<HttpResponse, ApiError> {
    bounds::payout_id(&payout_id)?;
    let limit = bounds::limit(query.limit)?;
    let after = bounds::place(query.cursor.as_deref())?;
    match server
        .payments
        .store()
        .history(payout_id, after, limit + 1, server.within)
        .await?
    {
        None => Err(render::payout_not_found()),
        Some(steps) => {
            let page = render::page(steps, limit, |step| step.seq.to_string(), render::transition);
            Ok(HttpResponse::Ok().json(page))
        }
    }
}
