//! An example of each problem, for routes of which no real answer with that code was recorded.

use http_contract::{Code, Problem};
use serde_json::{Value, json};

/// The trace of all examples: that of the W3C's own.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The problem as it may arrive.
pub(super) fn example(code: Code) -> Value {
    let (detail, fields) = occurrence(code);
    let mut problem = Problem::new(code, detail, TRACE);
    if let Value::Object(fields) = fields {
        problem.fields = fields;
    }
    serde_json::to_value(problem).expect("a problem is text, numbers and JSON values")
}

/// For a document that has none.
pub(super) fn schema() -> Value {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    json!({
        "type": "object",
        "description": "A refusal (RFC 9457); fields of the code stand beside these.",
        "required": ["type", "title", "status", "detail", "code", "retryable", "trace_id"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
            "code": {"type": "string", "enum": codes},
            "retryable": {"type": "boolean"},
            "trace_id": {"type": "string"},
        },
        "additionalProperties": true,
    })
}

/// What happened, and the fields of the code.
fn occurrence(code: Code) -> (&'static str, Value) {
    match code {
        Code::InvalidRequest => (
            "ttl_ms must be between 1000 and 300000",
            json!({"field": "ttl_ms", "reason": "must be between 1000 and 300000"}),
        ),
        Code::HeldByOther => (
            "held by worker-1 (token 33)",
            json!({
                "key": "payout:ACC-1",
                "holder": {"owner": "worker-1", "since": "2026-01-02T03:04:05.678Z", "token": 33, "metadata": {}, "self": false},
                "expires_in_ms": 9_412, "waiters": 0, "retry_after_ms": 9_412,
            }),
        ),
        Code::FencedOut => (
            "token 33 is stale: 34 is the highest that was seen",
            json!({"reason": "stale", "presented_token": 33, "highest_token": 34}),
        ),
        Code::IllegalTransition => (
            "a payout that is POSTED cannot become CLAIMED",
            json!({"from": "POSTED", "to": "CLAIMED", "allowed": []}),
        ),
        Code::VersionConflict => (
            "the payout is at version 3, not 2",
            json!({"expected_version": 2, "actual_version": 3}),
        ),
        Code::InsufficientFunds => (
            "available are 5.00 EUR, the payout needs 10.00 EUR",
            json!({"available_minor": 500, "amount_minor": 1_000}),
        ),
        Code::OutcomeEvidenceMissing => (
            "a post needs a recorded ACKED, and no submission is recorded",
            json!({"needed": "ACKED", "recorded": null}),
        ),
        Code::RailAmbiguous => (
            "it is not known whether the rail executed it; look it up, never submit again",
            json!({"submission_id": "01JGKXV3M2Y4QH8Z0T5C7N9RWA", "outcome": "TIMEOUT", "cause": "read_timeout"}),
        ),
        Code::SubmissionInFlight => (
            "it was forwarded and has no outcome yet: read it, never send it anew",
            json!({"submission_id": "01JGKXV3M2Y4QH8Z0T5C7N9RWA"}),
        ),
        Code::AlreadySubmitted => (
            "it was submitted under token 33",
            json!({
                "submission_id": "01JGKXV3M2Y4QH8Z0T5C7N9RWA", "outcome": "ACKED",
                "rail_reference": "R-1", "decline_reason": null,
            }),
        ),
        Code::SubmissionMismatch => ("amount_minor is not the payout's", json!({"field": "amount_minor"})),
        Code::NotClaimed => (
            "the payout is not claimed under token 33",
            json!({"state": "PENDING", "claim_token": null}),
        ),
        Code::InDoubt => (
            "a request of token 33 has no answer yet",
            json!({
                "reason": "older_request_open", "presented_token": 34, "open_token": 33,
                "open_since": "2026-01-02T03:04:05.678Z", "open_requests": 1, "in_flight": false,
            }),
        ),
        Code::FencingTokenRequired => ("X-Fencing-Token is missing", json!({})),
        Code::FencingTokenInvalid => ("X-Fencing-Token is not a decimal token", json!({})),
        Code::ForeignOrigin => (
            "a page of another site may not write here (Origin)",
            json!({"field": "Origin"}),
        ),
        Code::MisdirectedRequest => (
            "Host names another server; names beside addresses, localhost and names without a dot are set with http.hosts",
            json!({"field": "Host"}),
        ),
        Code::Overloaded => ("too many requests wait; nothing was done", json!({})),
        Code::BackendUnavailable => ("the store does not answer; nothing is claimed to be done", json!({})),
        Code::TokenRegression => (
            "the store may have been rewound: no grant until the floor is raised",
            json!({}),
        ),
        // Whose title says it all, and which have no fields.
        _ => (code.title(), json!({})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_example_that_is_a_problem_of_it() {
        for code in Code::ALL {
            let problem: Problem = serde_json::from_value(example(*code)).unwrap();
            assert_eq!((problem.code, problem.status), (*code, code.status()));
        }
    }
}
