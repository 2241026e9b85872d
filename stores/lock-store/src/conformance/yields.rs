//! The request to yield: an operator asks, the holder sees it, and nothing ends by it.

use super::Backend;
use super::helpers::{LONG, PAST_T, Store, T, made_up_token, sid, store};
use lock_api::{
    AcquireOutcome, EventKind, Grant, HeartbeatOutcome, HeldGrant, RenewOutcome, RevokeOutcome, YieldAsked,
    YieldOutcome,
};

async fn asked(store: &Store, grant: &Grant, by: &str) -> YieldAsked {
    let outcome = store.ask_to_yield(grant.key.as_str(), grant.token, by).await;
    let YieldOutcome::Asked(shown) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        (&shown.key, shown.token, &shown.session_id),
        (&grant.key, grant.token, &grant.session_id)
    );
    shown.yield_asked.unwrap()
}

async fn held(store: &Store, session: &str) -> Vec<HeldGrant> {
    let HeartbeatOutcome::Alive { held, .. } = store.heartbeat(session).await else {
        panic!("alive")
    };
    held
}

/// The holder sees it in its heartbeat and its renewal, others in what is shown of the key and of the session, whoever is
/// refused in the refusal; and it is a fact.
pub async fn a_request_to_yield_is_seen_by_its_holder(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let grant = store.grant("a", "s1", "r1", LONG).await;
    store.grant("b", "s1", "r2", LONG).await;
    assert_eq!(grant.yield_asked, None);
    assert!(held(&store, "s1").await.iter().all(|held| held.yield_asked.is_none()));
    let before = store.seq().await;
    let asked = asked(&store, &grant, "alice").await;
    assert_eq!(
        (asked.by.as_str(), asked.reason.as_str()),
        ("alice", "alice is in a hurry")
    );
    let facts = store.events(before).await;
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!(
        (facts[0].kind, &facts[0].lock_key, &facts[0].session_id, facts[0].token),
        (
            EventKind::YieldRequested,
            &Some(grant.key.clone()),
            &Some(grant.session_id.clone()),
            Some(grant.token)
        )
    );
    assert_eq!(
        (facts[0].actor.as_deref(), facts[0].reason.as_deref()),
        (Some("alice"), Some("alice is in a hurry"))
    );
    let expected = Some(asked);
    let held = held(&store, "s1").await;
    let seen: Vec<_> = held.iter().map(|held| (held.key.as_str(), &held.yield_asked)).collect();
    assert_eq!(seen, [("a", &expected), ("b", &None)]);
    let view = store
        .0
        .session(sid("s1"), super::helpers::WITHIN)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(view.held.len(), 2);
    assert_eq!(view.held[0].yield_asked, expected);
    let views = store.0.sessions(None, 10, super::helpers::WITHIN).await.unwrap();
    assert_eq!(views[0].held[0].yield_asked, expected);
    let RenewOutcome::Renewed(renewed) = store.renew("a", "s1", grant.token).await else {
        panic!("held")
    };
    assert_eq!((renewed.token, renewed.yield_asked), (grant.token, expected.clone()));
    let again = store.acquire("a", "s1", "r1", LONG).await;
    let AcquireOutcome::Granted {
        grant: again,
        replayed: true,
    } = again
    else {
        panic!("{again:?}")
    };
    assert_eq!((again.token, again.yield_asked), (grant.token, expected.clone()));
    assert_eq!(store.inspect("a").await.grant.unwrap().yield_asked, expected);
    assert_eq!(store.refused("a", "s2", "r3").await.holder.yield_asked, expected);
    // It still stands after the renewal, and the key beside it knows nothing of it.
    assert_eq!(store.heartbeat("s1").await, store.heartbeat("s1").await);
    assert_eq!(store.inspect("b").await.grant.unwrap().yield_asked, None);
}

/// Whoever asks again finds what the first said, and is no fact.
pub async fn the_first_to_ask_stays(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let grant = store.grant("a", "s1", "r1", LONG).await;
    let first = asked(&store, &grant, "alice").await;
    let before = store.seq().await;
    backend.pass(T).await;
    assert_eq!(asked(&store, &grant, "bob").await, first);
    assert_eq!(asked(&store, &grant, "alice").await, first);
    assert_eq!(store.seq().await, before);
    assert_eq!(held(&store, "s1").await[0].yield_asked, Some(first));
}

/// Another token, a free key, one that is over, one that was never held: nothing is asked of anybody.
pub async fn who_does_not_hold_is_not_asked(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let first = store.grant("a", "s1", "r1", LONG).await;
    store.release("a", "s1", first.token).await;
    let freed = store.shown().await;
    assert_eq!(
        store.ask_to_yield("a", first.token, "alice").await,
        YieldOutcome::NotHeld
    );
    assert_eq!(
        store.ask_to_yield("b", first.token, "alice").await,
        YieldOutcome::NotFound
    );
    assert_eq!(store.shown().await, freed);
    let grant = store.grant("a", "s1", "r2", T).await;
    let before = store.shown().await;
    for token in [first.token, made_up_token(grant.token.get() + 1)] {
        let outcome = store.ask_to_yield("a", token, "alice").await;
        assert!(
            matches!(&outcome, YieldOutcome::NotHolder { holder } if holder.token == grant.token && holder.yield_asked.is_none()),
            "{outcome:?}"
        );
    }
    assert_eq!(store.shown().await, before);
    backend.pass(PAST_T).await;
    assert_eq!(
        store.ask_to_yield("a", grant.token, "alice").await,
        YieldOutcome::NotHeld
    );
    let facts = store.events(0).await;
    assert!(
        facts.iter().all(|fact| fact.kind != EventKind::YieldRequested),
        "{facts:?}"
    );
}

/// However a grant ends, the next one of its key, by the same session or another, has not been asked.
pub async fn a_request_to_yield_goes_with_its_grant(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    for (n, end) in ["release", "revoke", "expire", "taken over", "close"]
        .into_iter()
        .enumerate()
    {
        let session = if end == "close" { "s2" } else { "s1" };
        let lease = if end == "close" { LONG } else { T };
        let grant = store.grant("a", session, &format!("r{n}"), lease).await;
        asked(&store, &grant, "alice").await;
        match end {
            "release" => drop(store.release("a", session, grant.token).await),
            "revoke" => {
                let outcome = store.revoke("a", grant.token).await;
                let RevokeOutcome::Revoked { revoked, .. } = outcome else {
                    panic!("{outcome:?}")
                };
                assert!(revoked.yield_asked.is_some(), "what it was asked before is shown");
            }
            "close" => drop(store.close(session).await),
            _ => {
                backend.pass(PAST_T).await;
                if end == "expire" {
                    assert_eq!(store.sweep().await.grants.len(), 1);
                }
            }
        }
        let next = store.grant("a", "s1", &format!("next-{n}"), LONG).await;
        assert_eq!(next.yield_asked, None, "after {end}");
        assert_eq!(store.inspect("a").await.grant.unwrap().yield_asked, None, "after {end}");
        assert_eq!(held(&store, "s1").await[0].yield_asked, None, "after {end}");
        let RenewOutcome::Renewed(renewed) = store.renew("a", "s1", next.token).await else {
            panic!("held")
        };
        assert_eq!(renewed.yield_asked, None, "after {end}");
        // It can be asked on its own.
        let bob = asked(&store, &next, "bob").await;
        assert_eq!(held(&store, "s1").await[0].yield_asked, Some(bob));
        store.release("a", "s1", next.token).await;
    }
}

/// The lease runs on as it did, neither longer nor shorter; a restart does not forget what was asked.
pub async fn a_request_to_yield_ends_nothing_and_outlives_a_restart(backend: &mut dyn Backend) {
    let before = store(backend);
    before.open("s1", LONG).await;
    let grant = before.grant("a", "s1", "r1", T).await;
    backend.pass(T / 2).await;
    let said = asked(&before, &grant, "alice").await;
    let left = before.inspect("a").await.grant.unwrap().expires_in;
    assert!(left <= T / 2, "it does not lengthen the lease: {left:?}");
    let beat = held(&before, "s1").await;
    assert_eq!(
        (beat.len(), beat[0].token, beat[0].yield_asked.as_ref()),
        (1, grant.token, Some(&said))
    );
    assert!(beat[0].expires_in <= T / 2, "{beat:?}");
    assert!(before.sweep().await.grants.is_empty());
    drop(before);
    let restarted = backend.restart().await;
    let store = store(backend);
    assert_eq!(held(&store, "s1").await[0].yield_asked, Some(said.clone()));
    assert_eq!(store.inspect("a").await.grant.unwrap().yield_asked, Some(said.clone()));
    let RenewOutcome::Renewed(renewed) = store.renew("a", "s1", grant.token).await else {
        panic!("held, restarted: {restarted}")
    };
    assert_eq!((renewed.token, renewed.yield_asked), (grant.token, Some(said)));
    backend.pass(PAST_T).await;
    assert_eq!(store.sweep().await.grants.len(), 1);
    assert!(store.grant("a", "s1", "r2", T).await.token > grant.token);
}
