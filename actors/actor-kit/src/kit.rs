//! What all actors of one process share: the host's handles, the registry of live actors, the trace, the metrics.

use crate::behaviour::Behaviour;
use crate::context::TraceContext;
use crate::handle::Handle;
use crate::hosted::{Control, Hosted};
use crate::metrics::{Metrics, OfKind};
use crate::process::Process;
use crate::restart::RestartPolicy;
use crate::trace::{About, TraceRing};
use actix::{Actor, AsyncContext, Recipient};
use futures_util::future::join_all;
use host_kit::{Clock, Host};
use prometheus::Registry;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How long [`Kit::actors`] waits for an actor's own state before it shows the actor without one.
const OBSERVE_WITHIN: Duration = Duration::from_millis(250);

/// The actors of one process. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Kit(Arc<Inner>);

struct Inner {
    component: &'static str,
    host: Host,
    trace: TraceRing,
    metrics: Metrics,
    policy: RestartPolicy,
    actors: Mutex<BTreeMap<Arc<str>, Entry>>,
    spans: AtomicU64,
    span_seed: u64,
    after_panic: OnceLock<AfterPanic>,
}

/// What is called with the path of an actor that has panicked.
type AfterPanic = Box<dyn Fn(&str) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Recipient<Control>,
}

/// What an actor, its handles and the registry know in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: Arc<str>,
    pub(crate) kind: &'static str,
    pub(crate) capacity: usize,
    /// What it is about, for its records in the trace.
    pub(crate) about: About,
    pub(crate) started: Duration,
    /// The messages that wait, in the order they came.
    waiting: Mutex<Waiting>,
    depth: AtomicUsize,
    pub(crate) metrics: OfKind,
    pub(crate) restarts: AtomicU64,
    /// Set before the mailbox closes: from here on messages are refused, not handled.
    pub(crate) stopped: AtomicBool,
    /// The number of the last pause asked for, and of the last one that was ended early.
    pauses: AtomicU64,
    resumed: AtomicU64,
    resume: Notify,
    pub(crate) state: Mutex<Seen>,
    parent: Option<Weak<Shared>>,
    pub(crate) children: Mutex<BTreeMap<Arc<str>, Entry>>,
}

/// What was last seen of an actor.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Name, end and duration of the last handling.
    pub(crate) last: Option<(&'static str, Duration, Duration)>,
    /// Until when it is paused.
    pub(crate) paused_until: Option<Duration>,
    /// When it is built anew after a panic, while it waits for that.
    pub(crate) restarts_at: Option<Duration>,
}

/// Messages that wait, each under a number of its own: two that came at once may stand in the mailbox the other way
/// round.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    queue: VecDeque<(u64, &'static str, Duration)>,
}

/// An empty queue keeps room for this many messages, and gives back what a burst took beyond it.
const WAITING_KEPT: usize = 64;

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shared.path)
    }
}

/// Locks what a panic elsewhere cannot have left half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Counts a message in and gives it a number. None, and not counted, when the mailbox is full.
    pub(crate) fn enter(&self, name: &'static str, now: Duration, bounded: bool) -> Option<u64> {
        if self.depth.fetch_add(1, Ordering::AcqRel) >= self.capacity && bounded {
            self.depth.fetch_sub(1, Ordering::AcqRel);
            self.metrics.full.inc();
            return None;
        }
        self.metrics.depth.inc();
        let mut waiting = lock(&self.waiting);
        waiting.next += 1;
        let ticket = waiting.next;
        waiting.queue.push_back((ticket, name, now));
        Some(ticket)
    }

    pub(crate) fn leave(&self, ticket: u64) {
        self.depth.fetch_sub(1, Ordering::AcqRel);
        self.metrics.depth.dec();
        let mut waiting = lock(&self.waiting);
        // Nearly always the first.
        if let Some(at) = waiting.queue.iter().position(|(number, _, _)| *number == ticket) {
            waiting.queue.remove(at);
        }
        if waiting.queue.is_empty() && waiting.queue.capacity() > WAITING_KEPT {
            waiting.queue.shrink_to(WAITING_KEPT);
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends the pauses asked for so far, begun or not.
    fn resume(&self) {
        self.resumed
            .fetch_max(self.pauses.load(Ordering::Acquire), Ordering::AcqRel);
        self.resume.notify_waiters();
    }

    /// Waits until the pause with this number is over or was ended early.
    pub(crate) async fn paused(self: Arc<Self>, number: u64, clock: Clock, duration: Duration) {
        let resumed = async {
            loop {
                // Listening begins before the look, so that a resume in between is not missed.
                let notified = self.resume.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if self.resumed.load(Ordering::Acquire) >= number {
                    break;
                }
                notified.await;
            }
        };
        tokio::select! { biased; () = resumed => {}, () = clock.sleep(duration) => {} }
    }

    pub(crate) fn is_resumed(&self, number: u64) -> bool {
        self.resumed.load(Ordering::Acquire) >= number
    }
}

/// No live actor has this path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no actor {path:?}")]
pub struct NoSuchActor {
    /// The path that was asked for.
    pub path: String,
}

/// An actor as shown to an operator or a test.
#[derive(Clone, Debug, Serialize)]
pub struct ActorInfo {
    /// Its path: the component, its parents, its own name.
    pub path: String,
    /// The path of the actor that started it and stops it; none for one that the component started itself.
    pub parent: Option<String>,
    /// What kind it is.
    pub kind: &'static str,
    /// Messages waiting.
    pub mailbox_depth: usize,
    /// How many may wait.
    pub mailbox_capacity: usize,
    /// The message that has waited longest.
    pub oldest_waiting: Option<WaitingMessage>,
    /// How long it has lived, restarts included.
    pub age_ms: u64,
    /// How often it was restarted after a panic.
    pub restarts: u64,
    /// Whether it is paused.
    pub paused: bool,
    /// What is left of a pause.
    pub paused_for_ms: Option<u64>,
    /// When the pause ends, in milliseconds since 1970.
    pub paused_until_ms: Option<i64>,
    /// What is left until it is built anew, while it waits for that after a panic.
    pub restarts_in_ms: Option<u64>,
    /// The last message it handled.
    pub last_message: Option<LastMessage>,
    /// Its observable state; null when it did not answer in time (paused, or busy).
    pub state: serde_json::Value,
}

/// A message in a mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitingMessage {
    /// Its name.
    pub message: &'static str,
    /// How long it has waited.
    pub age_ms: u64,
}

/// The last message that an actor handled.
#[derive(Clone, Debug, Serialize)]
pub struct LastMessage {
    /// Its name.
    pub message: &'static str,
    /// How long ago its handling ended.
    pub ago_ms: u64,
    /// How long the handler took.
    pub handled_us: u64,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Kit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kit")
            .field("component", &self.0.component)
            .finish_non_exhaustive()
    }
}

impl Kit {
    /// The kit of a component, which is the first segment of its actors' paths. Its metrics are registered here.
    #[must_use]
    pub fn new(component: &'static str, host: &Host, registry: &Registry) -> Self {
        Self::with(component, host, registry, TraceRing::CAPACITY, RestartPolicy::default())
    }

    /// As [`Kit::new`], with the trace's capacity and the rate of restarts chosen.
    #[must_use]
    pub fn with(
        component: &'static str,
        host: &Host,
        registry: &Registry,
        trace_capacity: usize,
        policy: RestartPolicy,
    ) -> Self {
        let span_seed = host.random.u64();
        // Another number out of the same chance, so that a seeded run draws no more than it did.
        let process = Process::new(
            component,
            span_seed.rotate_left(32).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        );
        Self(Arc::new(Inner {
            component,
            trace: TraceRing::new(trace_capacity, host.clock.clone(), Arc::new(process)),
            metrics: Metrics::new(registry),
            policy,
            actors: Mutex::default(),
            spans: AtomicU64::new(1),
            span_seed,
            after_panic: OnceLock::new(),
            host: host.clone(),
        }))
    }

    /// Names this process among others of its component, for its dumps. The first name stays.
    pub fn name_instance(&self, instance: &str) {
        self.0.trace.process().name(instance);
    }

    /// Has `call` called with the path of each actor that panics, after the panic is in the trace and before the actor is
    /// built anew. The first one stays; it must not block.
    pub fn after_panic(&self, call: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.0.after_panic.set(Box::new(call));
    }

    pub(crate) fn tell_of_panic(&self, path: &str) {
        if let Some(call) = self.0.after_panic.get() {
            call(path);
        }
    }

    /// A span of this process below `cause`: for work that is no message, such as a request or a call.
    #[must_use]
    pub fn span_below(&self, cause: &TraceContext) -> TraceContext {
        cause.with_span(self.next_span())
    }

    /// The handles of the process.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.0.host
    }

    /// The process's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.host.clock
    }

    /// The component's name.
    #[must_use]
    pub fn component(&self) -> &'static str {
        self.0.component
    }

    /// The trace of this process.
    #[must_use]
    pub fn trace(&self) -> &TraceRing {
        &self.0.trace
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn policy(&self) -> &RestartPolicy {
        &self.0.policy
    }

    /// A span id that no other message of this process has: a counter, spread over all bits by an odd factor.
    pub(crate) fn next_span(&self) -> u64 {
        let n = self.0.spans.fetch_add(1, Ordering::Relaxed);
        (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.0.span_seed).max(1)
    }

    /// Starts an actor on the current `LocalSet` (or actix `System`). The factory makes its behaviour now, and again after
    /// each panic. Its path is `<component>/<name>`, with `#2` and so on appended while that path is taken.
    pub fn spawn<B: Behaviour>(&self, name: &str, factory: impl FnMut() -> B + 'static) -> Handle<B> {
        self.spawn_below(None, name, About::Nothing, Box::new(factory))
    }

    pub(crate) fn spawn_below<B: Behaviour>(
        &self,
        parent: Option<&Arc<Shared>>,
        name: &str,
        about: About,
        factory: Box<dyn FnMut() -> B>,
    ) -> Handle<B> {
        let wanted = match parent {
            Some(parent) => format!("{}/{name}", parent.path),
            None => format!("{}/{name}", self.0.component),
        };
        let mut actors = lock(&self.0.actors);
        let mut path: Arc<str> = wanted.as_str().into();
        let mut n = 2;
        while actors.contains_key(&path) {
            path = format!("{wanted}#{n}").into();
            n += 1;
        }
        let shared = Arc::new(Shared {
            path: path.clone(),
            kind: B::KIND,
            capacity: B::MAILBOX_CAPACITY,
            about,
            started: self.clock().mono(),
            waiting: Mutex::default(),
            depth: AtomicUsize::new(0),
            metrics: self.0.metrics.of_kind(B::KIND, B::MAILBOX_CAPACITY),
            restarts: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            pauses: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            resume: Notify::new(),
            state: Mutex::default(),
            parent: parent.map(Arc::downgrade),
            children: Mutex::default(),
        });
        let addr = Hosted::create(|ctx: &mut actix::Context<Hosted<B>>| {
            // The bound is the kit's own (an exact count, which is also the metric): actix's is switched off.
            ctx.set_mailbox_capacity(0);
            Hosted::new(self.clone(), shared.clone(), ctx.address(), factory)
        });
        let entry = Entry {
            shared: shared.clone(),
            control: addr.clone().recipient(),
        };
        actors.insert(path.clone(), entry.clone());
        entry.shared.metrics.alive.inc();
        drop(actors);
        if let Some(parent) = parent {
            lock(&parent.children).insert(path, entry);
        }
        Handle::new(addr, shared, self.clone())
    }

    /// Takes an actor that has stopped out of the registry and of its parent.
    pub(crate) fn forget(&self, shared: &Arc<Shared>) {
        shared.stopped.store(true, Ordering::Release);
        let remove = |from: &Mutex<BTreeMap<Arc<str>, Entry>>| {
            let mut from = lock(from);
            // A successor may already have taken the path.
            if from
                .get(&shared.path)
                .is_some_and(|entry| Arc::ptr_eq(&entry.shared, shared))
            {
                from.remove(&shared.path)
            } else {
                None
            }
        };
        let entry = remove(&self.0.actors);
        if entry.is_some() {
            shared.metrics.alive.dec();
        }
        drop(entry);
        if let Some(parent) = shared.parent.as_ref().and_then(Weak::upgrade) {
            drop(remove(&parent.children));
        }
    }

    /// Stops everything below an actor at once, whatever waits in the mailboxes.
    pub(crate) fn stop_children(&self, shared: &Shared) {
        let children = std::mem::take(&mut *lock(&shared.children));
        for entry in children.into_values() {
            self.forget(&entry.shared);
            entry.shared.resume();
            entry.control.do_send(Control::Stop);
        }
    }

    fn entry(&self, path: &str) -> Result<Entry, NoSuchActor> {
        lock(&self.0.actors)
            .get(path)
            .cloned()
            .ok_or_else(|| NoSuchActor { path: path.to_owned() })
    }

    /// Freezes an actor's mailbox, timers and pending futures after the message it works on, for this long or until it is
    /// resumed. Its deadlines go on: afterwards it finds them passed, as after a pause of the whole process.
    ///
    /// # Errors
    /// [`NoSuchActor`].
    pub fn pause(&self, path: &str, duration: Duration) -> Result<(), NoSuchActor> {
        let entry = self.entry(path)?;
        let number = entry.shared.pauses.fetch_add(1, Ordering::AcqRel) + 1;
        entry.control.do_send(Control::Pause { number, duration });
        Ok(())
    }

    /// Ends all pauses of an actor asked for so far, begun or not.
    ///
    /// # Errors
    /// [`NoSuchActor`].
    pub fn resume(&self, path: &str) -> Result<(), NoSuchActor> {
        self.entry(path)?.shared.resume();
        Ok(())
    }

    /// Makes an actor panic, as a defect in it would.
    ///
    /// # Errors
    /// [`NoSuchActor`].
    #[cfg(feature = "lab")]
    pub fn crash(&self, path: &str) -> Result<(), NoSuchActor> {
        self.entry(path)?.control.do_send(Control::Crash);
        Ok(())
    }

    /// How many actors live.
    #[must_use]
    pub fn actor_count(&self) -> usize {
        lock(&self.0.actors).len()
    }

    /// All live actors, in the order of their paths. Asks each for its state.
    pub async fn actors(&self) -> Vec<ActorInfo> {
        self.actors_below("", usize::MAX).await
    }

    /// At most `limit` live actors whose path begins with `prefix`, in the order of their paths.
    pub async fn actors_below(&self, prefix: &str, limit: usize) -> Vec<ActorInfo> {
        let entries: Vec<Entry> = lock(&self.0.actors)
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(path, _)| path.starts_with(prefix))
            .take(limit)
            .map(|(_, entry)| entry.clone())
            .collect();
        join_all(entries.into_iter().map(|entry| self.observe(entry))).await
    }

    async fn observe(&self, entry: Entry) -> ActorInfo {
        let (to, from) = oneshot::channel();
        entry.control.do_send(Control::Observe(to));
        let state = match tokio::time::timeout(OBSERVE_WITHIN, from).await {
            Ok(Ok(state)) => state,
            _ => serde_json::Value::Null,
        };
        let now = self.clock().mono();
        let shared = entry.shared;
        let oldest = lock(&shared.waiting).queue.front().copied();
        let seen = lock(&shared.state);
        let paused = seen.paused_until.map(|until| until.saturating_sub(now));
        ActorInfo {
            path: shared.path.to_string(),
            parent: shared
                .parent
                .as_ref()
                .and_then(Weak::upgrade)
                .map(|parent| parent.path.to_string()),
            kind: shared.kind,
            mailbox_depth: shared.depth(),
            mailbox_capacity: shared.capacity,
            age_ms: millis(now.saturating_sub(shared.started)),
            restarts: shared.restarts.load(Ordering::Relaxed),
            oldest_waiting: oldest.map(|(_, message, since)| WaitingMessage {
                message,
                age_ms: millis(now.saturating_sub(since)),
            }),
            paused: paused.is_some(),
            paused_for_ms: paused.map(millis),
            paused_until_ms: paused.map(|left| {
                self.clock()
                    .wall_ms()
                    .saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX))
            }),
            restarts_in_ms: seen.restarts_at.map(|at| millis(at.saturating_sub(now))),
            last_message: seen.last.map(|(message, at, handled)| LastMessage {
                message,
                ago_ms: millis(now.saturating_sub(at)),
                handled_us: u64::try_from(handled.as_micros()).unwrap_or(u64::MAX),
            }),
            state,
        }
    }
}
