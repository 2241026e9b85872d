//! Races between callers.

use super::Backend;
use super::helpers::{Dice, LONG, WITHIN, acquire_request, store};
use futures_util::FutureExt;
use lock_api::{AcquireOutcome, HeartbeatOutcome, ReleaseOutcome, RenewOutcome};
use std::time::Duration;

/// L12: a release races a renew and a heartbeat: once it is answered, the key is free and stays free.
pub async fn case_l12_a_release_stands_against_renews_and_heartbeats(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let mut dice = Dice(12);
    for round in 0..backend.rounds(10_000) {
        let token = store.grant("a", "s1", &format!("r{round}"), LONG).await.token;
        let release = store.release("a", "s1", token);
        let renew = store.renew("a", "s1", token);
        let beat = store.heartbeat("s1");
        // A biased join asks in the order it is written.
        let (released, renewed) = match dice.roll(3) {
            0 => {
                let (released, renewed, _) = tokio::join!(biased; release, renew, beat);
                if backend.keeps_call_order() {
                    assert_eq!(renewed, RenewOutcome::NotHolder, "asked after the release");
                }
                (released, renewed)
            }
            1 => {
                let (renewed, released, _) = tokio::join!(biased; renew, release, beat);
                (released, renewed)
            }
            _ => {
                let (beat, renewed, released) = tokio::join!(biased; beat, renew, release);
                assert!(matches!(beat, HeartbeatOutcome::Alive { .. }));
                (released, renewed)
            }
        };
        assert_eq!(released, ReleaseOutcome::Released);
        assert!(matches!(renewed, RenewOutcome::Renewed(_) | RenewOutcome::NotHolder));
        if dice.roll(8) == 0 {
            assert_eq!(store.renew("a", "s1", token).await, RenewOutcome::NotHolder);
            let HeartbeatOutcome::Alive { held, .. } = store.heartbeat("s1").await else {
                panic!("alive")
            };
            assert!(held.is_empty(), "round {round}: {held:?}");
            assert_eq!(store.holder("a").await, None, "round {round}");
        }
    }
}

/// L23: releases at random moments while others queue up: whoever waits for a change is woken by the release.
pub async fn case_l23_no_waiter_sleeps_past_a_release(backend: &mut dyn Backend) {
    let store = store(backend);
    // One release and nothing after it: it alone has to wake who waits.
    store.open("holder", LONG).await;
    for round in 0..backend.rounds(1000) {
        let token = store.grant("b", "holder", &format!("r{round}"), LONG).await.token;
        let seen = store.seq().await;
        let waiting = store.0.changed_since(seen, WITHIN);
        let (woken, released) = tokio::join!(biased; waiting, store.release("b", "holder", token));
        assert_eq!(released, ReleaseOutcome::Released);
        assert!(
            woken.unwrap() > seen,
            "slept past the release after {seen}, round {round}"
        );
    }
    let rounds = backend.rounds(10_000) / 4;
    let client = |n: u32| {
        let store = store.clone();
        async move {
            let session = format!("s{n}");
            let mut dice = Dice(u64::from(n));
            store.open(&session, LONG).await;
            for round in 0..rounds {
                let token = loop {
                    let seen = store.seq().await;
                    match store.acquire("a", &session, &format!("r{round}"), LONG).await {
                        AcquireOutcome::Granted { grant, .. } => break grant.token,
                        AcquireOutcome::HeldByOther(_) => {
                            let woken = store.0.changed_since(seen, WITHIN).await.unwrap();
                            assert!(woken > seen, "slept past every release after {seen}");
                        }
                        other => panic!("{other:?}"),
                    }
                };
                for _ in 0..dice.roll(4) {
                    tokio::task::yield_now().await;
                }
                assert_eq!(store.release("a", &session, token).await, ReleaseOutcome::Released);
            }
        }
    };
    futures_util::future::join_all((0..4).map(client)).await;
    assert_eq!(store.holder("a").await, None);
}

/// L18, the store's part: the caller of an acquire goes away at any point: a grant that the same request finds again, or
/// none; the store goes on.
pub async fn case_l18_an_abandoned_acquire_can_be_found_or_is_none(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    for polls in 0..backend.rounds(40) {
        let (at, request) = (format!("k{polls}"), format!("r{polls}"));
        {
            let mut call = store
                .0
                .acquire(vec![acquire_request(&at, "s1", &request, LONG)], WITHIN);
            for _ in 0..polls % 4 {
                if (&mut call).now_or_never().is_some() {
                    break;
                }
                tokio::time::sleep(Duration::from_micros(u64::from(polls) * 20)).await;
            }
        }
        let before = store.holder(&at).await;
        let answer = store.acquire(&at, "s1", &request, LONG).await;
        let AcquireOutcome::Granted { grant, replayed } = answer else {
            panic!("{answer:?}")
        };
        if let Some((_, token)) = before {
            assert!(
                replayed && grant.token.get() == token,
                "another grant than the one that was made"
            );
        }
        assert_eq!(store.release(&at, "s1", grant.token).await, ReleaseOutcome::Released);
    }
    let facts = store.events(0).await;
    let granted = facts
        .iter()
        .filter(|fact| fact.kind == lock_api::EventKind::Granted)
        .count();
    let released = facts
        .iter()
        .filter(|fact| fact.kind == lock_api::EventKind::Released)
        .count();
    assert_eq!(granted, released);
}
