//! P4–P9: what is done to a payout. Each answers the payout as it is recorded now; a step that this very token had done
//! before says so in `Idempotent-Replayed`.

use super::{PaymentResource, operator};
use crate::{bounds, render};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use gateway_kit::{ActorName, ApiError, Id, Json, JsonOrDefault, OperatorName, Token, Trace};
use http_contract::Problem;
use http_contract::header;
use http_contract::payment::{CancelBody, ClaimBody, PayoutAnswer, PostBody, ReasonBody, Resolution, ResolveBody};
use payment_store::{ByHand, Command, Verb};

async fn apply(server: &PaymentResource, command: Command, trace: &Trace) -> Result<HttpResponse, ApiError> {
    let outcome = server
        .payments
        .apply(command, server.within, &trace.0)
        .await
        .map_err(render::step_error)?;
    render::step(outcome)
}

/// P4: claims, which holds the money.
#[utoipa::path(
    post, path = "/v1/payouts/{payout_id}/claim", operation_id = "claim_payout", tag = "payouts",
    params(
        ("payout_id" = String, Path, description = "The payout"),
        ("X-Fencing-Token" = u64, Header, description = "The grant's token"),
        ("X-Actor" = Option<String>, Header, description = "The session's owner, recorded with the step", min_length = 1, max_length = 128),
    ),
    request_body = ClaimBody,
    responses(
        (status = 200, description = "The payout as it is recorded now", body = PayoutAnswer),
        (status = 400, description = "FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID, INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "FENCED_OUT with reason, presented_token, highest_token; ILLEGAL_TRANSITION with from, to, allowed; VERSION_CONFLICT", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "INSUFFICIENT_FUNDS", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn claim_payout(
    server: Data<PaymentResource>,
    Id(payout_id): Id,
    Token(token): Token,
    ActorName(actor): ActorName,
    trace: Trace,
    JsonOrDefault(body): JsonOrDefault<ClaimBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::payout_id(&payout_id)?;
    bounds::version(body.expected_version)?;
    let verb = Verb::Claim {
        token,
        expected_version: body.expected_version,
    };
    apply(&server, Command { payout_id, actor, verb }, &trace).await
}

/// P5: the rail paid: writes both ledger legs.
#[utoipa::path(
    post, path = "/v1/payouts/{payout_id}/post", operation_id = "post_payout", tag = "payouts",
    params(
        ("payout_id" = String, Path, description = "The payout"),
        ("X-Fencing-Token" = u64, Header, description = "The grant's token"),
        ("X-Actor" = Option<String>, Header, description = "The session's owner, recorded with the step", min_length = 1, max_length = 128),
    ),
    request_body = PostBody,
    responses(
        (status = 200, description = "The payout as it is recorded now", body = PayoutAnswer),
        (status = 400, description = "FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID, INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "FENCED_OUT with reason, presented_token, highest_token; ILLEGAL_TRANSITION with from, to, allowed; OUTCOME_EVIDENCE_MISSING", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn post_payout(
    server: Data<PaymentResource>,
    Id(payout_id): Id,
    Token(token): Token,
    ActorName(actor): ActorName,
    trace: Trace,
    Json(body): Json<PostBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::payout_id(&payout_id)?;
    bounds::line("rail_reference", &body.rail_reference)?;
    let verb = Verb::Post {
        token,
        rail_reference: body.rail_reference,
    };
    apply(&server, Command { payout_id, actor, verb }, &trace).await
}

/// P6: the rail did not pay: frees the hold.
#[utoipa::path(
    post, path = "/v1/payouts/{payout_id}/fail", operation_id = "fail_payout", tag = "payouts",
    params(
        ("payout_id" = String, Path, description = "The payout"),
        ("X-Fencing-Token" = u64, Header, description = "The grant's token"),
        ("X-Actor" = Option<String>, Header, description = "The session's owner, recorded with the step", min_length = 1, max_length = 128),
    ),
    request_body = ReasonBody,
    responses(
        (status = 200, description = "The payout as it is recorded now", body = PayoutAnswer),
        (status = 400, description = "FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID, INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "FENCED_OUT with reason, presented_token, highest_token; ILLEGAL_TRANSITION with from, to, allowed; OUTCOME_EVIDENCE_MISSING", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn fail_payout(
    server: Data<PaymentResource>,
    Id(payout_id): Id,
    Token(token): Token,
    ActorName(actor): ActorName,
    trace: Trace,
    Json(body): Json<ReasonBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::payout_id(&payout_id)?;
    bounds::line("reason", &body.reason)?;
    let verb = Verb::Fail {
        token,
        reason: body.reason,
    };
    apply(&server, Command { payout_id, actor, verb }, &trace).await
}

/// P7: it is not known whether the rail paid: the hold stays.
#[utoipa::path(
    post, path = "/v1/payouts/{payout_id}/ambiguous", operation_id = "mark_ambiguous", tag = "payouts",
    params(
        ("payout_id" = String, Path, description = "The payout"),
        ("X-Fencing-Token" = u64, Header, description = "The grant's token"),
        ("X-Actor" = Option<String>, Header, description = "The session's owner, recorded with the step", min_length = 1, max_length = 128),
    ),
    request_body = ReasonBody,
    responses(
        (status = 200, description = "The payout as it is recorded now", body = PayoutAnswer),
        (status = 400, description = "FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID, INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "FENCED_OUT with reason, presented_token, highest_token; ILLEGAL_TRANSITION with from, to, allowed; OUTCOME_EVIDENCE_MISSING", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn mark_ambiguous(
    server: Data<PaymentResource>,
    Id(payout_id): Id,
    Token(token): Token,
    ActorName(actor): ActorName,
    trace: Trace,
    Json(body): Json<ReasonBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::payout_id(&payout_id)?;
    bounds::line("reason", &body.reason)?;
    let verb = Verb::Ambiguous {
        token,
        reason: body.reason,
    };
    apply(&server, Command { payout_id, actor, verb }, &trace).await
}

/// P8: settles what was ambiguous, by the evidence or by hand.
#[utoipa::path(
    post, path = "/v1/payouts/{payout_id}/resolve", operation_id = "resolve_payout", tag = "payouts",
    params(
        ("payout_id" = String, Path, description = "The payout"),
        ("X-Fencing-Token" = u64, Header, description = "The grant's token"),
        ("X-Actor" = Option<String>, Header, description = "The session's owner, recorded with the step", min_length = 1, max_length = 128),
        ("X-Operator" = Option<String>, Header, description = "Who settles by hand; then reason is required", min_length = 1, max_length = 128),
    ),
    request_body = ResolveBody,
    responses(
        (status = 200, description = "The payout as it is recorded now", body = PayoutAnswer),
        (status = 400, description = "FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID, INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "FENCED_OUT with reason, presented_token, highest_token; ILLEGAL_TRANSITION with from, to, allowed; OUTCOME_EVIDENCE_MISSING", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn resolve_payout(
    server: Data<PaymentResource>,
    request: HttpRequest,
    Id(payout_id): Id,
    Token(token): Token,
    ActorName(actor): ActorName,
    trace: Trace,
    Json(body): Json<ResolveBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::payout_id(&payout_id)?;
    if let Some(reference) = &body.rail_reference {
        bounds::line("rail_reference", reference)?;
        if body.outcome == Resolution::Failed {
            return Err(ApiError::invalid("rail_reference", "belongs to a payout that was paid"));
        }
    }
    let reason = bounds::reason(body.reason.as_deref())?;
    let by_hand = match (operator(&request)?, reason) {
        (None, None) => None,
        (Some(operator), Some(reason)) => Some(ByHand { operator, reason }),
        (Some(_), None) => return Err(ApiError::invalid("reason", "is required by hand: 8 to 500 characters")),
        (None, Some(_)) => return Err(ApiError::invalid(header::OPERATOR, "is required with a reason")),
    };
    let outcome = match body.outcome {
        Resolution::Posted => payment_store::Resolution::Posted,
        Resolution::Failed => payment_store::Resolution::Failed,
    };
    let verb = Verb::Resolve {
        token,
        outcome,
        rail_reference: body.rail_reference,
        by_hand,
    };
    apply(&server, Command { payout_id, actor, verb }, &trace).await
}

/// P9: cancels a payout that nobody has claimed.
#[utoipa::path(
    post, path = "/v1/payouts/{payout_id}/cancel", operation_id = "cancel_payout", tag = "payouts",
    params(
        ("payout_id" = String, Path, description = "The payout"),
        ("X-Operator" = String, Header, description = "Who decides", min_length = 1, max_length = 128),
    ),
    request_body = CancelBody,
    responses(
        (status = 200, description = "The payout as it is recorded now", body = PayoutAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "ILLEGAL_TRANSITION with from, to, allowed", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn cancel_payout(
    server: Data<PaymentResource>,
    Id(payout_id): Id,
    OperatorName(operator): OperatorName,
    trace: Trace,
    JsonOrDefault(body): JsonOrDefault<CancelBody>,
) -> Result<HttpResponse, ApiError> {
    bounds::payout_id(&payout_id)?;
    let verb = Verb::Cancel {
        operator: operator.as_str().to_owned(),
        reason: bounds::reason(body.reason.as_deref())?,
    };
    let command = Command {
        payout_id,
        actor: None,
        verb,
    };
    apply(&server, command, &trace).await
}
