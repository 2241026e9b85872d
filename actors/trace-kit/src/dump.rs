//! A dump as text and as data.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Why a dump cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct DumpError {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// One moment by both clocks of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// By the monotonic clock, in nanoseconds since an arbitrary start.
    pub at_ns: u64,
    /// By the wall clock, in microseconds since 1970.
    pub wall_us: i64,
    /// How far apart the two readings can be at most.
    pub error_ns: u64,
}

/// A process as its dump tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The component.
    pub component: String,
    /// Its name among others of its kind.
    pub instance: String,
    /// The operating system's number.
    pub pid: u32,
    /// The random number of this life of the process: what tells two processes apart.
    pub boot_id: String,
    /// The most records that the ring holds; 0 where no header told.
    #[serde(default)]
    pub capacity: usize,
    /// The oldest record that the ring still had.
    #[serde(default)]
    pub first_seq: u64,
    /// The number that the next record would have had.
    #[serde(default)]
    pub next_seq: u64,
    /// How many records the ring had lost.
    #[serde(default)]
    pub dropped: u64,
    /// How its two clocks stood to each other when it was dumped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<Anchor>,
    /// By how much the merge moved its records, in microseconds, because its clock disagreed with the others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shift_us: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
const fn is_zero(value: &i64) -> bool {
    *value == 0
}

impl Process {
    /// As it is shown: component, instance, process id.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} {} (pid {})", self.component, self.instance, self.pid)
    }
}

/// One handled message, one request at a gateway, one call to another process, or one stretch of work. The fields are explained, column by
/// column, in `docs/trace-dump.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the columns of the dump, explained in its document")]
pub struct Record {
    pub seq: u64,
    pub actor: String,
    pub kind: String,
    pub message: String,
    pub at_ns: u64,
    pub queued_ns: u64,
    pub handled_ns: u64,
    pub outcome: String,
    #[serde(default)]
    pub code: Option<String>,
    pub trace_id: String,
    pub span_id: String,
    pub parent_span_id: String,
    #[serde(default)]
    pub token: Option<u64>,
    #[serde(default)]
    pub key: Option<String>,
    #[serde(default)]
    pub payout: Option<String>,
    #[serde(default)]
    pub at_wall_ms: i64,
    #[serde(default)]
    pub at_wall_us: i64,
    #[serde(default)]
    pub component: String,
    #[serde(default)]
    pub instance: String,
    #[serde(default)]
    pub pid: u32,
    #[serde(default)]
    pub boot_id: String,
}

/// The kind of a request at a gateway.
pub(crate) const REQUEST: &str = "request";
/// The kind of a call to another process.
pub(crate) const CALL: &str = "call";
/// The kind of work of many messages and calls.
pub(crate) const WORK: &str = "work";

impl Record {
    /// Whether it is a message that an actor handled. What is none (a request, a call, a stretch of work) waits in no
    /// mailbox, and overlaps with others of its track.
    #[must_use]
    pub fn is_message(&self) -> bool {
        ![REQUEST, CALL, WORK].contains(&&*self.kind)
    }

    fn process(&self) -> Process {
        Process {
            component: self.component.clone(),
            instance: self.instance.clone(),
            pid: self.pid,
            boot_id: self.boot_id.clone(),
            ..Process::default()
        }
    }
}

/// Records of one or several processes, each under its process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// Each process, by its boot id.
    pub processes: BTreeMap<String, Process>,
    /// Their records.
    pub records: Vec<Record>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Header { process: Process },
    Record(Box<Record>),
}

impl Dump {
    /// Reads JSON lines. A last line without its newline that is no JSON is what a process could not finish: it is left out.
    ///
    /// # Errors
    /// [`DumpError`] naming the line.
    pub fn parse(text: &str) -> Result<Self, DumpError> {
        let mut dump = Self::default();
        let cut_off = !text.ends_with('\n');
        let lines = text.lines().count();
        for (n, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            match serde_json::from_str(line) {
                Ok(Line::Header { process }) => dump.header(process),
                Ok(Line::Record(record)) => {
                    let record = *record;
                    if !dump.processes.contains_key(&record.boot_id) {
                        dump.processes.insert(record.boot_id.clone(), record.process());
                    }
                    dump.records.push(record);
                }
                Err(_) if cut_off && n + 1 == lines => {}
                Err(error) => {
                    // Which of the two it should have been is told by the field that only a header has.
                    let whole = serde_json::from_str::<serde_json::Value>(line);
                    let reason = match whole {
                        Err(error) => format!("no JSON: {error}"),
                        Ok(value) if value.get("process").is_some() => {
                            serde_json::from_value::<Process>(value["process"].clone())
                                .map_or_else(|error| format!("no header: {error}"), |_| error.to_string())
                        }
                        Ok(value) => serde_json::from_value::<Record>(value)
                            .map_or_else(|error| format!("no record: {error}"), |_| error.to_string()),
                    };
                    return Err(DumpError { line: n + 1, reason });
                }
            }
        }
        Ok(dump)
    }

    /// The later one of two headers of a process says more.
    fn header(&mut self, process: Process) {
        match self.processes.get(&process.boot_id) {
            Some(known) if known.next_seq > process.next_seq => {}
            _ => drop(self.processes.insert(process.boot_id.clone(), process)),
        }
    }

    /// The dump as JSON lines: a header for each process, then the records in their order.
    #[must_use]
    pub fn to_jsonl(&self) -> String {
        let mut text = String::new();
        for process in self.processes.values() {
            let line = serde_json::json!({ "process": process });
            // Writing into a String cannot fail.
            let _ = writeln!(text, "{line}");
        }
        for record in &self.records {
            text.push_str(&serde_json::to_string(record).expect("a record is plain numbers and text"));
            text.push('\n');
        }
        text
    }

    /// What is to be added to a record's `at_ns` for nanoseconds since 1970, by its process: from the header's anchor; where
    /// there is none, from the records' wall times, which were rounded down to whole microseconds.
    pub(crate) fn offsets(&self) -> BTreeMap<&str, i64> {
        let mut offsets: BTreeMap<&str, i64> = BTreeMap::new();
        for record in &self.records {
            let offset = record
                .at_wall_us
                .saturating_mul(1_000)
                .saturating_sub(signed(record.at_ns));
            let known = offsets.entry(&record.boot_id).or_insert(offset);
            *known = offset.max(*known);
        }
        for (boot_id, process) in &self.processes {
            if let Some(anchor) = process.anchor {
                let offset = anchor
                    .wall_us
                    .saturating_add(process.shift_us)
                    .saturating_mul(1_000)
                    .saturating_sub(signed(anchor.at_ns));
                offsets.insert(boot_id, offset);
            }
        }
        offsets
    }
}

pub(crate) fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record of a test's process at this moment, lasting a millisecond.
    pub(crate) fn record(process: &str, seq: u64, at_us: u64, span: u64, parent: u64) -> Record {
        Record {
            seq,
            actor: format!("{process}/actor"),
            kind: "actor".to_owned(),
            message: "Do".to_owned(),
            at_ns: at_us * 1_000,
            queued_ns: 500,
            handled_ns: 1_000_000,
            outcome: "done".to_owned(),
            code: None,
            trace_id: format!("{:032x}", 1),
            span_id: format!("{span:016x}"),
            parent_span_id: format!("{parent:016x}"),
            token: None,
            key: None,
            payout: None,
            at_wall_ms: i64::try_from(at_us / 1_000).unwrap(),
            at_wall_us: i64::try_from(at_us).unwrap(),
            component: process.to_owned(),
            instance: "one".to_owned(),
            pid: 7,
            boot_id: format!("boot-{process}"),
        }
    }

    pub(crate) fn dump(records: Vec<Record>) -> Dump {
        let mut dump = Dump::default();
        for record in records {
            dump.processes
                .entry(record.boot_id.clone())
                .or_insert_with(|| record.process());
            dump.records.push(record);
        }
        dump
    }

    #[test]
    fn a_ring_is_read_as_it_was_written() {
        let host = host_kit::Host::system();
        let kit = actor_kit::Kit::new("lock-server", &host, &prometheus::Registry::new());
        let trace = actor_kit::TraceContext::root(&host.random);
        for token in [None, Some(3)] {
            kit.trace().record(actor_kit::TraceRecord {
                seq: 0,
                actor: "lock-server/lease".into(),
                kind: "lease",
                message: "Acquire",
                at: host.clock.mono(),
                queued: std::time::Duration::from_nanos(7),
                handled: std::time::Duration::from_nanos(9),
                outcome: actor_kit::Outcome::Refused,
                code: Some("HELD_BY_OTHER"),
                trace,
                parent_span: [0; 8],
                token,
                about: actor_kit::About::Payout("P".into()),
            });
        }
        let text = kit.trace().to_jsonl(&actor_kit::TraceQuery::default(), true);
        let dump = Dump::parse(&text).unwrap();
        let process = dump.processes.values().next().unwrap();
        assert_eq!(
            (process.next_seq, process.capacity),
            (3, actor_kit::TraceRing::CAPACITY)
        );
        assert!(process.anchor.is_some());
        let second = &dump.records[1];
        assert_eq!(
            (
                second.token,
                second.payout.as_deref(),
                second.code.as_deref(),
                &*second.outcome
            ),
            (Some(3), Some("P"), Some("HELD_BY_OTHER"), "refused")
        );
        assert_eq!(Dump::parse(&dump.to_jsonl()).unwrap(), dump);
        // Without its header it has lost nothing but what the header alone tells.
        let bare = kit.trace().to_jsonl(&actor_kit::TraceQuery::default(), false);
        let bare = Dump::parse(&bare).unwrap();
        assert_eq!(bare.records.len(), 2);
        let (with, without) = (dump.offsets(), bare.offsets());
        let apart = with[&*process.boot_id] - without[&*process.boot_id];
        assert!(apart.abs() < 1_000_000, "{apart} ns");
    }

    #[test]
    fn what_is_no_line_of_a_dump_is_named() {
        let good = dump(vec![record("a", 1, 10, 1, 0)]).to_jsonl();
        for (bad, reason) in [
            ("{\"process\":{}}\n", "no header: missing field `component`"),
            ("{}\n", "no record: missing field `seq`"),
            ("x\n", "no JSON"),
            ("{\"seq\":1}\n", "no record: missing field `actor`"),
        ] {
            let error = Dump::parse(&format!("{good}\n{bad}{good}")).unwrap_err();
            assert_eq!(error.line, 4, "{error}");
            assert!(error.reason.starts_with(reason), "{error}");
        }
        // A process that died while it wrote.
        let cut = Dump::parse(&format!("{good}{{\"seq\":1,\"act")).unwrap();
        assert_eq!(cut.records.len(), 1);
        assert!(Dump::parse("").unwrap().records.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC{0,200}") {
            drop(Dump::parse(&text));
        }
    }
}
