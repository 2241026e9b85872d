//! JSON bodies.

use super::refusal;
use super::strict::Strict;
use crate::ApiError;
use crate::gateway::Shared;
use crate::openapi::bounds_of;
use actix_web::dev::Payload;
use actix_web::http::header;
use actix_web::{FromRequest, HttpMessage, HttpRequest, web};
use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use http_contract::Code;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The largest body where no setting says less (C3.1).
const BODY_BYTES_MAX: usize = 65_536;

/// In a request's extensions: true once its body has arrived, so that a time-out can say whose fault it was.
pub(crate) struct BodyRead(pub(crate) Arc<AtomicBool>);

/// A JSON body: `application/json`, at most 64 KiB, UTF-8, one value, no field unknown, missing or given twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned + 'static> FromRequest for Json<T> {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let body = read(&request, payload).await?;
            if body.is_empty() {
                return Err(ApiError::invalid("body", "is required: a JSON object"));
            }
            check_content_type(&request)?;
            parse(&body).map(Self).map_err(|error| with_bounds(error, &request))
        })
    }
}

/// As [`Json`], for routes whose body has no required field: an absent body is the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonOrDefault<T>(pub T);

impl<T: DeserializeOwned + Default + 'static> FromRequest for JsonOrDefault<T> {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let body = read(&request, payload).await?;
            if body.is_empty() {
                return Ok(Self(T::default()));
            }
            check_content_type(&request)?;
            parse(&body).map(Self).map_err(|error| with_bounds(error, &request))
        })
    }
}

fn check_content_type(request: &HttpRequest) -> Result<(), ApiError> {
    let refused = |reason: &str| {
        Err(
            ApiError::new(Code::UnsupportedMediaType, format!("Content-Type {reason}"))
                .field("field", "Content-Type")
                .field("reason", reason),
        )
    };
    let mut values = request.headers().get_all(header::CONTENT_TYPE);
    let (Some(value), None) = (values.next(), values.next()) else {
        return refused("must be given once and be application/json");
    };
    let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    if parts.next() != Some("application/json") {
        return refused("must be application/json");
    }
    for parameter in parts {
        if let Some(charset) = parameter.strip_prefix("charset=")
            && charset.trim_matches('"') != "utf-8"
        {
            return refused("must have no other charset than utf-8");
        }
    }
    match request.headers().get(header::CONTENT_ENCODING) {
        None => Ok(()),
        Some(encoding) if encoding == "identity" => Ok(()),
        Some(_) => Err(
            ApiError::new(Code::UnsupportedMediaType, "Content-Encoding must be identity")
                .field("field", "Content-Encoding")
                .field("reason", "must be identity"),
        ),
    }
}

async fn read(request: &HttpRequest, mut payload: Payload) -> Result<BytesMut, ApiError> {
    let limit = request
        .app_data::<web::Data<Shared>>()
        .map_or(BODY_BYTES_MAX, |shared| shared.body_bytes_max);
    let too_large = || {
        ApiError::new(Code::PayloadTooLarge, format!("the body is larger than {limit} bytes"))
            .field("limit_bytes", limit)
    };
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > limit as u64) {
        return Err(too_large());
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|_| ApiError::invalid("body", "did not arrive whole"))?;
        if body.len() + chunk.len() > limit {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    if let Some(arrived) = request.extensions().get::<BodyRead>() {
        arrived.0.store(true, Ordering::Relaxed);
    }
    Ok(body)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| ApiError::invalid("body", format!("is not UTF-8 at byte {}", error.valid_up_to())))?;
    // First what holds for any JSON, then what holds for this type, so that a broken body is not blamed on a field.
    let mut whole = serde_json::Deserializer::from_str(text);
    let mut path = Vec::new();
    NoDuplicates { path: &mut path }
        .deserialize(&mut whole)
        .map_err(|error| match error.classify() {
            serde_json::error::Category::Data if !path.is_empty() => {
                ApiError::invalid(path.join("."), "must not be given twice")
            }
            _ => ApiError::invalid("body", format!("is not JSON: {error}")),
        })?;
    whole
        .end()
        .map_err(|error| ApiError::invalid("body", format!("has something after its end: {error}")))?;
    let mut typed = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(Strict(&mut typed)).map_err(|error| {
        let message = error.inner().to_string();
        // The position says little about a value and would make the text differ from one formatting to the next.
        let message = message.split(" at line ").next().unwrap_or_default();
        refusal(error.path(), message)
    })
}

/// Adds what the OpenAPI document says about the field: a caller that sent `-1` learns the bounds at once (case L14).
fn with_bounds(error: ApiError, request: &HttpRequest) -> ApiError {
    let problem = error.problem("");
    let (Some(field), Some(reason)) = (problem.text("field"), problem.text("reason")) else {
        return error;
    };
    let Some(shared) = request.app_data::<web::Data<Shared>>() else {
        return error;
    };
    let pattern = request.match_pattern().unwrap_or_default();
    match bounds_of(&shared.openapi, &pattern, request.method().as_str(), field) {
        Some(bounds) => ApiError::invalid(field, format!("{reason}; {bounds}")),
        None => error,
    }
}

/// Walks a JSON value of any shape and refuses an object that has a key twice: which of the two would count is not the
/// same everywhere, and a fence must not depend on it. On failure `path` holds the way to the key.
struct NoDuplicates<'p> {
    path: &'p mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for NoDuplicates<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NoDuplicates<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            self.path.push(key.clone());
            if !keys.insert(key) {
                return Err(serde::de::Error::custom("a key stands twice"));
            }
            map.next_value_seed(NoDuplicates { path: self.path })?;
            self.path.pop();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(NoDuplicates { path: self.path })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read by the derived code")]
    struct Outer {
        owner: String,
        ttl_ms: Option<u64>,
        inner: Option<Inner>,
        metadata: Option<serde_json::Value>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read by the derived code")]
    struct Inner {
        name: String,
        tags: Option<Vec<u8>>,
    }

    fn refused(body: &[u8]) -> (String, String) {
        let error = parse::<Outer>(body).unwrap_err();
        assert_eq!(error.code(), Code::InvalidRequest);
        let problem = error.problem("");
        (
            problem.text("field").unwrap().to_owned(),
            problem.text("reason").unwrap().to_owned(),
        )
    }

    #[test]
    fn every_refusal_names_its_field() {
        let deep = format!(r#"{{"owner":"a","metadata":{}1{}}}"#, "[".repeat(500), "]".repeat(500));
        for (body, field) in [
            (r#"{"owner":"a","wrong":1}"#, "wrong"),
            ("{}", "owner"),
            (r#"{"owner":1}"#, "owner"),
            (r#"{"owner":null}"#, "owner"),
            (r#"{"owner":"a","owner":"b"}"#, "owner"),
            (r#"{"owner":"a","ttl_ms":-1}"#, "ttl_ms"),
            (r#"{"owner":"a","ttl_ms":"15s"}"#, "ttl_ms"),
            (r#"{"owner":"a","ttl_ms":1.5}"#, "ttl_ms"),
            (r#"{"owner":"a","ttl_ms":1e30}"#, "ttl_ms"),
            (r#"{"owner":"a","inner":{}}"#, "inner.name"),
            (r#"{"owner":"a","inner":{"name":1}}"#, "inner.name"),
            (r#"{"owner":"a","inner":{"name":"n","x":1}}"#, "inner.x"),
            (r#"{"owner":"a","inner":{"name":"n","tags":[1,-1]}}"#, "inner.tags[1]"),
            (r#"{"owner":"a","inner":{"name":"n","name":"n"}}"#, "inner.name"),
            (r#"{"owner":"a","metadata":{"x":{"y":1,"y":2}}}"#, "metadata.x.y"),
            (r#"{"owner":"a"} x"#, "body"),
            (r#"{"owner":"a"}{}"#, "body"),
            (r#"{"owner":"a""#, "body"),
            ("[]", "body"),
            (r#"["a",null,null,null]"#, "body"),
            (r#"{"owner":"a","inner":["n",[1]]}"#, "inner"),
            ("null", "body"),
            ("7", "body"),
            ("x", "body"),
            (deep.as_str(), "body"),
        ] {
            let (named, reason) = refused(body.as_bytes());
            assert_eq!(named, field, "for {body}");
            // The name of a type in this code says nothing to a caller.
            assert!(!reason.contains("struct"), "{reason} for {body}");
        }
        let (field, reason) = refused(b"{\"owner\":\"\xff\"}");
        assert_eq!((field.as_str(), reason.as_str()), ("body", "is not UTF-8 at byte 10"));
    }

    #[test]
    fn a_good_body_is_read() {
        let body = parse::<Outer>(r#"{"owner":"a","metadata":{"x":[1,{"x":null}]}}"#.as_bytes()).unwrap();
        assert_eq!(body.owner, "a");
    }
}
