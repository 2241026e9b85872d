//! What the tests on PostgreSQL have in common: a place for a store, and each verb as one step of a test.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod load;

use host_kit::Host;
use lock_api::{
    AcquireOutcome, AcquireRequest, EventKind, EventQuery, FencingToken, LockEvent, LockKey, LockStore, OpenSession,
    Owner, ReleaseOutcome, ReleaseRequest, RequestId, SessionId, SessionRegistry, Ttl,
};
use lock_store::{PgLockStore, PgLockStoreOptions};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

pub const WITHIN: Duration = Duration::from_secs(30);
pub const LONG: Duration = Duration::from_secs(600);
pub const SHORT: Duration = Duration::from_millis(1000);

pub struct Place {
    pub url: String,
    pub schema: String,
}

impl Place {
    pub async fn fresh() -> Self {
        Self {
            url: test_servers::postgres_or_skip().await,
            schema: test_servers::fresh_schema(),
        }
    }

    /// A place on a server of the test's own.
    pub fn on(url: String) -> Self {
        Self {
            url,
            schema: test_servers::fresh_schema(),
        }
    }

    pub fn options(&self) -> PgLockStoreOptions {
        let mut options = PgLockStoreOptions::at(format!("{}?application_name={}", self.url, self.schema));
        options.schema.clone_from(&self.schema);
        options
    }

    pub async fn open(&self) -> PgLockStore {
        PgLockStore::open(self.options(), &Host::system()).await.unwrap()
    }

    pub async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
            .batch_execute(&format!("SET search_path = {}", self.schema))
            .await
            .unwrap();
        client
    }

    /// Waits until this many of the store's connections wait for a row.
    pub async fn waiting(&self, admin: &Client, wanted: i64) {
        self.wait_for(admin, &format!("{wanted} wait"), |found| found >= wanted)
            .await;
    }

    /// Waits until none does any more.
    pub async fn nobody_waits(&self, admin: &Client) {
        self.wait_for(admin, "nobody waits", |found| found == 0).await;
    }

    async fn wait_for(&self, admin: &Client, what: &str, holds: impl Fn(i64) -> bool) {
        let deadline = Instant::now() + WITHIN;
        loop {
            let found: i64 = admin
                .query_one(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'",
                    &[&self.schema],
                )
                .await
                .unwrap()
                .get(0);
            if holds(found) {
                return;
            }
            assert!(Instant::now() < deadline, "never: {what}, but {found} do");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub fn sid(id: &str) -> SessionId {
    SessionId::new(id).unwrap()
}

pub async fn open(store: &PgLockStore, id: &str, ttl: Duration) {
    let session = OpenSession {
        session_id: sid(id),
        owner: Owner::new(format!("owner of {id}")).unwrap(),
        ttl: Ttl::new(ttl).unwrap(),
        metadata: None,
    };
    SessionRegistry::open(store, vec![session], WITHIN).await.unwrap();
}

pub fn ask(key: &str, session: &str, request: &str, ttl: Duration) -> AcquireRequest {
    AcquireRequest {
        key: LockKey::new(key).unwrap(),
        session_id: sid(session),
        request_id: RequestId::new(request).unwrap(),
        ttl: Ttl::new(ttl).unwrap(),
        metadata: None,
        witness: None,
        lock_delay: lock_api::LockDelay::NONE,
    }
}

pub async fn acquire(store: &PgLockStore, request: AcquireRequest) -> AcquireOutcome {
    store.acquire(vec![request], WITHIN).await.unwrap().remove(0)
}

pub async fn granted(store: &PgLockStore, key: &str, session: &str, request: &str, ttl: Duration) -> FencingToken {
    match acquire(store, ask(key, session, request, ttl)).await {
        AcquireOutcome::Granted { grant, replayed: false } => grant.token,
        other => panic!("{other:?}"),
    }
}

pub async fn release(store: &PgLockStore, key: &str, session: &str, token: FencingToken) -> ReleaseOutcome {
    let request = ReleaseRequest {
        key: LockKey::new(key).unwrap(),
        session_id: sid(session),
        token,
    };
    store.release(vec![request], WITHIN).await.unwrap().remove(0)
}

pub async fn facts(store: &PgLockStore) -> Vec<LockEvent> {
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

/// Each key is held by one at a time, under rising tokens. Answers how many grants there were.
pub fn one_holder_at_a_time(facts: &[LockEvent]) -> usize {
    let mut keys: std::collections::HashMap<String, (u64, bool)> = std::collections::HashMap::new();
    let mut grants = 0;
    for fact in facts {
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
