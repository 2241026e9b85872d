//! Time.

#![allow(clippy::disallowed_methods, reason = "the one place that reads the system's clocks")]

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where a [`Clock`] reads.
pub trait ClockSource: Send + Sync {
    /// Time since an arbitrary start, never going back. Stands still while the machine is suspended.
    fn mono(&self) -> Duration;
    /// Time since boot, never going back, counting suspension: what a lease deadline is measured with (FR-11).
    fn boot(&self) -> Duration;
    /// Milliseconds since 1970 by the wall clock. May jump. Never decides an expiry.
    fn wall_ms(&self) -> i64;
    /// The same in microseconds, where the source is that fine.
    fn wall_us(&self) -> i64 {
        self.wall_ms().saturating_mul(1_000)
    }
}

/// The one clock of a process. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn ClockSource>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("mono", &self.mono()).finish()
    }
}

impl Clock {
    /// A clock over a source of one's own.
    #[must_use]
    pub fn new(source: impl ClockSource + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// The system's clocks: monotonic, boot and wall.
    #[must_use]
    pub fn system() -> Self {
        Self::new(System {
            base: std::time::Instant::now(),
        })
    }

    /// Follows tokio's clock in all three, so that a paused runtime drives it. Wall time starts at 2026-01-01.
    #[must_use]
    pub fn tokio() -> Self {
        Self::new(Tokio {
            base: tokio::time::Instant::now(),
        })
    }

    /// Monotonic time since an arbitrary start.
    #[must_use]
    pub fn mono(&self) -> Duration {
        self.0.mono()
    }

    /// Boot time: monotonic, counting suspension.
    #[must_use]
    pub fn boot(&self) -> Duration {
        self.0.boot()
    }

    /// Wall time in milliseconds since 1970, for showing and recording.
    #[must_use]
    pub fn wall_ms(&self) -> i64 {
        self.0.wall_ms()
    }

    /// Wall time in microseconds since 1970, for lining up what several processes recorded.
    #[must_use]
    pub fn wall_us(&self) -> i64 {
        self.0.wall_us()
    }

    /// Waits for `duration` of tokio's time.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

struct System {
    base: std::time::Instant,
}

impl ClockSource for System {
    fn mono(&self) -> Duration {
        self.base.elapsed()
    }

    fn boot(&self) -> Duration {
        // CLOCK_BOOTTIME exists since Linux 2.6.39; elsewhere the monotonic clock is the best there is.
        #[cfg(target_os = "linux")]
        if let Ok(spec) = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME) {
            return Duration::from(spec);
        }
        self.base.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        self.wall_us() / 1_000
    }

    fn wall_us(&self) -> i64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
    }
}

struct Tokio {
    base: tokio::time::Instant,
}

/// 2026-01-01T00:00:00Z, where simulated wall time starts.
const SIMULATED_EPOCH_MS: i64 = 1_767_225_600_000;

impl ClockSource for Tokio {
    fn mono(&self) -> Duration {
        self.base.elapsed()
    }

    fn boot(&self) -> Duration {
        self.base.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        SIMULATED_EPOCH_MS + i64::try_from(self.base.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

/// A clock that a test moves by hand, each of the three on its own: a suspended host advances only boot time, a
/// corrected wall clock only wall time. Cheap to clone; clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<(Duration, Duration, i64)>>);

impl ManualClock {
    /// All three at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The clock that reads this.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::new(self.clone())
    }

    fn with<T>(&self, f: impl FnOnce(&mut (Duration, Duration, i64)) -> T) -> T {
        // A poisoned clock is still a clock: the tuple is never left half changed.
        f(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Time passes: all three move.
    pub fn advance(&self, by: Duration) {
        self.with(|t| {
            t.0 += by;
            t.1 += by;
            t.2 += i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        });
    }

    /// The host was suspended: boot and wall time move, monotonic time stands still.
    pub fn suspend(&self, by: Duration) {
        self.with(|t| {
            t.1 += by;
            t.2 += i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        });
    }

    /// The wall clock is set, forwards or backwards.
    pub fn jump_wall_ms(&self, by: i64) {
        self.with(|t| t.2 += by);
    }
}

impl ClockSource for ManualClock {
    fn mono(&self) -> Duration {
        self.with(|t| t.0)
    }

    fn boot(&self) -> Duration {
        self.with(|t| t.1)
    }

    fn wall_ms(&self) -> i64 {
        self.with(|t| t.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_runtime_drives_the_tokio_clock() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let clock = Clock::tokio();
            let (mono, wall) = (clock.mono(), clock.wall_ms());
            clock.sleep(Duration::from_secs(3600)).await;
            assert_eq!(clock.mono() - mono, Duration::from_secs(3600));
            assert_eq!(clock.wall_ms() - wall, 3_600_000);
        });
    }

    #[test]
    fn suspension_moves_boot_time_alone() {
        let hand = ManualClock::new();
        let clock = hand.clock();
        hand.suspend(Duration::from_secs(60));
        assert_eq!((clock.mono(), clock.boot()), (Duration::ZERO, Duration::from_secs(60)));
        hand.jump_wall_ms(-100_000);
        assert_eq!(clock.boot(), Duration::from_secs(60));
    }

    #[test]
    fn the_system_clocks_do_not_go_back() {
        let clock = Clock::system();
        let (m, b) = (clock.mono(), clock.boot());
        assert!(clock.mono() >= m && clock.boot() >= b && clock.wall_ms() > SIMULATED_EPOCH_MS);
    }
}
