//! R8: closing an exception (case P23).

use crate::{CloseException, CloseOutcome, Exception};
use lock_api::UnixMillis;

/// Judges a close by the exception as it stands. `Closed`: it is to be written as it is answered.
pub(crate) fn decide(close: &CloseException, found: Option<Exception>, now: UnixMillis) -> CloseOutcome {
    let Some(exception) = found else {
        return CloseOutcome::NotFound;
    };
    match (&exception.closed_by, &exception.closed_reason) {
        (None, _) => CloseOutcome::Closed(Box::new(Exception {
            closed_by: Some(close.operator.clone()),
            closed_at: Some(now),
            closed_reason: Some(close.reason.clone()),
            ..exception
        })),
        (Some(by), Some(reason)) if *by == close.operator && *reason == close.reason => {
            CloseOutcome::Replay(Box::new(exception))
        }
        _ => CloseOutcome::ClosedBefore(Box::new(exception)),
    }
}
