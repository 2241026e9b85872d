//! What travels over HTTP between dlock's processes: bodies, problems, header names. Used by both sides, so that a
//! server and its clients cannot disagree about a field.
//!
//! Owns: the JSON shape of contracts C3 and the problem codes. Requests refuse unknown fields; answers are read
//! leniently, so that an older client reads a newer server.
//! Does not own: validation against bounds (the gateways), transport (`http-client`), or any behaviour.
//! On failure: there is none; these are plain data.
//!
//! JSON durations are integer milliseconds with the suffix `_ms`; instants are RFC 3339 UTC; money is an integer of
//! minor units plus an ISO 4217 code; a token is an integer, 1 ≤ token < 2^53.

pub mod header;
pub mod lock;
pub mod payment;
pub mod problem;
pub mod rail;
pub mod refusal;

pub use problem::{Code, Problem};

use lock_api::{FencingToken, InvalidValue};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// One page of a list: `?limit=` (1–1000, default 100) and `?cursor=` (C3.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items of this page, in the list's order.
    pub items: Vec<T>,
    /// Where the next page begins; null on the last one. Opaque.
    pub next_cursor: Option<String>,
}

/// The page size when the query names none (C3.1).
pub const PAGE_LIMIT_DEFAULT: u32 = 100;

/// The largest page (C3.1).
pub const PAGE_LIMIT_MAX: u32 = 1000;

/// A token off the wire: the one way from a number in a JSON body to a [`FencingToken`].
///
/// # Errors
/// [`InvalidValue`] naming `token` when the number is outside 1 ..= 2^53 − 1.
#[allow(
    clippy::disallowed_methods,
    reason = "the wire is one of the two entrances of a token"
)]
pub const fn token(value: u64) -> Result<FencingToken, InvalidValue> {
    FencingToken::from_store(value)
}

/// Deserializes an optional field that may be left out but not be `null`: with `#[serde(default, deserialize_with)]`
/// a `null` is an error that names the field, instead of silently meaning the default (case L14).
///
/// # Errors
/// Whatever `T` refuses.
pub fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
