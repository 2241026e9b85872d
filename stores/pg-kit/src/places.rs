//! How many connections the callers of a pool may want at once (case L46).
//!
//! Owns: one place for each connection that the server lets this pool have. A place whose connection the server refused is
//! given up for a while, so that its caller queues for a connection that exists, behind those who came before.
//! Does not own: the connections.
//! On failure: the last place is never given up: where there is no connection at all, its caller tries until its deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// A caller's place, free again when it is dropped. None where places are not counted any more.
pub(crate) type Place = Option<OwnedSemaphorePermit>;

/// How long after a refusal a place is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The pause of the one caller who tries where there is no connection.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the idle connections are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

struct State {
    /// Places that are not given up.
    open: usize,
    given_up: usize,
    /// When the last place was given up or opened again.
    changed: Instant,
    /// When the idle connections were looked at.
    looked: Instant,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

impl Places {
    pub(crate) fn new(places: usize) -> Self {
        let now = Instant::now();
        Self {
            free: Arc::new(Semaphore::new(places)),
            state: Arc::new(Mutex::new(State {
                open: places,
                given_up: 0,
                changed: now,
                looked: now,
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place, first come, first served.
    pub(crate) async fn take(&self) -> Place {
        {
            let (mut state, now) = (self.state(), Instant::now());
            if state.given_up > 0 && now.duration_since(state.changed) >= AGAIN_AFTER {
                state.given_up -= 1;
                state.open += 1;
                state.changed = now;
                self.free.add_permits(1);
            }
        }
        // Never closed; were it, the bound would be lost and nothing else.
        self.free.clone().acquire_owned().await.ok()
    }

    /// The server refused a connection for this place: gives it up, or, where it is the last one, waits a moment.
    pub(crate) async fn refused(&self, place: Place, until: Instant) {
        let given_up = {
            let mut state = self.state();
            state.changed = Instant::now();
            let others = state.open > 1;
            if others {
                state.open -= 1;
                state.given_up += 1;
            }
            others
        };
        match place {
            Some(place) if given_up => place.forget(),
            place => {
                sleep_until(until.min(Instant::now() + PAUSE)).await;
                drop(place);
            }
        }
    }

    /// Whether it is time to look at the idle connections.
    pub(crate) fn looks_at_idle(&self) -> bool {
        let (mut state, now) = (self.state(), Instant::now());
        let due = now.duration_since(state.looked) >= LOOK_EVERY;
        if due {
            state.looked = now;
        }
        due
    }
}
