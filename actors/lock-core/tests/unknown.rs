//! Answers that do not arrive (FR-27): over the real store, with a wire that loses what the store said.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use host_kit::Host;
use lock_api::{
    AcquireOutcome, AcquireRequest, EventQuery, ExpiredGrant, ExpiryReport, FloorOutcome, Heartbeat, HeartbeatOutcome,
    KeyState, Lineage, LockEvent, LockKey, LockStore, OpenSession, Operator, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, RequestId, RevokeOutcome, RevokeRequest, Seal, SessionId, SessionRegistry, SessionView,
    StoreError, StoreFuture, StoreHealth, YieldOutcome, YieldRequest,
};
use lock_core::{Config, Refusal};
use lock_store::{SqliteLockStore, SqliteLockStoreOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use support::{World, granted, ms, paused};

const TTL: Duration = Duration::from_secs(15);

/// The real store behind a wire that loses answers: the call is done, its caller is not told.
struct Lossy {
    store: Arc<dyn LockStore>,
    lose_acquires: AtomicU32,
    refuse_inspects: AtomicU32,
}

fn one_of(count: &AtomicU32) -> bool {
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> StoreFuture<'_, $answer> {
            self.store.$name($($arg),*)
        }
    )*};
}

impl SessionRegistry for Lossy {
    pass_on! {
        open(batch: Vec<OpenSession>, within: Duration) -> Vec<SessionView>;
        heartbeat(batch: Vec<Heartbeat>, within: Duration) -> Vec<HeartbeatOutcome>;
        close(batch: Vec<SessionId>, within: Duration) -> Vec<Vec<ExpiredGrant>>;
        session(id: SessionId, within: Duration) -> Option<SessionView>;
        sessions(after: Option<SessionId>, limit: u32, within: Duration) -> Vec<SessionView>;
    }
}

impl LockStore for Lossy {
    fn acquire(&self, batch: Vec<AcquireRequest>, within: Duration) -> StoreFuture<'_, Vec<AcquireOutcome>> {
        Box::pin(async move {
            let outcome = self.store.acquire(batch, within).await;
            if one_of(&self.lose_acquires) {
                return Err(StoreError::Unknown {
                    detail: "the answer was lost".into(),
                });
            }
            outcome
        })
    }

    fn inspect(&self, keys: Vec<LockKey>, within: Duration) -> StoreFuture<'_, Vec<KeyState>> {
        Box::pin(async move {
            if one_of(&self.refuse_inspects) {
                return Err(StoreError::Unavailable {
                    detail: "not now".into(),
                });
            }
            self.store.inspect(keys, within).await
        })
    }

    pass_on! {
        renew(batch: Vec<RenewRequest>, within: Duration) -> Vec<RenewOutcome>;
        release(batch: Vec<ReleaseRequest>, within: Duration) -> Vec<ReleaseOutcome>;
        revoke(request: RevokeRequest, within: Duration) -> RevokeOutcome;
        ask_to_yield(request: YieldRequest, within: Duration) -> YieldOutcome;
        list(prefix: String, after: Option<LockKey>, limit: u32, within: Duration) -> Vec<KeyState>;
        expire_due(limit: u32, within: Duration) -> ExpiryReport;
        purge_tombstones(retention: Duration, limit: u32, within: Duration) -> u32;
        events(query: EventQuery, within: Duration) -> Vec<LockEvent>;
        changed_since(after: u64, within: Duration) -> u64;
        seal(limit: u32, within: Duration) -> Option<Seal>;
        seals(after: u64, limit: u32, within: Duration) -> Vec<Seal>;
        drop_sealed(retention: Duration, limit: u32, within: Duration) -> u32;
        lineage(within: Duration) -> Lineage;
        advance_floor(floor: u64, operator: Operator, reason: String, within: Duration) -> FloorOutcome;
        dismiss_regression(operator: Operator, reason: String, within: Duration) -> FloorOutcome;
        health(within: Duration) -> StoreHealth;
    }
}

async fn lossy() -> (World, Arc<Lossy>) {
    let host = Host::simulated(7);
    let store = SqliteLockStore::open(SqliteLockStoreOptions::memory(), &host)
        .await
        .unwrap();
    let lossy = Arc::new(Lossy {
        store: Arc::new(store),
        lose_acquires: AtomicU32::new(0),
        refuse_inspects: AtomicU32::new(0),
    });
    (World::over(host, lossy.clone(), Config::default()), lossy)
}

#[test]
fn an_unknown_grant_is_given_back_and_its_caller_refused() {
    paused(async {
        let (world, lossy) = lossy().await;
        let session = world.worker("w").await;
        for named in [false, true] {
            lossy.lose_acquires.store(1, Ordering::SeqCst);
            let mut call = world.call("k", &session, TTL);
            call.names_itself = named;
            call.request.request_id = RequestId::new("r").unwrap();
            let answer = world.acquire(call).await;
            assert!(
                matches!(&answer, Err(Refusal::Store(StoreError::Unknown { .. }))),
                "{answer:?}"
            );
            assert!(world.holder("k").await.is_none(), "no grant on doubt");
            let lost = world.inspect("k").await.0.last_token.unwrap();
            let grant = world.take("k", &session, TTL).await;
            assert!(grant.token > lost);
            world.release(&grant).await.unwrap();
        }
        assert_eq!(world.metric("lock_acquire_total{outcome=\"unknown\"}"), 2.0);
        let failed = world.metric("lock_store_errors_total{failure=\"unknown\",op=\"acquire\"}");
        assert_eq!(failed, 2.0);
    });
}

#[test]
fn an_unknown_grant_that_cannot_be_looked_up_yet_is_given_back_when_somebody_wants_the_key() {
    paused(async {
        let (world, lossy) = lossy().await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        lossy.lose_acquires.store(1, Ordering::SeqCst);
        lossy.refuse_inspects.store(1_000, Ordering::SeqCst);
        let answer = world.try_acquire("k", &one, ms(600_000)).await;
        assert!(
            matches!(&answer, Err(Refusal::Store(error)) if error.is_ambiguous()),
            "{answer:?}"
        );
        lossy.refuse_inspects.store(0, Ordering::SeqCst);
        assert!(world.holder("k").await.is_some(), "it was granted to nobody");
        let begun = world.now();
        granted(world.wait_for("k", &two, TTL, ms(1_000)).await);
        assert_eq!(world.now(), begun);
    });
}

#[test]
fn a_waiter_behind_an_unknown_answer_is_refused_and_not_granted() {
    paused(async {
        let (world, lossy) = lossy().await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let grant = world.take("k", &one, TTL).await;
        let waiting = {
            let world = world.clone();
            tokio::task::spawn_local(async move { world.wait_for("k", &two, TTL, ms(20_000)).await })
        };
        world.waiters("k", 1).await;
        lossy.lose_acquires.store(1, Ordering::SeqCst);
        world.release(&grant).await.unwrap();
        let answer = waiting.await.unwrap();
        assert!(
            matches!(&answer, Err(Refusal::Store(error)) if error.is_ambiguous()),
            "{answer:?}"
        );
        assert!(world.holder("k").await.is_none());
    });
}
