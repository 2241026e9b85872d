//! What every verb goes through: its turn, a snapshot, a decision, one transaction.

use super::call::Etcd;
use super::error::{CallError, unavailable};
use super::layout::{Layout, Place};
use super::observed::{GrantSeen, Observed, SessionSeen};
use super::options::EtcdLockStoreOptions;
use super::plan::{Finished, Mark, Plan};
use super::records::{EventRecord, HeadRecord, HolderRecord, YieldRecord, parse, sane, token};
use super::snapshot::{At, KeyRows, SessionRows, Snapshot, Wants};
use etcd_client::{KeyValue, TxnOpResponse, TxnResponse};
use host_kit::{Clock, Ids};
use lock_api::{Grant, LockDelay, LockKey, Metadata, Owner, RequestId, SessionId, StoreError, Ttl, UnixMillis};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{MutexGuard, Notify, watch};
use tokio::time::{Instant, timeout_at};

/// What the verbs and the watch share.
pub(super) struct Shared {
    pub(super) etcd: Etcd,
    pub(super) layout: Layout,
    pub(super) clock: Clock,
    pub(super) ids: Ids,
    pub(super) options: EtcdLockStoreOptions,
    observed: Mutex<Observed>,
    /// The verbs of this process that record facts take turns, so that they do not lose the head to one another.
    turn: tokio::sync::Mutex<()>,
    /// The highest seq heard of.
    pub(super) heard: watch::Sender<u64>,
    /// The highest revision seen.
    revision: AtomicI64,
    /// The revision went back: everything is to be listed again.
    pub(super) rewound: Notify,
    /// The latest head that is known of, from this process's own transactions and from the watch. A transaction that
    /// compares one that has moved since is not made.
    head: Mutex<Option<At<HeadRecord>>>,
    /// The id of the history that this process works with.
    known_lineage: Mutex<Option<String>>,
    /// No tombstone is older than this, by the wall clock; none where that is not known.
    oldest_tombstone: Mutex<Option<i64>>,
}

/// A grant whose own lease runs, or that the key is free.
pub(super) enum Holding {
    /// Nobody; `ended` is who held it last and was not recorded as ended yet. What is left of the delay of one that was.
    Free {
        ended: Option<(HolderRecord, u64)>,
        closed_for: Option<Duration>,
    },
    Held(Live),
}

/// A live grant.
pub(super) struct Live {
    pub(super) holder: HolderRecord,
    pub(super) token: u64,
    pub(super) seen: GrantSeen,
    pub(super) yield_asked: Option<YieldRecord>,
}

impl Shared {
    pub(super) fn new(etcd: Etcd, layout: Layout, options: EtcdLockStoreOptions, clock: Clock, ids: Ids) -> Self {
        Self {
            etcd,
            layout,
            clock,
            ids,
            options,
            observed: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            heard: watch::Sender::new(0),
            revision: AtomicI64::new(0),
            rewound: Notify::new(),
            head: Mutex::default(),
            known_lineage: Mutex::default(),
            oldest_tombstone: Mutex::default(),
        }
    }

    pub(super) fn observed<T>(&self, f: impl FnOnce(&mut Observed) -> T) -> T {
        // Each change leaves it whole.
        f(&mut self.observed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn known_lineage(&self) -> Option<String> {
        self.known_lineage
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set_known_lineage(&self, id: String) {
        *self.known_lineage.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    }

    pub(super) fn oldest_tombstone(&self) -> Option<i64> {
        *self.oldest_tombstone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_oldest_tombstone(&self, at: Option<i64>) {
        *self.oldest_tombstone.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// How many items of so many operations each fit into one transaction.
    pub(super) fn fit(&self, operations: usize) -> usize {
        // The head, the lineage, a session and what is left over.
        (self.options.operations_max.saturating_sub(8) / operations).max(1)
    }

    pub(super) async fn turn(&self, deadline: Instant) -> Result<MutexGuard<'_, ()>, StoreError> {
        timeout_at(deadline, self.turn.lock())
            .await
            .map_err(|_| unavailable("other calls took all the time"))
    }

    /// Takes the turn for whoever found that it has something to record. Where others came first their facts have moved the
    /// head: then it answers the snapshot under the head as it is now, to decide again on that. Refusals need no turn.
    pub(super) async fn take_turn<'a>(
        &'a self,
        turn: &mut Option<MutexGuard<'a, ()>>,
        snapshot: &Snapshot,
        deadline: Instant,
    ) -> Result<Option<Snapshot>, StoreError> {
        if turn.is_some() {
            return Ok(None);
        }
        if let Ok(free) = self.turn.try_lock() {
            *turn = Some(free);
            return Ok(None);
        }
        *turn = Some(self.turn(deadline).await?);
        Ok(Some(snapshot.clone().under(self.known_head())))
    }

    fn known_head(&self) -> Option<At<HeadRecord>> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The head was this at that revision.
    pub(super) fn see_head(&self, head: At<HeadRecord>) {
        let mut known = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|known| known.rev < head.rev) {
            *known = Some(head);
        }
    }

    fn forget_head(&self) {
        *self.head.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) async fn read(&self, wants: Wants<'_>, deadline: Instant) -> Result<Snapshot, CallError> {
        let before = self.revision.load(Ordering::SeqCst);
        let seen_before = self.observed(|observed| observed.last_token);
        let answer = self.etcd.read(&wants.txn(), deadline).await?;
        let mut snapshot = Snapshot::of(&self.layout, &answer)?;
        snapshot.seen_before = seen_before;
        if snapshot.revision < before {
            // Reads see everything that was acknowledged: these data are older than what was read before.
            tracing::error!(event = "store_rewound", before, now = snapshot.revision);
            self.revision.store(snapshot.revision, Ordering::SeqCst);
            self.forget_head();
            self.observed(Observed::clear);
            self.rewound.notify_one();
        } else {
            self.revision.fetch_max(snapshot.revision, Ordering::SeqCst);
        }
        Ok(snapshot)
    }

    /// Makes a plan's transaction. Answers its revision, none when what the plan rests on has changed meanwhile: then it was
    /// not made and will never be.
    pub(super) async fn commit(&self, plan: Plan<'_>, deadline: Instant) -> Result<Option<i64>, CallError> {
        let Finished {
            txn,
            last_seq,
            mark,
            head,
        } = plan.finish(self.ids.ulid())?;
        let moves_head = mark.is_some();
        let answered = self.etcd.commit(&txn, deadline).await?;
        let revision = if answered.answer.succeeded() {
            Some(revision_of(&answered.answer)?)
        } else {
            match mark {
                // A copy may have been made that nobody answered.
                Some(mark) if answered.doubtful => self.resolve(&mark, answered.answer, deadline).await?,
                // Not made; or by a copy, and then the caller finds what it wanted when it reads again.
                _ => None,
            }
        };
        match revision {
            Some(revision) => {
                self.revision.fetch_max(revision, Ordering::SeqCst);
                if moves_head {
                    self.see_head(At {
                        rev: revision,
                        value: head,
                    });
                }
                self.announce(last_seq);
            }
            // It may be what was wrong.
            None => self.forget_head(),
        }
        Ok(revision)
    }

    /// Finds out what became of a transaction whose copies were not all answered, from the answer to one that was not
    /// made. Its facts have numbers that only one transaction can have had: where its first one is there, it was made. Else
    /// it is kept from being made late: nobody may be told that nothing was done while it still can be.
    async fn resolve(&self, mark: &Mark, mut answer: TxnResponse, deadline: Instant) -> Result<Option<i64>, CallError> {
        loop {
            let (mut head_rev, mut made) = (0, None);
            for row in rows(&answer) {
                match self.layout.place(row.key()) {
                    Place::Head => head_rev = row.mod_revision(),
                    Place::Event(seq) if seq == mark.seq => {
                        let fact: EventRecord = parse(row.key(), row.value())?;
                        made = (fact.by.as_ref() == Some(&mark.by)).then(|| row.mod_revision());
                    }
                    _ => {}
                }
            }
            tracing::debug!(event = "etcd_doubt_resolved", made, seq = mark.seq);
            if made.is_some() || head_rev != mark.head_rev {
                return Ok(made);
            }
            let prevented = self.etcd.commit(&mark.prevented(&self.layout)?, deadline).await;
            // It was asked for once already: also where this was certainly not done, the first may be.
            let prevented = prevented.map_err(|error| after_a_part(error.into(), true))?;
            if prevented.answer.succeeded() {
                return Ok(None);
            }
            answer = prevented.answer;
        }
    }

    pub(super) fn announce(&self, seq: u64) {
        self.heard.send_if_modified(|heard| {
            let higher = seq > *heard;
            *heard = (*heard).max(seq);
            higher
        });
    }

    /// A session's rows are looked at: from when on it is as it is. None when it is not there.
    pub(super) fn see_session(&self, id: &str, rows: &SessionRows, now: Duration) -> Option<SessionSeen> {
        let record = rows.record.as_ref()?;
        let mut seen = SessionSeen::new(&record.value, (record.rev, rows.stamp), rows.pulse != 0, now);
        seen.heartbeat_at = rows.stamped_at;
        Some(self.observed(|observed| observed.see_session(id, seen, now)))
    }

    /// Whether a session may still do something.
    pub(super) fn lives(&self, id: &str, rows: &SessionRows, now: Duration) -> bool {
        rows.pulse != 0 && self.see_session(id, rows, now).is_some_and(|seen| seen.lives(now))
    }

    /// Judges a key's rows: a grant has ended when etcd let it go with its session's lease, or when it has been seen
    /// unchanged for its whole TTL. Its session's end is not judged here.
    pub(super) fn holding(&self, key: &str, rows: &KeyRows, now: Duration) -> Holding {
        let Some(record) = &rows.record else {
            return Holding::Free {
                ended: None,
                closed_for: None,
            };
        };
        let Some(holder) = record.value.held.clone() else {
            let closed = record.value.closed_ms.map(Duration::from_millis);
            let until = self.observed(|observed| {
                observed.forget_grant(key, record.rev);
                closed.map(|delay| observed.see_closed(key, record.rev, delay, now))
            });
            return Holding::Free {
                ended: None,
                closed_for: until
                    .map(|until| until.saturating_sub(now))
                    .filter(|left| !left.is_zero()),
            };
        };
        let token = record.value.token(record.rev);
        let ttl = Duration::from_millis(rows.renewed_ttl_ms.unwrap_or(holder.ttl_ms));
        // Revisions of a renewal that is not this grant's own.
        let renewed = if rows.renewed > record.rev { rows.renewed } else { 0 };
        let ttl = if renewed == 0 {
            Duration::from_millis(holder.ttl_ms)
        } else {
            ttl
        };
        let seen = self.observed(|observed| observed.see_grant(key, &holder.session, (record.rev, renewed), ttl, now));
        if rows.grant == 0 || now >= seen.deadline {
            Holding::Free {
                ended: Some((holder, token)),
                closed_for: None,
            }
        } else {
            Holding::Held(Live {
                holder,
                token,
                seen,
                yield_asked: rows.yield_asked.clone(),
            })
        }
    }

    pub(super) fn show(&self, key: LockKey, live: &Live, now: Duration) -> Result<Grant, StoreError> {
        let holder = &live.holder;
        Ok(Grant {
            key,
            token: token(live.token)?,
            session_id: sane(SessionId::new(holder.session.clone()))?,
            owner: sane(Owner::new(holder.owner.clone()))?,
            ttl: ttl(live.seen.ttl)?,
            expires_in: self.observed(|observed| observed.remaining(&live.seen, now)),
            granted_at: UnixMillis(holder.granted_at),
            request_id: Some(sane(RequestId::new(holder.request_id.clone()))?),
            metadata: holder
                .metadata
                .clone()
                .map(Metadata::new)
                .transpose()
                .map_err(|e| super::records::corrupt(&e))?,
            lock_delay: sane(LockDelay::new(Duration::from_millis(holder.lock_delay_ms)))?,
            yield_asked: YieldRecord::of(live.yield_asked.as_ref(), live.token)?,
        })
    }
}

/// The rows that an answer brought.
fn rows(answer: &TxnResponse) -> impl Iterator<Item = KeyValue> {
    let got = answer.op_responses().into_iter().filter_map(|response| match response {
        TxnOpResponse::Get(got) => Some(got.kvs().to_vec()),
        _ => None,
    });
    got.flatten()
}

fn revision_of(answer: &TxnResponse) -> Result<i64, StoreError> {
    let header = answer.header().ok_or_else(|| StoreError::Unknown {
        detail: "an answer without a header".to_owned(),
    })?;
    Ok(header.revision())
}

pub(super) fn ttl(ttl: Duration) -> Result<Ttl, StoreError> {
    sane(Ttl::new(ttl))
}

pub(super) fn ms(ttl: Ttl) -> u64 {
    ttl.as_millis()
}

/// When a call that has `within` has to have ended.
pub(super) fn deadline_in(within: Duration) -> Result<Instant, StoreError> {
    if within.is_zero() {
        return Err(unavailable("there was no time left"));
    }
    Ok(Instant::now() + within.min(Duration::from_secs(60 * 60)))
}

/// Neighbours of a batch that fit into one transaction: at most `max`, each name at most once.
pub(super) fn runs<T>(batch: &[T], max: usize, name: impl Fn(&T) -> &str) -> Vec<&[T]> {
    let mut runs = Vec::new();
    let (mut from, mut names) = (0, std::collections::HashSet::new());
    for (at, item) in batch.iter().enumerate() {
        if at - from == max || names.contains(name(item)) {
            runs.push(&batch[from..at]);
            from = at;
            names.clear();
        }
        names.insert(name(item).to_owned());
    }
    if from < batch.len() {
        runs.push(&batch[from..]);
    }
    runs
}

/// The error of a call of which a part was done before.
pub(super) fn after_a_part(error: StoreError, done: bool) -> StoreError {
    match error {
        StoreError::Unavailable { detail } if done => StoreError::Unknown {
            detail: format!("a part of the batch was done: {detail}"),
        },
        other => other,
    }
}

#[cfg(test)]
#[path = "resolving.rs"]
mod resolving;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_each_name_once_and_keeps_the_order() {
        let batch = ["a", "b", "a", "c", "d", "e", "e"];
        let runs = runs(&batch, 3, |name| name);
        assert_eq!(runs, [&["a", "b"][..], &["a", "c", "d"], &["e"], &["e"]]);
        assert!(super::runs(&[] as &[&str], 3, |name| name).is_empty());
    }
}
