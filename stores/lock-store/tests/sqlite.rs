//! The embedded store against the suite that defines the SPI: on a file with threads, and in memory on a paused clock.

#![allow(clippy::unwrap_used, reason = "a test")]

use host_kit::{Host, Ids, ManualClock};
use lock_api::LockStore;
use lock_store::conformance::{Backend, LocalFuture};
use lock_store::{SqliteLockStore, SqliteLockStoreOptions};
use std::sync::Arc;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(30);

/// A file, the system's threads, and a clock that the test moves.
struct InFile {
    dir: tempfile::TempDir,
    hand: ManualClock,
    host: Host,
    /// None only while it restarts.
    store: Option<SqliteLockStore>,
}

async fn in_file() -> InFile {
    let hand = ManualClock::new();
    let mut host = Host::system();
    host.clock = hand.clock();
    host.ids = Ids::new(hand.clock(), host.random.clone());
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteLockStore::open(SqliteLockStoreOptions::file(dir.path().join("lock.db")), &host)
        .await
        .unwrap();
    InFile {
        dir,
        hand,
        host,
        store: Some(store),
    }
}

impl InFile {
    fn sqlite(&self) -> &SqliteLockStore {
        self.store.as_ref().unwrap()
    }
}

impl Backend for InFile {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::new(self.sqlite().clone())
    }

    fn restart(&mut self) -> LocalFuture<'_, bool> {
        Box::pin(async {
            self.store.take().unwrap().close().await;
            let options = SqliteLockStoreOptions::file(self.dir.path().join("lock.db"));
            self.store = Some(SqliteLockStore::open(options, &self.host).await.unwrap());
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

    fn hold_writes(&self) -> Option<Box<dyn FnOnce()>> {
        let other = rusqlite::Connection::open(self.dir.path().join("lock.db")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        Some(Box::new(move || other.execute_batch("ROLLBACK").unwrap()))
    }

    fn used_bytes(&self) -> LocalFuture<'_, Option<u64>> {
        Box::pin(async { Some(self.sqlite().used_bytes(WITHIN).await.unwrap()) })
    }

    fn exact_time(&self) -> bool {
        true
    }
}

/// Memory, no threads, tokio's paused clock.
struct InMemory(SqliteLockStore);

async fn in_memory() -> InMemory {
    let host = Host::simulated(1);
    InMemory(
        SqliteLockStore::open(SqliteLockStoreOptions::memory(), &host)
            .await
            .unwrap(),
    )
}

impl Backend for InMemory {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::new(self.0.clone())
    }

    fn restart(&mut self) -> LocalFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }

    fn pass(&self, by: Duration) -> LocalFuture<'_, ()> {
        Box::pin(tokio::time::sleep(by))
    }

    fn used_bytes(&self) -> LocalFuture<'_, Option<u64>> {
        Box::pin(async { Some(self.0.used_bytes(WITHIN).await.unwrap()) })
    }

    fn exact_time(&self) -> bool {
        true
    }

    fn rounds(&self, wanted: u32) -> u32 {
        // The same store as in a file; there the long cases run in full.
        wanted.div_ceil(10)
    }
}

mod file {
    lock_store::lock_store_conformance! { #[tokio::test] super::in_file }
}

mod memory {
    lock_store::lock_store_conformance! { #[tokio::test(start_paused = true)] super::in_memory }
}
