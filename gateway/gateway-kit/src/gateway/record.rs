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
use actor_kit::{About, Kit, Outcome, REQUEST, TraceContext, TraceRecord};
use http_contract::Code;
use std::sync::Arc;
use std::time::Duration;

/// A request under way; recorded when it goes.
pub(super) struct Recording {
    kit: Kit,
    actor: Arc<str>,
    name: &'static str,
    began: Duration,
    trace: TraceContext,
    parent_span: [u8; 8],
    token: Option<u64>,
    about: About,
    noted: Noted,
    outcome: (Outcome, Option<&'static str>),
}

impl Recording {
    /// None where the request is not recorded: probes, scrapes and whoever reads the trace would fill it with themselves.
    pub(super) fn begin(
        shared: &Data<Shared>,
        request: &ServiceRequest,
        route: Option<&Arc<Route>>,
        trace: TraceContext,
        caller: Option<&TraceContext>,
        began: Duration,
    ) -> Option<(Self, Noted)> {
        let route = route.filter(|route| route.template.starts_with("/v1/"))?;
        if !shared.kit.trace().is_on() {
            return None;
        }
        let noted = Noted::default();
        let recording = Self {
            kit: shared.kit.clone(),
            actor: shared.requests.clone(),
            name: route.name(request.method().as_str())?,
            began,
            trace,
            parent_span: caller.map_or([0; 8], TraceContext::span_id),
            token: token_of(request.headers()),
            about: about(&route.template, request.uri().path()),
            noted: noted.clone(),
            outcome: (Outcome::Abandoned, None),
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
        self.outcome = (outcome, code.map(Code::as_str));
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let (token, about) = self.noted.take();
        let (outcome, code) = self.outcome;
        self.kit.trace().record(TraceRecord {
            seq: 0,
            actor: self.actor.clone(),
            kind: REQUEST,
            message: self.name,
            at: self.began,
            queued: Duration::ZERO,
            handled: self.kit.clock().mono().saturating_sub(self.began),
            outcome,
            code,
            trace: self.trace,
            parent_span: self.parent_span,
            token: token.or(self.token),
            about: match about {
                About::Nothing => std::mem::take(&mut self.about),
                about => about,
            },
        });
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
