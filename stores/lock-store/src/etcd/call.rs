//! One call of the cluster within its deadline.
//!
//! On failure: a connection that was not made is tried again on the next endpoint until the deadline; a read whose answer
//! did not come is asked again; a write whose answer did not come is [`StoreError::Unknown`] and not made again.

use super::error::{CallError, Fate, fate, unavailable};
use super::options::EtcdAccess;
use etcd_client::{
    Client, Error, GetOptions, GetResponse, KvClient, LeaseClient, Txn, TxnResponse, WatchClient, WatchOptions,
    WatchStream,
};
use host_kit::Random;
use lock_api::StoreError;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// An answer larger than this is not taken.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Whether a call may have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    Alive,
    Gone,
}

pub(super) struct Etcd {
    kv: KvClient,
    lease: LeaseClient,
    watch: WatchClient,
    read_within: Duration,
    random: Random,
}

impl Etcd {
    pub(super) async fn connect(access: &EtcdAccess, random: Random, deadline: Instant) -> Result<Self, StoreError> {
        let options = access.connect_options()?;
        let urls = access.urls();
        // Only a user is asked for over the wire here; everything else connects at the first call.
        let client = loop {
            match timeout_at(deadline, Client::connect(&urls, Some(options.clone()))).await {
                Err(_) => return Err(unavailable(format!("{access} did not answer in time"))),
                Ok(Ok(client)) => break client,
                Ok(Err(error)) if fate(&error) == Fate::NotSent && Instant::now() < deadline => {
                    tokio::time::sleep(random.up_to(Duration::from_millis(50))).await;
                }
                Ok(Err(error)) => return Err(unavailable(format!("{access}: {error}"))),
            }
        };
        Ok(Self {
            kv: client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX),
            lease: client.lease_client(),
            watch: client.watch_client().max_decoding_message_size(ANSWER_BYTES_MAX),
            read_within: access.read_within,
            random,
        })
    }

    /// A pause between attempts.
    pub(super) fn pause(&self, longest: Duration) -> Duration {
        self.random.up_to(longest)
    }

    async fn call<T, F>(&self, effect: Effect, deadline: Instant, mut send: impl FnMut() -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let mut last = "there was no time left".to_owned();
        loop {
            let now = Instant::now();
            if now >= deadline {
                return Err(unavailable(last).into());
            }
            let until = match effect {
                Effect::Reads => deadline.min(now + self.read_within),
                Effect::Writes => deadline,
            };
            match (timeout_at(until, send()).await, effect) {
                (Ok(Ok(answer)), _) => return Ok(answer),
                (Err(_), Effect::Reads) => "a read was not answered".clone_into(&mut last),
                (Err(_), Effect::Writes) => {
                    return Err(unknown("the cluster did not answer in time".to_owned()).into());
                }
                (Ok(Err(error)), _) => match (fate(&error), effect) {
                    (Fate::NotSent, _) | (Fate::Unknown, Effect::Reads) => {
                        last = error.to_string();
                        let pause = self.pause(Duration::from_millis(20));
                        tokio::time::sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
                    }
                    (Fate::Unknown, Effect::Writes) => return Err(unknown(error.to_string()).into()),
                    (Fate::Refused, _) => return Err(unavailable(error.to_string()).into()),
                    (Fate::LeaseGone, _) => return Err(CallError::LeaseGone),
                    (Fate::Compacted, _) => return Err(CallError::Compacted),
                    (Fate::Corrupt, _) => {
                        let detail = error.to_string();
                        return Err(StoreError::Corrupt { detail }.into());
                    }
                },
            }
        }
    }

    pub(super) async fn txn(&self, txn: &Txn, effect: Effect, deadline: Instant) -> Result<TxnResponse, CallError> {
        self.call(effect, deadline, || {
            let (mut kv, txn) = (self.kv.clone(), txn.clone());
            async move { kv.txn(txn).await }
        })
        .await
    }

    pub(super) async fn get(
        &self,
        key: &[u8],
        options: &GetOptions,
        deadline: Instant,
    ) -> Result<GetResponse, CallError> {
        self.call(Effect::Reads, deadline, || {
            let (mut kv, key, options) = (self.kv.clone(), key.to_vec(), options.clone());
            async move { kv.get(key, Some(options)).await }
        })
        .await
    }

    /// A new lease of `seconds` at least. Answers its id and what was granted, in seconds.
    pub(super) async fn grant_lease(&self, seconds: i64, deadline: Instant) -> Result<(i64, i64), CallError> {
        // A lease that nobody knows of hurts nobody: one whose answer was lost ends by itself. So this is asked again.
        let granted = self
            .call(Effect::Reads, deadline, || {
                let mut lease = self.lease.clone();
                async move { lease.grant(seconds, None).await }
            })
            .await?;
        Ok((granted.id(), granted.ttl()))
    }

    /// Keeps a lease alive: a message on a stream of the lease, answered by the leader without a write to its log.
    pub(super) async fn keep_alive(&self, id: i64, deadline: Instant) -> Result<Lease, StoreError> {
        let kept = self
            .call(Effect::Reads, deadline, || {
                let mut lease = self.lease.clone();
                async move { lease.keep_alive(id).await }
            })
            .await;
        match kept {
            Ok(_) => Ok(Lease::Alive),
            Err(CallError::LeaseGone) => Ok(Lease::Gone),
            // It may have been kept alive: harmless, and for the caller not known.
            Err(error) => Err(error.into()),
        }
    }

    /// What is left of a lease, in whole seconds; none when it is gone.
    pub(super) async fn left_of_lease(&self, id: i64, deadline: Instant) -> Result<Option<Duration>, StoreError> {
        let answer = self
            .call(Effect::Reads, deadline, || {
                let mut lease = self.lease.clone();
                async move { lease.time_to_live(id, None).await }
            })
            .await;
        match answer {
            Ok(answer) => Ok(u64::try_from(answer.ttl()).ok().map(Duration::from_secs)),
            Err(CallError::LeaseGone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends a lease of which nothing is needed any more. One that cannot be ended ends by itself.
    pub(super) async fn revoke_lease(&self, id: i64, deadline: Instant) {
        let revoked = self
            .call(Effect::Reads, deadline, || {
                let mut lease = self.lease.clone();
                async move { lease.revoke(id).await }
            })
            .await;
        if let Err(error) = revoked
            && error != CallError::LeaseGone
        {
            tracing::debug!(event = "lease_not_revoked", error = %StoreError::from(error));
        }
    }

    pub(super) async fn watch(&self, key: Vec<u8>, options: WatchOptions) -> Result<WatchStream, Error> {
        self.watch.clone().watch(key, Some(options)).await
    }
}

/// It may have been done.
fn unknown(detail: String) -> StoreError {
    StoreError::Unknown { detail }
}
