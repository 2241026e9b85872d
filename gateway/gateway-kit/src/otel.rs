//! Spans over OTLP (C4.7), where `otel.endpoint` is set: one for each record of the process's trace.
//!
//! ```text
//! the thread that did the work ─record, try_send→ bounded queue → exporter's own thread: gather · convert · OTLP over gRPC → collector
//!                                 └ full: dropped and counted
//! ```
//!
//! Owns: the queue, the exporter's thread, the shape of a span. Does not own: what is recorded (`actor-kit`).
//! On failure: a collector that is away, slow or silent costs spans, never time: work hands over without waiting. What was
//! not delivered is counted in `otel_spans_total` and is not sent again.

use crate::metrics::{Label, LabelledCounter};
use crate::settings::Settings;
use actor_kit::{About, Anchor, CALL, Kit, Outcome, Process, REQUEST, TraceObserver, TraceRecord};
use host_kit::{Blocking, Clock, Host};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use prometheus::Registry;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};

/// The most spans in one message to the collector.
const BATCH_MAX: usize = 512;

/// How long spans are gathered before they are sent, unless a batch is full before that.
const GATHER: Duration = Duration::from_millis(200);

/// By how much the wall clock may move against the monotonic one before spans are dated anew, in microseconds.
const DRIFT_MAX_US: i64 = 20_000;

/// What became of a span.
#[derive(Clone, Copy)]
enum Fate {
    /// The collector took it.
    Exported,
    /// The queue was full.
    Dropped,
    /// The collector did not take it in time.
    Failed,
}

impl Label for Fate {
    const ALL: &'static [Self] = &[Self::Exported, Self::Dropped, Self::Failed];

    fn label(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}

/// Stands at the ring and hands over.
#[derive(Debug)]
struct Tap {
    to: mpsc::Sender<TraceRecord>,
    counted: LabelledCounter,
}

impl TraceObserver for Tap {
    fn recorded(&self, record: &TraceRecord) {
        // Copied only where there is room.
        match self.to.try_reserve() {
            Ok(room) => room.send(record.clone()),
            Err(_) => self.counted.inc(Fate::Dropped),
        }
    }
}

/// An exporter that runs.
pub(crate) struct Exporting {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
    within: Duration,
}

/// Starts exporting what this kit does, where `otel.endpoint` is set.
///
/// # Errors
/// The endpoint cannot be one, or there is no thread to be had.
pub(crate) fn start(host: &Host, settings: &Settings, registry: &Registry, kit: &Kit) -> io::Result<Option<Exporting>> {
    let Some(endpoint) = settings.text("otel.endpoint") else {
        return Ok(None);
    };
    let Blocking::Threads(spawn) = &host.blocking else {
        // A simulation has no second thread, and no collector.
        return Ok(None);
    };
    let within = settings.duration("otel.export-timeout");
    let capacity = usize::try_from(settings.integer("otel.queue-max")).unwrap_or(usize::MAX);
    let counted = LabelledCounter::register::<Fate>(
        registry,
        "otel_spans_total",
        "Spans by what became of them on their way to the collector.",
        "outcome",
    );
    let (to, from) = mpsc::channel(capacity);
    let tap = Tap {
        to,
        counted: counted.clone(),
    };
    if !kit.trace().observe(Arc::new(tap)) {
        return Ok(None);
    }
    let (stop, stopped) = oneshot::channel();
    let (tell, ended) = oneshot::channel();
    let process = kit.trace().process();
    let instance = process.boot_id().to_owned();
    let resource = resource(process);
    let converter = Converter::new(host.clock.clone());
    let (address, shown) = (endpoint.to_owned(), crate::mask(endpoint));
    spawn(
        "otel",
        Box::new(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async move {
                    match exporter(&address, within, &resource) {
                        Ok(exporter) => export(from, stopped, &exporter, converter, &counted, within).await,
                        Err(error) => tracing::error!(event = "otel_not_started", %error),
                    }
                }),
                Err(error) => tracing::error!(event = "otel_not_started", %error),
            }
            let _ = tell.send(());
        }),
    )?;
    tracing::info!(event = "otel_started", endpoint = shown, service_instance_id = instance);
    Ok(Some(Exporting { stop, ended, within }))
}

impl Exporting {
    /// Sends what still waits, within the time of one export.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        if tokio::time::timeout(self.within, self.ended).await.is_err() {
            tracing::warn!(event = "otel_cut_short", "spans that still waited are lost");
        }
    }
}

/// Who it was, by the names under which its dumps speak of it.
fn resource(process: &Process) -> Resource {
    Resource::builder()
        .with_service_name(process.component())
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", process.boot_id().to_owned()),
            KeyValue::new("dlock.instance", process.instance().to_owned()),
            KeyValue::new("process.pid", i64::from(process.pid())),
        ])
        .build()
}

fn exporter(address: &str, within: Duration, resource: &Resource) -> Result<Otlp, String> {
    let mut exporter = Otlp::builder()
        .with_tonic()
        .with_endpoint(address)
        .with_timeout(within)
        .build()
        .map_err(|error| error.to_string())?;
    exporter.set_resource(resource);
    Ok(exporter)
}

async fn export(
    mut from: mpsc::Receiver<TraceRecord>,
    mut stopped: oneshot::Receiver<()>,
    exporter: &Otlp,
    mut converter: Converter,
    counted: &LabelledCounter,
    within: Duration,
) {
    let mut gathered = Vec::with_capacity(BATCH_MAX);
    let (mut stopping, mut failing) = (false, false);
    loop {
        let received = tokio::select! {
            received = from.recv_many(&mut gathered, BATCH_MAX) => received,
            _ = &mut stopped, if !stopping => {
                // What waits is still received; nothing more is taken.
                stopping = true;
                from.close();
                continue;
            }
        };
        if received == 0 {
            return;
        }
        if !stopping && gathered.len() < BATCH_MAX && tokio::time::timeout(GATHER, &mut stopped).await.is_ok() {
            stopping = true;
            from.close();
        }
        while gathered.len() < BATCH_MAX
            && let Ok(record) = from.try_recv()
        {
            gathered.push(record);
        }
        let count = gathered.len();
        converter.look_at_the_clock();
        let spans = gathered.drain(..).map(|record| converter.span(record)).collect();
        let answer = match tokio::time::timeout(within, exporter.export(spans)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_elapsed) => Some(format!("no answer within {within:?}")),
        };
        let fate = if answer.is_none() { Fate::Exported } else { Fate::Failed };
        (0..count).for_each(|_| counted.inc(fate));
        match answer {
            // Said when it begins and when it ends, not for each batch: the metric counts.
            Some(error) if !failing => tracing::warn!(event = "otel_export_failed", error, spans = count),
            None if failing => tracing::info!(event = "otel_export_resumed"),
            _ => {}
        }
        failing = matches!(fate, Fate::Failed);
    }
}

/// Makes spans of OpenTelemetry out of records.
struct Converter {
    clock: Clock,
    scope: InstrumentationScope,
    anchor: Anchor,
}

impl Converter {
    fn new(clock: Clock) -> Self {
        Self {
            scope: InstrumentationScope::builder("dlock")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
            anchor: Anchor::now(&clock),
            clock,
        }
    }

    /// A clock that was set, or a host that slept, dates what comes anew; small differences would disorder spans.
    fn look_at_the_clock(&mut self) {
        let now = Anchor::now(&self.clock);
        let expected = self.anchor.wall_us(Duration::from_nanos(now.at_ns));
        if now.wall_us.saturating_sub(expected).saturating_abs() > DRIFT_MAX_US {
            self.anchor = now;
        }
    }

    fn wall(&self, at: Duration) -> SystemTime {
        let anchor = UNIX_EPOCH + Duration::from_micros(u64::try_from(self.anchor.wall_us).unwrap_or(0));
        let mono = Duration::from_nanos(self.anchor.at_ns);
        match at.checked_sub(mono) {
            Some(later) => anchor + later,
            None => anchor - (mono - at),
        }
    }

    fn span(&self, record: TraceRecord) -> SpanData {
        let parent = SpanId::from_bytes(record.parent_span);
        let (kind, remote) = match record.kind {
            REQUEST => (SpanKind::Server, parent != SpanId::INVALID),
            CALL => (SpanKind::Client, false),
            _ => (SpanKind::Internal, false),
        };
        SpanData {
            span_context: context(record.trace.trace_id(), record.trace.span_id()),
            parent_span_id: parent,
            parent_span_is_remote: remote,
            span_kind: kind,
            name: record.message.into(),
            start_time: self.wall(record.at),
            end_time: self.wall(record.at + record.handled),
            status: match record.outcome {
                Outcome::Panicked | Outcome::Failed => Status::error(record.code.unwrap_or_default()),
                _ => Status::Unset,
            },
            attributes: attributes(record),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            instrumentation_scope: self.scope.clone(),
        }
    }
}

/// What a record says, by the names that its dump has for it.
fn attributes(record: TraceRecord) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("dlock.kind", record.kind),
        KeyValue::new("dlock.message", record.message),
        KeyValue::new("dlock.outcome", record.outcome.as_str()),
    ];
    if matches!(record.kind, REQUEST | CALL) {
        if let Some((_, peer)) = record.actor.rsplit_once('/').filter(|_| record.kind == CALL) {
            attributes.push(KeyValue::new("peer.service", peer.to_owned()));
        }
    } else {
        attributes.push(KeyValue::new("dlock.queued_us", micros(record.queued)));
    }
    if let Some(code) = record.code {
        attributes.push(KeyValue::new("dlock.code", code));
    }
    if let Some(token) = record.token {
        attributes.push(KeyValue::new("dlock.token", i64::try_from(token).unwrap_or(i64::MAX)));
    }
    match record.about {
        About::Key(key) => attributes.push(KeyValue::new("dlock.key", key)),
        About::Payout(payout) => attributes.push(KeyValue::new("dlock.payout_id", payout)),
        About::Nothing => {}
    }
    attributes.push(KeyValue::new("dlock.actor", record.actor));
    attributes
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn context(trace_id: [u8; 16], span_id: [u8; 8]) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(trace_id),
        SpanId::from_bytes(span_id),
        TraceFlags::SAMPLED,
        false,
        TraceState::default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use host_kit::ManualClock;

    #[test]
    fn spans_keep_their_order_and_a_clock_that_was_set_dates_what_comes() {
        let hand = ManualClock::new();
        let mut converter = Converter::new(hand.clock());
        let first = hand.clock().mono();
        hand.advance(Duration::from_micros(1500));
        let second = hand.clock().mono();
        assert_eq!(
            converter.wall(second).duration_since(converter.wall(first)).unwrap(),
            Duration::from_micros(1500)
        );
        let before = converter.wall(second);
        hand.jump_wall_ms(60_000);
        converter.look_at_the_clock();
        let moved = converter.wall(second).duration_since(before).unwrap();
        assert!(
            moved > Duration::from_secs(59) && moved < Duration::from_secs(61),
            "{moved:?}"
        );
    }
}
