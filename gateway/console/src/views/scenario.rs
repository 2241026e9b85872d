//! The scenario that runs, where the console was told of one: its steps, its faults, what came out.

use super::View;
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, or_dash, tag};
use crate::upstream::Upstreams;
use crate::when::span;
use futures_util::future::LocalBoxFuture;
use http_client::{CallError, Caller, ClientOptions};
use maud::{Markup, html};
use serde_json::Value;
use std::time::Duration;

/// The largest status that is read.
const BYTES_MAX: u64 = 4 << 20;
/// How long a status may be waited for.
const WITHIN: Duration = Duration::from_secs(2);
/// How many steps and faults are shown, the latest.
const ROWS_MAX: usize = 200;

#[derive(Default)]
pub(super) struct Scenario {
    told: bool,
    status: Kept<Value>,
}

async fn read(source: &str, up: &Upstreams) -> Result<Value, CallError> {
    if source.starts_with("http://") {
        let caller = Caller::new(http_client::client(&ClientOptions::default()), source, WITHIN);
        return caller.get_json("", &up.trace()).await;
    }
    let path = source.to_owned();
    let unreadable = |error: std::io::Error| CallError::NotSent(format!("{source}: {error}"));
    let size = std::fs::metadata(&path).map_err(unreadable)?.len();
    if size > BYTES_MAX {
        return Err(CallError::NotSent(format!("{source} has more than {BYTES_MAX} bytes")));
    }
    // Small and local: read at once.
    let bytes = std::fs::read(&path).map_err(unreadable)?;
    serde_json::from_slice(&bytes).map_err(|error| CallError::Garbled {
        status: 200,
        detail: error.to_string(),
    })
}

impl View for Scenario {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(source) = &up.scenario else { return };
            self.told = true;
            let status = read(source, up).await;
            self.status.take(status, up.now());
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let text = |name: &str| {
            self.status
                .get()
                .and_then(|status| status[name].as_str())
                .unwrap_or_default()
        };
        let headline = match (self.told, self.status.get()) {
            (false, _) => "This console was told of no scenario.".to_owned(),
            (true, None) => String::new(),
            (true, Some(_)) => format!("{} {}.", text("name"), text("state")),
        };
        let body = html! {
            @if !self.told {
                p { "A scenario is shown by a console that was started with " code { "--scenario FILE" } ", as " code { "dlock scenario UC-03 --hold" } " does." }
            }
            (self.status.show("The scenario's status", now_ms, shown))
        };
        Shown {
            title: "Scenario".to_owned(),
            headline,
            body,
        }
    }
}

fn rows(value: &Value) -> Vec<&Value> {
    let rows = value.as_array().map(Vec::as_slice).unwrap_or_default();
    rows[rows.len().saturating_sub(ROWS_MAX)..].iter().collect()
}

fn shown(status: &Value) -> Markup {
    let (steps, faults) = (rows(&status["steps"]), rows(&status["faults"]));
    let after = |value: &Value| value.as_i64().map(|ms| format!("{} ({ms} ms)", span(ms)));
    html! {
        dl.facts {
            div { dt { "Scenario" } dd { (or_dash(status["name"].as_str())) } }
            div { dt { "State" } dd { (or_dash(status["state"].as_str())) } }
            div { dt { "Seed" } dd { (or_dash(status["seed"].as_u64())) } }
        }
        h2 { "Faults" }
        @if faults.is_empty() { p { "None yet." } } @else {
            table {
                caption { "What was done to the system, in order" }
                thead { tr { th scope="col" { "After" } th scope="col" { "To" } th scope="col" { "What" } th scope="col" { "Condition" } } }
                tbody {
                    @for fault in faults {
                        tr {
                            td { (or_dash(after(&fault["at_ms"]))) }
                            th scope="row" { (or_dash(fault["target"].as_str())) }
                            td { (or_dash(fault["what"].as_str())) }
                            td {
                                @if fault["active"] == true { (tag(Tone::Warn, Icon::Warning, "in force")) }
                                @else { (tag(Tone::Plain, Icon::Check, "past")) }
                            }
                        }
                    }
                }
            }
        }
        h2 { "Steps" }
        @if steps.is_empty() { p { "None yet." } } @else {
            ol.steps { @for step in steps { li { (or_dash(step["text"].as_str())) " " span.quiet { "after " (or_dash(after(&step["at_ms"]))) } } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_is_read_leniently() {
        let status = json!({
            "name": "UC-03", "steps": [{"at_ms": 1_500, "text": "W1 is stopped"}, {"more": 1}],
            "faults": [{"at_ms": 1_400, "target": "W1", "what": "stopped", "active": true}],
        });
        let text = shown(&status).into_string();
        assert!(text.contains("W1 is stopped") && text.contains("in force"), "{text}");
        assert!(shown(&json!(7)).into_string().contains("None yet."));
    }
}
