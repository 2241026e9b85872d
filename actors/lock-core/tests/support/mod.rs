//! The core over the real embedded store in memory, on a paused clock.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use actor_kit::{Kit, TraceContext};
use host_kit::Host;
use lock_api::{
    AcquireRequest, ExpiredGrant, FencingToken, Grant, Heartbeat, HeartbeatOutcome, KeyState, LockDelay, LockKey,
    LockStore, OpenSession, Owner, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, RequestId, SessionId,
    Ttl,
};
use lock_core::{AcquireCall, Acquired, Config, LockService, Metrics, Refusal};
use lock_store::{SqliteLockStore, SqliteLockStoreOptions};
use prometheus::Registry;
use std::sync::Arc;
use std::time::Duration;

pub const MS: Duration = Duration::from_millis(1);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Runs on a paused clock: an hour of waiting costs nothing, and time moves only when everybody waits.
pub fn paused<T>(test: impl Future<Output = T>) -> T {
    let runner = actix_rt::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    });
    runner.block_on(test)
}

/// The seed of a random test: `LOCK_SEED`, or the one given.
pub fn seed(default: u64) -> u64 {
    let seed = std::env::var("LOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(default);
    println!("LOCK_SEED={seed}");
    seed
}

/// A running core.
#[derive(Clone)]
pub struct World {
    pub host: Host,
    pub kit: Kit,
    pub registry: Registry,
    pub service: LockService,
    pub store: Arc<dyn LockStore>,
    pub trace: TraceContext,
}

impl World {
    pub async fn new(seed: u64) -> Self {
        Self::with(seed, Config::default()).await
    }

    pub async fn with(seed: u64, config: Config) -> Self {
        let host = Host::simulated(seed);
        let store = SqliteLockStore::open(SqliteLockStoreOptions::memory(), &host)
            .await
            .unwrap();
        Self::over(host, Arc::new(store), config)
    }

    pub fn over(host: Host, store: Arc<dyn LockStore>, config: Config) -> Self {
        let registry = Registry::new();
        let kit = Kit::new("lock-server", &host, &registry);
        let service = LockService::start(&kit, store.clone(), config, Metrics::new(&registry));
        Self {
            trace: TraceContext::root(&host.random),
            host,
            kit,
            registry,
            service,
            store,
        }
    }

    pub fn now(&self) -> Duration {
        self.host.clock.mono()
    }

    pub async fn sleep(&self, duration: Duration) {
        self.host.clock.sleep(duration).await;
    }

    pub async fn open(&self, owner: &str, ttl: Duration) -> SessionId {
        let request = OpenSession {
            session_id: SessionId::new(self.host.ids.ulid()).unwrap(),
            owner: Owner::new(owner).unwrap(),
            ttl: Ttl::new(ttl).unwrap(),
            metadata: None,
        };
        self.service.open(request, &self.trace).await.unwrap().session_id
    }

    /// A session that lives longer than any test.
    pub async fn worker(&self, owner: &str) -> SessionId {
        self.open(owner, Duration::from_secs(24 * 3600)).await
    }

    pub fn call(&self, key: &str, session: &SessionId, ttl: Duration) -> AcquireCall {
        AcquireCall {
            request: AcquireRequest {
                key: LockKey::new(key).unwrap(),
                session_id: session.clone(),
                request_id: RequestId::new(self.host.ids.ulid()).unwrap(),
                ttl: Ttl::new(ttl).unwrap(),
                metadata: None,
                witness: None,
                lock_delay: LockDelay::NONE,
            },
            ttl_of_session: false,
            names_itself: false,
            received_at: self.now(),
            wait: Duration::ZERO,
        }
    }

    pub async fn acquire(&self, call: AcquireCall) -> Result<Acquired, Refusal> {
        self.service.acquire(call, &self.trace).await
    }

    /// An acquire without a wait.
    pub async fn try_acquire(&self, key: &str, session: &SessionId, ttl: Duration) -> Result<Acquired, Refusal> {
        self.acquire(self.call(key, session, ttl)).await
    }

    /// An acquire that must be granted without a wait.
    pub async fn take(&self, key: &str, session: &SessionId, ttl: Duration) -> Grant {
        granted(self.try_acquire(key, session, ttl).await)
    }

    /// An acquire that waits.
    pub async fn wait_for(
        &self,
        key: &str,
        session: &SessionId,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Acquired, Refusal> {
        let mut call = self.call(key, session, ttl);
        call.wait = wait;
        self.acquire(call).await
    }

    pub async fn release(&self, grant: &Grant) -> Result<ReleaseOutcome, Refusal> {
        self.release_as(grant.key.as_str(), &grant.session_id, grant.token)
            .await
    }

    pub async fn release_as(
        &self,
        key: &str,
        session: &SessionId,
        token: FencingToken,
    ) -> Result<ReleaseOutcome, Refusal> {
        let request = ReleaseRequest {
            key: LockKey::new(key).unwrap(),
            session_id: session.clone(),
            token,
        };
        self.service.release(request, &self.trace).await
    }

    pub async fn renew(&self, grant: &Grant) -> Result<RenewOutcome, Refusal> {
        let request = RenewRequest {
            key: grant.key.clone(),
            session_id: grant.session_id.clone(),
            token: grant.token,
            ttl: None,
        };
        self.service.renew(request, &self.trace).await
    }

    pub async fn beat(&self, session: &SessionId) -> HeartbeatOutcome {
        let request = Heartbeat {
            session_id: session.clone(),
            witness: None,
        };
        self.service.heartbeat(request, &self.trace).await.unwrap()
    }

    pub async fn close(&self, session: &SessionId) -> Vec<ExpiredGrant> {
        self.service.close(session.clone(), &self.trace).await.unwrap()
    }

    pub async fn inspect(&self, key: &str) -> (KeyState, u32) {
        let key = LockKey::new(key).unwrap();
        self.service.inspect(key, &self.trace).await.unwrap()
    }

    pub async fn holder(&self, key: &str) -> Option<Grant> {
        self.inspect(key).await.0.grant
    }

    /// Waits until this many wait for a key.
    pub async fn waiters(&self, key: &str, count: u32) {
        for _ in 0..10_000 {
            if self.inspect(key).await.1 == count {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} wait for {key}, not {count}", self.inspect(key).await.1);
    }

    /// A counter or the count of a histogram by its line in the text format.
    pub fn metric(&self, name: &str) -> f64 {
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }
}

#[track_caller]
pub fn granted(answer: Result<Acquired, Refusal>) -> Grant {
    match answer {
        Ok(Acquired::Granted(granted)) => granted.claim(),
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
pub fn held(answer: Result<Acquired, Refusal>) -> (Grant, bool) {
    match answer {
        Ok(Acquired::Held { held, .. }) => (held.holder, held.is_self),
        other => panic!("not held by another: {other:?}"),
    }
}
