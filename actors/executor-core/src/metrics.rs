//! What the executor counts (C4.2). How long a payout takes from its creation is the payment resource's to say. Labels are closed sets; no payout, account or token in any of them (NFR-09).

use crate::flow::Ending;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use std::time::Duration;

/// The critical section takes 200–800 ms, a rail that keeps silent 10 s.
const BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30.0];

/// The metrics of one executor process.
#[derive(Clone, Debug)]
pub struct ExecutorMetrics {
    duration: HistogramVec,
    lookups: IntCounterVec,
}

impl ExecutorMetrics {
    /// Made and registered once per process.
    ///
    /// # Errors
    /// Whatever the registry refuses: a second registration of the same name.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let duration = HistogramVec::new(
            HistogramOpts::new(
                "executor_payout_duration_seconds",
                "From the moment a worker takes a payout in hand until it puts it down, by how that ended.",
            )
            .buckets(BUCKETS.to_vec()),
            &["outcome"],
        )?;
        registry.register(Box::new(duration.clone()))?;
        for label in Ending::LABELS {
            duration.with_label_values(&[label]);
        }
        let lookups = IntCounterVec::new(
            Opts::new(
                "executor_lookups_total",
                "Lookups of ambiguous payouts at the rail, by what was concluded.",
            ),
            &["verdict"],
        )?;
        registry.register(Box::new(lookups.clone()))?;
        for label in ["executed", "declined", "not_received", "inconclusive", "unanswered"] {
            lookups.with_label_values(&[label]);
        }
        Ok(Self { duration, lookups })
    }

    pub(crate) fn ended(&self, ending: &Ending, took: Duration) {
        self.duration
            .with_label_values(&[ending.label()])
            .observe(took.as_secs_f64());
    }

    pub(crate) fn looked_up(&self, verdict: &'static str) {
        self.lookups.with_label_values(&[verdict]).inc();
    }
}
