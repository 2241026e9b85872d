//! What a process takes from its host, as handles that are passed in: the [`Clock`], [`Random`] numbers, [`Ids`], the
//! place for [`Blocking`] work, and [`Faults`]; and addresses that are kept ([`Reserved`]).
//!
//! Owns: every hidden source of time, chance and threads. Libraries take a [`Host`] and call nothing else, so that the
//! same code runs in production, on a paused clock and in a simulation (clippy forbids the shortcuts).
//! Does not own: what is done with them.
//! On failure: the operating system's random source or boot clock missing stops the process at its start.

mod blocking;
mod clock;
mod faults;
mod ids;
mod random;
mod reserved;
mod wall_ages;

pub use blocking::Blocking;
pub use clock::{Clock, ClockSource, ManualClock};
#[cfg(feature = "lab")]
pub use faults::FaultSyntax;
pub use faults::Faults;
pub use ids::Ids;
pub use random::Random;
pub use reserved::Reserved;
pub use wall_ages::WallAges;

/// All handles of one process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Host {
    /// Monotonic, boot and wall time.
    pub clock: Clock,
    /// Random numbers.
    pub random: Random,
    /// New ids.
    pub ids: Ids,
    /// Where blocking work runs.
    pub blocking: Blocking,
    /// Armed fault points; nothing at all in a build without the feature `lab`.
    pub faults: Faults,
}

impl Host {
    /// The handles of a real process: system clocks, the operating system's randomness, threads. For binaries only.
    #[must_use]
    pub fn system() -> Self {
        let (clock, random) = (Clock::system(), Random::from_os());
        Self {
            ids: Ids::new(clock.clone(), random.clone()),
            clock,
            random,
            blocking: Blocking::threads(),
            faults: Faults::none(),
        }
    }

    /// The handles of a test or simulation: time follows tokio's (paused) clock, randomness a seed, blocking work runs
    /// inline on the caller.
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        let (clock, random) = (Clock::tokio(), Random::seeded(seed));
        Self {
            ids: Ids::new(clock.clone(), random.clone()),
            clock,
            random,
            blocking: Blocking::Inline,
            faults: Faults::none(),
        }
    }
}
