//! What is shown of keys.

use super::error::CallError;
use super::layout::{after_prefix, just_after};
use super::records::token;
use super::shared::{Holding, Shared};
use super::snapshot::{Snapshot, Wants};
use etcd_client::GetOptions;
use lock_api::{KeyState, LockKey, StoreError};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Sessions of others whose leases are asked about for the sake of a list.
const ASKED_FOR_MAX: usize = 16;

impl Shared {
    pub(super) async fn inspect(&self, keys: &[LockKey], deadline: Instant) -> Result<Vec<KeyState>, CallError> {
        let mut states = Vec::with_capacity(keys.len());
        for some in keys.chunks(self.fit(4)) {
            let snapshot = self.read_keys(some, deadline).await?;
            self.states(some, &snapshot, &mut states, deadline).await?;
        }
        Ok(states)
    }

    async fn read_keys(&self, keys: &[LockKey], deadline: Instant) -> Result<Snapshot, CallError> {
        let mut wants = Wants::new(&self.layout);
        keys.iter().for_each(|key| wants.key(key.as_str()));
        self.read(wants, deadline).await
    }

    async fn states(
        &self,
        keys: &[LockKey],
        snapshot: &Snapshot,
        states: &mut Vec<KeyState>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let judged: Vec<_> = {
            let now = self.clock.mono();
            keys.iter()
                .map(|key| (key, snapshot.key(key.as_str())))
                .map(|(key, rows)| (key, self.holding(key.as_str(), &rows, now), rows))
                .collect()
        };
        let holders: BTreeMap<_, _> = judged
            .iter()
            .filter_map(|(_, holding, _)| match holding {
                Holding::Held(live) => Some((live.holder.session.clone(), live.holder.lease)),
                Holding::Free { .. } => None,
            })
            .collect();
        if holders.len() <= ASKED_FOR_MAX {
            self.make_certain(holders, deadline).await;
        }
        let now = self.clock.mono();
        for (key, holding, rows) in judged {
            let last = rows.record.map(|at| at.value.token(at.rev));
            let closed_for = match &holding {
                Holding::Held(_) => None,
                // It is over and not ended yet: the delay counts from when that is done, which may be now.
                Holding::Free {
                    ended: Some((holder, _)),
                    ..
                } => Some(Duration::from_millis(holder.lock_delay_ms)).filter(|delay| !delay.is_zero()),
                Holding::Free { closed_for, .. } => *closed_for,
            };
            states.push(KeyState {
                closed_for,
                key: key.clone(),
                last_token: last.map(token).transpose()?,
                grant: match holding {
                    Holding::Held(live) => Some(self.show(key.clone(), &live, now)?),
                    Holding::Free { .. } => None,
                },
            });
        }
        Ok(())
    }

    pub(super) async fn list(
        &self,
        prefix: &str,
        after: Option<&LockKey>,
        limit: u32,
        deadline: Instant,
    ) -> Result<Vec<KeyState>, CallError> {
        // The later of the two, so that the search begins there however many keys stand before it.
        let mut from = self.layout.key(prefix);
        if let Some(after) = after {
            from = from.max(just_after(self.layout.key(after.as_str())));
        }
        let end = after_prefix(self.layout.key(prefix));
        let (page, limit) = (self.fit(4), limit as usize);
        let mut states = Vec::new();
        while states.len() < limit && from < end {
            let wanted = page.min(limit - states.len());
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_keys_only()
                .with_limit(i64::try_from(wanted).unwrap_or(i64::MAX));
            let rows = self.etcd.get(&from, &options, deadline).await?;
            let Some(last) = rows.kvs().last() else { break };
            from = just_after(last.key().to_vec());
            let mut keys = Vec::new();
            for row in rows.kvs() {
                keys.extend(self.key_at(row.key())?);
            }
            let snapshot = self.read_keys(&keys, deadline).await?;
            // One that was purged between the two readings.
            keys.retain(|key| snapshot.key(key.as_str()).record.is_some());
            self.states(&keys, &snapshot, &mut states, deadline).await?;
        }
        Ok(states)
    }
}
