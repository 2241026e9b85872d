//! A member that takes connections and does not answer: its answers are lost, or it is frozen and goes on later. The other
//! members serve, so no call fails; and of the copies of a transaction one at most is made, and told as what it was.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and read the clock")]

mod etcd_support;

use etcd_support::place::{
    LONG, Place, acquire, ask, beat, count, facts, holder, key, one_holder_at_a_time, open, operator, sid, until,
};
use etcd_support::proxy::{Mode, Proxy};
use host_kit::Host;
use lock_api::{
    AcquireOutcome, EventKind, FencingToken, Heartbeat, HeartbeatOutcome, LockStore, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, RevokeOutcome, RevokeRequest, SessionRegistry,
};
use lock_store::EtcdLockStore;
use std::time::Duration;

/// What one call of a lock server may take. Another member is asked much sooner.
const WITHIN: Duration = Duration::from_secs(10);

/// In every transaction that records a fact, and in nothing else: the place of its number.
const FACT: &[u8] = b"/e/0000";

/// A store that asks a member behind `proxy` first, and has another one beside it.
async fn behind(proxy: &Proxy, place: &Place) -> EtcdLockStore {
    let mut options = place.options();
    options.access.endpoints = vec![proxy.at.clone(), place.at.clone()];
    EtcdLockStore::open(options, &Host::system()).await.unwrap()
}

async fn granted(store: &EtcdLockStore, at: &str, request: &str) -> FencingToken {
    let answer = store.acquire(vec![ask(at, "s1", request, LONG)], WITHIN).await;
    match answer.unwrap().remove(0) {
        AcquireOutcome::Granted { grant, replayed: false } => grant.token,
        other => panic!("{at}: {other:?}"),
    }
}

async fn released(store: &EtcdLockStore, at: &str, token: FencingToken) -> ReleaseOutcome {
    let request = ReleaseRequest {
        key: key(at),
        session_id: sid("s1"),
        token,
    };
    store.release(vec![request], WITHIN).await.unwrap().remove(0)
}

/// Whatever the member does, every verb is answered in time, and the watch hears what others do.
#[tokio::test]
async fn a_member_that_does_not_answer_costs_no_call() {
    for mode in [Mode::Frozen, Mode::Deaf] {
        let place = Place::fresh().await;
        let proxy = Proxy::to(&place.at).await;
        let store = behind(&proxy, &place).await;
        let beside = place.open().await;
        open(&store, "s1", LONG).await;
        proxy.set(mode);
        for n in 0..20 {
            let at = format!("k{n}");
            let token = granted(&store, &at, "r").await;
            let beats = vec![Heartbeat {
                session_id: sid("s1"),
                witness: None,
            }];
            let alive = store.heartbeat(beats, WITHIN).await.unwrap().remove(0);
            assert!(matches!(alive, HeartbeatOutcome::Alive { .. }), "{alive:?}");
            let request = RenewRequest {
                key: key(&at),
                session_id: sid("s1"),
                token,
                ttl: None,
            };
            let renewed = store.renew(vec![request], WITHIN).await.unwrap().remove(0);
            assert!(matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
            assert_eq!(released(&store, &at, token).await, ReleaseOutcome::Released);
        }
        open(&beside, "s2", LONG).await;
        until("the watch heard of the session", async || store.observed().0 == 2).await;
        assert_eq!(one_holder_at_a_time(&facts(&beside).await), 20);
    }
}

/// The member makes the transaction, and its answer is lost: the caller is told what happened all the same, and it
/// happened once.
#[tokio::test]
async fn a_transaction_whose_answer_is_lost_is_found_by_its_fact() {
    let place = Place::fresh().await;
    let proxy = Proxy::to(&place.at).await;
    let beside = place.open().await;
    open(&beside, "s1", LONG).await;
    // A new store asks the member behind the proxy first, which answers until it gets a transaction.
    let deafened = async || {
        proxy.set(Mode::Forward);
        proxy.kill_all();
        let store = behind(&proxy, &place).await;
        proxy.set_upon(FACT, Mode::Deaf);
        store
    };
    for n in 0..5 {
        let at = format!("k{n}");
        let token = granted(&deafened().await, &at, "r").await;
        assert_eq!(holder(&beside, &at).await, Some(token.get()));
        assert_eq!(released(&deafened().await, &at, token).await, ReleaseOutcome::Released);
    }
    let revoke_token = granted(&beside, "revoked", "r").await;
    let request = RevokeRequest {
        key: key("revoked"),
        revoke_token,
        operator: operator(),
        reason: "a test".into(),
    };
    let revoked = deafened().await.revoke(request, WITHIN).await.unwrap();
    assert!(matches!(revoked, RevokeOutcome::Revoked { .. }), "{revoked:?}");
    let held = granted(&beside, "held", "r").await;
    let store = deafened().await;
    let closed = SessionRegistry::close(&store, vec![sid("s1")], WITHIN).await.unwrap();
    assert_eq!(closed[0].iter().map(|freed| freed.token).collect::<Vec<_>>(), [held]);
    let facts = facts(&beside).await;
    assert_eq!(one_holder_at_a_time(&facts), 7);
    assert_eq!(count(&facts, EventKind::Revoked), 1);
    assert_eq!(count(&facts, EventKind::SessionClosed), 1);
}

/// A member is frozen with a transaction in its hands, another one makes it, and everything goes on; then the frozen one
/// goes on as well. Its copies change nothing.
#[tokio::test]
async fn what_a_frozen_member_does_late_changes_nothing() {
    let place = Place::fresh().await;
    let proxy = Proxy::to(&place.at).await;
    let beside = place.open().await;
    open(&beside, "s1", LONG).await;
    for round in 0..5 {
        let store = behind(&proxy, &place).await;
        let at = format!("k{round}");
        proxy.set_upon(FACT, Mode::Frozen);
        let first = granted(&store, &at, "first").await;
        assert_eq!(released(&store, &at, first).await, ReleaseOutcome::Released);
        let second = granted(&beside, &at, "second").await;
        let recorded = facts(&beside).await;
        proxy.set(Mode::Forward);
        // A store of its own behind the proxy works again, so what the proxy held back has been passed on.
        let mut options = place.options();
        options.access.endpoints = vec![proxy.at.clone()];
        let through = EtcdLockStore::open(options, &Host::system()).await.unwrap();
        assert!(matches!(
            beat(&through, "s1", None).await,
            HeartbeatOutcome::Alive { .. }
        ));
        let again = acquire(&through, ask(&at, "s1", "second", LONG)).await;
        assert!(
            matches!(&again, AcquireOutcome::Granted { grant, replayed: true } if grant.token == second),
            "{again:?}"
        );
        assert_eq!(facts(&through).await, recorded);
    }
    one_holder_at_a_time(&facts(&beside).await);
}
