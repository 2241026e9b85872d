//! A store on a real server, under a prefix of its own.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod place;
pub mod proxy;

use host_kit::{Host, Ids, ManualClock};
use lock_api::LockStore;
use lock_store::conformance::{Backend, LocalFuture};
use lock_store::{EtcdLockStore, EtcdLockStoreOptions};
use std::sync::Arc;
use std::time::Duration;

/// Longer than any test runs.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// Runs something on a thread and runtime of its own, for callers that cannot wait for it.
pub fn aside<T: Send + 'static>(work: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(work())
    })
    .join()
    .unwrap()
}

/// Removes everything under a prefix.
pub async fn remove(at: &str, prefix: &str) {
    if let Ok(client) = etcd_client::Client::connect([at], None).await {
        let all = etcd_client::DeleteOptions::new().with_prefix();
        drop(client.kv_client().delete(format!("{prefix}/"), Some(all)).await);
    }
}

/// The store on a real server, on a clock that the test moves. etcd's own leases run on etcd's clock, which nobody moves; so
/// here every session counts as too short for a lease and is told by its stamps, which are judged by the clock of this
/// process, and its lease outlives the test. What leases do by themselves is shown in `etcd_shared.rs`, in real time.
pub struct OnEtcd {
    at: String,
    hand: ManualClock,
    host: Host,
    options: EtcdLockStoreOptions,
    store: Option<EtcdLockStore>,
}

impl OnEtcd {
    pub async fn fresh() -> Self {
        let at = test_servers::etcd_or_skip().await;
        let mut options = EtcdLockStoreOptions::at(&format!("etcd://{at}")).unwrap();
        options.prefix = test_servers::fresh_schema();
        options.shortest_lease = Duration::MAX;
        options.stamped_lease = FOR_EVER;
        let hand = ManualClock::new();
        let mut host = Host::system();
        host.clock = hand.clock();
        host.ids = Ids::new(hand.clock(), host.random.clone());
        let store = EtcdLockStore::open(options.clone(), &host).await.unwrap();
        Self {
            at,
            hand,
            host,
            options,
            store: Some(store),
        }
    }

    fn etcd(&self) -> &EtcdLockStore {
        self.store.as_ref().unwrap()
    }
}

impl Drop for OnEtcd {
    fn drop(&mut self) {
        drop(self.store.take());
        let (at, prefix) = (self.at.clone(), self.options.prefix.clone());
        aside(async move || remove(&at, &prefix).await);
    }
}

impl Backend for OnEtcd {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::new(self.etcd().clone())
    }

    fn restart(&mut self) -> LocalFuture<'_, bool> {
        Box::pin(async {
            self.store.take().unwrap().close();
            self.store = Some(EtcdLockStore::open(self.options.clone(), &self.host).await.unwrap());
            true
        })
    }

    fn pass(&self, by: Duration) -> LocalFuture<'_, ()> {
        self.hand.advance(by);
        Box::pin(std::future::ready(()))
    }

    fn jump_wall(&self, by_ms: i64) -> bool {
        self.hand.jump_wall_ms(by_ms);
        true
    }

    fn exact_time(&self) -> bool {
        true
    }

    fn keeps_call_order(&self) -> bool {
        false
    }

    fn one_token_per_grant(&self) -> bool {
        false
    }

    fn rounds(&self, wanted: u32) -> u32 {
        // Each step is a commit on a server that other tests use at the same time.
        wanted.div_ceil(100)
    }
}
