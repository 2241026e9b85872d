//! The lock server's metrics (C4.2). Labels are closed sets: no key, id or token ever (NFR-09). Everything that may
//! stay zero is created at zero, so that its absence is never mistaken for health.

use lock_api::{LineageState, StoreError};
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use std::time::Duration;

/// Outcomes of an acquire.
pub(crate) const OUTCOMES: [&str; 10] = [
    "granted",
    "held_by_other",
    "delayed",
    "session_not_found",
    "token_regression",
    "witness_refused",
    "unavailable",
    "unknown",
    "overloaded",
    "abandoned",
];

/// Calls to the store.
pub(crate) const OPS: [&str; 9] = [
    "open",
    "heartbeat",
    "close",
    "acquire",
    "renew",
    "release",
    "inspect",
    "expire",
    "read",
];

/// Further calls, of which only the failures are counted.
const RARE_OPS: [&str; 3] = ["revoke", "yield", "housekeep"];

/// How a call to the store fails.
const FAILURES: [&str; 3] = ["unavailable", "unknown", "corrupt"];

/// All of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) acquire_total: IntCounterVec,
    pub(crate) acquire_duration: Histogram,
    pub(crate) wait_duration: Histogram,
    pub(crate) held: IntGauge,
    pub(crate) sessions: IntGauge,
    pub(crate) expired_total: IntCounter,
    pub(crate) revoked_total: IntCounter,
    pub(crate) store_duration: HistogramVec,
    pub(crate) store_batch_size: HistogramVec,
    store_errors: IntCounterVec,
    token_regression: IntGauge,
}

/// Adding one that is registered twice changes nothing: the first stays.
fn register<C: prometheus::core::Collector + Clone + 'static>(registry: &Registry, collector: C) -> C {
    if let Err(error) = registry.register(Box::new(collector.clone())) {
        tracing::warn!(event = "metric_not_registered", %error);
    }
    collector
}

const DURATIONS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

impl Metrics {
    /// Makes and registers them.
    #[must_use]
    #[allow(
        clippy::missing_panics_doc,
        clippy::expect_used,
        reason = "names and labels are constants of this file, checked by its test"
    )]
    pub fn new(registry: &Registry) -> Self {
        const VALID: &str = "constant names and labels are valid";
        let histogram = |name: &str, help: &str| {
            Histogram::with_opts(HistogramOpts::new(name, help).buckets(DURATIONS.to_vec())).expect(VALID)
        };
        let by_op = |name: &str, help: &str, buckets: &[f64]| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), &["op"]).expect(VALID)
        };
        let metrics = Self {
            acquire_total: register(
                registry,
                IntCounterVec::new(Opts::new("lock_acquire_total", "Acquires by outcome."), &["outcome"]).expect(VALID),
            ),
            acquire_duration: register(
                registry,
                histogram(
                    "lock_acquire_duration_seconds",
                    "From the receipt of an acquire to its answer, waiting included.",
                ),
            ),
            wait_duration: register(
                registry,
                histogram(
                    "lock_wait_duration_seconds",
                    "How long granted acquires that were ready to wait stood in the queue.",
                ),
            ),
            held: register(
                registry,
                IntGauge::new("lock_held", "Keys that are held, as far as this replica knows.").expect(VALID),
            ),
            sessions: register(
                registry,
                IntGauge::new("lock_sessions", "Live sessions, as far as this replica knows.").expect(VALID),
            ),
            expired_total: register(
                registry,
                IntCounter::new("lock_expired_total", "Grants that this replica ended at their time.").expect(VALID),
            ),
            revoked_total: register(
                registry,
                IntCounter::new("lock_revoked_total", "Grants that an operator broke.").expect(VALID),
            ),
            store_duration: register(
                registry,
                by_op("lock_store_duration_seconds", "Duration of store calls.", DURATIONS),
            ),
            store_batch_size: register(registry, by_op("lock_store_batch_size", "Items per store call.", SIZES)),
            store_errors: register(
                registry,
                IntCounterVec::new(
                    Opts::new(
                        "lock_store_errors_total",
                        "Store calls that failed: nothing was done (unavailable, corrupt), or that is not known (unknown).",
                    ),
                    &["op", "failure"],
                )
                .expect(VALID),
            ),
            token_regression: register(
                registry,
                IntGauge::new(
                    "lock_token_regression",
                    "1 while the store may have been rewound and nothing is granted until an operator acts, else 0.",
                )
                .expect(VALID),
            ),
        };
        for outcome in OUTCOMES {
            metrics.acquire_total.with_label_values(&[outcome]);
        }
        for op in OPS {
            metrics.store_duration.with_label_values(&[op]);
            metrics.store_batch_size.with_label_values(&[op]);
        }
        for op in OPS.into_iter().chain(RARE_OPS) {
            for failure in FAILURES {
                metrics.store_errors.with_label_values(&[op, failure]);
            }
        }
        metrics
    }

    pub(crate) fn store_call(&self, op: &'static str, size: usize, took: Duration) {
        self.store_duration.with_label_values(&[op]).observe(took.as_secs_f64());
        #[allow(clippy::cast_precision_loss, reason = "a batch has at most some thousand items")]
        self.store_batch_size.with_label_values(&[op]).observe(size as f64);
    }

    pub(crate) fn store_failed(&self, op: &'static str, error: &StoreError) {
        let failure = match error {
            StoreError::Unavailable { .. } => "unavailable",
            StoreError::Unknown { .. } => "unknown",
            StoreError::Corrupt { .. } => "corrupt",
        };
        self.store_errors.with_label_values(&[op, failure]).inc();
    }

    /// Shows what was last seen of the store's trust in its own tokens.
    pub(crate) fn lineage(&self, state: LineageState) {
        self.token_regression.set(i64::from(state == LineageState::Regressed));
    }

    pub(crate) fn count_acquire(&self, outcome: &'static str) {
        self.acquire_total.with_label_values(&[outcome]).inc();
        if outcome == "token_regression" {
            self.lineage(LineageState::Regressed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_stay_zero_exists_at_zero() {
        let registry = Registry::new();
        let _metrics = Metrics::new(&registry);
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        for outcome in OUTCOMES {
            assert!(
                text.contains(&format!("lock_acquire_total{{outcome=\"{outcome}\"}} 0")),
                "{text}"
            );
        }
        for name in [
            "lock_expired_total 0",
            "lock_revoked_total 0",
            "lock_held 0",
            "lock_sessions 0",
            "lock_token_regression 0",
            "lock_store_errors_total{failure=\"unknown\",op=\"acquire\"} 0",
        ] {
            assert!(text.contains(name), "{name} is missing in {text}");
        }
    }
}
