//! The `actor_*` metrics of C4.2. Their labels are kinds of actors and names of messages: closed sets.

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

/// From 10 µs, what a message between actors costs, to 2.5 s, where something is wrong.
const BUCKETS: &[f64] = &[
    0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 2.5,
];

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) depth: IntGaugeVec,
    pub(crate) restarts: IntCounterVec,
    handle: HistogramVec,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        const VALID: &str = "the name and the labels are literals that Prometheus admits";
        let metrics = Self {
            depth: IntGaugeVec::new(
                Opts::new(
                    "actor_mailbox_depth",
                    "Messages waiting in mailboxes, by kind of actor.",
                ),
                &["actor"],
            )
            .expect(VALID),
            restarts: IntCounterVec::new(
                Opts::new("actor_restarts_total", "Restarts after a panic, by kind of actor."),
                &["actor"],
            )
            .expect(VALID),
            handle: HistogramVec::new(
                HistogramOpts::new(
                    "actor_handle_duration_seconds",
                    "Time spent in a handler, by kind of actor and message.",
                )
                .buckets(BUCKETS.to_vec()),
                &["actor", "message"],
            )
            .expect(VALID),
        };
        for collector in [
            Box::new(metrics.depth.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(metrics.restarts.clone()),
            Box::new(metrics.handle.clone()),
        ] {
            if let Err(error) = registry.register(collector) {
                tracing::warn!(event = "metric_not_registered", %error);
            }
        }
        metrics
    }

    pub(crate) fn handle(&self, actor: &'static str, message: &'static str) -> Histogram {
        self.handle.with_label_values(&[actor, message])
    }
}
