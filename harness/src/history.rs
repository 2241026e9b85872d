//! Histories: what each client of the system saw, as JSON lines.
//!
//! Owns: the record, reading many files into calls, writing the harness's own.
//! Does not own: what the executors write (they write the same form, setting `debug.history-file`).
//! On failure: a line that cannot be read is an error with its file and line number; an invocation without a completion
//! is an unknown outcome, which is what it was for the client that was killed.

use host_kit::Clock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How a call ended for the client that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The service did it.
    Ok,
    /// The service said no; nothing was done.
    Refused,
    /// No answer, or one that does not say: it may have been done.
    Unknown,
}

/// One call, put together from its invocation and its completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Who called.
    pub client: String,
    /// What was asked: acquire, release, claim, submit, post, fail, ambiguous, resolve, fence, ….
    pub verb: String,
    /// The lock key, where there is one.
    pub key: Option<String>,
    /// The token presented, or granted by this call.
    pub token: Option<u64>,
    /// The payout, where there is one.
    pub payout: Option<String>,
    /// When it was sent: microseconds of the machine's boot clock, the same in every process.
    pub invoked_us: u64,
    /// When the answer was there.
    pub answered_us: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// The code of a refusal.
    pub code: Option<String>,
    /// The reason inside a refusal (`stale`, `token_spent`, …).
    pub reason: Option<String>,
    /// Of a `lease`: the moment before which the server promised not to let it expire, on the same clock. Such a call
    /// was invoked when what it answers was sent: an acquire, a renewal or a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<u64>,
    /// Of a `lease`: the lock delay that its client had asked for with the grant; nothing where it asked for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<u64>,
}

impl Call {
    /// The answer's time; the end of time when none came.
    #[must_use]
    pub fn ended_us(&self) -> u64 {
        self.answered_us.unwrap_or(u64::MAX)
    }

    /// Whether a fence point turned it away.
    #[must_use]
    pub fn fenced_out(&self) -> bool {
        self.outcome == Outcome::Refused && self.code.as_deref() == Some("FENCED_OUT")
    }
}

/// One line of a history file: an invocation, the completion that carries the same call number, or a lease by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Who called.
    pub client: String,
    /// The number of the call within its client.
    pub call: u64,
    /// `invoke`, `ok`, `refused` or `unknown`; `lease` for a line that stands alone.
    pub event: String,
    /// What was asked.
    pub verb: String,
    /// Microseconds of the machine's boot clock.
    pub at_us: u64,
    /// The lock key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The token presented (invoke) or granted (ok).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The payout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payout: Option<String>,
    /// The code of a refusal, or what an unknown outcome looked like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The reason inside a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of a lease: when the request was sent that was answered at `at_us`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_us: Option<u64>,
    /// Of a lease: until when it was promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<u64>,
    /// Of a lease: the lock delay that was asked for with its grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<u64>,
}

/// Why a history could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file could not be read.
    #[error("history {0}: {1}")]
    Io(PathBuf, std::io::Error),
    /// A line is no record. (The last line of a killed process may be cut short; that one is left out.)
    #[error("history {path}, line {line}: {detail}")]
    Garbled {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What was wrong.
        detail: String,
    },
}

/// Reads a history file and pairs its lines.
///
/// # Errors
/// [`HistoryError`] when the file or a whole line of it cannot be read.
pub fn read(path: &Path) -> Result<Vec<Call>, HistoryError> {
    let io = |error| HistoryError::Io(path.to_owned(), error);
    let mut lines = Vec::new();
    for (index, text) in BufReader::new(File::open(path).map_err(io)?).split(b'\n').enumerate() {
        let text = text.map_err(io)?;
        if text.is_empty() {
            continue;
        }
        lines.push((index + 1, serde_json::from_slice::<Line>(&text)));
    }
    // A process that was killed while writing leaves at most its last line unfinished.
    if lines.last().is_some_and(|(_, line)| line.is_err()) {
        lines.pop();
    }
    let mut whole = Vec::with_capacity(lines.len());
    for (number, line) in lines {
        whole.push(line.map_err(|error| HistoryError::Garbled {
            path: path.to_owned(),
            line: number,
            detail: error.to_string(),
        })?);
    }
    Ok(pair(whole))
}

/// Puts invocations and completions together, in the order of invocation.
#[must_use]
pub fn pair(lines: Vec<Line>) -> Vec<Call> {
    let mut open: BTreeMap<(String, u64), usize> = BTreeMap::new();
    let mut calls: Vec<Call> = Vec::new();
    for line in lines {
        if line.event == "invoke" {
            open.insert((line.client.clone(), line.call), calls.len());
            calls.push(Call {
                client: line.client,
                verb: line.verb,
                key: line.key,
                token: line.token,
                payout: line.payout,
                invoked_us: line.at_us,
                answered_us: None,
                outcome: Outcome::Unknown,
                code: None,
                reason: None,
                until_us: None,
                delay_us: None,
            });
        } else if line.event == "lease" {
            calls.push(Call {
                client: line.client,
                verb: line.verb,
                key: line.key,
                token: line.token,
                payout: None,
                invoked_us: line.sent_us.unwrap_or(line.at_us),
                answered_us: Some(line.at_us),
                outcome: Outcome::Ok,
                code: None,
                reason: None,
                until_us: line.until_us,
                delay_us: line.delay_us,
            });
        } else if let Some(index) = open.remove(&(line.client, line.call)) {
            let call = &mut calls[index];
            call.outcome = match line.event.as_str() {
                "ok" => Outcome::Ok,
                "refused" => Outcome::Refused,
                _ => Outcome::Unknown,
            };
            call.answered_us = Some(line.at_us);
            call.token = line.token.or(call.token);
            call.code = line.code;
            call.reason = line.reason;
        }
    }
    calls
}

/// Writes the calls of the harness's own clients. Cheap to clone; clones write to the same file.
#[derive(Clone, Debug)]
pub struct Recorder {
    client: String,
    clock: Clock,
    next: Arc<AtomicU64>,
    file: Arc<Mutex<File>>,
}

/// An invocation that waits for its completion. Dropped without one, it stays unknown.
#[derive(Debug)]
pub struct Invocation<'a> {
    recorder: &'a Recorder,
    line: Line,
}

impl Recorder {
    /// Records what `client` sees into a new file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path, client: &str, clock: &Clock) -> std::io::Result<Self> {
        Ok(Self {
            client: client.to_owned(),
            clock: clock.clone(),
            next: Arc::default(),
            file: Arc::new(Mutex::new(File::create(path)?)),
        })
    }

    /// A call is about to be made.
    #[must_use]
    pub fn invoke(&self, verb: &str, key: Option<&str>, token: Option<u64>, payout: Option<&str>) -> Invocation<'_> {
        let line = Line {
            client: self.client.clone(),
            call: self.next.fetch_add(1, Ordering::Relaxed),
            event: "invoke".to_owned(),
            verb: verb.to_owned(),
            key: key.map(str::to_owned),
            token,
            payout: payout.map(str::to_owned),
            ..Line::default()
        };
        self.write(line.clone());
        Invocation { recorder: self, line }
    }

    /// An answer began or extended a lease: what was sent at `sent` is promised until `until`, both boot time.
    pub fn lease(&self, key: &str, token: u64, sent: Duration, until: Duration) {
        self.write(Line {
            client: self.client.clone(),
            call: self.next.fetch_add(1, Ordering::Relaxed),
            event: "lease".to_owned(),
            verb: "lease".to_owned(),
            key: Some(key.to_owned()),
            token: Some(token),
            sent_us: Some(micros(sent)),
            until_us: Some(micros(until)),
            ..Line::default()
        });
    }

    fn write(&self, mut line: Line) {
        line.at_us = micros(self.clock.boot());
        let mut text = serde_json::to_vec(&line).expect("a line of plain fields is always JSON");
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&text) {
            tracing::error!(event = "history_lost", %error);
        }
    }
}

impl Invocation<'_> {
    /// It was done; `token` is what was granted, where something was.
    pub fn ok(self, token: Option<u64>) {
        self.end("ok", token, None, None);
    }

    /// It was refused with this code and reason.
    pub fn refused(self, code: &str, reason: Option<&str>) {
        self.end("refused", None, Some(code), reason);
    }

    /// Nobody knows.
    pub fn unknown(self, how: &str) {
        self.end("unknown", None, Some(how), None);
    }

    fn end(mut self, event: &str, token: Option<u64>, code: Option<&str>, reason: Option<&str>) {
        event.clone_into(&mut self.line.event);
        self.line.token = token;
        self.line.code = code.map(str::to_owned);
        self.line.reason = reason.map(str::to_owned);
        self.recorder.write(self.line);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use host_kit::ManualClock;

    #[test]
    fn what_is_recorded_is_read_back_and_an_open_call_stays_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        let hand = ManualClock::new();
        let recorder = Recorder::create(&path, "W1", &hand.clock()).unwrap();
        let acquire = recorder.invoke("acquire", Some("payout:A1"), None, None);
        hand.advance(Duration::from_micros(7));
        acquire.ok(Some(5));
        recorder
            .invoke("claim", None, Some(5), Some("P1"))
            .refused("FENCED_OUT", Some("stale"));
        drop(recorder.invoke("submit", None, Some(5), Some("P1")));
        recorder.lease("payout:A1", 5, Duration::ZERO, Duration::from_micros(900));
        let calls = read(&path).unwrap();
        assert_eq!(calls.len(), 4);
        assert_eq!((calls[3].invoked_us, calls[3].until_us), (0, Some(900)));
        assert_eq!((calls[0].token, calls[0].answered_us), (Some(5), Some(7)));
        assert!(calls[1].fenced_out());
        assert_eq!((calls[2].outcome, calls[2].answered_us), (Outcome::Unknown, None));
    }

    #[test]
    fn only_the_last_line_may_be_cut_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        let good = r#"{"client":"W1","call":0,"event":"invoke","verb":"claim","at_us":1}"#;
        std::fs::write(&path, format!("{good}\n{{\"client\":")).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        std::fs::write(&path, format!("{{\"client\":\n{good}\n")).unwrap();
        assert!(matches!(read(&path), Err(HistoryError::Garbled { line: 1, .. })));
    }
}
