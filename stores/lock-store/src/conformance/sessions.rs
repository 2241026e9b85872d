//! Sessions: who is alive.

use super::Backend;
use super::helpers::{LONG, PAST_T, T, WITHIN, acquire_request, assert_left, key, open_request, sid, store};
use lock_api::{AcquireOutcome, Heartbeat, HeartbeatOutcome, Metadata, StoreError, Ttl};
use std::time::Duration;

/// Repeating an open is harmless: the existing session is answered unchanged.
pub async fn opening_is_idempotent(backend: &mut dyn Backend) {
    let store = store(backend);
    let mut request = open_request("s1", LONG);
    request.metadata = Some(Metadata::new(r#"{"pod":"a"}"#).unwrap());
    let first = store.0.open(vec![request.clone()], WITHIN).await.unwrap().remove(0);
    assert_eq!((first.owner.as_str(), first.ttl.get()), ("owner of s1", LONG));
    assert_eq!((&first.metadata, first.held.len()), (&request.metadata, 0));
    assert_left(backend, first.expires_in, LONG);
    backend.pass(T).await;
    let again = store.0.open(vec![request], WITHIN).await.unwrap().remove(0);
    assert_eq!(
        (again.opened_at, again.last_heartbeat_at),
        (first.opened_at, first.last_heartbeat_at)
    );
    assert_left(backend, again.expires_in, LONG - T);
    assert_eq!(store.events(0).await.len(), 1, "the second call is no second opening");
}

/// An id that exists with other fields refuses the whole call; nothing of it is done.
pub async fn an_id_with_other_fields_is_refused_as_a_whole(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let before = store.shown().await;
    let refused = store
        .0
        .open(
            vec![
                open_request("s0", LONG),
                open_request("s1", T),
                open_request("s2", LONG),
            ],
            WITHIN,
        )
        .await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    assert_eq!(store.shown().await, before);
    assert_eq!(store.heartbeat("s0").await, HeartbeatOutcome::SessionNotFound);
    backend.pass(LONG + T).await;
    let ended = store.sweep().await;
    assert_eq!(
        ended.sessions.len(),
        1,
        "nothing of the refused call is left to end: {ended:?}"
    );
}

/// A heartbeat extends by the whole TTL from the moment it is applied, for each session of a batch, in order.
pub async fn a_heartbeat_extends_by_the_ttl_and_says_what_is_held(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", T).await;
    store.open("s2", LONG).await;
    let a = store.grant("a", "s1", "r1", LONG).await;
    let b = store.grant("b", "s1", "r2", LONG).await;
    let beat = |id: &str| Heartbeat {
        session_id: sid(id),
        witness: None,
    };
    for _ in 0..3 {
        backend.pass(T / 2).await;
        let answers = store
            .0
            .heartbeat(vec![beat("s1"), beat("nobody"), beat("s2"), beat("s1")], WITHIN)
            .await
            .unwrap();
        assert_eq!(answers.len(), 4);
        for (at, life) in [(0, T), (2, LONG), (3, T)] {
            let HeartbeatOutcome::Alive { expires_in, held } = &answers[at] else {
                panic!("{:?}", answers[at])
            };
            assert_left(backend, *expires_in, life);
            let mut held: Vec<_> = held.iter().map(|held| (held.key.to_string(), held.token)).collect();
            held.sort();
            let expected = [("a".to_owned(), a.token), ("b".to_owned(), b.token)];
            assert_eq!(held, if at == 2 { &expected[..0] } else { &expected[..] });
        }
        assert_eq!(answers[1], HeartbeatOutcome::SessionNotFound);
    }
    let view = store.0.session(sid("s1"), WITHIN).await.unwrap().unwrap();
    assert!(view.last_heartbeat_at > view.opened_at, "{view:?}");
}

/// Closing ends a session and frees what it holds at once; again, or of nobody, it frees nothing.
pub async fn closing_frees_in_the_same_transaction(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let a = store.grant("a", "s1", "r1", LONG).await.token;
    let b = store.grant("b", "s1", "r2", LONG).await.token;
    let kept = store.grant("c", "s2", "r3", LONG).await.token;
    let answers = store
        .0
        .close(vec![sid("s1"), sid("nobody"), sid("s1")], WITHIN)
        .await
        .unwrap();
    let mut freed: Vec<_> = answers[0]
        .iter()
        .map(|f| (f.key.clone(), f.token, f.session_id.clone()))
        .collect();
    freed.sort();
    assert_eq!(freed, [(key("a"), a, sid("s1")), (key("b"), b, sid("s1"))]);
    assert!(answers[1].is_empty() && answers[2].is_empty());
    assert!(store.close("s1").await.is_empty());
    for at in ["a", "b"] {
        assert!(store.grant(at, "s2", at, LONG).await.token > b);
    }
    assert_eq!(store.holder("c").await, Some(("s2".to_owned(), kept.get())));
    assert_eq!(store.heartbeat("s1").await, HeartbeatOutcome::SessionNotFound);
    assert_eq!(store.0.session(sid("s1"), WITHIN).await.unwrap(), None);
}

/// Live sessions are listed in order of id, each exactly once over all pages.
pub async fn sessions_are_listed_in_order_in_pages(backend: &mut dyn Backend) {
    let store = store(backend);
    for n in [3, 1, 4, 0, 5, 9, 2, 6] {
        store
            .open(&format!("s{n}"), if n == 4 || n == 5 { T } else { LONG })
            .await;
    }
    backend.pass(PAST_T).await;
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = store.0.sessions(after.clone(), 2, WITHIN).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.session_id.clone());
        assert!(page.len() <= 2);
        seen.extend(page.into_iter().map(|view| view.session_id.to_string()));
    }
    assert_eq!(seen, ["s0", "s1", "s2", "s3", "s6", "s9"]);
}

/// A session past its TTL is gone for whoever asks, also before a sweep has ended it.
pub async fn an_expired_session_has_ended_for_whoever_asks(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", T).await;
    let grant = store.grant("a", "s1", "r1", LONG).await;
    assert_left(backend, grant.expires_in, T);
    backend.pass(PAST_T).await;
    assert_eq!(store.heartbeat("s1").await, HeartbeatOutcome::SessionNotFound);
    assert_eq!(store.0.session(sid("s1"), WITHIN).await.unwrap(), None);
    assert_eq!(store.acquire("b", "s1", "r2", T).await, AcquireOutcome::SessionNotFound);
    assert_eq!(
        store.renew("a", "s1", grant.token).await,
        lock_api::RenewOutcome::NotHolder
    );
}

/// L05: a session that died while its acquire waited gets no grant, and the next one is not delayed by it.
pub async fn case_l05_a_dead_session_gets_no_grant(backend: &mut dyn Backend) {
    let store = store(backend);
    for id in ["s1", "s2", "s3"] {
        store.open(id, LONG).await;
    }
    let held = store.grant("a", "s1", "r1", LONG).await;
    store.refused("a", "s2", "r2").await;
    store.close("s2").await;
    store.release("a", "s1", held.token).await;
    // What the queue would send, in one batch: the dead waiter first.
    let answers = store
        .0
        .acquire(
            vec![acquire_request("a", "s2", "r2", T), acquire_request("a", "s3", "r3", T)],
            WITHIN,
        )
        .await
        .unwrap();
    assert_eq!(answers[0], AcquireOutcome::SessionNotFound);
    assert!(matches!(&answers[1], AcquireOutcome::Granted { grant, .. } if grant.session_id == sid("s3")));
}

/// D05: heartbeats go on, nobody renews: the grant ends at its own TTL and the heartbeat says so.
pub async fn case_d05_a_heartbeat_does_not_stretch_a_grant(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let grant = store.grant("a", "s1", "r1", T).await;
    backend.pass(T / 2).await;
    let HeartbeatOutcome::Alive { held, .. } = store.heartbeat("s1").await else {
        panic!("alive")
    };
    assert_left(backend, held[0].expires_in, T / 2);
    backend.pass(PAST_T / 2).await;
    let HeartbeatOutcome::Alive { held, .. } = store.heartbeat("s1").await else {
        panic!("alive")
    };
    assert!(held.is_empty(), "{held:?}");
    let next = store.grant("a", "s2", "r2", T).await;
    assert!(next.token > grant.token);
}

/// L14, the store's part: the bounds of a TTL are its type's, and both ends work.
pub async fn case_l14_the_longest_and_shortest_ttl(backend: &mut dyn Backend) {
    for bad in [
        Duration::ZERO,
        Duration::from_nanos(999_999),
        Duration::MAX,
        Ttl::MAX + T,
    ] {
        assert!(Ttl::new(bad).is_err(), "{bad:?} was taken for a TTL");
    }
    let store = store(backend);
    let view = store.open("s1", Ttl::MAX).await;
    assert_left(backend, view.expires_in, Ttl::MAX);
    let grant = store.grant("a", "s1", "r1", Ttl::MAX).await;
    assert_left(backend, grant.expires_in, Ttl::MAX);
    let short = store.grant("b", "s1", "r2", Duration::from_millis(1)).await;
    assert_eq!(short.ttl.get(), Duration::from_millis(1));
}

/// A call whose time is over was certainly not begun: unavailable, and nothing is done.
pub async fn a_call_without_time_does_nothing(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let before = store.shown().await;
    let late = store
        .0
        .acquire(vec![acquire_request("a", "s1", "r1", T)], Duration::ZERO)
        .await;
    assert!(matches!(late, Err(StoreError::Unavailable { .. })), "{late:?}");
    assert_eq!(store.shown().await, before);
}
