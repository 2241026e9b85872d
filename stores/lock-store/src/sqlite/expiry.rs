//! Ending what is due, and forgetting what has long been free.

use super::error::exactly_one;
use super::job::{Job, LEASE_CLOCK};
use super::observed::{Due, Name};
use lock_api::{EventKind, ExpiredSession, ExpiryReport, SessionId};
use rusqlite::params;
use std::time::Duration;

impl Job<'_> {
    /// Ends what is due, earliest first. The grants of a dead session count one each, and a session with more of them
    /// than the limit ends over several sweeps: its grants first, the session with the last of them.
    pub(super) fn expire_due(&mut self, limit: u32) -> rusqlite::Result<ExpiryReport> {
        let mut report = ExpiryReport::default();
        let mut left = limit as usize;
        while let Some((at, due)) = self.observed.first_due().cloned()
            && at <= self.now
        {
            if left == 0 {
                report.more = true;
                break;
            }
            match due {
                Due::Grant(key) => {
                    report
                        .grants
                        .push(self.end_grant(&key, EventKind::Expired, LEASE_CLOCK)?);
                    left -= 1;
                }
                Due::Delay(key) => {
                    self.open_again(&key)?;
                    left -= 1;
                }
                Due::Session(id) => {
                    let freed = self.free_all_of(&id, left, EventKind::Expired, LEASE_CLOCK)?;
                    left -= freed.len();
                    if left == 0 {
                        report.grants.extend(freed);
                        continue;
                    }
                    self.end_session(&id, EventKind::SessionExpired, LEASE_CLOCK)?;
                    left -= 1;
                    report.sessions.push(ExpiredSession {
                        session_id: super::error::sane(SessionId::new(&*id))?,
                        released: freed,
                    });
                }
            }
        }
        report.next_due_in = self.observed.first_due().map(|(at, _)| at.saturating_sub(self.now));
        Ok(report)
    }

    /// The delay of a free key has passed: whoever opens the store later finds it open. No fact: the loss is the one that
    /// there was.
    pub(super) fn open_again(&mut self, key: &Name) -> rusqlite::Result<()> {
        let changed = self
            .connection
            .prepare_cached("UPDATE lock_grant SET closed_until = NULL WHERE lock_key = ?1 AND session_id IS NULL")?
            .execute([&**key])?;
        exactly_one(changed)?;
        self.observed.set_closed(key.clone(), None);
        Ok(())
    }

    /// Forgets keys that have been free for `retention`, those excepted whose delay runs.
    pub(super) fn purge_tombstones(&mut self, retention: Duration, limit: u32) -> rusqlite::Result<u32> {
        for key in self.observed.to_be_opened(self.now) {
            self.open_again(&key)?;
        }
        let gone = self
            .connection
            .prepare_cached(
                "DELETE FROM lock_grant WHERE session_id IS NULL AND lock_key IN (
                     SELECT lock_key FROM lock_grant
                     WHERE session_id IS NULL AND expires_at <= ?1 AND closed_until IS NULL
                     ORDER BY expires_at LIMIT ?2)",
            )?
            .execute(params![self.wall_before(retention), limit])?;
        Ok(u32::try_from(gone).unwrap_or(u32::MAX))
    }

    /// A wall instant before now, for retention.
    pub(super) fn wall_before(&self, retention: Duration) -> i64 {
        self.wall_ms
            .saturating_sub(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX))
    }
}
