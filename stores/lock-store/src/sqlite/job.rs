//! One verb's work on rows and deadlines together, inside one savepoint.

use super::observed::{Name, Observed};
use super::rows::{find_lineage, int};
use lock_api::{EventKind, LineageState};
use rusqlite::{Connection, params};
use sql_kit::Decision;
use std::time::Duration;

/// What `lock_event` says when no session and no operator did it.
pub(super) const LEASE_CLOCK: &str = "lease-clock";

/// The source of tokens as this job found it.
pub(super) struct Tokens {
    pub(super) last: u64,
    pub(super) floor: u64,
    /// Why nothing is granted, while in doubt.
    pub(super) doubt: Option<String>,
    /// What the row still says.
    stored: u64,
}

/// A job that runs now.
pub(super) struct Job<'a> {
    pub(super) connection: &'a Connection,
    pub(super) observed: &'a mut Observed,
    /// The monotonic instant that all of this job's expiries are judged by.
    pub(super) now: Duration,
    /// The wall clock's, for the record.
    pub(super) wall_ms: i64,
    tokens: Option<Tokens>,
}

/// A fact to be recorded; what does not apply stays at its default.
#[derive(Default)]
pub(super) struct Fact<'a> {
    pub(super) key: Option<&'a str>,
    pub(super) session: Option<&'a str>,
    pub(super) token: Option<u64>,
    pub(super) actor: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
}

/// Undoes the deadlines of a job that did not come to a good end, a panic included.
struct Unless<'a> {
    observed: &'a mut Observed,
    mark: usize,
    kept: bool,
}

impl Drop for Unless<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.observed.undo_to(self.mark);
        }
    }
}

impl<'a> Job<'a> {
    /// Runs `work`; when it fails or wants to be undone, the deadlines are as before, as its caller sees to it for the
    /// rows.
    pub(super) fn run<T>(
        connection: &'a Connection,
        observed: &'a mut Observed,
        (now, wall_ms): (Duration, i64),
        work: impl FnOnce(&mut Job<'_>) -> rusqlite::Result<Decision<T>>,
    ) -> rusqlite::Result<Decision<T>> {
        let mark = observed.mark();
        let mut unless = Unless {
            observed,
            mark,
            kept: false,
        };
        let mut job = Job {
            connection,
            observed: unless.observed,
            now,
            wall_ms,
            tokens: None,
        };
        let answer = work(&mut job)?;
        job.store_tokens()?;
        unless.kept = matches!(answer, Decision::Commit(_));
        Ok(answer)
    }

    /// The source of tokens, read once per job.
    pub(super) fn tokens(&mut self) -> rusqlite::Result<&mut Tokens> {
        let tokens = match self.tokens.take() {
            Some(tokens) => tokens,
            None => {
                let lineage = find_lineage(self.connection)?;
                Tokens {
                    last: lineage.last_token,
                    floor: lineage.token_floor,
                    doubt: (lineage.state == LineageState::Regressed)
                        .then(|| lineage.detail.unwrap_or_else(|| "the store is in doubt".to_owned())),
                    stored: lineage.last_token,
                }
            }
        };
        Ok(self.tokens.insert(tokens))
    }

    /// Writes the counter row, once for all tokens of the job and in its transaction.
    pub(super) fn store_tokens(&mut self) -> rusqlite::Result<()> {
        if let Some(tokens) = &mut self.tokens
            && tokens.last != tokens.stored
        {
            let changed = self
                .connection
                .prepare_cached("UPDATE lock_token_seq SET last = ?1 WHERE id = 1 AND last = ?2")?
                .execute([int(tokens.last), int(tokens.stored)])?;
            super::error::exactly_one(changed)?;
            tokens.stored = tokens.last;
        }
        Ok(())
    }

    /// Appends a fact.
    pub(super) fn record(&mut self, kind: EventKind, fact: &Fact<'_>) -> rusqlite::Result<()> {
        let seq = self.observed.last_seq() + 1;
        self.connection
            .prepare_cached(
                "INSERT INTO lock_event (seq, at, kind, lock_key, session_id, token, actor, reason)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                int(seq),
                self.wall_ms,
                kind.as_str(),
                fact.key,
                fact.session,
                fact.token.map(int),
                fact.actor,
                fact.reason
            ])?;
        self.observed.set_last_seq(seq);
        Ok(())
    }

    /// The owner of a session that is observed.
    pub(super) fn owner_of(&self, session: &str) -> Option<Name> {
        self.observed.session(session).map(|(_, seen)| seen.owner.clone())
    }

    /// A wall instant after `duration`, for showing.
    pub(super) fn wall_after(&self, duration: Duration) -> i64 {
        self.wall_ms
            .saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
    }
}
