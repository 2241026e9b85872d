//! The OpenAPI document of L1–L11.

use crate::bounds::{Bounds, millis};
use crate::routes;
use gateway_kit::Settings;
use http_contract::lock::{
    AcquireBody, AuditRow, CheckAnswer, CheckVerdict, CloseSessionAnswer, FloorBody, GrantAnswer, HeartbeatAnswer,
    HeartbeatRequest, LineageAnswer, LockView, OpenSessionAnswer, OpenSessionRequest, ReleaseAnswer, RenewBody,
    RevokeAnswer, RevokeBody, SealRow, SessionAnswer, YieldAnswer, YieldBody, YieldRequested,
};
use http_contract::{Page, Problem};
use lock_api::{LockDelay, TOKEN_MAX};
use utoipa::OpenApi;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{Object, RefOr, Schema};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "dlock lock-server",
        description = "Grants leases on keys, each with a strictly increasing fencing token. It knows nothing of what a key protects.",
    ),
    paths(
        routes::open_session,
        routes::list_sessions,
        routes::get_session,
        routes::close_session,
        routes::heartbeat,
        routes::list_locks,
        routes::get_lock,
        routes::acquire,
        routes::renew,
        routes::release,
        routes::revoke,
        routes::ask_to_yield,
        routes::check,
        routes::lock_history,
        routes::watch_lock,
        routes::audit,
        routes::audit_seals,
        routes::get_lineage,
        routes::set_floor,
    ),
    components(schemas(
        OpenSessionRequest, OpenSessionAnswer, HeartbeatRequest, HeartbeatAnswer, CloseSessionAnswer, SessionAnswer,
        AcquireBody, RenewBody, GrantAnswer, ReleaseAnswer, LockView, RevokeBody, RevokeAnswer, YieldBody, YieldAnswer, YieldRequested, CheckAnswer, CheckVerdict, AuditRow, SealRow,
        LineageAnswer, FloorBody, Problem, Page<SessionAnswer>, Page<LockView>, Page<AuditRow>, Page<SealRow>
    )),
)]
struct Document;

/// The document with the default bounds.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    openapi_within(&Bounds::of(&Settings::defaults()))
}

/// The document with this process's bounds: what a refusal names comes from here (case L14).
///
/// # Panics
/// Never: the document is data of this crate, and a test walks it.
#[must_use]
pub fn openapi_within(bounds: &Bounds) -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let (ttl_min, ttl_max) = (millis(bounds.ttl_min), millis(bounds.ttl_max));
    for (schema, field, low, high) in [
        ("OpenSessionRequest", "ttl_ms", ttl_min, ttl_max),
        ("AcquireBody", "ttl_ms", ttl_min, ttl_max),
        ("RenewBody", "ttl_ms", ttl_min, ttl_max),
        ("AcquireBody", "wait_ms", 0, millis(bounds.wait_max)),
        ("AcquireBody", "lock_delay_ms", 0, millis(LockDelay::MAX)),
        ("AcquireBody", "witness_token", 1, TOKEN_MAX),
        ("HeartbeatRequest", "witness_token", 1, TOKEN_MAX),
        ("RevokeBody", "revoke_token", 1, TOKEN_MAX),
        ("YieldBody", "token", 1, TOKEN_MAX),
        ("FloorBody", "floor", 0, TOKEN_MAX),
    ] {
        let property = property(&mut document, schema, field);
        let number = |value| utoipa::Number::UInt(usize::try_from(value).unwrap_or(usize::MAX));
        (property.minimum, property.maximum) = (Some(number(low)), Some(number(high)));
    }
    for (schema, field, shortest, longest) in [
        ("OpenSessionRequest", "owner", 1, 128),
        ("AcquireBody", "session_id", 1, 64),
        ("AcquireBody", "request_id", 1, 64),
        ("RenewBody", "session_id", 1, 64),
        ("RevokeBody", "reason", 8, 500),
        ("YieldBody", "reason", 8, 500),
        ("FloorBody", "reason", 8, 500),
    ] {
        let property = property(&mut document, schema, field);
        (property.min_length, property.max_length) = (Some(shortest), Some(longest));
    }
    for schema in ["OpenSessionRequest", "AcquireBody"] {
        // Any JSON is taken, an object or not.
        property(&mut document, schema, "metadata").schema_type = SchemaType::AnyValue;
    }
    document
}

/// A field of a body.
fn property<'d>(document: &'d mut utoipa::openapi::OpenApi, schema: &str, field: &str) -> &'d mut Object {
    let schemas = document.components.as_mut().map(|components| &mut components.schemas);
    let body = schemas.and_then(|schemas| schemas.get_mut(schema));
    let property = match body {
        Some(RefOr::T(Schema::Object(body))) => body.properties.get_mut(field),
        _ => None,
    };
    match property {
        Some(RefOr::T(Schema::Object(property))) => property,
        _ => panic!("{schema}.{field} is no plain field of the contract"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        let document = serde_json::to_value(openapi()).unwrap();
        let mut ids = BTreeSet::new();
        let mut count = 0;
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap_or_default();
                assert!(!id.is_empty(), "{method} {path} has no operationId");
                ids.insert(id.to_owned());
                count += 1;
            }
        }
        assert_eq!((ids.len(), count), (19, 19));
    }

    #[test]
    fn the_document_carries_the_configured_bounds() {
        let mut bounds = Bounds::of(&Settings::defaults());
        bounds.ttl_min = std::time::Duration::from_millis(200);
        let document = serde_json::to_value(openapi_within(&bounds)).unwrap();
        let ttl = &document["components"]["schemas"]["AcquireBody"]["properties"]["ttl_ms"];
        assert_eq!(
            (ttl["minimum"].as_u64(), ttl["maximum"].as_u64()),
            (Some(200), Some(300_000))
        );
    }
}
