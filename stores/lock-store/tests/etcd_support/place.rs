//! A prefix on a real server, stores on it in real time, and short words for the verbs.

use host_kit::Host;
use lock_api::{
    AcquireOutcome, AcquireRequest, EventKind, EventQuery, FencingToken, Heartbeat, HeartbeatOutcome, LockEvent,
    LockKey, LockStore, OpenSession, Operator, Owner, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
    RequestId, SessionId, SessionRegistry, Ttl,
};
use lock_store::{EtcdLockStore, EtcdLockStoreOptions};
use std::time::{Duration, Instant};

pub const WITHIN: Duration = Duration::from_secs(30);
pub const LONG: Duration = Duration::from_secs(600);

pub struct Place {
    pub at: String,
    pub prefix: String,
}

impl Place {
    pub async fn fresh() -> Self {
        Self::on(test_servers::etcd_or_skip().await)
    }

    pub fn on(at: String) -> Self {
        Self {
            at,
            prefix: test_servers::fresh_schema(),
        }
    }

    pub fn options(&self) -> EtcdLockStoreOptions {
        let mut options = EtcdLockStoreOptions::at(&format!("etcd://{}", self.at)).unwrap();
        options.prefix.clone_from(&self.prefix);
        options
    }

    pub async fn open(&self) -> EtcdLockStore {
        self.open_with(&self.options()).await
    }

    pub async fn open_with(&self, options: &EtcdLockStoreOptions) -> EtcdLockStore {
        EtcdLockStore::open(options.clone(), &Host::system()).await.unwrap()
    }

    /// A connection of the test's own, beside the store.
    pub async fn client(&self) -> etcd_client::Client {
        etcd_client::Client::connect([&self.at], None).await.unwrap()
    }

    /// Each key of the store without its prefix, with the revision that last changed it.
    pub async fn rows(&self) -> Vec<(String, i64)> {
        let all = etcd_client::GetOptions::new().with_prefix().with_keys_only();
        let prefix = format!("{}/", self.prefix);
        let found = self
            .client()
            .await
            .kv_client()
            .get(prefix.as_str(), Some(all))
            .await
            .unwrap();
        found
            .kvs()
            .iter()
            .map(|row| (row.key_str().unwrap()[prefix.len()..].to_owned(), row.mod_revision()))
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (at, prefix) = (self.at.clone(), self.prefix.clone());
        super::aside(async move || {
            drop(tokio::time::timeout(Duration::from_secs(2), super::remove(&at, &prefix)).await);
        });
    }
}

pub fn sid(id: &str) -> SessionId {
    SessionId::new(id).unwrap()
}

pub fn key(key: &str) -> LockKey {
    LockKey::new(key).unwrap()
}

pub fn operator() -> Operator {
    Operator::new("ops@example").unwrap()
}

pub fn opening(id: &str, ttl: Duration) -> OpenSession {
    OpenSession {
        session_id: sid(id),
        owner: Owner::new(format!("owner of {id}")).unwrap(),
        ttl: Ttl::new(ttl).unwrap(),
        metadata: None,
    }
}

pub async fn open(store: &EtcdLockStore, id: &str, ttl: Duration) {
    SessionRegistry::open(store, vec![opening(id, ttl)], WITHIN)
        .await
        .unwrap();
}

pub fn ask(at: &str, session: &str, request: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest {
        key: key(at),
        session_id: sid(session),
        request_id: RequestId::new(request).unwrap(),
        ttl: Ttl::new(ttl).unwrap(),
        metadata: None,
        witness: None,
        lock_delay: lock_api::LockDelay::NONE,
    }
}

pub async fn acquire(store: &EtcdLockStore, request: AcquireRequest) -> AcquireOutcome {
    store.acquire(vec![request], WITHIN).await.unwrap().remove(0)
}

pub async fn granted(store: &EtcdLockStore, at: &str, session: &str, request: &str, ttl: Duration) -> FencingToken {
    match acquire(store, ask(at, session, request, ttl)).await {
        AcquireOutcome::Granted { grant, replayed: false } => grant.token,
        other => panic!("{at} for {session}: {other:?}"),
    }
}

/// Grants all of them, in one call: on a busy machine one after the other may take longer than a short lease lasts.
pub async fn granted_at_once(store: &EtcdLockStore, batch: impl Iterator<Item = AcquireRequest>) -> Vec<FencingToken> {
    let answers = store.acquire(batch.collect(), WITHIN).await.unwrap();
    let token = |answer| match answer {
        AcquireOutcome::Granted { grant, replayed: false } => grant.token,
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(token).collect()
}

pub async fn release(store: &EtcdLockStore, at: &str, session: &str, token: FencingToken) -> ReleaseOutcome {
    let request = ReleaseRequest {
        key: key(at),
        session_id: sid(session),
        token,
    };
    store.release(vec![request], WITHIN).await.unwrap().remove(0)
}

pub async fn renew(store: &EtcdLockStore, at: &str, session: &str, token: FencingToken) -> RenewOutcome {
    let request = RenewRequest {
        key: key(at),
        session_id: sid(session),
        token,
        ttl: None,
    };
    store.renew(vec![request], WITHIN).await.unwrap().remove(0)
}

pub async fn beat(store: &EtcdLockStore, id: &str, witness: Option<FencingToken>) -> HeartbeatOutcome {
    let request = Heartbeat {
        session_id: sid(id),
        witness,
    };
    store.heartbeat(vec![request], WITHIN).await.unwrap().remove(0)
}

pub async fn holder(store: &EtcdLockStore, at: &str) -> Option<u64> {
    let state = store.inspect(vec![key(at)], WITHIN).await.unwrap().remove(0);
    state.grant.map(|grant| grant.token.get())
}

pub async fn facts(store: &EtcdLockStore) -> Vec<LockEvent> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let query = EventQuery {
            key: None,
            after,
            limit: 5000,
        };
        let page = store.events(query, WITHIN).await.unwrap();
        let Some(last) = page.last() else { return all };
        after = last.seq;
        all.extend(page);
    }
}

/// How many facts of this kind there are.
pub fn count(facts: &[LockEvent], kind: EventKind) -> usize {
    facts.iter().filter(|fact| fact.kind == kind).count()
}

/// Each key is held by one at a time, under rising tokens, and each grant ends once; the facts have no gaps. Answers how
/// many grants there were.
pub fn one_holder_at_a_time(facts: &[LockEvent]) -> usize {
    let mut keys: std::collections::HashMap<String, (u64, bool)> = std::collections::HashMap::new();
    let mut grants = 0;
    for (fact, n) in facts.iter().zip(1..) {
        assert_eq!(fact.seq, n, "a gap");
        let (Some(key), Some(token)) = (&fact.lock_key, fact.token) else {
            continue;
        };
        let state = keys.entry(key.to_string()).or_default();
        match fact.kind {
            EventKind::Granted => {
                assert!(
                    !state.1 && token.get() > state.0,
                    "granted twice or backwards: {fact:?} after {state:?}"
                );
                *state = (token.get(), true);
                grants += 1;
            }
            EventKind::Released | EventKind::Expired | EventKind::Revoked => {
                assert_eq!(*state, (token.get(), true), "{fact:?}");
                state.1 = false;
            }
            _ => {}
        }
    }
    grants
}

/// Waits for a state, with a bound.
pub async fn until(what: &str, mut there: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !there().await {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
