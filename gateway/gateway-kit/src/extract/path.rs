//! Parts of the path.
//!
//! actix decodes a path before it matches it, everything but `%2F`, `%25` and `%2B`, and lossily where it is not UTF-8:
//! from what a route captures, `a%2Fb` and `a%252Fb` could no longer be told apart after a second decoding. So the value
//! is cut out of the raw path by its place in the matched pattern, and decoded once (case L29). The place is the same in
//! both, because a decoded path has neither more nor fewer slashes than the raw one.

use super::decode::percent_decode;
use crate::ApiError;
use crate::gateway::Matched;
use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use lock_api::LockKey;
use std::future::{Ready, ready};

/// The still encoded text that stands in the path where the matched pattern has `{name}`.
fn raw_value<'r>(request: &'r HttpRequest, name: &str) -> Option<&'r str> {
    let matched = request
        .extensions()
        .get::<Matched>()
        .map(|matched| matched.0.template.clone());
    let pattern = matched.or_else(|| request.match_pattern())?;
    raw_value_at(&pattern, request.uri().path(), name)
}

/// The still encoded text that stands in `path` where `template` has `{name}`.
pub(crate) fn raw_value_at<'p>(template: &str, path: &'p str, name: &str) -> Option<&'p str> {
    let place = template.split('/').position(|part| placeholder(part) == Some(name))?;
    path.split('/').nth(place)
}

/// The name in `{name}` or `{name:expression}`.
fn placeholder(part: &str) -> Option<&str> {
    let inner = part.strip_prefix('{')?.strip_suffix('}')?;
    Some(inner.split(':').next().unwrap_or(inner))
}

/// The text of the path's part `{name}`, decoded exactly once.
///
/// # Errors
/// `INVALID_REQUEST` naming the part when its percent-encoding is wrong or it is not UTF-8.
///
/// # Panics
/// When the matched route has no such part: a mistake in the calling code.
pub fn path_value(request: &HttpRequest, name: &str) -> Result<String, ApiError> {
    let raw = raw_value(request, name).unwrap_or_else(|| panic!("the route has no part {{{name}}}"));
    percent_decode(raw, false).map_err(|reason| ApiError::invalid(name, reason))
}

/// The lock key in `{key}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(pub LockKey);

impl FromRequest for Key {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(path_value(request, "key").and_then(|key| Ok(Self(LockKey::new(key)?))))
    }
}

/// The longest id that a path may hold.
const ID_CHARS_MAX: usize = 64;

/// Checks an id (C1.2): 1 to `chars_max` characters of `[A-Za-z0-9._:-]`. `.` and `..` are none: in a path they are
/// steps, which clients and proxies take out before anybody can read them (case P27).
///
/// # Errors
/// `INVALID_REQUEST` naming `field`.
pub fn id(field: &str, value: &str, chars_max: usize) -> Result<(), ApiError> {
    let fine = (1..=chars_max).contains(&value.len())
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-'));
    if fine && value != "." && value != ".." {
        return Ok(());
    }
    let reason = format!("must be 1 to {chars_max} characters of [A-Za-z0-9._:-], and neither . nor ..");
    Err(ApiError::invalid(field, reason))
}

/// The id that is the route's one placeholder, whatever its name: 1–64 characters, as [`id`] has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id(pub String);

impl FromRequest for Id {
    type Error = ApiError;
    type Future = Ready<Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let pattern = request.match_pattern().unwrap_or_default();
        let name = pattern
            .split('/')
            .find_map(placeholder)
            .unwrap_or_else(|| panic!("{pattern} has no placeholder"));
        ready(path_value(request, name).and_then(|value| {
            id(name, &value, ID_CHARS_MAX)?;
            Ok(Self(value))
        }))
    }
}
