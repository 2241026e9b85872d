//! The client as an application holds it.

use crate::acquire::Acquire;
use crate::core::{Close, Core, Counts, Inspect, Kept, Mode, Ready, in_doubt, unavailable};
use crate::held_lock::{HeldLock, LockView};
use crate::options::{ClientOptions, check_lock_delay, check_ttl, invalid};
use crate::transport::Connect;
use actor_kit::{Handle, Kit, TraceContext};
use host_kit::Blocking;
use http_contract::lock::LockView as KeyView;
use lock_api::{FencingToken, LockError, LockKey};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use serde_json::Value;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// `lock_lost_total{reason}` and `lock_heartbeat_failures_total` (C4.2). Cheap to clone; one per registry, shared by its
/// clients.
#[derive(Clone)]
pub struct LockMetrics {
    lost: IntCounterVec,
    heartbeat_failures: IntCounter,
}

impl fmt::Debug for LockMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockMetrics")
    }
}

impl LockMetrics {
    /// Counts in this registry.
    ///
    /// # Errors
    /// Whatever the registry refuses: a second registration of the same name.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let lost = IntCounterVec::new(
            Opts::new("lock_lost_total", "Locks lost by their holder, by reason."),
            &["reason"],
        )?;
        registry.register(Box::new(lost.clone()))?;
        for reason in ["deadline_lapsed", "revoked", "session_lost", "superseded"] {
            lost.with_label_values(&[reason]);
        }
        let heartbeat_failures = IntCounter::new(
            "lock_heartbeat_failures_total",
            "Heartbeats of this client's session that were refused, unreadable or not answered.",
        )?;
        registry.register(Box::new(heartbeat_failures.clone()))?;
        Ok(Self {
            lost,
            heartbeat_failures,
        })
    }

    fn count(&self) -> Counts {
        let lost = self.lost.clone();
        Counts {
            loss: Arc::new(move |reason| lost.with_label_values(&[reason.as_str()]).inc()),
            heartbeat_failures: self.heartbeat_failures.clone(),
        }
    }
}

/// Where a client's actor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the `LocalSet` of the caller, which must be inside an actix system: for simulations and for processes that
    /// place their own work.
    Here,
    /// On a thread of its own, so that the application's work never delays a heartbeat. The one thread that a library of
    /// this project asks for.
    OwnThread,
}

/// One session with the lock service, and the way to its locks. Cheap to clone; usable from any thread and any runtime.
/// The session ends when the last clone and the last [`HeldLock`] have gone, or with [`LockClient::close`].
///
/// A session that the server no longer knows takes all its locks with it ([`lock_api::LostReason::SessionLost`]); the
/// client then opens another one by itself, for later acquires.
#[derive(Clone, Debug)]
pub struct LockClient(Arc<Shared>);

/// What every part of a client shares.
pub(crate) struct Shared {
    pub handle: Handle<Core>,
    kit: Kit,
    options: ClientOptions,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockClient").field(&self.handle.path()).finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody is left who could use the session: the actor is told, and ends it.
        let trace = TraceContext::root(&self.kit.host().random);
        self.handle.tell_surely(Close { tell: None }, &trace);
    }
}

fn spawn_core(
    kit: &Kit,
    options: ClientOptions,
    count: Counts,
    connect: Connect,
    done: Option<oneshot::Sender<()>>,
) -> (Handle<Core>, Kept) {
    let servers = Rc::new(connect());
    let (kept, done) = (Kept::default(), Rc::new(RefCell::new(done)));
    let handle = kit.spawn("lock-client", {
        let kept = kept.clone();
        move || {
            Core::new(
                options.clone(),
                servers.clone(),
                count.clone(),
                kept.clone(),
                done.clone(),
            )
        }
    });
    (handle, kept)
}

impl LockClient {
    /// Starts a client over a transport of one's own. Returns at once: the session is opened in the background and,
    /// should that fail, again and again; [`LockClient::ready`] waits for it, acquires wait for it as long as they wait.
    ///
    /// # Errors
    /// [`LockError::Invalid`] when the options cannot work; [`LockError::Unavailable`] when no thread can be had.
    pub async fn start(
        options: ClientOptions,
        kit: &Kit,
        metrics: &LockMetrics,
        placement: Placement,
        connect: Connect,
    ) -> Result<Self, LockError> {
        options.check()?;
        let count = metrics.count();
        let handle = match placement {
            Placement::Here => spawn_core(kit, options.clone(), count, connect, None).0,
            Placement::OwnThread => on_own_thread(kit, options.clone(), count, connect).await?,
        };
        Ok(Self(Arc::new(Shared {
            handle,
            kit: kit.clone(),
            options,
        })))
    }

    /// Waits until the session is open.
    ///
    /// # Errors
    /// What kept it from being opened, after `lock.acquire.max-attempts` attempts. The client goes on trying.
    pub async fn ready(&self) -> Result<(), LockError> {
        let (tell, told) = oneshot::channel();
        self.0.handle.tell_surely(Ready { tell }, &self.trace());
        hear(told).await
    }

    /// An acquire of this key, to be told how.
    ///
    /// ```no_run
    /// # use lock_client::{LockClient, lock_api::{LockError, LockKey}};
    /// # use std::time::Duration;
    /// # async fn example(client: &LockClient, key: &LockKey) -> Result<(), LockError> {
    /// let held = client
    ///     .lock(key)
    ///     .ttl(Duration::from_secs(60))
    ///     .metadata(serde_json::json!({ "run": 17 }))
    ///     .acquire_within(Duration::from_secs(20))
    ///     .await?;
    /// # held.release().await }
    /// ```
    pub fn lock<'a>(&'a self, key: &LockKey) -> LockRequest<'a> {
        LockRequest {
            client: self,
            key: key.clone(),
            ttl: None,
            lock_delay: None,
            metadata: None,
            trace: None,
        }
    }

    /// Acquires the key, retrying a refusal up to `lock.acquire.max-attempts` times with full jitter (FR-28).
    ///
    /// Dropping this future gives up: the server takes the request out of its queue, and a grant that was made all the
    /// same is given back as soon as the client sees it.
    ///
    /// # Errors
    /// In no case is anything held by the caller (FR-27); [`LockError::fate`] says whether the key may be kept for
    /// nobody.
    /// - [`LockError::ContentionExceeded`] when it stayed held.
    /// - [`LockError::Delayed`] when it was free and stayed closed after an unclean loss.
    /// - [`LockError::Unavailable`] when no server granted or refused it within as many attempts.
    /// - [`LockError::TokenRegression`] when the service may have lost grants and gives none.
    /// - [`LockError::SessionLost`] when the session ended meanwhile, or the client was closed.
    /// - [`LockError::Invalid`] for a TTL or metadata that cannot be.
    pub async fn acquire(&self, key: &LockKey) -> Result<HeldLock, LockError> {
        self.lock(key).acquire().await
    }

    /// Acquires the key, waiting in the server's queue for up to `budget`, first come, first served, and over as many
    /// attempts as fit into it: a server that lets nobody wait that long says so and is asked again, and this acquire keeps
    /// its place in the line. An outage counts for the budget, one at its start too, and a session that is still being
    /// opened ([`LockClient::start`], [`LockClient::connect_in_background`]). The answer may come later than that by up to `lock.client.call-timeout`, when a server
    /// keeps silent.
    ///
    /// # Errors
    /// As [`LockClient::acquire`].
    pub async fn acquire_within(&self, key: &LockKey, budget: Duration) -> Result<HeldLock, LockError> {
        self.lock(key).acquire_within(budget).await
    }

    /// Acquires the key if it is free. A refusal is the answer; what did not answer is tried again, up to
    /// `lock.acquire.max-attempts` times.
    ///
    /// # Errors
    /// [`LockError::HeldByOther`] with who holds it; [`LockError::Delayed`] when it is closed for a while; else as [`LockClient::acquire`].
    pub async fn try_acquire(&self, key: &LockKey) -> Result<HeldLock, LockError> {
        self.lock(key).try_acquire().await
    }

    /// Acquires the key, runs `work` and gives the key back. `work` is given the token that has to go along with
    /// everything it does, and a view to check the lock by. It answers what the application wants to know; its answer
    /// comes back whatever became of the lock meanwhile (case L21): a loss is seen by the checks of the work itself and
    /// by the refusals of whoever checks the token, not by the result being taken away. A release that fails is logged;
    /// the lock then ends with its TTL.
    ///
    /// Dropping this future drops the work and gives the lock back in the background.
    ///
    /// ```
    /// # mod served { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/mod.rs")); }
    /// use lock_client::lock_api::{Fate, FencingToken, LockError, LockKey, LockLost, Owner};
    /// use lock_client::{ClientOptions, LockClient};
    ///
    /// async fn write_report(day: &str, token: FencingToken) -> String {
    ///     format!("{day} under token {token}")
    /// }
    ///
    /// # #[actix_rt::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = served::Server::start().await; let url = server.url();
    /// let client = LockClient::connect(&[url], ClientOptions::new(Owner::new("reporter")?)).await?;
    /// let ran = client
    ///     .with_lock(&LockKey::new("reports/daily")?, |token, lock| async move {
    ///         let report = write_report("monday", token).await;
    ///         lock.check_still_held()?; // before the next step
    ///         Ok::<_, LockLost>(report)
    ///     })
    ///     .await;
    /// match ran {
    ///     Ok(Ok(report)) => assert_eq!(report, "monday under token 1"),
    ///     Ok(Err(lost)) => println!("{lost}: somebody else goes on"),
    ///     // Of whatever kind the error is: the work was not begun.
    ///     Err(LockError::ContentionExceeded { .. }) => println!("another machine is at it"),
    ///     Err(error) if error.fate() == Fate::Indefinite => println!("busy for a TTL, perhaps: {error}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`LockClient::acquire`], and then `work` was not called.
    pub async fn with_lock<T, F>(
        &self,
        key: &LockKey,
        work: impl FnOnce(FencingToken, LockView) -> F,
    ) -> Result<T, LockError>
    where
        F: Future<Output = T>,
    {
        let held = self.acquire(key).await?;
        let result = work(held.token(), held.view()).await;
        let token = held.token().get();
        if let Err(error) = held.release().await {
            tracing::info!(event = "release_failed", %key, token, %error);
        }
        Ok(result)
    }

    /// L7: the key as a server has it, through this client's connections. For showing only: it was so when the server
    /// read it, and decides nothing.
    ///
    /// # Errors
    /// [`LockError::Unavailable`] when no server answered, [`LockError::Invalid`] when it refused to.
    pub async fn inspect(&self, key: &LockKey) -> Result<KeyView, LockError> {
        let (tell, told) = oneshot::channel();
        let inspect = Inspect { key: key.clone(), tell };
        self.0.handle.tell_surely(inspect, &self.trace());
        hear(told).await
    }

    /// Ends the session, and with it every lock of this client, and waits until the server has said so. What is still
    /// held is lost ([`lock_api::LostReason::SessionLost`]); what is pending fails.
    ///
    /// # Errors
    /// [`LockError::Unavailable`] when no server answered: always indefinite, the session and what it holds end with its
    /// TTL at the latest.
    pub async fn close(self) -> Result<(), LockError> {
        let (tell, told) = oneshot::channel();
        self.0.handle.tell_surely(Close { tell: Some(tell) }, &self.trace());
        hear(told).await.map_err(|error| in_doubt(error, true))
    }

    /// Whether the client still works: false after [`LockClient::close`] through another clone, or when its actor could
    /// not be restarted any more.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.handle.is_alive()
    }

    /// The name of this client's session.
    #[must_use]
    pub fn owner(&self) -> &lock_api::Owner {
        &self.0.options.owner
    }

    fn trace(&self) -> TraceContext {
        TraceContext::root(&self.0.kit.host().random)
    }
}

async fn hear<T>(told: oneshot::Receiver<Result<T, LockError>>) -> Result<T, LockError> {
    told.await
        .unwrap_or_else(|_| Err(unavailable("the client has stopped")))
}

/// An acquire with its particulars.
#[derive(Debug)]
#[must_use = "nothing happens before one of the acquiring methods is called"]
pub struct LockRequest<'a> {
    client: &'a LockClient,
    key: LockKey,
    ttl: Option<Duration>,
    lock_delay: Option<Duration>,
    metadata: Option<Value>,
    trace: Option<TraceContext>,
}

impl LockRequest<'_> {
    /// The lease's own TTL, instead of `lock.grant.ttl`.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long the key stays closed to everybody should this lock be lost uncleanly, at most 60 s, instead of
    /// [`ClientOptions::lock_delay`].
    pub const fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = Some(delay);
        self
    }

    /// Metadata, at most 4,096 bytes as compact JSON, shown to whoever is refused.
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// The trace this acquire belongs to (NFR-08).
    pub const fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// See [`LockClient::acquire`].
    ///
    /// # Errors
    /// As there.
    pub async fn acquire(self) -> Result<HeldLock, LockError> {
        self.send(Mode::Attempts).await
    }

    /// See [`LockClient::acquire_within`].
    ///
    /// # Errors
    /// As there.
    pub async fn acquire_within(self, budget: Duration) -> Result<HeldLock, LockError> {
        self.send(Mode::Within(budget)).await
    }

    /// See [`LockClient::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub async fn try_acquire(self) -> Result<HeldLock, LockError> {
        self.send(Mode::Try).await
    }

    async fn send(self, mode: Mode) -> Result<HeldLock, LockError> {
        let shared = self.client.0.clone();
        if let Some(ttl) = self.ttl {
            check_ttl("ttl", ttl, shared.options.safety_margin)?;
        }
        let (tell, told) = oneshot::channel();
        let acquire = Acquire {
            key: self.key,
            mode,
            ttl: self.ttl,
            lock_delay: check_lock_delay(self.lock_delay.unwrap_or(shared.options.lock_delay))?,
            metadata: self.metadata,
            shared: shared.clone(),
            tell,
        };
        let trace = self.trace.unwrap_or_else(|| self.client.trace());
        if shared.handle.tell(acquire, &trace).is_err() {
            return Err(unavailable("the client has stopped, or has too much to do"));
        }
        told.await
            .unwrap_or_else(|_| Err(in_doubt(unavailable("the client has stopped"), true)))
    }
}

/// Puts the core on a thread of its own and waits for its address.
async fn on_own_thread(
    kit: &Kit,
    options: ClientOptions,
    count: Counts,
    connect: Connect,
) -> Result<Handle<Core>, LockError> {
    let Blocking::Threads(spawn) = &kit.host().blocking else {
        return Err(invalid("this host has no threads: place the client here"));
    };
    let (started, handle) = oneshot::channel();
    let thread_kit = kit.clone();
    let body = move || {
        actix_rt::System::new().block_on(async move {
            let (done, ended) = oneshot::channel();
            let (handle, kept) = spawn_core(&thread_kit, options, count, connect, Some(done));
            if started.send(handle).is_err() {
                return;
            }
            // Ready when the session was closed; an error when the actor could not be restarted any more.
            drop(ended.await);
            kept.abandon();
        });
    };
    spawn("dlock-client", Box::new(body)).map_err(|error| unavailable(format!("no thread for the client: {error}")))?;
    handle
        .await
        .map_err(|_| unavailable("the client's thread ended at its start"))
}
