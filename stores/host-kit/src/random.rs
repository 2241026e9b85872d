//! Chance.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha12Rng;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The one source of random numbers of a process, seeded from the operating system or by hand. Cheap to clone; clones
/// draw from the same stream.
#[derive(Clone)]
pub struct Random(Arc<Mutex<ChaCha12Rng>>);

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random")
    }
}

impl Random {
    /// Seeded by the operating system.
    #[must_use]
    pub fn from_os() -> Self {
        Self(Arc::new(Mutex::new(ChaCha12Rng::from_os_rng())))
    }

    /// Seeded by hand: the same seed gives the same numbers in the same order.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(ChaCha12Rng::seed_from_u64(seed))))
    }

    fn with<T>(&self, f: impl FnOnce(&mut ChaCha12Rng) -> T) -> T {
        // The generator's state is whole after a panic elsewhere.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number of 64 bits.
    #[must_use]
    pub fn u64(&self) -> u64 {
        self.with(RngCore::next_u64)
    }

    /// A number of 128 bits.
    #[must_use]
    pub fn u128(&self) -> u128 {
        self.with(Rng::random)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.with(|rng| rng.random_range(0..bound))
        }
    }

    /// True with the given probability, 0 to 1.
    #[must_use]
    pub fn chance(&self, probability: f64) -> bool {
        self.with(|rng| rng.random_bool(probability.clamp(0.0, 1.0)))
    }

    /// A duration between zero and `longest`, evenly: full jitter (FR-28).
    #[must_use]
    pub fn up_to(&self, longest: Duration) -> Duration {
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.below(nanos.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let draw = |seed| {
            let random = Random::seeded(seed);
            (0..8).map(|_| random.u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn jitter_stays_within_its_bound() {
        let random = Random::seeded(1);
        assert!((0..1000).all(|_| random.up_to(Duration::from_millis(50)) <= Duration::from_millis(50)));
        assert_eq!(random.up_to(Duration::ZERO), Duration::ZERO);
    }
}
