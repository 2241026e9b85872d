//! Sessions: open, heartbeat, close, and what is shown of them.

use super::error::exactly_one;
use super::job::{Fact, Job};
use super::observed::{Name, SessionSeen};
use super::rows::{SESSION_COLUMNS, SessionRow, find_session, session_row, ttl_ms};
use super::token::Witnessed;
use lock_api::{
    EventKind, ExpiredGrant, Heartbeat, HeartbeatOutcome, HeldGrant, LockKey, OpenSession, SessionId, SessionView,
};
use rusqlite::params;
use std::time::Duration;

impl Job<'_> {
    /// Opens a session, or shows the one that was opened by the same call before. None when the id is another's.
    pub(super) fn open(&mut self, request: OpenSession) -> rusqlite::Result<Option<SessionView>> {
        if let Some(row) = find_session(self.connection, &request.session_id)? {
            let same = row.owner == request.owner
                && ttl_ms(row.ttl) == ttl_ms(request.ttl)
                && row.metadata == request.metadata;
            return if same { self.view(row).map(Some) } else { Ok(None) };
        }
        let ttl = request.ttl.get();
        self.connection
            .prepare_cached(
                "INSERT INTO lock_session (session_id, owner, metadata, ttl_ms, opened_at, expires_at, last_heartbeat_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5)",
            )?
            .execute(params![
                request.session_id.as_str(),
                request.owner.as_str(),
                request.metadata.as_ref().map(|json| json.as_str()),
                ttl_ms(request.ttl),
                self.wall_ms,
                self.wall_after(ttl)
            ])?;
        self.observed.set_session(
            request.session_id.as_str().into(),
            Some(SessionSeen {
                owner: request.owner.as_str().into(),
                ttl,
                deadline: self.now.saturating_add(ttl),
            }),
        );
        self.record(
            EventKind::SessionOpened,
            &Fact {
                session: Some(request.session_id.as_str()),
                actor: Some(request.owner.as_str()),
                ..Fact::default()
            },
        )?;
        let opened_at = lock_api::UnixMillis(self.wall_ms);
        self.view(SessionRow {
            session_id: request.session_id,
            owner: request.owner,
            metadata: request.metadata,
            ttl: request.ttl,
            opened_at,
            last_heartbeat_at: opened_at,
        })
        .map(Some)
    }

    pub(super) fn heartbeat(&mut self, request: &Heartbeat) -> rusqlite::Result<HeartbeatOutcome> {
        let id = request.session_id.as_str();
        let Some((name, seen)) = self.observed.live_session(id, self.now) else {
            return Ok(HeartbeatOutcome::SessionNotFound);
        };
        let (name, mut seen) = (name.clone(), seen.clone());
        if let Witnessed::Refused { highest_believed } = self.weigh_witness(id, request.witness)? {
            return Ok(HeartbeatOutcome::WitnessRefused { highest_believed });
        }
        let changed = self
            .connection
            .prepare_cached("UPDATE lock_session SET expires_at = ?2, last_heartbeat_at = ?3 WHERE session_id = ?1")?
            .execute(params![id, self.wall_after(seen.ttl), self.wall_ms])?;
        exactly_one(changed)?;
        seen.deadline = self.now.saturating_add(seen.ttl);
        let expires_in = seen.ttl;
        self.observed.set_session(name, Some(seen));
        Ok(HeartbeatOutcome::Alive {
            expires_in,
            held: self.held(id)?,
        })
    }

    /// Ends a session and frees what it holds. Unknown: nothing.
    pub(super) fn close(&mut self, id: &SessionId) -> rusqlite::Result<Vec<ExpiredGrant>> {
        let Some((name, seen)) = self.observed.session(id.as_str()) else {
            return Ok(Vec::new());
        };
        let (name, owner) = (name.clone(), seen.owner.clone());
        let freed = self.free_all_of(&name, usize::MAX, EventKind::Released, &owner)?;
        self.end_session(&name, EventKind::SessionClosed, &owner)?;
        Ok(freed)
    }

    /// Frees up to `limit` of a session's grants.
    pub(super) fn free_all_of(
        &mut self,
        session: &Name,
        limit: usize,
        kind: EventKind,
        actor: &str,
    ) -> rusqlite::Result<Vec<ExpiredGrant>> {
        let keys: Vec<Name> = self.observed.held_by(session).take(limit).cloned().collect();
        keys.iter().map(|key| self.end_grant(key, kind, actor)).collect()
    }

    /// Deletes a session that holds nothing any more.
    pub(super) fn end_session(&mut self, session: &Name, kind: EventKind, actor: &str) -> rusqlite::Result<()> {
        let changed = self
            .connection
            .prepare_cached("DELETE FROM lock_session WHERE session_id = ?1")?
            .execute([&**session])?;
        exactly_one(changed)?;
        self.observed.set_session(session.clone(), None);
        self.record(
            kind,
            &Fact {
                session: Some(session),
                actor: Some(actor),
                ..Fact::default()
            },
        )
    }

    /// What a session still holds: what is due already is not held any more.
    pub(super) fn held(&self, session: &str) -> rusqlite::Result<Vec<HeldGrant>> {
        let mut held = Vec::new();
        for key in self.observed.held_by(session) {
            if let Some(seen) = self.observed.grant(key).filter(|seen| self.now < seen.deadline) {
                held.push(HeldGrant {
                    key: super::error::sane(LockKey::new(&**key))?,
                    token: seen.token,
                    expires_in: self.observed.remaining(seen, self.now),
                    yield_asked: seen.yield_asked.as_deref().cloned(),
                });
            }
        }
        Ok(held)
    }

    fn view(&self, row: SessionRow) -> rusqlite::Result<SessionView> {
        let deadline = self
            .observed
            .session(row.session_id.as_str())
            .map(|(_, seen)| seen.deadline);
        Ok(SessionView {
            held: self.held(row.session_id.as_str())?,
            session_id: row.session_id,
            owner: row.owner,
            ttl: row.ttl,
            expires_in: deadline.unwrap_or(Duration::ZERO).saturating_sub(self.now),
            opened_at: row.opened_at,
            last_heartbeat_at: row.last_heartbeat_at,
            metadata: row.metadata,
        })
    }

    pub(super) fn session(&self, id: &SessionId) -> rusqlite::Result<Option<SessionView>> {
        if self.observed.live_session(id.as_str(), self.now).is_none() {
            return Ok(None);
        }
        find_session(self.connection, id)?.map(|row| self.view(row)).transpose()
    }

    pub(super) fn sessions(&self, after: Option<&SessionId>, limit: u32) -> rusqlite::Result<Vec<SessionView>> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT {SESSION_COLUMNS} FROM lock_session WHERE session_id > ?1 ORDER BY session_id"
        ))?;
        let mut rows = statement.query([after.map_or("", |id| id.as_str())])?;
        let mut views = Vec::new();
        while views.len() < limit as usize {
            let Some(row) = rows.next()? else { break };
            let row = session_row(row)?;
            // One that is due and not yet swept has ended for whoever asks; it does not shorten the page.
            if self.observed.live_session(row.session_id.as_str(), self.now).is_some() {
                views.push(self.view(row)?);
            }
        }
        Ok(views)
    }
}
