//! Logs: one JSON object a line on standard output, or pretty on a terminal (C4.1).
//!
//! Owns: the shape of a line: `at`, `level`, `component`, `event`, then the event's own fields and those of the spans it
//! stands in (`trace_id`). Does not own: what is logged; secrets never are (NFR-12).
//! On failure: a line that cannot be written is lost; logging never stops the process, nor holds it up (`log_queue`).

use crate::Settings;
use crate::log_queue::{LineWriter, LogQueue};
use crate::text::{shown_json, shown_lines};
use serde_json::{Map, Value};
use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

/// The shape of log lines (`log.format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, else JSON.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

impl LogFormat {
    /// As the setting `log.format` says it.
    #[must_use]
    pub fn configured(settings: &Settings) -> Self {
        match settings.text("log.format") {
            Some("json") => Self::Json,
            Some("pretty") => Self::Pretty,
            _ => Self::Auto,
        }
    }

    const fn is_pretty(self, terminal: bool) -> bool {
        match self {
            Self::Auto => terminal,
            Self::Json => false,
            Self::Pretty => true,
        }
    }
}

/// Starts logging for a component: what `DLOCK_LOG` admits (`info` when unset), to standard output, in this format. A
/// panic is logged too. A second call changes nothing. Lines are written by a thread of their own: whoever ends the process
/// calls [`flush_logs`](crate::flush_logs) before.
pub fn init_logging(component: &'static str, format: LogFormat) {
    let terminal = std::io::stdout().is_terminal();
    init(component, format.is_pretty(terminal), terminal, std::io::stdout());
}

/// As [`init_logging`], to standard error: for the operator's verbs, whose standard output is their result.
pub fn init_logging_to_stderr(component: &'static str) {
    let terminal = std::io::stderr().is_terminal();
    init(component, terminal, terminal, std::io::stderr());
}

/// The filter in force, where logging was started.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Applies the setting `log.filter`: from now on this is logged. None goes back to what `DLOCK_LOG` admits.
///
/// # Errors
/// What is wrong with the filter; then the old one stays.
pub fn apply_log_filter(text: Option<&str>) -> Result<(), String> {
    let filter = match text {
        Some(text) => EnvFilter::try_new(text).map_err(|error| format!("log.filter is ignored: {error}"))?,
        None => from_environment().unwrap_or_else(|_| EnvFilter::new("info")),
    };
    match FILTER.get() {
        Some(handle) => handle.reload(filter).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

fn from_environment() -> Result<EnvFilter, String> {
    match std::env::var("DLOCK_LOG") {
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| format!("DLOCK_LOG is ignored: {error}")),
        Err(_) => Ok(EnvFilter::new("info")),
    }
}

fn init(component: &'static str, pretty: bool, colours: bool, to: impl Write + Send + 'static) {
    let (filter, complaint) = match from_environment() {
        Ok(filter) => (filter, None),
        Err(complaint) => (EnvFilter::new("info"), Some(complaint)),
    };
    let queue = match LogQueue::start(to, lines_missing) {
        Ok(queue) => queue,
        // No thread is to be had, not even this one: nothing can be said, least of all this.
        Err(_) => return,
    };
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if pretty {
        let to = queue.clone();
        registry
            .with(
                tracing_subscriber::fmt::layer()
                    .with_ansi(colours)
                    .with_writer(move || Shown(LineWriter::to(&to))),
            )
            .try_init()
    } else {
        let queue = queue.clone();
        registry.with(JsonLines { component, queue }).try_init()
    };
    if started.is_err() {
        return;
    }
    queue.of_process();
    // Nobody else sets it: logging starts once.
    let _ = FILTER.set(handle);
    if let Some(complaint) = complaint {
        tracing::warn!(event = "log_filter_ignored", detail = complaint);
    }
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(event = "panicked", detail = text, place);
    }));
}

/// Lines for people, without characters that do not show.
struct Shown(LineWriter);

impl Write for Shown {
    // A line comes in one piece.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0
            .write_all(shown_lines(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Lines move again after some found no room.
fn lines_missing(lines: u64) {
    tracing::warn!(event = "log_lines_dropped", lines);
}

struct JsonLines {
    component: &'static str,
    queue: LogQueue,
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl JsonLines {
    fn line(&self, level: &str, target: &str, spans: Map<String, Value>, event: Map<String, Value>) -> String {
        let mut line = Map::new();
        let mut at = String::new();
        // The time of a log line is for humans; nothing is decided by it.
        let _ = SystemTime.format_time(&mut Writer::new(&mut at));
        line.insert("at".to_owned(), at.into());
        line.insert("level".to_owned(), level.to_ascii_lowercase().into());
        line.insert("component".to_owned(), self.component.into());
        // Ours name their event; what a library says is a message.
        line.insert("event".to_owned(), "log".into());
        line.extend(spans);
        line.extend(event);
        line.insert("target".to_owned(), target.into());
        let text = Value::Object(line).to_string();
        let mut text = shown_json(&text).into_owned();
        text.push('\n');
        text
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for JsonLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut spans = Map::new();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(tracing_subscriber::registry::Scope::from_root)
        {
            if let Some(fields) = span.extensions().get::<Fields>() {
                spans.extend(fields.0.clone());
            }
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = self.line(
            event.metadata().level().as_str(),
            event.metadata().target(),
            spans,
            fields.0,
        );
        self.queue.push(line.into_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_json_object_with_the_contracts_fields() {
        let layer = JsonLines {
            component: "lock-server",
            queue: LogQueue::start(std::io::sink(), |_| {}).unwrap(),
        };
        let fields = |json: Value| json.as_object().unwrap().clone();
        let line = layer.line(
            "INFO",
            "gateway_kit",
            fields(serde_json::json!({"trace_id": "ab"})),
            fields(serde_json::json!({"event": "listening", "addr": "127.0.0.1:1\n"})),
        );
        assert_eq!(line.matches('\n').count(), 1);
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (line["component"].as_str(), line["event"].as_str()),
            (Some("lock-server"), Some("listening"))
        );
        assert_eq!(
            (line["trace_id"].as_str(), line["level"].as_str()),
            (Some("ab"), Some("info"))
        );
        assert!(line["at"].as_str().unwrap().len() > 10);
    }

    #[test]
    fn case_s9_a_line_shows_every_character() {
        let layer = JsonLines {
            component: "lock-server",
            queue: LogQueue::start(std::io::sink(), |_| {}).unwrap(),
        };
        let event = serde_json::json!({"event": "revoked", "reason": "a\u{202e}b\u{2028}"});
        let line = layer.line("INFO", "x", Map::new(), event.as_object().unwrap().clone());
        assert!(line.contains(r"a\u202eb\u2028"), "{line}");
        let mut read = Vec::new();
        let text = "a\u{1b}[1m\u{202e}b\n";
        read.extend_from_slice(shown_lines(text).as_bytes());
        assert_eq!(String::from_utf8(read).unwrap(), "a\u{1b}[1m\\u{202e}b\n");
    }
}
