//! The `actor_*` metrics of C4.2. Their labels are kinds of actors and names of messages: closed sets.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// From 10 µs, what a message between actors costs, to 2.5 s, where something is wrong.
const BUCKETS: &[f64] = &[
    0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 2.5,
];

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    depth: IntGaugeVec,
    capacity: IntGaugeVec,
    alive: IntGaugeVec,
    full: IntCounterVec,
    restarts: IntCounterVec,
    handle: HistogramVec,
}

/// The metrics of one kind of actor, without those by message. There from its first actor on, at 0.
#[derive(Clone, Debug)]
pub(crate) struct OfKind {
    pub(crate) depth: IntGauge,
    pub(crate) alive: IntGauge,
    pub(crate) full: IntCounter,
    pub(crate) restarts: IntCounter,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        const VALID: &str = "the name and the labels are literals that Prometheus admits";
        let metrics = Self {
            depth: IntGaugeVec::new(
                Opts::new(
                    "actor_mailbox_depth",
                    "Messages waiting in the mailboxes of all actors of this kind together.",
                ),
                &["actor"],
            )
            .expect(VALID),
            capacity: IntGaugeVec::new(
                Opts::new(
                    "actor_mailbox_capacity",
                    "Messages that the mailbox of one actor of this kind admits.",
                ),
                &["actor"],
            )
            .expect(VALID),
            alive: IntGaugeVec::new(Opts::new("actor_alive", "Live actors of this kind."), &["actor"]).expect(VALID),
            full: IntCounterVec::new(
                Opts::new(
                    "actor_mailbox_full_total",
                    "Messages refused because the mailbox was full, by kind of actor.",
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
            Box::new(metrics.capacity.clone()),
            Box::new(metrics.alive.clone()),
            Box::new(metrics.full.clone()),
            Box::new(metrics.restarts.clone()),
            Box::new(metrics.handle.clone()),
        ] {
            if let Err(error) = registry.register(collector) {
                tracing::warn!(event = "metric_not_registered", %error);
            }
        }
        metrics
    }

    /// Those of a kind whose mailboxes admit this many messages.
    pub(crate) fn of_kind(&self, actor: &'static str, capacity: usize) -> OfKind {
        let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
        self.capacity.with_label_values(&[actor]).set(capacity);
        OfKind {
            depth: self.depth.with_label_values(&[actor]),
            alive: self.alive.with_label_values(&[actor]),
            full: self.full.with_label_values(&[actor]),
            restarts: self.restarts.with_label_values(&[actor]),
        }
    }

    pub(crate) fn handle(&self, actor: &'static str, message: &'static str) -> Histogram {
        self.handle.with_label_values(&[actor, message])
    }
}
