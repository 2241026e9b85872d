//! The audit trail of L7 and L9.

use super::{LockServer, PageParams};
use crate::bounds::limit;
use crate::render;
use actix_web::HttpResponse;
use actix_web::web::Data;
use gateway_kit::{ApiError, Key, Query, page_in_parts};
use http_contract::lock::{AuditRow, SealRow};
use http_contract::{Page, Problem};
use lock_api::{EventQuery, LockEvent, LockKey, Seal};
use serde::Deserialize;
use utoipa::IntoParams;

/// A page of the event log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AfterParams {
    /// Only what comes after this event; 0 for all.
    #[param(minimum = 0)]
    pub(crate) after: Option<u64>,
    /// How many items, 1–1000; 100 where it is missing.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<u32>,
    /// The `next_cursor` of the page before, which here is its last event.
    pub(crate) cursor: Option<String>,
}

impl AfterParams {
    fn after(&self) -> Result<u64, ApiError> {
        Ok(self.after.unwrap_or(0).max(seq(self.cursor.as_deref())?))
    }
}

/// A cursor of the event log is a `seq`.
fn seq(cursor: Option<&str>) -> Result<u64, ApiError> {
    // The store counts in signed numbers of 64 bits.
    cursor.map_or(Ok(0), |text| {
        text.parse::<u64>()
            .ok()
            .filter(|seq| i64::try_from(*seq).is_ok())
            .ok_or_else(|| ApiError::invalid("cursor", "must be one that this list answered"))
    })
}

/// What lies after the last event is nothing, however far.
const SEQ_MAX: u64 = i64::MAX as u64;

async fn events(server: &LockServer, key: Option<LockKey>, after: u64, limit: u32) -> Result<HttpResponse, ApiError> {
    let page = page_in_parts(
        limit,
        |event: &LockEvent| event.seq.to_string(),
        render::event,
        async |last, count| {
            let query = EventQuery {
                key: key.clone(),
                after: last.map_or(after, |event| event.seq).min(SEQ_MAX),
                limit: count,
            };
            server.service.events(query).await.map_err(render::refusal)
        },
    )
    .await?;
    Ok(HttpResponse::Ok().json(page))
}

/// L7: what happened to a key.
#[utoipa::path(
    get, path = "/v1/locks/{key}/history", operation_id = "lock_history", tag = "locks",
    params(("key" = String, Path, description = "The key, percent-encoded"), PageParams),
    responses(
        (status = 200, description = "A page of the key's events; empty for an unknown key", body = Page<AuditRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn lock_history(
    server: Data<LockServer>,
    Key(key): Key,
    Query(page): Query<PageParams>,
) -> Result<HttpResponse, ApiError> {
    events(&server, Some(key), seq(page.cursor.as_deref())?, limit(page.limit)?).await
}

/// L9: everything that happened.
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "audit", tag = "audit",
    params(AfterParams),
    responses(
        (status = 200, description = "A page of events in order", body = Page<AuditRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn audit(server: Data<LockServer>, Query(page): Query<AfterParams>) -> Result<HttpResponse, ApiError> {
    events(&server, None, page.after()?, limit(page.limit)?).await
}

/// L9: the tamper evidence over the events.
#[utoipa::path(
    get, path = "/v1/audit/seals", operation_id = "audit_seals", tag = "audit",
    params(AfterParams),
    responses(
        (status = 200, description = "A page of seals of segments that begin after an event", body = Page<SealRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn audit_seals(
    server: Data<LockServer>,
    Query(page): Query<AfterParams>,
) -> Result<HttpResponse, ApiError> {
    let (after, limit) = (page.after()?.min(SEQ_MAX), limit(page.limit)?);
    let page = page_in_parts(
        limit,
        |seal: &Seal| seal.first_seq.to_string(),
        render::seal,
        async |last, count| {
            let after = last.map_or(after, |seal| seal.first_seq);
            server.service.seals(after, count).await.map_err(render::refusal)
        },
    )
    .await?;
    Ok(HttpResponse::Ok().json(page))
}
