//! R5, R6 and the account fence of R7.

use super::fenced_out;
use crate::{State, validate, view};
use actix_web::web::{Data, Json};
use gateway_kit::{ActorName, ApiError, Id, JsonOrDefault, Token};
use host_kit::fault_point;
use http_contract::rail::{HighWaterAnswer, SubmissionFenceAnswer, SubmissionFenceBody};
use http_contract::{Code, Problem};
use rail_store::{AccountFence, FenceOutcome, FenceRequest};
use std::time::Duration;

/// An account's mark at the rail; 0 before its first submission.
#[utoipa::path(
    get,
    path = "/v1/rail/high-water/{account_id}",
    operation_id = "get_high_water",
    tag = "rail",
    params(("account_id" = String, Path, description = "The account")),
    responses(
        (status = 200, description = "The mark", body = HighWaterAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem)
    )
)]
pub(crate) async fn high_water(state: Data<State>, id: Id) -> Result<Json<HighWaterAnswer>, ApiError> {
    validate::account_id(&id.0)?;
    let mark = state.store.high_water(id.0.clone(), state.config.store_timeout).await?;
    Ok(Json(view::high_water(id.0, mark)))
}

/// Raises the account's mark to one below the token and reads the payout's submission in one transaction: from then on no
/// older holder's late submit can slip in.
#[utoipa::path(
    post,
    path = "/v1/rail/submissions/{payout_id}/fence",
    operation_id = "fence_submission",
    tag = "rail",
    request_body(content = Option<SubmissionFenceBody>, description = "May be left out"),
    params(
        ("payout_id" = String, Path, description = "The payout"),
        ("X-Fencing-Token" = u64, Header, description = "The token of the account's lock"),
        ("X-Actor" = Option<String>, Header, description = "The owner of the session on whose behalf it is done")
    ),
    responses(
        (status = 200, description = "The payout's submission, null where there is none", body = SubmissionFenceAnswer),
        (status = 400, description = "INVALID_REQUEST, FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID", body = Problem),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem),
        (status = 409, description = "FENCED_OUT", body = Problem)
    )
)]
pub(crate) async fn fence_submission(
    state: Data<State>,
    id: Id,
    token: Token,
    actor: ActorName,
    body: JsonOrDefault<SubmissionFenceBody>,
) -> Result<Json<SubmissionFenceAnswer>, ApiError> {
    validate::payout_id(&id.0)?;
    let request = FenceRequest {
        submission_id: state.host.ids.prefixed("submission"),
        payout_id: id.0,
        token: token.0,
        forbid: body.0.forbid.unwrap_or(false),
        actor: actor.0,
    };
    fault_point!(state.host.faults, "rail_proxy.before_fence");
    let outcome = state
        .store
        .fence_submission(request, state.config.store_timeout)
        .await?;
    fault_point!(state.host.faults, "rail_proxy.after_fence");
    match outcome {
        FenceOutcome::Fenced {
            submission,
            highest_token,
        } => Ok(Json(SubmissionFenceAnswer {
            submission: submission.map(|row| view::submission(*row)),
            highest_token,
        })),
        FenceOutcome::FencedOut(refused) => {
            state.metrics.fenced_out();
            Err(fenced_out(refused))
        }
        FenceOutcome::PayoutNotFound => Err(ApiError::new(Code::PayoutNotFound, "there is no such payout")),
        FenceOutcome::PayoutsUnknown => {
            let detail = "the payouts cannot be read yet; nothing was done";
            Err(ApiError::new(Code::BackendUnavailable, detail).retry_after(Duration::from_secs(1)))
        }
    }
}

/// Raises an account's mark to one below the token: after a force-revoke the revoked holder is refused from then on.
#[utoipa::path(
    post,
    path = "/v1/rail/accounts/{account_id}/fence",
    operation_id = "fence_account",
    tag = "rail",
    params(
        ("account_id" = String, Path, description = "The account"),
        ("X-Fencing-Token" = u64, Header, description = "A token above the ones to be refused")
    ),
    responses(
        (status = 200, description = "The mark is at least one below the token", body = HighWaterAnswer),
        (status = 400, description = "INVALID_REQUEST, FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID", body = Problem),
        (status = 409, description = "FENCED_OUT", body = Problem)
    )
)]
pub(crate) async fn fence_account(state: Data<State>, id: Id, token: Token) -> Result<Json<HighWaterAnswer>, ApiError> {
    validate::account_id(&id.0)?;
    let within = state.config.store_timeout;
    fault_point!(state.host.faults, "rail_proxy.before_account_fence");
    let outcome = state.store.fence_account(id.0.clone(), token.0, within).await?;
    fault_point!(state.host.faults, "rail_proxy.after_account_fence");
    match outcome {
        AccountFence::Fenced(mark) => Ok(Json(view::high_water(id.0, mark))),
        AccountFence::FencedOut(refused) => {
            state.metrics.fenced_out();
            Err(fenced_out(refused))
        }
    }
}
