//! The actix actor around a behaviour.

use crate::ask::{Ask, AskError, Reply, was_just_sent};
use crate::behaviour::{Behaviour, Receive};
use crate::context::TraceContext;
use crate::guard::guarded;
use crate::handle::Handle;
use crate::kit::{Kit, Shared, lock};
use crate::restart::Panics;
use crate::trace::{About, Outcome, TraceRecord};
use actix::{Actor, ActorContext, ActorFuture, ActorFutureExt, Addr, AsyncContext, Context, Handler, WrapFuture};
use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, LocalBoxFuture};
use futures_util::stream::FuturesUnordered;
use host_kit::{Clock, Host};
use prometheus::Histogram;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::oneshot;

/// What the kit itself tells an actor.
pub(crate) enum Control {
    Pause {
        number: u64,
        duration: Duration,
    },
    Stop,
    Observe(oneshot::Sender<serde_json::Value>),
    #[cfg(feature = "lab")]
    Crash,
}

impl actix::Message for Control {
    type Result = ();
}

/// A place among the waiting messages of an actor.
pub(crate) struct Counted {
    shared: Arc<Shared>,
    ticket: u64,
}

impl Counted {
    pub(crate) const fn new(shared: Arc<Shared>, ticket: u64) -> Self {
        Self { shared, ticket }
    }
}

/// A message on its way, with what the kit knows about it.
pub(crate) struct Envelope<M: Ask> {
    content: Option<(M, Reply<M::Answer>)>,
    /// The span that caused it.
    cause: TraceContext,
    enqueued: Duration,
    /// Where it counts as waiting until it is taken or dropped.
    counted: Counted,
    /// For a message to oneself: void after a restart.
    generation: Option<u64>,
}

impl<M: Ask> Envelope<M> {
    pub(crate) const fn new(
        message: M,
        reply: Reply<M::Answer>,
        cause: TraceContext,
        enqueued: Duration,
        counted: Counted,
        generation: Option<u64>,
    ) -> Self {
        Self {
            content: Some((message, reply)),
            cause,
            enqueued,
            counted,
            generation,
        }
    }

    pub(crate) fn take(&mut self) -> Option<(M, Reply<M::Answer>)> {
        self.content.take()
    }
}

impl<M: Ask> Drop for Envelope<M> {
    fn drop(&mut self) {
        self.counted.shared.leave(self.counted.ticket);
        // Never handled: the mailbox was closed before its turn.
        if let Some((_, reply)) = self.content.take() {
            reply.refuse(AskError::Stopped);
        }
    }
}

impl<M: Ask> actix::Message for Envelope<M> {
    type Result = ();
}

type Delivery<B> = Box<dyn FnOnce(&mut Hosted<B>, &mut Context<Hosted<B>>)>;

pub(crate) struct Hosted<B: Behaviour> {
    /// None between a panic and the restart.
    behaviour: Option<B>,
    core: Core<B>,
}

struct Core<B: Behaviour> {
    kit: Kit,
    shared: Arc<Shared>,
    addr: Addr<Hosted<B>>,
    factory: Box<dyn FnMut() -> B>,
    /// Rises with each restart.
    generation: u64,
    panics: Panics,
    /// Piped futures and timers. One set, polled as one future of the actor: it freezes with a pause and goes with the
    /// actor, and a thousand pending ones cost nothing while they wait.
    pending: FuturesUnordered<LocalBoxFuture<'static, Option<Delivery<B>>>>,
    /// Few names, so a list is the fastest map.
    durations: Vec<(&'static str, Histogram)>,
}

impl<B: Behaviour> Core<B> {
    fn handle(&self) -> Handle<B> {
        Handle::new(self.addr.clone(), self.shared.clone(), self.kit.clone())
    }

    fn observe_duration(&mut self, message: &'static str, handled: Duration) {
        let seconds = handled.as_secs_f64();
        if let Some((_, histogram)) = self.durations.iter().find(|(name, _)| *name == message) {
            histogram.observe(seconds);
        } else {
            let histogram = self.kit.metrics().handle(B::KIND, message);
            histogram.observe(seconds);
            self.durations.push((message, histogram));
        }
    }
}

/// One message in the hands of its actor.
struct Turn<M: Ask> {
    message: M,
    reply: Reply<M::Answer>,
    cause: TraceContext,
    enqueued: Duration,
}

impl<B: Behaviour> Hosted<B> {
    pub(crate) fn new(kit: Kit, shared: Arc<Shared>, addr: Addr<Self>, factory: Box<dyn FnMut() -> B>) -> Self {
        Self {
            behaviour: None,
            core: Core {
                kit,
                shared,
                addr,
                factory,
                generation: 0,
                panics: Panics::default(),
                pending: FuturesUnordered::new(),
                durations: Vec::new(),
            },
        }
    }

    /// Makes a behaviour and starts it.
    fn build(&mut self, ctx: &mut Context<Self>) {
        if self.core.shared.is_stopped() {
            // Its parent went while it waited for its restart.
            ctx.stop();
            return;
        }
        lock(&self.core.shared.state).restarts_at = None;
        let trace = TraceContext::root(&self.core.kit.host().random);
        let (factory, slot) = (&mut self.core.factory, &mut self.behaviour);
        let built = guarded(|| *slot = Some(factory()));
        let started = built.and_then(|()| {
            let Self { behaviour, core } = self;
            guarded(|| {
                if let Some(behaviour) = behaviour {
                    behaviour.started(&mut Cx { core, ctx, trace });
                }
            })
        });
        if let Err(panic) = started {
            self.crashed("started", &*panic, ctx);
        }
    }

    /// The behaviour panicked: what it was and all it had begun is dropped, and a new one is built in due time. Messages
    /// in the mailbox stay.
    fn crashed(&mut self, message: &'static str, panic: &(dyn Any + Send), ctx: &mut Context<Self>) {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no text".to_owned());
        let core = &mut self.core;
        core.generation += 1;
        core.shared.restarts.fetch_add(1, Ordering::Relaxed);
        core.shared.metrics.restarts.inc();
        let delay = core.panics.next_delay(core.kit.policy(), core.kit.clock().mono());
        tracing::error!(
            event = "actor_panicked", actor = %core.shared.path, message, detail = text,
            restart_in_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
        );
        core.kit.tell_of_panic(&core.shared.path);
        core.kit.stop_children(&core.shared);
        // Destructors of a broken behaviour may panic as well; there is nothing left to save in it.
        let behaviour = self.behaviour.take();
        let _ = guarded(|| drop(behaviour));
        let _ = guarded(|| core.pending.clear());
        if delay.is_zero() {
            self.build(ctx);
        } else {
            let clock = self.core.kit.clock().clone();
            lock(&self.core.shared.state).restarts_at = clock.mono().checked_add(delay);
            ctx.wait(
                async move { clock.sleep(delay).await }
                    .into_actor(self)
                    .map(|(), hosted: &mut Self, ctx| hosted.build(ctx)),
            );
        }
    }

    /// Gives a message its turn: deadline, handler, trace.
    fn take_turn<M: Ask>(&mut self, turn: Turn<M>, ctx: &mut Context<Self>)
    where
        B: Receive<M>,
    {
        let Turn {
            message,
            reply,
            cause,
            enqueued,
        } = turn;
        let Self { behaviour, core } = self;
        let began = core.kit.clock().mono();
        let trace = cause.with_span(core.kit.next_span());
        let (token, about) = (message.token(), message.about());
        let (id, expected) = (reply.id(), reply.is_expected());
        let mut panicked = None;
        let outcome = if !M::ALWAYS_HANDLED && reply.deadline().is_some_and(|deadline| began >= deadline) {
            reply.refuse(AskError::Deadline);
            Outcome::Expired
        } else if !M::ALWAYS_HANDLED && reply.is_abandoned() {
            Outcome::Abandoned
        } else if let Some(behaviour) = behaviour {
            let mut cx = Cx { core, ctx, trace };
            match guarded(|| behaviour.receive(message, reply, &mut cx)) {
                Ok(()) if !expected => Outcome::Done,
                Ok(()) if id != 0 && was_just_sent(id) => Outcome::Answered,
                Ok(()) => Outcome::Deferred,
                Err(panic) => {
                    panicked = Some(panic);
                    Outcome::Panicked
                }
            }
        } else {
            // Unreachable while a restart freezes the mailbox; were it reached, nothing was done.
            reply.refuse(AskError::Stopped);
            Outcome::Failed
        };
        let ended = self.core.kit.clock().mono();
        let handled = ended.saturating_sub(began);
        lock(&self.core.shared.state).last = Some((M::NAME, ended, handled));
        self.core.observe_duration(M::NAME, handled);
        if self.core.kit.trace().is_on() {
            self.core.kit.trace().record(TraceRecord {
                seq: 0,
                actor: self.core.shared.path.clone(),
                kind: B::KIND,
                message: M::NAME,
                at: began,
                queued: began.saturating_sub(enqueued),
                handled,
                outcome,
                code: None,
                trace,
                parent_span: cause.span_id(),
                token,
                about: match about {
                    About::Nothing => self.core.shared.about.clone(),
                    about => about,
                },
            });
        }
        if let Some(panic) = panicked {
            self.crashed(M::NAME, &*panic, ctx);
        }
    }
}

impl<B: Behaviour> Actor for Hosted<B> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.build(ctx);
        ctx.spawn(Pending);
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        self.core.kit.stop_children(&self.core.shared);
        self.core.kit.forget(&self.core.shared);
    }
}

impl<B: Behaviour + Receive<M>, M: Ask> Handler<Envelope<M>> for Hosted<B> {
    type Result = ();

    fn handle(&mut self, mut envelope: Envelope<M>, ctx: &mut Context<Self>) {
        let stale = envelope
            .generation
            .is_some_and(|generation| generation != self.core.generation);
        if self.core.shared.is_stopped() || stale {
            return;
        }
        let Some((message, reply)) = envelope.take() else {
            return;
        };
        let (cause, enqueued) = (envelope.cause, envelope.enqueued);
        // It no longer waits: its handler sees the depth without itself.
        drop(envelope);
        self.take_turn(
            Turn {
                message,
                reply,
                cause,
                enqueued,
            },
            ctx,
        );
    }
}

impl<B: Behaviour> Handler<Control> for Hosted<B> {
    type Result = ();

    fn handle(&mut self, control: Control, ctx: &mut Context<Self>) {
        match control {
            Control::Stop => ctx.stop(),
            Control::Observe(to) => {
                let state = self.behaviour.as_ref().map(|behaviour| guarded(|| behaviour.observe()));
                match state {
                    Some(Ok(state)) => drop(to.send(state)),
                    // To look at an actor never harms it: the state is left as it is.
                    Some(Err(_)) => drop(to.send(serde_json::json!({ "observe": "panicked" }))),
                    None => {}
                }
            }
            Control::Pause { number, duration } => {
                let shared = self.core.shared.clone();
                if shared.is_resumed(number) {
                    return;
                }
                let clock = self.core.kit.clock().clone();
                lock(&shared.state).paused_until = clock.mono().checked_add(duration);
                tracing::warn!(event = "actor_paused", actor = %shared.path, for_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
                ctx.wait(
                    shared
                        .paused(number, clock, duration)
                        .into_actor(self)
                        .map(|(), hosted: &mut Self, _| {
                            lock(&hosted.core.shared.state).paused_until = None;
                            tracing::warn!(event = "actor_resumed", actor = %hosted.core.shared.path);
                        }),
                );
            }
            #[cfg(feature = "lab")]
            Control::Crash => self.crashed("crash", &"asked to crash", ctx),
        }
    }
}

/// Drives the pending futures of an actor.
struct Pending;

impl<B: Behaviour> ActorFuture<Hosted<B>> for Pending {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        hosted: &mut Hosted<B>,
        ctx: &mut Context<Hosted<B>>,
        task: &mut std::task::Context<'_>,
    ) -> Poll<()> {
        // A delivery may pause, crash or stop the actor: then the rest waits.
        while !ctx.waiting() {
            // Each of them catches its own panic, which is then the actor's.
            let polled = guarded(|| hosted.core.pending.poll_next_unpin(task));
            match polled.unwrap_or(Poll::Pending) {
                Poll::Ready(Some(Some(delivery))) => delivery(hosted, ctx),
                Poll::Ready(Some(None)) => {}
                // An empty set is polled again as soon as a handler has pushed, because the context polls its futures
                // after its mailbox.
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Pending
    }
}

/// What a behaviour can do besides changing its own state.
pub struct Cx<'a, B: Behaviour> {
    core: &'a mut Core<B>,
    ctx: &'a mut Context<Hosted<B>>,
    trace: TraceContext,
}

impl<B: Behaviour> fmt::Debug for Cx<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx")
            .field("path", &self.path())
            .field("trace", &self.trace)
            .finish_non_exhaustive()
    }
}

/// A timer that can be cancelled. Dropping it does not cancel.
#[derive(Debug)]
pub struct TimerHandle(AbortHandle);

impl TimerHandle {
    /// Its message will not come.
    pub fn cancel(self) {
        self.0.abort();
    }
}

impl<B: Behaviour> Cx<'_, B> {
    /// The kit.
    #[must_use]
    pub fn kit(&self) -> &Kit {
        &self.core.kit
    }

    /// The handles of the process.
    #[must_use]
    pub fn host(&self) -> &Host {
        self.core.kit.host()
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.core.kit.clock()
    }

    /// The actor's path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.core.shared.path
    }

    /// The trace and span of this turn: the cause of whatever is sent now.
    #[must_use]
    pub const fn trace(&self) -> &TraceContext {
        &self.trace
    }

    /// Does something in another trace: work that waited in the actor's own state goes on in the trace it came in, not in
    /// that of the message which happened to free it.
    pub fn in_trace<T>(&mut self, trace: TraceContext, work: impl FnOnce(&mut Self) -> T) -> T {
        let of_this_turn = std::mem::replace(&mut self.trace, trace);
        let done = work(self);
        self.trace = of_this_turn;
        done
    }

    /// How many messages wait behind this one.
    #[must_use]
    pub fn mailbox_depth(&self) -> usize {
        self.core.shared.depth()
    }

    /// The actor's own address.
    #[must_use]
    pub fn myself(&self) -> Handle<B> {
        self.core.handle()
    }

    /// Sends a message to oneself, behind all that wait now. Void after a restart.
    pub fn notify<M: Ask<Answer = ()>>(&mut self, message: M)
    where
        B: Receive<M>,
    {
        self.notify_in(message, self.trace);
    }

    /// As [`Cx::notify`], in another trace: where a new piece of work begins.
    pub fn notify_in<M: Ask<Answer = ()>>(&mut self, message: M, trace: TraceContext)
    where
        B: Receive<M>,
    {
        let generation = Some(self.core.generation);
        let _ = self
            .core
            .handle()
            .enqueue(message, Reply::nobody(), &trace, false, generation);
    }

    /// Sends a message to oneself after a time. A hint, never a guard: queued messages may be handled before an overdue
    /// one, so whoever depends on a deadline compares it with the clock itself.
    pub fn notify_later<M: Ask<Answer = ()>>(&mut self, message: M, after: Duration) -> TimerHandle
    where
        B: Receive<M>,
    {
        let clock = self.clock().clone();
        let (abort, registration) = AbortHandle::new_pair();
        let sleep = Abortable::new(
            async move {
                clock.sleep(after).await;
                message
            },
            registration,
        );
        self.push(async move { sleep.await.ok() });
        TimerHandle(abort)
    }

    /// Runs a future beside the mailbox; its output comes back as a message to oneself, in the same trace. It freezes
    /// with a pause, and is dropped when the actor stops or restarts. A panic in it is a panic of the actor.
    pub fn pipe<F, M>(&mut self, future: F, into_message: impl FnOnce(F::Output) -> M + 'static)
    where
        F: Future + 'static,
        M: Ask<Answer = ()>,
        B: Receive<M>,
    {
        self.push(async move { Some(into_message(future.await)) });
    }

    fn push<M: Ask<Answer = ()>>(&mut self, future: impl Future<Output = Option<M>> + 'static)
    where
        B: Receive<M>,
    {
        let cause = self.trace;
        let delivery = AssertUnwindSafe(future)
            .catch_unwind()
            .map(move |output| -> Option<Delivery<B>> {
                match output {
                    Ok(None) => None,
                    Ok(Some(message)) => Some(Box::new(move |hosted: &mut Hosted<B>, ctx: &mut Context<Hosted<B>>| {
                        let turn = Turn {
                            message,
                            reply: Reply::nobody(),
                            cause,
                            enqueued: hosted.core.kit.clock().mono(),
                        };
                        hosted.take_turn(turn, ctx);
                    })),
                    Err(panic) => Some(Box::new(move |hosted: &mut Hosted<B>, ctx: &mut Context<Hosted<B>>| {
                        hosted.crashed(M::NAME, &*panic, ctx);
                    })),
                }
            });
        self.core.pending.push(Box::pin(delivery));
    }

    /// Starts an actor below this one. It stops when this one stops or restarts.
    pub fn spawn_child<C: Behaviour>(&mut self, name: &str, factory: impl FnMut() -> C + 'static) -> Handle<C> {
        self.core
            .kit
            .spawn_below(Some(&self.core.shared), name, About::Nothing, Box::new(factory))
    }

    /// As [`Cx::spawn_child`], with what the actor is about: its records in the trace carry it.
    pub fn spawn_child_about<C: Behaviour>(
        &mut self,
        name: &str,
        about: About,
        factory: impl FnMut() -> C + 'static,
    ) -> Handle<C> {
        self.core
            .kit
            .spawn_below(Some(&self.core.shared), name, about, Box::new(factory))
    }

    /// Stops this actor after the current turn. What waits in its mailbox is answered [`AskError::Stopped`].
    pub fn stop(&mut self) {
        self.core.shared.stopped.store(true, Ordering::Release);
        self.ctx.stop();
    }
}
