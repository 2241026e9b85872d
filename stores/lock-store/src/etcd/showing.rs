//! What is shown of sessions.

use super::layout::{Place, after_prefix, just_after};
use super::observed::SessionSeen;
use super::records::{HeldRecord, YieldRecord, minted, parse, sane, token};
use super::sessions::HELD_PAGE;
use super::shared::{Holding, Shared, ttl};
use super::snapshot::{At, SessionRows, Snapshot, Wants};
use etcd_client::GetOptions;
use lock_api::{HeldGrant, LockKey, Metadata, Owner, SessionId, SessionView, StoreError, UnixMillis};
use std::collections::BTreeMap;
use tokio::time::Instant;

impl Shared {
    pub(super) async fn session(&self, id: SessionId, deadline: Instant) -> Result<Option<SessionView>, StoreError> {
        let mut wants = Wants::new(&self.layout);
        wants.session(id.as_str());
        wants.held(id.as_str(), HELD_PAGE);
        let snapshot = self.read(wants, deadline).await?;
        let rows = snapshot.session(id.as_str());
        if !self.lives(id.as_str(), &rows, self.clock.mono()) {
            return Ok(None);
        }
        Ok(self.views(vec![(id, rows)], &snapshot, deadline).await?.pop())
    }

    pub(super) async fn sessions(
        &self,
        after: Option<&SessionId>,
        limit: u32,
        deadline: Instant,
    ) -> Result<Vec<SessionView>, StoreError> {
        let mut from = after.map_or_else(
            || self.layout.session(""),
            |id| just_after(self.layout.session(id.as_str())),
        );
        let (end, limit) = (after_prefix(self.layout.session("")), limit as usize);
        let page = self.fit(5);
        let mut views = Vec::new();
        while views.len() < limit {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_keys_only()
                .with_limit(i64::try_from(page).unwrap_or(i64::MAX));
            let rows = self
                .etcd
                .get(&from, &options, deadline)
                .await
                .map_err(StoreError::from)?;
            let mut ids = Vec::new();
            for row in rows.kvs() {
                if let Place::Session(id) = self.layout.place(row.key()) {
                    ids.push(sane(SessionId::new(id))?);
                }
            }
            let Some(last) = rows.kvs().last() else { break };
            from = just_after(last.key().to_vec());
            let mut wants = Wants::new(&self.layout);
            for id in &ids {
                wants.session(id.as_str());
                wants.held(id.as_str(), HELD_PAGE);
            }
            let snapshot = self.read(wants, deadline).await?;
            let now = self.clock.mono();
            let live: Vec<_> = ids
                .into_iter()
                .map(|id| (snapshot.session(id.as_str()), id))
                // One that is due and not yet swept has ended for whoever asks; it does not shorten the page.
                .filter(|(rows, id)| self.lives(id.as_str(), rows, now))
                .take(limit - views.len())
                .map(|(rows, id)| (id, rows))
                .collect();
            views.extend(self.views(live, &snapshot, deadline).await?);
        }
        Ok(views)
    }

    pub(super) async fn views(
        &self,
        sessions: Vec<(SessionId, SessionRows)>,
        snapshot: &Snapshot,
        deadline: Instant,
    ) -> Result<Vec<SessionView>, StoreError> {
        let leases = sessions
            .iter()
            .filter_map(|(id, rows)| Some((id.as_str().to_owned(), rows.record.as_ref()?.value.lease)))
            .collect();
        self.make_certain(leases, deadline).await;
        let mut views = Vec::with_capacity(sessions.len());
        for (id, rows) in sessions {
            let Some(record) = rows.record else { continue };
            let record = record.value;
            let now = self.clock.mono();
            let seen = self.observed(|observed| observed.session(id.as_str()).cloned());
            let heard = seen.as_ref().and_then(|seen| seen.heartbeat_at).max(rows.stamped_at);
            views.push(SessionView {
                held: self.held_by(&id, snapshot, deadline).await?,
                session_id: id,
                owner: sane(Owner::new(record.owner.clone()))?,
                ttl: ttl(record.ttl())?,
                expires_in: seen.map_or(record.ttl(), |seen: SessionSeen| seen.left(now)),
                opened_at: UnixMillis(record.opened_at),
                last_heartbeat_at: UnixMillis(heard.unwrap_or(record.opened_at).max(record.opened_at)),
                metadata: record
                    .metadata
                    .map(Metadata::new)
                    .transpose()
                    .map_err(|e| super::records::corrupt(&e))?,
            });
        }
        Ok(views)
    }

    /// What a session still holds: what is due already is not held any more.
    pub(super) async fn held_by(
        &self,
        id: &SessionId,
        snapshot: &Snapshot,
        deadline: Instant,
    ) -> Result<Vec<HeldGrant>, StoreError> {
        let mut all: Vec<(String, At<HeldRecord>)> = snapshot
            .held(id.as_str())
            .map(|(key, at)| (key.clone(), at.clone()))
            .collect();
        if all.len() == HELD_PAGE {
            self.rest_of_held(id, &mut all, deadline).await?;
        }
        let now = self.clock.mono();
        let (mut held, mut uncertain) = (BTreeMap::new(), Vec::new());
        for (key, at) in all {
            let left = self.observed(|observed| {
                let seen = observed
                    .grant(&key)
                    .filter(|seen| seen.rev == at.rev && now < seen.deadline)?;
                Some(observed.remaining(seen, now))
            });
            match left {
                Some(left) => {
                    let token = minted(at.rev, at.value.offset);
                    let asked = YieldRecord::of(snapshot.yielding(id.as_str(), &key), token)?;
                    held.insert(key, (token, left, asked));
                }
                // Perhaps renewed through another server.
                None => uncertain.push(key),
            }
        }
        for some in uncertain.chunks(self.fit(4)) {
            let mut wants = Wants::new(&self.layout);
            some.iter().for_each(|key| wants.key(key));
            let fresh = self.read(wants, deadline).await?;
            let now = self.clock.mono();
            for key in some {
                if let Holding::Held(live) = self.holding(key, &fresh.key(key), now)
                    && live.holder.session == id.as_str()
                {
                    let left = self.observed(|observed| observed.remaining(&live.seen, now));
                    let asked = YieldRecord::of(live.yield_asked.as_ref(), live.token)?;
                    held.insert(key.clone(), (live.token, left, asked));
                }
            }
        }
        held.into_iter()
            .map(|(key, (value, expires_in, yield_asked))| {
                Ok(HeldGrant {
                    key: sane(LockKey::new(key))?,
                    token: token(value)?,
                    expires_in,
                    yield_asked,
                })
            })
            .collect()
    }

    async fn rest_of_held(
        &self,
        id: &SessionId,
        all: &mut Vec<(String, At<HeldRecord>)>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let end = after_prefix(self.layout.held(id.as_str(), ""));
        while let Some((last, _)) = all.last() {
            let from = just_after(self.layout.held(id.as_str(), last));
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(i64::try_from(HELD_PAGE).unwrap_or(i64::MAX));
            let rows = self
                .etcd
                .get(&from, &options, deadline)
                .await
                .map_err(StoreError::from)?;
            if rows.kvs().is_empty() {
                break;
            }
            for row in rows.kvs() {
                if let Place::Held(_, key) = self.layout.place(row.key()) {
                    let at = At {
                        rev: row.mod_revision(),
                        value: parse(row.key(), row.value())?,
                    };
                    all.push((key.to_owned(), at));
                }
            }
        }
        Ok(())
    }
}
