//! Refusals as `application/problem+json` (RFC 9457, C3.1).

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::{HttpResponse, HttpResponseBuilder, ResponseError};
use actor_kit::AskError;
use http_contract::problem::PROBLEM_JSON;
use http_contract::{Code, Problem};
use lock_api::{InvalidValue, StoreError};
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;

/// A refusal on its way to the caller. The trace id is filled in by the gateway's frame, which knows it.
#[derive(Clone)]
pub struct ApiError(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    detail: String,
    fields: Map<String, Value>,
    retry_after: Option<Duration>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// What it was about, for the gateway alone.
    about: Map<String, Value>,
    trace_id: String,
}

impl ApiError {
    /// A refusal of this code; `detail` says what happened this time, without secrets.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            detail: detail.into(),
            fields: Map::new(),
            retry_after: None,
            headers: Vec::new(),
            about: Map::new(),
            trace_id: String::new(),
        }))
    }

    /// `INVALID_REQUEST` naming the field and what it must be.
    #[must_use]
    pub fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        let (field, reason) = (field.into(), reason.into());
        Self::new(Code::InvalidRequest, format!("{field} {reason}"))
            .field("field", field)
            .field("reason", reason)
    }

    /// Adds a field of the code, as C3 names it. The fields of RFC 9457 and C3.1 themselves cannot be overwritten.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Adds every field of a serialisable struct.
    ///
    /// # Panics
    /// When `body` is not serialised as a JSON object: a mistake in the calling code.
    #[must_use]
    pub fn fields(mut self, body: &impl serde::Serialize) -> Self {
        match serde_json::to_value(body) {
            Ok(Value::Object(map)) => self.0.fields.extend(map),
            other => panic!("the fields of a problem are an object, not {other:?}"),
        }
        self
    }

    /// Says when to ask again (`Retry-After`, whole seconds, at least 1).
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Adds a header to the answer.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.push((name, value));
        self
    }

    /// Says what it was about where the request's path does not. The gateway remembers it with the refusal; it is no field
    /// of the answer.
    #[must_use]
    pub fn about(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.about.insert(name.to_owned(), value.into());
        self
    }

    /// A field of the answer, or what it was about.
    pub(crate) fn known(&self, name: &str) -> Option<&Value> {
        self.0.fields.get(name).or_else(|| self.0.about.get(name))
    }

    /// The trace it is answered in where nobody else can say.
    pub(crate) fn in_trace(mut self, trace_id: String) -> Self {
        self.0.trace_id = trace_id;
        self
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What happened this time.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The problem as it travels.
    #[must_use]
    pub fn problem(&self, trace_id: &str) -> Problem {
        let mut problem = Problem::new(self.0.code, self.0.detail.clone(), trace_id);
        problem.fields.clone_from(&self.0.fields);
        for standard in ["type", "title", "status", "detail", "code", "retryable", "trace_id"] {
            problem.fields.remove(standard);
        }
        problem
    }

    /// The whole answer.
    #[must_use]
    pub fn respond(&self, trace_id: &str) -> HttpResponse {
        let mut response = HttpResponseBuilder::new(self.status_code());
        response.insert_header((header::CONTENT_TYPE, PROBLEM_JSON));
        response.insert_header((header::CACHE_CONTROL, "no-store"));
        if let Some(after) = self.0.retry_after {
            let seconds = after.as_millis().div_ceil(1_000).max(1);
            response.insert_header((header::RETRY_AFTER, seconds.to_string()));
        }
        for (name, value) in &self.0.headers {
            response.insert_header((name.clone(), value.clone()));
        }
        let body = serde_json::to_string(&self.problem(trace_id)).expect("a problem is text, numbers and JSON values");
        response.body(body)
    }
}

impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.detail)
    }
}

impl std::error::Error for ApiError {}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        self.respond(&self.0.trace_id)
    }
}

impl From<InvalidValue> for ApiError {
    fn from(error: InvalidValue) -> Self {
        Self::invalid(error.field, error.reason)
    }
}

/// How long a caller is told to stay away from something that is full or down.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<AskError> for ApiError {
    fn from(error: AskError) -> Self {
        let code = match error {
            AskError::Overloaded => Code::Overloaded,
            AskError::Deadline | AskError::Restarting | AskError::Stopped => Code::BackendUnavailable,
        };
        Self::new(code, error.to_string()).retry_after(RETRY_AFTER)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        // The store's own words stay in the log: they may hold hosts, paths and statements.
        let detail = match &error {
            StoreError::Unavailable { .. } => "the store is unavailable; nothing was done",
            StoreError::Unknown { .. } => "the store's answer did not arrive; it may have been done",
            StoreError::Corrupt { .. } => "the store is damaged; nothing was done",
        };
        tracing::warn!(event = "store_failed", %error);
        Self::new(Code::BackendUnavailable, detail).retry_after(RETRY_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::body::MessageBody;

    fn json(response: HttpResponse) -> Value {
        let body = response.into_body().try_into_bytes().unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn a_problem_has_every_field_of_the_contract() {
        let error = ApiError::new(Code::FencedOut, "token 3 is below 5")
            .field("presented_token", 3)
            .field("status", "cannot be overwritten")
            .retry_after(Duration::from_millis(1_001));
        let response = error.respond("4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(response.status(), 409);
        assert_eq!(
            response.headers().get("content-type").unwrap(),
            "application/problem+json"
        );
        assert_eq!(response.headers().get("retry-after").unwrap(), "2");
        assert_eq!(
            json(response),
            serde_json::json!({
                "type": "/docs/errors/FENCED_OUT", "title": Code::FencedOut.title(), "status": 409,
                "detail": "token 3 is below 5", "code": "FENCED_OUT", "retryable": false,
                "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "presented_token": 3
            })
        );
    }

    #[test]
    fn a_bad_value_is_named_with_its_reason() {
        let body = json(ApiError::from(InvalidValue::new("ttl_ms", "must be at least 1000")).respond(""));
        assert_eq!(
            (body["field"].as_str(), body["code"].as_str()),
            (Some("ttl_ms"), Some("INVALID_REQUEST"))
        );
        assert_eq!(body["reason"], "must be at least 1000");
    }

    #[test]
    fn what_a_store_or_an_actor_did_not_answer_is_503_and_says_whether_it_may_have_been_done() {
        for (error, code, ambiguous) in [
            (ApiError::from(AskError::Overloaded), Code::Overloaded, false),
            (AskError::Deadline.into(), Code::BackendUnavailable, true),
            (AskError::Restarting.into(), Code::BackendUnavailable, true),
            (AskError::Stopped.into(), Code::BackendUnavailable, false),
            (
                StoreError::Unavailable {
                    detail: "secret".into(),
                }
                .into(),
                Code::BackendUnavailable,
                false,
            ),
            (
                StoreError::Unknown {
                    detail: "secret".into(),
                }
                .into(),
                Code::BackendUnavailable,
                true,
            ),
            (
                StoreError::Corrupt {
                    detail: "secret".into(),
                }
                .into(),
                Code::BackendUnavailable,
                false,
            ),
        ] {
            assert_eq!(error.code(), code);
            assert_eq!(error.respond("").status(), 503);
            assert_eq!(error.respond("").headers().get("retry-after").unwrap(), "1");
            assert_eq!(!error.detail().contains("nothing was done"), ambiguous, "{error}");
            assert!(!error.detail().contains("secret"));
        }
    }
}
