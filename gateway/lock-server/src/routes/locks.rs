//! L4–L8, L10 and L11.

use super::LockServer;
use crate::bounds::{Bounds, configured, cursor, cursor_of, limit, metadata, request_id, session_id, token};
use crate::render;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use gateway_kit::{ApiError, Caller, Json, Key, Noted, OperatorName, Peer, Query, Token, Trace, page_in_parts};
use http_contract::lock::{
    AcquireBody, CheckAnswer, GrantAnswer, LockView, ReleaseAnswer, RenewBody, RevokeAnswer, RevokeBody, YieldAnswer,
    YieldBody,
};
use http_contract::{Code, Page, Problem};
use lock_api::{
    AcquireRequest, KeyState, LockKey, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, RequestId,
    RevokeOutcome, RevokeRequest, Ttl, YieldOutcome, YieldRequest,
};
use lock_core::{AcquireCall, Acquired};
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;

/// L4: asks for a key.
#[utoipa::path(
    post, path = "/v1/locks/{key}/acquire", operation_id = "acquire", tag = "locks",
    params(("key" = String, Path, description = "The key, percent-encoded: 1–256 bytes of UTF-8")),
    request_body = AcquireBody,
    responses(
        (status = 200, description = "Granted", body = GrantAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "SESSION_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "HELD_BY_OTHER with key, holder, expires_in_ms, waiters, retry_after_ms; LOCK_DELAYED with key, token, expires_in_ms, waiters, retry_after_ms: free, and closed for a while after an unclean loss", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, TOKEN_REGRESSION, OVERLOADED: no grant", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn acquire(
    server: Data<LockServer>,
    request: HttpRequest,
    trace: Trace,
    noted: Noted,
    caller: Caller,
    Key(key): Key,
    Json(body): Json<AcquireBody>,
) -> Result<HttpResponse, ApiError> {
    let received_at = server.host.clock.mono();
    let ttl = server.bounds.ttl(body.ttl_ms)?;
    let wait = server.bounds.wait(body.wait_ms)?;
    let own = request_id(body.request_id)?;
    let default = server.bounds.grant_ttl.unwrap_or(server.bounds.session_ttl);
    let call = AcquireCall {
        ttl_of_session: ttl.is_none() && server.bounds.grant_ttl.is_none(),
        names_itself: own.is_some(),
        received_at,
        wait,
        request: AcquireRequest {
            key: key.clone(),
            session_id: session_id(body.session_id)?,
            request_id: match own {
                Some(id) => id,
                None => RequestId::new(server.host.ids.ulid())?,
            },
            ttl: ttl.unwrap_or_else(|| configured(default)),
            metadata: metadata(body.metadata)?,
            witness: body
                .witness_token
                .map(|value| token("witness_token", value))
                .transpose()?,
            lock_delay: Bounds::lock_delay(body.lock_delay_ms)?,
        },
    };
    let (names_itself, peer) = (call.names_itself, Peer::of(&request));
    let _place = if wait.is_zero() { None } else { peer.wait()? };
    let asked = server.service.acquire(call, &trace.0);
    let answer = if wait.is_zero() {
        asked.await
    } else {
        let _seat = server.bounds.wait_for(caller, &key)?;
        tokio::select! {
            biased;
            // A closed connection leaves the queue like a reset one, of which actix tells by dropping this handler.
            () = peer.gone() => return Err(caller_gone()),
            answer = asked => answer,
        }
    };
    match answer.map_err(render::refusal)? {
        Acquired::Granted(granted) => {
            if !names_itself && peer.is_gone() {
                // Dropped unclaimed, so that the core gives it back: nobody could ever find it (case L18).
                return Err(caller_gone());
            }
            let waited = granted.waited();
            let grant = granted.claim();
            noted.token(grant.token.get());
            tracing::debug!(event = "lock_granted", key = %grant.key, token = grant.token.get(), session_id = %grant.session_id);
            Ok(HttpResponse::Ok().json(render::grant(&grant, waited)))
        }
        Acquired::Held { held, waiters } => Err(render::held_by_other(&key, &held, waiters)),
        Acquired::Delayed {
            last_token,
            ends_in,
            waiters,
        } => Err(render::delayed(&key, last_token, ends_in, waiters)),
        Acquired::SessionNotFound => Err(render::session_not_found()),
        Acquired::TokenRegression { detail } => Err(render::regression(&detail)),
        Acquired::WitnessRefused { highest_believed } => Err(render::witness_refused(highest_believed)),
    }
}

/// What nobody reads any more: it left the queue without the key, which is an outcome and no failure of this server.
fn caller_gone() -> ApiError {
    ApiError::new(Code::HeldByOther, "the caller has gone; it got no grant")
}

/// L5: extends a grant.
#[utoipa::path(
    post, path = "/v1/locks/{key}/renew", operation_id = "renew", tag = "locks",
    params(
        ("key" = String, Path, description = "The key, percent-encoded"),
        ("X-Fencing-Token" = u64, Header, description = "The grant's token"),
    ),
    request_body = RenewBody,
    responses(
        (status = 200, description = "Extended", body = GrantAnswer),
        (status = 400, description = "INVALID_REQUEST, FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "LOCK_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "NOT_HOLDER: never revived", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn renew(
    server: Data<LockServer>,
    trace: Trace,
    Key(key): Key,
    Token(token): Token,
    Json(body): Json<RenewBody>,
) -> Result<HttpResponse, ApiError> {
    let ttl: Option<Ttl> = server.bounds.ttl(body.ttl_ms)?;
    let request = RenewRequest {
        key,
        session_id: session_id(body.session_id)?,
        token,
        ttl,
    };
    match server.service.renew(request, &trace.0).await.map_err(render::refusal)? {
        RenewOutcome::Renewed(grant) => Ok(HttpResponse::Ok().json(render::grant(&grant, Duration::ZERO))),
        RenewOutcome::NotHolder => Err(render::not_holder()),
        RenewOutcome::NotFound => Err(render::lock_not_found()),
    }
}

/// Whose grant is given back.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseParams {
    /// The holder's session: a token is no credential.
    #[param(min_length = 1, max_length = 64)]
    pub(crate) session_id: String,
}

/// L6: gives a grant back.
#[utoipa::path(
    delete, path = "/v1/locks/{key}", operation_id = "release", tag = "locks",
    params(
        ("key" = String, Path, description = "The key, percent-encoded"),
        ("X-Fencing-Token" = u64, Header, description = "The grant's token"),
        ReleaseParams,
    ),
    responses(
        (status = 200, description = "Free, now or before", body = ReleaseAnswer),
        (status = 400, description = "INVALID_REQUEST, FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "LOCK_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "NOT_HOLDER", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn release(
    server: Data<LockServer>,
    trace: Trace,
    Key(key): Key,
    Token(token): Token,
    Query(params): Query<ReleaseParams>,
) -> Result<HttpResponse, ApiError> {
    let request = ReleaseRequest {
        key: key.clone(),
        session_id: session_id(params.session_id)?,
        token,
    };
    let answer = |released| {
        HttpResponse::Ok().json(ReleaseAnswer {
            key: key.as_str().to_owned(),
            token: token.get(),
            released,
        })
    };
    match server
        .service
        .release(request, &trace.0)
        .await
        .map_err(render::refusal)?
    {
        ReleaseOutcome::Released => Ok(answer(true)),
        ReleaseOutcome::AlreadyFree => Ok(answer(false)),
        ReleaseOutcome::NotHolder => Err(render::not_holder()),
        ReleaseOutcome::NotFound => Err(render::lock_not_found()),
    }
}

/// L7: one key.
#[utoipa::path(
    get, path = "/v1/locks/{key}", operation_id = "get_lock", tag = "locks",
    params(("key" = String, Path, description = "The key, percent-encoded")),
    responses(
        (status = 200, description = "Held or free; FREE with a null token when the store does not know it", body = LockView),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn get_lock(server: Data<LockServer>, trace: Trace, Key(key): Key) -> Result<HttpResponse, ApiError> {
    let (state, waiters) = server.service.inspect(key, &trace.0).await.map_err(render::refusal)?;
    Ok(HttpResponse::Ok().json(render::lock(&state, waiters)))
}

/// L10: how a token stands. Liveness only: no resource may take the answer for a fence.
#[utoipa::path(
    post, path = "/v1/locks/{key}/check", operation_id = "check", tag = "locks",
    params(
        ("key" = String, Path, description = "The key, percent-encoded"),
        ("X-Fencing-Token" = u64, Header, description = "The token in question"),
    ),
    responses(
        (status = 200, description = "CURRENT, SUPERSEDED with the token above it, ENDED or UNKNOWN: as of when the store was asked, which is the past. It tells who should stop, never who may write", body = CheckAnswer),
        (status = 400, description = "INVALID_REQUEST, FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn check(
    server: Data<LockServer>,
    trace: Trace,
    Key(key): Key,
    Token(token): Token,
) -> Result<HttpResponse, ApiError> {
    let (state, _waiters) = server.service.inspect(key, &trace.0).await.map_err(render::refusal)?;
    Ok(HttpResponse::Ok().json(render::check(&state, token)))
}

/// Which keys.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    /// Only keys that begin with it, byte for byte.
    #[param(max_length = 256)]
    pub(crate) prefix: Option<String>,
    /// How many items, 1–1000; 100 where it is missing.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<u32>,
    /// Where the page begins: the `next_cursor` of the page before.
    pub(crate) cursor: Option<String>,
}

/// L7: keys by prefix, in byte order.
#[utoipa::path(
    get, path = "/v1/locks", operation_id = "list_locks", tag = "locks",
    params(ListParams),
    responses(
        (status = 200, description = "A page of known keys", body = Page<LockView>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list_locks(
    server: Data<LockServer>,
    trace: Trace,
    Query(params): Query<ListParams>,
) -> Result<HttpResponse, ApiError> {
    let limit = limit(params.limit)?;
    let prefix = params.prefix.unwrap_or_default();
    if prefix.len() > lock_api::LOCK_KEY_BYTES_MAX || prefix.chars().any(char::is_control) {
        return Err(ApiError::invalid(
            "prefix",
            "must be at most 256 bytes without control characters",
        ));
    }
    let bad = || ApiError::invalid("cursor", "must be one that this list answered");
    let after = cursor(params.cursor.as_deref())?
        .map(|key| LockKey::new(key).map_err(|_| bad()))
        .transpose()?;
    let page = page_in_parts(
        limit,
        |(state, _): &(KeyState, u32)| cursor_of(state.key.as_str()),
        |(state, waiters)| render::lock(state, *waiters),
        async |last, count| {
            let after = last.map(|(state, _)| state.key.clone()).or_else(|| after.clone());
            let read = server.service.list(prefix.clone(), after, count, &trace.0).await;
            read.map_err(render::refusal)
        },
    )
    .await?;
    Ok(HttpResponse::Ok().json(page))
}

/// L8: breaks a live grant.
#[utoipa::path(
    post, path = "/v1/locks/{key}/revoke", operation_id = "revoke", tag = "locks",
    params(
        ("key" = String, Path, description = "The key, percent-encoded"),
        ("X-Operator" = String, Header, description = "Who breaks it"),
    ),
    request_body = RevokeBody,
    responses(
        (status = 200, description = "Broken; the new token is above the revoked one", body = RevokeAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "LOCK_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "NOT_HOLDER: the grant has moved on; NOT_HELD: free", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, TOKEN_REGRESSION, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn revoke(
    server: Data<LockServer>,
    trace: Trace,
    Key(key): Key,
    OperatorName(operator): OperatorName,
    Json(body): Json<RevokeBody>,
) -> Result<HttpResponse, ApiError> {
    let request = RevokeRequest {
        key: key.clone(),
        revoke_token: token("revoke_token", body.revoke_token)?,
        operator,
        reason: gateway_kit::reason(&body.reason)?.to_owned(),
    };
    match server
        .service
        .revoke(request, &trace.0)
        .await
        .map_err(render::refusal)?
    {
        RevokeOutcome::Revoked { revoked, token } => Ok(HttpResponse::Ok().json(RevokeAnswer {
            key: key.as_str().to_owned(),
            revoked_token: revoked.token.get(),
            revoked_owner: revoked.owner.as_str().to_owned(),
            token: token.get(),
        })),
        RevokeOutcome::NotHolder { holder } => Err(ApiError::new(
            Code::NotHolder,
            "the grant has moved on to another token; nothing was broken",
        )
        .field("key", key.as_str())
        .field("holder", serde_json::json!(render::holder(&holder, false)))),
        RevokeOutcome::NotHeld => Err(ApiError::new(Code::NotHeld, "nobody holds this key").field("key", key.as_str())),
        RevokeOutcome::NotFound => Err(render::lock_not_found()),
        RevokeOutcome::TokenRegression { detail } => Err(render::regression(&detail)),
    }
}

/// L11: asks the holder of a live grant to give it up. It ends nothing.
#[utoipa::path(
    post, path = "/v1/locks/{key}/yield", operation_id = "ask_to_yield", tag = "locks",
    params(
        ("key" = String, Path, description = "The key, percent-encoded"),
        ("X-Operator" = String, Header, description = "Who asks"),
    ),
    request_body = YieldBody,
    responses(
        (status = 200, description = "Its holder is asked, now or by somebody before: it reads so in its next heartbeat or renewal, and decides", body = YieldAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "LOCK_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "NOT_HOLDER: the grant has moved on; NOT_HELD: free", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn ask_to_yield(
    server: Data<LockServer>,
    trace: Trace,
    noted: Noted,
    Key(key): Key,
    OperatorName(operator): OperatorName,
    Json(body): Json<YieldBody>,
) -> Result<HttpResponse, ApiError> {
    let request = YieldRequest {
        key: key.clone(),
        token: token("token", body.token)?,
        operator,
        reason: gateway_kit::reason(&body.reason)?.to_owned(),
    };
    noted.token(request.token.get());
    let asked_of = request.token;
    match server
        .service
        .ask_to_yield(request, &trace.0)
        .await
        .map_err(render::refusal)?
    {
        YieldOutcome::Asked(grant) => {
            let asked = grant.yield_asked.as_ref().ok_or_else(|| {
                let detail = format!("the store shows no request on the grant of token {asked_of}");
                ApiError::new(Code::BackendUnavailable, detail)
            })?;
            Ok(HttpResponse::Ok().json(YieldAnswer {
                key: key.as_str().to_owned(),
                token: grant.token.get(),
                owner: grant.owner.as_str().to_owned(),
                yield_requested: render::yield_requested(asked),
            }))
        }
        YieldOutcome::NotHolder { holder } => Err(ApiError::new(
            Code::NotHolder,
            "the grant has moved on to another token; nobody was asked",
        )
        .field("key", key.as_str())
        .field("holder", serde_json::json!(render::holder(&holder, false)))),
        YieldOutcome::NotHeld => Err(ApiError::new(Code::NotHeld, "nobody holds this key").field("key", key.as_str())),
        YieldOutcome::NotFound => Err(render::lock_not_found()),
    }
}
