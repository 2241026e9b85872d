//! The trace: who handled what, when, for how long, with which outcome. Always on, bounded, without an allocation per
//! message (paths, keys and payouts are shared, names are static).

use crate::context::{Hex, TraceContext};
use crate::process::{Anchor, Process, nanos};
use crate::span::TraceObserver;
use host_kit::Clock;
use serde::{Serialize, Serializer};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How the handling of a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Answered in the handler; for a request or a call: answered 2xx or 3xx.
    Answered,
    /// Handled; the answer comes later, from a future or another actor.
    Deferred,
    /// Handled; no answer was expected.
    Done,
    /// Skipped: the deadline had passed before its turn.
    Expired,
    /// Skipped: the asker had gone before its turn; for a call: whoever made it no longer waited for the answer.
    Abandoned,
    /// The behaviour panicked.
    Panicked,
    /// For a request or a call: it was refused, as `code` says.
    Refused,
    /// For a request or a call: it failed (5xx), or had no answer that can be read.
    Failed,
}

impl Outcome {
    /// The outcome as it stands in dumps.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Deferred => "deferred",
            Self::Done => "done",
            Self::Expired => "expired",
            Self::Abandoned => "abandoned",
            Self::Panicked => "panicked",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// What a piece of work is about, where it names one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum About {
    /// Nothing of the kind.
    #[default]
    Nothing,
    /// A lock's key.
    Key(Arc<str>),
    /// A payout.
    Payout(Arc<str>),
}

impl About {
    /// The key, where it is about one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Key(key) => Some(key),
            _ => None,
        }
    }

    /// The payout, where it is about one.
    #[must_use]
    pub fn payout(&self) -> Option<&str> {
        match self {
            Self::Payout(payout) => Some(payout),
            _ => None,
        }
    }
}

/// The kind of a record that stands for a request at a gateway.
pub const REQUEST: &str = "request";
/// The kind of a record that stands for a call to another process.
pub const CALL: &str = "call";
/// The kind of a record that stands for work of many messages and calls: a payout in a worker's hands.
pub const WORK: &str = "work";

/// One handled message, one request at a gateway, one call to another process, or one stretch of work.
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// Rises by one with each record of the process; gaps show what the ring has already dropped.
    pub seq: u64,
    /// The path of the actor; `<component>/requests`, `<component>/calls/<peer>` and `<component>/work` for what is no
    /// actor.
    pub actor: Arc<str>,
    /// The kind of the actor, [`REQUEST`], [`CALL`] or [`WORK`].
    pub kind: &'static str,
    /// The name of the message, the route of the request, or the name of the call or of the work.
    pub message: &'static str,
    /// When its handling began, in the clock's monotonic time; for a call, when it was sent; for work, when it was taken.
    pub at: Duration,
    /// How long it had waited in the mailbox.
    pub queued: Duration,
    /// How long the handler took; for a request or a call, until it was answered; for work, until it was put down.
    pub handled: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// The problem's code, where it was refused or failed with one; for work, what came of it.
    pub code: Option<&'static str>,
    /// The trace, and the span of this handling.
    pub trace: TraceContext,
    /// The span that caused it; zeros where nothing is known to have.
    pub parent_span: [u8; 8],
    /// The token it carried, or was answered.
    pub token: Option<u64>,
    /// The key or payout it is about.
    pub about: About,
}

/// Which records to read.
#[derive(Clone, Debug, Default)]
pub struct TraceQuery {
    /// Only actors whose path is this, or lies below it.
    pub actor: Option<String>,
    /// Only records with a higher `seq`: the last one of the previous answer.
    pub since: Option<u64>,
    /// At most this many, the newest ones.
    pub limit: Option<usize>,
}

/// What a ring held at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The records that the query admits, oldest first.
    pub records: Vec<TraceRecord>,
    /// The `seq` of the oldest record that the ring still has, whatever the query admits; that of the next one when it has
    /// none. Everything below is gone.
    pub first_seq: u64,
    /// The `seq` that the next record will have.
    pub next_seq: u64,
    /// The most records it holds; 0 when it is off.
    pub capacity: usize,
}

/// The last messages of a process: a ring of bounded memory. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct TraceRing {
    /// None when it is off.
    ring: Option<Arc<Mutex<Ring>>>,
    observer: Arc<OnceLock<Arc<dyn TraceObserver>>>,
    clock: Clock,
    process: Arc<Process>,
}

#[derive(Debug)]
struct Ring {
    records: VecDeque<TraceRecord>,
    next: u64,
    capacity: usize,
}

impl TraceRing {
    /// How many records a process keeps unless told otherwise: about 1.6 MB.
    pub const CAPACITY: usize = 8192;

    /// An empty ring of this capacity for this process; one of capacity 0 records nothing.
    pub(crate) fn new(capacity: usize, clock: Clock, process: Arc<Process>) -> Self {
        let ring = Ring {
            // Grows as it fills: a process that does little takes little.
            records: VecDeque::with_capacity(capacity.min(256)),
            next: 1,
            capacity,
        };
        Self {
            ring: (capacity > 0).then(|| Arc::new(Mutex::new(ring))),
            observer: Arc::default(),
            clock,
            process,
        }
    }

    /// Whether anybody wants records: the ring keeps them, or an observer is told of them.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.keeps() || self.observer.get().is_some()
    }

    /// Whether the ring keeps records.
    #[must_use]
    pub const fn keeps(&self) -> bool {
        self.ring.is_some()
    }

    /// From now on this is told of every record, also where the ring keeps none. One at most for the life of a ring: false,
    /// and the first one stays, when there is one already.
    pub fn observe(&self, observer: Arc<dyn TraceObserver>) -> bool {
        self.observer.set(observer).is_ok()
    }

    /// The process whose trace this is.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The clock that the records' times are of.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Appends a record; its `seq` is set here. The oldest one goes when the ring is full. An observer is told first.
    pub fn record(&self, mut record: TraceRecord) {
        if let Some(observer) = self.observer.get() {
            observer.recorded(&record);
        }
        let Some(ring) = &self.ring else { return };
        // A ring poisoned by a panic elsewhere is still whole: records are pushed and popped in one step each.
        let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
        record.seq = ring.next;
        ring.next += 1;
        let oldest = (ring.records.len() == ring.capacity).then(|| ring.records.pop_front());
        ring.records.push_back(record);
        drop(ring);
        // What the oldest one was about may be freed here, which is nothing that the lock need wait for.
        drop(oldest);
    }

    /// What the ring holds now.
    #[must_use]
    pub fn snapshot(&self, query: &TraceQuery) -> Snapshot {
        let Some(ring) = &self.ring else {
            return Snapshot {
                records: Vec::new(),
                first_seq: 1,
                next_seq: 1,
                capacity: 0,
            };
        };
        let below = query.actor.as_ref().map(|actor| format!("{actor}/"));
        let ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records: Vec<_> = ring
            .records
            .iter()
            .rev()
            .take_while(|record| query.since.is_none_or(|since| record.seq > since))
            .filter(|record| match (&query.actor, &below) {
                (Some(actor), Some(below)) => *record.actor == **actor || record.actor.starts_with(below.as_str()),
                _ => true,
            })
            .take(query.limit.unwrap_or(usize::MAX))
            .cloned()
            .collect();
        records.reverse();
        Snapshot {
            records,
            first_seq: ring.records.front().map_or(ring.next, |record| record.seq),
            next_seq: ring.next,
            capacity: ring.capacity,
        }
    }

    /// The records that the query admits, oldest first.
    #[must_use]
    pub fn read(&self, query: &TraceQuery) -> Vec<TraceRecord> {
        self.snapshot(query).records
    }

    /// The records that the query admits as JSON lines. Each names its process and its wall time; `header` puts a line
    /// before them that tells more of the process, of its clocks and of what the ring has lost.
    #[must_use]
    pub fn to_jsonl(&self, query: &TraceQuery, header: bool) -> String {
        let snapshot = self.snapshot(query);
        let anchor = Anchor::now(&self.clock);
        let mut lines = String::new();
        let mut push = |line: Result<String, serde_json::Error>| {
            lines.push_str(&line.expect("a line is plain numbers and text"));
            lines.push('\n');
        };
        if header {
            push(serde_json::to_string(&serde_json::json!({ "process": {
                "component": self.process.component(),
                "instance": self.process.instance(),
                "pid": self.process.pid(),
                "boot_id": self.process.boot_id(),
                "capacity": snapshot.capacity,
                "first_seq": snapshot.first_seq,
                "next_seq": snapshot.next_seq,
                "dropped": snapshot.first_seq.saturating_sub(1),
                "anchor": anchor,
            }})));
        }
        for record in &snapshot.records {
            push(serde_json::to_string(&Line::of(record, &anchor, &self.process)));
        }
        lines
    }
}

/// A record as a line of a dump.
#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    actor: &'a str,
    kind: &'a str,
    message: &'a str,
    at_ns: u64,
    queued_ns: u64,
    handled_ns: u64,
    outcome: Outcome,
    code: Option<&'a str>,
    trace_id: String,
    span_id: String,
    parent_span_id: String,
    token: Option<u64>,
    key: Option<&'a str>,
    payout: Option<&'a str>,
    at_wall_ms: i64,
    at_wall_us: i64,
    component: &'a str,
    instance: &'a str,
    pid: u32,
    boot_id: &'a str,
}

impl<'a> Line<'a> {
    fn of(record: &'a TraceRecord, anchor: &Anchor, process: &'a Process) -> Self {
        let at_wall_us = anchor.wall_us(record.at);
        Self {
            seq: record.seq,
            actor: &record.actor,
            kind: record.kind,
            message: record.message,
            at_ns: nanos(record.at),
            queued_ns: nanos(record.queued),
            handled_ns: nanos(record.handled),
            outcome: record.outcome,
            code: record.code,
            trace_id: record.trace.trace_id_hex(),
            span_id: record.trace.span_id_hex(),
            parent_span_id: Hex(&record.parent_span).to_string(),
            token: record.token,
            key: record.about.key(),
            payout: record.about.payout(),
            at_wall_ms: at_wall_us.div_euclid(1_000),
            at_wall_us,
            component: process.component(),
            instance: process.instance(),
            pid: process.pid(),
            boot_id: process.boot_id(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn ring(capacity: usize, clock: Clock) -> TraceRing {
        let process = Process::new("lock-server", 10);
        process.name("one");
        TraceRing::new(capacity, clock, Arc::new(process))
    }

    fn record(actor: &str) -> TraceRecord {
        TraceRecord {
            seq: 0,
            actor: actor.into(),
            kind: "test",
            message: "Test",
            at: Duration::from_millis(5),
            queued: Duration::from_nanos(1500),
            handled: Duration::from_nanos(10),
            outcome: Outcome::Answered,
            code: None,
            trace: TraceContext::from_traceparent(HEADER).unwrap(),
            parent_span: [1; 8],
            token: Some(7),
            about: About::Key("payout:A".into()),
        }
    }

    #[test]
    fn the_ring_keeps_the_newest_and_no_more() {
        let ring = ring(4, host_kit::ManualClock::new().clock());
        for actor in ["a", "a/b", "ab", "a", "a/c", "a"] {
            ring.record(record(actor));
        }
        let seqs = |query| ring.read(&query).iter().map(|record| record.seq).collect::<Vec<_>>();
        assert_eq!(seqs(TraceQuery::default()), [3, 4, 5, 6]);
        let below = |actor: &str| TraceQuery {
            actor: Some(actor.to_owned()),
            ..TraceQuery::default()
        };
        assert_eq!(seqs(below("a")), [4, 5, 6]);
        assert_eq!(seqs(below("a/c")), [5]);
        let (since, limit) = (Some(4), Some(1));
        assert_eq!(
            seqs(TraceQuery {
                since,
                ..TraceQuery::default()
            }),
            [5, 6]
        );
        assert_eq!(
            seqs(TraceQuery {
                limit,
                ..TraceQuery::default()
            }),
            [6]
        );
        // What is gone is told whatever was asked for.
        let snapshot = ring.snapshot(&below("a/c"));
        assert_eq!((snapshot.first_seq, snapshot.next_seq, snapshot.capacity), (3, 7, 4));
    }

    #[test]
    fn a_ring_that_is_off_records_nothing() {
        let ring = ring(0, host_kit::ManualClock::new().clock());
        ring.record(record("a"));
        assert!(!ring.is_on() && ring.read(&TraceQuery::default()).is_empty());
    }

    #[test]
    fn a_line_holds_what_a_dump_needs() {
        let hand = host_kit::ManualClock::new();
        hand.advance(Duration::from_millis(7));
        let ring = ring(1, hand.clock());
        ring.record(record("gone"));
        ring.record(record("lock-server/lease"));
        let text = ring.to_jsonl(&TraceQuery::default(), true);
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let pid = std::process::id();
        assert_eq!(
            lines,
            [
                serde_json::json!({ "process": {
                    "component": "lock-server", "instance": "one", "pid": pid, "boot_id": "000000000000000a",
                    "capacity": 1, "first_seq": 2, "next_seq": 3, "dropped": 1,
                    "anchor": { "at_ns": 7_000_000, "wall_us": 7_000, "error_ns": 1_000 },
                }}),
                serde_json::json!({
                    "seq": 2, "actor": "lock-server/lease", "kind": "test", "message": "Test", "at_ns": 5_000_000,
                    "queued_ns": 1500, "handled_ns": 10, "outcome": "answered", "code": null,
                    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7",
                    "parent_span_id": "0101010101010101", "token": 7, "key": "payout:A", "payout": null,
                    "at_wall_ms": 5, "at_wall_us": 5_000,
                    "component": "lock-server", "instance": "one", "pid": pid, "boot_id": "000000000000000a",
                })
            ]
        );
        assert_eq!(ring.to_jsonl(&TraceQuery::default(), false).lines().count(), 1);
    }
}
