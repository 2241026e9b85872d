//! Whether the server takes writes, as the last one that it refused for its own sake says (case L36).

use crate::fate::describe;
use crate::pooled::unavailable;
use lock_api::StoreError;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Error;

/// How often a trial write is made while writes are refused.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// What the server said, behind the word for it.
    trouble: Option<String>,
    looked: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct Writes(Mutex<State>);

impl Writes {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an error that a later write would meet again. Answers whether it is one.
    pub(crate) fn note(&self, error: &Error) -> bool {
        let Some(word) = error.code().and_then(|state| word(state.code())) else {
            return false;
        };
        self.state().trouble = Some(format!("{word}: {}", describe(error)));
        true
    }

    pub(crate) fn trouble(&self) -> Option<StoreError> {
        self.state().trouble.clone().map(unavailable)
    }

    /// Whether it is time for a trial write.
    pub(crate) fn looks(&self) -> bool {
        let (mut state, now) = (self.state(), Instant::now());
        let due = state
            .looked
            .is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY);
        if due {
            state.looked = Some(now);
        }
        due
    }

    pub(crate) fn work_again(&self) {
        *self.state() = State::default();
    }
}

/// The word for a SQLSTATE that says why nothing can be written.
pub(crate) fn word(code: &str) -> Option<&'static str> {
    match code {
        "53100" => Some("full"),
        "25006" => Some("read_only"),
        "58030" => Some("disk"),
        _ => None,
    }
}
