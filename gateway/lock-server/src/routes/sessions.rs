//! L1–L3 and the sessions of L9.

use super::LockServer;
use crate::bounds::{configured, cursor, cursor_of, limit, metadata, millis, session_id, token};
use crate::render;
use actix_web::HttpResponse;
use actix_web::web::Data;
use gateway_kit::{ApiError, Caller, Id, Json, JsonOrDefault, Query, Trace, page_in_parts};
use http_contract::lock::{
    CloseSessionAnswer, HeartbeatAnswer, HeartbeatRequest, OpenSessionAnswer, OpenSessionRequest, SessionAnswer,
};
use http_contract::{Page, Problem};
use lock_api::{Heartbeat, HeartbeatOutcome, OpenSession, Owner, SessionId, SessionView};
use serde::Deserialize;
use utoipa::IntoParams;

/// The name of a session's owner: people tell owners apart by what they see (case S9). Names recorded before this rule stay.
fn owner(name: String) -> Result<Owner, ApiError> {
    let owner = Owner::new(name)?;
    gateway_kit::visible("owner", owner.as_str())?;
    Ok(owner)
}

/// L1: opens a session.
#[utoipa::path(
    post, path = "/v1/sessions", operation_id = "open_session", tag = "sessions",
    request_body = OpenSessionRequest,
    responses(
        (status = 201, description = "Opened", body = OpenSessionAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn open_session(
    server: Data<LockServer>,
    trace: Trace,
    caller: Caller,
    Json(body): Json<OpenSessionRequest>,
) -> Result<HttpResponse, ApiError> {
    let ttl = server.bounds.ttl(body.ttl_ms)?;
    let request = OpenSession {
        session_id: session_id(server.host.ids.ulid())?,
        owner: owner(body.owner)?,
        ttl: ttl.unwrap_or_else(|| configured(server.bounds.session_ttl)),
        metadata: metadata(body.metadata)?,
    };
    let view = server
        .service
        .open_for(Some(caller.address()), request, &trace.0)
        .await
        .map_err(render::refusal)?;
    tracing::info!(event = "session_opened", session_id = %view.session_id, owner = %view.owner, ttl_ms = view.ttl.as_millis());
    Ok(HttpResponse::Created().json(OpenSessionAnswer {
        session_id: view.session_id.as_str().to_owned(),
        owner: view.owner.as_str().to_owned(),
        ttl_ms: view.ttl.as_millis(),
        heartbeat_interval_ms: millis(server.bounds.heartbeat_interval(view.ttl)),
        expires_in_ms: millis(view.expires_in),
    }))
}

/// L2: keeps a session alive, and answers what it still holds.
#[utoipa::path(
    post, path = "/v1/sessions/{id}/heartbeat", operation_id = "heartbeat", tag = "sessions",
    params(("id" = String, Path, description = "The session", max_length = 64)),
    request_body = Option<HeartbeatRequest>,
    responses(
        (status = 200, description = "The session lives on", body = HeartbeatAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "SESSION_NOT_FOUND: treat every grant as lost", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn heartbeat(
    server: Data<LockServer>,
    trace: Trace,
    Id(id): Id,
    JsonOrDefault(body): JsonOrDefault<HeartbeatRequest>,
) -> Result<HttpResponse, ApiError> {
    let request = Heartbeat {
        session_id: session_id(id)?,
        witness: body
            .witness_token
            .map(|value| token("witness_token", value))
            .transpose()?,
    };
    let id = request.session_id.clone();
    match server
        .service
        .heartbeat(request, &trace.0)
        .await
        .map_err(render::refusal)?
    {
        HeartbeatOutcome::Alive { expires_in, held } => Ok(HttpResponse::Ok().json(HeartbeatAnswer {
            session_id: id.as_str().to_owned(),
            expires_in_ms: millis(expires_in),
            held: held.iter().map(render::held).collect(),
        })),
        HeartbeatOutcome::SessionNotFound => Err(render::session_not_found()),
        HeartbeatOutcome::WitnessRefused { highest_believed } => Err(render::witness_refused(highest_believed)),
    }
}

/// L3: closes a session and frees what it holds.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", operation_id = "close_session", tag = "sessions",
    params(("id" = String, Path, description = "The session", max_length = 64)),
    responses(
        (status = 200, description = "Closed, now or before", body = CloseSessionAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn close_session(
    server: Data<LockServer>,
    trace: Trace,
    Id(id): Id,
) -> Result<HttpResponse, ApiError> {
    let id = session_id(id)?;
    let released = server.service.close(id, &trace.0).await.map_err(render::refusal)?;
    Ok(HttpResponse::Ok().json(CloseSessionAnswer {
        released: released.iter().map(render::freed).collect(),
    }))
}

/// L9: one live session.
#[utoipa::path(
    get, path = "/v1/sessions/{id}", operation_id = "get_session", tag = "sessions",
    params(("id" = String, Path, description = "The session", max_length = 64)),
    responses(
        (status = 200, description = "The session and what it holds", body = SessionAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "SESSION_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn get_session(server: Data<LockServer>, Id(id): Id) -> Result<HttpResponse, ApiError> {
    let view = server.service.session(session_id(id)?).await.map_err(render::refusal)?;
    let view = view.ok_or_else(render::session_not_found)?;
    Ok(HttpResponse::Ok().json(render::session(&view)))
}

/// A page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageParams {
    /// How many items, 1–1000; 100 where it is missing.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<u32>,
    /// Where the page begins: the `next_cursor` of the page before.
    pub(crate) cursor: Option<String>,
}

/// L9: live sessions.
#[utoipa::path(
    get, path = "/v1/sessions", operation_id = "list_sessions", tag = "sessions",
    params(PageParams),
    responses(
        (status = 200, description = "A page of live sessions", body = Page<SessionAnswer>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list_sessions(
    server: Data<LockServer>,
    Query(page): Query<PageParams>,
) -> Result<HttpResponse, ApiError> {
    let limit = limit(page.limit)?;
    let bad = || ApiError::invalid("cursor", "must be one that this list answered");
    let after = cursor(page.cursor.as_deref())?
        .map(|id| SessionId::new(id).map_err(|_| bad()))
        .transpose()?;
    let page = page_in_parts(
        limit,
        |view: &SessionView| cursor_of(view.session_id.as_str()),
        render::session,
        async |last, count| {
            let after = last.map(|view| view.session_id.clone()).or_else(|| after.clone());
            server.service.sessions(after, count).await.map_err(render::refusal)
        },
    )
    .await?;
    Ok(HttpResponse::Ok().json(page))
}
