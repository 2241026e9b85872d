//! One session as this replica knows it.
//!
//! | | |
//! |---|---|
//! | owns | whether the session is believed alive here, and at which keys it waits |
//! | does not own | the session itself (the store does), its expiry (the store judges, the lease clock sweeps), its grants |
//! | on failure | a restart forgets what it knew: it asks the store again before the next acquire passes |
//! | messages | [`Acquire`] (vetted, then passed on), [`Waits`], [`Opened`], [`Heard`], [`Ended`] |
//!
//! Why it exists: a waiter must be told 404 at once when its session dies, and only whoever knows where a session
//! waits can tell those queues (L4). A session opened elsewhere is looked up once; after that no acquire asks again.

use crate::answers::{Acquired, Refusal};
use crate::lease::Acquire;
use crate::lease_clock::{LeaseClock, SessionGone, SessionOver, Vetted};
use actor_kit::{Ask, Behaviour, Cx, Handle, Receive, Reply, TraceContext};
use lock_api::{LockKey, LockStore, SessionId, SessionView, StoreError, Ttl};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The session was heard of: opened, or its heartbeat was answered.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) expires_in: Duration,
}

/// The session was opened here.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) ttl: Ttl,
    pub(crate) expires_in: Duration,
}

/// The session has ended.
#[derive(Debug)]
pub(crate) struct Ended;

/// A request of the session begins or ceases to wait at a key.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) key: LockKey,
    pub(crate) begins: bool,
}

/// The store has answered who the session is.
#[derive(Debug)]
pub(crate) struct Known {
    answer: Result<Option<SessionView>, StoreError>,
}

/// Nothing was heard for long: is it still of use?
#[derive(Debug)]
pub(crate) struct Idle;

macro_rules! event {
    ($($name:ident = $text:literal),*) => {$(
        impl Ask for $name {
            type Answer = ();
            const NAME: &'static str = $text;
        }
    )*};
}
event!(
    Opened = "Opened",
    Heard = "Heard",
    Ended = "Ended",
    Waits = "Waits",
    Known = "Known",
    Idle = "Idle"
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    /// Nothing is known yet; the store is being asked.
    Unknown,
    /// Alive when last heard of, with this TTL.
    Alive(Ttl),
    /// Over.
    Over,
}

/// An acquire that waits to be vetted.
type Parked = (Acquire, Reply<Result<Acquired, Refusal>>, TraceContext);

/// See the module.
pub(crate) struct SessionActor {
    id: SessionId,
    clock: Handle<LeaseClock>,
    store: Arc<dyn LockStore>,
    store_timeout: Duration,
    belief: Belief,
    /// Acquires that wait for the store's answer; the lease clock's mailbox bounds them.
    parked: Vec<Parked>,
    /// How many requests wait at which key.
    waits: BTreeMap<LockKey, u32>,
    /// Until when it is kept without being heard of.
    keep_until: Duration,
    linger: Duration,
}

impl SessionActor {
    pub(crate) const fn new(
        id: SessionId,
        clock: Handle<LeaseClock>,
        store: Arc<dyn LockStore>,
        store_timeout: Duration,
        linger: Duration,
    ) -> Self {
        Self {
            id,
            clock,
            store,
            store_timeout,
            belief: Belief::Unknown,
            parked: Vec::new(),
            waits: BTreeMap::new(),
            keep_until: Duration::ZERO,
            linger,
        }
    }

    fn ask_the_store(&self, cx: &mut Cx<'_, Self>) {
        let (store, id, within) = (self.store.clone(), self.id.clone(), self.store_timeout);
        cx.pipe(async move { store.session(id, within).await }, |answer| Known {
            answer,
        });
    }

    fn alive(&mut self, ttl: Ttl, expires_in: Duration, cx: &Cx<'_, Self>) {
        self.belief = Belief::Alive(ttl);
        self.keep_until = self.keep_until.max(cx.clock().mono() + expires_in + self.linger);
        for (message, reply, trace) in self.parked.drain(..) {
            self.clock.tell_surely(Vetted { message, reply, ttl }, &trace);
        }
    }

    fn over(&mut self, cx: &mut Cx<'_, Self>) {
        self.belief = Belief::Over;
        for (_, reply, _) in self.parked.drain(..) {
            reply.send(Ok(Acquired::SessionNotFound));
        }
        let keys = std::mem::take(&mut self.waits).into_keys().collect();
        self.clock.tell_surely(
            SessionOver {
                id: self.id.clone(),
                keys,
            },
            cx.trace(),
        );
        self.leave_if_idle(cx);
    }

    fn leave_if_idle(&mut self, cx: &mut Cx<'_, Self>) {
        // Nothing can come in between: parent and child live on one thread.
        if self.parked.is_empty() && self.waits.is_empty() && cx.mailbox_depth() == 0 {
            self.clock.tell_surely(SessionGone { id: self.id.clone() }, cx.trace());
            cx.stop();
        } else {
            cx.notify_later(Idle, self.linger);
        }
    }
}

impl Behaviour for SessionActor {
    const KIND: &'static str = "session";

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        self.keep_until = cx.clock().mono() + self.linger;
        cx.notify_later(Idle, self.linger);
    }

    fn observe(&self) -> serde_json::Value {
        json!({
            "session_id": self.id.as_str(),
            "belief": format!("{:?}", self.belief),
            "waits": self.waits.len(),
            "parked": self.parked.len(),
        })
    }
}

impl Receive<Acquire> for SessionActor {
    fn receive(&mut self, message: Acquire, reply: Reply<Result<Acquired, Refusal>>, cx: &mut Cx<'_, Self>) {
        match self.belief {
            Belief::Over => reply.send(Ok(Acquired::SessionNotFound)),
            Belief::Alive(ttl) => self.clock.tell_surely(Vetted { message, reply, ttl }, cx.trace()),
            Belief::Unknown => {
                if self.parked.is_empty() {
                    self.ask_the_store(cx);
                }
                self.parked.push((message, reply, *cx.trace()));
            }
        }
    }
}

impl Receive<Known> for SessionActor {
    fn receive(&mut self, message: Known, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        match message.answer {
            Ok(Some(view)) => {
                if self.belief == Belief::Unknown {
                    self.alive(view.ttl, view.expires_in, cx);
                }
            }
            Ok(None) => self.over(cx),
            Err(error) => {
                for (_, reply, _) in self.parked.drain(..) {
                    reply.send(Err(Refusal::Store(error.clone())));
                }
            }
        }
    }
}

impl Receive<Opened> for SessionActor {
    fn receive(&mut self, message: Opened, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if self.belief != Belief::Over {
            self.alive(message.ttl, message.expires_in, cx);
        }
    }
}

impl Receive<Heard> for SessionActor {
    fn receive(&mut self, message: Heard, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if self.belief != Belief::Over {
            self.keep_until = cx.clock().mono() + message.expires_in + self.linger;
        }
    }
}

impl Receive<Ended> for SessionActor {
    fn receive(&mut self, _: Ended, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.over(cx);
    }
}

impl Receive<Waits> for SessionActor {
    fn receive(&mut self, message: Waits, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if message.begins {
            if self.belief == Belief::Over {
                // It began to wait while its session ended.
                self.clock.tell_surely(
                    SessionOver {
                        id: self.id.clone(),
                        keys: vec![message.key],
                    },
                    cx.trace(),
                );
                return;
            }
            if self.belief == Belief::Unknown && self.parked.is_empty() {
                self.ask_the_store(cx); // this actor is younger than the wait: its predecessor knew the session
            }
            *self.waits.entry(message.key).or_insert(0) += 1;
        } else if let Some(count) = self.waits.get_mut(&message.key) {
            *count -= 1;
            if *count == 0 {
                self.waits.remove(&message.key);
            }
        }
    }
}

impl Receive<Idle> for SessionActor {
    fn receive(&mut self, _: Idle, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let now = cx.clock().mono();
        if self.belief == Belief::Over || self.keep_until <= now {
            self.leave_if_idle(cx);
        } else {
            cx.notify_later(Idle, self.keep_until - now);
        }
    }
}
