//! A request in the trace of its process: the end of an arrow whose other end is the caller's call.
//!
//! Owns: which requests are recorded (those of the component itself, below `/v1/`), and what of them. Does not own: the
//! ring (`actor-kit`).
//! On failure: a request whose caller leaves is recorded as abandoned when its handler is dropped.

use super::Shared;
use crate::extract::{Noted, raw_value_at, token_of};
use crate::openapi::Route;
use actix_web::dev::ServiceRequest;
use actix_web::http::StatusCode;
use actix_web::web::Data;
use actor_kit::{About, OpenRecord, Outcome, REQUEST, TraceContext};
use http_contract::Code;
use std::sync::Arc;

/// A request under way; recorded when it goes.
pub(super) struct Recording {
    record: OpenRecord,
    noted: Noted,
}

impl Recording {
    /// None where the request is not recorded: probes, scrapes and whoever reads the trace would fill it with themselves.
    pub(super) fn begin(
        shared: &Data<Shared>,
        request: &ServiceRequest,
        route: Option<&Arc<Route>>,
        trace: TraceContext,
        caller: Option<&TraceContext>,
    ) -> Option<(Self, Noted)> {
        let route = route.filter(|route| route.template.starts_with("/v1/"))?;
        let name = route.name(request.method().as_str())?;
        let mut record = shared.kit.record_of(trace, caller, &shared.requests, REQUEST, name)?;
        record.about(about(&route.template, request.uri().path()));
        if let Some(token) = token_of(request.headers()) {
            record.token(token);
        }
        let noted = Noted::default();
        let recording = Self {
            record,
            noted: noted.clone(),
        };
        Some((recording, noted))
    }

    pub(super) fn end(mut self, status: StatusCode, code: Option<Code>, panicked: bool) {
        let outcome = match status {
            _ if panicked => Outcome::Panicked,
            status if status.is_server_error() => Outcome::Failed,
            status if status.is_client_error() => Outcome::Refused,
            _ => Outcome::Answered,
        };
        self.record.outcome(outcome, code.map(Code::as_str));
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // What the handler has learned is said before the record itself is dropped.
        let (token, about) = self.noted.take();
        if let Some(token) = token {
            self.record.token(token);
        }
        if about != About::Nothing {
            self.record.about(about);
        }
    }
}

/// The key or payout that the path names.
fn about(template: &str, path: &str) -> About {
    let named = |name| {
        let raw = raw_value_at(template, path, name)?;
        crate::extract::decoded(raw)
    };
    if let Some(key) = named("key") {
        About::Key(key.into())
    } else if let Some(payout) = named("payout_id") {
        About::Payout(payout.into())
    } else {
        About::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_tells_what_it_is_about() {
        let cases = [
            (
                "/v1/locks/{key}/acquire",
                "/v1/locks/payout%3AA/acquire",
                About::Key("payout:A".into()),
            ),
            (
                "/v1/payouts/{payout_id}",
                "/v1/payouts/p-1",
                About::Payout("p-1".into()),
            ),
            // What cannot be read is refused elsewhere.
            ("/v1/locks/{key}", "/v1/locks/%zz", About::Nothing),
            ("/v1/sessions/{id}", "/v1/sessions/s", About::Nothing),
        ];
        for (template, path, expected) in cases {
            assert_eq!(about(template, path), expected, "{path}");
        }
    }
}
