//! The core as a gateway uses it: one method per verb, from any thread.
//!
//! Owns: nothing; it asks the lease clock, and reads from the store what no actor decides.
//! On failure: [`Refusal`], which says whether the request may have been done.

use crate::answers::{Acquired, Refusal};
use crate::config::Config;
use crate::lease::Acquire;
use crate::lease_clock::{
    AskToYield, Beat, CallerGone, Close, CountWaiters, Drain, ForceRevoke, Inspect, LeaseClock, Open, Release, Renew,
    Subscribe,
};
use crate::metrics::Metrics;
use crate::queue::HELD_OPEN_MAX;
use actor_kit::{Ask, AskError, Handle, Kit, Receive, TraceContext};
use host_kit::{Clock, Faults, fault_point};
use lock_api::{
    AcquireRequest, EventQuery, ExpiredGrant, FloorOutcome, Heartbeat, HeartbeatOutcome, KeyState, Lineage, LockEvent,
    LockKey, LockStore, OpenSession, Operator, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
    RevokeOutcome, RevokeRequest, Seal, SessionId, SessionView, StoreError, StoreHealth, YieldOutcome, YieldRequest,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// One acquire as the gateway passes it on.
#[derive(Debug)]
pub struct AcquireCall {
    /// What is asked for. Its request id is the client's own or one that the gateway made.
    pub request: AcquireRequest,
    /// Whether the grant lives as long as its session's TTL, whatever the request says (C3.3 L4).
    pub ttl_of_session: bool,
    /// Whether the request id is the client's own, so that it can find its grant again (cases L18, L22).
    pub names_itself: bool,
    /// When the request was received, on the process's monotonic clock.
    pub received_at: Duration,
    /// How long it waits in the key's queue.
    pub wait: Duration,
}

/// The running core. Cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct LockService {
    clock: Handle<LeaseClock>,
    store: Arc<dyn LockStore>,
    config: Arc<Config>,
    metrics: Metrics,
    time: Clock,
    faults: Faults,
}

impl std::fmt::Debug for LockService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockService")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// Counts an acquire whose caller goes away, and tells its queue.
struct Listening<'a> {
    service: &'a LockService,
    key: &'a LockKey,
    trace: &'a TraceContext,
    waits: bool,
    answered: bool,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.service.metrics.count_acquire("abandoned");
            if self.waits {
                let key = self.key.clone();
                self.service.clock.tell_surely(CallerGone { key }, self.trace);
            }
        }
    }
}

impl LockService {
    /// Starts the lease clock on the current `LocalSet`.
    #[must_use]
    pub fn start(kit: &Kit, store: Arc<dyn LockStore>, config: Config, metrics: Metrics) -> Self {
        let config = Arc::new(config);
        let (of, with, counted) = (store.clone(), config.clone(), metrics.clone());
        let clock = kit.spawn("lease-clock", move || {
            LeaseClock::new(of.clone(), with.clone(), counted.clone())
        });
        Self {
            clock,
            store,
            config,
            metrics,
            time: kit.clock().clone(),
            faults: kit.host().faults.clone(),
        }
    }

    /// What it keeps to.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether the lease clock takes messages.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.clock.is_alive()
    }

    /// How long an answer may take at most: one call under way, one's own, and what an unknown answer costs.
    fn within(&self) -> Duration {
        self.config.store_timeout * 2 + Duration::from_millis(500)
    }

    /// How long an acquire may take beyond its wait: the store may be asked once more what it granted, and the key may be
    /// held open for a waiter before it.
    #[must_use]
    pub fn acquire_within(&self) -> Duration {
        self.within() + self.config.store_timeout + HELD_OPEN_MAX
    }

    async fn ask<M, T>(&self, message: M, trace: &TraceContext) -> Result<T, Refusal>
    where
        M: Ask<Answer = Result<T, Refusal>>,
        LeaseClock: Receive<M>,
    {
        match self.clock.ask(message, self.within(), trace).await {
            Ok(answer) => answer,
            Err(AskError::Overloaded) => Err(Refusal::Overloaded("requests")),
            Err(error) => Err(Refusal::Ask(error)),
        }
    }

    /// L1.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn open(&self, request: OpenSession, trace: &TraceContext) -> Result<SessionView, Refusal> {
        self.open_for(None, request, trace).await
    }

    /// L1 for the caller at this address, who may have half of the replica's sessions, and whose sessions may hold half of
    /// its keys.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn open_for(
        &self,
        caller: Option<IpAddr>,
        request: OpenSession,
        trace: &TraceContext,
    ) -> Result<SessionView, Refusal> {
        self.ask(Open { request, caller }, trace).await
    }

    /// L2.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn heartbeat(&self, request: Heartbeat, trace: &TraceContext) -> Result<HeartbeatOutcome, Refusal> {
        self.ask(Beat { request }, trace).await
    }

    /// L3.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn close(&self, id: SessionId, trace: &TraceContext) -> Result<Vec<ExpiredGrant>, Refusal> {
        self.ask(Close { id }, trace).await
    }

    /// L4. A granted answer that is dropped without [`crate::Granted::claim`] is given back where nobody could find it
    /// again.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn acquire(&self, call: AcquireCall, trace: &TraceContext) -> Result<Acquired, Refusal> {
        let (key, wait, received_at) = (call.request.key.clone(), call.wait, call.received_at);
        let mut listening = Listening {
            service: self,
            key: &key,
            trace,
            waits: !wait.is_zero(),
            answered: false,
        };
        let message = Acquire {
            request: call.request,
            ttl_of_session: call.ttl_of_session,
            names_itself: call.names_itself,
            received_at,
            wait,
        };
        let within = wait + self.acquire_within();
        let answer = match self.clock.ask(message, within, trace).await {
            Ok(answer) => answer,
            Err(AskError::Overloaded) => Err(Refusal::Overloaded("requests")),
            Err(error) => Err(Refusal::Ask(error)),
        };
        listening.answered = true;
        let outcome = match &answer {
            Ok(acquired) => acquired.label(),
            Err(Refusal::Overloaded(_)) => "overloaded",
            Err(refusal) if refusal.is_ambiguous() => "unknown",
            Err(_) => "unavailable",
        };
        self.metrics.count_acquire(outcome);
        let took = self.time.mono().saturating_sub(received_at);
        self.metrics.acquire_duration.observe(took.as_secs_f64());
        if let Ok(Acquired::Granted(granted)) = &answer
            && !wait.is_zero()
        {
            self.metrics.wait_duration.observe(granted.waited().as_secs_f64());
        }
        answer
    }

    /// L5.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn renew(&self, request: RenewRequest, trace: &TraceContext) -> Result<RenewOutcome, Refusal> {
        self.ask(Renew { request }, trace).await
    }

    /// L6. Done even when the caller goes away.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn release(&self, request: ReleaseRequest, trace: &TraceContext) -> Result<ReleaseOutcome, Refusal> {
        self.ask(Release { request }, trace).await
    }

    /// L8. Done even when the caller goes away.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn revoke(&self, request: RevokeRequest, trace: &TraceContext) -> Result<RevokeOutcome, Refusal> {
        self.ask(ForceRevoke { request }, trace).await
    }

    /// L11: asks the holder to give its grant up. It ends nothing: its holder reads of it in its next heartbeat or
    /// renewal, and decides.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn ask_to_yield(&self, request: YieldRequest, trace: &TraceContext) -> Result<YieldOutcome, Refusal> {
        self.ask(AskToYield { request }, trace).await
    }

    /// L7: a key, and how many wait for it here.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn inspect(&self, key: LockKey, trace: &TraceContext) -> Result<(KeyState, u32), Refusal> {
        self.ask(Inspect { key }, trace).await
    }

    /// L7: keys by prefix, with how many wait for each here.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn list(
        &self,
        prefix: String,
        after: Option<LockKey>,
        limit: u32,
        trace: &TraceContext,
    ) -> Result<Vec<(KeyState, u32)>, Refusal> {
        let states = self
            .read(self.store.list(prefix, after, limit, self.config.store_timeout))
            .await?;
        let keys = states.iter().map(|state| state.key.clone()).collect();
        let waiters = self
            .clock
            .ask(CountWaiters { keys }, self.within(), trace)
            .await
            .map_err(Refusal::Ask)?;
        Ok(states.into_iter().zip(waiters).collect())
    }

    /// L7: the events of a key from now on, in order. The channel ends when its reader falls behind: then it reads on
    /// from the store, after the last event it has, and subscribes again.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn subscribe(&self, key: LockKey, trace: &TraceContext) -> Result<mpsc::Receiver<LockEvent>, Refusal> {
        self.ask(Subscribe { key }, trace).await
    }

    async fn read<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, Refusal> {
        let began = self.time.mono();
        let answer = call.await;
        self.metrics
            .store_call("read", 1, self.time.mono().saturating_sub(began));
        answer.map_err(|error| {
            self.metrics.store_failed("read", &error);
            Refusal::Store(error)
        })
    }

    /// L7, L9: events in order.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn events(&self, query: EventQuery) -> Result<Vec<LockEvent>, Refusal> {
        self.read(self.store.events(query, self.config.store_timeout)).await
    }

    /// The `seq` of the last event, 0 before the first.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn last_event(&self) -> Result<u64, Refusal> {
        self.read(self.store.changed_since(0, Duration::from_millis(5))).await
    }

    /// L9: one live session.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn session(&self, id: SessionId) -> Result<Option<SessionView>, Refusal> {
        self.read(self.store.session(id, self.config.store_timeout)).await
    }

    /// L9: live sessions in order of id.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn sessions(&self, after: Option<SessionId>, limit: u32) -> Result<Vec<SessionView>, Refusal> {
        self.read(self.store.sessions(after, limit, self.config.store_timeout))
            .await
    }

    /// L9: seals after an event.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn seals(&self, after: u64, limit: u32) -> Result<Vec<Seal>, Refusal> {
        self.read(self.store.seals(after, limit, self.config.store_timeout))
            .await
    }

    /// L9: the store's lineage.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn lineage(&self) -> Result<Lineage, Refusal> {
        let lineage = self.read(self.store.lineage(self.config.store_timeout)).await?;
        self.metrics.lineage(lineage.state);
        Ok(lineage)
    }

    /// L9: raises the floor.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn advance_floor(&self, floor: u64, operator: Operator, reason: String) -> Result<FloorOutcome, Refusal> {
        let within = self.config.store_timeout;
        fault_point!(self.faults, "lock_server.before_floor");
        let answer = self
            .read(self.store.advance_floor(floor, operator, reason, within))
            .await;
        fault_point!(self.faults, "lock_server.after_floor");
        answer
    }

    /// L9: dismisses a doubt.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn dismiss_regression(&self, operator: Operator, reason: String) -> Result<FloorOutcome, Refusal> {
        let within = self.config.store_timeout;
        fault_point!(self.faults, "lock_server.before_dismiss");
        let answer = self.read(self.store.dismiss_regression(operator, reason, within)).await;
        fault_point!(self.faults, "lock_server.after_dismiss");
        answer
    }

    /// Whether the store can do its work.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn health(&self) -> Result<StoreHealth, Refusal> {
        self.read(self.store.health(self.config.store_timeout)).await
    }

    /// The replica stops: whoever waits is told at once, watches end, nobody waits any more.
    pub fn drain(&self, trace: &TraceContext) {
        self.clock.tell_surely(Drain {}, trace);
    }

    /// Ends the actors. What waits for them is told that they have stopped.
    pub fn stop(&self) {
        self.clock.stop();
    }
}
