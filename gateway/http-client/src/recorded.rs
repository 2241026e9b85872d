//! A call in the trace of the process that makes it: the end of an arrow whose other end is the request at the server.
//!
//! Owns: the span of a call, told to the server as the request's cause, and how the call ended. Does not own: the ring
//! (`actor-kit`).
//! On failure: a call that is given up while it is under way is recorded as abandoned when its future is dropped.

use crate::CallError;
use crate::call::Head;
use actor_kit::{About, CALL, Kit, Outcome, TraceContext, TraceRecord};
use lock_api::LockKey;
use std::sync::Arc;
use std::time::Duration;

/// Where the calls of one caller are recorded.
#[derive(Clone)]
pub(crate) struct CallTrace {
    kit: Kit,
    actor: Arc<str>,
}

impl CallTrace {
    pub(crate) fn new(kit: &Kit, peer: &str) -> Self {
        Self {
            actor: format!("{}/calls/{peer}", kit.component()).into(),
            kit: kit.clone(),
        }
    }
}

/// What a call is about, borrowed until it is known that the call is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    Nothing,
    Key(&'a LockKey),
    Payout(&'a str),
}

impl Subject<'_> {
    fn owned(self) -> About {
        match self {
            Self::Nothing => About::Nothing,
            Self::Key(key) => About::Key(key.as_str().into()),
            Self::Payout(payout) => About::Payout(payout.into()),
        }
    }
}

/// A call under way.
pub(crate) struct Open<'a> {
    to: Option<&'a CallTrace>,
    trace: TraceContext,
    cause: TraceContext,
    name: &'static str,
    about: Subject<'a>,
    token: Option<u64>,
    began: Duration,
    outcome: (Outcome, Option<&'static str>),
}

impl<'a> Open<'a> {
    pub(crate) fn begin(to: Option<&'a CallTrace>, head: &Head<'a>) -> Self {
        let to = to.filter(|to| to.kit.trace().is_on());
        Self {
            to,
            trace: to.map_or(*head.trace, |to| to.kit.span_below(head.trace)),
            cause: *head.trace,
            name: head.name,
            about: head.about,
            token: head.token,
            began: to.map_or(Duration::ZERO, |to| to.kit.clock().mono()),
            outcome: (Outcome::Abandoned, None),
        }
    }

    /// What the server is told as its caller's place.
    pub(crate) const fn trace(&self) -> &TraceContext {
        &self.trace
    }

    /// The token that the answer brought.
    pub(crate) const fn token(&mut self, token: u64) {
        self.token = Some(token);
    }

    pub(crate) fn end(mut self, error: Option<&CallError>) {
        self.outcome = match error {
            None => (Outcome::Answered, None),
            Some(CallError::Problem(problem)) if problem.status < 500 => {
                (Outcome::Refused, Some(problem.code.as_str()))
            }
            Some(CallError::Problem(problem)) => (Outcome::Failed, Some(problem.code.as_str())),
            Some(CallError::NotSent(_)) => (Outcome::Failed, Some("NOT_SENT")),
            Some(CallError::Ambiguous(_)) => (Outcome::Failed, Some("NO_ANSWER")),
            Some(CallError::Garbled { .. }) => (Outcome::Failed, Some("UNREADABLE_ANSWER")),
        };
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Some(to) = self.to else { return };
        let (outcome, code) = self.outcome;
        to.kit.trace().record(TraceRecord {
            seq: 0,
            actor: to.actor.clone(),
            kind: CALL,
            message: self.name,
            at: self.began,
            queued: Duration::ZERO,
            handled: to.kit.clock().mono().saturating_sub(self.began),
            outcome,
            code,
            trace: self.trace,
            parent_span: self.cause.span_id(),
            token: self.token,
            about: self.about.owned(),
        });
    }
}
