//! Grants: who holds what.

use super::Backend;
use super::helpers::{
    Dice, LONG, PAST_T, T, WITHIN, acquire_request, assert_left, key, made_up_token, open_request, sid, store, ttl,
};
use lock_api::{
    AcquireOutcome, HeartbeatOutcome, LockKey, Metadata, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
    RevokeOutcome,
};
use std::time::Duration;

/// A grant carries what was asked for, and whoever is refused sees it.
pub async fn a_grant_says_what_was_asked(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let mut request = acquire_request("a", "s1", "r1", T);
    request.metadata = Some(Metadata::new(r#"{"why":"nightly"}"#).unwrap());
    let AcquireOutcome::Granted { grant, replayed: false } = store.ask(request.clone()).await else {
        panic!("free")
    };
    assert_eq!((&grant.key, &grant.session_id), (&request.key, &request.session_id));
    assert_eq!(grant.request_id, Some(request.request_id));
    assert_eq!((grant.owner.as_str(), grant.ttl), ("owner of s1", request.ttl));
    assert_eq!(grant.metadata, request.metadata);
    assert_left(backend, grant.expires_in, T);
    let held = store.refused("a", "s2", "r1").await;
    let shown = store.inspect("a").await;
    for mut seen in [held.holder, shown.grant.unwrap()] {
        assert_left(backend, seen.expires_in, T);
        seen.expires_in = grant.expires_in;
        assert_eq!(seen, grant);
    }
    assert!(!held.is_self);
    assert_eq!(shown.last_token, Some(grant.token));
    let unknown = store.inspect("b").await;
    assert_eq!((unknown.last_token, unknown.grant), (None, None));
}

/// A batch is not one transaction to its callers: each item succeeds or is refused on its own, in order, and one key may
/// stand in it more than once.
pub async fn answers_come_in_order_and_each_item_stands_alone(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let answers = store
        .0
        .acquire(
            vec![
                acquire_request("a", "s1", "r1", T),
                acquire_request("a", "s2", "r2", T),
                acquire_request("b", "nobody", "r3", T),
                acquire_request("b", "s2", "r4", T),
                acquire_request("a", "s1", "r1", T),
            ],
            WITHIN,
        )
        .await
        .unwrap();
    let [a, refused, unknown, b, again] = &answers[..] else {
        panic!("{answers:?}")
    };
    let AcquireOutcome::Granted {
        grant: a,
        replayed: false,
    } = a
    else {
        panic!("{a:?}")
    };
    let AcquireOutcome::Granted {
        grant: b,
        replayed: false,
    } = b
    else {
        panic!("{b:?}")
    };
    assert!(matches!(refused, AcquireOutcome::HeldByOther(held) if held.holder.token == a.token));
    assert_eq!(*unknown, AcquireOutcome::SessionNotFound);
    assert!(matches!(again, AcquireOutcome::Granted { grant, replayed: true } if grant.token == a.token));

    let renew = |at: &str, session: &str, token| RenewRequest {
        key: key(at),
        session_id: sid(session),
        token,
        ttl: None,
    };
    let renewed = store
        .0
        .renew(
            vec![
                renew("a", "s1", a.token),
                renew("a", "s2", b.token),
                renew("zzz", "s1", a.token),
            ],
            WITHIN,
        )
        .await
        .unwrap();
    assert!(matches!(&renewed[0], RenewOutcome::Renewed(grant) if grant.token == a.token));
    assert_eq!(renewed[1..], [RenewOutcome::NotHolder, RenewOutcome::NotFound]);

    let release = |at: &str, session: &str, token| ReleaseRequest {
        key: key(at),
        session_id: sid(session),
        token,
    };
    let released = store
        .0
        .release(
            vec![
                release("b", "s1", b.token),
                release("a", "s1", a.token),
                release("a", "s1", a.token),
                release("zzz", "s1", a.token),
            ],
            WITHIN,
        )
        .await
        .unwrap();
    use ReleaseOutcome::{AlreadyFree, NotFound, NotHolder, Released};
    assert_eq!(released, [NotHolder, Released, AlreadyFree, NotFound]);
    assert_eq!(store.holder("b").await, Some(("s2".to_owned(), b.token.get())));
}

/// L06: whoever asks with a short TTL waits for the holder's own TTL.
pub async fn case_l06_a_short_ask_does_not_shorten_a_lease(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let grant = store.grant("a", "s1", "r1", LONG).await;
    store.acquire("a", "s2", "r2", T).await;
    backend.pass(PAST_T).await;
    let held = store.refused("a", "s2", "r2").await;
    assert_eq!((held.holder.token, held.holder.ttl.get()), (grant.token, LONG));
    assert!(store.sweep().await.grants.is_empty());
    assert_eq!(store.holder("a").await, Some(("s1".to_owned(), grant.token.get())));
}

/// L22: the answer was lost and the same request comes again: the same token, and no second grant.
pub async fn case_l22_the_same_request_finds_its_own_grant(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let grant = store.grant("a", "s1", "r1", T).await;
    backend.pass(T / 2).await;
    let before = store.seq().await;
    let again = store.acquire("a", "s1", "r1", LONG).await;
    let AcquireOutcome::Granted {
        grant: again,
        replayed: true,
    } = again
    else {
        panic!("{again:?}")
    };
    assert_eq!((again.token, again.ttl.get()), (grant.token, T));
    assert_left(backend, again.expires_in, T / 2);
    assert_eq!(store.seq().await, before, "a replay is no fact");
    assert!(store.refused("a", "s1", "r2").await.is_self);
    // The same request id from another session is another's request.
    assert!(!store.refused("a", "s2", "r1").await.is_self);
    // Once the grant has ended, the same request is a new one.
    store.release("a", "s1", grant.token).await;
    assert!(store.grant("a", "s1", "r1", T).await.token > grant.token);
}

/// D03: two tasks of one process, through one session, exclude each other.
pub async fn case_d03_two_tasks_of_one_session_exclude_each_other(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let (one, two) = tokio::join!(
        store.acquire("a", "s1", "task-1", LONG),
        store.acquire("a", "s1", "task-2", LONG)
    );
    let granted = [&one, &two]
        .into_iter()
        .filter(|answer| matches!(answer, AcquireOutcome::Granted { replayed: false, .. }))
        .count();
    let refused = [&one, &two]
        .into_iter()
        .filter(|answer| matches!(answer, AcquireOutcome::HeldByOther(held) if held.is_self))
        .count();
    assert_eq!((granted, refused), (1, 1), "{one:?} {two:?}");
}

/// L08: renew, release, revoke, heartbeat and close with another session's id or token change no row, whatever the state
/// they meet.
pub async fn case_l08_a_stranger_changes_no_row(backend: &mut dyn Backend) {
    let store = store(backend);
    for id in ["s1", "s2", "s3"] {
        store.open(id, LONG).await;
    }
    let mut dice = Dice(8);
    let keys = ["a", "a/b", "A"];
    let mut tokens = vec![made_up_token(1 << 40)];
    for round in 0..backend.rounds(300) {
        // Any state: held by one of two sessions, or free.
        let at = keys[usize::try_from(dice.roll(3)).unwrap()];
        let holder = ["s1", "s2"][usize::try_from(dice.roll(2)).unwrap()];
        if let AcquireOutcome::Granted { grant, .. } = store.acquire(at, holder, &format!("r{round}"), LONG).await {
            tokens.push(grant.token);
        }
        if dice.roll(3) == 0
            && let Some((session, token)) = store.holder(at).await
        {
            store.release(at, &session, made_up_token(token)).await;
        }
        let before = store.shown().await;
        // Each verb with every session and token that is not the holder's.
        let at = keys[usize::try_from(dice.roll(3)).unwrap()];
        let holder = store.holder(at).await;
        let token = tokens[usize::try_from(dice.roll(tokens.len() as u64)).unwrap()];
        for session in ["s1", "s2", "s3", "nobody"] {
            if holder == Some((session.to_owned(), token.get())) {
                continue;
            }
            let renewed = store.renew(at, session, token).await;
            assert!(
                matches!(renewed, RenewOutcome::NotHolder | RenewOutcome::NotFound),
                "{renewed:?}"
            );
            let released = store.release(at, session, token).await;
            assert_ne!(released, ReleaseOutcome::Released);
        }
        if holder.is_none_or(|(_, held)| held != token.get()) {
            let revoked = store.revoke(at, token).await;
            assert!(!matches!(revoked, RevokeOutcome::Revoked { .. }), "{revoked:?}");
        }
        assert_eq!(store.heartbeat("nobody").await, HeartbeatOutcome::SessionNotFound);
        assert!(store.close("nobody").await.is_empty());
        assert_eq!(store.shown().await, before, "round {round}");
    }
}

/// D08: a loser of the lock releases, renews and revives with the token that the refusal showed it.
pub async fn case_d08_a_token_is_no_credential(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    store.grant("a", "s1", "r1", LONG).await;
    let shown = store.refused("a", "s2", "r2").await.holder.token;
    let before = store.shown().await;
    assert_eq!(store.release("a", "s2", shown).await, ReleaseOutcome::NotHolder);
    assert_eq!(store.renew("a", "s2", shown).await, RenewOutcome::NotHolder);
    assert_eq!(store.shown().await, before);
}

/// L15: a renew a moment after the end is refused, though nobody else took the key; so is a release.
pub async fn case_l15_an_expired_grant_is_not_revived(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    for swept in [false, true] {
        let grant = store.grant("a", "s1", &format!("r-{swept}"), T).await;
        backend.pass(PAST_T).await;
        if swept {
            assert_eq!(store.sweep().await.grants.len(), 1);
        }
        assert_eq!(store.renew("a", "s1", grant.token).await, RenewOutcome::NotHolder);
        assert_eq!(store.inspect("a").await.grant, None);
        assert_eq!(store.release("a", "s1", grant.token).await, ReleaseOutcome::AlreadyFree);
        assert_eq!(store.renew("a", "s1", grant.token).await, RenewOutcome::NotHolder);
        assert_eq!(store.holder("a").await, None);
    }
}

/// L16: the release committed, its answer was lost, the same session holds again: the repeated release is refused.
pub async fn case_l16_a_repeated_release_does_not_free_the_next_grant(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let first = store.grant("a", "s1", "r1", LONG).await.token;
    assert_eq!(store.release("a", "s1", first).await, ReleaseOutcome::Released);
    let second = store.grant("a", "s1", "r2", LONG).await.token;
    assert_eq!(store.release("a", "s1", first).await, ReleaseOutcome::NotHolder);
    assert_eq!(store.holder("a").await, Some(("s1".to_owned(), second.get())));
    assert!(second > first);
}

/// L17: releasing a key that was never held changes nothing anywhere.
pub async fn case_l17_releasing_what_was_never_held(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let held = store.grant("a", "s1", "r1", LONG).await.token;
    let before = store.shown().await;
    assert_eq!(store.release("b", "s1", held).await, ReleaseOutcome::NotFound);
    assert_eq!(store.renew("b", "s1", held).await, RenewOutcome::NotFound);
    assert_eq!(store.revoke("b", held).await, RevokeOutcome::NotFound);
    assert_eq!(store.shown().await, before);
    assert_eq!(store.inspect("b").await.last_token, None);
}

/// L28: `a/b` held: its neighbours are independent and free.
pub async fn case_l28_neighbouring_keys_are_independent(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let held = store.grant("a/b", "s1", "r1", LONG).await.token;
    let neighbours = [
        "a",
        "a/",
        "A",
        "a%2Fb",
        "a//b",
        "a/b/",
        "a/b ",
        " a/b",
        "A/B",
        "a/b\u{301}",
    ];
    for (n, at) in neighbours.into_iter().enumerate() {
        assert_eq!(store.inspect(at).await.last_token, None, "{at:?}");
        let grant = store.grant(at, "s2", &format!("r{n}"), LONG).await;
        assert_eq!(store.release(at, "s2", grant.token).await, ReleaseOutcome::Released);
    }
    assert_eq!(store.holder("a/b").await, Some(("s1".to_owned(), held.get())));
}

/// L29: keys of every lawful kind come back byte for byte.
pub async fn case_l29_keys_round_trip_exactly(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let long = "k".repeat(256);
    let keys = [
        "/",
        "//",
        "%",
        "%25",
        "#",
        "?",
        " ",
        "  ",
        "..",
        "../..",
        "a b",
        "'",
        "\"",
        "\\",
        "*",
        "_",
        "%00",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{1f512}",
        "\u{202e}abc",
        "\u{feff}",
        "\u{2028}",
        "x",
        &long,
    ];
    let mut granted = Vec::new();
    for (n, at) in keys.into_iter().enumerate() {
        granted.push((at.to_owned(), store.grant(at, "s1", &format!("r{n}"), LONG).await.token));
    }
    for (at, token) in &granted {
        assert_eq!(store.holder(at).await, Some(("s1".to_owned(), token.get())), "{at:?}");
    }
    let listed = store.0.list(String::new(), None, 1000, WITHIN).await.unwrap();
    let mut listed: Vec<_> = listed
        .into_iter()
        .map(|state| (state.key.to_string(), state.last_token.unwrap()))
        .collect();
    listed.sort();
    granted.sort();
    assert_eq!(listed, granted);
    let facts = store.events(0).await;
    assert!(granted.iter().all(|(at, token)| {
        facts
            .iter()
            .any(|fact| fact.lock_key.as_ref().is_some_and(|key| key.as_str() == at) && fact.token == Some(*token))
    }));
}

/// L30: a revoke shows what it breaks, needs that token, and says so when the grant moved on.
pub async fn case_l30_a_revoke_names_the_token_it_breaks(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let first = store.grant("a", "s1", "r1", LONG).await.token;
    store.release("a", "s1", first).await;
    assert_eq!(store.revoke("a", first).await, RevokeOutcome::NotHeld);
    let grant = store.grant("a", "s1", "r2", LONG).await;
    let before = store.shown().await;
    let RevokeOutcome::NotHolder { holder } = store.revoke("a", first).await else {
        panic!("it moved on")
    };
    assert_eq!(holder.token, grant.token);
    assert_eq!(store.shown().await, before);
    let RevokeOutcome::Revoked { revoked, token } = store.revoke("a", grant.token).await else {
        panic!("held")
    };
    assert_eq!((revoked.token, revoked.session_id), (grant.token, sid("s1")));
    assert!(token > grant.token);
    let state = store.inspect("a").await;
    assert_eq!((state.grant, state.last_token), (None, Some(token)));
    // The broken holder keeps its session and has lost the key.
    let HeartbeatOutcome::Alive { held, .. } = store.heartbeat("s1").await else {
        panic!("alive")
    };
    assert!(held.is_empty());
    assert_eq!(store.renew("a", "s1", grant.token).await, RenewOutcome::NotHolder);
    assert_eq!(store.release("a", "s1", grant.token).await, ReleaseOutcome::NotHolder);
    assert_eq!(store.revoke("a", token).await, RevokeOutcome::NotHeld);
    assert!(store.grant("a", "s1", "r3", LONG).await.token > token);
}

/// A grant is never said to live longer than its session.
pub async fn a_grant_ends_with_its_session(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", T).await;
    let grant = store.grant("a", "s1", "r1", LONG).await;
    assert_left(backend, grant.expires_in, T);
    let RenewOutcome::Renewed(renewed) = store.renew("a", "s1", grant.token).await else {
        panic!("held")
    };
    assert_left(backend, renewed.expires_in, T);
    backend.pass(PAST_T).await;
    let report = store.sweep().await;
    assert_eq!(report.sessions.len(), 1, "{report:?}");
    assert_eq!(report.sessions[0].released.len(), 1, "{report:?}");
    assert_eq!(store.inspect("a").await.last_token, Some(grant.token));
    assert_eq!(store.holder("a").await, None);
}

/// Keys are listed by prefix, byte for byte, in byte order, in pages that miss and repeat nothing.
pub async fn keys_are_listed_by_prefix_in_byte_order(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let keys = [
        "a",
        "a/",
        "a/1",
        "a/10",
        "a/2",
        "a0",
        "A/1",
        "a\u{e9}",
        "a/\u{10ffff}",
        "b",
        "%",
        "a%",
    ];
    for (n, at) in keys.into_iter().enumerate() {
        let grant = store.grant(at, "s1", &format!("r{n}"), LONG).await;
        if n % 2 == 0 {
            store.release(at, "s1", grant.token).await;
        }
    }
    for prefix in ["", "a", "a/", "a/1", "a/\u{10ffff}", "a%", "%", "zzz", "A", "a/100"] {
        let mut expected: Vec<_> = keys.into_iter().filter(|at| at.starts_with(prefix)).collect();
        expected.sort_unstable();
        for limit in [1, 3, 100] {
            let (mut after, mut seen): (Option<LockKey>, Vec<String>) = (None, Vec::new());
            loop {
                let page = store
                    .0
                    .list(prefix.to_owned(), after.clone(), limit, WITHIN)
                    .await
                    .unwrap();
                assert!(page.len() <= limit as usize);
                let Some(last) = page.last() else { break };
                after = Some(last.key.clone());
                seen.extend(page.into_iter().map(|state| state.key.to_string()));
            }
            assert_eq!(seen, expected, "prefix {prefix:?}, pages of {limit}");
        }
    }
    // A cursor before the prefix begins at the prefix.
    let page = store.0.list("b".to_owned(), Some(key("a")), 10, WITHIN).await.unwrap();
    assert_eq!(page.len(), 1);
}

/// A renew may bring a new TTL, which stays; the token does not change.
pub async fn renewing_changes_the_ttl_and_not_the_token(backend: &mut dyn Backend) {
    let store = store(backend);
    store.0.open(vec![open_request("s1", LONG)], WITHIN).await.unwrap();
    let grant = store.grant("a", "s1", "r1", T).await;
    backend.pass(T / 2).await;
    let renew = |ttl| RenewRequest {
        key: key("a"),
        session_id: sid("s1"),
        token: grant.token,
        ttl,
    };
    let longer = Duration::from_secs(60);
    for (asked, expected) in [(None, T), (Some(ttl(longer)), longer), (None, longer)] {
        let before = store.seq().await;
        let answer = store.0.renew(vec![renew(asked)], WITHIN).await.unwrap().remove(0);
        let RenewOutcome::Renewed(renewed) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((renewed.token, renewed.ttl.get()), (grant.token, expected));
        assert_left(backend, renewed.expires_in, expected);
        assert_eq!(renewed.granted_at, grant.granted_at);
        assert_eq!(store.seq().await, before, "a renew is no fact");
    }
    backend.pass(PAST_T).await;
    assert!(store.sweep().await.grants.is_empty());
    assert_eq!(store.holder("a").await, Some(("s1".to_owned(), grant.token.get())));
}
