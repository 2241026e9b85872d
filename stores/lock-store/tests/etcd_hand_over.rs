//! The delay after an unclean loss and the request to yield over several lock servers on etcd, in real time: what etcd ends
//! by itself, what one server hears of another, and what is left when none runs.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and read the clock")]

mod etcd_support;

use etcd_support::place::{
    LONG, Place, WITHIN, acquire, ask, beat, facts, granted, key, one_holder_at_a_time, open, operator, release, until,
};
use lock_api::{
    AcquireOutcome, AcquireRequest, EventKind, HeartbeatOutcome, LockDelay, LockStore, ReleaseOutcome, RevokeRequest,
    YieldOutcome, YieldRequest,
};
use lock_store::EtcdLockStore;
use std::time::{Duration, Instant};

/// A lease that outlasts a standstill of the machine, and whose end is awaited.
const LEASE: Duration = Duration::from_secs(7);
const DELAY: Duration = Duration::from_secs(8);

fn with_delay(mut request: AcquireRequest, delay: Duration) -> AcquireRequest {
    request.lock_delay = LockDelay::new(delay).unwrap();
    request
}

async fn closed_for(store: &EtcdLockStore, at: &str) -> Option<Duration> {
    store.inspect(vec![key(at)], WITHIN).await.unwrap().remove(0).closed_for
}

/// The session dies with its lease while no lock server runs. The first one that lives finds it, and nobody is granted the
/// key before the whole delay has passed from there; a second server hears of it.
#[tokio::test]
async fn a_session_that_dies_while_no_server_runs_leaves_its_keys_closed() {
    let place = Place::fresh().await;
    let lost = {
        let store = place.open().await;
        open(&store, "dies", LEASE).await;
        let answer = acquire(&store, with_delay(ask("a", "dies", "r1", LONG), DELAY)).await;
        let AcquireOutcome::Granted { grant, .. } = answer else {
            panic!("{answer:?}")
        };
        store.close();
        grant.token
    };
    // etcd lets the grant go, and nobody sees it.
    until("etcd let the grant go", async || {
        !place.rows().await.iter().any(|(row, _)| row == "g/a")
    })
    .await;
    let began = Instant::now();
    let stores = [place.open().await, place.open().await];
    open(&stores[0], "s1", LONG).await;
    let answer = acquire(&stores[0], ask("a", "s1", "r2", LONG)).await;
    let AcquireOutcome::Delayed { last_token, ends_in } = answer else {
        panic!("{answer:?}")
    };
    assert!(last_token == lost && ends_in <= DELAY, "{last_token} {ends_in:?}");
    until("the other server knows", async || {
        closed_for(&stores[1], "a").await.is_some()
    })
    .await;
    let mut round = 0;
    let token = loop {
        round += 1;
        match acquire(&stores[round % 2], ask("a", "s1", "r3", LONG)).await {
            AcquireOutcome::Granted { grant, .. } => break grant.token,
            AcquireOutcome::Delayed { .. } => tokio::time::sleep(Duration::from_millis(50)).await,
            other => panic!("{other:?}"),
        }
    };
    assert!(began.elapsed() >= DELAY, "granted after {:?}", began.elapsed());
    assert!(token > lost);
    let expired = facts(&stores[0]).await;
    let ended: Vec<_> = expired.iter().filter(|fact| fact.kind == EventKind::Expired).collect();
    assert_eq!(ended.len(), 1, "{ended:?}");
    // Nothing of the delay is left beside the grant.
    assert!(!place.rows().await.iter().any(|(row, _)| row.starts_with("c/")));
}

/// A delay that a sweep has found over leaves nothing for whoever starts later; one that runs is found by it.
#[tokio::test]
async fn a_server_that_starts_later_knows_what_is_closed_and_what_is_not() {
    let place = Place::fresh().await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    for (at, delay) in [("short", Duration::from_secs(4)), ("long", LockDelay::MAX)] {
        let answer = acquire(&store, with_delay(ask(at, "s1", at, LONG), delay)).await;
        let AcquireOutcome::Granted { grant, .. } = answer else {
            panic!("{answer:?}")
        };
        let broken = RevokeRequest {
            key: key(at),
            revoke_token: grant.token,
            operator: operator(),
            reason: "the holder hangs".to_owned(),
        };
        store.revoke(broken, WITHIN).await.unwrap();
        assert!(closed_for(&store, at).await.is_some(), "{at}");
    }
    until("the short delay is over", async || {
        store.expire_due(100, WITHIN).await.unwrap();
        !place.rows().await.iter().any(|(row, _)| row == "c/short")
    })
    .await;
    let next = store.expire_due(100, WITHIN).await.unwrap().next_due_in.unwrap();
    assert!(next <= LockDelay::MAX, "{next:?}");
    store.close();
    let later = place.open().await;
    let report = later.expire_due(100, WITHIN).await.unwrap();
    assert!(report.next_due_in.unwrap() <= LockDelay::MAX, "{report:?}");
    assert_eq!(closed_for(&later, "short").await, None);
    granted(&later, "short", "s1", "r2", LONG).await;
    let left = closed_for(&later, "long").await.unwrap();
    assert!(left > Duration::from_secs(30) && left <= LockDelay::MAX, "{left:?}");
    assert!(matches!(
        acquire(&later, ask("long", "s1", "r3", LONG)).await,
        AcquireOutcome::Delayed { .. }
    ));
}

/// Two servers, a session on each, asking without pause as the delay ends: one grant at a time, none before the end.
#[tokio::test]
async fn two_servers_grant_a_key_once_as_its_delay_ends() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    open(&stores[0], "s0", LONG).await;
    open(&stores[1], "s1", LONG).await;
    let delay = Duration::from_millis(400);
    for round in 0..6 {
        let answer = acquire(
            &stores[round % 2],
            with_delay(ask("a", "s0", &format!("lost{round}"), LONG), delay),
        )
        .await;
        let AcquireOutcome::Granted { grant, .. } = answer else {
            panic!("round {round}: {answer:?}")
        };
        let broken = RevokeRequest {
            key: key("a"),
            revoke_token: grant.token,
            operator: operator(),
            reason: "the holder hangs".to_owned(),
        };
        let began = Instant::now();
        stores[round % 2].revoke(broken, WITHIN).await.unwrap();
        let wins = |n: usize| {
            let store = stores[n].clone();
            async move {
                loop {
                    match acquire(&store, ask("a", &format!("s{n}"), &format!("next{round}"), LONG)).await {
                        AcquireOutcome::Granted { grant, .. } => return Some((n, grant.token)),
                        AcquireOutcome::HeldByOther(_) => return None,
                        AcquireOutcome::Delayed { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                        other => panic!("round {round}: {other:?}"),
                    }
                }
            }
        };
        let (one, two) = tokio::join!(wins(0), wins(1));
        assert!(
            began.elapsed() >= delay,
            "round {round}: granted after {:?}",
            began.elapsed()
        );
        let (winner, token) = match (one, two) {
            (Some(won), None) | (None, Some(won)) => won,
            other => panic!("round {round}: {other:?}"),
        };
        assert_eq!(
            release(&stores[winner], "a", &format!("s{winner}"), token).await,
            ReleaseOutcome::Released
        );
    }
    assert_eq!(one_holder_at_a_time(&facts(&stores[0]).await), 12);
}

/// Asked through one server, seen through another; it goes with the session's lease, whoever ends it.
#[tokio::test]
async fn a_request_to_yield_is_seen_through_every_server_and_goes_with_the_lease() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    open(&stores[0], "dies", LEASE).await;
    let token = granted(&stores[0], "a", "dies", "r1", LONG).await;
    let rows = place.rows().await;
    let asked = YieldRequest {
        key: key("a"),
        token,
        operator: operator(),
        reason: "maintenance at noon".to_owned(),
    };
    let outcome = stores[1].ask_to_yield(asked, WITHIN).await.unwrap();
    assert!(
        matches!(&outcome, YieldOutcome::Asked(grant) if grant.token == token),
        "{outcome:?}"
    );
    let HeartbeatOutcome::Alive { held, .. } = beat(&stores[0], "dies", None).await else {
        panic!("alive")
    };
    assert_eq!((held.len(), held[0].token), (1, token));
    assert_eq!(held[0].yield_asked.as_ref().unwrap().reason, "maintenance at noon");
    // The grant's own rows are as they were: its revision is its token.
    let now = place.rows().await;
    for name in ["g/a", "t/a", "h/dies/a"] {
        let of = |rows: &[(String, i64)]| rows.iter().find(|(row, _)| row == name).map(|(_, rev)| *rev);
        assert!(of(&now).is_some(), "{name}");
        assert_eq!(of(&now), of(&rows), "{name}");
    }
    until("it went with the lease", async || {
        let rows = place.rows().await;
        !rows
            .iter()
            .any(|(row, _)| row.starts_with("n/") || row.starts_with("y/") || row.starts_with("g/"))
    })
    .await;
}
