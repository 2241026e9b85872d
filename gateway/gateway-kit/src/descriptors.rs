//! How many files and sockets this process may have open, and what of that is for whom (case L40).
//!
//! Owns: the limit of the operating system, raised to the hard one at the start; the share of it that connections get.
//! Does not own: any descriptor.
//! On failure: a limit below which nothing can be served ends the process at its start, and says what to raise.

use std::io;
use std::sync::OnceLock;

/// The least limit a component starts with: its stores, its threads and its standard streams take about half of it.
pub const DESCRIPTORS_MIN: u64 = 64;

/// The least limit of an operator's verb.
const DESCRIPTORS_OF_A_COMMAND: u64 = 24;

/// What is kept for stores, outgoing calls and whatever else is opened later: a quarter of the limit, within these bounds.
const RESERVE: std::ops::RangeInclusive<u64> = 16..=2_048;

/// What each HTTP thread opens for itself.
const PER_WORKER: u64 = 8;

/// What is taken for open where the operating system does not say.
const OPEN_GUESSED: u64 = 48;

/// What the operating system grants this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit in force.
    pub limit: u64,
    /// The limit that the process was started with.
    pub limit_before: u64,
}

impl Descriptors {
    /// Refuses to begin with fewer than an actor system of one thread needs, without a word of panic.
    ///
    /// # Errors
    /// The limit is too low.
    pub fn enough_for_a_command() -> io::Result<()> {
        match rlimit::Resource::NOFILE.get_soft() {
            Ok(limit) if limit < DESCRIPTORS_OF_A_COMMAND => Err(io::Error::other(format!(
                "the limit of open files is {limit}, and at least {DESCRIPTORS_OF_A_COMMAND} are needed: raise it (ulimit -n)"
            ))),
            _ => Ok(()),
        }
    }

    /// Raises the soft limit of open files to the hard one. A second call changes nothing. For components: what a command
    /// starts inherits its limit, and not every program can do with a high one.
    ///
    /// # Errors
    /// The limit stays below [`DESCRIPTORS_MIN`].
    pub fn raise() -> io::Result<Self> {
        static BEFORE: OnceLock<u64> = OnceLock::new();
        let soft = rlimit::Resource::NOFILE.get_soft()?;
        let limit_before = *BEFORE.get_or_init(|| soft);
        // One that cannot be raised is no reason not to serve within it.
        let limit = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(soft);
        if limit < DESCRIPTORS_MIN {
            return Err(io::Error::other(format!(
                "the limit of open files is {limit}, and at least {DESCRIPTORS_MIN} are needed: raise it (ulimit -n, LimitNOFILE)"
            )));
        }
        Ok(Self { limit, limit_before })
    }

    /// How many connections may be open at once, beside what is open now and a reserve; at most `configured`.
    ///
    /// # Errors
    /// So little is left that no caller could be served beside another.
    pub(crate) fn connections(self, configured: usize, workers: usize) -> io::Result<Bounds> {
        let open = open_now().unwrap_or(OPEN_GUESSED);
        Bounds::of(self.limit, open, configured, workers).ok_or_else(|| {
            io::Error::other(format!(
                "of {} open files {open} are in use, which leaves no room for connections: raise the limit (ulimit -n, LimitNOFILE)",
                self.limit
            ))
        })
    }
}

/// How the descriptors are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The most connections that are kept while they are idle: beyond it the longest idle one is closed.
    pub(crate) connections: usize,
    /// The most connections that are open at all; further ones wait in the kernel's backlog. The difference serves new callers
    /// while all others are busy, one answer each.
    pub(crate) connections_hard: usize,
    /// The most of them whose request waits on purpose: queued acquires and event streams.
    pub(crate) waiting: usize,
    /// What is left to stores and outgoing calls.
    pub(crate) reserve: u64,
}

impl Bounds {
    fn of(limit: u64, open: u64, configured: usize, workers: usize) -> Option<Self> {
        let reserve = (limit / 4).clamp(*RESERVE.start(), *RESERVE.end());
        let threads = PER_WORKER.saturating_mul(u64::try_from(workers).unwrap_or(u64::MAX));
        let left = limit
            .saturating_sub(open)
            .saturating_sub(threads)
            .saturating_sub(reserve);
        let hard = configured.min(usize::try_from(left).unwrap_or(usize::MAX));
        let connections = hard.checked_sub((hard / 8).clamp(1, 256))?.max(1);
        Some(Self {
            connections,
            connections_hard: hard,
            waiting: (connections / 4 * 3).max(1),
            reserve,
        })
    }
}

fn open_now() -> Option<u64> {
    let listed = std::fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(listed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_left_whatever_is_configured() {
        for limit in [64, 256, 1_024, 20_000, 1_048_576] {
            let bounds = Bounds::of(limit, 30, 1_000_000, 1).unwrap();
            let connections = u64::try_from(bounds.connections_hard).unwrap();
            assert!(connections + 30 + bounds.reserve <= limit, "{limit}: {bounds:?}");
            assert!(bounds.connections < bounds.connections_hard && bounds.waiting <= bounds.connections);
        }
        assert_eq!(Bounds::of(1_048_576, 30, 10_000, 1).unwrap().connections_hard, 10_000);
        assert_eq!(Bounds::of(1_024, 30, 1, 1).unwrap().connections, 1);
        assert_eq!(Bounds::of(64, 60, 10_000, 1), None);
    }
}
