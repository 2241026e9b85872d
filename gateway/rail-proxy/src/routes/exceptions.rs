//! The exceptions of R7, and R8.

use super::{REPLAYED, TRUE, page, page_after, page_limit};
use crate::{State, validate, view};
use actix_web::HttpResponse;
use actix_web::web::Data;
use gateway_kit::{ApiError, Id, Json, OperatorName, Query};
use http_contract::rail::{CloseExceptionBody, ExceptionRow};
use http_contract::{Code, Page, Problem};
use rail_store::{CloseException, CloseOutcome, Exception, ExceptionFilter};
use serde::Deserialize;

/// The parameters of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    open: Option<bool>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// What waits for a human, and what did.
#[utoipa::path(
    get,
    path = "/v1/rail/exceptions",
    operation_id = "list_exceptions",
    tag = "rail",
    params(
        ("open" = Option<bool>, Query, description = "true: only those that nobody has closed; false: only the closed ones"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "How many, by default 100"),
        ("cursor" = Option<String>, Query, description = "next_cursor of the page before")
    ),
    responses(
        (status = 200, description = "A page", body = Page<ExceptionRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem)
    )
)]
pub(crate) async fn list(
    state: Data<State>,
    Query(params): Query<ListParams>,
) -> Result<actix_web::web::Json<Page<ExceptionRow>>, ApiError> {
    let (limit, after) = (page_limit(params.limit)?, page_after(params.cursor.as_deref())?);
    let filter = match params.open {
        None => ExceptionFilter::All,
        Some(true) => ExceptionFilter::Open,
        Some(false) => ExceptionFilter::Closed,
    };
    let within = state.config.store_timeout;
    // Looked over first, so that what two files missed together is not missing here.
    state.store.survey(within).await?;
    let rows = state.store.exceptions(filter, after, limit + 1, within).await?;
    Ok(actix_web::web::Json(page(rows, limit, |row| row.seq, view::exception)))
}

fn seq(id: &Id) -> Result<u64, ApiError> {
    validate::exception_id(&id.0)
}

fn not_found() -> ApiError {
    ApiError::new(Code::ExceptionNotFound, "no exception has this id")
}

/// One exception.
#[utoipa::path(
    get,
    path = "/v1/rail/exceptions/{exception_id}",
    operation_id = "get_exception",
    tag = "rail",
    params(("exception_id" = u64, Path, minimum = 1, description = "The exception")),
    responses(
        (status = 200, description = "The exception", body = ExceptionRow),
        (status = 400, description = "INVALID_REQUEST", body = Problem),
        (status = 404, description = "EXCEPTION_NOT_FOUND", body = Problem)
    )
)]
pub(crate) async fn read(state: Data<State>, id: Id) -> Result<actix_web::web::Json<ExceptionRow>, ApiError> {
    let row = state.store.exception(seq(&id)?, state.config.store_timeout).await?;
    row.map(|row| actix_web::web::Json(view::exception(row)))
        .ok_or_else(not_found)
}

/// Closes an exception, once: an operator has seen it and says what was done. The payout and its submission stay as they
/// are.
#[utoipa::path(
    post,
    path = "/v1/rail/exceptions/{exception_id}/close",
    operation_id = "close_exception",
    tag = "rail",
    request_body = CloseExceptionBody,
    params(
        ("exception_id" = u64, Path, minimum = 1, description = "The exception"),
        ("X-Operator" = String, Header, description = "Who closes it", min_length = 1, max_length = 128)
    ),
    responses(
        (status = 200, description = "Closed; or closed before by this operator for this reason, replayed", body = ExceptionRow),
        (status = 400, description = "INVALID_REQUEST", body = Problem),
        (status = 404, description = "EXCEPTION_NOT_FOUND", body = Problem),
        (status = 409, description = "CONFLICT with closed_by, closed_at, closed_reason: closed before", body = Problem)
    )
)]
pub(crate) async fn close(
    state: Data<State>,
    id: Id,
    OperatorName(operator): OperatorName,
    body: Json<CloseExceptionBody>,
) -> Result<HttpResponse, ApiError> {
    let Json(body) = body;
    let close = CloseException {
        seq: seq(&id)?,
        operator: operator.as_str().to_owned(),
        reason: gateway_kit::reason(&body.reason)?.to_owned(),
    };
    let outcome = state.store.close_exception(close, state.config.store_timeout).await?;
    match outcome {
        CloseOutcome::Closed(row) => {
            tracing::warn!(
                event = "exception_closed",
                exception_id = row.seq,
                payout_id = row.payout_id,
                kind = row.kind,
                operator = row.closed_by,
                reason = row.closed_reason
            );
            Ok(HttpResponse::Ok().json(view::exception(*row)))
        }
        CloseOutcome::Replay(row) => Ok(HttpResponse::Ok()
            .insert_header((REPLAYED, TRUE))
            .json(view::exception(*row))),
        CloseOutcome::ClosedBefore(row) => Err(closed_before(*row)),
        CloseOutcome::NotFound => Err(not_found()),
    }
}

fn closed_before(row: Exception) -> ApiError {
    let row = view::exception(row);
    let by = row.closed_by.as_deref().unwrap_or("somebody");
    let detail = match (&row.closed_at, &row.closed_reason) {
        (Some(at), Some(reason)) => format!("{by} closed this exception at {at}: {reason}"),
        _ => format!("{by} closed this exception before"),
    };
    ApiError::new(Code::Conflict, detail)
        .field("closed_by", row.closed_by)
        .field("closed_at", row.closed_at)
        .field("closed_reason", row.closed_reason)
}
