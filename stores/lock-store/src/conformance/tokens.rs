//! Tokens, doubt and the floor.

use super::Backend;
use super::helpers::{LONG, PAST_T, T, WITHIN, acquire_request, made_up_token, operator, store};
use lock_api::{
    AcquireOutcome, EventKind, FencingToken, FloorOutcome, HeartbeatOutcome, LineageState, ReleaseOutcome,
    RenewOutcome, RevokeOutcome, TOKEN_MAX, WITNESS_REACH,
};
use std::time::Duration;

/// L10: release, expiry, revoke, close, purge and restart: the next token is above every earlier one.
pub async fn case_l10_the_next_token_is_above_every_earlier_one(backend: &mut dyn Backend) {
    let mut highest = 0;
    for round in 0..3 {
        let store = store(backend);
        for (step, end) in ["release", "expiry", "revoke", "close", "purge"]
            .into_iter()
            .enumerate()
        {
            let (session, request) = (format!("s{round}-{step}"), format!("r{round}-{step}"));
            store.open(&session, LONG).await;
            let grant = store.grant("a", &session, &request, T).await;
            assert!(
                grant.token.get() > highest,
                "after {highest}, before {end} of round {round}: {grant:?}"
            );
            highest = grant.token.get();
            match end {
                "release" => assert_eq!(
                    store.release("a", &session, grant.token).await,
                    ReleaseOutcome::Released
                ),
                "expiry" => {
                    backend.pass(PAST_T).await;
                    assert_eq!(store.sweep().await.grants.len(), 1);
                }
                "revoke" => {
                    let RevokeOutcome::Revoked { token, .. } = store.revoke("a", grant.token).await else {
                        panic!("held")
                    };
                    assert!(token.get() > highest);
                    highest = token.get();
                }
                "close" => assert_eq!(store.close(&session).await, [("a".to_owned(), highest)]),
                _ => {
                    store.release("a", &session, grant.token).await;
                    backend.pass(T).await;
                    assert_eq!(store.0.purge_tombstones(T / 2, 10, WITHIN).await.unwrap(), 1);
                    assert_eq!(store.inspect("a").await.last_token, None);
                }
            }
        }
        backend.restart().await;
    }
}

/// L09: sixteen clients acquire and release one hot key: tokens strictly increase in grant order, and never are there two
/// grants at once.
pub async fn case_l09_a_hot_key_is_granted_in_token_order(backend: &mut dyn Backend) {
    let store = store(backend);
    let rounds = backend.rounds(100);
    let client = |n: u32| {
        let store = store.clone();
        async move {
            let session = format!("s{n}");
            store.open(&session, LONG).await;
            let mut granted = Vec::new();
            let mut attempt = 0;
            while granted.len() < rounds as usize {
                attempt += 1;
                let seen = store.seq().await;
                match store
                    .acquire("hot", &session, &format!("{session}-{attempt}"), LONG)
                    .await
                {
                    AcquireOutcome::Granted { grant, replayed: false } => {
                        granted.push(grant.token);
                        tokio::task::yield_now().await;
                        assert_eq!(
                            store.release("hot", &session, grant.token).await,
                            ReleaseOutcome::Released
                        );
                    }
                    AcquireOutcome::HeldByOther(_) => {
                        store.0.changed_since(seen, WITHIN).await.unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
            granted
        }
    };
    let granted: Vec<Vec<FencingToken>> = futures_util::future::join_all((0..16).map(client)).await;
    for tokens in &granted {
        assert!(tokens.is_sorted_by(|a, b| a < b), "one client's own tokens: {tokens:?}");
    }
    // The order in which they were granted is the order of the facts.
    let (mut held, mut last, mut grants) = (None, 0, 0);
    for fact in store.events(0).await {
        let token = fact.token.map_or(0, FencingToken::get);
        match fact.kind {
            EventKind::Granted => {
                assert!(
                    token > last && held.is_none(),
                    "{token} after {last} while {held:?} is held"
                );
                (held, last, grants) = (Some(token), token, grants + 1);
            }
            EventKind::Released => assert_eq!(held.take(), Some(token)),
            _ => {}
        }
    }
    assert_eq!(grants, 16 * rounds);
}

/// A client has seen a token that the store never minted: the store was rewound, and grants nothing; what is held goes
/// on.
pub async fn a_witness_above_the_last_token_stops_all_grants(backend: &mut dyn Backend) {
    for by_heartbeat in [true, false] {
        let store = store(backend);
        let (s1, s2) = (format!("s1-{by_heartbeat}"), format!("s2-{by_heartbeat}"));
        store.open(&s1, LONG).await;
        store.open(&s2, LONG).await;
        let at = format!("a-{by_heartbeat}");
        let held = store.grant(&at, &s1, "r1", LONG).await;
        // What was really minted is no reason for doubt.
        assert!(matches!(
            store.heartbeat_with(&s2, Some(held.token)).await,
            HeartbeatOutcome::Alive { .. }
        ));
        let witness = Some(made_up_token(held.token.get() + 1));
        if by_heartbeat {
            let beat = store.heartbeat_with(&s2, witness).await;
            assert!(matches!(beat, HeartbeatOutcome::Alive { .. }), "{beat:?}");
        } else {
            let mut request = acquire_request("b", &s2, "r2", T);
            request.witness = witness;
            let answer = store.ask(request).await;
            assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
        }
        let lineage = store.0.lineage(WITHIN).await.unwrap();
        assert_eq!(lineage.state, LineageState::Regressed);
        assert!(lineage.detail.is_some());
        assert!(
            store.0.health(WITHIN).await.unwrap().problem.is_some(),
            "a doubt is a problem"
        );
        let free = format!("c-{by_heartbeat}");
        for (key, request) in [(free.as_str(), "r3"), (at.as_str(), "r1")] {
            let answer = store.acquire(key, &s1, request, T).await;
            assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
        }
        assert!(matches!(
            store.revoke(&at, held.token).await,
            RevokeOutcome::TokenRegression { .. }
        ));
        assert!(matches!(
            store.renew(&at, &s1, held.token).await,
            RenewOutcome::Renewed(_)
        ));
        assert_eq!(store.release(&at, &s1, held.token).await, ReleaseOutcome::Released);
        assert_eq!(store.inspect(&free).await.last_token, None);
        // A restart does not forget it.
        if backend.restart().await {
            let store = super::helpers::store(backend);
            let answer = store.acquire("d", &s1, "r4", T).await;
            assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
        }
        let store = super::helpers::store(backend);
        let found: Vec<_> = store
            .events(0)
            .await
            .into_iter()
            .filter(|f| f.kind == EventKind::RegressionDetected)
            .collect();
        assert_eq!(found.len(), if by_heartbeat { 1 } else { 2 }, "one doubt is one fact");
        let floor = held.token.get() + 5;
        let outcome = store
            .0
            .advance_floor(floor, operator(), "restored".into(), WITHIN)
            .await
            .unwrap();
        assert!(matches!(outcome, FloorOutcome::Changed(_)), "{outcome:?}");
        assert!(store.grant(&free, &s1, "r5", T).await.token.get() > floor);
        store.close(&s1).await;
    }
}

/// A witness beyond all reach could stop the service for good: it is refused, recorded, and changes nothing.
pub async fn a_witness_out_of_reach_is_refused_and_recorded(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", T).await;
    let last = store.grant("a", "s1", "r1", LONG).await.token.get();
    backend.pass(T / 2).await;
    let highest = last + WITNESS_REACH;
    let mut request = acquire_request("b", "s1", "r2", T);
    request.witness = Some(made_up_token(TOKEN_MAX));
    let answer = store.ask(request).await;
    assert!(
        matches!(answer, AcquireOutcome::WitnessRefused { highest_believed } if highest_believed == highest),
        "{answer:?}"
    );
    let beat = store.heartbeat_with("s1", Some(made_up_token(highest + 1))).await;
    assert!(
        matches!(beat, HeartbeatOutcome::WitnessRefused { highest_believed } if highest_believed == highest),
        "{beat:?}"
    );
    assert_eq!(store.inspect("b").await.last_token, None);
    assert_eq!(store.0.lineage(WITHIN).await.unwrap().state, LineageState::Ok);
    let recorded = store
        .events(0)
        .await
        .into_iter()
        .filter(|f| f.kind == EventKind::WitnessRefused)
        .count();
    assert_eq!(recorded, 2);
    // The refused heartbeat did not extend the session.
    backend.pass(PAST_T / 2).await;
    assert_eq!(store.heartbeat("s1").await, HeartbeatOutcome::SessionNotFound);
    // At the very edge it is believed, and a doubt.
    store.open("s2", LONG).await;
    let last = store.grant("c", "s2", "r3", T).await.token.get();
    let beat = store
        .heartbeat_with("s2", Some(made_up_token(last + WITNESS_REACH)))
        .await;
    assert!(matches!(beat, HeartbeatOutcome::Alive { .. }), "{beat:?}");
    assert_eq!(store.0.lineage(WITHIN).await.unwrap().state, LineageState::Regressed);
}

/// A floor is taken from the last token up to the reach above it, and every later token is above it.
pub async fn a_floor_within_its_bounds_ends_the_doubt(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.grant("a", "s1", "r1", LONG).await;
    let last = store.grant("b", "s1", "r2", LONG).await.token.get();
    let advance = |floor| {
        store
            .0
            .advance_floor(floor, operator(), "known to be higher".into(), WITHIN)
    };
    let before = store.shown().await;
    for floor in [0, last - 1, last + WITNESS_REACH + 1, TOKEN_MAX, u64::MAX] {
        let outcome = advance(floor).await.unwrap();
        let expected = FloorOutcome::OutOfBounds {
            lowest: last,
            highest: last + WITNESS_REACH,
        };
        assert_eq!(outcome, expected, "floor {floor}");
    }
    assert_eq!(store.shown().await, before);
    for floor in [last, last + 1000, last + 1000 + WITNESS_REACH] {
        let FloorOutcome::Changed(lineage) = advance(floor).await.unwrap() else {
            panic!("within bounds: {floor}")
        };
        assert_eq!((lineage.token_floor, lineage.state), (floor, LineageState::Ok));
        assert_eq!(lineage.changed_by, operator().as_str());
        assert_eq!(store.0.lineage(WITHIN).await.unwrap(), lineage);
    }
    let token = store.grant("c", "s1", "r3", T).await.token.get();
    assert!(token > last + 1000 + WITNESS_REACH);
    let fact = store
        .events(0)
        .await
        .into_iter()
        .rfind(|f| f.kind == EventKind::FloorAdvanced)
        .unwrap();
    assert_eq!(fact.actor.as_deref(), Some(operator().as_str()));
    assert_eq!(fact.reason.as_deref(), Some("known to be higher"));
}

/// An operator who knows that a witness lied dismisses the doubt; the floor stays.
pub async fn a_doubt_can_be_dismissed(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let dismiss = || store.0.dismiss_regression(operator(), "the client lied".into(), WITHIN);
    assert_eq!(dismiss().await.unwrap(), FloorOutcome::NothingToDismiss);
    let last = store.grant("a", "s1", "r1", T).await.token;
    store.heartbeat_with("s1", Some(made_up_token(last.get() + 1000))).await;
    let FloorOutcome::Changed(lineage) = dismiss().await.unwrap() else {
        panic!("a doubt")
    };
    assert_eq!((lineage.state, lineage.detail), (LineageState::Ok, None));
    let next = store.grant("b", "s1", "r2", T).await.token;
    assert!(next > last && next.get() < last.get() + 1000);
    assert_eq!(dismiss().await.unwrap(), FloorOutcome::NothingToDismiss);
    let facts = store.events(0).await;
    assert_eq!(
        facts
            .iter()
            .filter(|f| f.kind == EventKind::RegressionDismissed)
            .count(),
        1
    );
}

/// The id of the history is made once.
pub async fn the_lineage_stays(backend: &mut dyn Backend) {
    let first = store(backend).0.lineage(WITHIN).await.unwrap();
    assert!(!first.lineage.is_empty());
    assert_eq!(
        (first.last_token, first.token_floor, first.state),
        (0, 0, LineageState::Ok)
    );
    backend.pass(Duration::from_millis(5)).await;
    backend.restart().await;
    assert_eq!(store(backend).0.lineage(WITHIN).await.unwrap(), first);
}

/// A store that can do its work says so.
pub async fn a_healthy_store_says_so(backend: &mut dyn Backend) {
    let health = store(backend).0.health(WITHIN).await.unwrap();
    assert_eq!(health.problem, None);
    assert!(["sqlite", "pg", "etcd"].contains(&health.backend));
}
