//! Whether a drawing, or a dump, is well formed.

use crate::dump::Dump;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The most findings that are told one by one.
const FINDINGS_MAX: usize = 50;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Events of a drawing; records of a dump.
    pub events: usize,
    /// Slices on tracks.
    pub slices: usize,
    /// Async spans, each with its beginning and its end.
    pub spans: usize,
    /// Arrows, each with both its ends.
    pub arrows: usize,
    /// The processes, as they are shown.
    pub processes: Vec<String>,
    /// Which components the arrow of a payout passes, for each of its arrows.
    pub payouts: Vec<Crossing>,
    /// What is wrong, at most 50 of it.
    pub findings: Vec<String>,
    /// How much is wrong.
    pub wrong: usize,
}

/// The way of one payout's arrow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Crossing {
    /// The payout.
    pub payout: String,
    /// The components it passes, each once, in the order in which it first meets them.
    pub components: Vec<String>,
}

impl Checked {
    /// Whether nothing is wrong.
    #[must_use]
    pub const fn ok(&self) -> bool {
        self.wrong == 0
    }

    /// The payouts whose arrow passes all of these components.
    #[must_use]
    pub fn crossing(&self, components: &[&str]) -> BTreeSet<&str> {
        let all = |way: &&Crossing| components.iter().all(|one| way.components.iter().any(|met| met == one));
        self.payouts.iter().filter(all).map(|way| &*way.payout).collect()
    }

    fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what());
        }
    }
}

/// What is needed of an event.
struct Event<'e> {
    n: usize,
    ph: &'e str,
    name: &'e str,
    cat: &'e str,
    id: String,
    pid: i64,
    tid: i64,
    ts: f64,
    dur: f64,
    args: &'e Value,
}

/// Times are microseconds with three digits behind the point; what is closer than half a nanosecond is the same.
const SAME_US: f64 = 0.000_6;

/// Checks a drawing: the JSON that Perfetto and Chrome open. Every span has its beginning and its end, every arrow its two
/// ends, both in a slice and none before the other; slices of a track do not overlap; processes and tracks have names.
///
/// # Errors
/// When it is no JSON object with `traceEvents`.
pub fn check(text: &str) -> Result<Checked, String> {
    let whole: Value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
    let raw = whole["traceEvents"]
        .as_array()
        .ok_or("no traceEvents: not a drawing in the trace event format")?;
    let mut checked = Checked {
        events: raw.len(),
        ..Checked::default()
    };
    let events: Vec<Event<'_>> = raw
        .iter()
        .enumerate()
        .filter_map(|(n, event)| match read(n, event) {
            Ok(event) => Some(event),
            Err(reason) => {
                checked.wrong(|| format!("event {n}: {reason}"));
                None
            }
        })
        .collect();
    let components = names(&events, &mut checked);
    let slices = slices(&events, &mut checked);
    spans(&events, &mut checked);
    arrows(&events, &slices, &components, &mut checked);
    Ok(checked)
}

fn read(n: usize, event: &Value) -> Result<Event<'_>, String> {
    let text = |name: &str| event[name].as_str();
    let ph = text("ph").ok_or("no ph")?;
    if !["M", "X", "b", "e", "s", "t", "f"].contains(&ph) {
        return Err(format!("ph {ph:?} is none of ours"));
    }
    let number = |name: &str| event[name].as_f64().filter(|value| value.is_finite() && *value >= 0.0);
    let whole = |name: &str| event[name].as_i64().ok_or_else(|| format!("{name} is no whole number"));
    let metadata = ph == "M";
    let id = match &event["id"] {
        Value::String(id) => id.clone(),
        Value::Number(id) => id.to_string(),
        _ if ["b", "e", "s", "t", "f"].contains(&ph) => return Err(format!("{ph} without an id")),
        _ => String::new(),
    };
    Ok(Event {
        n,
        ph,
        name: text("name").ok_or("no name")?,
        cat: text("cat").or(metadata.then_some("")).ok_or("no cat")?,
        id,
        pid: whole("pid")?,
        tid: if event.get("tid").is_some() || !metadata {
            whole("tid")?
        } else {
            0
        },
        ts: number("ts").or(metadata.then_some(0.0)).ok_or("ts is no time")?,
        dur: number("dur")
            .or((ph != "X").then_some(0.0))
            .ok_or("dur is no duration")?,
        args: &event["args"],
    })
}

/// The component of each process. A process or track without a name is drawn as a bare number.
fn names(events: &[Event<'_>], checked: &mut Checked) -> BTreeMap<i64, String> {
    let (mut processes, mut tracks) = (BTreeMap::new(), BTreeSet::new());
    for event in events.iter().filter(|event| event.ph == "M") {
        let Some(name) = event.args["name"].as_str() else {
            continue;
        };
        match event.name {
            "process_name" => {
                checked.processes.push(name.to_owned());
                let component = event.args["component"].as_str().unwrap_or(name);
                processes.insert(event.pid, component.to_owned());
            }
            "thread_name" => drop(tracks.insert((event.pid, event.tid))),
            _ => {}
        }
    }
    let mut told = BTreeSet::new();
    for event in events.iter().filter(|event| event.ph != "M") {
        if !processes.contains_key(&event.pid) && told.insert((event.pid, -1)) {
            checked.wrong(|| format!("event {}: process {} has no name", event.n, event.pid));
        }
        if !tracks.contains(&(event.pid, event.tid)) && told.insert((event.pid, event.tid)) {
            checked.wrong(|| format!("event {}: track {}.{} has no name", event.n, event.pid, event.tid));
        }
    }
    processes
}

type Slices = BTreeMap<(i64, i64), Vec<(f64, f64)>>;

/// The slices of each track, in time order.
fn slices(events: &[Event<'_>], checked: &mut Checked) -> Slices {
    let mut slices = Slices::new();
    for event in events.iter().filter(|event| event.ph == "X") {
        checked.slices += 1;
        let track = slices.entry((event.pid, event.tid)).or_default();
        track.push((event.ts, event.ts + event.dur));
    }
    for ((pid, tid), track) in &mut slices {
        track.sort_by(|a, b| a.0.total_cmp(&b.0));
        for pair in track.windows(2) {
            if pair[1].0 + SAME_US < pair[0].1 {
                checked.wrong(|| {
                    format!(
                        "track {pid}.{tid}: the slice at {} begins in the one at {}",
                        pair[1].0, pair[0].0
                    )
                });
            }
        }
    }
    slices
}

fn spans(events: &[Event<'_>], checked: &mut Checked) {
    let mut open: BTreeMap<(&str, &str), Vec<&Event<'_>>> = BTreeMap::new();
    for event in events {
        let key = (event.cat, event.id.as_str());
        match event.ph {
            "b" => open.entry(key).or_default().push(event),
            "e" => match open.get_mut(&key).and_then(Vec::pop) {
                None => checked.wrong(|| format!("event {}: {} {} ends and never began", event.n, event.cat, event.id)),
                Some(begin) if begin.name != event.name || begin.pid != event.pid => {
                    checked.wrong(|| {
                        format!(
                            "event {}: {} began as {} and ends as {}",
                            event.n, event.id, begin.name, event.name
                        )
                    });
                }
                Some(begin) if begin.ts > event.ts + SAME_US => {
                    checked.wrong(|| format!("event {}: {} {} ends before it began", event.n, event.cat, event.id));
                }
                Some(_) => checked.spans += 1,
            },
            _ => {}
        }
    }
    for begin in open.into_values().flatten() {
        checked.wrong(|| format!("event {}: {} {} never ends", begin.n, begin.cat, begin.id));
    }
}

fn arrows(events: &[Event<'_>], slices: &Slices, components: &BTreeMap<i64, String>, checked: &mut Checked) {
    let mut arrows: HashMap<(&str, &str), Vec<&Event<'_>>> = HashMap::new();
    let mut order = Vec::new();
    for event in events.iter().filter(|event| ["s", "t", "f"].contains(&event.ph)) {
        let track = slices.get(&(event.pid, event.tid)).map_or(&[][..], Vec::as_slice);
        let after = track.partition_point(|(from, _)| *from <= event.ts + SAME_US);
        let held = after.checked_sub(1).is_some_and(|at| event.ts <= track[at].1 + SAME_US);
        if !held {
            checked.wrong(|| {
                format!(
                    "event {}: the arrow {} {} has no slice here",
                    event.n, event.cat, event.id
                )
            });
        }
        let steps = arrows.entry((event.cat, event.id.as_str())).or_default();
        if steps.is_empty() {
            order.push((event.cat, event.id.as_str()));
        }
        steps.push(event);
    }
    for key in order {
        let steps = &arrows[&key];
        let (cat, id) = key;
        let phases: String = steps.iter().map(|step| step.ph).collect();
        let middle = phases.strip_prefix('s').and_then(|rest| rest.strip_suffix('f'));
        if !middle.is_some_and(|middle| middle.bytes().all(|ph| ph == b't')) {
            checked.wrong(|| format!("event {}: the arrow {cat} {id} goes {phases}, not s, t…, f", steps[0].n));
            continue;
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[0].ts > pair[1].ts + SAME_US) {
            checked.wrong(|| format!("event {}: the arrow {cat} {id} points into the past", pair[1].n));
            continue;
        }
        checked.arrows += 1;
        if cat == "payout" {
            let mut met: Vec<String> = Vec::new();
            for component in steps.iter().filter_map(|step| components.get(&step.pid)) {
                if !met.contains(component) {
                    met.push(component.clone());
                }
            }
            checked.payouts.push(Crossing {
                payout: steps[0].name.to_owned(),
                components: met,
            });
        }
    }
}

/// Checks a dump: numbers that rise by one in each process unless the ring has lost some, ids of the right form, and
/// whether the cause of each record is there.
#[must_use]
pub fn check_dump(dump: &Dump) -> Checked {
    let mut checked = Checked {
        events: dump.records.len(),
        processes: dump.processes.values().map(crate::Process::title).collect(),
        ..Checked::default()
    };
    let mut seen: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let mut spans = BTreeSet::new();
    for record in &dump.records {
        let what = || format!("{} seq {}", record.actor, record.seq);
        if !seen.entry(&record.boot_id).or_default().insert(record.seq) {
            checked.wrong(|| format!("{}: is there twice", what()));
        }
        for (name, text, digits) in [
            ("trace_id", &record.trace_id, 32),
            ("span_id", &record.span_id, 16),
            ("parent_span_id", &record.parent_span_id, 16),
        ] {
            if text.len() != digits || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                checked.wrong(|| format!("{}: {name} {text:?} is not {digits} hexadecimal digits", what()));
            }
        }
        spans.insert((&record.trace_id, &record.span_id));
        checked.spans += 1;
    }
    checked.arrows = dump
        .records
        .iter()
        .filter(|record| spans.contains(&(&record.trace_id, &record.parent_span_id)))
        .count();
    checked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw;
    use crate::dump::tests::{dump, record};
    use serde_json::json;

    /// A payout's way through two processes.
    fn drawing() -> Value {
        let mut call = record("payout-executor", 1, 1_000, 1, 0);
        (call.kind, call.payout, call.token, call.handled_ns) = ("call".into(), Some("P".into()), Some(4), 3_000_000);
        let mut request = record("rail-proxy", 1, 2_000, 2, 1);
        (request.kind, request.token) = ("request".into(), Some(4));
        // At the same time as the first one: a track of its own.
        let mut other = record("rail-proxy", 2, 2_500, 3, 1);
        other.kind = "request".into();
        let drawing = draw(&dump(vec![request, other, call]));
        assert_eq!(drawing.arrows_left_out, 0);
        serde_json::from_str(&drawing.json).unwrap()
    }

    #[test]
    fn what_is_drawn_is_well_formed() {
        let checked = check(&drawing().to_string()).unwrap();
        assert_eq!(checked.findings, Vec::<String>::new());
        // Three records; two causes, one payout, one token.
        assert_eq!((checked.slices, checked.spans, checked.arrows), (3, 6, 4));
        assert_eq!(checked.processes.len(), 2);
        let met = ["payout-executor", "rail-proxy"];
        assert_eq!(checked.crossing(&met).into_iter().collect::<Vec<_>>(), ["P"]);
        assert!(checked.crossing(&["lock-server"]).is_empty());
    }

    #[test]
    fn nothing_is_drawn_well_formed_too() {
        let checked = check(&draw(&Dump::default()).json).unwrap();
        assert!(checked.ok() && checked.events == 0);
    }

    #[test]
    fn each_thing_that_can_be_broken_is_found() {
        type Harm = fn(&mut Vec<Value>);
        fn first<'v>(events: &'v mut [Value], ph: &str) -> &'v mut Value {
            events.iter_mut().find(|event| event["ph"] == ph).unwrap()
        }
        fn drop_first(events: &mut Vec<Value>, ph: &str) {
            let at = events.iter().position(|event| event["ph"] == ph).unwrap();
            events.remove(at);
        }
        let harms: [(&str, Harm); 14] = [
            ("never ends", |events| drop_first(events, "e")),
            ("never began", |events| drop_first(events, "b")),
            ("not s, t…, f", |events| drop_first(events, "s")),
            ("not s, t…, f", |events| drop_first(events, "f")),
            ("not s, t…, f", |events| {
                let again = first(events, "f").clone();
                events.push(again);
            }),
            ("ends before it began", |events| first(events, "b")["ts"] = json!(1e6)),
            ("and ends as", |events| first(events, "e")["name"] = json!("Other")),
            ("has no slice here", |events| first(events, "f")["ts"] = json!(9e9)),
            ("points into the past", |events| {
                // To the end of the call's own slice, which is after the request began.
                first(events, "s")["ts"] = json!(3_000.0);
            }),
            ("process 1 has no name", |events| {
                events.retain(|event| event["name"] != "process_name" || event["pid"] != 1);
            }),
            ("has no name", |events| {
                events.retain(|event| event["name"] != "thread_name");
            }),
            ("dur is no duration", |events| first(events, "X")["dur"] = json!(-1)),
            ("ph \"B\"", |events| first(events, "X")["ph"] = json!("B")),
            ("begins in the one at", |events| {
                let again = first(events, "X").clone();
                events.push(again);
            }),
        ];
        for (finding, harm) in harms {
            let mut drawing = drawing();
            harm(drawing["traceEvents"].as_array_mut().unwrap());
            let checked = check(&drawing.to_string()).unwrap();
            assert!(
                !checked.ok() && checked.findings.iter().any(|found| found.contains(finding)),
                "{finding}: {:?}",
                checked.findings
            );
        }
        for no_drawing in ["", "[]", "{}", "{\"traceEvents\": 1}"] {
            assert!(check(no_drawing).is_err(), "{no_drawing}");
        }
    }

    #[test]
    fn a_thousand_findings_are_counted_and_not_all_told() {
        let events: Vec<Value> = (0..1_000).map(|_| json!({})).collect();
        let checked = check(&json!({ "traceEvents": events }).to_string()).unwrap();
        assert_eq!((checked.wrong, checked.findings.len()), (1_000, FINDINGS_MAX));
    }

    #[test]
    fn arrows_into_the_past_are_left_out_and_counted() {
        let mut call = record("a", 1, 5_000, 1, 0);
        call.kind = "call".into();
        let request = record("b", 1, 1_000, 2, 1);
        let drawing = draw(&dump(vec![call, request]));
        assert_eq!(drawing.arrows_left_out, 1);
        assert!(check(&drawing.json).unwrap().ok());
    }

    #[test]
    fn a_dump_tells_what_is_wrong_with_it() {
        let good = dump(vec![record("a", 1, 10, 1, 0), record("a", 2, 20, 2, 1)]);
        let checked = check_dump(&good);
        assert!(checked.ok() && checked.arrows == 1);
        let mut bad = record("a", 2, 20, 2, 1);
        bad.trace_id = "XYZ".into();
        let checked = check_dump(&dump(vec![record("a", 2, 10, 1, 0), bad]));
        assert_eq!(checked.wrong, 2, "{:?}", checked.findings);
    }
}
