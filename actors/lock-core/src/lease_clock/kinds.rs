//! The kinds of store calls that take many requests, and what becomes of each item's outcome.

use super::LeaseClock;
use super::messages::UnwantedAgain;
use crate::answers::Refusal;
use crate::lane::Lane;
use crate::lease::{KeyRenewed, LookedUp, Minted, Undone};
use crate::session::{Heard, Opened};
use actor_kit::{Ask, Cx, Reply, TraceContext};
use host_kit::{Faults, fault_point};
use lock_api::{
    AcquireOutcome, AcquireRequest, ExpiredGrant, Heartbeat, HeartbeatOutcome, KeyState, LockKey, LockStore,
    OpenSession, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, RequestId, SessionId, SessionView,
    StoreError, StoreFuture,
};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::time::Duration;

/// A kind of store call that takes many requests.
pub(super) trait Kind: Sized + 'static {
    type Request: Send + 'static;
    type Outcome: Send + 'static;
    /// Who is told.
    type For: Send + 'static;
    const OP: &'static str;
    const FLUSH: &'static str;
    const DONE: &'static str;
    fn lane(clock: &mut LeaseClock) -> &mut Lane<Item<Self>>;
    fn call(store: &dyn LockStore, batch: Vec<Self::Request>, within: Duration) -> StoreFuture<'_, Vec<Self::Outcome>>;
    fn before(faults: &Faults);
    fn after(faults: &Faults);
    fn apply(
        clock: &mut LeaseClock,
        whom: Self::For,
        outcome: Result<Self::Outcome, StoreError>,
        turn: &Turn,
        cx: &mut Cx<'_, LeaseClock>,
    );
    fn refuse(whom: Self::For, why: Refusal);
}

/// One request in its lane.
pub(super) struct Item<K: Kind> {
    pub(super) request: K::Request,
    pub(super) whom: K::For,
    pub(super) trace: TraceContext,
}

/// When the call began, and whose trace an answer belongs to.
pub(super) struct Turn {
    pub(super) started: Duration,
    pub(super) trace: TraceContext,
}

pub(super) struct Flush<K>(pub(super) PhantomData<fn() -> K>);

impl<K: Kind> Ask for Flush<K> {
    type Answer = ();
    const NAME: &'static str = K::FLUSH;
}

pub(super) struct Done<K: Kind> {
    pub(super) whom: Vec<(K::For, TraceContext)>,
    pub(super) outcome: Result<Vec<K::Outcome>, StoreError>,
    pub(super) started: Duration,
    pub(super) took: Duration,
}

impl<K: Kind> Ask for Done<K> {
    type Answer = ();
    const NAME: &'static str = K::DONE;
}

macro_rules! faults {
    ($before:literal, $after:literal) => {
        fn before(faults: &Faults) {
            fault_point!(faults, $before);
        }

        fn after(faults: &Faults) {
            fault_point!(faults, $after);
        }
    };
}

/// L1.
pub(super) struct Opening;

impl Kind for Opening {
    type Request = OpenSession;
    type Outcome = SessionView;
    type For = (Option<IpAddr>, Reply<Result<SessionView, Refusal>>);
    const OP: &'static str = "open";
    const FLUSH: &'static str = "FlushOpens";
    const DONE: &'static str = "OpensDone";
    faults!("lock_server.before_open", "lock_server.after_open");

    fn lane(clock: &mut LeaseClock) -> &mut Lane<Item<Self>> {
        &mut clock.opening
    }

    fn call(store: &dyn LockStore, batch: Vec<OpenSession>, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        store.open(batch, within)
    }

    fn apply(
        clock: &mut LeaseClock,
        (caller, reply): Self::For,
        outcome: Result<SessionView, StoreError>,
        turn: &Turn,
        cx: &mut Cx<'_, LeaseClock>,
    ) {
        if let Ok(view) = &outcome {
            clock.live += 1;
            clock.show_gauges();
            if let Ok(session) = clock.session(&view.session_id, cx) {
                let (ttl, expires_in) = (view.ttl, view.expires_in);
                session.tell_surely(Opened { ttl, expires_in }, &turn.trace);
            }
            if let Some(session) = clock.sessions.get_mut(&view.session_id) {
                session.ttl = Some(view.ttl);
            }
            clock.session_is_of(&view.session_id, caller);
            clock.plan_sweep(cx.clock().mono() + view.expires_in, cx);
        }
        reply.send(outcome.map_err(Refusal::Store));
    }

    fn refuse((_, reply): Self::For, why: Refusal) {
        reply.send(Err(why));
    }
}

/// L2.
pub(super) struct Beating;

impl Kind for Beating {
    type Request = Heartbeat;
    type Outcome = HeartbeatOutcome;
    type For = (SessionId, Reply<Result<HeartbeatOutcome, Refusal>>);
    const OP: &'static str = "heartbeat";
    const FLUSH: &'static str = "FlushHeartbeats";
    const DONE: &'static str = "HeartbeatsDone";
    faults!("lock_server.before_heartbeat", "lock_server.after_heartbeat");

    fn lane(clock: &mut LeaseClock) -> &mut Lane<Item<Self>> {
        &mut clock.beating
    }

    fn call(store: &dyn LockStore, batch: Vec<Heartbeat>, within: Duration) -> StoreFuture<'_, Vec<HeartbeatOutcome>> {
        store.heartbeat(batch, within)
    }

    fn apply(
        clock: &mut LeaseClock,
        (id, reply): Self::For,
        outcome: Result<HeartbeatOutcome, StoreError>,
        turn: &Turn,
        _: &mut Cx<'_, LeaseClock>,
    ) {
        match &outcome {
            Ok(HeartbeatOutcome::Alive { expires_in, held }) => {
                clock.session_holds(&id, |_| held.len());
                if let Some(session) = clock.sessions.get(&id) {
                    let expires_in = *expires_in;
                    session.handle.tell_surely(Heard { expires_in }, &turn.trace);
                }
            }
            Ok(HeartbeatOutcome::SessionNotFound) => clock.session_ended(&id, &turn.trace),
            Ok(HeartbeatOutcome::WitnessRefused { .. }) | Err(_) => {}
        }
        reply.send(outcome.map_err(Refusal::Store));
    }

    fn refuse((_, reply): Self::For, why: Refusal) {
        reply.send(Err(why));
    }
}

/// L3.
pub(super) struct Closing;

impl Kind for Closing {
    type Request = SessionId;
    type Outcome = Vec<ExpiredGrant>;
    type For = (SessionId, Reply<Result<Vec<ExpiredGrant>, Refusal>>);
    const OP: &'static str = "close";
    const FLUSH: &'static str = "FlushCloses";
    const DONE: &'static str = "ClosesDone";
    faults!("lock_server.before_close", "lock_server.after_close");

    fn lane(clock: &mut LeaseClock) -> &mut Lane<Item<Self>> {
        &mut clock.closing
    }

    fn call(store: &dyn LockStore, batch: Vec<SessionId>, within: Duration) -> StoreFuture<'_, Vec<Vec<ExpiredGrant>>> {
        store.close(batch, within)
    }

    fn apply(
        clock: &mut LeaseClock,
        (id, reply): Self::For,
        outcome: Result<Vec<ExpiredGrant>, StoreError>,
        turn: &Turn,
        _: &mut Cx<'_, LeaseClock>,
    ) {
        if let Ok(released) = &outcome {
            // A session that this replica does not know is counted again soon enough.
            clock.live -= i64::from(clock.sessions.contains_key(&id));
            // First the session, so that none of its own waiters is woken for what it held.
            clock.session_ended(&id, &turn.trace);
            clock.grants_ended(released, &turn.trace);
        }
        reply.send(outcome.map_err(Refusal::Store));
    }

    fn refuse((_, reply): Self::For, why: Refusal) {
        reply.send(Err(why));
    }
}

/// L4.
pub(super) struct Minting;

impl Kind for Minting {
    type Request = AcquireRequest;
    type Outcome = AcquireOutcome;
    type For = (LockKey, SessionId, RequestId);
    const OP: &'static str = "acquire";
    const FLUSH: &'static str = "FlushAcquires";
    const DONE: &'static str = "AcquiresDone";
    faults!("lock_server.before_grant", "lock_server.after_grant");

    fn lane(clock: &mut LeaseClock) -> &mut Lane<Item<Self>> {
        &mut clock.minting
    }

    fn call(
        store: &dyn LockStore,
        batch: Vec<AcquireRequest>,
        within: Duration,
    ) -> StoreFuture<'_, Vec<AcquireOutcome>> {
        store.acquire(batch, within)
    }

    fn apply(
        clock: &mut LeaseClock,
        (key, session, request): Self::For,
        outcome: Result<AcquireOutcome, StoreError>,
        turn: &Turn,
        cx: &mut Cx<'_, LeaseClock>,
    ) {
        match &outcome {
            Ok(AcquireOutcome::Granted { grant, replayed }) => {
                if !replayed {
                    clock.session_holds(&session, |keys| keys + 1);
                    clock.held += 1;
                    clock.show_gauges();
                }
                clock.plan_sweep(cx.clock().mono() + grant.expires_in, cx);
            }
            Ok(AcquireOutcome::SessionNotFound) => clock.session_ended(&session, &turn.trace),
            _ => {}
        }
        if let Some(lease) = clock.leases.get(&key) {
            let minted = Minted {
                of: (session, request),
                outcome,
                started: turn.started,
            };
            lease.handle.tell_surely(minted, &turn.trace);
        }
    }

    fn refuse(_: Self::For, _: Refusal) {
        // A lease has one attempt under way and its mint is never refused (see the lane's use).
    }
}

/// L5.
pub(super) struct Renewing;

impl Kind for Renewing {
    type Request = RenewRequest;
    type Outcome = RenewOutcome;
    type For = Reply<Result<RenewOutcome, Refusal>>;
    const OP: &'static str = "renew";
    const FLUSH: &'static str = "FlushRenews";
    const DONE: &'static str = "RenewsDone";
    faults!("lock_server.before_renew", "lock_server.after_renew");

    fn lane(clock: &mut LeaseClock) -> &mut Lane<Item<Self>> {
        &mut clock.renewing
    }

    fn call(store: &dyn LockStore, batch: Vec<RenewRequest>, within: Duration) -> StoreFuture<'_, Vec<RenewOutcome>> {
        store.renew(batch, within)
    }

    fn apply(
        clock: &mut LeaseClock,
        whom: Self::For,
        outcome: Result<RenewOutcome, StoreError>,
        turn: &Turn,
        cx: &mut Cx<'_, LeaseClock>,
    ) {
        if let Ok(RenewOutcome::Renewed(grant)) = &outcome {
            // A renew may also shorten the lease.
            clock.plan_sweep(cx.clock().mono() + grant.expires_in, cx);
            if let Some(lease) = clock.leases.get(&grant.key) {
                let renewed = KeyRenewed {
                    token: grant.token,
                    expires_in: grant.expires_in,
                };
                lease.handle.tell_surely(renewed, &turn.trace);
            }
        }
        whom.send(outcome.map_err(Refusal::Store));
    }

    fn refuse(whom: Self::For, why: Refusal) {
        whom.send(Err(why));
    }
}

/// L6, and grants that nobody wants.
pub(super) struct Releasing;

pub(super) enum Releaser {
    Caller(Reply<Result<ReleaseOutcome, Refusal>>),
    /// The key's lease, which holds an answer back until the grant is given back.
    Lease,
    /// Nobody; tried so many times.
    Nobody(u32),
}

/// How often giving back a grant that nobody wants is tried before it is left to its TTL.
const UNWANTED_TRIES_MAX: u32 = 5;

impl Kind for Releasing {
    type Request = ReleaseRequest;
    type Outcome = ReleaseOutcome;
    type For = (ReleaseRequest, Releaser);
    const OP: &'static str = "release";
    const FLUSH: &'static str = "FlushReleases";
    const DONE: &'static str = "ReleasesDone";
    faults!("lock_server.before_release", "lock_server.after_release");

    fn lane(clock: &mut LeaseClock) -> &mut Lane<Item<Self>> {
        &mut clock.releasing
    }

    fn call(
        store: &dyn LockStore,
        batch: Vec<ReleaseRequest>,
        within: Duration,
    ) -> StoreFuture<'_, Vec<ReleaseOutcome>> {
        store.release(batch, within)
    }

    fn apply(
        clock: &mut LeaseClock,
        (request, releaser): Self::For,
        outcome: Result<ReleaseOutcome, StoreError>,
        turn: &Turn,
        cx: &mut Cx<'_, LeaseClock>,
    ) {
        let certainly = outcome.is_ok();
        if outcome == Ok(ReleaseOutcome::Released) {
            clock.session_holds(&request.session_id, |keys| keys.saturating_sub(1));
            clock.held -= 1;
            clock.show_gauges();
            clock.key_freed(&request.key, request.token, &turn.trace);
        }
        match releaser {
            Releaser::Caller(reply) => reply.send(outcome.map_err(Refusal::Store)),
            Releaser::Lease => {
                if let Some(lease) = clock.leases.get(&request.key) {
                    lease.handle.tell_surely(Undone { certainly }, &turn.trace);
                }
            }
            Releaser::Nobody(tries) => {
                if !certainly && tries < UNWANTED_TRIES_MAX {
                    let again = UnwantedAgain {
                        request,
                        tries: tries + 1,
                    };
                    cx.notify_later(again, Duration::from_millis(500));
                }
            }
        }
    }

    fn refuse((_, releaser): Self::For, why: Refusal) {
        if let Releaser::Caller(reply) = releaser {
            reply.send(Err(why));
        }
    }
}

/// L7, and look-ups after an unknown answer.
pub(super) struct Inspecting;

pub(super) enum Inspector {
    Caller(Reply<Result<(KeyState, u32), Refusal>>),
    Lease,
}

impl Kind for Inspecting {
    type Request = LockKey;
    type Outcome = KeyState;
    type For = (LockKey, Inspector);
    const OP: &'static str = "inspect";
    const FLUSH: &'static str = "FlushInspects";
    const DONE: &'static str = "InspectsDone";
    faults!("lock_server.before_inspect", "lock_server.after_inspect");

    fn lane(clock: &mut LeaseClock) -> &mut Lane<Item<Self>> {
        &mut clock.inspecting
    }

    fn call(store: &dyn LockStore, batch: Vec<LockKey>, within: Duration) -> StoreFuture<'_, Vec<KeyState>> {
        store.inspect(batch, within)
    }

    fn apply(
        clock: &mut LeaseClock,
        (key, inspector): Self::For,
        outcome: Result<KeyState, StoreError>,
        turn: &Turn,
        _: &mut Cx<'_, LeaseClock>,
    ) {
        let lease = clock.leases.get(&key);
        match inspector {
            Inspector::Caller(reply) => {
                let waiters = lease.map_or(0, |lease| lease.waiters);
                reply.send(outcome.map(|state| (state, waiters)).map_err(Refusal::Store));
            }
            Inspector::Lease => {
                if let Some(lease) = lease {
                    lease.handle.tell_surely(LookedUp { state: outcome }, &turn.trace);
                }
            }
        }
    }

    fn refuse((_, inspector): Self::For, why: Refusal) {
        if let Inspector::Caller(reply) = inspector {
            reply.send(Err(why));
        }
    }
}
