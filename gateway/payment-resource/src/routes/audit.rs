//! P9: the audit trail.

use super::PaymentResource;
use crate::{bounds, render};
use actix_web::HttpResponse;
use actix_web::web::Data;
use gateway_kit::{ApiError, Query};
use http_contract::payment::PaymentAuditRow;
use http_contract::{Page, Problem};
use serde::Deserialize;
use utoipa::IntoParams;

/// A page of the trail.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditParams {
    /// Only what comes after this fact; 0 for all.
    #[param(minimum = 0)]
    after: Option<u64>,
    /// How many items, 1–1000; 100 where it is missing.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[param(pattern = "^[0-9]{1,15}$")]
    cursor: Option<String>,
}

/// P9: every fact, in one order (FR-30).
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "audit", tag = "audit",
    params(AuditParams),
    responses(
        (status = 200, description = "A page of facts in their order", body = Page<PaymentAuditRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn audit(
    server: Data<PaymentResource>,
    Query(query): Query<AuditParams>,
) -> Result<HttpResponse, ApiError> {
    let limit = bounds::limit(query.limit)?;
    let after = query.after.unwrap_or(0).max(bounds::place(query.cursor.as_deref())?);
    // What lies after the last fact is nothing, however far.
    let facts = server.payments.store().audit(after, limit + 1, server.within).await?;
    let page = render::page(facts, limit, |fact| fact.seq.to_string(), render::audit);
    Ok(HttpResponse::Ok().json(page))
}
