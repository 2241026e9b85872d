//! How fast an actor that panics may come back.

use std::time::Duration;

/// The rate at which a panicking behaviour is rebuilt. It always comes back (a lock service whose clock has died for good
/// serves nobody), but never in a hot loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// How many panics in a row are answered by a restart at once.
    pub immediate: u32,
    /// The first delay after those; each further panic doubles it.
    pub delay: Duration,
    /// The longest delay: at worst one restart in this time.
    pub delay_max: Duration,
    /// After this long without a panic the count begins anew.
    pub quiet: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            immediate: 3,
            delay: Duration::from_millis(50),
            delay_max: Duration::from_secs(5),
            quiet: Duration::from_secs(60),
        }
    }
}

/// The panics of one actor.
#[derive(Debug, Default)]
pub(crate) struct Panics {
    in_a_row: u32,
    last: Option<Duration>,
}

impl Panics {
    /// Counts a panic at `now` and says how long to wait before the restart.
    pub(crate) fn next_delay(&mut self, policy: &RestartPolicy, now: Duration) -> Duration {
        if self.last.is_some_and(|last| now.saturating_sub(last) >= policy.quiet) {
            self.in_a_row = 0;
        }
        self.last = Some(now);
        self.in_a_row = self.in_a_row.saturating_add(1);
        match self.in_a_row.checked_sub(policy.immediate + 1) {
            None => Duration::ZERO,
            Some(doublings) => policy
                .delay
                .saturating_mul(1 << doublings.min(20))
                .min(policy.delay_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_slow_down_to_one_per_longest_delay_and_recover_after_a_quiet_time() {
        let policy = RestartPolicy::default();
        let mut panics = Panics::default();
        let mut now = Duration::ZERO;
        let delays: Vec<_> = (0..12)
            .map(|_| {
                let delay = panics.next_delay(&policy, now);
                now += delay;
                delay.as_millis()
            })
            .collect();
        assert_eq!(delays, [0, 0, 0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(panics.next_delay(&policy, now + policy.quiet), Duration::ZERO);
    }
}
