//! The row's metrics (C4.2). Labels are closed sets; nothing names a payout, an account or a token (NFR-09).

use host_kit::WallAges;
use payment_store::{PayoutState, Tally};
use prometheus::core::Collector;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The label of fence point (a).
pub const POINT: &str = "payment";

/// A store call for a step of a payout.
pub(crate) const STEP: &str = "step";
/// A store call of the clock: the tally, escalations.
pub(crate) const SURVEY: &str = "survey";

/// What a step came to, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Done,
    Replayed,
    Refused,
    Failed,
}

impl Came {
    const ALL: [Self; 4] = [Self::Done, Self::Replayed, Self::Refused, Self::Failed];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Replayed => "replayed",
            Self::Refused => "refused",
            Self::Failed => "error",
        }
    }
}

/// Everything this row counts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    state: IntGaugeVec,
    backlog_age: Gauge,
    ambiguous_age: Gauge,
    escalated: IntGauge,
    sla: Gauge,
    store_errors: IntCounterVec,
    duration: Histogram,
    fenced_out: IntCounter,
    steps: IntCounterVec,
}

impl Metrics {
    /// Makes and registers them.
    ///
    /// # Panics
    /// When the registry holds one of them already: a mistake in the calling code, met at the start.
    #[must_use]
    pub fn register(registry: &Registry, fencing_enforced: bool) -> Self {
        const NAME: &str = "the name is a valid metric name";
        let state = IntGaugeVec::new(Opts::new("payout_state", "Payouts by state."), &["state"]).expect(NAME);
        for each in PayoutState::ALL {
            state.with_label_values(&[each.as_str()]).set(0);
        }
        let backlog_age = Gauge::new(
            "payout_backlog_age_seconds",
            "Age of the oldest payout that is claimed, or waits and has funds; 0 when there is none.",
        )
        .expect(NAME);
        let ambiguous_age = Gauge::new(
            "rail_ambiguous_age_seconds",
            "How long the oldest ambiguous payout has been ambiguous; 0 when there is none.",
        )
        .expect(NAME);
        let escalated = IntGauge::new(
            "payout_escalated",
            "Ambiguous payouts past the SLA, waiting for a human.",
        )
        .expect(NAME);
        let duration = Histogram::with_opts(
            HistogramOpts::new("payout_duration_seconds", "From a payout's creation to its end.").buckets(vec![
                0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3_600.0, 14_400.0,
            ]),
        )
        .expect(NAME);
        let fenced_out = IntCounterVec::new(
            Opts::new("lock_fenced_out_total", "Requests with a stale token, refused."),
            &["point"],
        )
        .expect(NAME);
        let fencing =
            IntGaugeVec::new(Opts::new("fencing_enabled", "1 while the fence stands."), &["point"]).expect(NAME);
        fencing.with_label_values(&[POINT]).set(i64::from(fencing_enforced));
        let steps = IntCounterVec::new(
            Opts::new("payout_steps_total", "Steps asked for, by what they came to."),
            &["step", "outcome"],
        )
        .expect(NAME);
        for step in payment_store::Step::ALL {
            for came in Came::ALL {
                let _ = steps.with_label_values(&[step.as_str(), came.as_str()]);
            }
        }
        let sla = Gauge::new(
            "payout_ambiguous_sla_seconds",
            "After how long an ambiguous payout is a human's (executor.ambiguous-sla).",
        )
        .expect(NAME);
        let store_errors = IntCounterVec::new(
            Opts::new("payment_store_errors_total", "Store calls of the actors that failed."),
            &["op"],
        )
        .expect(NAME);
        for op in [STEP, SURVEY] {
            let _ = store_errors.with_label_values(&[op]);
        }
        let collectors: [Box<dyn Collector>; 10] = [
            Box::new(state.clone()),
            Box::new(backlog_age.clone()),
            Box::new(ambiguous_age.clone()),
            Box::new(escalated.clone()),
            Box::new(sla.clone()),
            Box::new(store_errors.clone()),
            Box::new(duration.clone()),
            Box::new(fenced_out.clone()),
            Box::new(fencing),
            Box::new(steps.clone()),
        ];
        for collector in collectors {
            registry.register(collector).expect("a metric is registered once");
        }
        Self {
            state,
            backlog_age,
            ambiguous_age,
            escalated,
            sla,
            store_errors,
            duration,
            fenced_out: fenced_out.with_label_values(&[POINT]),
            steps,
        }
    }

    pub(crate) fn step(&self, step: payment_store::Step, came: Came) {
        self.steps.with_label_values(&[step.as_str(), came.as_str()]).inc();
    }

    /// Counts a call to the store that failed: [`STEP`] or [`SURVEY`].
    pub(crate) fn store_failed(&self, op: &'static str) {
        self.store_errors.with_label_values(&[op]).inc();
    }

    /// Shows after how long an ambiguity is a human's.
    pub(crate) fn sla(&self, sla: std::time::Duration) {
        self.sla.set(sla.as_secs_f64());
    }

    /// Counts a refused stale token.
    pub fn fenced_out(&self) {
        self.fenced_out.inc();
    }

    pub(crate) fn ended(&self, after_ms: i64) {
        self.duration.observe(seconds(after_ms));
    }

    /// Shows what the store counted.
    #[allow(clippy::cast_precision_loss, reason = "ages of less than 2^53 ms")]
    pub(crate) fn show(&self, tally: &Tally, ages: &WallAges) {
        for (state, n) in &tally.by_state {
            let n = i64::try_from(*n).unwrap_or(i64::MAX);
            self.state.with_label_values(&[state.as_str()]).set(n);
        }
        let age = |since: Option<i64>| since.map_or(0.0, |since| seconds(ages.age_ms(tally.now_ms, since)));
        self.backlog_age.set(age(tally.oldest_open_ms));
        self.ambiguous_age.set(age(tally.oldest_ambiguous_ms));
        self.escalated.set(i64::try_from(tally.escalated).unwrap_or(i64::MAX));
    }
}

/// Wall time may have been set back between the two instants; an age is never negative.
#[allow(clippy::cast_precision_loss, reason = "ages of less than 2^53 ms")]
fn seconds(ms: i64) -> f64 {
    ms.max(0) as f64 / 1_000.0
}
