//! What all actors of one process share: the host's handles, the registry of live actors, the trace, the metrics.

use crate::behaviour::Behaviour;
use crate::handle::Handle;
use crate::hosted::{Control, Hosted};
use crate::metrics::Metrics;
use crate::restart::RestartPolicy;
use crate::span::Spans;
use crate::trace::TraceRing;
use actix::{Actor, AsyncContext, Recipient};
use futures_util::future::join_all;
use host_kit::{Clock, Host};
use prometheus::{IntGauge, Registry};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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
}

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
    pub(crate) started: Duration,
    depth: AtomicUsize,
    depth_gauge: IntGauge,
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
}

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
    /// Counts a message in. False, and not counted, when the mailbox is full.
    pub(crate) fn enter(&self, bounded: bool) -> bool {
        if self.depth.fetch_add(1, Ordering::AcqRel) >= self.capacity && bounded {
            self.depth.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        self.depth_gauge.inc();
        true
    }

    pub(crate) fn leave(&self) {
        self.depth.fetch_sub(1, Ordering::AcqRel);
        self.depth_gauge.dec();
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
    /// What kind it is.
    pub kind: &'static str,
    /// Messages waiting.
    pub mailbox_depth: usize,
    /// How many may wait.
    pub mailbox_capacity: usize,
    /// How long it has lived, restarts included.
    pub age_ms: u64,
    /// How often it was restarted after a panic.
    pub restarts: u64,
    /// What is left of a pause.
    pub paused_for_ms: Option<u64>,
    /// The last message it handled.
    pub last_message: Option<LastMessage>,
    /// Its observable state; null when it did not answer in time (paused, or busy).
    pub state: serde_json::Value,
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
        Self(Arc::new(Inner {
            component,
            trace: TraceRing::new(trace_capacity, host.clock.clone()),
            metrics: Metrics::new(registry),
            policy,
            actors: Mutex::default(),
            spans: AtomicU64::new(1),
            span_seed: host.random.u64(),
            host: host.clone(),
        }))
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

    /// Begins spans of this process, for what takes longer than a message.
    #[must_use]
    pub fn spans(&self) -> Spans {
        Spans::new(self.0.trace.clone(), self.0.host.random.clone())
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
        self.spawn_below(None, name, Box::new(factory))
    }

    pub(crate) fn spawn_below<B: Behaviour>(
        &self,
        parent: Option<&Arc<Shared>>,
        name: &str,
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
            started: self.clock().mono(),
            depth: AtomicUsize::new(0),
            depth_gauge: self.0.metrics.depth.with_label_values(&[B::KIND]),
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
        let seen = lock(&shared.state);
        ActorInfo {
            path: shared.path.to_string(),
            kind: shared.kind,
            mailbox_depth: shared.depth(),
            mailbox_capacity: shared.capacity,
            age_ms: millis(now.saturating_sub(shared.started)),
            restarts: shared.restarts.load(Ordering::Relaxed),
            paused_for_ms: seen.paused_until.map(|until| millis(until.saturating_sub(now))),
            last_message: seen.last.map(|(message, at, handled)| LastMessage {
                message,
                ago_ms: millis(now.saturating_sub(at)),
                handled_us: u64::try_from(handled.as_micros()).unwrap_or(u64::MAX),
            }),
            state,
        }
    }
}
