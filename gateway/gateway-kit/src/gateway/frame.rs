//! What surrounds every request: its id and trace, the time-out, refusals as problems, metrics, the access log.
//!
//! On failure: a handler that panics is answered 500 `INTERNAL` and the process goes on; one that takes too long is
//! dropped at its next await and answered 503, which promises nothing about what was done.

use super::Shared;
use super::answers::HeadOnly;
use super::guard::kept_out;
use super::record::Recording;
use super::refusals::{Asked, Shown};
use crate::ApiError;
use crate::extract::{BodyRead, caller_of, request_id};
use crate::openapi::Route;
use crate::shares::Caller;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpMessage, HttpResponse, ResponseError};
use actor_kit::{TraceContext, guarded};
use http_contract::Code;
use http_contract::problem::PROBLEM_JSON;
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tracing::Instrument;

/// The route that was found, in a request's extensions.
pub(crate) struct Matched(pub(crate) Arc<Route>);

/// What a page for people is.
const PAGE: &str = "text/html; charset=utf-8";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// One request as the access log sees it.
struct Seen {
    method: Method,
    path: String,
    route: Option<Arc<Route>>,
    request_id: String,
    trace: TraceContext,
    begun: Duration,
    panicked: Cell<bool>,
    shown: Shown,
    caller: Caller,
}

impl Seen {
    /// Whether it changes nothing.
    fn reads(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS)
    }

    fn route_name(&self) -> &str {
        self.route.as_ref().map_or("unmatched", |route| route.template.as_str())
    }
}

pub(super) async fn frame(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let shared = request
        .app_data::<Data<Shared>>()
        .expect("every application of a gateway has its state")
        .clone();
    let caller = caller_of(request.headers());
    let seen = Seen {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        shown: Shown::of(request.headers()),
        caller: Caller::of(request.request()),
        route: shared.routes.find(request.uri().path()).cloned(),
        request_id: request_id(request.headers()).unwrap_or_else(|| shared.host.ids.ulid()),
        trace: caller.as_ref().map_or_else(
            || TraceContext::root(&shared.host.random),
            |caller| shared.kit.span_below(caller),
        ),
        begun: shared.host.clock.mono(),
        panicked: Cell::new(false),
    };
    let recording = Recording::begin(&shared, &request, seen.route.as_ref(), seen.trace, caller.as_ref());
    let recording = recording.map(|(recording, noted)| {
        request.extensions_mut().insert(noted);
        recording
    });
    request.extensions_mut().insert(seen.trace);
    if let Some(route) = &seen.route {
        request.extensions_mut().insert(Matched(Arc::clone(route)));
    }
    let span = tracing::info_span!("request", trace_id = seen.trace.trace_id_hex());
    async {
        let in_flight = shared.metrics.begin();
        let outcome = answer(&shared, &seen, request, next).await;
        drop(in_flight);
        if let Some(recording) = recording {
            let (status, code) = match &outcome {
                Ok((response, refusal)) => (response.status(), refusal.as_ref().map(ApiError::code)),
                Err(refusal) => (refusal.status_code(), Some(refusal.code())),
            };
            recording.end(status, code, seen.panicked.get());
        }
        if seen.panicked.get() {
            shared.after_panic(&seen.path);
        }
        match outcome {
            Ok((response, refusal)) => {
                if let Some(refusal) = &refusal {
                    shared.note(&seen, refusal);
                }
                log(&shared, &seen, response.status(), refusal.map(|refusal| refusal.code()));
                Ok(response)
            }
            Err(refusal) => {
                shared.note(&seen, &refusal);
                log(&shared, &seen, refusal.status_code(), Some(refusal.code()));
                // The request is gone, so this cannot be a response of it; actix writes the error as one.
                let refusal = refusal.in_trace(seen.trace.trace_id_hex());
                Err(Error::from(match HeaderValue::from_str(&seen.request_id) {
                    Ok(id) => refusal.header(REQUEST_ID, id),
                    Err(_) => refusal,
                }))
            }
        }
    }
    .instrument(span)
    .await
}

/// The answer and, where it is one, the refusal.
async fn answer(
    shared: &Shared,
    seen: &Seen,
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<(ServiceResponse<BoxBody>, Option<ApiError>), ApiError> {
    let route = seen.route.as_deref();
    let kept_out = kept_out(&shared.hosts, &seen.method, request.uri(), request.headers(), route);
    if kept_out.is_none()
        && seen.method == Method::OPTIONS
        && let Some(allowed) = allowed(seen)
    {
        let response = finish(seen, HttpResponse::NoContent().insert_header((ALLOW, allowed)).finish());
        return Ok((request.into_response(response), None));
    }
    if let Some(refusal) = kept_out.or_else(|| not_served(seen)) {
        let response = finish(seen, refusal.respond(&seen.trace.trace_id_hex()));
        return Ok((request.into_response(response), Some(refusal)));
    }
    let body_read = BodyArrived::watch(&request);
    let timeout = shared.timeout(seen);
    if seen.method == Method::HEAD {
        // Every handler of GET answers it; the connection knows what was asked for, and writes no body.
        request.head_mut().method = Method::GET;
    }
    if !seen.reads() {
        shared.answers.may_write(seen.caller)?;
    }
    let _turn = if seen.reads() && route.is_some_and(|route| route.list) {
        shared.answers.may_read(seen.caller)?;
        Some(shared.answers.lists.next(seen.caller, timeout / 2).await?)
    } else {
        None
    };
    let mut call = std::pin::pin!(next.call(request));
    let handled = poll_fn(|cx| match guarded(|| call.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    let refusal = match tokio::time::timeout(timeout, handled).await {
        Ok(Ok(Ok(response))) => return Ok(leaving(shared, seen, translated(seen, response))),
        Ok(Ok(Err(error))) => refusal_of(&error, seen),
        Ok(Err(_panic)) => {
            seen.panicked.set(true);
            ApiError::new(
                Code::Internal,
                "the handler failed; nothing is promised about what was done",
            )
        }
        Err(_elapsed) if body_read.missing() => ApiError::invalid("body", "did not arrive in time"),
        Err(_elapsed) => ApiError::new(
            Code::BackendUnavailable,
            "no answer in time; what was asked for may still be done",
        )
        .retry_after(Duration::from_secs(1)),
    };
    Err(refusal)
}

/// What OPTIONS answers; none where there is nothing.
fn allowed(seen: &Seen) -> Option<String> {
    match &seen.route {
        Some(route) => Some(route.allowed().join(", ")),
        // The pages of the documentation, of which no document tells; and the server as a whole.
        None if seen.path.starts_with("/docs/") || seen.path == "*" => Some("GET, HEAD, OPTIONS".to_owned()),
        None => None,
    }
}

/// The answer as it leaves: within the bound of bytes, in pieces; to HEAD without its body.
fn leaving(
    shared: &Shared,
    seen: &Seen,
    (response, refusal): (ServiceResponse<BoxBody>, Option<ApiError>),
) -> (ServiceResponse<BoxBody>, Option<ApiError>) {
    let (request, answer) = response.into_parts();
    if seen.method == Method::HEAD {
        let answer = answer.map_body(|_, body| match body.size() {
            BodySize::None => BoxBody::new(actix_web::body::None::new()),
            size => BoxBody::new(HeadOnly(size)),
        });
        return (ServiceResponse::new(request, answer), refusal);
    }
    if answer.body().size() == BodySize::None {
        return (ServiceResponse::new(request, answer), refusal);
    }
    let (head, body) = answer.into_parts();
    let bytes = match body.try_into_bytes() {
        Ok(bytes) => bytes,
        // A stream, which holds a piece at a time.
        Err(body) => return (ServiceResponse::new(request, head.set_body(body)), refusal),
    };
    match shared.answers.leaving(seen.caller, !seen.reads(), bytes) {
        Ok(body) => (
            ServiceResponse::new(request, head.map_body(|_, _| BoxBody::new(body))),
            refusal,
        ),
        Err(full) => {
            let full = ApiError::from(full);
            let answer = finish(seen, full.respond(&seen.trace.trace_id_hex()));
            (ServiceResponse::new(request, answer), Some(full))
        }
    }
}

/// A path below `/v1/`, or of the gateway's own, that no document names is not served at all; nor is another method.
fn not_served(seen: &Seen) -> Option<ApiError> {
    match &seen.route {
        Some(route) if route.allowed().contains(&seen.method.as_str()) => None,
        Some(route) => {
            let allowed = route.allowed().join(", ");
            let refusal = ApiError::new(Code::MethodNotAllowed, format!("{} is not allowed here", seen.method));
            let refusal = refusal.field("allowed", route.allowed());
            // Method names of a document are tokens, so this is a header value.
            Some(match HeaderValue::from_str(&allowed) {
                Ok(value) => refusal.header(ALLOW, value),
                Err(_) => refusal,
            })
        }
        None if seen.path == "/v1" || seen.path.starts_with("/v1/") => {
            Some(ApiError::new(Code::NotFound, "no such route"))
        }
        None => None,
    }
}

/// What a handler answered; a refusal is written anew with the trace's id, a bare error status becomes a problem.
fn translated(
    seen: &Seen,
    response: ServiceResponse<impl MessageBody + 'static>,
) -> (ServiceResponse<BoxBody>, Option<ApiError>) {
    let status = response.status();
    let refusal = match response.response().error() {
        Some(error) => Some(refusal_of(error, seen)),
        None if status.is_client_error() || status.is_server_error() => {
            let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
            // A page for people says itself what is wrong.
            let says = [PROBLEM_JSON, PAGE].map(|kind| Some(kind.as_bytes()));
            (!says.contains(&content_type)).then(|| bare(status, String::new()))
        }
        None => None,
    };
    match refusal {
        Some(refusal) => {
            let (request, _) = response.into_parts();
            let answer = finish(seen, refusal.respond(&seen.trace.trace_id_hex()));
            (ServiceResponse::new(request, answer), Some(refusal))
        }
        None => {
            let (request, answer) = response.into_parts();
            (
                ServiceResponse::new(request, finish(seen, answer.map_into_boxed_body())),
                None,
            )
        }
    }
}

/// The refusal that an error stands for: ours as it is, one of actix by its status.
fn refusal_of(error: &Error, seen: &Seen) -> ApiError {
    if let Some(refusal) = error.as_error::<ApiError>() {
        return refusal.clone();
    }
    let status = error.as_response_error().status_code();
    if status.is_server_error() {
        tracing::error!(event = "handler_failed", %error, path = seen.path);
        return bare(status, String::new());
    }
    bare(status, error.to_string())
}

/// A refusal by its status alone.
fn bare(status: StatusCode, detail: String) -> ApiError {
    let code = match status.as_u16() {
        404 => Code::NotFound,
        405 => Code::MethodNotAllowed,
        413 => Code::PayloadTooLarge,
        415 => Code::UnsupportedMediaType,
        503 => Code::Overloaded,
        400..500 => Code::InvalidRequest,
        _ => Code::Internal,
    };
    let detail = if detail.is_empty() {
        code.title().to_owned()
    } else {
        detail
    };
    ApiError::new(code, detail)
}

fn finish(seen: &Seen, mut response: actix_web::HttpResponse) -> actix_web::HttpResponse {
    // Made of visible ASCII, by the caller or by us.
    if let Ok(value) = HeaderValue::from_str(&seen.request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Tells whether a request's body has arrived, after the request itself is gone.
struct BodyArrived(Option<Arc<AtomicBool>>);

impl BodyArrived {
    fn watch(request: &ServiceRequest) -> Self {
        let length = request.headers().get(actix_web::http::header::CONTENT_LENGTH);
        let expected = length.is_some_and(|length| length != "0")
            || request
                .headers()
                .contains_key(actix_web::http::header::TRANSFER_ENCODING);
        if !expected {
            return Self(None);
        }
        let arrived = Arc::new(AtomicBool::new(false));
        request.extensions_mut().insert(BodyRead(Arc::clone(&arrived)));
        Self(Some(arrived))
    }

    fn missing(&self) -> bool {
        self.0.as_ref().is_some_and(|arrived| !arrived.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn note(&self, seen: &Seen, refusal: &ApiError) {
        let asked = Asked {
            method: seen.method.as_str(),
            path: &seen.path,
            route: seen.route.as_deref(),
            trace_id: &seen.trace.trace_id_hex(),
        };
        self.refusals
            .note(&seen.shown, asked, refusal, self.host.clock.wall_ms());
    }

    fn timeout(&self, seen: &Seen) -> Duration {
        let template = seen.route.as_ref().map(|route| route.template.as_str());
        self.route_timeouts
            .iter()
            .find(|(route, _)| Some(route.as_str()) == template)
            .map_or(self.request_timeout, |(_, timeout)| *timeout)
    }
}

/// One line per request. A refusal that C3.2 calls an outcome is one: logged at info, never counted as a server error.
fn log(shared: &Shared, seen: &Seen, status: StatusCode, code: Option<Code>) {
    let took = shared.host.clock.mono().saturating_sub(seen.begun);
    let route = seen.route_name();
    shared.metrics.observe(route, &seen.method, code, took);
    let outcome = code.map_or("ok", Code::as_str);
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                event = "request_answered",
                method = %seen.method,
                path = seen.path,
                route,
                status = status.as_u16(),
                outcome,
                request_id = seen.request_id,
                duration_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            )
        };
    }
    match status {
        status if status.is_server_error() => line!(warn),
        _ if is_quiet(route) => line!(debug),
        _ => line!(info),
    }
}

/// Routes that are asked all the time, by machines.
fn is_quiet(route: &str) -> bool {
    matches!(route, "/livez" | "/readyz" | "/startupz" | "/metrics")
}
