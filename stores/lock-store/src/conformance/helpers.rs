//! Short words for the cases.

use super::Backend;
use lock_api::{
    AcquireOutcome, AcquireRequest, EventQuery, FencingToken, Grant, Heartbeat, HeartbeatOutcome, HeldByOther,
    KeyState, LockDelay, LockEvent, LockKey, LockStore, OpenSession, Operator, Owner, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, RequestId, RevokeOutcome, RevokeRequest, SessionId, SessionView, Ttl, YieldOutcome,
    YieldRequest,
};
use std::sync::Arc;
use std::time::Duration;

/// Time enough for any call of a healthy store.
pub(super) const WITHIN: Duration = Duration::from_secs(30);
/// The TTL of most leases: the shortest that every backend keeps exactly.
pub(super) const T: Duration = Duration::from_secs(2);
/// The TTL of what is to outlive a case.
pub(super) const LONG: Duration = Duration::from_secs(600);
/// A little more than a lease.
pub(super) const PAST_T: Duration = Duration::from_millis(2100);

pub(super) fn ttl(ttl: Duration) -> Ttl {
    Ttl::new(ttl).unwrap()
}

pub(super) fn key(text: &str) -> LockKey {
    LockKey::new(text).unwrap()
}

pub(super) fn sid(text: &str) -> SessionId {
    SessionId::new(text).unwrap()
}

pub(super) fn operator() -> Operator {
    Operator::new("ops@example").unwrap()
}

pub(super) fn made_up_token(value: u64) -> FencingToken {
    FencingToken::from_store(value).unwrap()
}

pub(super) fn open_request(id: &str, life: Duration) -> OpenSession {
    OpenSession {
        session_id: sid(id),
        owner: Owner::new(format!("owner of {id}")).unwrap(),
        ttl: ttl(life),
        metadata: None,
    }
}

pub(super) fn acquire_request(at: &str, session: &str, request: &str, lease: Duration) -> AcquireRequest {
    AcquireRequest {
        key: key(at),
        session_id: sid(session),
        request_id: RequestId::new(request).unwrap(),
        ttl: ttl(lease),
        metadata: None,
        witness: None,
        lock_delay: LockDelay::NONE,
    }
}

pub(super) fn lock_delay(delay: Duration) -> LockDelay {
    LockDelay::new(delay).unwrap()
}

/// A store with the verbs for one item.
#[derive(Clone)]
pub(super) struct Store(pub(super) Arc<dyn LockStore>);

pub(super) fn store(backend: &dyn Backend) -> Store {
    Store(backend.store())
}

fn one<T>(mut answers: Vec<T>) -> T {
    assert_eq!(answers.len(), 1, "one answer per request");
    answers.remove(0)
}

impl Store {
    pub(super) async fn open(&self, id: &str, life: Duration) -> SessionView {
        one(self.0.open(vec![open_request(id, life)], WITHIN).await.unwrap())
    }

    pub(super) async fn heartbeat(&self, id: &str) -> HeartbeatOutcome {
        self.heartbeat_with(id, None).await
    }

    pub(super) async fn heartbeat_with(&self, id: &str, witness: Option<FencingToken>) -> HeartbeatOutcome {
        let request = Heartbeat {
            session_id: sid(id),
            witness,
        };
        one(self.0.heartbeat(vec![request], WITHIN).await.unwrap())
    }

    pub(super) async fn close(&self, id: &str) -> Vec<(String, u64)> {
        one(self.0.close(vec![sid(id)], WITHIN).await.unwrap())
            .into_iter()
            .map(|freed| (freed.key.to_string(), freed.token.get()))
            .collect()
    }

    pub(super) async fn acquire(&self, at: &str, session: &str, request: &str, lease: Duration) -> AcquireOutcome {
        self.ask(acquire_request(at, session, request, lease)).await
    }

    pub(super) async fn ask(&self, request: AcquireRequest) -> AcquireOutcome {
        one(self.0.acquire(vec![request], WITHIN).await.unwrap())
    }

    /// Acquires and expects a new grant.
    pub(super) async fn grant(&self, at: &str, session: &str, request: &str, lease: Duration) -> Grant {
        match self.acquire(at, session, request, lease).await {
            AcquireOutcome::Granted { grant, replayed: false } => grant,
            other => panic!("{at} for {session}: expected a new grant, got {other:?}"),
        }
    }

    /// Acquires with a lock delay and expects a new grant.
    pub(super) async fn grant_with_delay(
        &self,
        at: &str,
        session: &str,
        request: &str,
        (lease, delay): (Duration, Duration),
    ) -> Grant {
        let mut asked = acquire_request(at, session, request, lease);
        asked.lock_delay = lock_delay(delay);
        match self.ask(asked).await {
            AcquireOutcome::Granted { grant, replayed: false } => grant,
            other => panic!("{at} for {session}: expected a new grant, got {other:?}"),
        }
    }

    /// Acquires and expects that the key is closed. Answers for how long, and its last token.
    pub(super) async fn closed(&self, at: &str, session: &str, request: &str) -> (Duration, FencingToken) {
        match self.acquire(at, session, request, T).await {
            AcquireOutcome::Delayed { last_token, ends_in } => (ends_in, last_token),
            other => panic!("{at} for {session}: expected a closed key, got {other:?}"),
        }
    }

    pub(super) async fn ask_to_yield(&self, at: &str, token: FencingToken, by: &str) -> YieldOutcome {
        let request = YieldRequest {
            key: key(at),
            token,
            operator: Operator::new(by).unwrap(),
            reason: format!("{by} is in a hurry"),
        };
        self.0.ask_to_yield(request, WITHIN).await.unwrap()
    }

    /// Acquires and expects that somebody holds the key.
    pub(super) async fn refused(&self, at: &str, session: &str, request: &str) -> HeldByOther {
        match self.acquire(at, session, request, T).await {
            AcquireOutcome::HeldByOther(held) => held,
            other => panic!("{at} for {session}: expected a refusal, got {other:?}"),
        }
    }

    pub(super) async fn renew(&self, at: &str, session: &str, token: FencingToken) -> RenewOutcome {
        let request = RenewRequest {
            key: key(at),
            session_id: sid(session),
            token,
            ttl: None,
        };
        one(self.0.renew(vec![request], WITHIN).await.unwrap())
    }

    pub(super) async fn release(&self, at: &str, session: &str, token: FencingToken) -> ReleaseOutcome {
        let request = ReleaseRequest {
            key: key(at),
            session_id: sid(session),
            token,
        };
        one(self.0.release(vec![request], WITHIN).await.unwrap())
    }

    pub(super) async fn revoke(&self, at: &str, token: FencingToken) -> RevokeOutcome {
        let request = RevokeRequest {
            key: key(at),
            revoke_token: token,
            operator: operator(),
            reason: "the holder hangs".to_owned(),
        };
        self.0.revoke(request, WITHIN).await.unwrap()
    }

    pub(super) async fn inspect(&self, at: &str) -> KeyState {
        one(self.0.inspect(vec![key(at)], WITHIN).await.unwrap())
    }

    /// Who holds a key, under which token.
    pub(super) async fn holder(&self, at: &str) -> Option<(String, u64)> {
        self.inspect(at)
            .await
            .grant
            .map(|grant| (grant.session_id.to_string(), grant.token.get()))
    }

    pub(super) async fn sweep(&self) -> lock_api::ExpiryReport {
        self.0.expire_due(10_000, WITHIN).await.unwrap()
    }

    /// All events after `after`, read in pages.
    pub(super) async fn events(&self, after: u64) -> Vec<LockEvent> {
        let (mut all, mut after) = (Vec::new(), after);
        loop {
            let query = EventQuery {
                key: None,
                after,
                limit: 1000,
            };
            let page = self.0.events(query, WITHIN).await.unwrap();
            let Some(last) = page.last() else { return all };
            after = last.seq;
            all.extend(page);
        }
    }

    /// The highest seq now.
    pub(super) async fn seq(&self) -> u64 {
        self.0.changed_since(u64::MAX, Duration::ZERO).await.unwrap()
    }

    /// Everything the store shows, without what runs down by itself.
    pub(super) async fn shown(&self) -> Vec<String> {
        let mut shown = Vec::new();
        for session in self.0.sessions(None, 1000, WITHIN).await.unwrap() {
            let held = session.held.iter();
            let held: Vec<_> = held.map(|held| (&held.key, held.token, &held.yield_asked)).collect();
            shown.push(format!(
                "{} {} {:?} {:?} {:?} {held:?}",
                session.session_id, session.owner, session.ttl, session.opened_at, session.last_heartbeat_at
            ));
        }
        for state in self.0.list(String::new(), None, 1000, WITHIN).await.unwrap() {
            let grant = state.grant.map(|mut grant| {
                grant.expires_in = Duration::ZERO;
                grant
            });
            shown.push(format!("{} {:?} {grant:?}", state.key, state.last_token));
        }
        shown.push(format!("{:?}", self.0.lineage(WITHIN).await.unwrap()));
        shown.push(format!("{}", self.seq().await));
        shown
    }
}

/// What is left of a lease, within what a backend can tell: never more than the TTL.
pub(super) fn assert_left(backend: &dyn Backend, left: Duration, expected: Duration) {
    let slack = if backend.exact_time() {
        Duration::ZERO
    } else {
        Duration::from_secs(1)
    };
    assert!(
        left <= expected && left + slack >= expected,
        "{left:?} is left, expected {expected:?}"
    );
}

/// A small generator, so that a case can be run again from its seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}
