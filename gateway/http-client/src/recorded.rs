//! A call in the trace of the process that makes it: the end of an arrow whose other end is the request at the server.
//!
//! Owns: the span of a call, told to the server as the request's cause, and how the call ended. Does not own: the ring
//! (`actor-kit`).
//! On failure: a call that is given up while it is under way is recorded as abandoned when its future is dropped.

use crate::CallError;
use crate::call::Head;
use actor_kit::{About, CALL, Kit, OpenRecord, Outcome, TraceContext};
use lock_api::LockKey;
use std::sync::Arc;

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
pub(crate) struct Open {
    /// None where nobody wants it.
    record: Option<OpenRecord>,
    trace: TraceContext,
}

impl Open {
    pub(crate) fn begin(to: Option<&CallTrace>, head: &Head<'_>) -> Self {
        let mut record = to.and_then(|to| to.kit.record_below(head.trace, &to.actor, CALL, head.name));
        if let Some(record) = &mut record {
            record.about(head.about.owned());
            if let Some(token) = head.token {
                record.token(token);
            }
        }
        Self {
            trace: record.as_ref().map_or(*head.trace, |record| *record.trace()),
            record,
        }
    }

    /// What the server is told as its caller's place.
    pub(crate) const fn trace(&self) -> &TraceContext {
        &self.trace
    }

    /// The token that the answer brought.
    pub(crate) const fn token(&mut self, token: u64) {
        if let Some(record) = &mut self.record {
            record.token(token);
        }
    }

    pub(crate) fn end(self, error: Option<&CallError>) {
        let Some(record) = self.record else { return };
        let (outcome, code) = match error {
            None => (Outcome::Answered, None),
            Some(CallError::Problem(problem)) if problem.status < 500 => {
                (Outcome::Refused, Some(problem.code.as_str()))
            }
            Some(CallError::Problem(problem)) => (Outcome::Failed, Some(problem.code.as_str())),
            Some(CallError::NotSent(_)) => (Outcome::Failed, Some("NOT_SENT")),
            Some(CallError::Ambiguous(_)) => (Outcome::Failed, Some("NO_ANSWER")),
            Some(CallError::Garbled { .. }) => (Outcome::Failed, Some("UNREADABLE_ANSWER")),
        };
        record.end(outcome, code);
    }
}
