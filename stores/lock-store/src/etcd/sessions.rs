//! Sessions: open, heartbeat, close.
//!
//! A session has one etcd lease. Its pulse, grants and renewals hang on it and go with it; its record and the list of what
//! it holds do not, so that its end can be recorded. A heartbeat keeps the lease alive and writes nothing; a session
//! shorter than etcd's shortest lease is told by a stamp that each heartbeat writes.

use super::call::Lease;
use super::error::{CallError, unavailable};
use super::grants::refuse_witness;
use super::lineage::{Witnessed, weigh};
use super::plan::{Fact, Plan};
use super::records::{SessionRecord, text};
use super::shared::{Shared, after_a_part, ms, runs};
use super::snapshot::{At, SessionRows, Wants};
use futures_util::future::join_all;
use lock_api::{EventKind, ExpiredGrant, Heartbeat, HeartbeatOutcome, OpenSession, SessionId, SessionView, StoreError};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Calls that are made at once where each session needs one of its own.
const AT_ONCE: usize = 16;
/// What is read of a session's keys at once.
pub(super) const HELD_PAGE: usize = 1000;

impl Shared {
    pub(super) async fn open(&self, batch: &[OpenSession], deadline: Instant) -> Result<Vec<SessionView>, StoreError> {
        let new = self.not_open_yet(batch, deadline).await?;
        let mut leases = BTreeMap::new();
        for some in new.chunks(AT_ONCE) {
            let granted = join_all(some.iter().map(|request| async move {
                let stamped = request.ttl.get() < self.options.shortest_lease;
                let wanted = if stamped {
                    self.options.stamped_lease.max(request.ttl.get() * 2)
                } else {
                    request.ttl.get()
                };
                // A TTL is a lower bound: up to the next whole second.
                let seconds = i64::try_from(wanted.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
                let sent = self.clock.mono();
                let (lease, seconds) = self.etcd.grant_lease(seconds, deadline).await?;
                Ok::<_, CallError>((request.session_id.as_str(), (lease, seconds, stamped, sent)))
            }));
            for lease in granted.await {
                let (id, lease) = lease.map_err(StoreError::from)?;
                leases.insert(id, lease);
            }
        }
        let mut views = Vec::with_capacity(batch.len());
        for run in runs(batch, self.fit(4), |request| request.session_id.as_str()) {
            let done = !views.is_empty();
            let some = self.open_run(run, &leases, deadline).await;
            views.extend(some.map_err(|error| after_a_part(error, done))?);
        }
        Ok(views)
    }

    /// Which of them are new. An id that is another's refuses all.
    async fn not_open_yet<'a>(
        &self,
        batch: &'a [OpenSession],
        deadline: Instant,
    ) -> Result<Vec<&'a OpenSession>, StoreError> {
        let mut first: BTreeMap<&str, &OpenSession> = BTreeMap::new();
        for request in batch {
            let before = first.entry(request.session_id.as_str()).or_insert(request);
            if *before != request {
                return Err(other_fields(request));
            }
        }
        let first: Vec<_> = first.into_values().collect();
        let mut new = Vec::new();
        for run in first.chunks(self.fit(3)) {
            let mut wants = Wants::new(&self.layout);
            run.iter()
                .for_each(|request| wants.session(request.session_id.as_str()));
            let snapshot = self.read(wants, deadline).await?;
            for request in run {
                match snapshot.session(request.session_id.as_str()).record {
                    None => new.push(*request),
                    Some(record) => same(request, &record.value)?,
                }
            }
        }
        Ok(new)
    }

    async fn open_run(
        &self,
        run: &[OpenSession],
        leases: &BTreeMap<&str, (i64, i64, bool, Duration)>,
        deadline: Instant,
    ) -> Result<Vec<SessionView>, StoreError> {
        let _turn = self.turn(deadline).await?;
        loop {
            let mut wants = Wants::new(&self.layout);
            run.iter()
                .for_each(|request| wants.session(request.session_id.as_str()));
            let snapshot = self.read(wants, deadline).await?;
            let wall = self.clock.wall_ms();
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            let (mut shown, mut opened) = (Vec::new(), Vec::new());
            for request in run {
                let id = request.session_id.as_str();
                let rows = snapshot.session(id);
                if let Some(record) = &rows.record {
                    same(request, &record.value)?;
                    shown.push(rows);
                    continue;
                }
                let Some(&(lease, lease_ttl_s, stamped, sent)) = leases.get(id) else {
                    return Err(unavailable(format!("the session {id} ended a moment ago")));
                };
                let record = SessionRecord {
                    owner: request.owner.as_str().to_owned(),
                    ttl_ms: ms(request.ttl),
                    metadata: request.metadata.as_ref().map(|json| json.as_str().to_owned()),
                    opened_at: wall,
                    lease,
                    lease_ttl_s,
                    stamped,
                    ending: None,
                };
                plan.unchanged(self.layout.session(id), 0);
                plan.put(self.layout.session(id), text(&record)?);
                plan.put_leased(self.layout.pulse(id), record.owner.clone().into_bytes(), lease);
                plan.fact(
                    EventKind::SessionOpened,
                    &Fact {
                        session: Some(id),
                        actor: Some(&record.owner),
                        ..Fact::default()
                    },
                );
                opened.push((id, sent));
                shown.push(SessionRows {
                    record: Some(At { rev: 0, value: record }),
                    pulse: i64::MAX,
                    ..SessionRows::default()
                });
            }
            let mut revision = 0;
            if !plan.is_empty() {
                match self.commit(plan, deadline).await.map_err(StoreError::from)? {
                    Some(committed) => revision = committed,
                    None => continue,
                }
            }
            let now = self.clock.mono();
            for rows in &mut shown {
                if let Some(record) = rows.record.as_mut().filter(|record| record.rev == 0) {
                    record.rev = revision;
                }
            }
            for (request, rows) in run.iter().zip(&shown) {
                self.see_session(request.session_id.as_str(), rows, now);
            }
            self.observed(|observed| {
                for (id, sent) in opened {
                    if let Some(left) = observed.session(id).map(|seen| seen.lease_ttl) {
                        observed.see_alive(id, sent, left, Some(wall));
                    }
                }
            });
            let named: Vec<_> = run
                .iter()
                .map(|request| request.session_id.clone())
                .zip(shown)
                .collect();
            return self.views(named, &snapshot, deadline).await;
        }
    }

    pub(super) async fn heartbeat(
        &self,
        batch: &[Heartbeat],
        deadline: Instant,
    ) -> Result<Vec<HeartbeatOutcome>, StoreError> {
        let mut answers = Vec::with_capacity(batch.len());
        for run in runs(batch, self.fit(5), |beat| beat.session_id.as_str()) {
            let done = !answers.is_empty();
            let some = self.heartbeat_run(run, deadline).await;
            answers.extend(some.map_err(|error| after_a_part(error.into(), done))?);
        }
        Ok(answers)
    }

    async fn heartbeat_run(&self, run: &[Heartbeat], deadline: Instant) -> Result<Vec<HeartbeatOutcome>, CallError> {
        loop {
            let mut wants = Wants::new(&self.layout);
            for beat in run {
                wants.session(beat.session_id.as_str());
                wants.held(beat.session_id.as_str(), HELD_PAGE);
            }
            let snapshot = self.read(wants, deadline).await?;
            let (now, wall) = (self.clock.mono(), self.clock.wall_ms());
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            let (mut decided, mut doubt) = (Vec::with_capacity(run.len()), None);
            for beat in run {
                let id = beat.session_id.as_str();
                let rows = snapshot.session(id);
                let Some(record) = rows.record.as_ref().filter(|_| self.lives(id, &rows, now)) else {
                    decided.push(Err(HeartbeatOutcome::SessionNotFound));
                    continue;
                };
                match weigh(&snapshot, beat.witness, id, &record.value.owner) {
                    Witnessed::Plausible => {}
                    Witnessed::Doubt(new) => {
                        doubt = Some(new);
                        break;
                    }
                    Witnessed::Refused { highest_believed } => {
                        let witness = beat.witness.map(lock_api::FencingToken::get);
                        refuse_witness(&mut plan, id, &record.value.owner, witness);
                        decided.push(Err(HeartbeatOutcome::WitnessRefused { highest_believed }));
                        continue;
                    }
                }
                if record.value.stamped {
                    plan.unchanged(self.layout.pulse(id), rows.pulse);
                    plan.unchanged(self.layout.stamp(id), rows.stamp);
                    plan.put_leased(self.layout.stamp(id), text(&wall)?, record.value.lease);
                }
                decided.push(Ok(record.value.clone()));
            }
            if let Some(doubt) = doubt {
                self.record_doubt(&snapshot, &doubt, deadline).await?;
                continue;
            }
            let revision = if plan.is_empty() {
                0
            } else {
                match self.commit(plan, deadline).await {
                    Ok(Some(revision)) => revision,
                    Ok(None) | Err(CallError::LeaseGone) => continue,
                    Err(error) => return Err(error),
                }
            };
            let sent = self.clock.mono();
            let kept = join_all(run.iter().zip(decided).map(|(beat, decided)| async move {
                match decided {
                    Err(refusal) => Ok(Err(refusal)),
                    Ok(record) => self.kept(beat, &record, (revision, wall), sent, deadline).await,
                }
            }));
            let mut answers = Vec::with_capacity(run.len());
            for (beat, kept) in run.iter().zip(kept.await) {
                answers.push(match kept? {
                    Err(refusal) => refusal,
                    Ok(expires_in) => HeartbeatOutcome::Alive {
                        expires_in,
                        held: self.held_by(&beat.session_id, &snapshot, deadline).await?,
                    },
                });
            }
            return Ok(answers);
        }
    }

    /// Keeps the lease of a session alive. Answers what is left of the session.
    async fn kept(
        &self,
        beat: &Heartbeat,
        record: &SessionRecord,
        (revision, wall): (i64, i64),
        sent: Duration,
        deadline: Instant,
    ) -> Result<Result<Duration, HeartbeatOutcome>, StoreError> {
        let id = beat.session_id.as_str();
        let kept = self.etcd.keep_alive(record.lease, deadline).await;
        // The lease may have been extended, and a stamp was written.
        match kept.map_err(|error| after_a_part(error, true))? {
            Lease::Gone => {
                self.observed(|observed| observed.lose_lease(id, record.lease, self.clock.mono()));
                Ok(Err(HeartbeatOutcome::SessionNotFound))
            }
            Lease::Alive => Ok(Ok(self.observed(|observed| {
                if record.stamped {
                    observed.see_stamp(id, revision, Some(wall), sent);
                } else {
                    observed.see_alive(id, sent, record.lease_ttl(), Some(wall));
                }
                let left = observed.session(id).map(|seen| seen.left(sent));
                left.unwrap_or_else(|| record.ttl())
            }))),
        }
    }

    /// Ends sessions and frees what they hold.
    pub(super) async fn close(
        &self,
        batch: &[SessionId],
        deadline: Instant,
    ) -> Result<Vec<Vec<ExpiredGrant>>, StoreError> {
        let (mut answers, mut leases, mut done) = (Vec::with_capacity(batch.len()), Vec::new(), false);
        for id in batch {
            let mut freed = Vec::new();
            loop {
                let some = self.end_some(id.as_str(), usize::MAX, true, deadline).await;
                let some = some.map_err(|error| after_a_part(error.into(), done))?;
                done |= some.over || !some.freed.is_empty();
                freed.extend(some.freed);
                leases.extend(some.lease);
                if some.over || some.nothing_to_do {
                    break;
                }
            }
            answers.push(freed);
        }
        self.revoke_leases(&leases, deadline).await;
        Ok(answers)
    }

    pub(super) async fn revoke_leases(&self, leases: &[i64], deadline: Instant) {
        for some in leases.chunks(AT_ONCE) {
            join_all(some.iter().map(|lease| self.etcd.revoke_lease(*lease, deadline))).await;
        }
    }

    /// Keeps the lease of every live session alive once: the server that took their heartbeats may have been away. One that
    /// cannot be kept alive now is no worse off than before.
    pub(super) async fn full_ttl_again(&self, deadline: Instant) {
        let leases = self.observed(|observed| observed.leases());
        for some in leases.chunks(AT_ONCE) {
            join_all(some.iter().map(|(id, lease)| async move {
                let (sent, full) = (
                    self.clock.mono(),
                    self.observed(|o| o.session(id).map(|seen| seen.lease_ttl)),
                );
                if let (Ok(Lease::Alive), Some(full)) = (self.etcd.keep_alive(*lease, deadline).await, full) {
                    self.observed(|observed| observed.see_alive(id, sent, full, None));
                }
            }))
            .await;
        }
    }

    /// Asks how long the leases of sessions live whose heartbeats this process has not made itself. Answers whether any
    /// was asked for. What cannot be told stays at the most that can be.
    pub(super) async fn make_certain(&self, leases: BTreeMap<String, i64>, deadline: Instant) -> bool {
        let now = self.clock.mono();
        let uncertain: Vec<_> = leases
            .into_iter()
            .filter(|(id, _)| self.observed(|o| o.session(id).is_some_and(|seen| seen.is_uncertain(now))))
            .collect();
        for some in uncertain.chunks(AT_ONCE) {
            join_all(some.iter().map(|(id, lease)| self.look_at_lease(id, *lease, deadline))).await;
        }
        !uncertain.is_empty()
    }

    /// Looks how long a session's lease lives. A lease that is gone, or cannot be asked about, changes nothing here.
    pub(super) async fn look_at_lease(&self, id: &str, lease: i64, deadline: Instant) {
        let (sent, wall) = (self.clock.mono(), self.clock.wall_ms());
        if let Ok(Some(left)) = self.etcd.left_of_lease(lease, deadline).await {
            self.observed(|observed| {
                let full = observed.session(id).map_or(left, |seen| seen.lease_ttl);
                let since = i64::try_from(full.saturating_sub(left).as_millis()).unwrap_or(0);
                observed.see_alive(id, sent, left, Some(wall.saturating_sub(since)));
            });
        }
    }
}

/// The same call as the one that opened it.
fn same(request: &OpenSession, record: &SessionRecord) -> Result<(), StoreError> {
    let same = record.owner == request.owner.as_str()
        && record.ttl_ms == ms(request.ttl)
        && record.metadata.as_deref() == request.metadata.as_ref().map(|json| json.as_str());
    if same { Ok(()) } else { Err(other_fields(request)) }
}

fn other_fields(request: &OpenSession) -> StoreError {
    unavailable(format!(
        "the session {} exists with other fields; nothing of the call was done",
        request.session_id
    ))
}
