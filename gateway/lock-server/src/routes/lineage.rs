//! The lineage of L9.

use super::LockServer;
use crate::render;
use actix_web::HttpResponse;
use actix_web::web::Data;
use gateway_kit::{ApiError, Json, OperatorName};
use http_contract::lock::{FloorBody, LineageAnswer};
use http_contract::{Code, Problem};
use lock_api::FloorOutcome;

/// L9: the identity of the store's history and its token floor.
#[utoipa::path(
    get, path = "/v1/lineage", operation_id = "get_lineage", tag = "lineage",
    responses(
        (status = 200, description = "The lineage", body = LineageAnswer),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn get_lineage(server: Data<LockServer>) -> Result<HttpResponse, ApiError> {
    let lineage = server.service.lineage().await.map_err(render::refusal)?;
    Ok(HttpResponse::Ok().json(render::lineage(&lineage)))
}

/// L9: raises the token floor, or dismisses a doubt.
#[utoipa::path(
    post, path = "/v1/lineage/floor", operation_id = "set_floor", tag = "lineage",
    params(("X-Operator" = String, Header, description = "Who decides")),
    request_body = FloorBody,
    responses(
        (status = 200, description = "Changed and recorded", body = LineageAnswer),
        (status = 400, description = "INVALID_REQUEST: a floor out of bounds too", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "CONFLICT: there is no doubt to dismiss", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn set_floor(
    server: Data<LockServer>,
    OperatorName(operator): OperatorName,
    Json(body): Json<FloorBody>,
) -> Result<HttpResponse, ApiError> {
    let why = gateway_kit::reason(&body.reason)?.to_owned();
    let (by, because) = (operator.clone(), why.clone());
    let outcome = match (body.floor, body.dismiss.unwrap_or(false)) {
        (Some(floor), false) => server.service.advance_floor(floor, operator, why).await,
        (None, true) => server.service.dismiss_regression(operator, why).await,
        (None, false) | (Some(_), true) => {
            let reason = "or dismiss: true must be given, exactly one of them";
            return Err(ApiError::invalid("floor", reason));
        }
    };
    match outcome.map_err(render::refusal)? {
        FloorOutcome::Changed(lineage) => {
            tracing::warn!(event = "floor_changed", floor = lineage.token_floor, operator = %by, reason = because);
            Ok(HttpResponse::Ok().json(render::lineage(&lineage)))
        }
        FloorOutcome::OutOfBounds { lowest, highest } => Err(ApiError::invalid(
            "floor",
            format!("must be between {lowest} and {highest}"),
        )),
        FloorOutcome::NothingToDismiss => Err(ApiError::new(
            Code::Conflict,
            "the store is not in doubt; nothing was changed",
        )),
    }
}
