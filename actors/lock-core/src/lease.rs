//! One live key at this replica.
//!
//! | | |
//! |---|---|
//! | owns | the queue of those who want the key here (its order, its bound, who is told what) |
//! | does not own | the grant: the store does; tokens: the store mints them; expiry: the store judges it |
//! | on failure | a restart drops the queue; whoever waited is told that the outcome is unknown. What the store granted meanwhile ends by its TTL, or is found again by its request id |
//! | messages | [`Acquire`], [`Minted`], [`LookedUp`], [`Undone`], [`KeyFreed`], [`NewsAreHeard`], [`KeyRenewed`], [`SessionEnded`], [`Tick`], [`DrainQueue`] |
//!
//! ```text
//! Acquire → Queue (pure) → Mint → lease clock → one batch → store → Minted → Queue → replies
//! ```

use crate::answers::{Acquired, Refusal};
use crate::config::Config;
use crate::lease_clock::{LeaseClock, LeaseGone, LookUp, Mint, Unwanted, UnwantedThenTell, WaitChanged};
use crate::queue::{Action, Caller, Entry, Queue};
use actor_kit::{Ask, Behaviour, Cx, Handle, Receive, Reply, TimerHandle, TraceContext};
use lock_api::{AcquireOutcome, AcquireRequest, FencingToken, KeyState, LockKey, RequestId, SessionId, StoreError};
use serde_json::json;
use std::time::Duration;

/// Asks for a key (L4).
#[derive(Debug)]
pub(crate) struct Acquire {
    pub(crate) request: AcquireRequest,
    /// Whether the grant lives as long as its session's TTL, whatever the request says.
    pub(crate) ttl_of_session: bool,
    pub(crate) names_itself: bool,
    pub(crate) received_at: Duration,
    pub(crate) wait: Duration,
}

impl Ask for Acquire {
    type Answer = Result<Acquired, Refusal>;
    const NAME: &'static str = "Acquire";
}

/// The store has answered the attempt of this request.
#[derive(Debug)]
pub(crate) struct Minted {
    pub(crate) of: (SessionId, RequestId),
    pub(crate) outcome: Result<AcquireOutcome, StoreError>,
    pub(crate) started: Duration,
}

/// The store has answered who holds the key.
#[derive(Debug)]
pub(crate) struct LookedUp {
    pub(crate) state: Result<KeyState, StoreError>,
}

/// A grant of an unknown answer was given back; `certainly` or perhaps.
#[derive(Debug)]
pub(crate) struct Undone {
    pub(crate) certainly: bool,
}

/// The grant under this token has ended.
#[derive(Debug)]
pub(crate) struct KeyFreed {
    pub(crate) token: FencingToken,
}

/// The grant under this token was extended.
#[derive(Debug)]
pub(crate) struct KeyRenewed {
    pub(crate) token: FencingToken,
    pub(crate) expires_in: Duration,
}

/// From now on it is heard when the grant ends.
#[derive(Debug)]
pub(crate) struct NewsAreHeard;

/// A session that waits here has ended.
#[derive(Debug)]
pub(crate) struct SessionEnded {
    pub(crate) id: SessionId,
}

/// Time has passed, or a caller may have gone.
#[derive(Debug)]
pub(crate) struct Tick;

/// Look the key up again.
#[derive(Debug)]
pub(crate) struct LookUpAgain;

/// Is this actor still of use?
#[derive(Debug)]
pub(crate) struct Linger;

/// The replica stops: nobody waits any more.
#[derive(Debug)]
pub(crate) struct DrainQueue;

macro_rules! event {
    ($($name:ident = $text:literal),*) => {$(
        impl Ask for $name {
            type Answer = ();
            const NAME: &'static str = $text;
        }
    )*};
}
event!(
    LookedUp = "LookedUp",
    Undone = "Undone",
    NewsAreHeard = "NewsAreHeard",
    SessionEnded = "SessionEnded",
    Tick = "Tick",
    LookUpAgain = "LookUpAgain",
    Linger = "Linger",
    DrainQueue = "DrainQueue"
);

impl Ask for Minted {
    type Answer = ();
    const NAME: &'static str = "Minted";

    fn token(&self) -> Option<u64> {
        match &self.outcome {
            Ok(AcquireOutcome::Granted { grant, .. }) => Some(grant.token.get()),
            _ => None,
        }
    }
}

impl Ask for KeyFreed {
    type Answer = ();
    const NAME: &'static str = "KeyFreed";

    fn token(&self) -> Option<u64> {
        Some(self.token.get())
    }
}

impl Ask for KeyRenewed {
    type Answer = ();
    const NAME: &'static str = "KeyRenewed";

    fn token(&self) -> Option<u64> {
        Some(self.token.get())
    }
}

/// Who waits for an answer, and in which trace.
#[derive(Debug)]
pub(crate) struct Asker {
    reply: Reply<Result<Acquired, Refusal>>,
    trace: TraceContext,
}

impl Caller for Asker {
    fn has_gone(&self) -> bool {
        self.reply.is_abandoned()
    }
}

/// Between two look-ups of an unknown answer.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(200);

/// See the module.
pub(crate) struct LeaseActor {
    key: LockKey,
    clock: Handle<LeaseClock>,
    queue: Queue<Asker>,
    linger: Duration,
    /// The one pending tick and when it is due.
    tick: Option<(Duration, TimerHandle)>,
    /// The one pending [`Linger`] and when it is due.
    lingering: Option<(Duration, TimerHandle)>,
    /// Kept at least until then.
    keep_until: Duration,
}

impl LeaseActor {
    pub(crate) fn new(key: LockKey, clock: Handle<LeaseClock>, config: &Config) -> Self {
        Self {
            key,
            clock,
            queue: Queue::new(config.waiters_max, config.wake_safety),
            linger: config.linger,
            tick: None,
            lingering: None,
            keep_until: Duration::ZERO,
        }
    }

    /// Does what the queue decided, and sees to it that it is asked again in time.
    fn act(&mut self, actions: Vec<Action<Asker>>, cx: &mut Cx<'_, Self>) {
        for action in actions {
            match action {
                Action::Attempt(request) => {
                    // In the trace of whoever it is made for, not of whoever freed the key.
                    let trace = self.queue.asking_for().map_or(*cx.trace(), |asker| asker.trace);
                    self.clock.tell_surely(Mint { request }, &trace);
                }
                Action::Answer {
                    caller,
                    mut answer,
                    guarded,
                } => {
                    if guarded && let Ok(Acquired::Granted(granted)) = &mut answer {
                        granted.guard(self.clock.clone(), caller.trace);
                    }
                    caller.reply.send(answer);
                }
                Action::Undo(request) => self.clock.tell_surely(Unwanted { request }, cx.trace()),
                Action::UndoThenTell(request) => self.clock.tell_surely(UnwantedThenTell { request }, cx.trace()),
                Action::LookUp { again: false } => self.look_up(cx),
                Action::LookUp { again: true } => {
                    cx.notify_later(LookUpAgain, LOOK_UP_PAUSE);
                }
                Action::Waiting { session, begins } => self.clock.tell_surely(
                    WaitChanged {
                        key: self.key.clone(),
                        session,
                        begins,
                        waiters: self.queue.waiters(),
                    },
                    cx.trace(),
                ),
            }
        }
        let now = cx.clock().mono();
        self.plan_tick(now, cx);
        self.keep_until = now + self.linger;
        if self.queue.is_idle(now) {
            self.plan_leaving(cx);
        }
    }

    /// A key that is held keeps its actor until the end of the grant; one that is free keeps it a moment longer, so that
    /// a hot key does not start an actor per acquire.
    fn plan_leaving(&mut self, cx: &mut Cx<'_, Self>) {
        let now = cx.clock().mono();
        let at = self.keep_until.max(self.queue.held_until().unwrap_or_default());
        // A timer that is early looks again; only one that is late is worth replacing.
        if self.lingering.as_ref().is_some_and(|(due, _)| *due <= at + self.linger) {
            return;
        }
        if let Some((_, timer)) = self.lingering.take() {
            timer.cancel();
        }
        let timer = cx.notify_later(Linger, at.saturating_sub(now) + Duration::from_millis(1));
        self.lingering = Some((at, timer));
    }

    fn look_up(&self, cx: &Cx<'_, Self>) {
        self.clock.tell_surely(LookUp { key: self.key.clone() }, cx.trace());
    }

    fn plan_tick(&mut self, now: Duration, cx: &mut Cx<'_, Self>) {
        let due = self.queue.next_tick();
        if due == self.tick.as_ref().map(|(at, _)| *at) {
            return;
        }
        if let Some((_, timer)) = self.tick.take() {
            timer.cancel();
        }
        if let Some(at) = due {
            // Timers round down to whole milliseconds here and there: one more, so that the tick finds it due.
            let after = at.saturating_sub(now) + Duration::from_millis(1);
            self.tick = Some((at, cx.notify_later(Tick, after)));
        }
    }

    fn with_queue(
        &mut self,
        cx: &mut Cx<'_, Self>,
        decide: impl FnOnce(&mut Queue<Asker>, Duration, &mut Vec<Action<Asker>>),
    ) {
        let mut actions = Vec::new();
        decide(&mut self.queue, cx.clock().mono(), &mut actions);
        self.act(actions, cx);
    }
}

impl Behaviour for LeaseActor {
    const KIND: &'static str = "lease";

    fn observe(&self) -> serde_json::Value {
        let mut state = self.queue.observe();
        state["key"] = json!(self.key.as_str());
        state
    }
}

impl Receive<Acquire> for LeaseActor {
    fn receive(&mut self, message: Acquire, reply: Reply<Result<Acquired, Refusal>>, cx: &mut Cx<'_, Self>) {
        let caller = Asker {
            reply,
            trace: *cx.trace(),
        };
        self.with_queue(cx, |queue, now, out| {
            let entry = Entry::new(
                message.request,
                message.names_itself,
                message.received_at,
                now,
                message.wait,
                caller,
            );
            queue.join(entry, now, out);
        });
    }
}

impl Receive<Minted> for LeaseActor {
    fn receive(&mut self, message: Minted, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.with_queue(cx, |queue, now, out| {
            let of = (&message.of.0, &message.of.1);
            queue.outcome(of, message.outcome, message.started, now, out);
        });
    }
}

impl Receive<LookedUp> for LeaseActor {
    fn receive(&mut self, message: LookedUp, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.with_queue(cx, |queue, now, out| queue.looked_up(message.state, now, out));
    }
}

impl Receive<LookUpAgain> for LeaseActor {
    fn receive(&mut self, _: LookUpAgain, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.look_up(cx);
    }
}

impl Receive<Undone> for LeaseActor {
    fn receive(&mut self, message: Undone, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.with_queue(cx, |queue, now, out| queue.undone(message.certainly, now, out));
    }
}

impl Receive<KeyFreed> for LeaseActor {
    fn receive(&mut self, message: KeyFreed, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.with_queue(cx, |queue, now, out| queue.freed(message.token, now, out));
    }
}

impl Receive<NewsAreHeard> for LeaseActor {
    fn receive(&mut self, _: NewsAreHeard, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.with_queue(cx, Queue::hears);
    }
}

impl Receive<KeyRenewed> for LeaseActor {
    fn receive(&mut self, message: KeyRenewed, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.with_queue(cx, |queue, now, _| {
            queue.renewed(message.token, now + message.expires_in)
        });
    }
}

impl Receive<SessionEnded> for LeaseActor {
    fn receive(&mut self, message: SessionEnded, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.with_queue(cx, |queue, now, out| queue.session_ended(&message.id, now, out));
    }
}

impl Receive<Tick> for LeaseActor {
    fn receive(&mut self, _: Tick, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        // A tick that was asked for from outside leaves the planned one in place.
        if self.tick.as_ref().is_some_and(|(at, _)| *at <= cx.clock().mono()) {
            self.tick = None;
        }
        self.with_queue(cx, Queue::tick);
    }
}

impl Receive<DrainQueue> for LeaseActor {
    fn receive(&mut self, _: DrainQueue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.with_queue(cx, Queue::drain);
    }
}

impl Receive<Linger> for LeaseActor {
    fn receive(&mut self, _: Linger, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.lingering = None;
        let now = cx.clock().mono();
        if !self.queue.is_idle(now) {
            return; // the end of that work plans it anew
        }
        let held = self.queue.held_until().is_some_and(|until| until > now);
        // Nothing can come in between: parent and child live on one thread.
        if !held && self.keep_until <= now && cx.mailbox_depth() == 0 {
            self.clock.tell_surely(LeaseGone { key: self.key.clone() }, cx.trace());
            cx.stop();
        } else {
            self.plan_leaving(cx);
        }
    }
}
