//! What only a shared server and real time can show of the store on etcd: several lock servers, leases that etcd ends by
//! itself, heartbeats through one server while another sweeps.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and read the clock")]

mod etcd_support;

use etcd_support::place::{
    LONG, Place, WITHIN, acquire, ask, beat, count, facts, granted, granted_at_once, holder, key, one_holder_at_a_time,
    open, opening, release, renew, sid, until,
};
use futures_util::future::join_all;
use lock_api::{AcquireOutcome, EventKind, HeartbeatOutcome, LockStore, ReleaseOutcome, RenewOutcome, SessionRegistry};
use lock_store::EtcdLockStore;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A lease that outlasts a standstill of the machine, and whose end is awaited.
const LEASE: Duration = Duration::from_secs(7);

/// Sweeps until told to stop; answers what was ended.
async fn sweep_until(store: &EtcdLockStore, end: Instant) -> (usize, usize) {
    let (mut grants, mut sessions) = (0, 0);
    while Instant::now() < end {
        let report = store.expire_due(1000, WITHIN).await.unwrap();
        grants += report.grants.len() + report.sessions.iter().map(|s| s.released.len()).sum::<usize>();
        sessions += report.sessions.len();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (grants, sessions)
}

/// L09: sixteen clients on two lock servers acquire and release one hot key: tokens strictly increase in grant order.
#[tokio::test]
async fn case_l09_a_hot_key_over_two_servers_for_ten_seconds() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    let end = Instant::now() + Duration::from_secs(10);
    join_all((0..16).map(|n| {
        let store = stores[n % 2].clone();
        async move {
            let session = format!("s{n}");
            open(&store, &session, LONG).await;
            let mut round = 0;
            while Instant::now() < end {
                round += 1;
                let seen = store.changed_since(u64::MAX, Duration::ZERO).await.unwrap();
                match acquire(&store, ask("hot", &session, &format!("r{round}"), LONG)).await {
                    AcquireOutcome::Granted { grant, .. } => {
                        assert_eq!(
                            release(&store, "hot", &session, grant.token).await,
                            ReleaseOutcome::Released
                        );
                    }
                    AcquireOutcome::HeldByOther(_) => {
                        store.changed_since(seen, WITHIN).await.unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }))
    .await;
    let grants = one_holder_at_a_time(&facts(&stores[0]).await);
    assert!(grants > 0);
    println!("{grants} grants");
}

/// Two servers sweep the same grants and sessions, a third party takes some over: each end is one fact.
#[tokio::test]
async fn two_sweepers_record_each_end_once() {
    let place = Place::fresh().await;
    let mut options = place.options();
    options.shortest_lease = Duration::from_secs(20);
    let stores = [place.open_with(&options).await, place.open_with(&options).await];
    let short = Duration::from_secs(5);
    open(&stores[0], "keeps", LONG).await;
    for (half, store) in stores.iter().enumerate() {
        let batch = (half * 20..half * 20 + 20).map(|n| ask(&format!("k{n}"), "keeps", &format!("r{n}"), short));
        granted_at_once(store, batch).await;
    }
    for n in 0..5 {
        // Told by stamps.
        open(&stores[n % 2], &format!("short{n}"), short).await;
        let batch = (0..3).map(|k| ask(&format!("s{n}/{k}"), &format!("short{n}"), "r", LONG));
        granted_at_once(&stores[n % 2], batch).await;
    }
    let all_recorded = async || {
        let facts = facts(&stores[0]).await;
        count(&facts, EventKind::Expired) == 40 + 15 && count(&facts, EventKind::SessionExpired) == 5
    };
    let swept = AtomicUsize::new(0);
    let sweep = async |store: &EtcdLockStore| {
        until("each end is recorded", async || {
            let report = store.expire_due(1000, WITHIN).await.unwrap();
            swept.fetch_add(report.sessions.len(), Ordering::SeqCst);
            all_recorded().await
        })
        .await;
    };
    let take_over = async {
        tokio::time::sleep(short).await;
        for n in 0..40 {
            let at = format!("k{n}");
            let answer = acquire(&stores[n % 2], ask(&at, "keeps", &format!("again{n}"), LONG)).await;
            assert!(
                matches!(
                    answer,
                    AcquireOutcome::Granted { replayed: false, .. } | AcquireOutcome::HeldByOther(_)
                ),
                "{answer:?}"
            );
        }
    };
    tokio::join!(sweep(&stores[0]), sweep(&stores[1]), take_over);
    let facts = facts(&stores[1]).await;
    one_holder_at_a_time(&facts);
    assert_eq!(count(&facts, EventKind::Expired), 40 + 15);
    assert_eq!(count(&facts, EventKind::SessionExpired), 5);
    assert_eq!(swept.into_inner(), 5, "each session's end is told to one sweeper");
}

/// A session whose lease runs out: etcd frees its keys by itself, before any lock server sweeps; a taker gets one, and each
/// end is recorded once, with two sweepers at work.
#[tokio::test]
async fn a_lease_that_runs_out_frees_its_grants_and_the_facts_follow() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    // From before its beginning: a slow answer makes the lease no shorter.
    let began = Instant::now();
    open(&stores[0], "dies", LEASE).await;
    open(&stores[0], "lives", LONG).await;
    let batch = (0..30).map(|n| ask(&format!("k{n}"), "dies", &format!("r{n}"), LONG));
    let tokens = granted_at_once(&stores[0], batch).await;
    until("the key is free without a sweep", async || {
        holder(&stores[1], "k0").await.is_none()
    })
    .await;
    assert!(began.elapsed() >= LEASE, "ended early");
    assert!(granted(&stores[1], "k0", "lives", "taken", LONG).await > tokens[0]);
    assert_eq!(beat(&stores[0], "dies", None).await, HeartbeatOutcome::SessionNotFound);
    assert_eq!(
        acquire(&stores[1], ask("new", "dies", "x", LONG)).await,
        AcquireOutcome::SessionNotFound
    );
    let ended = AtomicUsize::new(0);
    let sweep = async |store: &EtcdLockStore| {
        until("the session's end is recorded", async || {
            let report = store.expire_due(1000, WITHIN).await.unwrap();
            let grants = report.grants.len() + report.sessions.iter().map(|s| s.released.len()).sum::<usize>();
            ended.fetch_add(grants, Ordering::SeqCst);
            count(&facts(store).await, EventKind::SessionExpired) == 1
        })
        .await;
    };
    tokio::join!(sweep(&stores[0]), sweep(&stores[1]));
    let facts = facts(&stores[0]).await;
    one_holder_at_a_time(&facts);
    assert_eq!(count(&facts, EventKind::Expired), 30);
    assert_eq!(count(&facts, EventKind::SessionExpired), 1);
    assert_eq!(ended.into_inner(), 29, "the first was ended by its taker");
    let left: Vec<_> = place
        .rows()
        .await
        .into_iter()
        .filter(|(row, _)| row.contains("dies"))
        .collect();
    assert_eq!(left, [], "nothing of the session is left");
}

/// Heartbeats keep a session and its grants alive through one server while another sweeps, and write nothing.
#[tokio::test]
async fn heartbeats_keep_a_lease_alive_and_write_nothing() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    open(&stores[0], "s1", LEASE).await;
    let token = granted(&stores[0], "a", "s1", "r", LONG).await;
    let before = place.rows().await;
    let end = Instant::now() + LEASE * 2;
    let beats = async {
        while Instant::now() < end {
            let answer = beat(&stores[0], "s1", None).await;
            let HeartbeatOutcome::Alive { expires_in, held } = answer else {
                panic!("{answer:?}")
            };
            assert!(expires_in <= LEASE && held.len() == 1);
            tokio::time::sleep(LEASE / 8).await;
        }
    };
    let (swept, ()) = tokio::join!(sweep_until(&stores[1], end), beats);
    assert_eq!(swept, (0, 0));
    assert_eq!(place.rows().await, before, "a heartbeat wrote");
    // Through the other server, too; and what that one tells is never more than the session's TTL.
    let view = SessionRegistry::session(&stores[1], sid("s1"), WITHIN)
        .await
        .unwrap()
        .unwrap();
    assert!(view.expires_in <= LEASE && view.held.len() == 1, "{view:?}");
    assert!(matches!(
        beat(&stores[1], "s1", None).await,
        HeartbeatOutcome::Alive { .. }
    ));
    assert_eq!(holder(&stores[1], "a").await, Some(token.get()));
}

/// A lock server that starts gives every live session its full TTL again: whoever heartbeats may have had nobody to talk to.
#[tokio::test]
async fn a_start_keeps_every_lease_alive_once() {
    let place = Place::fresh().await;
    let ttl = Duration::from_secs(15);
    let first = place.open().await;
    open(&first, "s1", ttl).await;
    let token = granted(&first, "a", "s1", "r", LONG).await;
    first.close();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let second = place.open().await;
    // Past its first end, before its second.
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(holder(&second, "a").await, Some(token.get()));
    assert!(matches!(
        beat(&second, "s1", None).await,
        HeartbeatOutcome::Alive { .. }
    ));
}

/// A session below etcd's shortest lease is told by its stamps, also by a server that does not take its heartbeats.
#[tokio::test]
async fn a_session_too_short_for_a_lease_is_told_by_its_stamps() {
    let place = Place::fresh().await;
    let mut options = place.options();
    options.shortest_lease = Duration::from_secs(20);
    let stores = [place.open_with(&options).await, place.open_with(&options).await];
    let ttl = Duration::from_secs(5);
    open(&stores[0], "s1", ttl).await;
    let token = granted(&stores[0], "a", "s1", "r", LONG).await;
    let end = Instant::now() + ttl * 2;
    let beats = async {
        while Instant::now() < end {
            let answer = beat(&stores[0], "s1", None).await;
            assert!(matches!(answer, HeartbeatOutcome::Alive { .. }), "{answer:?}");
            tokio::time::sleep(ttl / 50).await;
        }
    };
    let (swept, ()) = tokio::join!(sweep_until(&stores[1], end), beats);
    assert_eq!(swept, (0, 0));
    until("it ends without heartbeats", async || {
        stores[1].expire_due(10, WITHIN).await.unwrap();
        holder(&stores[1], "a").await.is_none()
    })
    .await;
    let facts = facts(&stores[0]).await;
    assert_eq!(count(&facts, EventKind::SessionExpired), 1);
    open(&stores[0], "s2", LONG).await;
    assert!(granted(&stores[0], "a", "s2", "r2", LONG).await > token);
}

/// A grant that is renewed through one server is not ended by another that sweeps all the time.
#[tokio::test]
async fn no_server_ends_what_another_renews() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    open(&stores[0], "s1", LONG).await;
    let ttl = Duration::from_secs(6);
    let mut tokens = Vec::new();
    for n in 0..3 {
        tokens.push(granted(&stores[0], &format!("k{n}"), "s1", &format!("r{n}"), ttl).await);
    }
    let grants: Vec<_> = place
        .rows()
        .await
        .into_iter()
        .filter(|(row, _)| row.starts_with("g/"))
        .collect();
    let end = Instant::now() + ttl * 2;
    let renewals = async {
        while Instant::now() < end {
            for (n, token) in tokens.iter().enumerate() {
                let answer = renew(&stores[0], &format!("k{n}"), "s1", *token).await;
                assert!(matches!(answer, RenewOutcome::Renewed(_)), "{answer:?}");
            }
            tokio::time::sleep(ttl / 100).await;
        }
    };
    let (swept, ()) = tokio::join!(sweep_until(&stores[1], end), renewals);
    assert_eq!(swept, (0, 0));
    let after: Vec<_> = place
        .rows()
        .await
        .into_iter()
        .filter(|(row, _)| row.starts_with("g/"))
        .collect();
    assert_eq!(after, grants, "a renewal moved a token");
    assert_eq!(
        grants
            .iter()
            .map(|(_, rev)| u64::try_from(*rev).unwrap())
            .collect::<Vec<_>>(),
        tokens.iter().map(|token| token.get()).collect::<Vec<_>>(),
        "the token is the revision of the grant"
    );
    until("they end without renewals", async || {
        stores[1].expire_due(100, WITHIN).await.unwrap();
        holder(&stores[1], "k2").await.is_none()
    })
    .await;
}

/// A fact that one server records wakes who waits on another, at once and not by looking.
#[tokio::test]
async fn a_fact_wakes_who_waits_on_another_server() {
    let place = Place::fresh().await;
    let mut options = place.options();
    // Far longer than the test may take: only the watch wakes in time.
    options.poll_every = Duration::from_secs(3600);
    let one = EtcdLockStore::open(options, &host_kit::Host::system()).await.unwrap();
    let two = place.open().await;
    open(&two, "s1", LONG).await;
    let mut seen = one.changed_since(0, WITHIN).await.unwrap();
    for round in 0..20 {
        let at = format!("k{round}");
        let (woken, _) = tokio::join!(one.changed_since(seen, WITHIN), granted(&two, &at, "s1", "r", LONG));
        let woken = woken.unwrap();
        assert!(woken > seen, "slept through {seen}");
        seen = woken;
    }
}

/// Found by reading: what this server has seen minted was compared with a snapshot that was read before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_does_not_doubt_itself() {
    let place = Place::fresh().await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    let end = Instant::now() + Duration::from_secs(4);
    let busy = (0..8).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut round = 0;
            while Instant::now() < end {
                round += 1;
                let at = format!("k{n}");
                let token = granted(&store, &at, "s1", &format!("r{round}"), LONG).await;
                release(&store, &at, "s1", token).await;
            }
        })
    });
    let looks = (0..4).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            while Instant::now() < end {
                assert_eq!(store.health(WITHIN).await.unwrap().problem, None);
            }
        })
    });
    for task in busy.chain(looks).collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// L25, in proportion: sessions die together as their leases run out; the sweep is batched and acquires go on.
#[tokio::test]
async fn case_l25_many_leases_run_out_together() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    open(&stores[0], "alive", LONG).await;
    let ids: Vec<_> = (0..300).map(|n| format!("s{n:03}")).collect();
    let batch = ids.iter().map(|id| opening(id, Duration::from_secs(25))).collect();
    SessionRegistry::open(&stores[0], batch, WITHIN).await.unwrap();
    let wanted = ids.iter().map(|id| ask(&format!("k/{id}"), id, "r", LONG));
    assert_eq!(granted_at_once(&stores[0], wanted).await.len(), 300);
    let (mut sweeps, mut ended) = (0, 0);
    until("all have ended", async || {
        sweeps += 1;
        let (report, ()) = tokio::join!(stores[1].expire_due(100, WITHIN), async {
            let token = granted(&stores[0], "foreground", "alive", &format!("r{sweeps}"), LONG).await;
            release(&stores[0], "foreground", "alive", token).await;
        });
        let report = report.unwrap();
        let released: usize = report.sessions.iter().map(|s| s.released.len()).sum();
        assert!(report.grants.len() + report.sessions.len() + released <= 100);
        // etcd frees their keys at once; the facts follow with the sweeps.
        ended += report.sessions.len();
        ended == 300
    })
    .await;
    let facts = facts(&stores[0]).await;
    one_holder_at_a_time(&facts);
    assert!(sweeps > 3, "the sweep was not batched");
    assert_eq!(count(&facts, EventKind::SessionExpired), 300);
    assert_eq!(count(&facts, EventKind::Expired), 300);
    assert_eq!(
        stores[0].inspect(vec![key("k/s000")], WITHIN).await.unwrap()[0].grant,
        None
    );
}

/// L26, in proportion: a session with more keys than a transaction takes is closed: its end begins before its first key is
/// free, each key is freed once, and nothing is left of it.
#[tokio::test]
async fn case_l26_a_session_with_many_keys_is_closed_in_parts() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    open(&stores[0], "s1", LONG).await;
    let wanted: Vec<_> = (0..1200)
        .map(|n| ask(&format!("k{n}"), "s1", &format!("r{n}"), LONG))
        .collect();
    stores[0].acquire(wanted, WITHIN).await.unwrap();
    let answer = beat(&stores[1], "s1", None).await;
    assert!(matches!(answer, HeartbeatOutcome::Alive { ref held, .. } if held.len() == 1200));
    let (one, two) = tokio::join!(
        SessionRegistry::close(&stores[0], vec![sid("s1")], WITHIN),
        SessionRegistry::close(&stores[1], vec![sid("s1")], WITHIN)
    );
    assert_eq!(one.unwrap()[0].len() + two.unwrap()[0].len(), 1200);
    let facts = facts(&stores[0]).await;
    one_holder_at_a_time(&facts);
    assert_eq!(count(&facts, EventKind::Released), 1200);
    assert_eq!(count(&facts, EventKind::SessionClosed), 1);
    let left: Vec<_> = place
        .rows()
        .await
        .into_iter()
        .filter(|(row, _)| !row.starts_with("e/") && !row.starts_with("t/") && row.contains('/'))
        .collect();
    assert_eq!(left, []);
}
