//! Grants: acquire, renew, release, revoke, and what is shown of keys.

use super::error::{exactly_one, sane, there};
use super::job::{Fact, Job, LEASE_CLOCK};
use super::observed::{GrantSeen, Name};
use super::rows::{KEY_COLUMNS, KeyRow, delay_ms, find_key, int, key_row, lock_delay, ttl_ms};
use super::token::Witnessed;
use lock_api::{
    AcquireOutcome, AcquireRequest, EventKind, ExpiredGrant, FencingToken, Grant, HeldByOther, KeyState, LockDelay,
    LockKey, Owner, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, RevokeOutcome, RevokeRequest,
    SessionId, UnixMillis, YieldAsked, YieldOutcome, YieldRequest,
};
use rusqlite::{OptionalExtension, params};
use std::sync::Arc;

impl Job<'_> {
    pub(super) fn acquire(&mut self, request: AcquireRequest) -> rusqlite::Result<AcquireOutcome> {
        let session = request.session_id.as_str();
        let Some((name, seen)) = self.observed.live_session(session, self.now) else {
            return Ok(AcquireOutcome::SessionNotFound);
        };
        let (name, owner) = (name.clone(), seen.owner.clone());
        if let Witnessed::Refused { highest_believed } = self.weigh_witness(session, request.witness)? {
            return Ok(AcquireOutcome::WitnessRefused { highest_believed });
        }
        // In doubt nothing is granted, not even an old grant again: its key may have been granted to another in the
        // part of the history that is gone.
        if let Some(detail) = self.tokens()?.doubt.clone() {
            return Ok(AcquireOutcome::TokenRegression { detail });
        }
        let row = find_key(self.connection, &request.key)?;
        let above = row.as_ref().map(|row| row.token);
        if let Some(row) = row {
            if let Some(live) = self.live(&request.key, row)? {
                return Ok(if live.session_id != request.session_id {
                    AcquireOutcome::HeldByOther(HeldByOther {
                        holder: live,
                        is_self: false,
                    })
                } else if live.request_id.as_ref() == Some(&request.request_id) {
                    AcquireOutcome::Granted {
                        grant: live,
                        replayed: true,
                    }
                } else {
                    AcquireOutcome::HeldByOther(HeldByOther {
                        holder: live,
                        is_self: true,
                    })
                });
            }
            if self.observed.grant(request.key.as_str()).is_some() {
                self.end_grant(&Name::from(request.key.as_str()), EventKind::Expired, LEASE_CLOCK)?;
            }
            if let Some(ends_in) = self.observed.closed_for(request.key.as_str(), self.now) {
                let last_token = there(above)?;
                return Ok(AcquireOutcome::Delayed { last_token, ends_in });
            }
        }
        let token = match self.mint(above)? {
            Ok(token) => token,
            Err(detail) => return Ok(AcquireOutcome::TokenRegression { detail }),
        };
        // The row is a tombstone or none. Nothing but a lower token of a freed key is ever overwritten.
        let changed = self
            .connection
            .prepare_cached(
                "INSERT INTO lock_grant
                     (lock_key, session_id, token, ttl_ms, granted_at, expires_at, metadata, request_id, lock_delay_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT (lock_key) DO UPDATE SET
                     session_id = excluded.session_id, token = excluded.token, ttl_ms = excluded.ttl_ms,
                     granted_at = excluded.granted_at, expires_at = excluded.expires_at,
                     metadata = excluded.metadata, request_id = excluded.request_id,
                     lock_delay_ms = excluded.lock_delay_ms, closed_until = NULL
                 WHERE lock_grant.session_id IS NULL AND lock_grant.token < excluded.token",
            )?
            .execute(params![
                request.key.as_str(),
                session,
                int(token.get()),
                ttl_ms(request.ttl),
                self.wall_ms,
                self.wall_after(request.ttl.get()),
                request.metadata.as_ref().map(|json| json.as_str()),
                request.request_id.as_str(),
                delay_ms(request.lock_delay)
            ])?;
        exactly_one(changed)?;
        let seen = GrantSeen {
            session: name,
            token,
            deadline: self.now.saturating_add(request.ttl.get()),
            yield_asked: None,
        };
        let expires_in = self.observed.remaining(&seen, self.now);
        self.observed.set_grant(request.key.as_str().into(), Some(seen));
        self.observed.set_closed(request.key.as_str().into(), None);
        self.record(
            EventKind::Granted,
            &Fact {
                key: Some(request.key.as_str()),
                session: Some(session),
                token: Some(token.get()),
                actor: Some(&owner),
                ..Fact::default()
            },
        )?;
        Ok(AcquireOutcome::Granted {
            grant: Grant {
                key: request.key,
                token,
                session_id: request.session_id,
                owner: sane(Owner::new(&*owner))?,
                ttl: request.ttl,
                expires_in,
                granted_at: UnixMillis(self.wall_ms),
                request_id: Some(request.request_id),
                metadata: request.metadata,
                lock_delay: request.lock_delay,
                yield_asked: None,
            },
            replayed: false,
        })
    }

    pub(super) fn renew(&mut self, request: RenewRequest) -> rusqlite::Result<RenewOutcome> {
        let Some(row) = find_key(self.connection, &request.key)? else {
            return Ok(RenewOutcome::NotFound);
        };
        let ttl = request.ttl.unwrap_or(row.ttl);
        let Some(mut grant) = self.live(&request.key, row)? else {
            return Ok(RenewOutcome::NotHolder);
        };
        let session = request.session_id.as_str();
        if grant.session_id != request.session_id
            || grant.token != request.token
            || self.observed.live_session(session, self.now).is_none()
        {
            return Ok(RenewOutcome::NotHolder);
        }
        let changed = self
            .connection
            .prepare_cached(
                "UPDATE lock_grant SET ttl_ms = ?4, expires_at = ?5
                 WHERE lock_key = ?1 AND session_id = ?2 AND token = ?3",
            )?
            .execute(params![
                request.key.as_str(),
                session,
                int(request.token.get()),
                ttl_ms(ttl),
                self.wall_after(ttl.get())
            ])?;
        exactly_one(changed)?;
        let seen = GrantSeen {
            session: session.into(),
            token: request.token,
            deadline: self.now.saturating_add(ttl.get()),
            yield_asked: grant.yield_asked.clone().map(Arc::new),
        };
        grant.ttl = ttl;
        grant.expires_in = self.observed.remaining(&seen, self.now);
        self.observed.set_grant(request.key.as_str().into(), Some(seen));
        Ok(RenewOutcome::Renewed(grant))
    }

    pub(super) fn release(&mut self, request: &ReleaseRequest) -> rusqlite::Result<ReleaseOutcome> {
        let Some(row) = find_key(self.connection, &request.key)? else {
            return Ok(ReleaseOutcome::NotFound);
        };
        if row.token != request.token {
            return Ok(ReleaseOutcome::NotHolder);
        }
        match row.session_id {
            None => Ok(ReleaseOutcome::AlreadyFree),
            Some(holder) if holder != request.session_id => Ok(ReleaseOutcome::NotHolder),
            Some(_) => {
                let key = Name::from(request.key.as_str());
                let ended = self
                    .observed
                    .grant(&key)
                    .is_none_or(|seen| self.observed.remaining(seen, self.now).is_zero());
                if ended {
                    self.end_grant(&key, EventKind::Expired, LEASE_CLOCK)?;
                    return Ok(ReleaseOutcome::AlreadyFree);
                }
                let owner = self.owner_of(request.session_id.as_str());
                self.end_grant(&key, EventKind::Released, owner.as_deref().unwrap_or_default())?;
                Ok(ReleaseOutcome::Released)
            }
        }
    }

    pub(super) fn revoke(&mut self, request: &RevokeRequest) -> rusqlite::Result<RevokeOutcome> {
        let Some(row) = find_key(self.connection, &request.key)? else {
            return Ok(RevokeOutcome::NotFound);
        };
        let above = row.token;
        let Some(revoked) = self.live(&request.key, row)? else {
            return Ok(RevokeOutcome::NotHeld);
        };
        if revoked.token != request.revoke_token {
            return Ok(RevokeOutcome::NotHolder {
                holder: Box::new(revoked),
            });
        }
        let token = match self.mint(Some(above))? {
            Ok(token) => token,
            Err(detail) => return Ok(RevokeOutcome::TokenRegression { detail }),
        };
        let delay = self.free(&request.key, &revoked.session_id, revoked.token, token)?;
        self.close_for(&request.key, delay)?;
        // The revoked token, so that whoever holds it recognises itself; the minted one stands in the key's row.
        self.record(
            EventKind::Revoked,
            &Fact {
                key: Some(request.key.as_str()),
                session: Some(revoked.session_id.as_str()),
                token: Some(revoked.token.get()),
                actor: Some(request.operator.as_str()),
                reason: Some(&request.reason),
            },
        )?;
        Ok(RevokeOutcome::Revoked { revoked, token })
    }

    pub(super) fn ask_to_yield(&mut self, request: YieldRequest) -> rusqlite::Result<YieldOutcome> {
        let Some(row) = find_key(self.connection, &request.key)? else {
            return Ok(YieldOutcome::NotFound);
        };
        let Some(mut grant) = self.live(&request.key, row)? else {
            return Ok(YieldOutcome::NotHeld);
        };
        if grant.token != request.token {
            return Ok(YieldOutcome::NotHolder {
                holder: Box::new(grant),
            });
        }
        if grant.yield_asked.is_some() {
            return Ok(YieldOutcome::Asked(grant));
        }
        let mut seen = there(self.observed.grant(request.key.as_str()).cloned())?;
        let changed = self
            .connection
            .prepare_cached(
                "UPDATE lock_grant SET yield_by = ?3, yield_reason = ?4, yield_at = ?5
                 WHERE lock_key = ?1 AND session_id IS NOT NULL AND token = ?2",
            )?
            .execute(params![
                request.key.as_str(),
                int(request.token.get()),
                request.operator.as_str(),
                request.reason,
                self.wall_ms
            ])?;
        exactly_one(changed)?;
        self.record(
            EventKind::YieldRequested,
            &Fact {
                key: Some(request.key.as_str()),
                session: Some(grant.session_id.as_str()),
                token: Some(grant.token.get()),
                actor: Some(request.operator.as_str()),
                reason: Some(&request.reason),
            },
        )?;
        let asked = YieldAsked {
            by: request.operator,
            reason: request.reason,
            at: UnixMillis(self.wall_ms),
        };
        seen.yield_asked = Some(Arc::new(asked.clone()));
        self.observed.set_grant(request.key.as_str().into(), Some(seen));
        grant.yield_asked = Some(asked);
        Ok(YieldOutcome::Asked(grant))
    }

    /// Ends an observed grant, whoever holds it, and records why. Where it expired and had asked for a delay, its key is
    /// closed.
    pub(super) fn end_grant(&mut self, key: &Name, kind: EventKind, actor: &str) -> rusqlite::Result<ExpiredGrant> {
        let seen = there(self.observed.grant(key).cloned())?;
        let ended = ExpiredGrant {
            key: sane(LockKey::new(&**key))?,
            token: seen.token,
            session_id: sane(SessionId::new(&*seen.session))?,
        };
        let delay = self.free(&ended.key, &ended.session_id, ended.token, ended.token)?;
        if kind == EventKind::Expired {
            self.close_for(&ended.key, delay)?;
        }
        self.record(
            kind,
            &Fact {
                key: Some(key),
                session: Some(&seen.session),
                token: Some(seen.token.get()),
                actor: Some(actor),
                ..Fact::default()
            },
        )?;
        Ok(ended)
    }

    /// Turns a grant's row into a tombstone under `last`. Answers the delay that the grant had asked for.
    fn free(
        &mut self,
        key: &LockKey,
        session: &SessionId,
        token: FencingToken,
        last: FencingToken,
    ) -> rusqlite::Result<LockDelay> {
        let delay = self
            .connection
            .prepare_cached(
                "UPDATE lock_grant SET session_id = NULL, token = ?4, expires_at = ?5, metadata = NULL, request_id = NULL,
                     closed_until = NULL, yield_by = NULL, yield_reason = NULL, yield_at = NULL
                 WHERE lock_key = ?1 AND session_id = ?2 AND token = ?3 RETURNING lock_delay_ms",
            )?
            .query_row(
                params![
                    key.as_str(),
                    session.as_str(),
                    int(token.get()),
                    int(last.get()),
                    self.wall_ms
                ],
                |row| lock_delay(row.get(0)?),
            )
            .optional()?;
        let delay = there(delay)?;
        self.observed.set_grant(key.as_str().into(), None);
        Ok(delay)
    }

    /// Closes a key that was freed in this job for the delay that its grant had asked for.
    fn close_for(&mut self, key: &LockKey, delay: LockDelay) -> rusqlite::Result<()> {
        if delay.is_none() {
            return Ok(());
        }
        let changed = self
            .connection
            .prepare_cached("UPDATE lock_grant SET closed_until = ?2 WHERE lock_key = ?1 AND session_id IS NULL")?
            .execute(params![key.as_str(), self.wall_after(delay.get())])?;
        exactly_one(changed)?;
        let until = self.now.saturating_add(delay.get());
        self.observed.set_closed(key.as_str().into(), Some(until));
        Ok(())
    }

    /// The grant of a row, unless it is a tombstone or its own lease has ended. Its session's end is not judged here.
    fn live(&self, key: &LockKey, row: KeyRow) -> rusqlite::Result<Option<Grant>> {
        let (Some(session_id), Some(seen)) = (row.session_id, self.observed.grant(key.as_str())) else {
            return Ok(None);
        };
        if self.now >= seen.deadline {
            return Ok(None);
        }
        let owner = self.owner_of(session_id.as_str()).unwrap_or_default();
        Ok(Some(Grant {
            key: key.clone(),
            token: row.token,
            owner: sane(Owner::new(&*owner))?,
            session_id,
            ttl: row.ttl,
            expires_in: self.observed.remaining(seen, self.now),
            granted_at: row.granted_at,
            request_id: row.request_id,
            metadata: row.metadata,
            lock_delay: row.lock_delay,
            yield_asked: row.yield_asked,
        }))
    }

    pub(super) fn inspect(&self, key: LockKey) -> rusqlite::Result<KeyState> {
        match find_key(self.connection, &key)? {
            Some(row) => self.state(key, row),
            None => Ok(KeyState {
                key,
                last_token: None,
                grant: None,
                closed_for: None,
            }),
        }
    }

    fn state(&self, key: LockKey, row: KeyRow) -> rusqlite::Result<KeyState> {
        let (last_token, was_held, delay) = (row.token, row.session_id.is_some(), row.lock_delay);
        let grant = self.live(&key, row)?;
        let closed_for = if grant.is_some() {
            None
        } else if was_held {
            // It is over and not ended yet: the delay counts from when that is done, which may be now.
            Some(delay.get()).filter(|delay| !delay.is_zero())
        } else {
            self.observed.closed_for(key.as_str(), self.now)
        };
        Ok(KeyState {
            key,
            last_token: Some(last_token),
            grant,
            closed_for,
        })
    }

    pub(super) fn list(&self, prefix: &str, after: Option<&LockKey>, limit: u32) -> rusqlite::Result<Vec<KeyState>> {
        // One bound, the later of the two, so that the search begins there however many keys stand before it.
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT lock_key, {KEY_COLUMNS} FROM lock_grant WHERE lock_key >= ?1 ORDER BY lock_key"
        ))?;
        let mut rows = statement.query([prefix.max(after.map_or("", LockKey::as_str))])?;
        let mut states = Vec::new();
        while states.len() < limit as usize {
            let Some(row) = rows.next()? else { break };
            let key = sane(LockKey::new(row.get::<_, String>(0)?))?;
            if after.is_some_and(|after| key <= *after) {
                continue;
            }
            // In byte order all keys of a prefix stand together.
            if !key.as_str().starts_with(prefix) {
                break;
            }
            states.push(self.state(key, key_row(row, 1)?)?);
        }
        Ok(states)
    }
}
