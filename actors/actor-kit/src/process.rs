//! Which process a trace belongs to, and how its monotonic clock stands to the wall clock.

use host_kit::Clock;
use serde::Serialize;
use std::sync::OnceLock;
use std::time::Duration;

/// The identity of a process in its dumps: what tells two instances, and two lives of one instance, apart.
#[derive(Debug)]
pub struct Process {
    component: &'static str,
    instance: OnceLock<Box<str>>,
    pid: u32,
    boot_id: String,
}

impl Process {
    pub(crate) fn new(component: &'static str, random: u64) -> Self {
        Self {
            component,
            instance: OnceLock::new(),
            pid: std::process::id(),
            boot_id: format!("{random:016x}"),
        }
    }

    /// The component: `lock-server`, `payout-executor`, …
    #[must_use]
    pub const fn component(&self) -> &'static str {
        self.component
    }

    /// Its name among others of its kind: what [`crate::Kit::name_instance`] said, else the host's name.
    #[must_use]
    pub fn instance(&self) -> &str {
        self.instance.get_or_init(|| {
            // The kernel's own word for it; a machine without that file is called by nothing.
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            name.trim().into()
        })
    }

    pub(crate) fn name(&self, instance: &str) {
        // The first name stays: records that were dumped under it must not change their process.
        let _ = self.instance.set(instance.into());
    }

    /// The operating system's number of it. Two hosts may have the same.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// A random number of this life of the process, as 16 hexadecimal digits: a restart has another one.
    #[must_use]
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }
}

/// One moment by both clocks: what turns `at_ns` into wall time, and lines up the dumps of several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Anchor {
    /// The moment by the monotonic clock of the process, in nanoseconds since an arbitrary start.
    pub at_ns: u64,
    /// The same moment by the wall clock, in microseconds since 1970.
    pub wall_us: i64,
    /// How far apart the two readings can be at most. It says nothing of how right the wall clock is.
    pub error_ns: u64,
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How often the clocks are read for one anchor; the tightest pair counts.
const READINGS: usize = 3;

impl Anchor {
    /// Reads both clocks now. The wall clock is read between two readings of the monotonic one, so that a thread that was
    /// put to sleep in between shows.
    #[must_use]
    pub fn now(clock: &Clock) -> Self {
        let read = || {
            let before = clock.mono();
            let wall_us = clock.wall_us();
            let apart = clock.mono().saturating_sub(before);
            Self {
                at_ns: nanos(before + apart / 2),
                wall_us,
                // The wall clock's own grain is a microsecond.
                error_ns: nanos(apart / 2) + 1_000,
            }
        };
        (1..READINGS).fold(read(), |best, _| {
            let next = read();
            if next.error_ns < best.error_ns { next } else { best }
        })
    }

    /// The wall time of a moment of the monotonic clock, in microseconds since 1970: right as long as neither the wall
    /// clock was set nor the host suspended in between.
    #[must_use]
    pub fn wall_us(&self, at: Duration) -> i64 {
        let signed = |ns: u64| i128::from(ns);
        let apart_us = (signed(nanos(at)) - signed(self.at_ns)).div_euclid(1_000);
        self.wall_us.saturating_add(i64::try_from(apart_us).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_dates_what_was_before_and_after_it() {
        let hand = host_kit::ManualClock::new();
        hand.advance(Duration::from_secs(5));
        hand.jump_wall_ms(1_000_000);
        let anchor = Anchor::now(&hand.clock());
        assert_eq!((anchor.at_ns, anchor.wall_us), (5_000_000_000, 1_005_000_000));
        assert_eq!(anchor.wall_us(Duration::from_secs(4)), 1_004_000_000);
        assert_eq!(anchor.wall_us(Duration::from_secs(6)), 1_006_000_000);
        // Rounded down, before the anchor as well as after it.
        assert_eq!(anchor.wall_us(Duration::from_nanos(4_999_999_999)), 1_004_999_999);
    }

    #[test]
    fn the_first_name_of_an_instance_stays() {
        let process = Process::new("test", 7);
        process.name("W1");
        process.name("W2");
        assert_eq!((process.instance(), process.boot_id()), ("W1", "0000000000000007"));
    }
}
