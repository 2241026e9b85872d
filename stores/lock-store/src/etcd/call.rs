//! One call of the cluster within its deadline.
//!
//! A call is put to one member; where no answer comes within the patience, or the member does not serve, it is put to another as
//! well, and the first answer counts. That is right for reads, and for a transaction because of what every transaction of
//! this store is: it compares what it changes, so of its copies one at most is ever made. Which one, if any, is for
//! whoever made it to find out ([`Answered::doubtful`]).
//!
//! On failure: a read that nobody answered is [`StoreError::Unavailable`], a transaction [`StoreError::Unknown`], unless it
//! certainly reached nobody.

use super::error::{CallError, Fate, NO_SPACE, fate, said, unavailable};
use super::members::{Clients, Failed, Members};
use super::options::EtcdAccess;
use etcd_client::{Error, GetOptions, GetResponse, Txn, TxnResponse, WatchOptions, WatchStream};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use host_kit::Random;
use lock_api::StoreError;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// An answer larger than this is not taken.
pub(super) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Less is not waited for a member, however little time there is.
const PATIENCE_MIN: Duration = Duration::from_millis(50);
/// The patience grows with each member asked, up to this.
const PATIENCE_MAX: Duration = Duration::from_secs(2);
/// How often a call is put to a member because that one works again, before its patience ends.
const WAKES_MAX: u32 = 2;
/// The longest pause before the next member is asked where one does not serve.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether a call may have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    /// It may be done twice, and a member may answer it by itself: an answer proves nothing of the cluster.
    Repeats,
    /// A transaction. It compares what it changes.
    Writes,
}

/// An answer that came.
pub(super) struct Answered<T> {
    pub(super) answer: T,
    /// The same transaction was put to the cluster before as well, and what became of that is not known: it may have been
    /// made, or may yet be.
    pub(super) doubtful: bool,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    Alive,
    Gone,
}

pub(super) struct Etcd {
    members: Arc<Members>,
    patience: Duration,
    random: Random,
    full: Mutex<Full>,
}

/// Whether the cluster refused the last write for want of space (case L36).
#[derive(Default)]
struct Full {
    said: Option<String>,
    /// When a trial write was made.
    looked: Option<Instant>,
}

/// How often a trial write is made while the cluster is full.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Etcd {
    /// Connects at the first call. `readable` is a key that this side may read.
    pub(super) fn new(access: &EtcdAccess, readable: Vec<u8>, random: Random) -> Result<Self, StoreError> {
        Ok(Self {
            members: Members::new(access, readable, random.clone())?,
            patience: access.patience,
            random,
            full: Mutex::default(),
        })
    }

    fn full(&self) -> MutexGuard<'_, Full> {
        // Each change leaves it whole.
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write would work, as far as is known: after one that the cluster refused for want of space, until a trial
    /// write works. The trial is a short lease, which a full cluster refuses as it does a key; at most one a second, and none
    /// while nothing was refused.
    pub(super) async fn writable(&self, deadline: Instant) -> Result<(), StoreError> {
        {
            let (mut full, now) = (self.full(), Instant::now());
            let Some(said) = &full.said else { return Ok(()) };
            if full
                .looked
                .is_some_and(|looked| now.duration_since(looked) < LOOK_EVERY)
            {
                return Err(unavailable(said.clone()));
            }
            full.looked = Some(now);
        }
        let (lease, _) = self.grant_lease(2, deadline).await?;
        *self.full() = Full::default();
        self.revoke_lease(lease, deadline).await;
        Ok(())
    }

    /// A pause between attempts.
    pub(super) fn pause(&self, longest: Duration) -> Duration {
        self.random.up_to(longest)
    }

    async fn attempt<T, F>(&self, member: usize, send: &impl Fn(Clients) -> F) -> (usize, Result<T, Failed>)
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let clients = match self.members.clients(member).await {
            Ok(clients) => clients,
            Err(failed) => return (member, Err(failed)),
        };
        let answer = send(clients).await.map_err(|error| Failed {
            fate: fate(&error),
            said: said(&error),
        });
        (member, answer)
    }

    async fn call<T, F>(
        &self,
        effect: Effect,
        deadline: Instant,
        send: impl Fn(Clients) -> F,
    ) -> Result<Answered<T>, CallError>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let mut news = self.members.news();
        let mut recoveries = news.borrow_and_update().recoveries;
        let mut now = Instant::now();
        let quarter = deadline.saturating_duration_since(now) / 4;
        let mut patience = match self.members.count() {
            // There is nobody else.
            1 => PATIENCE_MAX,
            _ => self.patience.min(quarter).max(PATIENCE_MIN),
        };
        let mut asked = vec![0; self.members.count()];
        let (mut attempts, mut doubtful, mut wakes) = (FuturesUnordered::new(), false, 0);
        let mut last = "there was no time left".to_owned();
        while now < deadline {
            let member = self.members.next(&asked);
            asked[member] += 1;
            attempts.push(self.attempt(member, &send));
            let mut until = deadline.min(now + patience);
            // Nothing has been heard of this attempt.
            let mut silent = true;
            loop {
                let answered = tokio::select! {
                    biased;
                    Some(answered) = attempts.next(), if !attempts.is_empty() => answered,
                    Ok(()) = news.changed() => {
                        let now = news.borrow_and_update().recoveries;
                        if std::mem::replace(&mut recoveries, now) == now {
                            continue;
                        }
                        // Somebody works again, and is asked at once, whatever was lost before. Not without end: a
                        // cluster whose members are all slow recovers all the time.
                        if wakes == WAKES_MAX {
                            continue;
                        }
                        wakes += 1;
                        asked.fill(0);
                        silent = false;
                        break;
                    }
                    () = sleep_until(until) => break,
                };
                let (from, failed) = match answered {
                    (from, Ok(answer)) => {
                        if effect != Effect::Repeats {
                            self.members.works(from);
                        }
                        let doubtful = doubtful || !attempts.is_empty();
                        return Ok(Answered { answer, doubtful });
                    }
                    (from, Err(failed)) => (from, failed),
                };
                let others = effect == Effect::Writes && (doubtful || !attempts.is_empty());
                match failed.fate {
                    // It would be refused to every copy.
                    Fate::LeaseGone => return Err(CallError::LeaseGone),
                    Fate::Compacted => return Err(CallError::Compacted),
                    Fate::Corrupt => return Err(StoreError::Corrupt { detail: failed.said }.into()),
                    Fate::Refused if !others => {
                        if failed.said.contains(NO_SPACE) {
                            self.full().said = Some(failed.said.clone());
                        }
                        return Err(unavailable(failed.said).into());
                    }
                    Fate::Refused => {}
                    Fate::NotSent => self.members.is_in_trouble(from),
                    Fate::Unknown => {
                        doubtful |= effect == Effect::Writes;
                        self.members.is_in_trouble(from);
                    }
                }
                last = failed.said;
                if from == member || attempts.is_empty() {
                    silent = false;
                    until = until.min(Instant::now() + self.pause(PAUSE));
                }
            }
            now = Instant::now();
            if silent {
                self.members.is_in_trouble(member);
                "no member answered in time".clone_into(&mut last);
                patience = (patience * 2).min(PATIENCE_MAX);
            }
        }
        Err(if effect == Effect::Writes && (doubtful || !attempts.is_empty()) {
            StoreError::Unknown { detail: last }.into()
        } else {
            unavailable(last).into()
        })
    }

    /// Makes a transaction that reads alone.
    pub(super) async fn read(&self, txn: &Txn, deadline: Instant) -> Result<TxnResponse, CallError> {
        Ok(self.txn(txn, Effect::Reads, deadline).await?.answer)
    }

    /// Makes a transaction that compares what it changes.
    pub(super) async fn commit(&self, txn: &Txn, deadline: Instant) -> Result<Answered<TxnResponse>, CallError> {
        self.txn(txn, Effect::Writes, deadline).await
    }

    async fn txn(&self, txn: &Txn, effect: Effect, deadline: Instant) -> Result<Answered<TxnResponse>, CallError> {
        self.call(effect, deadline, |mut clients| {
            let txn = txn.clone();
            async move { clients.kv.txn(txn).await }
        })
        .await
    }

    pub(super) async fn get(
        &self,
        key: &[u8],
        options: &GetOptions,
        deadline: Instant,
    ) -> Result<GetResponse, CallError> {
        let answered = self.call(Effect::Reads, deadline, |mut clients| {
            let (key, options) = (key.to_vec(), options.clone());
            async move { clients.kv.get(key, Some(options)).await }
        });
        Ok(answered.await?.answer)
    }

    /// A new lease of `seconds` at least. Answers its id and what was granted, in seconds.
    pub(super) async fn grant_lease(&self, seconds: i64, deadline: Instant) -> Result<(i64, i64), CallError> {
        // A lease that nobody knows of hurts nobody: one whose answer was lost ends by itself. So this is asked again.
        let granted = self.call(Effect::Repeats, deadline, |mut clients| async move {
            clients.lease.grant(seconds, None).await
        });
        let granted = granted.await?.answer;
        Ok((granted.id(), granted.ttl()))
    }

    /// Keeps a lease alive: a message on a stream of the lease, answered by the leader without a write to its log.
    pub(super) async fn keep_alive(&self, id: i64, deadline: Instant) -> Result<Lease, StoreError> {
        let kept = self.call(Effect::Repeats, deadline, |mut clients| async move {
            clients.lease.keep_alive(id).await
        });
        match kept.await {
            Ok(_) => Ok(Lease::Alive),
            Err(CallError::LeaseGone) => Ok(Lease::Gone),
            // It may have been kept alive: harmless, and for the caller not known.
            Err(error) => Err(error.into()),
        }
    }

    /// What is left of a lease, in whole seconds; none when it is gone.
    pub(super) async fn left_of_lease(&self, id: i64, deadline: Instant) -> Result<Option<Duration>, StoreError> {
        let answered = self.call(Effect::Repeats, deadline, |mut clients| async move {
            clients.lease.time_to_live(id, None).await
        });
        match answered.await {
            Ok(answered) => Ok(u64::try_from(answered.answer.ttl()).ok().map(Duration::from_secs)),
            Err(CallError::LeaseGone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends a lease of which nothing is needed any more. One that cannot be ended ends by itself.
    pub(super) async fn revoke_lease(&self, id: i64, deadline: Instant) {
        let revoked = self.call(Effect::Repeats, deadline, |mut clients| async move {
            clients.lease.revoke(id).await
        });
        if let Err(error) = revoked.await
            && error != CallError::LeaseGone
        {
            tracing::debug!(event = "lease_not_revoked", error = %StoreError::from(error));
        }
    }

    /// Watches at the favourite. Answers the stream and the member that it is of.
    pub(super) async fn watch(
        &self,
        key: Vec<u8>,
        options: WatchOptions,
        deadline: Instant,
    ) -> Result<(WatchStream, usize), String> {
        let member = self.members.favourite();
        let send = |mut clients: Clients| {
            let (key, options) = (key.clone(), options.clone());
            async move { clients.watch.watch(key, Some(options)).await }
        };
        match timeout_at(deadline, self.attempt(member, &send)).await {
            Ok((_, Ok(stream))) => Ok((stream, member)),
            Ok((_, Err(failed))) => {
                self.members.is_in_trouble(member);
                Err(failed.said)
            }
            Err(_) => {
                self.members.is_in_trouble(member);
                Err("a watch was not begun in time".to_owned())
            }
        }
    }

    /// Ends when another member is asked first than this one.
    pub(super) async fn no_favourite_any_more(&self, member: usize) {
        // The sender is a part of `self`.
        drop(self.members.news().wait_for(|news| news.favourite != member).await);
    }
}
