//! Ending what is due, and forgetting what has long been free.

use super::error::CallError;
use super::layout::{Place, after_prefix, just_after};
use super::observed::Due;
use super::plan::{End, Fact, LEASE_CLOCK, LastToken, Plan};
use super::records::{Ending, KeyRecord, parse, sane, text, token};
use super::shared::{Holding, Shared, after_a_part};
use super::snapshot::Wants;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use lock_api::{EventKind, ExpiredGrant, ExpiredSession, ExpiryReport, LockKey, SessionId, StoreError};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Tombstones that are looked at, and forgotten, at once.
const PURGE_PAGE: i64 = 1000;
const PURGE_AT_ONCE: usize = 50;

/// What one transaction ended of a session.
#[derive(Debug, Default)]
pub(super) struct EndedSome {
    pub(super) freed: Vec<ExpiredGrant>,
    /// The session has ended with this.
    pub(super) over: bool,
    /// It is not there, or not due.
    pub(super) nothing_to_do: bool,
    /// A lease of which nothing is needed any more.
    pub(super) lease: Option<i64>,
}

impl Shared {
    /// Ends what is due, earliest first. The grants of a dead session count one each, and a session with more of them than
    /// the limit ends over several sweeps: its grants first, the session with the last of them.
    pub(super) async fn expire_due(&self, limit: u32, deadline: Instant) -> Result<ExpiryReport, StoreError> {
        let (mut report, mut leases) = (ExpiryReport::default(), Vec::new());
        let swept = self.sweep(limit as usize, &mut report, &mut leases, deadline).await;
        self.revoke_leases(&leases, deadline).await;
        if let Err(error) = swept {
            if report.grants.is_empty() && report.sessions.is_empty() {
                return Err(error);
            }
            // What has ended is told; the rest is still due.
            tracing::debug!(event = "sweep_cut_short", %error);
            report.more = true;
        }
        let now = self.clock.mono();
        report.next_due_in = if report.more {
            Some(Duration::ZERO)
        } else {
            self.observed(|observed| observed.next_due())
                .map(|at| at.saturating_sub(now))
        };
        Ok(report)
    }

    async fn sweep(
        &self,
        limit: usize,
        report: &mut ExpiryReport,
        leases: &mut Vec<i64>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let (mut left, mut looked_at) = (limit, HashSet::new());
        loop {
            let now = self.clock.mono();
            let at_once = self.fit(5).min(left.max(1));
            let due: Vec<Due> = self.observed(|observed| {
                observed
                    .due(now)
                    .filter(|due| !looked_at.contains(*due))
                    .take(at_once)
                    .cloned()
                    .collect()
            });
            let Some(first) = due.first() else { return Ok(()) };
            if left == 0 {
                report.more = true;
                return Ok(());
            }
            if let Due::Delay(_) = first {
                let closed = due.iter().map_while(|due| match due {
                    Due::Delay(key) => Some(&**key),
                    Due::Grant(_) | Due::Session(_) => None,
                });
                let keys: Vec<&str> = closed.collect();
                left = left.saturating_sub(self.open_again(&keys, deadline).await?);
                let run = keys.len();
                looked_at.extend(due.into_iter().take(run));
            } else if let Due::Session(id) = first {
                let (mut freed, mut over, mut settled) = (Vec::new(), false, false);
                while !settled && freed.len() < left {
                    match self.end_some(id, left - freed.len(), false, deadline).await {
                        Ok(some) => {
                            freed.extend(some.freed);
                            leases.extend(some.lease);
                            over = some.over;
                            settled = some.over || some.nothing_to_do;
                        }
                        Err(error) => {
                            report.grants.append(&mut freed);
                            return Err(error.into());
                        }
                    }
                }
                left -= freed.len();
                if settled {
                    looked_at.insert(first.clone());
                }
                if over {
                    left -= 1;
                    report.sessions.push(ExpiredSession {
                        session_id: sane(SessionId::new(&**id))?,
                        released: freed,
                    });
                } else {
                    report.grants.extend(freed);
                }
            } else {
                let keys: Vec<&str> = due
                    .iter()
                    .map_while(|due| match due {
                        Due::Grant(key) => Some(&**key),
                        Due::Session(_) | Due::Delay(_) => None,
                    })
                    .collect();
                let (ended, run) = self.end_grants(&keys, deadline).await?;
                left = left.saturating_sub(ended.len());
                report.grants.extend(ended);
                looked_at.extend(due.into_iter().take(run));
            }
        }
    }

    /// Opens those of the keys that have been closed for their whole delay. Answers how many.
    async fn open_again(&self, keys: &[&str], deadline: Instant) -> Result<usize, CallError> {
        loop {
            let mut wants = Wants::new(&self.layout);
            keys.iter().for_each(|key| wants.key(key));
            let snapshot = self.read(wants, deadline).await?;
            let now = self.clock.mono();
            let mut plan = Plan::new(&self.layout, &snapshot, self.clock.wall_ms());
            let mut opened = Vec::new();
            for key in keys {
                let rows = snapshot.key(key);
                let closed_for = match self.holding(key, &rows, now) {
                    Holding::Free { closed_for, .. } => closed_for,
                    Holding::Held(_) => None,
                };
                // Closed anew meanwhile: then it is due later.
                if closed_for.is_none() {
                    plan.open_again(key, &rows)?;
                    opened.push(key);
                }
            }
            if plan.is_empty() {
                return Ok(0);
            }
            if let Some(revision) = self.commit(plan, deadline).await? {
                self.observed(|observed| opened.iter().for_each(|key| observed.forget_closed(key, revision)));
                return Ok(opened.len());
            }
        }
    }

    /// Ends those of the keys' grants that are due when they are looked at. Answers them, and how many keys were.
    async fn end_grants(&self, keys: &[&str], deadline: Instant) -> Result<(Vec<ExpiredGrant>, usize), CallError> {
        let _turn = self.turn(deadline).await?;
        loop {
            let mut wants = Wants::new(&self.layout);
            keys.iter().for_each(|key| wants.key(key));
            let snapshot = self.read(wants, deadline).await?;
            let (now, wall) = (self.clock.mono(), self.clock.wall_ms());
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            let (mut ended, mut closed, mut looked_at) = (Vec::new(), Vec::new(), 0);
            for key in keys {
                if !plan.has_room(self.options.operations_max) {
                    break;
                }
                looked_at += 1;
                let rows = snapshot.key(key);
                if rows.record.is_none() {
                    self.observed(|observed| observed.forget_grant(key, snapshot.revision));
                    continue;
                }
                let Holding::Free {
                    ended: Some((holder, last)),
                    ..
                } = self.holding(key, &rows, now)
                else {
                    continue;
                };
                // Not where another server has just renewed it.
                plan.unchanged(self.layout.grant(key), rows.grant);
                plan.unchanged(self.layout.renewed(key), rows.renewed);
                plan.free(key, &rows, &holder, (LastToken::Own(last), End::Unclean))?;
                closed.push((*key, holder.lock_delay_ms));
                plan.fact(
                    EventKind::Expired,
                    &Fact {
                        key: Some(key),
                        session: Some(&holder.session),
                        token: Some(last),
                        actor: Some(LEASE_CLOCK),
                        ..Fact::default()
                    },
                );
                ended.push(ExpiredGrant {
                    key: sane(LockKey::new(*key))?,
                    token: token(last)?,
                    session_id: sane(SessionId::new(holder.session))?,
                });
            }
            if plan.is_empty() {
                return Ok((ended, looked_at));
            }
            if let Some(revision) = self.commit(plan, deadline).await? {
                self.observed(|observed| {
                    for (key, delay) in closed {
                        observed.lose_grant(key, delay, revision, now);
                    }
                });
                return Ok((ended, looked_at));
            }
        }
    }

    /// Frees up to `limit` of what a session holds and, where that is less than the limit and all, ends it: because it is
    /// being closed, or because it is due. The first of several transactions says that its end has begun, so that it does
    /// nothing any more.
    pub(super) async fn end_some(
        &self,
        id: &str,
        limit: usize,
        closing: bool,
        deadline: Instant,
    ) -> Result<EndedSome, CallError> {
        let nothing = EndedSome {
            nothing_to_do: true,
            ..EndedSome::default()
        };
        let at_once = self.fit(5).min(limit);
        let _turn = self.turn(deadline).await?;
        loop {
            let mut wants = Wants::new(&self.layout);
            wants.session(id);
            wants.held(id, at_once + 1);
            let listed = self.read(wants, deadline).await?;
            let rows = listed.session(id);
            let Some(record) = &rows.record else {
                self.observed(|observed| observed.forget_session(id, listed.revision));
                return Ok(nothing);
            };
            let now = self.clock.mono();
            self.see_session(id, &rows, now);
            let ending = if let Some(ending) = record.value.ending.clone() {
                ending
            } else if rows.pulse != 0 && closing {
                Ending {
                    closed: true,
                    actor: record.value.owner.clone(),
                }
            } else if rows.pulse == 0 || (record.value.stamped && !self.lives(id, &rows, now)) {
                Ending {
                    closed: false,
                    actor: LEASE_CLOCK.to_owned(),
                }
            } else {
                if !record.value.stamped {
                    // Its lease lives, kept alive through another server; or it ends in this moment.
                    self.observed(|observed| observed.see_alive(id, now, Duration::ZERO, None));
                    self.look_at_lease(id, record.value.lease, deadline).await;
                }
                return Ok(nothing);
            };
            let keys: Vec<&String> = listed.held(id).map(|(key, _)| key).collect();
            let mut more = keys.len() > at_once;
            let keys = &keys[..keys.len().min(at_once)];
            let mut wants = Wants::new(&self.layout);
            keys.iter().for_each(|key| wants.key(key));
            let snapshot = self.read(wants, deadline).await?;
            if snapshot.head_rev() != listed.head_rev() {
                continue;
            }
            let mut plan = Plan::new(&self.layout, &snapshot, self.clock.wall_ms());
            plan.unchanged(self.layout.session(id), record.rev);
            plan.unchanged(self.layout.pulse(id), rows.pulse);
            if record.value.stamped && !ending.closed {
                plan.unchanged(self.layout.stamp(id), rows.stamp);
            }
            let kind = if ending.closed {
                EventKind::Released
            } else {
                EventKind::Expired
            };
            let end = if ending.closed { End::Clean } else { End::Unclean };
            let (mut freed, mut closed) = (Vec::new(), Vec::new());
            for key in keys {
                if !plan.has_room(self.options.operations_max) {
                    more = true;
                    break;
                }
                let rows = snapshot.key(key);
                let held = rows.record.as_ref().and_then(|at| Some((at, at.value.held.as_ref()?)));
                let Some((at, holder)) = held.filter(|(_, holder)| holder.session == id) else {
                    plan.delete(self.layout.held(id, key));
                    continue;
                };
                let last = at.value.token(at.rev);
                plan.free(key, &rows, holder, (LastToken::Own(last), end))?;
                closed.push((key.as_str(), if ending.closed { 0 } else { holder.lock_delay_ms }));
                plan.fact(
                    kind,
                    &Fact {
                        key: Some(key),
                        session: Some(id),
                        token: Some(last),
                        actor: Some(&ending.actor),
                        ..Fact::default()
                    },
                );
                freed.push(ExpiredGrant {
                    key: sane(LockKey::new(key.as_str()))?,
                    token: token(last)?,
                    session_id: sane(SessionId::new(id))?,
                });
            }
            let over = !more && freed.len() < limit;
            if over {
                plan.delete(self.layout.session(id));
                plan.delete(self.layout.pulse(id));
                plan.delete(self.layout.stamp(id));
                let kind = if ending.closed {
                    EventKind::SessionClosed
                } else {
                    EventKind::SessionExpired
                };
                plan.fact(
                    kind,
                    &Fact {
                        session: Some(id),
                        actor: Some(&ending.actor),
                        ..Fact::default()
                    },
                );
            } else if record.value.ending.is_none() {
                let mut begun = record.value.clone();
                begun.ending = Some(ending);
                plan.put(self.layout.session(id), text(&begun)?);
                plan.delete(self.layout.pulse(id));
            }
            let Some(revision) = self.commit(plan, deadline).await? else {
                continue;
            };
            self.observed(|observed| {
                for (key, delay) in closed {
                    observed.lose_grant(key, delay, revision, now);
                }
                if over {
                    observed.forget_session(id, revision);
                } else {
                    observed.lose_session(id, revision, now);
                }
            });
            return Ok(EndedSome {
                freed,
                over,
                nothing_to_do: false,
                lease: over.then_some(record.value.lease),
            });
        }
    }

    /// Forgets keys that have been free for `retention`, those excepted whose delay runs.
    pub(super) async fn purge(&self, retention: Duration, limit: u32, deadline: Instant) -> Result<u32, StoreError> {
        let wall = self.clock.wall_ms();
        let cut = wall.saturating_sub(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX));
        if self.oldest_tombstone().is_some_and(|oldest| oldest > cut) {
            return Ok(0);
        }
        let (mut from, end) = (self.layout.key(""), after_prefix(self.layout.key("")));
        // Whatever is freed from now on is younger than now.
        let (mut gone, mut oldest, limit) = (0, wall, limit as usize);
        while gone < limit {
            let options = GetOptions::new().with_range(end.clone()).with_limit(PURGE_PAGE);
            let page = self.etcd.get(&from, &options, deadline).await;
            let page = page.map_err(|error| after_a_part(error.into(), gone > 0))?;
            let mut old = Vec::new();
            for row in page.kvs() {
                let record: KeyRecord = parse(row.key(), row.value())?;
                match (&record.held, record.freed_at) {
                    (None, Some(freed)) if freed <= cut && !self.is_closed(row, &record) => {
                        old.push((row.key().to_vec(), row.mod_revision()))
                    }
                    (None, Some(freed)) => oldest = oldest.min(freed),
                    _ => {}
                }
            }
            old.truncate(limit - gone);
            for some in old.chunks(PURGE_AT_ONCE.min(self.fit(3))) {
                let purged = self.forget_tombstones(some, deadline).await;
                gone += purged.map_err(|error| after_a_part(error.into(), gone > 0))?;
            }
            match page.kvs().last() {
                Some(last) => from = just_after(last.key().to_vec()),
                None => {
                    self.set_oldest_tombstone((gone == 0).then_some(oldest));
                    break;
                }
            }
        }
        Ok(u32::try_from(gone).unwrap_or(u32::MAX))
    }

    /// Whether a tombstone's delay runs.
    fn is_closed(&self, row: &KeyValue, record: &KeyRecord) -> bool {
        let (Some(delay), Place::Key(key)) = (record.closed_ms, self.layout.place(row.key())) else {
            return false;
        };
        let now = self.clock.mono();
        let delay = Duration::from_millis(delay);
        now < self.observed(|observed| observed.see_closed(key, row.mod_revision(), delay, now))
    }

    /// Each on its own: one that was granted again meanwhile stays.
    async fn forget_tombstones(&self, old: &[(Vec<u8>, i64)], deadline: Instant) -> Result<usize, CallError> {
        let each: Vec<_> = old
            .iter()
            .map(|(key, rev)| {
                let mut gone = vec![TxnOp::delete(key.clone(), None)];
                if let Place::Key(name) = self.layout.place(key) {
                    gone.push(TxnOp::delete(self.layout.closed(name), None));
                }
                TxnOp::txn(
                    Txn::new()
                        .when([Compare::mod_revision(key.clone(), CompareOp::Equal, *rev)])
                        .and_then(gone),
                )
            })
            .collect();
        // Where it was put to two members the one that came second finds nothing left: fewer are counted, none twice.
        let answered = self.etcd.commit(&Txn::new().and_then(each), deadline).await?;
        Ok(answered
            .answer
            .op_responses()
            .iter()
            .filter(|response| matches!(response, TxnOpResponse::Txn(one) if one.succeeded()))
            .count())
    }

    /// Which key a place is of, for whoever lists.
    pub(super) fn key_at(&self, physical: &[u8]) -> Result<Option<LockKey>, StoreError> {
        match self.layout.place(physical) {
            Place::Key(key) => sane(LockKey::new(key)).map(Some),
            _ => Ok(None),
        }
    }
}
