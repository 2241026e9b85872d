//! Headers.

use crate::ApiError;
use crate::gateway::Shared;
use actix_web::dev::Payload;
use actix_web::http::header::HeaderMap;
use actix_web::{FromRequest, HttpMessage, HttpRequest, web};
use actor_kit::TraceContext;
use http_contract::{Code, header};
use lock_api::{FencingToken, Operator};
use std::future::{Ready, ready};

/// The one value of a header as UTF-8; none when it is missing.
fn single<'r>(headers: &'r HeaderMap, name: &str) -> Result<Option<&'r str>, &'static str> {
    let mut values = headers.get_all(name);
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("must be given once");
    }
    std::str::from_utf8(value.as_bytes())
        .map(Some)
        .map_err(|_| "must be UTF-8")
}

/// A header's text of 1 to `chars_max` characters: a name, so each of them shows.
fn text(headers: &HeaderMap, name: &'static str, chars_max: usize) -> Result<Option<String>, ApiError> {
    let value = single(headers, name).map_err(|reason| ApiError::invalid(name, reason))?;
    match value {
        None => Ok(None),
        Some(value)
            if !value.is_empty() && value.chars().count() <= chars_max && !value.chars().any(char::is_control) =>
        {
            crate::visible(name, value)?;
            Ok(Some(value.to_owned()))
        }
        Some(_) => {
            let reason = format!("must be 1 to {chars_max} characters without control characters");
            Err(ApiError::invalid(name, reason))
        }
    }
}

fn required(value: Option<String>, name: &'static str) -> Result<String, ApiError> {
    value.ok_or_else(|| ApiError::invalid(name, "is required"))
}

/// `X-Fencing-Token`: required, once, in canonical decimal form (INV-07).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub FencingToken);

impl FromRequest for Token {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let refused = |code, reason: String| {
            ApiError::new(code, format!("{} {reason}", header::FENCING_TOKEN))
                .field("field", header::FENCING_TOKEN)
                .field("reason", reason)
        };
        ready(match single(request.headers(), header::FENCING_TOKEN) {
            Ok(None) => Err(refused(Code::FencingTokenRequired, "is required".to_owned())),
            Ok(Some(text)) => match text.parse() {
                Ok(token) => Ok(Self(token)),
                Err(error) => Err(refused(Code::FencingTokenInvalid, error.reason.to_owned())),
            },
            Err(reason) => Err(refused(Code::FencingTokenInvalid, reason.to_owned())),
        })
    }
}

/// `X-Idempotency-Key`: required, 1–255 characters (C3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub String);

impl FromRequest for IdempotencyKey {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let key = text(request.headers(), header::IDEMPOTENCY_KEY, 255);
        ready(key.and_then(|key| required(key, header::IDEMPOTENCY_KEY)).map(Self))
    }
}

/// `X-Operator`: required, 1–128 characters (FR-08). Where a route merely admits it, take `Option<OperatorName>` through
/// [`OperatorName::of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorName(pub Operator);

impl OperatorName {
    /// The operator of a request, if it names one.
    ///
    /// # Errors
    /// `INVALID_REQUEST` naming the header when it is there but not a name.
    pub fn of(request: &HttpRequest) -> Result<Option<Self>, ApiError> {
        match text(request.headers(), header::OPERATOR, 128)? {
            None => Ok(None),
            Some(name) => {
                let operator =
                    Operator::new(name).map_err(|error| ApiError::invalid(header::OPERATOR, error.reason))?;
                Ok(Some(Self(operator)))
            }
        }
    }
}

impl FromRequest for OperatorName {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Self::of(request).and_then(|name| name.ok_or_else(|| ApiError::invalid(header::OPERATOR, "is required"))))
    }
}

/// `X-Actor`: the owner of the session on whose behalf a step is done, if given; 1–128 characters (C3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorName(pub Option<String>);

impl FromRequest for ActorName {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(text(request.headers(), header::ACTOR, 128).map(Self))
    }
}

/// The request's place in its trace: below the caller's span where `traceparent` is well formed, else a new trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(pub TraceContext);

impl FromRequest for Trace {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let framed = request.extensions().get::<TraceContext>().copied();
        ready(
            framed
                .map(Self)
                .ok_or_else(|| match request.app_data::<web::Data<Shared>>() {
                    Some(_) => ApiError::new(Code::Internal, "the request was not framed"),
                    None => ApiError::new(Code::Internal, "the routes are served without the gateway's frame"),
                }),
        )
    }
}

/// The caller's place in its trace, where the request says one.
pub(crate) fn caller_of(headers: &HeaderMap) -> Option<TraceContext> {
    match single(headers, header::TRACEPARENT) {
        Ok(Some(value)) => TraceContext::from_traceparent(value),
        _ => None,
    }
}

/// The token that the request carries, where it is one at all: for the trace, which refuses nothing.
pub(crate) fn token_of(headers: &HeaderMap) -> Option<u64> {
    single(headers, header::FENCING_TOKEN).ok()??.parse().ok()
}

/// The caller's request id, where it is 1–128 visible ASCII characters.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    let value = single(headers, header::REQUEST_ID).ok()??;
    let fine = (1..=128).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic());
    fine.then(|| value.to_owned())
}
