//! What contract tests share: a list of a document's operations each of which must have a test, and the fuzzing of its
//! routes. For dev-dependencies (feature `testing`).

use utoipa::openapi::OpenApi;

/// The document as JSON.
pub(crate) fn json(document: &OpenApi) -> serde_json::Value {
    serde_json::to_value(document).expect("an OpenAPI document is plain data")
}
