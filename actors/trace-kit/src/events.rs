//! A dump drawn in the trace event format, which Perfetto and Chrome open.
//!
//! A process for each process, a track for each actor (several for work, requests and calls, which overlap). On it a slice for
//! each record; beside it, as async spans with ids, the time it waited (`queue`) and the time it was handled (`handle`).
//! Arrows: `cause` from each record to those it caused, `payout` and `token` along everything that was done for one.

use crate::dump::{Dump, REQUEST, Record, signed};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A dump drawn as trace events.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// The JSON object that Perfetto and Chrome open.
    pub json: String,
    /// Arrows that are not drawn because the clocks would have them point into the past.
    pub arrows_left_out: usize,
}

/// One event.
#[derive(Serialize)]
struct Event<'a> {
    ph: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    pid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<usize>,
    /// Microseconds from the beginning of the drawing.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// An arrow ends at the slice that is open at its moment, not at the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Value>,
}

/// Where a record is drawn.
#[derive(Clone, Copy)]
struct Place {
    pid: usize,
    tid: usize,
    /// Nanoseconds from the beginning of the drawing.
    at: i64,
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a drawing of a hundred days is still exact to the nanosecond"
)]
fn us(ns: i64) -> f64 {
    ns as f64 / 1_000.0
}

/// A slice without any width could not carry an arrow.
fn width(record: &Record) -> i64 {
    signed(record.handled_ns).max(1)
}

/// Draws a dump.
#[must_use]
pub fn draw(dump: &Dump) -> Drawing {
    let offsets = dump.offsets();
    let absolute = |record: &Record| signed(record.at_ns) + offsets[&*record.boot_id];
    let mut order: Vec<&Record> = dump.records.iter().collect();
    order.sort_by_key(|record| (absolute(record), record.seq));
    let epoch = order
        .iter()
        .map(|record| absolute(record) - signed(record.queued_ns))
        .min()
        .unwrap_or(0);

    let mut events = Vec::new();
    let pids = processes(dump, &mut events);
    let places = tracks(&order, &pids, |record| absolute(record) - epoch, &mut events);
    for (record, place) in order.iter().zip(&places) {
        slices(record, *place, &mut events);
    }
    let mut flows = Flows {
        places: &places,
        next: 1,
        left_out: 0,
    };
    flows.causes(&order, &mut events);
    let (payouts, tokens) = (payouts(&order), tokens(&order));
    for (payout, chain) in &payouts {
        flows.chain("payout", payout, chain, &mut events);
    }
    for (token, chain) in &tokens {
        flows.chain("token", token, chain, &mut events);
    }
    // What begins at the same moment stays in this order: a slice is there before the arrow that it carries.
    events.sort_by(|a, b| a.ts.unwrap_or(-1.0).total_cmp(&b.ts.unwrap_or(-1.0)));
    let json = json!({
        "displayTimeUnit": "ns",
        "otherData": {
            "from_wall_us": epoch.div_euclid(1_000),
            "arrows_left_out": flows.left_out,
            "processes": dump.processes.values().collect::<Vec<_>>(),
        },
    });
    // The events are many: written one a line, without a tree of values in between.
    let mut text = json.to_string();
    text.pop();
    text.push_str(",\"traceEvents\":[");
    for (n, event) in events.iter().enumerate() {
        text.push_str(if n == 0 { "\n" } else { ",\n" });
        text.push_str(&serde_json::to_string(event).expect("an event is plain numbers and text"));
    }
    text.push_str("\n]}\n");
    Drawing {
        json: text,
        arrows_left_out: flows.left_out,
    }
}

/// The order in which a payout meets the components; others follow.
const ORDER: [&str; 4] = ["payout-executor", "lock-server", "payment-resource", "rail-proxy"];

/// A number for each process: two hosts may have given the same one.
fn processes<'a>(dump: &'a Dump, events: &mut Vec<Event<'a>>) -> HashMap<&'a str, usize> {
    let mut processes: Vec<_> = dump.processes.values().collect();
    processes.sort_by_key(|process| {
        let rank = ORDER.iter().position(|known| *known == process.component);
        (
            rank.unwrap_or(ORDER.len()),
            process.component.clone(),
            process.instance.clone(),
            process.pid,
        )
    });
    let mut pids = HashMap::new();
    for (n, process) in processes.into_iter().enumerate() {
        let pid = n + 1;
        pids.insert(&*process.boot_id, pid);
        let args = json!({
            "name": process.title(), "component": process.component, "instance": process.instance,
            "boot_id": process.boot_id,
        });
        events.push(meta("process_name", pid, None, args));
        events.push(meta("process_sort_index", pid, None, json!({ "sort_index": pid })));
    }
    pids
}

fn meta<'a>(name: &'a str, pid: usize, tid: Option<usize>, args: Value) -> Event<'a> {
    Event {
        ph: "M",
        name,
        cat: None,
        pid,
        tid,
        ts: None,
        dur: None,
        id: None,
        bp: None,
        args: Some(args),
    }
}

/// A track for each actor, and another one beside it for whatever would overlap.
fn tracks<'a>(
    order: &[&'a Record],
    pids: &HashMap<&'a str, usize>,
    at: impl Fn(&Record) -> i64,
    events: &mut Vec<Event<'a>>,
) -> Vec<Place> {
    // Work, requests and calls above the actors, then by path.
    let names: BTreeSet<(usize, bool, &str)> = order
        .iter()
        .map(|record| (pids[&*record.boot_id], record.is_message(), &*record.actor))
        .collect();
    let rank: HashMap<(usize, &str), usize> = names
        .iter()
        .enumerate()
        .map(|(n, (pid, _, actor))| ((*pid, *actor), n))
        .collect();
    // For each actor the moments when its tracks are free again, and their numbers.
    let mut lanes: HashMap<(usize, &str), Vec<(i64, usize)>> = HashMap::new();
    let mut next: HashMap<usize, usize> = HashMap::new();
    order
        .iter()
        .map(|record| {
            let (pid, begin) = (pids[&*record.boot_id], at(record));
            let actor = (pid, &*record.actor);
            let lanes = lanes.entry(actor).or_default();
            let free = lanes.iter().position(|(until, _)| *until <= begin);
            let lane = free.unwrap_or_else(|| {
                let tid = next.entry(pid).or_insert(0);
                *tid += 1;
                lanes.push((0, *tid));
                let name = match lanes.len() {
                    1 => record.actor.clone(),
                    n => format!("{} ({n})", record.actor),
                };
                events.push(meta("thread_name", pid, Some(*tid), json!({ "name": name })));
                let sort = rank[&actor] * 100 + lanes.len();
                events.push(meta(
                    "thread_sort_index",
                    pid,
                    Some(*tid),
                    json!({ "sort_index": sort }),
                ));
                lanes.len() - 1
            });
            lanes[lane].0 = begin + width(record);
            Place {
                pid,
                tid: lanes[lane].1,
                at: begin,
            }
        })
        .collect()
}

/// The slice of a record on its track, and its two async spans.
fn slices<'a>(record: &'a Record, place: Place, events: &mut Vec<Event<'a>>) {
    let Place { pid, tid, at } = place;
    let event = |ph, cat, ts: i64| Event {
        ph,
        name: &record.message,
        cat: Some(cat),
        pid,
        tid: Some(tid),
        ts: Some(us(ts)),
        dur: None,
        id: None,
        bp: None,
        args: None,
    };
    let mut slice = event("X", if record.kind == REQUEST { "request" } else { "work" }, at);
    slice.dur = Some(us(width(record)));
    slice.args = Some(json!({
        "seq": record.seq, "kind": record.kind, "outcome": record.outcome, "code": record.code,
        "trace_id": record.trace_id, "span_id": record.span_id, "parent_span_id": record.parent_span_id,
        "queued_us": us(signed(record.queued_ns)), "token": record.token, "key": record.key, "payout": record.payout,
    }));
    events.push(slice);
    // One id for each record, whoever else has chosen the same span.
    let id = format!("0x{pid:04x}{:012x}", record.seq);
    let mut span = |cat, from: i64, to: i64| {
        for (ph, ts) in [("b", from), ("e", to)] {
            let mut edge = event(ph, cat, ts);
            edge.id = Some(id.clone());
            events.push(edge);
        }
    };
    if record.queued_ns > 0 {
        span("queue", at - signed(record.queued_ns), at);
    }
    span("handle", at, at + width(record));
}

/// Draws arrows.
struct Flows<'p> {
    places: &'p [Place],
    next: u64,
    left_out: usize,
}

impl Flows<'_> {
    fn step<'a>(&self, ph: &'static str, cat: &'static str, name: &'a str, at: usize) -> Event<'a> {
        let place = self.places[at];
        Event {
            ph,
            name,
            cat: Some(cat),
            pid: place.pid,
            tid: Some(place.tid),
            ts: Some(us(place.at)),
            dur: None,
            id: Some(self.next.to_string()),
            bp: (ph != "s").then_some("e"),
            args: None,
        }
    }

    /// From each record to those it caused, wherever both are there.
    fn causes<'a>(&mut self, order: &[&'a Record], events: &mut Vec<Event<'a>>) {
        let spans: HashMap<(&str, &str), usize> = order
            .iter()
            .enumerate()
            .map(|(n, record)| ((&*record.trace_id, &*record.span_id), n))
            .collect();
        for (to, record) in order.iter().enumerate() {
            let Some(&from) = spans.get(&(&*record.trace_id, &*record.parent_span_id)) else {
                continue;
            };
            if from == to || self.places[from].at > self.places[to].at {
                self.left_out += usize::from(from != to);
                continue;
            }
            events.push(self.step("s", "cause", "cause", from));
            events.push(self.step("f", "cause", "cause", to));
            self.next += 1;
        }
    }

    /// Along records that are in the order of their time.
    fn chain<'a>(&mut self, cat: &'static str, name: &'a str, chain: &[usize], events: &mut Vec<Event<'a>>) {
        if chain.len() < 2 {
            return;
        }
        for (n, at) in chain.iter().enumerate() {
            let ph = match n {
                0 => "s",
                n if n + 1 == chain.len() => "f",
                _ => "t",
            };
            events.push(self.step(ph, cat, name, *at));
        }
        self.next += 1;
    }
}

/// What was done for each payout: each trace that names it and no other, from its first record to its last.
fn payouts<'a>(order: &[&'a Record]) -> Vec<(&'a str, Vec<usize>)> {
    let mut named: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    for record in order {
        if let Some(payout) = &record.payout {
            named.entry(&record.trace_id).or_default().insert(payout);
        }
    }
    let mut chains: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (n, record) in order.iter().enumerate() {
        let payouts = named.get(&*record.trace_id);
        if let Some(payout) = payouts.filter(|payouts| payouts.len() == 1).and_then(BTreeSet::first) {
            chains.entry((*payout, &*record.trace_id)).or_default().push(n);
        }
    }
    chains.into_iter().map(|((payout, _), chain)| (payout, chain)).collect()
}

/// Where each token was carried.
fn tokens(order: &[&Record]) -> Vec<(String, Vec<usize>)> {
    let mut chains: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (n, record) in order.iter().enumerate() {
        if let Some(token) = record.token {
            chains.entry(token).or_default().push(n);
        }
    }
    chains
        .into_iter()
        .map(|(token, chain)| (format!("token {token}"), chain))
        .collect()
}
