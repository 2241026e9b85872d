//! Ages of what is recorded with a wall clock, while that clock may be set (case P31).

use std::time::Duration;

/// How far a wall clock may move against the boot clock, between two looks, before it counts as set.
const DRIFT_MAX_MS: i64 = 2_000;
/// How many steps are remembered: a clock that is set more often is judged by its latest ones.
const STEPS_MAX: usize = 32;

/// Watches a wall clock against the boot clock of this process, and judges the age of recorded instants by it.
///
/// A step forwards makes what was recorded before it look older; that is taken off again. A step backwards undoes the
/// latest steps forwards. Over a restart nothing is remembered: then the wall clock alone counts.
#[derive(Clone, Debug, Default)]
pub struct WallAges {
    /// Wall time less boot time, when last looked at.
    offset_ms: Option<i64>,
    /// Steps forwards: the last instant of the old time, and by how much it was set.
    steps: Vec<(i64, i64)>,
}

impl WallAges {
    /// Knows of no step yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the clock: it read `wall_ms` at a moment between the two boot times. Answers by how much it was set since
    /// the last look, in milliseconds; 0 where it was not.
    pub fn look(&mut self, wall_ms: i64, from: Duration, to: Duration) -> i64 {
        let ms = |boot: Duration| i64::try_from(boot.as_millis()).unwrap_or(i64::MAX);
        let (least, most) = (wall_ms.saturating_sub(ms(to)), wall_ms.saturating_sub(ms(from)));
        let Some(known) = self.offset_ms else {
            self.offset_ms = Some(most);
            return 0;
        };
        let by = if least > known.saturating_add(DRIFT_MAX_MS) {
            least.saturating_sub(known)
        } else if most < known.saturating_sub(DRIFT_MAX_MS) {
            most.saturating_sub(known)
        } else {
            // What a clock drifts slowly adds up to no step.
            self.offset_ms = Some(known.clamp(least, most));
            return 0;
        };
        self.offset_ms = Some(known.saturating_add(by));
        if by > 0 {
            if self.steps.len() == STEPS_MAX {
                self.steps.remove(0);
            }
            self.steps.push((wall_ms.saturating_sub(by), by));
        } else {
            self.back(by.saturating_neg());
        }
        by
    }

    /// The clock was set back: that much of the latest steps forwards is undone.
    fn back(&mut self, mut by: i64) {
        while let Some((_, step)) = self.steps.last_mut() {
            // What is left of a step that small is drift.
            if *step > by.saturating_add(DRIFT_MAX_MS) {
                *step -= by;
                return;
            }
            by = by.saturating_sub(*step).max(0);
            self.steps.pop();
            if by == 0 {
                return;
            }
        }
    }

    /// How old an instant is that was recorded at `since_ms`, now that the clock reads `now_ms`. Never negative.
    #[must_use]
    pub fn age_ms(&self, now_ms: i64, since_ms: i64) -> i64 {
        let mut since = since_ms;
        for (before, by) in &self.steps {
            if since <= *before {
                since = since.saturating_add(*by);
            }
        }
        now_ms.saturating_sub(since).max(0)
    }

    /// The latest recorded instant whose age is at least `age_ms`, now that the clock reads `now_ms`.
    #[must_use]
    pub fn instant_of_age(&self, now_ms: i64, age_ms: i64) -> i64 {
        let mut instant = now_ms.saturating_sub(age_ms);
        for (before, by) in self.steps.iter().rev() {
            if instant < before.saturating_add(*by) {
                instant = instant.saturating_sub(*by).min(*before);
            }
        }
        instant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn at(ms: i64) -> Duration {
        Duration::from_millis(u64::try_from(ms).unwrap())
    }

    #[test]
    fn a_step_forwards_makes_nothing_older_and_a_step_back_undoes_it() {
        let mut ages = WallAges::new();
        let (t0, mut set) = (1_000 * HOUR, 0);
        let look = |ages: &mut WallAges, boot: i64, set: i64| ages.look(t0 + boot + set, at(boot), at(boot + 5));
        assert_eq!(look(&mut ages, 0, set), 0);
        assert_eq!(look(&mut ages, 1_000, set), 0);
        let old = t0 + 900;
        set = 5 * HOUR;
        assert!((look(&mut ages, 2_000, set) - 5 * HOUR).abs() < 10);
        let now = t0 + 2_000 + set;
        assert!((ages.age_ms(now, old) - 1_100).abs() < 10);
        let ahead = t0 + 1_900 + set;
        assert!((ages.age_ms(now, ahead) - 100).abs() < 10);
        // What is an hour old is so on both sides of the step.
        for since in [old, ahead] {
            let due = |now: i64| since <= ages.instant_of_age(now, HOUR);
            assert!(!due(now) && !due(now + HOUR - 2_000) && due(now + HOUR), "{since}");
        }
        // It is put right: what was recorded before is as old as it is, what was recorded meanwhile lies ahead.
        let by = look(&mut ages, 3_000, 0);
        assert!((by + 5 * HOUR).abs() < 10);
        let now = t0 + 3_000;
        assert!((ages.age_ms(now, old) - 2_100).abs() < 10);
        assert_eq!(ages.age_ms(now, ahead), 0);
        assert_eq!(ages.age_ms(now, t0 + 2_990), 10);
        assert_eq!(ages.instant_of_age(now, HOUR), now - HOUR);
    }

    #[test]
    fn a_slow_look_and_a_slow_drift_are_no_step() {
        let mut ages = WallAges::new();
        assert_eq!(ages.look(10_000, at(0), at(0)), 0);
        // Read somewhere within a look that took ten seconds.
        assert_eq!(ages.look(11_000, at(1_000), at(11_000)), 0);
        for n in 2..200 {
            // A second a look, gained slowly.
            assert_eq!(ages.look(10_000 + n * 2_000, at(n * 1_000), at(n * 1_000)), 0, "{n}");
        }
    }
}
