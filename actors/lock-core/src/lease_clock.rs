//! The supervisor of a replica: it starts leases and sessions, mints through the store, ends what is due.
//!
//! | | |
//! |---|---|
//! | owns | the lease and session actors; the lanes in which requests become batches; the sweep of what is due; the chores (tombstones, seals, gauges); who watches |
//! | does not own | any grant, token or expiry: the store decides each, by its own clock, in the statement that depends on it |
//! | on failure | a restart forgets queues and lanes and stops all children; whoever waited is told that the outcome is unknown. Nothing durable is lost, because nothing durable is here |
//! | messages | one per verb of C3.3; `Flush`/`Done` per lane; [`ExpireDue`], [`Chore`], [`Listen`] |
//!
//! ```text
//! request → lane ─Flush (behind what the mailbox holds)→ one store call per kind at a time → Done → replies, wake-ups
//! ```
//!
//! Deliberately absent: a timer that delays a request to make a batch larger; a cache that answers for the store.

mod kinds;
mod messages;

pub(crate) use messages::*;

use crate::answers::{Acquired, Refusal};
use crate::callers::Callers;
use crate::config::Config;
use crate::lane::Lane;
use crate::lease::{Acquire, DrainQueue, KeyFreed, LeaseActor, NewsAreHeard, SessionEnded, Tick};
use crate::metrics::Metrics;
use crate::session::{Ended, SessionActor, Waits};
use crate::watches::Watches;
use actor_kit::{About, Behaviour, Cx, Handle, Receive, Reply, TimerHandle, TraceContext, Unsent};
use host_kit::fault_point;
use kinds::{
    Beating, Closing, Done, Flush, Inspecting, Inspector, Item, Kind, Minting, Opening, Releaser, Releasing, Renewing,
    Turn,
};
use lock_api::{
    EventKind, EventQuery, ExpiredGrant, FencingToken, HeartbeatOutcome, KeyState, LockEvent, LockKey, LockStore,
    ReleaseOutcome, RenewOutcome, RevokeOutcome, SessionId, SessionView, StoreError, Ttl, YieldOutcome,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The owner of a lane's items and of everything else here.
pub(crate) struct LeaseClock {
    store: Arc<dyn LockStore>,
    config: Arc<Config>,
    metrics: Metrics,
    leases: BTreeMap<LockKey, Lease>,
    sessions: BTreeMap<SessionId, Session>,
    /// What each caller has: of a bound it gets half.
    callers: Callers,
    opening: Lane<Item<Opening>>,
    beating: Lane<Item<Beating>>,
    closing: Lane<Item<Closing>>,
    minting: Lane<Item<Minting>>,
    renewing: Lane<Item<Renewing>>,
    releasing: Lane<Item<Releasing>>,
    inspecting: Lane<Item<Inspecting>>,
    /// The pending sweep: when, and its timer.
    sweep: Option<(Duration, TimerHandle)>,
    sweeping: bool,
    last_sweep: Duration,
    watches: Watches,
    /// Subscriptions that are answered once it is known from where listening goes on.
    subscribing: Vec<(LockKey, Reply<Subscription>)>,
    /// The last event heard; none while nobody needs to be told.
    cursor: Option<u64>,
    /// Since when news are heard, on the monotonic clock; of use while there is a cursor.
    hears_since: Duration,
    listening: bool,
    /// How many wait at all keys together.
    waiting: u64,
    held: i64,
    live: i64,
    draining: bool,
}

struct Lease {
    handle: Handle<LeaseActor>,
    waiters: u32,
}

struct Session {
    handle: Handle<SessionActor>,
    /// Its TTL, once it is known to live: until then its acquires go through its actor.
    ttl: Option<Ttl>,
    /// Who opened it, where that was here and since the start.
    caller: Option<IpAddr>,
    /// How many keys it holds, put right by each heartbeat.
    keys: usize,
}

impl LeaseClock {
    pub(crate) fn new(store: Arc<dyn LockStore>, config: Arc<Config>, metrics: Metrics) -> Self {
        let bound = config.lane_max;
        Self {
            store,
            config,
            metrics,
            leases: BTreeMap::new(),
            sessions: BTreeMap::new(),
            callers: Callers::default(),
            opening: Lane::new(bound),
            beating: Lane::new(bound),
            closing: Lane::new(bound),
            minting: Lane::new(bound),
            renewing: Lane::new(bound),
            releasing: Lane::new(bound),
            inspecting: Lane::new(bound),
            sweep: None,
            sweeping: false,
            last_sweep: Duration::ZERO,
            watches: Watches::default(),
            subscribing: Vec::new(),
            cursor: None,
            hears_since: Duration::ZERO,
            listening: false,
            waiting: 0,
            held: 0,
            live: 0,
            draining: false,
        }
    }

    fn enqueue<K: Kind>(&mut self, request: K::Request, whom: K::For, cx: &mut Cx<'_, Self>)
    where
        Self: Receive<Flush<K>>,
    {
        let trace = *cx.trace();
        match K::lane(self).push(Item { request, whom, trace }) {
            Ok(true) => cx.notify(Flush::<K>(PhantomData)),
            Ok(false) => {}
            Err(item) => K::refuse(item.whom, Refusal::Overloaded("requests for the store")),
        }
    }

    fn enqueue_surely<K: Kind>(&mut self, request: K::Request, whom: K::For, cx: &mut Cx<'_, Self>)
    where
        Self: Receive<Flush<K>>,
    {
        let trace = *cx.trace();
        if K::lane(self).push_surely(Item { request, whom, trace }) {
            cx.notify(Flush::<K>(PhantomData));
        }
    }

    fn flush<K: Kind>(&mut self, cx: &mut Cx<'_, Self>)
    where
        Self: Receive<Done<K>>,
    {
        let batch_max = self.config.batch_max;
        let Some(items) = K::lane(self).begin(batch_max) else {
            return;
        };
        let mut requests = Vec::with_capacity(items.len());
        let mut whom = Vec::with_capacity(items.len());
        for item in items {
            requests.push(item.request);
            whom.push((item.whom, item.trace));
        }
        let (store, within) = (self.store.clone(), self.config.store_timeout);
        let (faults, clock) = (cx.host().faults.clone(), cx.clock().clone());
        let started = clock.mono();
        cx.pipe(
            async move {
                K::before(&faults);
                let outcome = K::call(&*store, requests, within).await;
                (outcome, clock.mono().saturating_sub(started))
            },
            move |(outcome, took)| Done::<K> {
                whom,
                outcome,
                started,
                took,
            },
        );
    }

    fn done<K: Kind>(&mut self, done: Done<K>, cx: &mut Cx<'_, Self>)
    where
        Self: Receive<Done<K>>,
    {
        K::after(&cx.host().faults.clone());
        self.metrics.store_call(K::OP, done.whom.len(), done.took);
        let more = K::lane(self).end();
        if more {
            // What came meanwhile is on its way to the store before the answers are given out.
            self.flush::<K>(cx);
        }
        match done.outcome {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                for (whom, trace) in done.whom {
                    let outcome = outcomes.next().ok_or_else(|| StoreError::Unknown {
                        detail: "the store answered fewer items than it was asked".into(),
                    });
                    let turn = Turn {
                        started: done.started,
                        trace,
                    };
                    K::apply(self, whom, outcome, &turn, cx);
                }
            }
            Err(error) => {
                self.metrics.store_failed(K::OP, &error);
                tracing::warn!(event = "store_call_failed", op = K::OP, %error);
                for (whom, trace) in done.whom {
                    let turn = Turn {
                        started: done.started,
                        trace,
                    };
                    K::apply(self, whom, Err(error.clone()), &turn, cx);
                }
            }
        }
    }

    // ---- children ----

    fn lease(&mut self, key: &LockKey, cx: &mut Cx<'_, Self>) -> Result<Handle<LeaseActor>, Refusal> {
        if let Some(lease) = self.leases.get(key)
            && lease.handle.is_alive()
        {
            return Ok(lease.handle.clone());
        }
        if self.leases.len() >= self.config.leases_max {
            return Err(Refusal::Overloaded("live keys at this replica"));
        }
        let (clock, config, of) = (cx.myself(), self.config.clone(), key.clone());
        let (name, about) = (
            format!("lease/{}", path_segment(key.as_str())),
            About::Key(key.as_str().into()),
        );
        let handle = cx.spawn_child_about(&name, about, move || {
            LeaseActor::new(of.clone(), clock.clone(), &config)
        });
        let lease = Lease {
            handle: handle.clone(),
            waiters: 0,
        };
        if let Some(old) = self.leases.insert(key.clone(), lease) {
            self.waiting = self.waiting.saturating_sub(u64::from(old.waiters));
        }
        Ok(handle)
    }

    fn session(&mut self, id: &SessionId, cx: &mut Cx<'_, Self>) -> Result<Handle<SessionActor>, Refusal> {
        if let Some(session) = self.sessions.get(id)
            && session.handle.is_alive()
        {
            return Ok(session.handle.clone());
        }
        if self.sessions.len() >= self.config.sessions_max {
            return Err(Refusal::Overloaded("live sessions at this replica"));
        }
        let (clock, store, config, of) = (cx.myself(), self.store.clone(), self.config.clone(), id.clone());
        let handle = cx.spawn_child(&format!("session/{}", path_segment(id.as_str())), move || {
            SessionActor::new(
                of.clone(),
                clock.clone(),
                store.clone(),
                config.store_timeout,
                config.linger,
            )
        });
        let session = Session {
            handle: handle.clone(),
            ttl: None,
            caller: None,
            keys: 0,
        };
        self.forget_session(id);
        self.sessions.insert(id.clone(), session);
        Ok(handle)
    }

    fn pass_on(
        &mut self,
        mut message: Acquire,
        ttl: Ttl,
        mut reply: Reply<Result<Acquired, Refusal>>,
        cx: &mut Cx<'_, Self>,
    ) {
        if message.ttl_of_session {
            message.request.ttl = ttl;
        }
        if self.draining {
            message.wait = Duration::ZERO;
        }
        // Twice: a lease that stopped on its own a moment ago gives both back, and a new one takes them.
        for _ in 0..2 {
            let lease = match self.lease(&message.request.key, cx) {
                Ok(lease) => lease,
                Err(refusal) => return reply.send(Err(refusal)),
            };
            match lease.send_with(message, reply, cx.trace()) {
                Ok(()) => return,
                Err(unsent) => {
                    let Unsent {
                        why,
                        message: back,
                        reply: asker,
                    } = *unsent;
                    (message, reply) = (back, asker);
                    if why == actor_kit::AskError::Overloaded {
                        break;
                    }
                }
            }
        }
        reply.send(Err(Refusal::Overloaded("requests for this key")));
    }

    fn key_freed(&mut self, key: &LockKey, token: FencingToken, trace: &TraceContext) {
        if let Some(lease) = self.leases.get(key) {
            lease.handle.tell_surely(KeyFreed { token }, trace);
        }
    }

    /// Takes a session out of the books.
    fn forget_session(&mut self, id: &SessionId) -> Option<Session> {
        let session = self.sessions.remove(id)?;
        if let Some(caller) = session.caller {
            self.callers.change(caller, |has| {
                has.sessions = has.sessions.saturating_sub(1);
                has.keys = has.keys.saturating_sub(session.keys);
            });
        }
        Some(session)
    }

    /// Writes down who opened a session that is known here.
    fn session_is_of(&mut self, id: &SessionId, caller: Option<IpAddr>) {
        if let (Some(session), Some(caller)) = (self.sessions.get_mut(id), caller)
            && session.caller.is_none()
        {
            session.caller = Some(caller);
            let keys = session.keys;
            self.callers.change(caller, |has| {
                has.sessions += 1;
                has.keys += keys;
            });
        }
    }

    /// Writes down how many keys a session holds now.
    fn session_holds(&mut self, id: &SessionId, count: impl FnOnce(usize) -> usize) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let before = session.keys;
        session.keys = count(before);
        let now = session.keys;
        if let Some(caller) = session.caller {
            self.callers
                .change(caller, |has| has.keys = (has.keys + now).saturating_sub(before));
        }
    }

    /// Whether this session may ask for another key: half of the replica's keys are the most that one session, or one caller
    /// with all of its sessions, may hold.
    fn may_hold_more(&self, id: &SessionId) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get(id) else {
            return Ok(());
        };
        let share = self.config.keys_max.div_ceil(2);
        if session.keys >= share {
            return Err(Refusal::Overloaded("keys held by one session"));
        }
        if session
            .caller
            .is_some_and(|caller| self.callers.of(caller).keys >= share)
        {
            return Err(Refusal::Overloaded("keys held by sessions of one caller"));
        }
        if usize::try_from(self.held).is_ok_and(|held| held >= self.config.keys_max) {
            return Err(Refusal::Overloaded("keys held at this replica"));
        }
        Ok(())
    }

    fn session_ended(&mut self, id: &SessionId, trace: &TraceContext) {
        if let Some(session) = self.forget_session(id) {
            session.handle.tell_surely(Ended, trace);
        }
    }

    fn grants_ended(&mut self, grants: &[ExpiredGrant], trace: &TraceContext) {
        for grant in grants {
            self.session_holds(&grant.session_id, |keys| keys.saturating_sub(1));
            self.held -= 1;
            self.key_freed(&grant.key, grant.token, trace);
        }
        self.show_gauges();
    }

    fn show_gauges(&mut self) {
        self.held = self.held.max(0);
        self.live = self.live.max(0);
        self.metrics.held.set(self.held);
        self.metrics.sessions.set(self.live);
    }

    // ---- what is due ----

    /// Sees to it that a sweep runs at `at`, but not more often than the interval allows.
    fn plan_sweep(&mut self, at: Duration, cx: &mut Cx<'_, Self>) {
        if self.sweeping {
            return; // its report plans the next one
        }
        let at = at.max(self.last_sweep + self.config.expiry_interval);
        if self.sweep.as_ref().is_some_and(|(planned, _)| *planned <= at) {
            return;
        }
        if let Some((_, timer)) = self.sweep.take() {
            timer.cancel();
        }
        let after = at.saturating_sub(cx.clock().mono());
        self.sweep = Some((at, cx.notify_later(ExpireDue {}, after)));
    }

    fn begin_sweep(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some((_, timer)) = self.sweep.take() {
            timer.cancel();
        }
        self.sweeping = true;
        let (store, within, limit) = (self.store.clone(), self.config.store_timeout, self.config.expiry_limit);
        let (faults, clock) = (cx.host().faults.clone(), cx.clock().clone());
        cx.pipe(
            async move {
                let began = clock.mono();
                fault_point!(faults, "lock_server.before_expire");
                let report = store.expire_due(limit, within).await;
                (report, clock.mono().saturating_sub(began))
            },
            |(report, took)| Swept { report, took },
        );
    }

    // ---- listening ----

    fn somebody_listens(&self) -> bool {
        self.waiting > 0 || self.watches.len() > 0 || !self.subscribing.is_empty()
    }

    fn listen(&mut self, cx: &mut Cx<'_, Self>) {
        if self.listening || !self.somebody_listens() {
            return;
        }
        self.listening = true;
        let (store, within, cursor) = (self.store.clone(), self.config.wake_safety, self.cursor);
        let timeout = self.config.store_timeout;
        cx.pipe(
            async move {
                let Some(cursor) = cursor else {
                    return store.changed_since(0, Duration::from_millis(5)).await.map(News::From);
                };
                let last = store.changed_since(cursor, within).await?;
                if last <= cursor {
                    return Ok(News::Events(Vec::new()));
                }
                let query = EventQuery {
                    key: None,
                    after: cursor,
                    limit: 1_000,
                };
                store.events(query, timeout).await.map(News::Events)
            },
            |news| Listened { news },
        );
    }

    fn hear(&mut self, event: &LockEvent, trace: &TraceContext) {
        self.watches.deliver(event);
        match event.kind {
            // Our own releases come back here as well; a lease knows an old token when it sees one.
            EventKind::Released | EventKind::Expired | EventKind::Revoked => {
                if let (Some(key), Some(token)) = (&event.lock_key, event.token) {
                    self.key_freed(key, token, trace);
                }
            }
            EventKind::SessionClosed | EventKind::SessionExpired => {
                if let Some(id) = &event.session_id {
                    self.session_ended(id, trace);
                }
            }
            _ => {}
        }
    }

    fn interval(&self, chore: Chore) -> Duration {
        match chore {
            Chore::PurgeTombstones => self.config.purge_interval,
            Chore::Seal => self.config.seal_interval,
            Chore::DropSealed => self.config.drop_interval,
            Chore::Count => self.config.count_interval,
        }
    }
}

/// A key or id as one segment of an actor's path: everything but plain characters as `%XX`.
fn path_segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-') {
            segment.push(char::from(byte));
        } else {
            segment.push_str(&format!("%{byte:02X}"));
        }
    }
    segment
}

impl Behaviour for LeaseClock {
    const KIND: &'static str = "lease_clock";
    const MAILBOX_CAPACITY: usize = 32_768;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        cx.notify(ExpireDue {});
        cx.notify(ChoreDue { chore: Chore::Count });
        for chore in [Chore::PurgeTombstones, Chore::Seal, Chore::DropSealed] {
            cx.notify_later(ChoreDue { chore }, self.interval(chore));
        }
    }

    fn observe(&self) -> serde_json::Value {
        json!({
            "leases": self.leases.len(),
            "sessions": self.sessions.len(),
            "waiting": self.waiting,
            "watches": self.watches.len(),
            "queued": {
                "open": self.opening.len(),
                "heartbeat": self.beating.len(),
                "close": self.closing.len(),
                "acquire": self.minting.len(),
                "renew": self.renewing.len(),
                "release": self.releasing.len(),
                "inspect": self.inspecting.len(),
            },
            "sweeping": self.sweeping,
            "draining": self.draining,
        })
    }
}

impl<K: Kind> Receive<Flush<K>> for LeaseClock {
    fn receive(&mut self, _: Flush<K>, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.flush::<K>(cx);
    }
}

impl<K: Kind> Receive<Done<K>> for LeaseClock {
    fn receive(&mut self, done: Done<K>, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.done::<K>(done, cx);
    }
}

// ---- handlers in flow order ----

impl Receive<Open> for LeaseClock {
    fn receive(&mut self, message: Open, reply: Reply<Result<SessionView, Refusal>>, cx: &mut Cx<'_, Self>) {
        if self.sessions.len() >= self.config.sessions_max {
            return reply.send(Err(Refusal::Overloaded("live sessions at this replica")));
        }
        let share = self.config.sessions_max.div_ceil(2);
        if message
            .caller
            .is_some_and(|caller| self.callers.of(caller).sessions >= share)
        {
            return reply.send(Err(Refusal::Overloaded("live sessions of one caller at this replica")));
        }
        self.enqueue::<Opening>(message.request, (message.caller, reply), cx);
    }
}

impl Receive<Beat> for LeaseClock {
    fn receive(&mut self, message: Beat, reply: Reply<Result<HeartbeatOutcome, Refusal>>, cx: &mut Cx<'_, Self>) {
        let id = message.request.session_id.clone();
        self.enqueue::<Beating>(message.request, (id, reply), cx);
    }
}

impl Receive<Close> for LeaseClock {
    fn receive(&mut self, message: Close, reply: Reply<Result<Vec<ExpiredGrant>, Refusal>>, cx: &mut Cx<'_, Self>) {
        self.enqueue::<Closing>(message.id.clone(), (message.id, reply), cx);
    }
}

impl Receive<Acquire> for LeaseClock {
    fn receive(&mut self, message: Acquire, reply: Reply<Result<Acquired, Refusal>>, cx: &mut Cx<'_, Self>) {
        if let Err(refusal) = self.may_hold_more(&message.request.session_id) {
            return reply.send(Err(refusal));
        }
        let known = self.sessions.get(&message.request.session_id);
        if let Some(ttl) = known.filter(|session| session.handle.is_alive()).and_then(|s| s.ttl) {
            return self.pass_on(message, ttl, reply, cx);
        }
        // Opened at another replica or before a restart, or not at all: looked up once.
        match self.session(&message.request.session_id, cx) {
            Ok(session) => {
                if let Err(unsent) = session.send_with(message, reply, cx.trace()) {
                    unsent.reply.send(Err(Refusal::Overloaded("requests of this session")));
                }
            }
            Err(refusal) => reply.send(Err(refusal)),
        }
    }
}

impl Receive<Vetted> for LeaseClock {
    fn receive(&mut self, vetted: Vetted, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if let Some(session) = self.sessions.get_mut(&vetted.message.request.session_id) {
            session.ttl = Some(vetted.ttl);
        }
        if !vetted.reply.is_abandoned() {
            self.pass_on(vetted.message, vetted.ttl, vetted.reply, cx);
        }
    }
}

impl Receive<Mint> for LeaseClock {
    fn receive(&mut self, message: Mint, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let request = message.request;
        let whom = (
            request.key.clone(),
            request.session_id.clone(),
            request.request_id.clone(),
        );
        // Bounded by the number of leases: each has one attempt under way.
        self.enqueue_surely::<Minting>(request, whom, cx);
    }
}

impl Receive<Renew> for LeaseClock {
    fn receive(&mut self, message: Renew, reply: Reply<Result<RenewOutcome, Refusal>>, cx: &mut Cx<'_, Self>) {
        self.enqueue::<Renewing>(message.request, reply, cx);
    }
}

impl Receive<Release> for LeaseClock {
    fn receive(&mut self, message: Release, reply: Reply<Result<ReleaseOutcome, Refusal>>, cx: &mut Cx<'_, Self>) {
        let whom = (message.request.clone(), Releaser::Caller(reply));
        self.enqueue::<Releasing>(message.request, whom, cx);
    }
}

impl Receive<Unwanted> for LeaseClock {
    fn receive(&mut self, message: Unwanted, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        tracing::info!(event = "grant_unwanted", key = %message.request.key, token = message.request.token.get(),
            session_id = %message.request.session_id, trace_id = cx.trace().trace_id_hex());
        let whom = (message.request.clone(), Releaser::Nobody(1));
        self.enqueue_surely::<Releasing>(message.request, whom, cx);
    }
}

impl Receive<UnwantedAgain> for LeaseClock {
    fn receive(&mut self, message: UnwantedAgain, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let whom = (message.request.clone(), Releaser::Nobody(message.tries));
        self.enqueue_surely::<Releasing>(message.request, whom, cx);
    }
}

impl Receive<UnwantedThenTell> for LeaseClock {
    fn receive(&mut self, message: UnwantedThenTell, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let whom = (message.request.clone(), Releaser::Lease);
        self.enqueue_surely::<Releasing>(message.request, whom, cx);
    }
}

impl Receive<ForceRevoke> for LeaseClock {
    fn receive(&mut self, message: ForceRevoke, reply: Reply<Result<RevokeOutcome, Refusal>>, cx: &mut Cx<'_, Self>) {
        let (store, within, faults) = (self.store.clone(), self.config.store_timeout, cx.host().faults.clone());
        let (key, request) = (message.request.key.clone(), message.request);
        cx.pipe(
            async move {
                fault_point!(faults, "lock_server.before_revoke");
                store.revoke(request, within).await
            },
            move |outcome| RevokeDone { key, outcome, reply },
        );
    }
}

impl Receive<RevokeDone> for LeaseClock {
    fn receive(&mut self, done: RevokeDone, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        fault_point!(cx.host().faults, "lock_server.after_revoke");
        if let Ok(RevokeOutcome::Revoked { revoked, token }) = &done.outcome {
            tracing::warn!(event = "grant_revoked", key = %done.key, session_id = %revoked.session_id, revoked_token = revoked.token.get(),
                token = token.get(), trace_id = cx.trace().trace_id_hex());
            self.metrics.revoked_total.inc();
            self.session_holds(&revoked.session_id, |keys| keys.saturating_sub(1));
            self.held -= 1;
            self.show_gauges();
            self.key_freed(&done.key, revoked.token, cx.trace());
        }
        if let Err(error) = &done.outcome {
            self.metrics.store_failed("revoke", error);
        }
        done.reply.send(done.outcome.map_err(Refusal::Store));
    }
}

impl Receive<AskToYield> for LeaseClock {
    fn receive(&mut self, message: AskToYield, reply: Reply<Result<YieldOutcome, Refusal>>, cx: &mut Cx<'_, Self>) {
        let (store, within, faults) = (self.store.clone(), self.config.store_timeout, cx.host().faults.clone());
        let request = message.request;
        cx.pipe(
            async move {
                fault_point!(faults, "lock_server.before_yield");
                store.ask_to_yield(request, within).await
            },
            move |outcome| YieldDone { outcome, reply },
        );
    }
}

impl Receive<YieldDone> for LeaseClock {
    fn receive(&mut self, done: YieldDone, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        fault_point!(cx.host().faults, "lock_server.after_yield");
        match &done.outcome {
            // Its holder reads of it in its next heartbeat or renewal, and a watch in the event log.
            Ok(YieldOutcome::Asked(grant)) => {
                tracing::info!(event = "yield_requested", key = %grant.key, session_id = %grant.session_id,
                    token = grant.token.get(), trace_id = cx.trace().trace_id_hex());
            }
            Ok(_) => {}
            Err(error) => self.metrics.store_failed("yield", error),
        }
        done.reply.send(done.outcome.map_err(Refusal::Store));
    }
}

impl Receive<Inspect> for LeaseClock {
    fn receive(&mut self, message: Inspect, reply: Reply<Result<(KeyState, u32), Refusal>>, cx: &mut Cx<'_, Self>) {
        let whom = (message.key.clone(), Inspector::Caller(reply));
        self.enqueue::<Inspecting>(message.key, whom, cx);
    }
}

impl Receive<LookUp> for LeaseClock {
    fn receive(&mut self, message: LookUp, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let whom = (message.key.clone(), Inspector::Lease);
        self.enqueue_surely::<Inspecting>(message.key, whom, cx);
    }
}

impl Receive<CountWaiters> for LeaseClock {
    fn receive(&mut self, message: CountWaiters, reply: Reply<Vec<u32>>, _: &mut Cx<'_, Self>) {
        let count = |key| self.leases.get(key).map_or(0, |lease| lease.waiters);
        reply.send(message.keys.iter().map(count).collect());
    }
}

impl Receive<CallerGone> for LeaseClock {
    fn receive(&mut self, message: CallerGone, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if let Some(lease) = self.leases.get(&message.key) {
            lease.handle.tell_surely(Tick, cx.trace());
        }
    }
}

impl Receive<WaitChanged> for LeaseClock {
    fn receive(&mut self, change: WaitChanged, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if let Some(lease) = self.leases.get_mut(&change.key) {
            let before = std::mem::replace(&mut lease.waiters, change.waiters);
            self.waiting = (self.waiting + u64::from(change.waiters)).saturating_sub(u64::from(before));
            // Its refusal may be older than the news: an attempt takes no longer than a call to the store.
            let young = cx.clock().mono().saturating_sub(self.hears_since) <= self.config.store_timeout;
            if change.begins == Some(true) && self.cursor.is_some() && young {
                lease.handle.tell_surely(NewsAreHeard, cx.trace());
            }
        }
        let Some(begins) = change.begins else {
            return self.listen(cx);
        };
        let waits = Waits {
            key: change.key.clone(),
            begins,
        };
        if let Some(session) = self.sessions.get(&change.session) {
            session.handle.tell_surely(waits, cx.trace());
        } else if begins {
            // The session ended, or was forgotten, between its vetting and its waiting: it is asked for again.
            match self.session(&change.session, cx) {
                Ok(session) => session.tell_surely(waits, cx.trace()),
                Err(refusal) => tracing::warn!(event = "waiter_not_watched", error = %refusal),
            }
        }
        self.listen(cx);
    }
}

impl Receive<SessionOver> for LeaseClock {
    fn receive(&mut self, over: SessionOver, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        for key in &over.keys {
            if let Some(lease) = self.leases.get(key) {
                lease
                    .handle
                    .tell_surely(SessionEnded { id: over.id.clone() }, cx.trace());
            }
        }
    }
}

impl Receive<SessionGone> for LeaseClock {
    fn receive(&mut self, gone: SessionGone, _: Reply<()>, _: &mut Cx<'_, Self>) {
        if self
            .sessions
            .get(&gone.id)
            .is_some_and(|session| !session.handle.is_alive())
        {
            self.forget_session(&gone.id);
        }
    }
}

impl Receive<LeaseGone> for LeaseClock {
    fn receive(&mut self, gone: LeaseGone, _: Reply<()>, _: &mut Cx<'_, Self>) {
        if self.leases.get(&gone.key).is_some_and(|lease| !lease.handle.is_alive())
            && let Some(lease) = self.leases.remove(&gone.key)
        {
            self.waiting = self.waiting.saturating_sub(u64::from(lease.waiters));
        }
    }
}

impl Receive<ExpireDue> for LeaseClock {
    fn receive(&mut self, _: ExpireDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if !self.sweeping {
            self.begin_sweep(cx);
        }
    }
}

impl Receive<Swept> for LeaseClock {
    fn receive(&mut self, swept: Swept, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        fault_point!(cx.host().faults, "lock_server.after_expire");
        let now = cx.clock().mono();
        self.sweeping = false;
        self.last_sweep = now;
        let trace = *cx.trace();
        let report = match swept.report {
            Ok(report) => report,
            Err(error) => {
                self.metrics.store_failed("expire", &error);
                tracing::warn!(event = "sweep_failed", %error);
                return self.plan_sweep(now + self.config.expiry_safety, cx);
            }
        };
        let ended = report.grants.len() + report.sessions.len();
        self.metrics.store_call("expire", ended, swept.took);
        if ended > 0 {
            tracing::info!(
                event = "leases_expired",
                grants = report.grants.len(),
                sessions = report.sessions.len(),
                more = report.more
            );
        }
        self.live -= i64::try_from(report.sessions.len()).unwrap_or(0);
        for session in &report.sessions {
            self.session_ended(&session.session_id, &trace);
        }
        for session in &report.sessions {
            self.metrics.expired_total.inc_by(session.released.len() as u64);
            self.grants_ended(&session.released, &trace);
        }
        self.metrics.expired_total.inc_by(report.grants.len() as u64);
        self.grants_ended(&report.grants, &trace);
        if report.more {
            // Soon, but with room for others in between: a mass death does not hold up anybody (case L25).
            self.sweeping = true;
            cx.notify_later(SweepOn {}, Duration::from_millis(1));
        } else {
            let next = report.next_due_in.unwrap_or(self.config.expiry_safety);
            self.plan_sweep(now + next.min(self.config.expiry_safety), cx);
        }
    }
}

impl Receive<SweepOn> for LeaseClock {
    fn receive(&mut self, _: SweepOn, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.begin_sweep(cx);
    }
}

impl Receive<Subscribe> for LeaseClock {
    fn receive(&mut self, message: Subscribe, reply: Reply<Subscription>, cx: &mut Cx<'_, Self>) {
        if self.draining {
            return reply.send(Err(Refusal::Draining));
        }
        self.watches.prune();
        if self.watches.len() + self.subscribing.len() >= self.config.watches_max {
            return reply.send(Err(Refusal::Overloaded("watches at this replica")));
        }
        if self.cursor.is_some() {
            return reply.send(Ok(self.watches.subscribe(message.key)));
        }
        self.subscribing.push((message.key, reply));
        self.listen(cx);
    }
}

impl Receive<Listen> for LeaseClock {
    fn receive(&mut self, _: Listen, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.listening = false;
        if self.somebody_listens() {
            self.listen(cx);
        } else {
            self.cursor = None;
        }
    }
}

impl Receive<Listened> for LeaseClock {
    fn receive(&mut self, listened: Listened, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let trace = *cx.trace();
        let mut pause = self.config.wake_interval;
        match listened.news {
            Ok(News::From(seq)) => {
                self.cursor = Some(seq);
                self.hears_since = cx.clock().mono();
                // What another replica freed between the refusal of these and this moment stands below the cursor.
                for lease in self.leases.values().filter(|lease| lease.waiters > 0) {
                    lease.handle.tell_surely(NewsAreHeard, &trace);
                }
                for (key, reply) in self.subscribing.drain(..) {
                    reply.send(Ok(self.watches.subscribe(key)));
                }
            }
            Ok(News::Events(events)) => {
                for event in &events {
                    self.hear(event, &trace);
                }
                if let Some(last) = events.last() {
                    self.cursor = Some(last.seq);
                }
            }
            Err(error) => {
                self.metrics.store_failed("read", &error);
                tracing::warn!(event = "listening_failed", %error);
                pause = self.config.wake_safety;
                for (_, reply) in self.subscribing.drain(..) {
                    reply.send(Err(Refusal::Store(error.clone())));
                }
            }
        }
        self.watches.prune();
        if self.somebody_listens() {
            // `listening` stays set until then: one reader of the log, at a bounded rate.
            cx.notify_later(Listen {}, pause);
        } else {
            self.listening = false;
            self.cursor = None;
        }
    }
}

impl Receive<ChoreDue> for LeaseClock {
    fn receive(&mut self, due: ChoreDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let (store, config, clock) = (self.store.clone(), self.config.clone(), cx.clock().clone());
        let (within, limit) = (config.store_timeout, config.housekeeping_limit);
        let (chore, faults) = (due.chore, cx.host().faults.clone());
        cx.pipe(
            async move {
                match chore {
                    Chore::PurgeTombstones => fault_point!(faults, "lock_server.before_purge"),
                    Chore::Seal => fault_point!(faults, "lock_server.before_seal"),
                    Chore::DropSealed => fault_point!(faults, "lock_server.before_drop"),
                    Chore::Count => {}
                }
                let more = |more: bool| if more { ChoreResult::More } else { ChoreResult::Done };
                let result = match chore {
                    Chore::PurgeTombstones => store
                        .purge_tombstones(config.tombstone_retention, limit, within)
                        .await
                        .map(|purged| more(purged >= limit)),
                    Chore::Seal => store.seal(limit, within).await.map(|seal| more(seal.is_some())),
                    Chore::DropSealed => store
                        .drop_sealed(config.audit_retention, limit, within)
                        .await
                        .map(|dropped| more(dropped > 0)),
                    Chore::Count => {
                        let began = clock.mono();
                        let counted = async {
                            let (sessions, held) = count(&*store, within).await?;
                            Ok(ChoreResult::Counted {
                                sessions,
                                held,
                                lineage: store.lineage(within).await?.state,
                                took: clock.mono().saturating_sub(began),
                            })
                        };
                        counted.await
                    }
                };
                result.unwrap_or_else(ChoreResult::Failed)
            },
            move |result| ChoreDone { chore, result },
        );
    }
}

/// Counts live sessions and what they hold, page by page.
async fn count(store: &dyn LockStore, within: Duration) -> Result<(i64, i64), StoreError> {
    const PAGE: u32 = 1_000;
    let (mut sessions, mut held, mut after) = (0i64, 0i64, None);
    loop {
        let page = store.sessions(after, PAGE, within).await?;
        let size = page.len();
        sessions += i64::try_from(size).unwrap_or(i64::MAX);
        held += page
            .iter()
            .map(|s| i64::try_from(s.held.len()).unwrap_or(0))
            .sum::<i64>();
        match page.into_iter().next_back() {
            Some(last) if size >= PAGE as usize => after = Some(last.session_id),
            _ => return Ok((sessions, held)),
        }
    }
}

impl Receive<ChoreDone> for LeaseClock {
    fn receive(&mut self, done: ChoreDone, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        match done.chore {
            Chore::PurgeTombstones => fault_point!(cx.host().faults, "lock_server.after_purge"),
            Chore::Seal => fault_point!(cx.host().faults, "lock_server.after_seal"),
            Chore::DropSealed => fault_point!(cx.host().faults, "lock_server.after_drop"),
            Chore::Count => {}
        }
        let mut after = self.interval(done.chore);
        match done.result {
            ChoreResult::More => after = Duration::from_millis(10),
            ChoreResult::Done => {}
            ChoreResult::Counted {
                sessions,
                held,
                lineage,
                took,
            } => {
                (self.live, self.held) = (sessions, held);
                self.show_gauges();
                self.metrics.lineage(lineage);
                after = after.max(took * 20); // counting takes at most a twentieth of the time
            }
            ChoreResult::Failed(error) => {
                self.metrics.store_failed("housekeep", &error);
                tracing::warn!(event = "chore_failed", chore = ?done.chore, %error);
            }
        }
        cx.notify_later(ChoreDue { chore: done.chore }, after);
    }
}

impl Receive<Drain> for LeaseClock {
    fn receive(&mut self, _: Drain, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.draining = true;
        self.watches.clear();
        for (_, reply) in self.subscribing.drain(..) {
            reply.send(Err(Refusal::Draining));
        }
        for lease in self.leases.values() {
            lease.handle.tell_surely(DrainQueue, cx.trace());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_segment_has_no_separator_and_is_injective() {
        assert_eq!(path_segment("payout:A-1"), "payout:A-1");
        assert_eq!(path_segment("a/b %é"), "a%2Fb%20%25%C3%A9");
        assert_ne!(path_segment("a/b"), path_segment("a%2Fb"));
    }
}
