//! How long to wait before the next attempt: full jitter (FR-28).

use host_kit::Random;
use std::time::Duration;

/// Exponential bounds from `base` to `cap`; each wait is drawn evenly between zero and its bound, so that clients which
/// failed together do not come back together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub base: Duration,
    pub cap: Duration,
}

impl Backoff {
    /// The bound of the wait after `failures` failed attempts, counted from 1.
    pub fn bound(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }

    /// The wait after `failures` failed attempts.
    pub fn wait(self, failures: u32, random: &Random) -> Duration {
        random.up_to(self.bound(failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_millis(50),
        cap: Duration::from_secs(1),
    };

    #[test]
    fn bounds_double_up_to_the_cap() {
        let bounds: Vec<_> = (1..=8).map(|n| BACKOFF.bound(n).as_millis()).collect();
        assert_eq!(bounds, [50, 100, 200, 400, 800, 1000, 1000, 1000]);
        assert_eq!(BACKOFF.bound(u32::MAX), BACKOFF.cap);
    }

    #[test]
    fn waits_spread_over_the_whole_range() {
        let random = Random::seeded(3);
        let waits: Vec<_> = (0..1000).map(|_| BACKOFF.wait(5, &random)).collect();
        assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(800)));
        assert!(waits.iter().filter(|wait| **wait < Duration::from_millis(200)).count() > 150);
        assert!(waits.iter().filter(|wait| **wait > Duration::from_millis(600)).count() > 150);
    }
}
