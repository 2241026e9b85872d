//! R1–R8 (C3.5).

mod acks;
mod exceptions;
mod marks;
mod submissions;
mod submit;

use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::web::{self, ServiceConfig};
use gateway_kit::ApiError;
use http_contract::{Code, PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, Page, Problem, rail};
use rail_store::FencedOut;
use serde::Serialize;
use utoipa::OpenApi;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const TRUE: HeaderValue = HeaderValue::from_static("true");

pub(crate) fn configure(config: &mut ServiceConfig) {
    config
        .route("/v1/rail/submissions", web::post().to(submit::submit))
        .route("/v1/rail/submissions", web::get().to(submissions::list))
        .route("/v1/rail/submissions/{payout_id}", web::get().to(submissions::read))
        .route(
            "/v1/rail/submissions/{payout_id}/lookup",
            web::post().to(submissions::look_up),
        )
        .route(
            "/v1/rail/submissions/{payout_id}/lookups",
            web::get().to(submissions::lookups),
        )
        .route(
            "/v1/rail/submissions/{payout_id}/fence",
            web::post().to(marks::fence_submission),
        )
        .route("/v1/rail/acks", web::post().to(acks::ack))
        .route("/v1/rail/high-water/{account_id}", web::get().to(marks::high_water))
        .route(
            "/v1/rail/accounts/{account_id}/fence",
            web::post().to(marks::fence_account),
        )
        .route("/v1/rail/exceptions", web::get().to(exceptions::list))
        .route("/v1/rail/exceptions/{exception_id}", web::get().to(exceptions::read))
        .route(
            "/v1/rail/exceptions/{exception_id}/close",
            web::post().to(exceptions::close),
        );
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "dlock rail-proxy",
        description = "Fence point (c): submissions to a rail that must not be sent twice."
    ),
    paths(
        submit::submit,
        submissions::list,
        submissions::read,
        submissions::look_up,
        submissions::lookups,
        marks::fence_submission,
        acks::ack,
        marks::high_water,
        marks::fence_account,
        exceptions::list,
        exceptions::read,
        exceptions::close
    ),
    components(schemas(
        Problem,
        Code,
        submissions::OutcomeParam,
        rail::SubmitBody,
        rail::SubmitAnswer,
        rail::SubmissionRow,
        rail::LookupAnswer,
        rail::LookupRow,
        rail::AckBody,
        rail::AckAnswer,
        rail::HighWaterAnswer,
        rail::SubmissionFenceBody,
        rail::SubmissionFenceAnswer,
        rail::ExceptionRow,
        rail::CloseExceptionBody
    ))
)]
struct Document;

/// The OpenAPI document of R1–R8.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// The fence's refusal.
pub(crate) fn fenced_out(refused: FencedOut) -> ApiError {
    let detail = match refused.reason {
        rail_store::FenceReason::Stale => format!(
            "token {} is stale: the account's mark stands at {}",
            refused.presented, refused.highest_token
        ),
        rail_store::FenceReason::TokenSpent => {
            format!("token {} has had its one submission", refused.presented)
        }
    };
    ApiError::new(Code::FencedOut, detail)
        .field("reason", refused.reason.as_str())
        .field("presented_token", refused.presented.get())
        .field("highest_token", refused.highest_token)
}

/// The size of a page.
fn page_limit(limit: Option<u32>) -> Result<u32, ApiError> {
    match limit.unwrap_or(PAGE_LIMIT_DEFAULT) {
        limit if (1..=PAGE_LIMIT_MAX).contains(&limit) => Ok(limit),
        _ => Err(ApiError::invalid(
            "limit",
            format!("must be between 1 and {PAGE_LIMIT_MAX}"),
        )),
    }
}

/// Where a page begins. A cursor is the place of the last row seen; to callers it is opaque.
fn page_after(cursor: Option<&str>) -> Result<u64, ApiError> {
    cursor.map_or(Ok(0), |cursor| {
        cursor
            .strip_prefix('c')
            .and_then(|place| u64::from_str_radix(place, 16).ok())
            .ok_or_else(|| ApiError::invalid("cursor", "must be a next_cursor of this list"))
    })
}

/// A page out of one row more than was asked for.
fn page<R, T: Serialize>(rows: Vec<R>, limit: u32, place: impl Fn(&R) -> u64, show: impl Fn(R) -> T) -> Page<T> {
    gateway_kit::page(rows, limit, |row| format!("c{:x}", place(row)), show)
}
