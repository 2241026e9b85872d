//! The routes of every component: probes, metrics, documentation, version, debug (C3.1, C4.5).

use super::Shared;
use crate::extract::{Json, Query, Trace, path_value};
use crate::{ApiError, error_pages};
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use actor_kit::TraceQuery;
use futures_util::future::join_all;
use http_contract::Code;
use prometheus::TextEncoder;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The templates answered to GET; the pages below `/docs/` apart.
pub(crate) const GET_ROUTES: &[&str] = &[
    "/livez",
    "/readyz",
    "/startupz",
    "/metrics",
    "/openapi.json",
    "/version",
    "/docs",
    "/docs/errors",
    "/docs/errors/{code}",
    "/debug/actors",
    "/debug/trace",
    "/v1/refusals",
];

/// The templates answered to POST.
pub(crate) const POST_ROUTES: &[&str] = &[
    "/debug/actors/{path}/pause",
    "/debug/actors/{path}/resume",
    #[cfg(feature = "lab")]
    "/debug/actors/{path}/panic",
];

/// How long a readiness check may take.
const CHECK_WITHIN: Duration = Duration::from_secs(1);

/// Whether this build has the route.
pub(super) fn serves(method: &str, template: &str) -> bool {
    match method {
        "GET" => GET_ROUTES.contains(&template),
        "POST" => POST_ROUTES.contains(&template),
        _ => false,
    }
}

pub(super) fn configure(config: &mut ServiceConfig, shared: &Shared) {
    config
        .route("/livez", web::get().to(livez))
        .route("/readyz", web::get().to(readyz))
        .route("/startupz", web::get().to(startupz))
        .route("/metrics", web::get().to(metrics))
        .route("/openapi.json", web::get().to(openapi))
        .route("/version", web::get().to(version))
        .route("/v1/refusals", web::get().to(super::refusals::refusals))
        .route("/docs", web::get().to(docs))
        .route("/docs/errors", web::get().to(error_index))
        .route("/docs/errors/", web::get().to(error_index))
        .route("/docs/errors/{code}", web::get().to(error_page));
    if shared.debug {
        config
            .route("/debug/actors", web::get().to(actors))
            .route("/debug/trace", web::get().to(trace));
    }
    if shared.debug_control {
        config
            .route("/debug/actors/{path}/pause", web::post().to(pause))
            .route("/debug/actors/{path}/resume", web::post().to(resume));
        #[cfg(feature = "lab")]
        config.route("/debug/actors/{path}/panic", web::post().to(panic));
    }
    if !shared.openapi.is_null() {
        // The pages and scripts come out of the binary; nothing is fetched from anywhere.
        let pages = utoipa_swagger_ui::SwaggerUi::new("/docs/{_:.*}")
            .external_url_unchecked("/docs/openapi.json", shared.openapi.clone());
        config.service(pages);
    }
}

async fn livez() -> HttpResponse {
    HttpResponse::Ok().json(json!({"status": "alive"}))
}

/// The checks that failed, each with its reason.
async fn failed(shared: &Shared) -> Map<String, Value> {
    let asked = shared.checks.iter().map(|(name, check)| async move {
        match tokio::time::timeout(CHECK_WITHIN, check()).await {
            Ok(Ok(())) => None,
            Ok(Err(reason)) => Some((name.clone(), Value::from(reason))),
            Err(_elapsed) => Some((name.clone(), Value::from("no answer within a second"))),
        }
    });
    join_all(asked).await.into_iter().flatten().collect()
}

async fn readyz(shared: Data<Shared>) -> Result<HttpResponse, ApiError> {
    if shared.drain.is_draining() {
        return Err(ApiError::new(Code::BackendUnavailable, "draining").field("failed", json!({"drain": "draining"})));
    }
    let failed = failed(&shared).await;
    if !failed.is_empty() {
        let names: Vec<&str> = failed.keys().map(String::as_str).collect();
        let detail = format!("not ready: {}", names.join(", "));
        return Err(ApiError::new(Code::BackendUnavailable, detail).field("failed", failed));
    }
    shared.started.store(true, Ordering::Relaxed);
    let checks: Vec<&str> = shared.checks.iter().map(|(name, _)| name.as_str()).collect();
    let notes: BTreeMap<&str, String> = shared
        .notes
        .iter()
        .filter_map(|(name, note)| Some((name.as_str(), note()?)))
        .collect();
    Ok(HttpResponse::Ok().json(json!({"status": "ready", "checks": checks, "notes": notes})))
}

/// Whether every check has passed once. Afterwards it stays 200, whatever becomes of them.
async fn startupz(shared: Data<Shared>) -> Result<HttpResponse, ApiError> {
    if !shared.started.load(Ordering::Relaxed) {
        let failed = failed(&shared).await;
        if !failed.is_empty() {
            return Err(ApiError::new(Code::BackendUnavailable, "still starting").field("failed", failed));
        }
        shared.started.store(true, Ordering::Relaxed);
    }
    Ok(HttpResponse::Ok().json(json!({"status": "started"})))
}

async fn metrics(shared: Data<Shared>) -> Result<HttpResponse, ApiError> {
    let text = TextEncoder::new()
        .encode_to_string(&shared.registry.gather())
        .map_err(|error| ApiError::new(Code::Internal, format!("the metrics cannot be written: {error}")))?;
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/plain; version=0.0.4"))
        .body(text))
}

async fn openapi(shared: Data<Shared>) -> Result<HttpResponse, ApiError> {
    if shared.openapi.is_null() {
        return Err(ApiError::new(Code::NotFound, "this component has no routes of its own"));
    }
    Ok(HttpResponse::Ok().json(&shared.openapi))
}

async fn version(shared: Data<Shared>) -> HttpResponse {
    HttpResponse::Ok().json(json!({
        "component": shared.component,
        "version": env!("CARGO_PKG_VERSION"),
        "lab": cfg!(feature = "lab"),
    }))
}

async fn docs() -> HttpResponse {
    HttpResponse::TemporaryRedirect()
        .insert_header((LOCATION, "/docs/"))
        .finish()
}

const MARKDOWN: &str = "text/plain; charset=utf-8";

async fn error_index() -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, MARKDOWN))
        .body(error_pages::index())
}

async fn error_page(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let code = path_value(&request, "code")?;
    match error_pages::page(&code) {
        Some(page) => Ok(HttpResponse::Ok().insert_header((CONTENT_TYPE, MARKDOWN)).body(page)),
        None => Err(ApiError::new(Code::NotFound, "no problem has this code")),
    }
}

async fn actors(shared: Data<Shared>) -> HttpResponse {
    let actors = shared.kit.actors().await;
    let process = shared.kit.trace().process();
    HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, "no-store"))
        .json(json!({
            "component": shared.component,
            "instance": process.instance(),
            "pid": process.pid(),
            "boot_id": process.boot_id(),
            "at_ms": shared.host.clock.wall_ms(),
            "actors": actors,
        }))
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TraceFormat {
    #[default]
    Jsonl,
    Perfetto,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceParams {
    actor: Option<String>,
    since: Option<u64>,
    limit: Option<usize>,
    #[serde(default)]
    format: TraceFormat,
    /// For JSONL: begin with a line about the process.
    #[serde(default)]
    header: bool,
}

async fn trace(shared: Data<Shared>, Query(params): Query<TraceParams>) -> HttpResponse {
    let query = TraceQuery {
        actor: params.actor,
        since: params.since,
        limit: params.limit,
    };
    let mut response = HttpResponse::Ok();
    response.insert_header((CACHE_CONTROL, "no-store"));
    let ring = shared.kit.trace();
    match params.format {
        TraceFormat::Jsonl => response
            .insert_header((CONTENT_TYPE, "application/x-ndjson"))
            .body(ring.to_jsonl(&query, params.header)),
        TraceFormat::Perfetto => {
            let dump = trace_kit::Dump::parse(&ring.to_jsonl(&query, true)).expect("what the ring writes is a dump");
            response
                .insert_header((CONTENT_TYPE, "application/json"))
                .body(trace_kit::draw(&dump).json)
        }
    }
}

/// The longest pause that can be asked for.
const PAUSE_MS_MAX: u64 = 3_600_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    for_ms: u64,
}

async fn pause(
    shared: Data<Shared>,
    request: HttpRequest,
    trace: Trace,
    Json(pause): Json<Pause>,
) -> Result<HttpResponse, ApiError> {
    let path = path_value(&request, "path")?;
    if !(1..=PAUSE_MS_MAX).contains(&pause.for_ms) {
        return Err(ApiError::invalid(
            "for_ms",
            format!("must be between 1 and {PAUSE_MS_MAX}"),
        ));
    }
    let no_such = |error: actor_kit::NoSuchActor| ApiError::new(Code::NotFound, error.to_string());
    shared
        .kit
        .pause(&path, Duration::from_millis(pause.for_ms))
        .map_err(no_such)?;
    tracing::warn!(
        event = "pause_asked",
        actor = path,
        for_ms = pause.for_ms,
        trace_id = trace.0.trace_id_hex()
    );
    Ok(HttpResponse::Ok().json(json!({"actor": path, "paused_for_ms": pause.for_ms})))
}

async fn resume(shared: Data<Shared>, request: HttpRequest, trace: Trace) -> Result<HttpResponse, ApiError> {
    let path = path_value(&request, "path")?;
    shared
        .kit
        .resume(&path)
        .map_err(|error| ApiError::new(Code::NotFound, error.to_string()))?;
    tracing::warn!(event = "resume_asked", actor = path, trace_id = trace.0.trace_id_hex());
    Ok(HttpResponse::Ok().json(json!({"actor": path})))
}

/// Makes an actor panic as a defect in it would; its supervisor builds it anew.
#[cfg(feature = "lab")]
async fn panic(shared: Data<Shared>, request: HttpRequest, trace: Trace) -> Result<HttpResponse, ApiError> {
    let path = path_value(&request, "path")?;
    shared
        .kit
        .crash(&path)
        .map_err(|error| ApiError::new(Code::NotFound, error.to_string()))?;
    tracing::warn!(event = "panic_asked", actor = path, trace_id = trace.0.trace_id_hex());
    Ok(HttpResponse::Ok().json(json!({"actor": path})))
}
