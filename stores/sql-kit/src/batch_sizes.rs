//! How many jobs shared each commit.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the buckets; the last bucket has none.
const BOUNDS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// A count of commits by the number of jobs that shared them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchSizes {
    /// How many commits.
    pub commits: u64,
    /// How many jobs they carried together.
    pub jobs: u64,
    /// Per bucket its upper bound (`u64::MAX` for the last) and how many commits carried at most that many jobs and
    /// more than the bound before.
    pub buckets: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    jobs: AtomicU64,
    buckets: [AtomicU64; BOUNDS.len() + 1],
}

impl Counters {
    pub(crate) fn record(&self, jobs: u64) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.jobs.fetch_add(jobs, Ordering::Relaxed);
        self.buckets[BOUNDS.partition_point(|bound| *bound < jobs)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> BatchSizes {
        let bounds = BOUNDS.into_iter().chain([u64::MAX]);
        BatchSizes {
            commits: self.commits.load(Ordering::Relaxed),
            jobs: self.jobs.load(Ordering::Relaxed),
            buckets: bounds
                .zip(&self.buckets)
                .map(|(bound, count)| (bound, count.load(Ordering::Relaxed)))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_counted_in_the_bucket_that_bounds_it() {
        let counters = Counters::default();
        for jobs in [1, 2, 3, 4, 1024, 1025] {
            counters.record(jobs);
        }
        let sizes = counters.read();
        assert_eq!((sizes.commits, sizes.jobs), (6, 2059));
        let counted: Vec<_> = sizes.buckets.into_iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(counted, [(1, 1), (2, 1), (4, 2), (1024, 1), (u64::MAX, 1)]);
    }
}
