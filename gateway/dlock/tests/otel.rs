//! Spans over OTLP, from processes to a collector of the test's own.
#![cfg(all(feature = "lab", feature = "otel"))]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests have threads of their own"
)]

mod common;

use common::whole::Whole;
use common::{code, dlock, stderr, stdout, until};
use http_contract::payment::PayoutState;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use tonic::transport::server::TcpIncoming;

/// A span as it arrived.
#[derive(Clone, Debug)]
struct Arrived {
    resource: BTreeMap<String, String>,
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    name: String,
    kind: SpanKind,
    attributes: BTreeMap<String, String>,
    took_ns: u64,
}

impl Arrived {
    fn service(&self) -> &str {
        &self.resource["service.name"]
    }
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value| match value {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes
        .into_iter()
        .filter_map(|of| Some((of.key, text(of.value?.value?))))
        .collect()
}

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Arrived>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let mut arrived = self.0.lock().unwrap();
        for group in request.into_inner().resource_spans {
            let resource = texts(group.resource.unwrap_or_default().attributes);
            for span in group.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                arrived.push(Arrived {
                    resource: resource.clone(),
                    kind: span.kind(),
                    took_ns: span.end_time_unix_nano.checked_sub(span.start_time_unix_nano).unwrap(),
                    trace: span.trace_id,
                    id: span.span_id,
                    parent: span.parent_span_id,
                    name: span.name,
                    attributes: texts(span.attributes),
                });
            }
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Serves until the runtime is dropped.
    fn serve() -> (Self, String, tokio::runtime::Runtime) {
        let collector = Self::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let incoming = runtime
            .block_on(async { TcpIncoming::bind("127.0.0.1:0".parse().unwrap()) })
            .unwrap();
        let address = incoming.local_addr().unwrap();
        let service = TraceServiceServer::new(collector.clone());
        runtime.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        (collector, format!("http://{address}"), runtime)
    }

    /// The spans of the trace in which this payout was settled.
    fn trace_of(&self, payout: &str) -> Vec<Arrived> {
        let arrived = self.0.lock().unwrap();
        let settle = arrived.iter().find(|span| {
            span.name == "payout.settle" && span.attributes.get("dlock.payout_id").is_some_and(|id| id == payout)
        });
        let Some(settle) = settle else { return Vec::new() };
        arrived
            .iter()
            .filter(|span| span.trace == settle.trace)
            .cloned()
            .collect()
    }
}

/// Those whose parent has not arrived.
fn without_parent(spans: &[Arrived]) -> Vec<&Arrived> {
    let ids: BTreeSet<&[u8]> = spans.iter().map(|span| &*span.id).collect();
    spans.iter().filter(|span| !ids.contains(&*span.parent)).collect()
}

fn only<'s>(spans: &'s [Arrived], what: &str, holds: impl Fn(&Arrived) -> bool) -> &'s Arrived {
    let found: Vec<_> = spans.iter().filter(|span| holds(span)).collect();
    assert_eq!(found.len(), 1, "{what} in {spans:#?}");
    found[0]
}

/// What the executor asks for one payout, and whom.
const REQUESTS: [(&str, &str); 5] = [
    ("lock-server", "POST /v1/locks/{key}/acquire"),
    ("payment-resource", "POST /v1/payouts/{payout_id}/claim"),
    ("rail-proxy", "POST /v1/rail/submissions"),
    ("payment-resource", "POST /v1/payouts/{payout_id}/post"),
    ("lock-server", "DELETE /v1/locks/{key}"),
];

#[test]
fn the_spans_of_one_payout_form_one_tree_over_four_processes() {
    let (collector, endpoint, _runtime) = Collector::serve();
    let mut whole = Whole::new(&[("DLOCK_OTEL_ENDPOINT", &endpoint)]);
    // Spans need no ring.
    let standard = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint)];
    whole.worker("W1", &["debug.trace-capacity=0"], &standard);
    whole.payout("A", "P1");
    whole.await_state("P1", PayoutState::Posted);
    // Each process sends by itself: one may be done with the trace before another has begun to send its part.
    until("the whole trace has arrived", || {
        let spans = collector.trace_of("P1");
        let at_work = |name: &str| {
            spans
                .iter()
                .any(|span| span.name == name && spans.iter().any(|below| below.parent == span.id))
        };
        REQUESTS.iter().all(|(_, request)| at_work(request))
            && ["Settled", "Submit", "rail.submit"]
                .iter()
                .all(|name| spans.iter().any(|span| span.name == *name))
            && without_parent(&spans).len() == 1
    });

    let spans = collector.trace_of("P1");
    let root = without_parent(&spans)[0];
    assert_eq!(
        (root.name.as_str(), root.service()),
        ("payout.settle", "payout-executor")
    );
    assert!(root.parent.is_empty(), "{root:?}");
    assert_eq!(root.attributes["dlock.code"], "posted");
    assert_eq!(
        (root.kind, &*root.resource["dlock.instance"]),
        (SpanKind::Internal, "W1")
    );
    let services: BTreeSet<&str> = spans.iter().map(Arrived::service).collect();
    let expected = ["lock-server", "payment-resource", "payout-executor", "rail-proxy"];
    assert_eq!(services, BTreeSet::from(expected));

    // Each request stands below the call that another process made, and that below the root or a message of the client.
    let mut tokens = BTreeSet::new();
    for (service, request) in REQUESTS {
        let server = only(&spans, request, |span| span.name == request);
        assert_eq!((server.service(), server.kind), (service, SpanKind::Server));
        let call = only(&spans, "its call", |span| span.id == server.parent);
        assert_eq!((call.service(), call.kind), ("payout-executor", SpanKind::Client));
        assert_eq!(call.attributes["dlock.outcome"], "answered", "{call:?}");
        assert_eq!(call.attributes["peer.service"], service, "{call:?}");
        let of = if service == "lock-server" {
            "dlock.key"
        } else {
            "dlock.payout_id"
        };
        assert!(server.attributes.contains_key(of), "{server:?}");
        let cause = only(&spans, "the call's cause", |span| span.id == call.parent);
        assert_eq!(cause.service(), "payout-executor");
        let below = spans.iter().filter(|span| span.parent == server.id).count();
        assert!(below > 0, "no actor worked for {request}");
        tokens.extend(server.attributes.get("dlock.token").cloned());
    }
    assert_eq!(tokens.len(), 1, "one grant, one token: {tokens:?}");

    // An actor's span says who, what and how long it waited; the rail was called from below the submission.
    let submit = only(&spans, "the submission", |span| {
        span.name == "Submit" && span.attributes["dlock.kind"] == "rail_submission"
    });
    assert!(
        submit.attributes["dlock.actor"].starts_with("rail-proxy/"),
        "{submit:?}"
    );
    assert!(submit.attributes["dlock.queued_us"].parse::<u64>().is_ok());
    assert_eq!(submit.attributes["dlock.message"], "Submit");
    let rail = only(&spans, "the call to the rail", |span| span.name == "rail.submit");
    assert_eq!((rail.service(), rail.kind), ("rail-proxy", SpanKind::Client));
    assert_eq!(rail.attributes.get("dlock.token"), tokens.first());
    assert!(rail.took_ns > 0);

    // Who it was.
    for name in ["service.version", "service.instance.id"] {
        assert!(!root.resource[name].is_empty(), "{:?}", root.resource);
    }
    let instances: BTreeSet<&str> = spans
        .iter()
        .map(|span| &*span.resource["service.instance.id"])
        .collect();
    assert_eq!(instances.len(), 4);
    assert!(
        collector
            .0
            .lock()
            .unwrap()
            .iter()
            .all(|span| span.name != "GET /readyz"),
        "probes are no spans"
    );

    // What waited is sent before a process ends, and one with nothing to send does not wait.
    assert_eq!(whole.workers[0].terminate(), Some(0));
    until("the last spans", || {
        let arrived = collector.0.lock().unwrap();
        arrived
            .iter()
            .any(|span| span.name == "Drain" && span.service() == "payout-executor")
    });
    for component in [&mut whole.lock, &mut whole.payments, &mut whole.proxy] {
        assert_eq!(component.terminate(), Some(0));
    }
    for component in [&whole.workers[0], &whole.lock, &whole.payments, &whole.proxy] {
        assert!(!component.said().contains("otel_cut_short"), "{}", component.said());
    }
}

fn spans_total(metrics: &str, outcome: &str) -> u64 {
    let head = format!("otel_spans_total{{outcome=\"{outcome}\"}} ");
    let line = metrics.lines().find(|line| line.starts_with(&head));
    line.map_or(0, |line| line[head.len()..].parse().unwrap())
}

#[test]
fn a_collector_that_never_answers_costs_spans_and_nothing_else() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let held = Arc::new(Mutex::new(Vec::new()));
    let kept = held.clone();
    std::thread::spawn(move || {
        for connection in silent.incoming().map_while(Result::ok) {
            kept.lock().unwrap().push(connection);
        }
    });
    let env = [
        ("DLOCK_OTEL_ENDPOINT", &*endpoint),
        ("DLOCK_OTEL_QUEUE_MAX", "1"),
        ("DLOCK_OTEL_EXPORT_TIMEOUT", "2s"),
    ];
    let mut whole = Whole::new(&env);
    whole.worker("W1", &[], &env);
    whole.payout("A", "P1");
    whole.await_state("P1", PayoutState::Posted);
    for component in [&whole.lock, &whole.payments, &whole.proxy, &whole.workers[0]] {
        until("spans are dropped and counted", || {
            // Each look at the readiness makes actors work, where there are some that are asked.
            assert_eq!(whole.state("P1"), PayoutState::Posted);
            spans_total(&whole.get(component, "/metrics"), "dropped") > 0
        });
        until("one export is given up", || {
            spans_total(&whole.get(component, "/metrics"), "failed") > 0
        });
        assert_eq!(spans_total(&whole.get(component, "/metrics"), "exported"), 0);
    }
    assert!(!held.lock().unwrap().is_empty(), "nobody connected");
    let complaints = |component: &common::whole::Component| {
        let lines = component.lines();
        lines
            .iter()
            .filter(|line| line["event"] == "otel_export_failed")
            .count()
    };
    assert_eq!(complaints(&whole.lock), 1, "said once, not for each batch");
    for component in [&mut whole.workers[0], &mut whole.lock, &mut whole.payments] {
        assert_eq!(component.terminate(), Some(0), "{}", component.said());
    }
}

#[test]
fn without_an_endpoint_nothing_is_made_and_a_bad_one_is_refused() {
    let whole = Whole::new(&[]);
    whole.payout("A", "P1");
    assert!(!whole.get(&whole.payments, "/metrics").contains("otel_spans_total"));

    let print = |env: &[(&str, &str)], args: &[&str]| {
        dlock()
            .args(["lock-server", "--print-config"])
            .args(args)
            .envs(env.iter().copied())
            .output()
            .unwrap()
    };
    let standard = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://everywhere:4317");
    let shown = stdout(&print(&[standard], &[]));
    assert!(
        shown.contains("endpoint = \"http://everywhere:4317\"  # the environment variable OTEL_EXPORTER_OTLP_ENDPOINT"),
        "{shown}"
    );
    let shown = stdout(&print(&[standard, ("DLOCK_OTEL_ENDPOINT", "http://here:4317")], &[]));
    assert!(shown.contains("endpoint = \"http://here:4317\""), "{shown}");
    let refused = print(&[], &["--set", "otel.endpoint=https://collector:4317"]);
    assert_eq!(code(&refused), 64);
    assert!(stderr(&refused).contains("otel.endpoint"), "{}", stderr(&refused));
}
