//! What a guard reads of a request: its token, by the product's own rules, and the trace it belongs to.

use actix_web::dev::Payload;
use actix_web::http::Method;
use actix_web::http::header::{HeaderMap, HeaderName};
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use actor_kit::TraceContext;
use gateway_kit::{ApiError, Token};
use host_kit::Random;
use http_contract::header;
use lock_api::FencingToken;

/// Headers by which some frameworks let a request be another method than it says.
const METHOD_OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// `X-Fencing-Token`: exactly one, canonical decimal (C3.1).
///
/// # Errors
/// `FENCING_TOKEN_REQUIRED`, `FENCING_TOKEN_INVALID`.
pub fn token_of(request: &HttpRequest) -> Result<FencingToken, ApiError> {
    Token::from_request(request, &mut Payload::None)
        .into_inner()
        .map(|token| token.0)
}

/// A header's name as CGI and what follows it (WSGI, PHP, Rack) reads it: a dash and an underscore are one.
pub(crate) fn dashed(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

/// Whether a request only reads, as its method says, and says nothing else in another place.
#[must_use]
pub fn only_reads(request: &HttpRequest) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
        && !request
            .headers()
            .keys()
            .any(|name| METHOD_OVERRIDES.contains(&dashed(name).as_str()))
}

/// The trace a request belongs to, as 32 hexadecimal digits: the one its gateway's frame gave it, else its caller's, else a
/// new one.
pub(crate) fn trace_id(request: &HttpRequest, random: &Random) -> String {
    let framed = request.extensions().get::<TraceContext>().copied();
    framed
        .or_else(|| caller_of(request.headers()))
        .unwrap_or_else(|| TraceContext::root(random))
        .trace_id_hex()
}

/// Whether a gateway's frame is around the request, which writes refusals itself.
pub(crate) fn framed(request: &HttpRequest) -> bool {
    request.extensions().contains::<TraceContext>()
}

fn caller_of(headers: &HeaderMap) -> Option<TraceContext> {
    let mut values = headers.get_all(header::TRACEPARENT);
    let (value, more) = (values.next()?, values.next());
    if more.is_some() {
        return None;
    }
    TraceContext::from_traceparent(value.to_str().ok()?)
}
