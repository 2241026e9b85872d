//! Lock servers as replicas on one PostgreSQL store: who waits at one is woken by what happens at another.
//!
//! Nets for a lost wake-up are there in production, each a second or so wide; here they are an hour wide, so that a test
//! whose wake-up is lost hangs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test stops where something is not as it must be"
)]

use actor_kit::{Kit, TraceContext};
use futures_util::future::join_all;
use host_kit::Host;
use lock_api::{
    AcquireRequest, FencingToken, LockDelay, LockKey, OpenSession, Owner, ReleaseOutcome, ReleaseRequest, RequestId,
    SessionId, Ttl,
};
use lock_core::{AcquireCall, Acquired, Config, LockService, Metrics};
use lock_store::{PgLockStore, PgLockStoreOptions};
use prometheus::Registry;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::NoTls;

const LONG: Duration = Duration::from_secs(90);
const HOUR: Duration = Duration::from_secs(3600);

/// One lock server's core, without HTTP.
struct Replica {
    host: Host,
    service: LockService,
    session: SessionId,
    trace: TraceContext,
}

impl Replica {
    async fn start(options: &PgLockStoreOptions) -> Self {
        let host = Host::system();
        let store = PgLockStore::open(options.clone(), &host).await.unwrap();
        let registry = Registry::new();
        let kit = Kit::new("lock-server", &host, &registry);
        let config = Config {
            wake_safety: HOUR,
            expiry_safety: HOUR,
            store_timeout: Duration::from_secs(20),
            ..Config::default()
        };
        let service = LockService::start(&kit, Arc::new(store), config, Metrics::new(&registry));
        let trace = TraceContext::root(&host.random);
        let request = OpenSession {
            session_id: SessionId::new(host.ids.ulid()).unwrap(),
            owner: Owner::new("a worker").unwrap(),
            ttl: Ttl::new(HOUR).unwrap(),
            metadata: None,
        };
        let session = service.open(request, &trace).await.unwrap().session_id;
        Self {
            host,
            service,
            session,
            trace,
        }
    }

    /// Waits for a key as long as it takes.
    async fn acquire(&self, key: &LockKey) -> FencingToken {
        let call = AcquireCall {
            request: AcquireRequest {
                key: key.clone(),
                session_id: self.session.clone(),
                request_id: RequestId::new(self.host.ids.ulid()).unwrap(),
                ttl: Ttl::new(HOUR).unwrap(),
                metadata: None,
                witness: None,
                lock_delay: LockDelay::NONE,
            },
            ttl_of_session: false,
            names_itself: true,
            received_at: self.host.clock.mono(),
            wait: HOUR,
        };
        let answer = tokio::time::timeout(LONG, self.service.acquire(call, &self.trace))
            .await
            .expect("a wake-up is lost");
        match answer.unwrap() {
            Acquired::Granted(granted) => granted.claim().token,
            other => panic!("{}", other.label()),
        }
    }

    async fn release(&self, key: &LockKey, token: FencingToken) {
        let request = ReleaseRequest {
            key: key.clone(),
            session_id: self.session.clone(),
            token,
        };
        let released = self.service.release(request, &self.trace).await.unwrap();
        assert_eq!(released, ReleaseOutcome::Released);
    }

    /// Waits until this many wait for the key here.
    async fn waiters(&self, key: &LockKey, count: u32) {
        while self.service.inspect(key.clone(), &self.trace).await.unwrap().1 != count {
            tokio::task::yield_now().await;
        }
    }
}

struct Place {
    url: String,
    options: PgLockStoreOptions,
}

impl Place {
    async fn fresh() -> Self {
        let url = test_servers::postgres_or_skip().await;
        let schema = test_servers::fresh_schema();
        let mut options = PgLockStoreOptions::at(format!("{url}?application_name={schema}"));
        options.schema = schema;
        options.poll_every = HOUR;
        Self { url, options }
    }
}

/// One round: the first replica waits for what the second holds, and is granted it when the second lets go.
async fn hand_over(
    one: &Replica,
    two: &Replica,
    key: &LockKey,
    held: FencingToken,
    seen_waiting: bool,
) -> FencingToken {
    let release = async {
        // With and without: the release may also meet the waiter between its refusal and its place in the queue.
        if seen_waiting {
            one.waiters(key, 1).await;
        }
        two.release(key, held).await;
    };
    let (granted, ()) = tokio::join!(one.acquire(key), release);
    assert!(granted > held);
    one.release(key, granted).await;
    two.acquire(key).await
}

/// Hands keys over, so many times each, all of them at once.
async fn hand_over_all(one: &Replica, two: &Replica, keys: u32, times: u32) {
    join_all((0..keys).map(|n| async move {
        let key = LockKey::new(format!("handed over/{n}")).unwrap();
        let mut held = two.acquire(&key).await;
        for round in 0..times {
            held = hand_over(one, two, &key, held, round % 2 == 0).await;
        }
        two.release(&key, held).await;
    }))
    .await;
}

/// Five hundred releases at one replica, each of them awaited at the other: of one key, so that each wait is the first that
/// has to be heard about, and of ten keys at once.
#[actix_rt::test]
async fn no_wake_up_is_lost_between_replicas() {
    let place = Place::fresh().await;
    let (one, two) = (
        Replica::start(&place.options).await,
        Replica::start(&place.options).await,
    );
    hand_over_all(&one, &two, 1, 50).await;
    hand_over_all(&one, &two, 10, 45).await;
}

/// The same while the connections that listen are terminated: whoever listens again looks for what it has missed.
#[actix_rt::test]
async fn no_wake_up_is_lost_where_the_listening_connections_break() {
    let place = Place::fresh().await;
    let (one, two) = (
        Replica::start(&place.options).await,
        Replica::start(&place.options).await,
    );
    let (admin, connection) = tokio_postgres::connect(&place.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE application_name = $1 AND query LIKE 'LISTEN%'";
    let ended = std::cell::Cell::new(0_i64);
    let kill = async {
        loop {
            let row = admin.query_one(terminate, &[&place.options.schema]).await.unwrap();
            ended.set(ended.get() + row.get::<_, i64>(0));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let work = async {
        hand_over_all(&one, &two, 1, 20).await;
        hand_over_all(&one, &two, 20, 24).await;
        // However quick the rounds were: enough of them met a broken connection.
        while ended.get() < 10 {
            hand_over_all(&one, &two, 1, 2).await;
        }
    };
    tokio::select! {
        () = kill => {}
        () = work => {}
    }
}

/// Those who wait at one replica are served in the order in which they came, also when the key is freed at another.
#[actix_rt::test]
async fn the_queue_of_a_replica_is_served_in_order() {
    let place = Place::fresh().await;
    let (one, two) = (
        Replica::start(&place.options).await,
        Replica::start(&place.options).await,
    );
    let key = LockKey::new("queue").unwrap();
    let held = two.acquire(&key).await;
    let served = RefCell::new(Vec::new());
    let waiters = join_all((0..5_u32).map(|n| {
        let (one, key, served) = (&one, &key, &served);
        async move {
            // Each comes when the one before it has its place.
            one.waiters(key, n).await;
            let token = one.acquire(key).await;
            served.borrow_mut().push(n);
            one.release(key, token).await;
        }
    }));
    let release = async {
        one.waiters(&key, 5).await;
        two.release(&key, held).await;
    };
    tokio::join!(waiters, release);
    assert_eq!(*served.borrow(), [0, 1, 2, 3, 4]);
}
