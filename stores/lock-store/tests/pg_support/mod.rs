//! A store on a real server, in a schema of its own.

use host_kit::{Host, Ids, ManualClock};
use lock_api::LockStore;
use lock_store::conformance::{Backend, LocalFuture};
use lock_store::{PgLockStore, PgLockStoreOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

/// A connection of the test's own, beside the store.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Runs something on a connection of its own, on a thread of its own, for callers that cannot wait for it.
fn aside<T: Send + 'static>(url: &str, work: impl AsyncFnOnce(Client) -> T + Send + 'static) -> T {
    let url = url.to_owned();
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(async move { work(connect(&url).await).await })
    })
    .join()
    .unwrap()
}

/// The store on a server whose clock this test moves: the schema's `lock_now()` reads a row instead of the system's clock,
/// and the lock server's monotonic clock is moved along. Everything else is as in production.
pub struct OnPg {
    pub url: String,
    pub schema: String,
    hand: ManualClock,
    host: Host,
    options: PgLockStoreOptions,
    store: Option<PgLockStore>,
    admin: Client,
    holding: Arc<AtomicBool>,
    /// What has to live as long as the store.
    kept: Vec<Box<dyn std::any::Any>>,
}

impl OnPg {
    #[allow(dead_code, reason = "each test binary uses its part")]
    pub async fn fresh() -> Self {
        Self::fresh_with(|_| {}).await
    }

    pub async fn fresh_with(change: impl FnOnce(&mut PgLockStoreOptions)) -> Self {
        let url = test_servers::postgres_or_skip().await;
        let schema = test_servers::fresh_schema();
        let mut options = PgLockStoreOptions::at(format!("{url}?application_name={schema}"));
        options.schema.clone_from(&schema);
        // A look at the clock between its two hands would see one of them jump.
        options.watch_every = Duration::from_secs(24 * 3600);
        change(&mut options);
        let hand = ManualClock::new();
        let mut host = Host::system();
        host.clock = hand.clock();
        host.ids = Ids::new(hand.clock(), host.random.clone());
        let admin = connect(&url).await;
        // Opened once so that the schema is there, and again on the clock that the test moves.
        PgLockStore::open(options.clone(), &host).await.unwrap().close();
        admin
            .batch_execute(&format!(
                "CREATE TABLE {schema}.test_clock (at timestamptz NOT NULL);
                 INSERT INTO {schema}.test_clock VALUES ('2026-01-01T00:00:00Z');
                 CREATE OR REPLACE FUNCTION {schema}.lock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
                     'SELECT at FROM {schema}.test_clock'"
            ))
            .await
            .unwrap();
        let store = PgLockStore::open(options.clone(), &host).await.unwrap();
        Self {
            url,
            schema,
            hand,
            host,
            options,
            store: Some(store),
            admin,
            holding: Arc::default(),
            kept: Vec::new(),
        }
    }

    #[allow(dead_code, reason = "each test binary uses its part")]
    pub fn keep(&mut self, what: impl std::any::Any) {
        self.kept.push(Box::new(what));
    }

    pub fn pg(&self) -> &PgLockStore {
        self.store.as_ref().unwrap()
    }

    /// Waits until whoever was sent waits for a row.
    async fn everybody_waits(&self) {
        let (mut before, mut same) = (0, 0);
        while before == 0 || same < 10 {
            let waiting: i64 = self
                .admin
                .query_one(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'",
                    &[&self.schema],
                )
                .await
                .unwrap()
                .get(0);
            same = if waiting == before { same + 1 } else { 0 };
            before = waiting;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for OnPg {
    fn drop(&mut self) {
        drop(self.store.take());
        let schema = self.schema.clone();
        aside(&self.url, async move |client| {
            // One that a call still uses stays behind; the server does not live long.
            drop(
                client
                    .batch_execute(&format!(
                        "SET lock_timeout = '2s'; SET client_min_messages = error; DROP SCHEMA {schema} CASCADE"
                    ))
                    .await,
            );
        });
    }
}

impl Backend for OnPg {
    fn store(&self) -> Arc<dyn LockStore> {
        Arc::new(self.pg().clone())
    }

    fn restart(&mut self) -> LocalFuture<'_, bool> {
        Box::pin(async {
            self.store.take().unwrap().close();
            self.store = Some(PgLockStore::open(self.options.clone(), &self.host).await.unwrap());
            true
        })
    }

    fn pass(&self, by: Duration) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            if self.holding.load(Ordering::SeqCst) {
                self.everybody_waits().await;
            }
            self.admin
                .batch_execute(&format!(
                    "UPDATE {}.test_clock SET at = at + interval '{} microseconds'",
                    self.schema,
                    by.as_micros()
                ))
                .await
                .unwrap();
            self.hand.advance(by);
        })
    }

    fn jump_wall(&self, by_ms: i64) -> bool {
        let schema = self.schema.clone();
        aside(&self.url, async move |client| {
            client
                .batch_execute(&format!(
                    "UPDATE {schema}.test_clock SET at = at + interval '{by_ms} milliseconds'"
                ))
                .await
                .unwrap();
        });
        self.hand.jump_wall_ms(by_ms);
        true
    }

    fn hold_writes(&self) -> Option<Box<dyn FnOnce()>> {
        let (free, freed) = mpsc::channel::<()>();
        let (held, is_held) = mpsc::channel::<()>();
        let (url, schema) = (self.url.clone(), self.schema.clone());
        let thread = std::thread::spawn(move || {
            aside(&url, async move |client| {
                client
                    .batch_execute(&format!(
                        "BEGIN; SELECT 1 FROM {schema}.lock_session FOR UPDATE; SELECT 1 FROM {schema}.lock_grant FOR UPDATE"
                    ))
                    .await
                    .unwrap();
                held.send(()).unwrap();
                freed.recv().unwrap();
                client.batch_execute("COMMIT").await.unwrap();
            });
        });
        is_held.recv().unwrap();
        self.holding.store(true, Ordering::SeqCst);
        let holding = self.holding.clone();
        Some(Box::new(move || {
            holding.store(false, Ordering::SeqCst);
            free.send(()).unwrap();
            thread.join().unwrap();
        }))
    }

    fn exact_time(&self) -> bool {
        true
    }

    fn keeps_call_order(&self) -> bool {
        false
    }

    fn rounds(&self, wanted: u32) -> u32 {
        // Each step is a commit on a server that other tests use at the same time.
        wanted.div_ceil(100)
    }
}
