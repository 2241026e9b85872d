//! The trace: who handled what, when, for how long, with which outcome. Always on, bounded, without an allocation per
//! message (paths are shared, names are static).

use crate::span::TraceObserver;
use host_kit::{Clock, Random};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Where a piece of work belongs: W3C trace context (NFR-08). Passed along explicitly with every message.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
}

impl TraceContext {
    /// The beginning of a new trace.
    #[must_use]
    pub fn root(random: &Random) -> Self {
        Self {
            // All zeros is no valid id; the chance of meeting it is nil, the cost of excluding it as well.
            trace_id: random.u128().max(1).to_be_bytes(),
            span_id: random.u64().max(1).to_be_bytes(),
        }
    }

    /// A new span of the same trace.
    #[must_use]
    pub fn child(&self, random: &Random) -> Self {
        self.with_span(random.u64())
    }

    pub(crate) fn with_span(&self, span: u64) -> Self {
        Self {
            trace_id: self.trace_id,
            span_id: span.max(1).to_be_bytes(),
        }
    }

    /// Reads the header `traceparent`. None when it is not well formed: then a new trace begins.
    #[must_use]
    pub fn from_traceparent(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Version ff is forbidden; 00 has exactly four parts; later versions may have more.
        if version.len() != 2 || version == "ff" || flags.len() != 2 || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let [_] = unhex::<1>(version)?;
        let [_] = unhex::<1>(flags)?;
        let context = Self {
            trace_id: unhex(trace)?,
            span_id: unhex(span)?,
        };
        (context.trace_id != [0; 16] && context.span_id != [0; 8]).then_some(context)
    }

    /// The header `traceparent` for the next hop.
    #[must_use]
    pub fn to_traceparent(&self) -> String {
        format!("00-{}-{}-01", Hex(&self.trace_id), Hex(&self.span_id))
    }

    /// The trace's id as 32 hexadecimal digits, as logged and answered.
    #[must_use]
    pub fn trace_id_hex(&self) -> String {
        Hex(&self.trace_id).to_string()
    }

    /// The span's id as 16 hexadecimal digits.
    #[must_use]
    pub fn span_id_hex(&self) -> String {
        Hex(&self.span_id).to_string()
    }

    /// The span's id.
    #[must_use]
    pub const fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// The trace's id.
    #[must_use]
    pub const fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_traceparent())
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Lower case only, as the W3C recommendation demands.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// How the handling of a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Answered in the handler.
    Answered,
    /// Handled; the answer comes later, from a future or another actor.
    Deferred,
    /// Handled; no answer was expected.
    Done,
    /// Skipped: the deadline had passed before its turn.
    Expired,
    /// Skipped: the asker had gone before its turn.
    Abandoned,
    /// The behaviour panicked.
    Panicked,
    /// For what is recorded by hand (a request at a gateway): it was refused or failed.
    Failed,
}

/// One handled message.
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// Rises by one with each record of the process; gaps show what the ring has already dropped.
    pub seq: u64,
    /// The path of the actor.
    pub actor: Arc<str>,
    /// The kind of the actor.
    pub kind: &'static str,
    /// The name of the message.
    pub message: &'static str,
    /// When its handling began, in the clock's monotonic time.
    pub at: Duration,
    /// How long it had waited in the mailbox.
    pub queued: Duration,
    /// How long the handler took.
    pub handled: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// The trace, and the span of this handling.
    pub trace: TraceContext,
    /// The span that caused it.
    pub parent_span: [u8; 8],
    /// The token it carried.
    pub token: Option<u64>,
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Serialize for TraceRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut record = serializer.serialize_struct("TraceRecord", 12)?;
        record.serialize_field("seq", &self.seq)?;
        record.serialize_field("actor", &*self.actor)?;
        record.serialize_field("kind", self.kind)?;
        record.serialize_field("message", self.message)?;
        record.serialize_field("at_ns", &nanos(self.at))?;
        record.serialize_field("queued_ns", &nanos(self.queued))?;
        record.serialize_field("handled_ns", &nanos(self.handled))?;
        record.serialize_field("outcome", &self.outcome)?;
        record.serialize_field("trace_id", &self.trace.trace_id_hex())?;
        record.serialize_field("span_id", &self.trace.span_id_hex())?;
        record.serialize_field("parent_span_id", &Hex(&self.parent_span).to_string())?;
        record.serialize_field("token", &self.token)?;
        record.end()
    }
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

/// The last messages of a process: a ring of bounded memory. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct TraceRing {
    ring: Arc<Mutex<Ring>>,
    observer: Arc<OnceLock<Arc<dyn TraceObserver>>>,
    clock: Clock,
}

#[derive(Debug)]
struct Ring {
    records: VecDeque<TraceRecord>,
    next: u64,
    capacity: usize,
}

impl TraceRing {
    /// How many records a process keeps: about 1.4 MB.
    pub const CAPACITY: usize = 8192;

    /// An empty ring of this capacity (at least 1).
    #[must_use]
    pub fn new(capacity: usize, clock: Clock) -> Self {
        let capacity = capacity.max(1);
        Self {
            ring: Arc::new(Mutex::new(Ring {
                records: VecDeque::with_capacity(capacity),
                next: 1,
                capacity,
            })),
            observer: Arc::default(),
            clock,
        }
    }

    /// From now on this is told of every record, and of every span. One at most for the life of a ring: false, and the
    /// first one stays, when there is one already.
    pub fn observe(&self, observer: Arc<dyn TraceObserver>) -> bool {
        self.observer.set(observer).is_ok()
    }

    pub(crate) fn observer(&self) -> Option<&Arc<dyn TraceObserver>> {
        self.observer.get()
    }

    /// The clock that the records' times are of.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Appends a record; its `seq` is set here. The oldest one goes when the ring is full.
    pub fn record(&self, mut record: TraceRecord) {
        // A ring poisoned by a panic elsewhere is still whole: records are pushed and popped in one step each.
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        record.seq = ring.next;
        ring.next += 1;
        let observed = self.observer().map(|observer| (observer, record.clone()));
        if ring.records.len() == ring.capacity {
            ring.records.pop_front();
        }
        ring.records.push_back(record);
        drop(ring);
        if let Some((observer, record)) = observed {
            observer.handled(&record);
        }
    }

    /// The records that the query admits, oldest first.
    #[must_use]
    pub fn read(&self, query: &TraceQuery) -> Vec<TraceRecord> {
        let below = query.actor.as_ref().map(|actor| format!("{actor}/"));
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<_> = ring
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
        found.reverse();
        found
    }

    /// The wall time, in milliseconds since 1970, of a record's `at`: as the wall clock sees it now.
    #[must_use]
    pub fn wall_ms(&self, at: Duration) -> i64 {
        let ago = self.clock.mono().saturating_sub(at);
        self.clock.wall_ms() - i64::try_from(ago.as_millis()).unwrap_or(i64::MAX)
    }

    /// The records that the query admits as JSON lines, each with `at_wall_ms` added.
    #[must_use]
    pub fn to_jsonl(&self, query: &TraceQuery) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            #[serde(flatten)]
            record: &'a TraceRecord,
            at_wall_ms: i64,
        }
        let mut lines = String::new();
        for record in &self.read(query) {
            let line = Line {
                record,
                at_wall_ms: self.wall_ms(record.at),
            };
            lines.push_str(&serde_json::to_string(&line).expect("a record is plain numbers and text"));
            lines.push('\n');
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_survives_a_hop() {
        let context = TraceContext::from_traceparent(HEADER).unwrap();
        assert_eq!(context.to_traceparent(), HEADER);
        assert_eq!(context.trace_id_hex(), "4bf92f3577b34da6a3ce929d0e0e4736");
        let child = context.child(&Random::seeded(1));
        assert_eq!(child.trace_id(), context.trace_id());
        assert_ne!(child.span_id(), context.span_id());
        // A later version may say more.
        assert!(TraceContext::from_traceparent(&format!("01{}-x", &HEADER[2..])).is_some());
    }

    #[test]
    fn what_is_no_traceparent_begins_a_new_trace() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::from_traceparent(bad), None, "{bad:?} was taken");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic_and_what_it_takes_it_gives_back(text in "\\PC{0,70}") {
            if let Some(context) = TraceContext::from_traceparent(&text) {
                prop_assert_eq!(TraceContext::from_traceparent(&context.to_traceparent()), Some(context));
            }
        }
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
            trace: TraceContext::from_traceparent(HEADER).unwrap(),
            parent_span: [1; 8],
            token: Some(7),
        }
    }

    #[test]
    fn the_ring_keeps_the_newest_and_no_more() {
        let ring = TraceRing::new(4, host_kit::ManualClock::new().clock());
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
    }

    #[test]
    fn a_record_holds_what_a_dump_needs() {
        let hand = host_kit::ManualClock::new();
        hand.advance(Duration::from_millis(7));
        let ring = TraceRing::new(1, hand.clock());
        ring.record(record("lock-server/lease"));
        let lines = ring.to_jsonl(&TraceQuery::default());
        let line: serde_json::Value = serde_json::from_str(lines.trim()).unwrap();
        assert_eq!(
            line,
            serde_json::json!({
                "seq": 1, "actor": "lock-server/lease", "kind": "test", "message": "Test", "at_ns": 5_000_000,
                "queued_ns": 1500, "handled_ns": 10, "outcome": "answered",
                "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7",
                "parent_span_id": "0101010101010101", "token": 7, "at_wall_ms": 5,
            })
        );
    }
}
