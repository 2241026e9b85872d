//! P1 and P10.

use super::{PaymentResource, operator};
use crate::{bounds, render};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use gateway_kit::{ActorName, ApiError, Id, IdempotencyKey, Json, Query, Token};
use http_contract::payment::{AccountAnswer, CreditBody, FenceAnswer, OpenAccountBody};
use http_contract::{Page, Problem};
use payment_store::{FenceOutcome, NewAccount, NewCredit, RaiseFence};
use serde::Deserialize;
use utoipa::IntoParams;

/// P1: opens an account.
#[utoipa::path(
    post, path = "/v1/accounts", operation_id = "open_account", tag = "accounts",
    request_body = OpenAccountBody,
    responses(
        (status = 201, description = "Opened", body = AccountAnswer),
        (status = 200, description = "It was there already, with the same contents", body = AccountAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "CONFLICT: it has other contents", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn open_account(
    server: Data<PaymentResource>,
    ActorName(actor): ActorName,
    Json(body): Json<OpenAccountBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::open_account(&body)?;
    let new = NewAccount {
        account_id: body.account_id,
        currency: body.currency,
        opening_balance_minor: body.opening_balance_minor,
        actor,
    };
    let outcome = server.payments.store().open_account(new, server.within).await?;
    render::created(outcome, false, render::account)
}

/// A page of a list in order of account ids.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountsParams {
    /// How many items, 1–1000; 100 where it is missing.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[param(
        pattern = "^([A-Za-z0-9_:-][A-Za-z0-9._:-]{0,63}|[.][A-Za-z0-9_:-][A-Za-z0-9._:-]{0,62}|[.][.][A-Za-z0-9._:-]{1,62})$"
    )]
    cursor: Option<String>,
}

/// P1: accounts.
#[utoipa::path(
    get, path = "/v1/accounts", operation_id = "list_accounts", tag = "accounts",
    params(AccountsParams),
    responses(
        (status = 200, description = "A page of accounts in order of their ids", body = Page<AccountAnswer>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list_accounts(
    server: Data<PaymentResource>,
    Query(query): Query<AccountsParams>,
) -> Result<HttpResponse, ApiError> {
    let limit = bounds::limit(query.limit)?;
    if let Some(cursor) = &query.cursor {
        bounds::account_id(cursor).map_err(|_| ApiError::invalid("cursor", "must be one that this list answered"))?;
    }
    let accounts = server
        .payments
        .store()
        .accounts(query.cursor, limit + 1, server.within)
        .await?;
    Ok(HttpResponse::Ok().json(render::page(
        accounts,
        limit,
        |account| account.account_id.clone(),
        render::account,
    )))
}

/// P1: one account.
#[utoipa::path(
    get, path = "/v1/accounts/{account_id}", operation_id = "get_account", tag = "accounts",
    params(("account_id" = String, Path, description = "The account")),
    responses(
        (status = 200, description = "The account with its holds", body = AccountAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "ACCOUNT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn get_account(server: Data<PaymentResource>, Id(account_id): Id) -> Result<HttpResponse, ApiError> {
    match server.payments.store().account(account_id, server.within).await? {
        Some(account) => Ok(HttpResponse::Ok().json(render::account(account))),
        None => Err(render::account_not_found()),
    }
}

/// P1: adds money from outside.
#[utoipa::path(
    post, path = "/v1/accounts/{account_id}/credit", operation_id = "credit_account", tag = "accounts",
    params(
        ("account_id" = String, Path, description = "The account"),
        ("X-Idempotency-Key" = String, Header, description = "Makes a repeated request recognisable", min_length = 1, max_length = 255),
    ),
    request_body = CreditBody,
    responses(
        (status = 201, description = "Credited", body = AccountAnswer),
        (status = 200, description = "Credited before under this key; Idempotent-Replayed: true", body = AccountAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "ACCOUNT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn credit_account(
    server: Data<PaymentResource>,
    Id(account_id): Id,
    key: IdempotencyKey,
    ActorName(actor): ActorName,
    Json(body): Json<CreditBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::credit(&body)?;
    let new = NewCredit {
        idempotency_key: bounds::key(key),
        account_id,
        amount_minor: body.amount_minor,
        reference: body.reference,
        actor,
    };
    let outcome = server.payments.store().credit(new, server.within).await?;
    render::created(outcome, true, render::account)
}

/// P10: raises the account's mark to just below the token, so that no lower token writes there from now on.
#[utoipa::path(
    post, path = "/v1/accounts/{account_id}/fence", operation_id = "fence_account", tag = "accounts",
    params(
        ("account_id" = String, Path, description = "The account"),
        ("X-Fencing-Token" = u64, Header, description = "The token below which nothing may write any more"),
    ),
    responses(
        (status = 200, description = "The mark is at least the token less one", body = FenceAnswer),
        (status = 400, description = "FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID, INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "ACCOUNT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "FENCED_OUT with reason, presented_token, highest_token", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn fence_account(
    server: Data<PaymentResource>,
    request: HttpRequest,
    Id(account_id): Id,
    Token(token): Token,
    ActorName(actor): ActorName,
) -> Result<HttpResponse, ApiError> {
    let request = RaiseFence {
        account_id: account_id.clone(),
        token,
        actor: operator(&request)?.or(actor),
    };
    let outcome = server.payments.store().raise_fence(request, server.within).await?;
    server.payments.note_fence(&outcome);
    match outcome {
        FenceOutcome::Raised { fence } => Ok(HttpResponse::Ok().json(FenceAnswer { account_id, fence })),
        FenceOutcome::FencedOut { reason, highest } => Err(render::fenced_out(reason, token.get(), highest)),
        FenceOutcome::AccountNotFound => Err(render::account_not_found()),
    }
}
