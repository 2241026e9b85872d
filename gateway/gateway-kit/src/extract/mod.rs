//! What handlers take from a request. Every refusal is an [`ApiError`] that names the field, header or parameter.

mod decode;
mod headers;
mod json;
mod noted;
mod path;
mod query;
mod strict;

pub use headers::{ActorName, IdempotencyKey, OperatorName, Token, Trace};
pub use json::{Json, JsonOrDefault};
pub use noted::Noted;
pub use path::{Id, Key, id, path_value};
pub use query::Query;

pub(crate) use headers::{caller_of, request_id, token_of};
pub(crate) use json::BodyRead;
pub(crate) use path::raw_value_at;

use crate::ApiError;

/// A percent-encoded part of a path as text; none where it is not well formed.
pub(crate) fn decoded(raw: &str) -> Option<String> {
    decode::percent_decode(raw, false).ok()
}

/// The field that a deserialisation error is about, and why it was refused.
fn refusal(path: &serde_path_to_error::Path, message: &str) -> ApiError {
    let mut field = path.to_string();
    if field == "." {
        field.clear();
    }
    // serde names the field of these in its message only: the path ends at the object around it.
    for about in ["missing field `", "unknown field `", "duplicate field `"] {
        if let Some((name, _)) = message.strip_prefix(about).and_then(|rest| rest.split_once('`'))
            && field != name
            && !field.ends_with(&format!(".{name}"))
        {
            let dot = if field.is_empty() { "" } else { "." };
            field = format!("{field}{dot}{name}");
        }
    }
    if field.is_empty() || field == "?" {
        field = "body".to_owned();
    }
    // The names of our types are nobody's business.
    let reason = match message.split_once("expected struct ") {
        Some((found, _)) => format!("{found}expected an object"),
        None => message.to_owned(),
    };
    ApiError::invalid(field, reason)
}
