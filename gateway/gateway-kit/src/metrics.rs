//! Metrics of HTTP, and what every component's metrics share: labels are closed sets (C4.2), nothing identifies a key, a
//! payout, an account, a session or a token (NFR-09).

use crate::openapi::Routes;
use actix_web::http::Method;
use http_contract::Code;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use std::sync::OnceLock;
use std::time::Duration;

/// A set of label values that is closed by its type.
pub trait Label: Copy + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// The value as it stands in the metric: lower case, words joined by underscores.
    fn label(self) -> &'static str;
}

/// A counter with one closed label. Every value is there from the start, at 0, so that a rate over it is never missing.
#[derive(Clone, Debug)]
pub struct LabelledCounter(IntCounterVec);

impl LabelledCounter {
    /// Makes and registers it.
    ///
    /// # Panics
    /// When the registry has it already, or the name is none: mistakes in the calling code, met at the start.
    #[must_use]
    pub fn register<L: Label>(registry: &Registry, name: &str, help: &str, label: &str) -> Self {
        let counter = IntCounterVec::new(Opts::new(name, help), &[label]).expect("a valid metric name");
        registry
            .register(Box::new(counter.clone()))
            .expect("a metric is registered once");
        for value in L::ALL {
            let _ = counter.with_label_values(&[value.label()]);
        }
        Self(counter)
    }

    /// Counts one.
    pub fn inc(&self, value: impl Label) {
        self.0.with_label_values(&[value.label()]).inc();
    }

    /// What was counted so far.
    pub fn get(&self, value: impl Label) -> u64 {
        self.0.with_label_values(&[value.label()]).get()
    }
}

/// Buckets for durations of requests and store calls, in seconds: from 0.5 ms to 30 s, with the bounds of NFR-01 (10 ms,
/// 50 ms) among them.
pub const DURATION_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// The commit that the program was built from, where it has said so.
static COMMIT: OnceLock<&'static str> = OnceLock::new();

/// Says which commit this program was built from, for the metric `build_info` of every component in it. To be called once, before any
/// component is made; what is said later is not heard. A program that says nothing is of an `unknown` one.
pub fn built_from(commit: &'static str) {
    let _ = COMMIT.set(commit);
}

#[derive(Clone, Debug)]
pub(crate) struct HttpMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    in_flight: IntGauge,
}

/// Counts a request as in flight while it lives, however it ends.
pub(crate) struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl HttpMetrics {
    pub(crate) fn register(registry: &Registry, component: &str) -> Self {
        let requests = IntCounterVec::new(
            Opts::new(
                "http_requests_total",
                "Requests by route, method and outcome (ok or a problem code).",
            ),
            &["route", "method", "outcome"],
        )
        .expect("a valid metric name");
        let duration = HistogramVec::new(
            HistogramOpts::new(
                "http_request_duration_seconds",
                "Time from a request's head to its answer's head.",
            )
            .buckets(DURATION_BUCKETS.to_vec()),
            &["route", "method"],
        )
        .expect("a valid metric name");
        let in_flight =
            IntGauge::new("http_requests_in_flight", "Requests that are being answered.").expect("a valid metric name");
        let build = IntGaugeVec::new(
            Opts::new("build_info", "1, labelled with what runs."),
            &["component", "version", "commit", "lab"],
        )
        .expect("a valid metric name");
        let lab = if cfg!(feature = "lab") { "true" } else { "false" };
        build
            .with_label_values(&[
                component,
                env!("CARGO_PKG_VERSION"),
                COMMIT.get().unwrap_or(&"unknown"),
                lab,
            ])
            .set(1);
        // A registry that holds these already belongs to a gateway that was asked for its applications twice; the second
        // one's numbers are then not shown, which is no reason not to serve.
        for collector in [
            Box::new(requests.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(duration.clone()),
            Box::new(in_flight.clone()),
            Box::new(build),
            Box::new(crate::log_queue::LINES_DROPPED.clone()),
            // Memory, file descriptors, processor time and start of the process, where the system tells them.
            #[cfg(target_os = "linux")]
            Box::new(prometheus::process_collector::ProcessCollector::for_self()),
        ] {
            if let Err(error) = registry.register(collector) {
                tracing::warn!(event = "metric_not_registered", %error);
            }
        }
        Self {
            requests,
            duration,
            in_flight,
        }
    }

    /// A failure of ours on one of these routes is there at 0 from the start: the first one must not be missed by a rate.
    pub(crate) fn expect(&self, routes: &Routes) {
        for route in routes.all() {
            for method in &route.methods {
                let labels = [route.template.as_str(), method, Code::Internal.as_str()];
                let _ = self.requests.with_label_values(&labels);
            }
        }
    }

    pub(crate) fn begin(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    pub(crate) fn observe(&self, route: &str, method: &Method, code: Option<Code>, took: Duration) {
        // A method is whatever a client writes; the label is not.
        let method = match method.as_str() {
            known @ ("GET" | "POST" | "PUT" | "DELETE" | "PATCH" | "HEAD" | "OPTIONS") => known,
            _ => "other",
        };
        let outcome = code.map_or("ok", Code::as_str);
        self.requests.with_label_values(&[route, method, outcome]).inc();
        self.duration
            .with_label_values(&[route, method])
            .observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Colour {
        Red,
        Blue,
    }

    impl Label for Colour {
        const ALL: &'static [Self] = &[Self::Red, Self::Blue];

        fn label(self) -> &'static str {
            match self {
                Self::Red => "red",
                Self::Blue => "blue",
            }
        }
    }

    #[test]
    fn every_value_of_a_closed_label_is_there_from_the_start() {
        let registry = Registry::new();
        let counter = LabelledCounter::register::<Colour>(&registry, "paint_total", "Paint.", "colour");
        counter.inc(Colour::Red);
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        assert!(text.contains("paint_total{colour=\"red\"} 1") && text.contains("paint_total{colour=\"blue\"} 0"));
        assert_eq!((counter.get(Colour::Red), counter.get(Colour::Blue)), (1, 0));
    }

    #[test]
    fn a_made_up_method_is_no_label() {
        let registry = Registry::new();
        let metrics = HttpMetrics::register(&registry, "test");
        let method = Method::from_bytes(b"BREW").unwrap();
        metrics.observe("unmatched", &method, Some(Code::NotFound), Duration::from_millis(1));
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        let line = "http_requests_total{method=\"other\",outcome=\"NOT_FOUND\",route=\"unmatched\"} 1";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("build_info{commit=\"") && text.contains("component=\"test\""));
        assert!(!cfg!(target_os = "linux") || text.contains("process_resident_memory_bytes"));
    }
}
