//! Grants: acquire, renew, release, revoke.

use super::error::CallError;
use super::lineage::{Trust, Witnessed, too_low, weigh};
use super::plan::{End, Fact, LEASE_CLOCK, LastToken, Plan};
use super::records::{HolderRecord, minted, text, token};
use super::shared::{Holding, Live, Shared, after_a_part, ms, runs};
use super::snapshot::{Snapshot, Wants};
use lock_api::{
    AcquireOutcome, AcquireRequest, EventKind, HeldByOther, LockKey, ReleaseOutcome, ReleaseRequest, RenewOutcome,
    RenewRequest, RevokeOutcome, RevokeRequest, SessionId, StoreError,
};
use std::time::Duration;
use tokio::time::Instant;

/// What one item of a batch comes to, before its transaction is made.
enum Decided {
    Answer(AcquireOutcome),
    Grant(HolderRecord),
    /// A grant is over, which is recorded, and its key closed: its last token, and the delay in milliseconds.
    Close(u64, u64),
}

impl Shared {
    pub(super) async fn acquire(
        &self,
        batch: &[AcquireRequest],
        deadline: Instant,
    ) -> Result<Vec<AcquireOutcome>, StoreError> {
        let mut answers = Vec::with_capacity(batch.len());
        // Each needs seven operations to be read and, but for what is rare, as many to be granted.
        for mut run in runs(batch, self.fit(7), |request| request.key.as_str()) {
            // As many of them as fit into one transaction.
            while !run.is_empty() {
                let done = !answers.is_empty();
                let some = self.acquire_run(run, deadline).await;
                let some = some.map_err(|error| after_a_part(error.into(), done))?;
                run = &run[some.len()..];
                answers.extend(some);
            }
        }
        Ok(answers)
    }

    async fn acquire_run(&self, run: &[AcquireRequest], deadline: Instant) -> Result<Vec<AcquireOutcome>, CallError> {
        let (mut turn, mut again) = (None, None);
        loop {
            let snapshot = match again.take() {
                Some(snapshot) => snapshot,
                None => {
                    let keys = run.iter().map(|request| (&request.key, &request.session_id));
                    self.read(self.wants(keys), deadline).await?
                }
            };
            let (now, wall) = (self.clock.mono(), self.clock.wall_ms());
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            let decided = match self.decide_acquires(run, &snapshot, &mut plan, now, wall)? {
                Ok(decided) => decided,
                Err(doubt) => {
                    self.record_doubt(&snapshot, &doubt, deadline).await?;
                    continue;
                }
            };
            let offset = snapshot.offset();
            if !plan.is_empty() {
                again = self.take_turn(&mut turn, &snapshot, deadline).await?;
                if again.is_some() {
                    continue;
                }
            }
            let revision = if plan.is_empty() {
                0
            } else {
                match self.commit(plan, deadline).await {
                    Ok(Some(revision)) => revision,
                    // A lease that ended meanwhile is seen by the next reading.
                    Ok(None) | Err(CallError::LeaseGone) => continue,
                    Err(error) => return Err(error),
                }
            };
            return self.granted(run, decided, (revision, offset), deadline).await;
        }
    }

    /// What is read of keys and of the sessions that ask for them.
    fn wants<'a>(&self, items: impl Iterator<Item = (&'a LockKey, &'a SessionId)>) -> Wants<'_> {
        let (mut wants, mut sessions) = (Wants::new(&self.layout), std::collections::BTreeSet::new());
        for (key, session) in items {
            wants.key(key.as_str());
            if sessions.insert(session.as_str()) {
                wants.session(session.as_str());
            }
        }
        wants
    }

    /// Decides each item on its own. An error is a doubt that has to be recorded first.
    fn decide_acquires(
        &self,
        run: &[AcquireRequest],
        snapshot: &Snapshot,
        plan: &mut Plan<'_>,
        now: Duration,
        wall: i64,
    ) -> Result<Result<Vec<Decided>, super::lineage::NewDoubt>, StoreError> {
        let mut decided = Vec::with_capacity(run.len());
        for request in run {
            if !plan.has_room(self.options.operations_max) {
                break;
            }
            let (key, session) = (request.key.as_str(), request.session_id.as_str());
            let rows = snapshot.session(session);
            let Some(record) = rows.record.as_ref().filter(|_| self.lives(session, &rows, now)) else {
                decided.push(Decided::Answer(AcquireOutcome::SessionNotFound));
                continue;
            };
            let owner = &record.value.owner;
            match weigh(snapshot, request.witness, session, owner) {
                Witnessed::Plausible => {}
                Witnessed::Doubt(doubt) => return Ok(Err(doubt)),
                Witnessed::Refused { highest_believed } => {
                    refuse_witness(plan, session, owner, request.witness.map(lock_api::FencingToken::get));
                    decided.push(Decided::Answer(AcquireOutcome::WitnessRefused { highest_believed }));
                    continue;
                }
            }
            // In doubt nothing is granted, not even an old grant again: its key may have been granted to another in the
            // part of the history that is gone.
            match self.trust(snapshot) {
                Trust::Full => {}
                Trust::New(doubt) => return Ok(Err(doubt)),
                Trust::Doubt(detail) => {
                    decided.push(Decided::Answer(AcquireOutcome::TokenRegression { detail }));
                    continue;
                }
            }
            let rows_of_key = snapshot.key(key);
            let free = match self.holding(key, &rows_of_key, now) {
                Holding::Held(live) => {
                    decided.push(Decided::Answer(self.refused(request, &live, now)?));
                    continue;
                }
                Holding::Free { ended, closed_for } => (ended, closed_for),
            };
            let last = rows_of_key.record.as_ref().map(|at| at.value.token(at.rev));
            let (ended, closed_for) = free;
            if let (Some(ends_in), Some(last)) = (closed_for, last) {
                decided.push(Decided::Answer(AcquireOutcome::Delayed {
                    last_token: token(last)?,
                    ends_in,
                }));
                continue;
            }
            if let Some((before, last)) = ended.as_ref().filter(|(before, _)| before.lock_delay_ms > 0) {
                plan.rests_on(key, &rows_of_key);
                plan.free(key, &rows_of_key, before, (LastToken::Own(*last), End::Unclean))?;
                expired(plan, key, before, *last);
                decided.push(Decided::Close(*last, before.lock_delay_ms));
                continue;
            }
            if let Some(doubt) = too_low(snapshot, key, last) {
                return Ok(Err(doubt));
            }
            if let Some((before, last)) = ended {
                expired(plan, key, &before, last);
            }
            let holder = HolderRecord {
                session: session.to_owned(),
                owner: owner.clone(),
                lease: record.value.lease,
                ttl_ms: ms(request.ttl),
                granted_at: wall,
                request_id: request.request_id.as_str().to_owned(),
                metadata: request.metadata.as_ref().map(|json| json.as_str().to_owned()),
                lock_delay_ms: request.lock_delay.as_millis(),
            };
            plan.unchanged(self.layout.pulse(session), rows.pulse);
            plan.unchanged(self.layout.session(session), record.rev);
            plan.grant(key, &rows_of_key, holder.clone())?;
            decided.push(Decided::Grant(holder));
        }
        Ok(Ok(decided))
    }

    /// Somebody holds it: another, or this very request.
    fn refused(&self, request: &AcquireRequest, live: &Live, now: Duration) -> Result<AcquireOutcome, StoreError> {
        let is_self = live.holder.session == request.session_id.as_str();
        let grant = self.show(request.key.clone(), live, now)?;
        Ok(if is_self && live.holder.request_id == request.request_id.as_str() {
            AcquireOutcome::Granted { grant, replayed: true }
        } else {
            AcquireOutcome::HeldByOther(HeldByOther { holder: grant, is_self })
        })
    }

    async fn granted(
        &self,
        run: &[AcquireRequest],
        decided: Vec<Decided>,
        (revision, offset): (i64, u64),
        deadline: Instant,
    ) -> Result<Vec<AcquireOutcome>, CallError> {
        let value = minted(revision, offset);
        let now = self.clock.mono();
        let mut answers = Vec::with_capacity(run.len());
        let mut holders = std::collections::BTreeMap::new();
        for (request, decided) in run.iter().zip(decided) {
            let holder = match decided {
                Decided::Answer(answer) => {
                    answers.push(answer);
                    continue;
                }
                Decided::Grant(holder) => holder,
                Decided::Close(last, delay) => {
                    self.observed(|observed| observed.lose_grant(request.key.as_str(), delay, revision, now));
                    answers.push(AcquireOutcome::Delayed {
                        last_token: token(last)?,
                        ends_in: Duration::from_millis(delay),
                    });
                    continue;
                }
            };
            let seen = self.observed(|observed| {
                observed.last_token = observed.last_token.max(value);
                observed.forget_closed(request.key.as_str(), revision);
                observed.see_grant(
                    request.key.as_str(),
                    &holder.session,
                    (revision, 0),
                    Duration::from_millis(holder.ttl_ms),
                    now,
                )
            });
            holders.insert(holder.session.clone(), holder.lease);
            let live = Live {
                holder,
                token: value,
                seen,
                yield_asked: None,
            };
            answers.push(AcquireOutcome::Granted {
                grant: self.show(request.key.clone(), &live, now)?,
                replayed: false,
            });
        }
        // A session whose heartbeats go elsewhere: how long it lives is asked, so that the holder is told no more.
        if self.make_certain(holders, deadline).await {
            for answer in &mut answers {
                if let AcquireOutcome::Granted { grant, replayed: false } = answer {
                    let now = self.clock.mono();
                    let left = self.observed(|o| o.grant(grant.key.as_str()).map(|seen| o.remaining(seen, now)));
                    grant.expires_in = left.map_or(grant.expires_in, |left| left.min(grant.expires_in));
                }
            }
        }
        Ok(answers)
    }

    pub(super) async fn renew(
        &self,
        batch: &[RenewRequest],
        deadline: Instant,
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        let mut answers = Vec::with_capacity(batch.len());
        for run in runs(batch, self.fit(7), |request| request.key.as_str()) {
            let done = !answers.is_empty();
            let some = self.renew_run(run, deadline).await;
            answers.extend(some.map_err(|error| after_a_part(error.into(), done))?);
        }
        Ok(answers)
    }

    async fn renew_run(&self, run: &[RenewRequest], deadline: Instant) -> Result<Vec<RenewOutcome>, CallError> {
        loop {
            let keys = run.iter().map(|request| (&request.key, &request.session_id));
            let snapshot = self.read(self.wants(keys), deadline).await?;
            let (now, wall) = (self.clock.mono(), self.clock.wall_ms());
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            let mut decided = Vec::with_capacity(run.len());
            for request in run {
                let (key, session) = (request.key.as_str(), request.session_id.as_str());
                let rows = snapshot.key(key);
                if rows.record.is_none() {
                    decided.push(Err(RenewOutcome::NotFound));
                    continue;
                }
                let session_rows = snapshot.session(session);
                let mine = match self.holding(key, &rows, now) {
                    Holding::Held(live)
                        if live.holder.session == session
                            && live.token == request.token.get()
                            && self.lives(session, &session_rows, now) =>
                    {
                        live
                    }
                    _ => {
                        decided.push(Err(RenewOutcome::NotHolder));
                        continue;
                    }
                };
                let ttl = request.ttl.map_or(mine.seen.ttl, lock_api::Ttl::get);
                plan.unchanged(self.layout.grant(key), rows.grant);
                plan.unchanged(self.layout.renewed(key), rows.renewed);
                plan.unchanged(self.layout.pulse(session), session_rows.pulse);
                let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                plan.put_leased(self.layout.renewed(key), text(&ttl_ms)?, mine.holder.lease);
                decided.push(Ok((mine, ttl)));
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
            return self.renewed(run, decided, revision, deadline).await;
        }
    }

    async fn renewed(
        &self,
        run: &[RenewRequest],
        decided: Vec<Result<(Live, Duration), RenewOutcome>>,
        revision: i64,
        deadline: Instant,
    ) -> Result<Vec<RenewOutcome>, CallError> {
        let holders = decided
            .iter()
            .flatten()
            .map(|(live, _)| (live.holder.session.clone(), live.holder.lease));
        self.make_certain(holders.collect(), deadline).await;
        let now = self.clock.mono();
        let mut answers = Vec::with_capacity(run.len());
        for (request, decided) in run.iter().zip(decided) {
            answers.push(match decided {
                Err(refusal) => refusal,
                Ok((mut live, ttl)) => {
                    let key = request.key.as_str();
                    self.observed(|observed| observed.see_renewal(key, revision, ttl, now));
                    (live.seen.ttl, live.seen.deadline) = (ttl, now.saturating_add(ttl));
                    RenewOutcome::Renewed(self.show(request.key.clone(), &live, now)?)
                }
            });
        }
        Ok(answers)
    }

    pub(super) async fn release(
        &self,
        batch: &[ReleaseRequest],
        deadline: Instant,
    ) -> Result<Vec<ReleaseOutcome>, StoreError> {
        let mut answers = Vec::with_capacity(batch.len());
        for mut run in runs(batch, self.fit(5), |request| request.key.as_str()) {
            // As many of them as fit into one transaction.
            while !run.is_empty() {
                let done = !answers.is_empty();
                let some = self.release_run(run, deadline).await;
                let some = some.map_err(|error| after_a_part(error.into(), done))?;
                run = &run[some.len()..];
                answers.extend(some);
            }
        }
        Ok(answers)
    }

    async fn release_run(&self, run: &[ReleaseRequest], deadline: Instant) -> Result<Vec<ReleaseOutcome>, CallError> {
        let (mut turn, mut again) = (None, None);
        loop {
            let snapshot = match again.take() {
                Some(snapshot) => snapshot,
                None => {
                    let mut wants = Wants::new(&self.layout);
                    run.iter().for_each(|request| wants.key(request.key.as_str()));
                    self.read(wants, deadline).await?
                }
            };
            let (now, wall) = (self.clock.mono(), self.clock.wall_ms());
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            let (mut answers, mut freed) = (Vec::with_capacity(run.len()), Vec::new());
            for request in run {
                if !plan.has_room(self.options.operations_max) {
                    break;
                }
                let key = request.key.as_str();
                let rows = snapshot.key(key);
                let Some(record) = &rows.record else {
                    answers.push(ReleaseOutcome::NotFound);
                    continue;
                };
                let last = record.value.token(record.rev);
                answers.push(match &record.value.held {
                    _ if last != request.token.get() => ReleaseOutcome::NotHolder,
                    None => ReleaseOutcome::AlreadyFree,
                    Some(holder) if holder.session != request.session_id.as_str() => ReleaseOutcome::NotHolder,
                    Some(holder) => {
                        let ended = match self.holding(key, &rows, now) {
                            Holding::Held(live) => self.observed(|o| o.remaining(&live.seen, now)).is_zero(),
                            Holding::Free { .. } => true,
                        };
                        plan.rests_on(key, &rows);
                        // One that comes too late has lost the key uncleanly.
                        let (kind, actor, end, delay) = if ended {
                            (EventKind::Expired, LEASE_CLOCK, End::Unclean, holder.lock_delay_ms)
                        } else {
                            (EventKind::Released, holder.owner.as_str(), End::Clean, 0)
                        };
                        plan.free(key, &rows, holder, (LastToken::Own(last), end))?;
                        plan.fact(
                            kind,
                            &Fact {
                                key: Some(key),
                                session: Some(&holder.session),
                                token: Some(last),
                                actor: Some(actor),
                                ..Fact::default()
                            },
                        );
                        freed.push((key, delay));
                        if ended {
                            ReleaseOutcome::AlreadyFree
                        } else {
                            ReleaseOutcome::Released
                        }
                    }
                });
            }
            if plan.is_empty() {
                return Ok(answers);
            }
            again = self.take_turn(&mut turn, &snapshot, deadline).await?;
            if again.is_some() {
                continue;
            }
            if let Some(revision) = self.commit(plan, deadline).await? {
                self.observed(|observed| {
                    for (key, delay) in freed {
                        observed.lose_grant(key, delay, revision, now);
                    }
                });
                return Ok(answers);
            }
        }
    }

    pub(super) async fn revoke(&self, request: &RevokeRequest, deadline: Instant) -> Result<RevokeOutcome, CallError> {
        let _turn = self.turn(deadline).await?;
        let key = request.key.as_str();
        loop {
            let mut wants = Wants::new(&self.layout);
            wants.key(key);
            let snapshot = self.read(wants, deadline).await?;
            let (now, wall) = (self.clock.mono(), self.clock.wall_ms());
            let rows = snapshot.key(key);
            if rows.record.is_none() {
                return Ok(RevokeOutcome::NotFound);
            }
            let Holding::Held(live) = self.holding(key, &rows, now) else {
                return Ok(RevokeOutcome::NotHeld);
            };
            let revoked = self.show(request.key.clone(), &live, now)?;
            if revoked.token != request.revoke_token {
                let holder = Box::new(revoked);
                return Ok(RevokeOutcome::NotHolder { holder });
            }
            let doubt = match self.trust(&snapshot) {
                Trust::Doubt(detail) => return Ok(RevokeOutcome::TokenRegression { detail }),
                Trust::New(doubt) => Some(doubt),
                Trust::Full => too_low(&snapshot, key, Some(live.token)),
            };
            if let Some(doubt) = doubt {
                self.record_doubt(&snapshot, &doubt, deadline).await?;
                continue;
            }
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            plan.unchanged(self.layout.grant(key), rows.grant);
            plan.free(key, &rows, &live.holder, (LastToken::Minted, End::Unclean))?;
            // The revoked token, so that whoever holds it recognises itself; the minted one stands in the key's record.
            plan.fact(
                EventKind::Revoked,
                &Fact {
                    key: Some(key),
                    session: Some(&live.holder.session),
                    token: Some(live.token),
                    actor: Some(request.operator.as_str()),
                    reason: Some(&request.reason),
                    ..Fact::default()
                },
            );
            if let Some(revision) = self.commit(plan, deadline).await? {
                let value = minted(revision, snapshot.offset());
                self.observed(|observed| {
                    observed.lose_grant(key, live.holder.lock_delay_ms, revision, now);
                    observed.last_token = observed.last_token.max(value);
                });
                return Ok(RevokeOutcome::Revoked {
                    revoked,
                    token: token(value)?,
                });
            }
        }
    }
}

/// Records that a grant is over.
fn expired(plan: &mut Plan<'_>, key: &str, before: &HolderRecord, last: u64) {
    plan.fact(
        EventKind::Expired,
        &Fact {
            key: Some(key),
            session: Some(&before.session),
            token: Some(last),
            actor: Some(LEASE_CLOCK),
            ..Fact::default()
        },
    );
}

/// Records a witness that is not believed.
pub(super) fn refuse_witness(plan: &mut Plan<'_>, session: &str, owner: &str, witness: Option<u64>) {
    plan.fact(
        EventKind::WitnessRefused,
        &Fact {
            session: Some(session),
            token: witness,
            actor: Some(owner),
            ..Fact::default()
        },
    );
}
