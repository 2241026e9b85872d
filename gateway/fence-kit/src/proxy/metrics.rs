//! What the proxy counts. Labels are closed sets; nothing names a key or a token.

use gateway_kit::{Label, LabelledCounter};
use http_contract::Code;
use prometheus::{IntGauge, Registry};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A read, passed on without a token.
    Passed,
    /// Passed on under its token, and answered.
    Answered,
    /// Its token was out.
    FencedOut,
    /// An older one had no answer.
    InDoubt,
    /// Passed on, and not answered.
    NoAnswer,
    /// The service could not be reached.
    NeverSent,
    /// Malformed, too large, too many, or the store did not say.
    Refused,
}

impl Label for Outcome {
    const ALL: &'static [Self] = &[
        Self::Passed,
        Self::Answered,
        Self::FencedOut,
        Self::InDoubt,
        Self::NoAnswer,
        Self::NeverSent,
        Self::Refused,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Answered => "answered",
            Self::FencedOut => "fenced_out",
            Self::InDoubt => "in_doubt",
            Self::NoAnswer => "no_answer",
            Self::NeverSent => "never_sent",
            Self::Refused => "refused",
        }
    }
}

impl Outcome {
    /// What a refusal before the send counts as.
    pub(crate) fn of(code: Code) -> Self {
        match code {
            Code::FencedOut => Self::FencedOut,
            Code::InDoubt => Self::InDoubt,
            _ => Self::Refused,
        }
    }
}

/// The proxy's metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ProxyMetrics {
    requests: LabelledCounter,
    in_flight: IntGauge,
    in_doubt: IntGauge,
}

impl ProxyMetrics {
    pub(crate) fn register(registry: &Registry) -> Self {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help).expect("a valid metric name");
            registry
                .register(Box::new(gauge.clone()))
                .expect("a metric is registered once");
            gauge
        };
        Self {
            requests: LabelledCounter::register::<Outcome>(
                registry,
                "fence_requests_total",
                "Requests to the fencing proxy by what became of them.",
                "outcome",
            ),
            in_flight: gauge(
                "fence_requests_in_flight",
                "Fenced requests on their way to the service.",
            ),
            in_doubt: gauge(
                "fence_requests_in_doubt",
                "Fenced requests that were passed on and have no answer: their keys are closed to newer tokens.",
            ),
        }
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.requests.inc(outcome);
    }

    pub(crate) fn levels(&self, in_flight: usize, in_doubt: usize) {
        self.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        self.in_doubt.set(i64::try_from(in_doubt).unwrap_or(i64::MAX));
    }
}
