//! Cases of the lock row, over the real store in memory, on a paused clock.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use actor_kit::{TraceContext, TraceQuery, TraceRecord};
use futures_util::FutureExt;
use lock_api::{
    EventKind, EventQuery, FencingToken, FloorOutcome, Heartbeat, HeartbeatOutcome, LockKey, OpenSession, Operator,
    Owner, ReleaseOutcome, RenewOutcome, RequestId, RevokeOutcome, RevokeRequest, SessionId, Ttl,
};
use lock_core::{Acquired, Config};
use std::net::IpAddr;
use std::time::Duration;
use support::{MS, World, granted, held, ms, paused, seed};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(15);

#[test]
fn case_l05_a_waiter_whose_session_dies_is_told_at_once_and_delays_nobody() {
    paused(async {
        let world = World::new(1).await;
        let holder = world.worker("w1").await;
        let dying = world.open("w2", ms(2_000)).await;
        let patient = world.worker("w3").await;
        let grant = world.take("k", &holder, ms(60_000)).await;
        let first = {
            let world = world.clone();
            tokio::task::spawn_local(async move {
                let answer = world.wait_for("k", &dying, TTL, ms(30_000)).await;
                (answer, world.now())
            })
        };
        world.waiters("k", 1).await;
        let second = {
            let world = world.clone();
            tokio::task::spawn_local(async move {
                let grant = granted(world.wait_for("k", &patient, TTL, ms(30_000)).await);
                (grant, world.now())
            })
        };
        world.waiters("k", 2).await;
        let begun = world.now();
        let (answer, told) = first.await.unwrap();
        assert!(matches!(answer, Ok(Acquired::SessionNotFound)), "{answer:?}");
        assert!(
            told - begun <= ms(2_200),
            "told {:?} after it began to wait with a TTL of 2 s",
            told - begun
        );
        world.waiters("k", 1).await;
        let released = world.now();
        world.release(&grant).await.unwrap();
        let (_, at) = second.await.unwrap();
        assert_eq!(at, released, "the next waiter was delayed");
    });
}

#[test]
fn case_l06_a_waiter_with_a_short_ttl_waits_for_the_holders_own() {
    paused(async {
        let world = World::new(2).await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let begun = world.now();
        world.take("k", &one, ms(30_000)).await;
        let grant = granted(world.wait_for("k", &two, ms(5_000), ms(60_000)).await);
        let waited = world.now() - begun;
        assert!(waited >= ms(30_000), "granted {waited:?} after W1 with a TTL of 30 s");
        assert!(waited <= ms(30_200), "granted only {waited:?} after it");
        assert_eq!(grant.ttl.get(), ms(5_000));
    });
}

#[test]
fn case_l09_sixteen_clients_of_one_hot_key_see_rising_tokens() {
    let seed = seed(9);
    paused(async {
        let world = World::new(seed).await;
        let until = world.now() + ms(10_000);
        let mut clients = JoinSet::new();
        let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
        for n in 0..16 {
            let (world, to) = (world.clone(), to.clone());
            clients.spawn_local(async move {
                let session = world.worker(&format!("w{n}")).await;
                while world.now() < until {
                    let wait = ms(world.host.random.below(3) * 500);
                    match world.wait_for("hot", &session, TTL, wait).await {
                        Ok(Acquired::Granted(granted)) => {
                            let grant = granted.claim();
                            to.send(grant.token).unwrap();
                            world.sleep(ms(world.host.random.below(20))).await;
                            assert_eq!(world.release(&grant).await, Ok(ReleaseOutcome::Released));
                        }
                        Ok(Acquired::Held { .. }) => world.sleep(ms(world.host.random.below(50))).await,
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
        drop(to);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        let mut tokens = Vec::new();
        while let Ok(token) = from.try_recv() {
            tokens.push(token);
        }
        assert!(tokens.len() > 500, "only {} grants", tokens.len());
        assert!(tokens.windows(2).all(|two| two[0] < two[1]), "out of order");
        // The store's own record says the same.
        let mut recorded = Vec::new();
        let mut after = 0;
        loop {
            let query = EventQuery {
                key: Some(LockKey::new("hot").unwrap()),
                after,
                limit: 1_000,
            };
            let events = world.service.events(query).await.unwrap();
            let Some(last) = events.last() else { break };
            after = last.seq;
            let grants = events.iter().filter(|event| event.kind == EventKind::Granted);
            recorded.extend(grants.filter_map(|event| event.token));
        }
        assert_eq!(recorded, tokens);
        println!("{} grants", tokens.len());
    });
}

#[test]
fn case_l10_the_next_token_is_above_every_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock.db");
    paused(async {
        let mut last = 0;
        let mut above = |token: lock_api::FencingToken, after: &str| {
            assert!(token.get() > last, "{token} after {after} is not above {last}");
            last = token.get();
        };
        for round in 0..3u64 {
            let host = host_kit::Host::simulated(round);
            let options = lock_store::SqliteLockStoreOptions::file(&path);
            let store = lock_store::SqliteLockStore::open(options, &host).await.unwrap();
            let config = Config {
                tombstone_retention: ms(1_000),
                purge_interval: ms(500),
                ..Config::default()
            };
            let world = World::over(host, std::sync::Arc::new(store.clone()), config);
            let session = world.worker("w").await;
            let take = async || world.take("k", &session, ms(2_000)).await;
            let grant = take().await;
            above(grant.token, "a restart");
            world.release(&grant).await.unwrap();
            above(take().await.token, "a release");
            world.sleep(ms(2_500)).await;
            let grant = take().await;
            above(grant.token, "an expiry");
            let revoke = RevokeRequest {
                key: grant.key.clone(),
                revoke_token: grant.token,
                operator: Operator::new("ann").unwrap(),
                reason: "worker hangs".into(),
            };
            match world.service.revoke(revoke, &world.trace).await.unwrap() {
                RevokeOutcome::Revoked { token, .. } => above(token, "being held"),
                other => panic!("{other:?}"),
            }
            above(take().await.token, "a revoke");
            let other = world.worker("other").await;
            assert_eq!(world.close(&session).await.len(), 1);
            let grant = world.take("k", &other, ms(2_000)).await;
            above(grant.token, "a session's close");
            world.release(&grant).await.unwrap();
            world.sleep(ms(5_000)).await;
            assert_eq!(world.inspect("k").await.0.last_token, None, "the tombstone is gone");
            let grant = world.take("k", &other, ms(2_000)).await;
            above(grant.token, "the tombstone's purge");
            world.release(&grant).await.unwrap();
            world.service.stop();
            store.close().await;
        }
    });
}

#[test]
fn case_l12_once_a_release_is_answered_the_key_is_free_and_stays_free() {
    let seed = seed(12);
    paused(async {
        let world = World::new(seed).await;
        // 10,000 races on 50 keys at once, so that they also meet in the batches of the store.
        let mut keys = JoinSet::new();
        for n in 0..50 {
            let world = world.clone();
            keys.spawn_local(async move {
                let session = world.worker("w").await;
                for round in 0..200 {
                    race_a_release(&world, &format!("k{n}"), &session, round).await;
                }
            });
        }
        while let Some(ended) = keys.join_next().await {
            ended.unwrap();
        }
    });
}

async fn race_a_release(world: &World, key: &str, session: &lock_api::SessionId, round: u32) {
    let grant = world.take(key, session, TTL).await;
    let (mut renewed, mut released, mut beaten) = (None, None, None);
    let renew = async { renewed = Some(world.renew(&grant).await) };
    let release = async { released = Some(world.release(&grant).await) };
    let beat = async { beaten = Some(world.beat(session).await) };
    match world.host.random.below(4) {
        0 => drop(tokio::join!(biased; renew, release, beat)),
        1 => drop(tokio::join!(biased; release, renew, beat)),
        2 => drop(tokio::join!(biased; beat, release, renew)),
        _ => drop(tokio::join!(biased; renew, beat, release)),
    }
    assert_eq!(released, Some(Ok(ReleaseOutcome::Released)), "{key}, round {round}");
    assert!(
        matches!(renewed, Some(Ok(RenewOutcome::Renewed(_) | RenewOutcome::NotHolder))),
        "{key}, round {round}: {renewed:?}"
    );
    assert!(
        matches!(beaten, Some(HeartbeatOutcome::Alive { .. })),
        "{key}, round {round}: {beaten:?}"
    );
    assert_eq!(
        world.holder(key).await,
        None,
        "{key}, round {round}: held after its release"
    );
    assert_eq!(
        world.renew(&grant).await,
        Ok(RenewOutcome::NotHolder),
        "{key}, round {round}"
    );
}

#[test]
fn case_l15_an_expired_grant_is_never_revived() {
    paused(async {
        let world = World::new(15).await;
        let session = world.worker("w").await;
        for late in [0, 1, 50, 99, 100, 500] {
            let grant = world.take("k", &session, ms(1_000)).await;
            world.sleep(ms(1_000 + late)).await;
            assert_eq!(world.renew(&grant).await, Ok(RenewOutcome::NotHolder), "{late} ms late");
            assert_eq!(world.holder("k").await, None);
            let next = world.take("k", &session, ms(1_000)).await;
            assert!(next.token > grant.token);
            world.release(&next).await.unwrap();
        }
    });
}

#[test]
fn case_l16_a_doubled_release_does_not_free_the_next_grant() {
    paused(async {
        let world = World::new(16).await;
        let session = world.worker("w").await;
        let first = world.take("k", &session, TTL).await;
        // Its answer is lost: nobody awaits it.
        let mut lost = Box::pin(world.release(&first));
        assert!(lost.as_mut().now_or_never().is_none());
        drop(lost);
        world.sleep(MS).await;
        let second = world.take("k", &session, TTL).await;
        assert_eq!(world.release(&first).await, Ok(ReleaseOutcome::NotHolder));
        assert_eq!(world.holder("k").await.map(|grant| grant.token), Some(second.token));
    });
}

#[test]
fn case_l17_the_release_of_a_key_never_held_changes_nothing() {
    paused(async {
        let world = World::new(17).await;
        let session = world.worker("w").await;
        let grant = world.take("held", &session, TTL).await;
        let before = world.service.last_event().await.unwrap();
        assert_eq!(
            world.release_as("never", &session, grant.token).await,
            Ok(ReleaseOutcome::NotFound)
        );
        assert_eq!(world.service.last_event().await.unwrap(), before);
        assert!(world.holder("held").await.is_some());
    });
}

#[test]
fn case_l18_a_caller_that_goes_away_leaves_a_grant_it_can_find_or_none() {
    paused(async {
        let world = World::new(18).await;
        let session = world.worker("w").await;
        let mut kept = 0;
        for named in [false, true] {
            for wait in [0, 5_000] {
                // Dropped after each number of polls, until it is answered before that.
                for polls in 0.. {
                    let mut call = world.call("k", &session, TTL);
                    call.names_itself = named;
                    call.wait = ms(wait);
                    let id = call.request.request_id.clone();
                    let mut asked = Box::pin(world.acquire(call));
                    let mut answered = false;
                    for _ in 0..polls {
                        if let Some(answer) = asked.as_mut().now_or_never() {
                            // Answered, but its caller goes away before it takes the grant.
                            drop(answer);
                            answered = true;
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    drop(asked);
                    world.sleep(MS).await;
                    match world.holder("k").await {
                        None => {}
                        Some(grant) => {
                            assert!(named, "{polls} polls left a grant that nobody can find");
                            kept += 1;
                            let mut again = world.call("k", &session, TTL);
                            again.names_itself = true;
                            again.request.request_id = id;
                            let found = granted(world.acquire(again).await);
                            assert_eq!(found.token, grant.token);
                            world.release(&found).await.unwrap();
                        }
                    }
                    if answered {
                        break;
                    }
                }
            }
        }
        assert!(kept > 0, "no grant was ever found again: the test proves nothing");
    });
}

#[test]
fn case_l20_a_thousand_failing_acquires_leave_nothing_behind() {
    paused(async {
        let world = World::new(20).await;
        let session = world.worker("w").await;
        let grant = world.take("held", &session, ms(3_600_000)).await;
        world.sleep(ms(5_000)).await;
        let (actors, sessions) = (
            world.kit.actor_count(),
            world.service.sessions(None, 100).await.unwrap().len(),
        );
        for n in 0..1_000 {
            match n % 4 {
                0 => drop(held(world.try_acquire("held", &session, TTL).await)),
                1 => {
                    let nobody = lock_api::SessionId::new(format!("nobody{n}")).unwrap();
                    let answer = world.try_acquire(&format!("k{n}"), &nobody, TTL).await;
                    assert!(matches!(answer, Ok(Acquired::SessionNotFound)), "{answer:?}");
                }
                2 => drop(held(world.wait_for("held", &session, TTL, ms(3)).await)),
                _ => {
                    let mut gone = Box::pin(world.wait_for("held", &session, TTL, ms(30_000)));
                    assert!(gone.as_mut().now_or_never().is_none());
                    world.sleep(MS).await;
                }
            }
        }
        world.sleep(ms(5_000)).await;
        assert_eq!(world.inspect("held").await.1, 0, "nobody waits");
        assert_eq!(world.service.sessions(None, 100).await.unwrap().len(), sessions);
        assert_eq!(world.kit.actor_count(), actors, "{:?}", world.kit.actors().await);
        assert_eq!(world.holder("held").await.map(|held| held.token), Some(grant.token));
    });
}

#[test]
fn idle_actors_go_and_memory_follows_live_keys() {
    paused(async {
        let world = World::new(21).await;
        let session = world.worker("w").await;
        world.sleep(ms(5_000)).await;
        let before = world.kit.actor_count();
        for n in 0..2_000 {
            let grant = world.take(&format!("once/{n}"), &session, TTL).await;
            world.release(&grant).await.unwrap();
        }
        let kept = world.take("kept", &session, ms(60_000)).await;
        world.sleep(ms(3_000)).await;
        assert_eq!(world.kit.actor_count(), before + 1, "one actor for the one live key");
        world.release(&kept).await.unwrap();
        world.sleep(ms(3_000)).await;
        assert_eq!(world.kit.actor_count(), before);
    });
}

#[test]
fn case_l22_the_same_request_finds_its_grant_again_even_past_a_queue() {
    paused(async {
        let world = World::new(22).await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let named = |wait: u64| {
            let mut call = world.call("k", &one, TTL);
            call.names_itself = true;
            call.request.request_id = RequestId::new("r1").unwrap();
            call.wait = ms(wait);
            call
        };
        let first = granted(world.acquire(named(0)).await);
        assert_eq!(granted(world.acquire(named(0)).await).token, first.token);
        let (holder, is_self) = held(world.try_acquire("k", &one, TTL).await);
        assert!(is_self && holder.token == first.token);
        let waiting = {
            let world = world.clone();
            tokio::task::spawn_local(async move { granted(world.wait_for("k", &two, TTL, ms(20_000)).await) })
        };
        world.waiters("k", 1).await;
        let begun = world.now();
        for wait in [0, 20_000] {
            assert_eq!(granted(world.acquire(named(wait)).await).token, first.token);
            assert_eq!(world.now(), begun, "its own grant does not stand in a queue");
        }
        let (_, is_self) = held(world.try_acquire("k", &one, TTL).await);
        assert!(is_self);
        world.release(&first).await.unwrap();
        assert!(waiting.await.unwrap().token > first.token);
    });
}

#[test]
fn case_l23_no_waiter_sleeps_past_a_release() {
    let seed = seed(23);
    paused(async {
        let world = World::new(seed).await;
        let mut clients = JoinSet::new();
        // 10,000 releases: 1,000 of each of ten keys, with eight clients each.
        for key in 0..10 {
            let releases = std::rc::Rc::new(std::cell::Cell::new(0u32));
            let freed_at = std::rc::Rc::new(std::cell::Cell::new(Duration::ZERO));
            for n in 0..8 {
                let (world, releases, freed_at) = (world.clone(), releases.clone(), freed_at.clone());
                clients.spawn_local(async move {
                    let (key, session) = (format!("k{key}"), world.worker(&format!("w{n}")).await);
                    while releases.get() < 1_000 {
                        world.sleep(ms(world.host.random.below(3))).await;
                        let came = world.now();
                        let grant = granted(world.wait_for(&key, &session, TTL, ms(30_000)).await);
                        // Whoever was there when the key became free has it in the same instant.
                        let due = came.max(freed_at.get());
                        assert!(world.now() <= due, "{key}: woken {:?} late", world.now() - due);
                        world.sleep(ms(world.host.random.below(3))).await;
                        world.release(&grant).await.unwrap();
                        freed_at.set(world.now());
                        releases.set(releases.get() + 1);
                    }
                });
            }
        }
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
    });
}

#[test]
fn case_l24_killed_waiters_do_not_add_up() {
    paused(async {
        let world = World::new(24).await;
        let (holder, live) = (world.worker("holder").await, world.worker("live").await);
        let grant = world.take("k", &holder, ms(60_000)).await;
        let mut killed = JoinSet::new();
        let mut dying = Vec::new();
        for n in 0..40 {
            let session = world.worker(&format!("w{n}")).await;
            if n % 2 == 0 {
                dying.push(session.clone());
            }
            let world = world.clone();
            killed.spawn_local(async move { world.wait_for("k", &session, TTL, ms(30_000)).await });
        }
        world.waiters("k", 40).await;
        let last = {
            let world = world.clone();
            tokio::task::spawn_local(async move {
                let grant = granted(world.wait_for("k", &live, TTL, ms(30_000)).await);
                (grant, world.now())
            })
        };
        world.waiters("k", 41).await;
        for session in &dying {
            world.close(session).await;
        }
        killed.abort_all();
        while killed.join_next().await.is_some() {}
        world.waiters("k", 1).await;
        let released = world.now();
        world.release(&grant).await.unwrap();
        let (_, at) = last.await.unwrap();
        assert_eq!(at, released, "the live one was delayed by those who were killed");
    });
}

/// B waits from 0 s, C from 27 s; the holder releases at 31.5 s and again at 65 s, in the middle of a cut; a proxy cuts
/// B's connection every 5 s, and B comes back 80 ms later.
#[test]
fn case_l38_a_place_in_the_queue_outlives_the_connections_of_its_waiter() {
    paused(async {
        let world = World::new(38).await;
        let (holder, b, c) = (
            world.worker("holder").await,
            world.worker("b").await,
            world.worker("c").await,
        );
        let t0 = world.now();
        let cut_every_five_seconds = |round: u32| {
            let (world, b) = (world.clone(), b.clone());
            tokio::task::spawn_local(async move {
                for n in 0.. {
                    let mut call = world.call("k", &b, ms(120_000));
                    call.names_itself = true;
                    call.request.request_id = RequestId::new(format!("b{round}")).unwrap();
                    call.wait = ms(30_000);
                    let cut = t0 + ms(5_000) * (n + 1 + round * 7);
                    let asked = world.acquire(call);
                    let left = cut.saturating_sub(world.now());
                    if let Ok(answer) = tokio::time::timeout(left, asked).await {
                        return granted(answer);
                    }
                    world.sleep(ms(80)).await;
                }
                unreachable!()
            })
        };
        let first = world.take("k", &holder, ms(120_000)).await;
        let waits_b = cut_every_five_seconds(0);
        world.sleep(ms(27_000)).await;
        let waits_c = {
            let (world, c) = (world.clone(), c.clone());
            tokio::task::spawn_local(async move {
                let mut call = world.call("k", &c, ms(120_000));
                call.names_itself = true;
                call.wait = ms(300_000);
                granted(world.acquire(call).await)
            })
        };
        world.sleep(ms(4_500)).await;
        world.release(&first).await.unwrap();
        let of_b = waits_b.await.unwrap();
        assert_eq!((world.now() - t0).as_millis() / 100, 315, "B is first");
        world.release(&of_b).await.unwrap();
        let of_c = waits_c.await.unwrap();
        // Again: B before another one, and the release falls into a cut.
        let waits_b = cut_every_five_seconds(1);
        world.sleep(ms(1_000)).await;
        let waits_holder = {
            let (world, holder) = (world.clone(), holder.clone());
            tokio::task::spawn_local(async move {
                let mut call = world.call("k", &holder, ms(120_000));
                call.names_itself = true;
                call.wait = ms(300_000);
                granted(world.acquire(call).await)
            })
        };
        world.sleep((t0 + ms(65_010)).saturating_sub(world.now())).await;
        world.release(&of_c).await.unwrap();
        let of_b = waits_b.await.unwrap();
        assert!(!waits_holder.is_finished(), "B is first every time");
        world.release(&of_b).await.unwrap();
        waits_holder.await.unwrap();
    });
}

/// Waiters with request ids of their own are killed, their sessions live: who is next waits for a second at most, once.
#[test]
fn case_l24_killed_waiters_with_request_ids_of_their_own_do_not_add_up() {
    paused(async {
        let world = World::new(24).await;
        let (holder, live) = (world.worker("holder").await, world.worker("live").await);
        let grant = world.take("k", &holder, ms(60_000)).await;
        let mut killed = JoinSet::new();
        for n in 0..20 {
            let session = world.worker(&format!("w{n}")).await;
            let mut call = world.call("k", &session, TTL);
            (call.names_itself, call.wait) = (true, ms(30_000));
            let world = world.clone();
            killed.spawn_local(async move { world.acquire(call).await });
        }
        world.waiters("k", 20).await;
        let last = {
            let world = world.clone();
            tokio::task::spawn_local(async move {
                let grant = granted(world.wait_for("k", &live, TTL, ms(30_000)).await);
                (grant, world.now())
            })
        };
        world.waiters("k", 21).await;
        world.sleep(ms(6_000)).await;
        killed.abort_all();
        while killed.join_next().await.is_some() {}
        world.waiters("k", 1).await;
        let released = world.now();
        world.release(&grant).await.unwrap();
        let (_, at) = last.await.unwrap();
        assert!(at - released <= ms(1_010), "{:?}", at - released);
    });
}

#[test]
fn case_l25_ten_thousand_sessions_die_in_batches_while_acquires_go_on() {
    paused(async {
        let world = World::new(25).await;
        let mut opening = JoinSet::new();
        for n in 0..10_000 {
            let world = world.clone();
            opening.spawn_local(async move { world.open(&format!("w{n}"), ms(2_000)).await });
        }
        while opening.join_next().await.is_some() {}
        let live = world.worker("live").await;
        let sweeps_of = || world.metric("lock_store_batch_size_count{op=\"expire\"}");
        world.sleep(ms(1_950)).await;
        let (sweeps, mut during) = (sweeps_of(), 0);
        while world.metric("lock_sessions") > 1.0 {
            let before = sweeps_of();
            let grant = world.take(&format!("k{}", during % 7), &live, TTL).await;
            world.release(&grant).await.unwrap();
            during += u32::from(before >= sweeps + 2.0); // the mass death was under way
            world.sleep(MS / 2).await;
        }
        assert!(during > 0, "no acquire was answered between the sweeps");
        world.sleep(ms(3_000)).await;
        assert_eq!(world.service.sessions(None, 100).await.unwrap().len(), 1);
        assert_eq!(world.metric("lock_sessions"), 1.0);
        let sweeps = sweeps_of() - sweeps;
        assert!(
            sweeps >= 20.0,
            "{sweeps} sweeps for 10,000 sessions are not batches of at most 500"
        );
    });
}

#[test]
fn case_l26_a_session_with_ten_thousand_keys_dies_without_holding_others_up() {
    paused(async {
        let world = World::new(26).await;
        let rich = world.open("rich", ms(60_000)).await;
        let live = world.worker("live").await;
        let mut taking = JoinSet::new();
        for n in 0..10_000 {
            let (world, rich) = (world.clone(), rich.clone());
            taking.spawn_local(async move { world.take(&format!("k{n}"), &rich, ms(3_600_000)).await });
        }
        while taking.join_next().await.is_some() {}
        assert_eq!(world.metric("lock_held"), 10_000.0);
        let waiter = {
            let (world, live) = (world.clone(), live.clone());
            tokio::task::spawn_local(async move { granted(world.wait_for("k9999", &live, TTL, ms(90_000)).await) })
        };
        world.waiters("k9999", 1).await;
        let mut slowest = Duration::ZERO;
        while !waiter.is_finished() {
            let begun = world.now();
            let grant = world.take("other", &live, TTL).await;
            world.release(&grant).await.unwrap();
            slowest = slowest.max(world.now() - begun);
            world.sleep(ms(50)).await;
        }
        waiter.await.unwrap();
        assert_eq!(slowest, Duration::ZERO, "an acquire of another key waited");
        world.sleep(ms(2_000)).await;
        assert_eq!(world.metric("lock_held"), 1.0);
        assert_eq!(world.metric("lock_expired_total"), 10_000.0);
    });
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a witness that lies is made up")]
fn a_doubt_about_the_tokens_is_shown_until_an_operator_has_acted() {
    paused(async {
        let world = World::new(31).await;
        let session = world.worker("w").await;
        let doubt = || world.metric("lock_token_regression");
        assert_eq!(doubt(), 0.0);
        let token = world.take("k", &session, TTL).await.token;
        let witness = FencingToken::from_store(token.get() + 1_000).unwrap();
        // A heartbeat brings the doubt; nobody needs to be refused before it is seen.
        let beat = Heartbeat {
            session_id: session.clone(),
            witness: Some(witness),
        };
        world.service.heartbeat(beat, &world.trace).await.unwrap();
        let counted = Config::default().count_interval;
        world.sleep(counted + ms(1)).await;
        assert_eq!(doubt(), 1.0);
        let operator = Operator::new("ada").unwrap();
        let dismissed = world
            .service
            .dismiss_regression(operator, "the client lied".into())
            .await;
        assert!(matches!(dismissed, Ok(FloorOutcome::Changed(_))), "{dismissed:?}");
        world.sleep(counted + ms(1)).await;
        assert_eq!(doubt(), 0.0);
        // One that an acquire brings is seen with its refusal.
        let mut call = world.call("other", &session, TTL);
        call.request.witness = Some(witness);
        let refused = world.acquire(call).await;
        assert!(matches!(refused, Ok(Acquired::TokenRegression { .. })), "{refused:?}");
        assert_eq!(doubt(), 1.0);
    });
}

#[test]
fn case_d03_two_tasks_of_one_session_exclude_each_other() {
    paused(async {
        let world = World::new(103).await;
        let session = world.worker("w").await;
        let (a, b) = tokio::join!(
            world.try_acquire("k", &session, TTL),
            world.try_acquire("k", &session, TTL)
        );
        let grant = granted(a);
        assert!(held(b).1, "holder.self");
        let waiting = {
            let (world, session) = (world.clone(), session.clone());
            tokio::task::spawn_local(async move { granted(world.wait_for("k", &session, TTL, ms(20_000)).await) })
        };
        world.waiters("k", 1).await;
        world.release(&grant).await.unwrap();
        assert!(waiting.await.unwrap().token > grant.token);
    });
}

#[test]
fn case_d04_a_grant_after_a_long_wait_has_its_full_ttl() {
    paused(async {
        let world = World::new(104).await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let grant = world.take("k", &one, ms(60_000)).await;
        let waiting = {
            let world = world.clone();
            tokio::task::spawn_local(async move {
                match world.wait_for("k", &two, ms(5_000), ms(30_000)).await {
                    Ok(Acquired::Granted(granted)) => (granted.waited(), granted.claim(), world.now()),
                    other => panic!("{other:?}"),
                }
            })
        };
        world.sleep(ms(20_000)).await;
        world.release(&grant).await.unwrap();
        let (waited, grant, at) = waiting.await.unwrap();
        assert_eq!(
            grant.expires_in,
            ms(5_000),
            "less than its full TTL is left at the grant"
        );
        assert!(
            waited >= ms(19_900) && waited <= ms(20_000),
            "it is told that it waited {waited:?}"
        );
        world.sleep(ms(4_990)).await;
        assert!(
            world.holder("k").await.is_some(),
            "ended {:?} after its grant",
            world.now() - at
        );
        world.sleep(ms(300)).await;
        assert!(world.holder("k").await.is_none());
    });
}

#[test]
fn case_d05_heartbeats_do_not_stretch_a_grant() {
    paused(async {
        let world = World::new(105).await;
        let session = world.open("w", ms(3_000)).await;
        let grant = world.take("k", &session, ms(5_000)).await;
        for _ in 0..9 {
            world.sleep(ms(500)).await;
            let HeartbeatOutcome::Alive { expires_in, held } = world.beat(&session).await else {
                panic!("the session died of its heartbeats");
            };
            assert_eq!(expires_in, ms(3_000));
            assert_eq!(held.iter().map(|held| held.token).collect::<Vec<_>>(), [grant.token]);
        }
        world.sleep(ms(700)).await;
        let HeartbeatOutcome::Alive { held, .. } = world.beat(&session).await else {
            panic!("the session died of its heartbeats");
        };
        assert!(
            held.is_empty(),
            "{held:?} is still held {:?} after its grant",
            world.now()
        );
        assert!(world.holder("k").await.is_none());
    });
}

#[test]
fn case_d08_the_loser_cannot_release_with_the_token_it_was_shown() {
    paused(async {
        let world = World::new(108).await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let grant = world.take("k", &one, TTL).await;
        let (shown, _) = held(world.try_acquire("k", &two, TTL).await);
        assert_eq!(shown.token, grant.token);
        assert_eq!(
            world.release_as("k", &two, shown.token).await,
            Ok(ReleaseOutcome::NotHolder)
        );
        assert_eq!(world.holder("k").await.map(|grant| grant.token), Some(grant.token));
    });
}

#[test]
fn case_d09_a_heartbeat_beside_an_acquire_keeps_the_grant() {
    let seed = seed(109);
    paused(async {
        let world = World::new(seed).await;
        let two = world.worker("w2").await;
        for round in 0..200 {
            let one = world.open("w1", ms(1_000)).await;
            let grant = world.take("k", &one, ms(10_000)).await;
            // In the last millisecond of the session's life.
            world.sleep(ms(990 + world.host.random.below(10))).await;
            let (beaten, refused) = if world.host.random.chance(0.5) {
                tokio::join!(biased; world.beat(&one), world.try_acquire("k", &two, TTL))
            } else {
                let (refused, beaten) = tokio::join!(biased; world.try_acquire("k", &two, TTL), world.beat(&one));
                (beaten, refused)
            };
            assert!(
                matches!(beaten, HeartbeatOutcome::Alive { .. }),
                "round {round}: {beaten:?}"
            );
            assert_eq!(held(refused).0.token, grant.token, "round {round}");
            assert_eq!(
                world.holder("k").await.map(|grant| grant.token),
                Some(grant.token),
                "round {round}"
            );
            world.close(&one).await;
        }
    });
}

#[test]
fn a_newcomer_never_overtakes_the_queue() {
    let seed = seed(200);
    paused(async {
        let world = World::new(seed).await;
        let holder = world.worker("holder").await;
        let grant = world.take("k", &holder, ms(600_000)).await;
        let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let mut clients = JoinSet::new();
        for n in 0..50u32 {
            let session = world.worker(&format!("w{n}")).await;
            let (world_, order) = (world.clone(), order.clone());
            clients.spawn_local(async move {
                let world = world_;
                let grant = granted(world.wait_for("k", &session, TTL, ms(300_000)).await);
                order.borrow_mut().push(n);
                world.sleep(ms(world.host.random.below(5))).await;
                world.release(&grant).await.unwrap();
            });
            world.waiters("k", n + 1).await;
        }
        // Impatient ones try all the time, also in the instants in which the key is free.
        let impatient = {
            let world = world.clone();
            tokio::task::spawn_local(async move {
                let session = world.worker("impatient").await;
                loop {
                    if let Ok(Acquired::Granted(granted)) = world.try_acquire("k", &session, TTL).await {
                        return granted.claim();
                    }
                    world.sleep(MS).await;
                }
            })
        };
        world.sleep(ms(10)).await;
        world.release(&grant).await.unwrap();
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        assert_eq!(*order.borrow(), (0..50).collect::<Vec<_>>());
        impatient.await.unwrap();
    });
}

#[test]
fn five_thousand_heartbeats_are_few_writes() {
    paused(async {
        let world = World::new(201).await;
        let mut opening = JoinSet::new();
        for n in 0..5_000 {
            let world = world.clone();
            opening.spawn_local(async move { world.open(&format!("w{n}"), TTL).await });
        }
        let mut sessions = Vec::new();
        while let Some(session) = opening.join_next().await {
            sessions.push(session.unwrap());
        }
        let calls = || world.metric("lock_store_batch_size_count{op=\"heartbeat\"}");
        for _ in 0..10 {
            let before = calls();
            let mut beating = JoinSet::new();
            for session in sessions.clone() {
                let world = world.clone();
                beating.spawn_local(async move { world.beat(&session).await });
            }
            while let Some(beaten) = beating.join_next().await {
                assert!(matches!(beaten.unwrap(), HeartbeatOutcome::Alive { .. }));
            }
            let calls = calls() - before;
            assert!(calls <= 20.0, "5,000 heartbeats took {calls} store calls");
            world.sleep(ms(5_000)).await;
        }
        assert_eq!(world.metric("lock_sessions"), 5_000.0);
    });
}

#[test]
fn a_session_of_another_replica_is_looked_up_once() {
    paused(async {
        let world = World::new(202).await;
        let session = world.open("w", ms(60_000)).await;
        // A second core over the same store knows nothing yet.
        let other = World::over(world.host.clone(), world.store.clone(), Config::default());
        let mut call = other.call("k", &session, TTL);
        call.ttl_of_session = true;
        let grant = granted(other.acquire(call).await);
        assert_eq!(grant.ttl.get(), ms(60_000), "its session's TTL");
        // Who waits at one replica is woken by a release at another.
        let third = world.worker("w3").await;
        let waiting = {
            let world = world.clone();
            tokio::task::spawn_local(async move {
                let grant = granted(world.wait_for("k", &third, TTL, ms(30_000)).await);
                (grant, world.now())
            })
        };
        world.waiters("k", 1).await;
        world.sleep(ms(5_000)).await;
        let released = world.now();
        other.release(&grant).await.unwrap();
        let (_, at) = waiting.await.unwrap();
        assert!(at - released <= ms(50), "woken {:?} after the release", at - released);
        let nobody = lock_api::SessionId::new("nobody").unwrap();
        let refused = other.wait_for("k", &nobody, TTL, ms(30_000)).await;
        assert!(matches!(refused, Ok(Acquired::SessionNotFound)), "{refused:?}");
    });
}

/// The mint for a waiter stood in the trace of whoever freed the key for it.
#[test]
fn a_waiter_is_granted_the_key_in_its_own_trace() {
    paused(async {
        let holding = World::new(203).await;
        let waiting = World {
            trace: TraceContext::root(&holding.host.random),
            ..holding.clone()
        };
        let (first, second) = (holding.worker("w1").await, holding.worker("w2").await);
        let grant = holding.take("k", &first, TTL).await;
        let waits = {
            let waiting = waiting.clone();
            tokio::task::spawn_local(
                async move { granted(waiting.wait_for("k", &second, TTL, ms(30_000)).await).token },
            )
        };
        holding.waiters("k", 1).await;
        holding.release(&grant).await.unwrap();
        let token = waits.await.unwrap();
        let records = holding.kit.trace().read(&TraceQuery::default());
        let minted = |record: &&TraceRecord| (record.message, record.token) == ("Minted", Some(token.get()));
        let minted = records.iter().find(minted).unwrap();
        assert_eq!(minted.trace.trace_id(), waiting.trace.trace_id());
        let of_the_holder =
            |record: &&TraceRecord| record.message == "Mint" && record.trace.trace_id() == holding.trace.trace_id();
        assert_eq!(records.iter().filter(of_the_holder).count(), 1, "its own: {records:?}");
    });
}

#[test]
fn case_s6_one_caller_gets_half_of_the_sessions_and_of_the_keys() {
    paused(async {
        let config = Config {
            sessions_max: 6,
            keys_max: 4,
            ..Config::default()
        };
        let world = World::with(6, config).await;
        let (greedy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let open = async |caller| {
            let request = OpenSession {
                session_id: SessionId::new(world.host.ids.ulid()).unwrap(),
                owner: Owner::new("w").unwrap(),
                ttl: Ttl::new(TTL).unwrap(),
                metadata: None,
            };
            let opened = world.service.open_for(Some(caller), request, &world.trace).await;
            opened.map(|view| view.session_id)
        };
        let mut own = Vec::new();
        for _ in 0..3 {
            own.push(open(greedy).await.unwrap());
        }
        let refused = open(greedy).await.unwrap_err();
        assert!(refused.to_string().contains("sessions of one caller"), "{refused}");
        let theirs = open(other).await.unwrap();

        let first = world.take("a", &own[0], TTL).await;
        world.take("b", &own[1], TTL).await;
        let refused = world.try_acquire("c", &own[2], TTL).await.unwrap_err();
        assert!(
            refused.to_string().contains("keys held by sessions of one caller"),
            "{refused}"
        );
        world.take("c", &theirs, TTL).await;

        // What is given back, by a release or with its session, is free for the next one.
        world.release(&first).await.unwrap();
        world.take("d", &own[2], TTL).await;
        world.close(&own[1]).await;
        open(greedy).await.unwrap();
        world.take("e", &own[2], TTL).await;
        let refused = world.try_acquire("f", &own[2], TTL).await.unwrap_err();
        assert!(refused.to_string().contains("keys held by one session"), "{refused}");
        // All that the caller had has expired.
        world.sleep(TTL * 2).await;
        let fresh = open(greedy).await.unwrap();
        world.take("g", &fresh, TTL).await;
    });
}
