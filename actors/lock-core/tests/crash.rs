//! Panics of the core's own actors (lab builds): what was durable stays, what was asked is ambiguous, work goes on.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use host_kit::{Faults, Host};
use lock_api::{HeartbeatOutcome, RequestId};
use lock_core::Config;
use lock_store::{SqliteLockStore, SqliteLockStoreOptions};
use std::sync::Arc;
use std::time::Duration;
use support::{World, granted, held, ms, paused};

const TTL: Duration = Duration::from_secs(15);

#[test]
fn a_lease_clock_that_panics_forgets_its_queues_and_no_grant() {
    paused(async {
        let world = World::new(1).await;
        let (one, two) = (world.worker("w1").await, world.open("w2", ms(5_000)).await);
        let grant = world.take("k", &one, ms(60_000)).await;
        world.take("short", &two, TTL).await;
        let waiting = {
            let (world, two) = (world.clone(), two.clone());
            tokio::task::spawn_local(async move { world.wait_for("k", &two, TTL, ms(30_000)).await })
        };
        world.waiters("k", 1).await;
        world.kit.crash("lock-server/lease-clock").unwrap();
        let told = waiting.await.unwrap();
        assert!(matches!(&told, Err(refusal) if refusal.is_ambiguous()), "{told:?}");
        let (holder, _) = held(world.try_acquire("k", &two, TTL).await);
        assert_eq!(holder.token, grant.token, "what was granted stays granted");
        assert!(matches!(world.beat(&two).await, HeartbeatOutcome::Alive { .. }));
        world.sleep(ms(5_500)).await;
        assert!(world.holder("short").await.is_none(), "the sweep goes on");
        assert!(matches!(world.beat(&two).await, HeartbeatOutcome::SessionNotFound));
        world.release(&grant).await.unwrap();
        world.take("k", &one, TTL).await;
    });
}

#[test]
fn a_lease_that_panics_takes_its_queue_with_it_and_is_there_again() {
    paused(async {
        let world = World::new(2).await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let grant = world.take("k", &one, ms(60_000)).await;
        let waiting = {
            let (world, two) = (world.clone(), two.clone());
            tokio::task::spawn_local(async move { world.wait_for("k", &two, TTL, ms(30_000)).await })
        };
        world.waiters("k", 1).await;
        world.kit.crash("lock-server/lease-clock/lease/k").unwrap();
        let told = waiting.await.unwrap();
        assert!(matches!(&told, Err(refusal) if refusal.is_ambiguous()), "{told:?}");
        world.release(&grant).await.unwrap();
        let next = world.take("k", &two, TTL).await;
        assert!(next.token > grant.token);
    });
}

#[test]
fn a_panic_around_the_grant_is_never_a_grant_to_nobody_that_its_request_cannot_find() {
    for point in ["lock_server.before_grant", "lock_server.after_grant"] {
        paused(async {
            let mut host = Host::simulated(3);
            host.faults = Faults::parse(&format!("{point}=panic@2")).unwrap();
            let store = SqliteLockStore::open(SqliteLockStoreOptions::memory(), &host)
                .await
                .unwrap();
            let world = World::over(host, Arc::new(store), Config::default());
            let session = world.worker("w").await;
            world.take("other", &session, TTL).await;
            let call = || {
                let mut call = world.call("k", &session, TTL);
                call.names_itself = true;
                call.request.request_id = RequestId::new("r").unwrap();
                call
            };
            let told = world.acquire(call()).await;
            assert!(
                matches!(&told, Err(refusal) if refusal.is_ambiguous()),
                "{point}: {told:?}"
            );
            let there = world.holder("k").await;
            let found = granted(world.acquire(call()).await);
            if let Some(grant) = there {
                assert_eq!(found.token, grant.token, "{point}");
            }
            world.release(&found).await.unwrap();
        });
    }
}
