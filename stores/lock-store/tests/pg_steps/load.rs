//! Callers who take and give back one key as fast as they can, and what they have seen.

use super::{LONG, ask, open};
use lock_api::{AcquireOutcome, FencingToken, LockKey, LockStore, ReleaseRequest, SessionId, StoreError};
use lock_store::PgLockStore;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How much later than its deadline a call may answer on a machine that others use too.
const SLACK: Duration = Duration::from_secs(5);

/// What the callers together know. All of them run on one thread, so that what one writes the next one sees.
#[derive(Default)]
pub struct Seen {
    /// Who believes to hold each key.
    holders: RefCell<BTreeMap<String, String>>,
    /// The highest token each key was granted under.
    highest: RefCell<BTreeMap<String, u64>>,
    /// Grants so far.
    pub grants: Cell<u64>,
    /// Calls that were refused because nothing was done.
    pub unavailable: Cell<u64>,
    /// Calls whose outcome was unknown.
    pub unknown: Cell<u64>,
    over: Cell<bool>,
}

fn more(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

impl Seen {
    pub fn new() -> Rc<Self> {
        Rc::default()
    }

    /// Ends the callers after the round each is in.
    pub fn end(&self) {
        self.over.set(true);
    }

    pub fn highest(&self) -> u64 {
        self.highest.borrow().values().copied().max().unwrap_or(0)
    }

    pub fn failed(&self) -> u64 {
        self.unavailable.get() + self.unknown.get()
    }

    fn hold(&self, key: &str, who: &str, token: FencingToken) {
        let before = self.holders.borrow_mut().insert(key.to_owned(), who.to_owned());
        assert_eq!(before, None, "{key} is granted to {who} while another holds it");
        let last = self.highest.borrow_mut().insert(key.to_owned(), token.get());
        assert!(last < Some(token.get()), "{key} under {token} after {last:?}");
        more(&self.grants);
    }

    fn give_back(&self, key: &str) {
        assert!(self.holders.borrow_mut().remove(key).is_some());
    }

    /// Waits until this many more grants were made than at the call.
    pub async fn progress(&self, grants: u64) {
        let (wanted, from) = (self.grants.get() + grants, Instant::now());
        while self.grants.get() < wanted {
            assert!(
                from.elapsed() < Duration::from_secs(90),
                "no progress: {} of {wanted} grants, {} failures",
                self.grants.get(),
                self.failed()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn failure<T>(&self, answer: &Result<T, StoreError>) {
        match answer {
            Ok(_) => {}
            Err(StoreError::Unavailable { .. }) => more(&self.unavailable),
            Err(StoreError::Unknown { .. }) => more(&self.unknown),
            Err(StoreError::Corrupt { detail }) => panic!("{detail}"),
        }
    }
}

async fn timely<T>(within: Duration, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let from = Instant::now();
    let answer = call.await;
    assert!(from.elapsed() < within + SLACK, "an answer after {:?}", from.elapsed());
    answer
}

/// One caller: acquires the key under a request of its own until it knows the outcome, and releases it again.
pub async fn caller(store: PgLockStore, seen: Rc<Seen>, who: String, key: String, within: Duration) {
    let pause = Duration::from_millis(5);
    let mut round = 0_u64;
    while !seen.over.get() {
        round += 1;
        // An answer that is unknown is asked for again by its request id (case L22).
        let request = ask(&key, &who, &format!("{who}-{round}"), LONG);
        let granted = loop {
            let answer = timely(within, store.acquire(vec![request.clone()], within)).await;
            seen.failure(&answer);
            match answer.map(|mut answers| answers.remove(0)) {
                Ok(AcquireOutcome::Granted { grant, .. }) => break Some(grant),
                // An earlier attempt of ours was still on its way to the server when a later one was refused.
                Ok(AcquireOutcome::HeldByOther(held)) => break held.is_self.then_some(held.holder),
                Ok(other) => panic!("{who}: {other:?}"),
                Err(_) => tokio::time::sleep(pause).await,
            }
        };
        let Some(grant) = granted else {
            tokio::time::sleep(pause).await;
            continue;
        };
        seen.hold(&key, &who, grant.token);
        tokio::task::yield_now().await;
        seen.give_back(&key);
        // A release whose answer is unknown is made again: it is harmless.
        loop {
            let request = ReleaseRequest {
                key: grant.key.clone(),
                session_id: grant.session_id.clone(),
                token: grant.token,
            };
            let answer = timely(within, store.release(vec![request], within)).await;
            seen.failure(&answer);
            if answer.is_ok() {
                break;
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Runs `callers` on `keys` keys until `meanwhile` is over, and then until each has ended.
pub async fn under_load(
    store: &PgLockStore,
    callers: usize,
    keys: usize,
    within: Duration,
    meanwhile: impl AsyncFnOnce(&Seen),
) -> Rc<Seen> {
    let seen = Seen::new();
    for n in 0..callers {
        open(store, &format!("s{n}"), LONG).await;
    }
    let all = futures_util::future::join_all((0..callers).map(|n| {
        caller(
            store.clone(),
            seen.clone(),
            format!("s{n}"),
            format!("key/{}", n % keys),
            within,
        )
    }));
    let faults = async {
        meanwhile(&seen).await;
        seen.end();
    };
    tokio::join!(all, faults);
    seen
}

/// Who holds a key, by the store's word.
pub async fn holder(store: &PgLockStore, key: &str, within: Duration) -> Option<SessionId> {
    let states = store.inspect(vec![LockKey::new(key).unwrap()], within).await.unwrap();
    states.into_iter().next().unwrap().grant.map(|grant| grant.session_id)
}
