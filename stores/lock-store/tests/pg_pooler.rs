//! The store through PgBouncer in transaction mode, against the suite that defines the SPI.
#![cfg(feature = "pg")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and threads")]

mod pg_support;

use host_kit::Host;
use lock_api::{LockStore, StoreError};
use lock_store::{PgLockStore, PgLockStoreOptions};
use pg_support::OnPg;
use std::time::Duration;
use test_servers::PgBouncer;

/// The store through a pooler of the test's own; what the test does to the server itself goes past it.
async fn pooled() -> OnPg {
    let pooler = PgBouncer::before(&test_servers::postgres_or_skip().await);
    let url = pooler.url();
    let mut backend = OnPg::fresh_with(|options| {
        options.access.url = format!("{url}?application_name={}", options.schema);
        options.through_pooler = true;
        options.poll_every = Duration::from_millis(20);
    })
    .await;
    backend.keep(pooler);
    backend
}

mod suite {
    lock_store::lock_store_conformance! { #[tokio::test] super::pooled }
}

/// Where nobody said that there is a pooler, LISTEN would seem to succeed and nothing would ever be heard: the store does
/// not open, and says which setting is missing.
#[tokio::test]
async fn a_pooler_that_was_not_announced_is_refused() {
    let direct = test_servers::postgres_or_skip().await;
    let pooler = PgBouncer::before(&direct);
    let mut options = PgLockStoreOptions::at(pooler.url());
    options.schema = test_servers::fresh_schema();
    for _ in 0..5 {
        let refused = PgLockStore::open(options.clone(), &Host::system()).await;
        assert!(
            matches!(&refused, Err(StoreError::Unavailable { detail }) if detail.contains("lock.store.pooler")),
            "{refused:?}"
        );
    }
    options.through_pooler = true;
    let store = PgLockStore::open(options.clone(), &Host::system()).await.unwrap();
    assert_eq!(store.health(Duration::from_secs(30)).await.unwrap().problem, None);
    store.close();
    // The server itself is taken for what it is.
    options.access.url = direct;
    options.through_pooler = false;
    for _ in 0..5 {
        PgLockStore::open(options.clone(), &Host::system())
            .await
            .unwrap()
            .close();
    }
}
