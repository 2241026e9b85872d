//! The trace rings of the components: the messages of the traces that touched the payout.

use super::{Gathered, Line};
use crate::api::Api;
use futures_util::future::join_all;
use http_client::CallError;
use serde_json::Value;
use std::collections::BTreeSet;

/// The messages of one process.
pub(super) struct Ring {
    component: String,
    records: Vec<Record>,
}

struct Record {
    at_ns: i128,
    actor: String,
    message: String,
    outcome: String,
    queued_us: u64,
    handled_us: u64,
    token: Option<u64>,
    trace_id: String,
    /// The payout that the message itself names; requests and calls name those that are merely looked at, too.
    payout: Option<String>,
}

/// Reads the rings that are served. Each line is read leniently: one that is no message is passed over.
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
    let mut ring = Ring {
        component: String::new(),
        records: Vec::new(),
    };
    // The distance of the process's monotonic time from the wall's: one for all its lines, so that they keep their order.
    let mut anchor = None;
    for line in text.lines().rev() {
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| line[name].as_u64();
        let (Some(actor), Some(at_ns), Some(wall_ms)) =
            (line["actor"].as_str(), number("at_ns"), line["at_wall_ms"].as_i64())
        else {
            continue;
        };
        let at_ns = i128::from(at_ns);
        let anchor = *anchor.get_or_insert(i128::from(wall_ms) * 1_000_000 - at_ns);
        if ring.component.is_empty() {
            let first = || actor.split('/').next().unwrap_or_default().to_owned();
            ring.component = line["component"].as_str().map_or_else(first, str::to_owned);
        }
        ring.records.push(Record {
            at_ns: anchor + at_ns,
            actor: actor.to_owned(),
            message: text("message"),
            outcome: match line["code"].as_str() {
                Some(code) => format!("{} {code}", text("outcome")),
                None => text("outcome"),
            },
            queued_us: number("queued_ns").unwrap_or(0) / 1_000,
            handled_us: number("handled_ns").unwrap_or(0) / 1_000,
            token: number("token"),
            trace_id: text("trace_id"),
            payout: line["payout"]
                .as_str()
                .filter(|_| !matches!(line["kind"].as_str(), Some("request" | "call")))
                .map(str::to_owned),
        });
    }
    ring.records.reverse();
    ring
}

/// The traces in which something worked on this payout: an actor with the payout's id in its path, or a message that names
/// it.
pub(super) fn traces_of(rings: &[Ring], payout_id: &str) -> BTreeSet<String> {
    rings
        .iter()
        .flat_map(|ring| &ring.records)
        .filter(|record| {
            let of_its_actor = record.actor.split('/').any(|part| named(part, payout_id));
            of_its_actor || record.payout.as_deref() == Some(payout_id)
        })
        .map(|record| record.trace_id.clone())
        .collect()
}

/// Whether a part of a path is this name, or the second actor of it (`name#2`).
fn named(part: &str, name: &str) -> bool {
    part.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

/// Tells the messages of the traces that are known by now.
pub(super) fn tell(rings: &[Ring], gathered: &mut Gathered) {
    for ring in rings {
        for record in ring
            .records
            .iter()
            .filter(|record| gathered.traces.contains(&record.trace_id))
        {
            gathered.lines.push(Line {
                at_ns: record.at_ns,
                source: "span",
                component: ring.component.clone(),
                actor: Some(record.actor.clone()),
                token: record.token,
                what: format!(
                    "{} {} (waited {} µs, took {} µs)",
                    record.message, record.outcome, record.queued_us, record.handled_us
                ),
                trace_id: Some(record.trace_id.clone()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_read_leniently_and_the_payouts_traces_are_found_by_its_actors() {
        let text = r#"{"process":"a header of some later version"}
            {"seq":1,"actor":"rail-proxy/submissions/P1","message":"Submit","at_ns":1000,"queued_ns":2000,"handled_ns":3000,"outcome":"deferred","trace_id":"aa","token":7,"at_wall_ms":5}
            {"seq":2,"actor":"rail-proxy/submissions/P10","message":"Submit","at_ns":2000,"queued_ns":0,"handled_ns":0,"outcome":"done","trace_id":"bb","token":null,"at_wall_ms":5}
            not json
            {"seq":4,"actor":"payout-executor/worker-1","kind":"worker","message":"Settle","outcome":"deferred","code":null,"at_ns":1,"at_wall_ms":5,"trace_id":"dd","payout":"P1"}
            {"seq":5,"actor":"payment-resource/requests","kind":"request","message":"GET /v1/payouts/{payout_id}","at_ns":1,"at_wall_ms":5,"trace_id":"ee","payout":"P1"}
            {"seq":3,"actor":"rail-proxy/submissions/P1#2","message":"Submit","at_ns":3000,"queued_ns":0,"handled_ns":0,"outcome":"done","trace_id":"cc","at_wall_ms":6}"#;
        let rings = [parse(text)];
        assert_eq!(rings[0].component, "rail-proxy");
        assert_eq!(
            traces_of(&rings, "P1"),
            BTreeSet::from(["aa", "cc", "dd"].map(str::to_owned))
        );
        let mut gathered = Gathered {
            traces: traces_of(&rings, "P1"),
            ..Gathered::default()
        };
        tell(&rings, &mut gathered);
        let told: Vec<_> = gathered
            .lines
            .iter()
            .map(|line| (line.at_ns, line.token, line.what.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (5_998_000, Some(7), "Submit deferred (waited 2 µs, took 3 µs)"),
                (5_997_001, None, "Settle deferred (waited 0 µs, took 0 µs)"),
                (6_000_000, None, "Submit done (waited 0 µs, took 0 µs)")
            ]
        );
    }
}
