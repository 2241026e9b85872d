//! What the database's clock should show.
//!
//! Owns: the guard of C1.1: a database clock that moved more than 1 s against this process's monotonic clock between
//! two answers ends no lease. The comparison itself is made by the database, before it judges anything.

use host_kit::Clock;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// An answer that took longer than this says too little about when the clock was read.
const PRECISE: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Default)]
struct Base {
    /// When, on the monotonic clock, the database's clock showed `db_us`.
    known: Option<(Duration, i64)>,
    /// How often it was set anew after a jump.
    generation: u64,
}

pub(super) struct DbClock {
    clock: Clock,
    base: Mutex<Base>,
}

impl DbClock {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            base: Mutex::new(Base::default()),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Base) -> T) -> T {
        f(&mut self.base.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn mono(&self) -> Duration {
        self.clock.mono()
    }

    /// What it should show now, in microseconds since 1970.
    pub(super) fn expected_us(&self) -> Option<i64> {
        let now = self.clock.mono();
        self.with(|base| base.known)
            .map(|(at, db_us)| db_us.saturating_add(micros(now.saturating_sub(at))))
    }

    /// The database said at some moment since `sent` that its clock shows `db_us`.
    pub(super) fn observe(&self, sent: Duration, db_us: i64) {
        let took = self.clock.mono().saturating_sub(sent);
        if took <= PRECISE {
            self.with(|base| base.known = Some((sent + took / 2, db_us)));
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.with(|base| base.generation)
    }

    /// Begins anew after a jump.
    pub(super) fn restart(&self, sent: Duration, db_us: i64) {
        let took = self.clock.mono().saturating_sub(sent);
        self.with(|base| {
            base.known = Some((sent + took / 2, db_us));
            base.generation += 1;
        });
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
