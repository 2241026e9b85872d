//! `application/problem+json` (RFC 9457) and the closed list of codes (C3.1).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal, $retryable:literal, $title:literal;)*) => {
        /// Why a request was refused. Each has a page under `/docs/errors/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Code {
            /// All codes, in the order of this list.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code as it stands on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The HTTP status it is answered with.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Whether the same request may succeed later without anything else being done.
            #[must_use]
            pub const fn retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }

            /// A short human title, the same for every occurrence.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

// Written out, because a derive inside the macro does not see the names of the wire.
impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        let names = Self::ALL.iter().map(|code| code.as_str());
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("Why a request was refused. Each has a page under /docs/errors/."))
            .enum_values(Some(names))
            .into()
    }
}

impl ToSchema for Code {}

codes! {
    /// A field, header or parameter is missing, malformed or out of bounds.
    InvalidRequest = "INVALID_REQUEST", 400, false, "The request is not valid";
    /// A route that takes a token was called without one.
    FencingTokenRequired = "FENCING_TOKEN_REQUIRED", 400, false, "A fencing token is required";
    /// The token header is not a canonical decimal token, or stands twice.
    FencingTokenInvalid = "FENCING_TOKEN_INVALID", 400, false, "The fencing token is malformed";
    /// A page of another site asks for a change.
    ForeignOrigin = "FOREIGN_ORIGIN", 403, false, "Another site may not ask for this";
    /// No such route.
    NotFound = "NOT_FOUND", 404, false, "There is nothing here";
    /// The session is unknown or expired: treat every grant of it as lost.
    SessionNotFound = "SESSION_NOT_FOUND", 404, false, "The session is unknown or expired";
    /// The store does not know the key.
    LockNotFound = "LOCK_NOT_FOUND", 404, false, "The key is unknown";
    /// No such account.
    AccountNotFound = "ACCOUNT_NOT_FOUND", 404, false, "The account does not exist";
    /// No such payout.
    PayoutNotFound = "PAYOUT_NOT_FOUND", 404, false, "The payout does not exist";
    /// No submission of this payout.
    SubmissionNotFound = "SUBMISSION_NOT_FOUND", 404, false, "No submission of this payout exists";
    /// No such exception of the rail.
    ExceptionNotFound = "EXCEPTION_NOT_FOUND", 404, false, "The exception does not exist";
    /// The route exists under another method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", 405, false, "The method is not allowed here";
    /// Somebody else holds the key.
    HeldByOther = "HELD_BY_OTHER", 409, true, "The key is held";
    /// Nobody holds the key; it is closed for a while after an unclean loss.
    LockDelayed = "LOCK_DELAYED", 409, true, "The key is closed for a while";
    /// Session and token are not those of the live grant.
    NotHolder = "NOT_HOLDER", 409, false, "Not the holder";
    /// Nobody holds the key.
    NotHeld = "NOT_HELD", 409, false, "The key is free";
    /// A protected resource refused a stale token. Zero rows changed.
    FencedOut = "FENCED_OUT", 409, false, "The fencing token is stale";
    /// The payout's state does not allow the step.
    IllegalTransition = "ILLEGAL_TRANSITION", 409, false, "The payout's state does not allow this";
    /// The payout changed since it was read.
    VersionConflict = "VERSION_CONFLICT", 409, false, "The payout has changed";
    /// No recorded submission outcome supports the step.
    OutcomeEvidenceMissing = "OUTCOME_EVIDENCE_MISSING", 409, false, "No recorded outcome supports this";
    /// The same identity was given with other contents.
    Conflict = "CONFLICT", 409, false, "It exists with other contents";
    /// The rail's outcome is not known. Never submit again.
    RailAmbiguous = "RAIL_AMBIGUOUS", 409, false, "The rail's outcome is not known";
    /// This very submission is under way: read its state, never send anew.
    SubmissionInFlight = "SUBMISSION_IN_FLIGHT", 409, false, "The submission is under way";
    /// Another token's submission of this payout exists.
    AlreadySubmitted = "ALREADY_SUBMITTED", 409, false, "The payout was submitted before";
    /// The payout is not claimed under this token.
    NotClaimed = "NOT_CLAIMED", 409, false, "The payout is not claimed under this token";
    /// A request that was passed on has no answer: an older one, or this very one. See `reason`.
    InDoubt = "IN_DOUBT", 409, false, "A request has no answer yet";
    /// The body exceeds 64 KiB.
    PayloadTooLarge = "PAYLOAD_TOO_LARGE", 413, false, "The body is too large";
    /// The body is not JSON by its content type.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE", 415, false, "The content type is not supported";
    /// `Host` names another server.
    MisdirectedRequest = "MISDIRECTED_REQUEST", 421, false, "The request names another server";
    /// Available funds do not cover the payout.
    InsufficientFunds = "INSUFFICIENT_FUNDS", 422, false, "Insufficient funds";
    /// The idempotency key was used with another body.
    IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED", 422, false, "The idempotency key was used with another body";
    /// The body does not agree with the payout.
    SubmissionMismatch = "SUBMISSION_MISMATCH", 422, false, "The submission does not agree with the payout";
    /// A defect of this process. Nothing is promised about what was done.
    Internal = "INTERNAL", 500, false, "Internal error";
    /// A mailbox, queue or connection bound is reached.
    Overloaded = "OVERLOADED", 503, true, "Too much at once";
    /// The store could not be reached or did not know. No grant, no change is claimed (FR-27).
    BackendUnavailable = "BACKEND_UNAVAILABLE", 503, true, "The backend is unavailable";
    /// The lock store may have been rewound: no grant until the token floor is raised.
    TokenRegression = "TOKEN_REGRESSION", 503, false, "The lock store may have been rewound";
    /// paydb was restored and the rail has not yet been asked about this payout.
    SubmissionsInDoubt = "SUBMISSIONS_IN_DOUBT", 503, true, "Submissions are in doubt after a restore";
}

impl Code {
    /// Whether the answer says that the request went its way and its outcome is not known, or not yet: it was not refused
    /// (case P30).
    #[must_use]
    pub const fn is_outcome_unknown(self) -> bool {
        matches!(self, Self::RailAmbiguous | Self::SubmissionInFlight)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal as it travels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The page that explains the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code's title.
    pub title: String,
    /// The HTTP status again.
    pub status: u16,
    /// What happened this time.
    pub detail: String,
    /// Why, from the closed list.
    pub code: Code,
    /// Whether the same request may succeed later without anything else being done.
    pub retryable: bool,
    /// The trace this belongs to, 32 hexadecimal digits.
    pub trace_id: String,
    /// Fields of the code, as C3 names them beside it (`field`, `holder`, `presented_token`, …).
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Problem {
    /// A problem of this code with everything that follows from the code filled in.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>, trace_id: impl Into<String>) -> Self {
        Self {
            kind: format!("/docs/errors/{code}"),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code,
            retryable: code.retryable(),
            trace_id: trace_id.into(),
            fields: Map::new(),
        }
    }

    /// A field of the code, as text, if it is there and text.
    #[must_use]
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field)?.as_str()
    }

    /// A field of the code, as a number, if it is there and a whole number.
    #[must_use]
    pub fn number(&self, field: &str) -> Option<u64> {
        self.fields.get(field)?.as_u64()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status, self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_written_as_the_contract_names_it() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), Value::from(code.as_str()));
            assert!(code.as_str().bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
            assert!((400..=503).contains(&code.status()));
        }
    }

    #[test]
    fn fields_of_a_code_stand_beside_the_standard_ones() {
        let mut problem = Problem::new(Code::FencedOut, "token 3 is below 5", "00");
        problem.fields.insert("presented_token".into(), 3.into());
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(
            (json["type"].as_str(), json["presented_token"].as_u64()),
            (Some("/docs/errors/FENCED_OUT"), Some(3))
        );
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
    }
}
