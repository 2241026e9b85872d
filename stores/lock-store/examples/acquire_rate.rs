//! How many durable acquires a second the embedded store answers: `cargo run --release -p lock-store --example
//! acquire_rate`. Each line is one number of calls in flight and one number of acquires in each call; every acquire is on
//! disk (`synchronous=FULL`) before it counts.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a measurement")]

use host_kit::Host;
use lock_api::{
    AcquireOutcome, AcquireRequest, LockDelay, LockKey, LockStore, OpenSession, Owner, ReleaseRequest, RequestId,
    SessionId, SessionRegistry, Ttl,
};
use lock_store::{SqliteLockStore, SqliteLockStoreOptions};
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(30);
const SECONDS: Duration = Duration::from_secs(2);

fn id(text: &str) -> SessionId {
    SessionId::new(text).unwrap()
}

/// One caller: acquires a batch of keys, then releases it, until the time is over. Answers how many it was granted.
async fn caller(store: SqliteLockStore, caller: usize, batch: usize, until: Instant) -> u64 {
    let session = format!("s{caller}");
    let ttl = Ttl::new(Duration::from_secs(600)).unwrap();
    let opening = OpenSession {
        session_id: id(&session),
        owner: Owner::new("bench").unwrap(),
        ttl,
        metadata: None,
    };
    store.open(vec![opening], WITHIN).await.unwrap();
    let mut granted = 0;
    for round in 0.. {
        if Instant::now() >= until {
            break;
        }
        let asked = (0..batch).map(|n| AcquireRequest {
            key: LockKey::new(format!("account/{caller}/{n}")).unwrap(),
            session_id: id(&session),
            request_id: RequestId::new(format!("r{round}")).unwrap(),
            ttl,
            metadata: None,
            witness: None,
            lock_delay: LockDelay::NONE,
        });
        let answers = store.acquire(asked.collect(), WITHIN).await.unwrap();
        let mut release = Vec::with_capacity(batch);
        for answer in answers {
            let AcquireOutcome::Granted { grant, .. } = answer else {
                panic!("{answer:?}")
            };
            release.push(ReleaseRequest {
                key: grant.key,
                session_id: grant.session_id,
                token: grant.token,
            });
        }
        granted += release.len() as u64;
        store.release(release, WITHIN).await.unwrap();
    }
    granted
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!("in flight | per call | acquire+release pairs/s | operations/s | jobs per commit");
    for (callers, batch) in [(1, 1), (16, 1), (128, 1), (1, 128), (4, 128), (2, 1024)] {
        let dir = tempfile::tempdir().unwrap();
        let options = SqliteLockStoreOptions::file(dir.path().join("lock.db"));
        let store = SqliteLockStore::open(options, &Host::system()).await.unwrap();
        let begun = Instant::now();
        let calls = (0..callers).map(|n| caller(store.clone(), n, batch, begun + SECONDS));
        let granted: u64 = futures_util::future::join_all(calls).await.into_iter().sum();
        let rate = granted as f64 / begun.elapsed().as_secs_f64();
        let sizes = store.batch_sizes();
        println!(
            "{callers:9} | {batch:8} | {rate:23.0} | {:12.0} | {:.1}",
            rate * 2.0,
            sizes.jobs as f64 / sizes.commits as f64
        );
        store.close().await;
    }
}
