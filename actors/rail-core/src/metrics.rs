//! The rail's metrics (C4.2). Labels are closed sets; nothing identifies a payout, an account or a token (NFR-09).

use host_kit::WallAges;
use lock_api::UnixMillis;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use rail_store::{Gauges, Outcome};

/// The label of fence point (c).
const POINT: &str = "rail";

/// The counters and gauges of one proxy. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RailMetrics {
    submissions: IntCounterVec,
    duplicate_attempted: IntCounter,
    fenced_out: IntCounter,
    ambiguous_age: Gauge,
    exceptions_open: IntGauge,
    store_errors: IntCounterVec,
}

/// What is asked of the store: the intent, the mark before the send, the rail's answer, a look-up, the survey.
const OPS: [&str; 5] = ["intent", "forward", "outcome", "lookup", "survey"];

const fn label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Acked => "acked",
        Outcome::Declined => "declined",
        Outcome::Timeout => "timeout",
        Outcome::NotReceived => "not_received",
        Outcome::NotSent => "not_sent",
    }
}

impl RailMetrics {
    /// Makes and registers them, each at 0 from the start.
    ///
    /// # Panics
    /// When the registry has them already: a mistake in the calling code, met at the start.
    #[must_use]
    pub fn register(registry: &Registry, fencing_enforced: bool) -> Self {
        let reason = "a valid metric name, registered once";
        let submissions = IntCounterVec::new(
            Opts::new("rail_submissions_total", "Submissions by the outcome first recorded."),
            &["outcome"],
        )
        .expect(reason);
        for outcome in Outcome::ALL {
            let _ = submissions.with_label_values(&[label(outcome)]);
        }
        let duplicate_attempted = IntCounter::new(
            "rail_duplicate_attempted_total",
            "Times a payout was forwarded again, or found executed more than once. Exactly 0 with fencing on.",
        )
        .expect(reason);
        let fenced_out = IntCounterVec::new(
            Opts::new("lock_fenced_out_total", "Requests with a stale token, refused."),
            &["point"],
        )
        .expect(reason);
        let fencing =
            IntGaugeVec::new(Opts::new("fencing_enabled", "1 while the fence stands."), &["point"]).expect(reason);
        fencing.with_label_values(&[POINT]).set(i64::from(fencing_enforced));
        let ambiguous_age = Gauge::new(
            "rail_ambiguous_age_seconds",
            "Age of the oldest submission without a known outcome.",
        )
        .expect(reason);
        let exceptions_open =
            IntGauge::new("rail_exceptions_open", "Exceptions that nobody has closed.").expect(reason);
        let store_errors = IntCounterVec::new(
            Opts::new("rail_store_errors_total", "Store calls of the actors that failed."),
            &["op"],
        )
        .expect(reason);
        for op in OPS {
            let _ = store_errors.with_label_values(&[op]);
        }
        for collector in [
            Box::new(submissions.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(duplicate_attempted.clone()),
            Box::new(fenced_out.clone()),
            Box::new(fencing),
            Box::new(ambiguous_age.clone()),
            Box::new(exceptions_open.clone()),
            Box::new(store_errors.clone()),
        ] {
            registry.register(collector).expect(reason);
        }
        Self {
            submissions,
            duplicate_attempted,
            fenced_out: fenced_out.with_label_values(&[POINT]),
            ambiguous_age,
            exceptions_open,
            store_errors,
        }
    }

    /// A call to the store failed; `op` is one of [`OPS`].
    pub(crate) fn store_failed(&self, op: &'static str) {
        self.store_errors.with_label_values(&[op]).inc();
    }

    /// A submission's outcome was recorded by its forwarder.
    pub(crate) fn submitted(&self, outcome: Outcome) {
        self.submissions.with_label_values(&[label(outcome)]).inc();
    }

    /// A payout is forwarded again, or was found executed more than once (C4.4).
    pub(crate) fn duplicate(&self) {
        self.duplicate_attempted.inc();
    }

    /// A stale token was refused.
    pub fn fenced_out(&self) {
        self.fenced_out.inc();
    }

    /// What the last survey of the store found.
    pub(crate) fn surveyed(&self, gauges: &Gauges, now_ms: i64, ages: &WallAges) {
        let age_ms = gauges
            .ambiguous_since
            .map_or(0, |UnixMillis(since)| ages.age_ms(now_ms, since));
        // A gauge of seconds: what is lost above 2^53 ms does not matter.
        #[allow(clippy::cast_precision_loss, reason = "milliseconds of a few years")]
        self.ambiguous_age.set(age_ms as f64 / 1_000.0);
        self.exceptions_open
            .set(i64::try_from(gauges.exceptions_open).unwrap_or(i64::MAX));
    }
}
