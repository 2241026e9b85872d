//! What this client of the system saw, as JSON lines (setting `debug.history-file`). Verdicts read such files and the
//! rail's own book, never the state of what is judged.
//!
//! One call is two lines with the same `client` and `call`. The first is written before anything is sent, the second when
//! the answer is there; a client that is killed in between leaves the first alone, which is what it knew.
//!
//! | field | where | what |
//! |---|---|---|
//! | `client` | both | the session's owner (`executor.owner`) |
//! | `call` | both | the number of the call within its client and process, from 0 |
//! | `event` | both | `invoke`, then `ok`, `refused` (it was not done), or `unknown` (it may have been done) |
//! | `verb` | both | `acquire`, `release`, `reread`, `fence` (R6), `claim`, `submit`, `readback` (R2), `lookup` (R3), `post`, `fail`, `ambiguous`, `resolve` |
//! | `at_us` | both | microseconds of the machine's boot clock, the same in every process of the machine |
//! | `wall_ms` | both | wall time in milliseconds since 1970, for reading beside logs |
//! | `key` | both | the lock key of `acquire` and `release` |
//! | `token` | both | the token presented; of an `acquire` that is `ok`, the token granted |
//! | `payout` | both | the payout it is about |
//! | `code` | second | the code of a refusal, or what an unknown outcome looked like |
//! | `reason` | second | the reason inside a refusal (`stale`, `token_spent`, `not_claimed`) |
//!
//! A third kind of line stands alone: `event` and `verb` are `lease`. It says what an answer promised of a lease, be it
//! that of an acquire, a renewal or a heartbeat: `at_us` is when the answer was there, `sent_us` when it was asked for,
//! `until_us` the moment before which the server may not let the lease expire. All three are boot time. `delay_us` is the
//! lock delay that this client asked for with the grant; absent where it asked for none. Readers that do not know such
//! lines leave them out.

use crate::ports::PortError;
use host_kit::Clock;
use lock_api::FencingToken;
use lock_client::LeaseWatch;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One line, as the module describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the table above describes the fields")]
pub struct Line {
    pub client: String,
    pub call: u64,
    pub event: String,
    pub verb: String,
    pub at_us: u64,
    pub wall_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payout: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_us: Option<u64>,
}

/// Where calls are recorded; nowhere, unless a file was named. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct History(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    client: String,
    clock: Clock,
    next: AtomicU64,
    file: Mutex<File>,
}

impl History {
    /// Records nothing.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// Appends what `client` sees to this file.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn append(path: &Path, client: &str, clock: &Clock) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        Ok(Self(Some(Arc::new(Recorder {
            client: client.to_owned(),
            clock: clock.clone(),
            next: AtomicU64::new(0),
            file: Mutex::new(file),
        }))))
    }

    /// Records every lease that a lock client is promised, with the lock delay that it asks for; none where nothing is
    /// recorded.
    #[must_use]
    pub fn lease_watch(&self, lock_delay: Duration) -> Option<LeaseWatch> {
        let recorder = self.0.clone()?;
        let delay_us = Some(micros(lock_delay)).filter(|delay| *delay > 0);
        Some(LeaseWatch::new(move |seen| {
            recorder.write(Line {
                client: recorder.client.clone(),
                call: recorder.next.fetch_add(1, Ordering::Relaxed),
                event: "lease".to_owned(),
                verb: "lease".to_owned(),
                key: Some(seen.key.as_str().to_owned()),
                token: Some(seen.token.get()),
                sent_us: Some(micros(seen.sent)),
                until_us: Some(micros(seen.until)),
                delay_us,
                ..Line::default()
            });
        }))
    }

    /// A call is about to be made.
    pub fn invoke(
        &self,
        verb: &'static str,
        key: Option<&str>,
        token: Option<FencingToken>,
        payout: &str,
    ) -> Invocation {
        Invocation(self.0.as_ref().map(|recorder| {
            let line = Line {
                client: recorder.client.clone(),
                call: recorder.next.fetch_add(1, Ordering::Relaxed),
                event: "invoke".to_owned(),
                verb: verb.to_owned(),
                key: key.map(str::to_owned),
                token: token.map(FencingToken::get),
                payout: Some(payout.to_owned()),
                ..Line::default()
            };
            recorder.write(line.clone());
            (recorder.clone(), line)
        }))
    }
}

impl Recorder {
    fn write(&self, mut line: Line) {
        line.at_us = micros(self.clock.boot());
        line.wall_ms = self.clock.wall_ms();
        let mut text = serde_json::to_vec(&line).expect("a line of plain fields is always JSON");
        text.push(b'\n');
        // One write per line, straight to the file: what was written outlives a kill.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&text) {
            tracing::error!(event = "history_lost", %error);
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A call that waits for its answer. Dropped without one, it stays unknown.
#[derive(Debug)]
#[must_use = "an answer that is not recorded stays unknown"]
pub struct Invocation(Option<(Arc<Recorder>, Line)>);

impl Invocation {
    fn end(self, event: &str, token: Option<FencingToken>, code: Option<String>, reason: Option<String>) {
        if let Some((recorder, mut line)) = self.0 {
            event.clone_into(&mut line.event);
            line.token = token.map(FencingToken::get).or(line.token);
            line.code = code;
            line.reason = reason;
            recorder.write(line);
        }
    }

    /// It was done; `token` is what was granted, where something was.
    pub fn ok(self, token: Option<FencingToken>) {
        self.end("ok", token, None, None);
    }

    /// It was not done, for this reason.
    pub fn refused(self, code: impl Into<String>) {
        self.end("refused", None, Some(code.into()), None);
    }

    /// Nobody knows.
    pub fn unknown(self, how: impl Into<String>) {
        self.end("unknown", None, Some(how.into()), None);
    }

    /// However a port's call ended. A problem with a status of 5xx does not say what was done, unless its code does.
    pub fn ended<T>(self, answer: &Result<T, PortError>) {
        use http_contract::Code;
        match answer {
            Ok(_) => self.ok(None),
            Err(PortError::Problem(problem)) => {
                let reason = problem.text("reason").map(str::to_owned);
                let certain =
                    problem.code.status() < 500 || matches!(problem.code, Code::Overloaded | Code::SubmissionsInDoubt);
                // The rail's outcome is not known, or not yet: the submission as a call may have been carried out.
                let certain = certain && !problem.code.is_outcome_unknown();
                let event = if certain { "refused" } else { "unknown" };
                self.end(event, None, Some(problem.code.as_str().to_owned()), reason);
            }
            Err(PortError::NotSent(detail)) => self.refused(format!("not sent: {detail}")),
            Err(PortError::Ambiguous(detail)) => self.unknown(detail.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host_kit::ManualClock;
    use http_contract::{Code, Problem};

    #[test]
    fn a_call_is_two_lines_and_a_killed_one_leaves_the_first_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        let hand = ManualClock::new();
        let history = History::append(&path, "W1", &hand.clock()).unwrap();
        let acquire = history.invoke("acquire", Some("payout:A"), None, "P1");
        hand.advance(Duration::from_millis(3));
        let token = "5".parse().unwrap();
        acquire.ok(Some(token));
        let mut stale = Problem::new(Code::FencedOut, "stale", "00");
        stale.fields.insert("reason".into(), "stale".into());
        let stale: Result<(), _> = Err(PortError::Problem(Box::new(stale)));
        history.invoke("claim", None, Some(token), "P1").ended(&stale);
        let down: Result<(), _> = Err(PortError::Problem(Box::new(Problem::new(
            Code::BackendUnavailable,
            "",
            "00",
        ))));
        history.invoke("post", None, Some(token), "P1").ended(&down);
        drop(history.invoke("submit", None, Some(token), "P1"));
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let shown: Vec<_> = lines
            .iter()
            .map(|l| {
                (
                    l.call,
                    l.event.as_str(),
                    l.verb.as_str(),
                    l.token,
                    l.code.as_deref(),
                    l.at_us,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                (0, "invoke", "acquire", None, None, 0),
                (0, "ok", "acquire", Some(5), None, 3000),
                (1, "invoke", "claim", Some(5), None, 3000),
                (1, "refused", "claim", Some(5), Some("FENCED_OUT"), 3000),
                (2, "invoke", "post", Some(5), None, 3000),
                (2, "unknown", "post", Some(5), Some("BACKEND_UNAVAILABLE"), 3000),
                (3, "invoke", "submit", Some(5), None, 3000),
            ]
        );
        assert_eq!(lines[3].reason.as_deref(), Some("stale"));
        drop(History::off().invoke("claim", None, None, "P1"));
    }
}
