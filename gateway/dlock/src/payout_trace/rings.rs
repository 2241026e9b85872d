//! The trace rings of the components: the records of the traces that touched the payout.

use super::{Gathered, Line};
use crate::api::Api;
use futures_util::future::join_all;
use http_client::CallError;
use std::collections::BTreeSet;
use trace_kit::Record;

/// The records of one process.
pub(super) struct Ring(Vec<Record>);

/// Reads the rings that are served. Each line is read leniently: one that is no record is passed over.
pub(super) async fn fetch(api: &Api, places: &[String], gathered: &mut Gathered) -> Vec<Ring> {
    let asked = places.iter().map(|place| async move {
        let text = api.plain(place).text("/debug/trace?format=jsonl", &api.trace).await;
        (place, text)
    });
    let mut rings = Vec::new();
    for (place, answer) in join_all(asked).await {
        match answer {
            // Switched off: `debug.endpoints` is, by default, in a production build.
            Err(CallError::Problem(problem)) if problem.code.status() == 404 => {
                let detail = "it serves no trace ring (debug.endpoints is off)".to_owned();
                gathered.unread("trace ring", place, "absent", detail);
            }
            answer => {
                if let Some(text) = gathered.take("trace ring", place, answer) {
                    rings.push(parse(&text));
                }
            }
        }
    }
    rings
}

fn parse(text: &str) -> Ring {
    let record = |line: &str| serde_json::from_str(line).ok();
    Ring(text.lines().filter_map(record).collect())
}

/// The traces in which something was done for this payout: a record names it, or an actor has its id in its path. A look at
/// it by itself, such as the one that asks this, does nothing for it.
pub(super) fn traces_of(rings: &[Ring], payout_id: &str) -> BTreeSet<String> {
    rings
        .iter()
        .flat_map(|ring| &ring.0)
        .filter(|record| {
            let works = record.kind != "call" && !record.message.starts_with("GET ");
            works && record.payout.as_deref() == Some(payout_id)
                || record.actor.split('/').any(|part| named(part, payout_id))
        })
        .map(|record| record.trace_id.clone())
        .collect()
}

/// Whether a part of a path is this name, or the second actor of it (`name#2`).
fn named(part: &str, name: &str) -> bool {
    part.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

/// Tells the records of the traces that are known by now.
pub(super) fn tell(rings: &[Ring], gathered: &mut Gathered) {
    let known: Vec<Line> = rings
        .iter()
        .flat_map(|ring| &ring.0)
        .filter(|record| gathered.traces.contains(&record.trace_id))
        .map(line)
        .collect();
    gathered.lines.extend(known);
}

fn line(record: &Record) -> Line {
    let what = if record.is_message() {
        record.message.clone()
    } else {
        format!("{} {}", record.kind, record.message)
    };
    let code = record.code.as_ref().map(|code| format!(" {code}")).unwrap_or_default();
    let waited = if record.is_message() {
        format!("waited {} µs, ", record.queued_ns / 1_000)
    } else {
        String::new()
    };
    Line {
        at_ns: i128::from(record.at_wall_us) * 1_000,
        source: "span",
        component: record.component.clone(),
        actor: Some(record.actor.clone()),
        token: record.token,
        what: format!(
            "{what} {}{code} ({waited}took {} µs)",
            record.outcome,
            record.handled_ns / 1_000
        ),
        trace_id: Some(record.trace_id.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_read_leniently_and_the_payouts_traces_are_found_by_what_its_records_name() {
        let record = |trace: &str, actor: &str, message: &str, payout: Option<&str>| {
            serde_json::json!({
                "seq": 1, "actor": actor, "kind": if actor.ends_with("s") { "request" } else { "actor" },
                "message": message, "at_ns": 1, "queued_ns": 2_000, "handled_ns": 3_000, "outcome": "refused",
                "code": payout.map(|_| "FENCED_OUT"), "trace_id": trace, "span_id": "1", "parent_span_id": "0",
                "token": 7, "payout": payout, "at_wall_us": 5, "component": "rail-proxy", "of a later version": true,
            })
            .to_string()
        };
        let text = [
            r#"{"process":"a header of some later version"}"#.to_owned(),
            record("aa", "rail-proxy/submissions/P1", "Submit", None),
            record("bb", "rail-proxy/submissions/P10", "Submit", Some("P10")),
            "not json".to_owned(),
            record("cc", "rail-proxy/submissions/P1#2", "Submit", None),
            record("dd", "rail-proxy/requests", "POST /v1/rail/submissions", Some("P1")),
            record(
                "ee",
                "rail-proxy/requests",
                "GET /v1/rail/submissions/{payout_id}",
                Some("P1"),
            ),
        ];
        let rings = [parse(&text.join("\n"))];
        assert_eq!(rings[0].0.len(), 5);
        assert_eq!(
            traces_of(&rings, "P1"),
            BTreeSet::from(["aa", "cc", "dd"].map(str::to_owned))
        );
        let mut gathered = Gathered {
            traces: BTreeSet::from(["cc", "dd"].map(str::to_owned)),
            ..Gathered::default()
        };
        tell(&rings, &mut gathered);
        let told: Vec<_> = gathered
            .lines
            .iter()
            .map(|line| (line.at_ns, line.token, line.component.as_str(), line.what.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (5_000, Some(7), "rail-proxy", "Submit refused (waited 2 µs, took 3 µs)"),
                (
                    5_000,
                    Some(7),
                    "rail-proxy",
                    "request POST /v1/rail/submissions refused FENCED_OUT (took 3 µs)"
                ),
            ]
        );
    }
}
