//! Facts, cursors, wake-ups, seals.

use super::Backend;
use super::helpers::{LONG, PAST_T, T, WITHIN, key, store};
use lock_api::{EventKind, EventQuery, LockEvent, Seal};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Each fact is recorded once, with who and what, in the order in which it became one.
pub async fn each_fact_is_recorded_once_and_in_order(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let first = store.grant("a", "s1", "r1", LONG).await.token;
    store.release("a", "s1", first).await;
    let second = store.grant("a", "s1", "r2", T).await.token;
    backend.pass(PAST_T).await;
    store.sweep().await;
    let third = store.grant("a", "s1", "r3", LONG).await.token;
    store.revoke("a", third).await;
    let fourth = store.grant("a", "s1", "r4", LONG).await.token;
    store.close("s1").await;
    store.open("s2", T).await;
    backend.pass(PAST_T).await;
    store.sweep().await;
    let facts = store.events(0).await;
    let shown: Vec<_> = facts
        .iter()
        .map(|f| {
            (
                f.kind,
                f.lock_key.as_ref().map(ToString::to_string),
                f.session_id.as_ref().map(ToString::to_string),
                f.token,
                f.actor.as_deref(),
                f.reason.as_deref(),
            )
        })
        .collect();
    let a = || Some("a".to_owned());
    let s = |id: &str| Some(id.to_owned());
    let (owner, clock) = (Some("owner of s1"), Some("lease-clock"));
    use EventKind::{Expired, Granted, Released, Revoked, SessionClosed, SessionExpired, SessionOpened};
    assert_eq!(
        shown,
        [
            (SessionOpened, None, s("s1"), None, owner, None),
            (Granted, a(), s("s1"), Some(first), owner, None),
            (Released, a(), s("s1"), Some(first), owner, None),
            (Granted, a(), s("s1"), Some(second), owner, None),
            (Expired, a(), s("s1"), Some(second), clock, None),
            (Granted, a(), s("s1"), Some(third), owner, None),
            (
                Revoked,
                a(),
                s("s1"),
                Some(third),
                Some("ops@example"),
                Some("the holder hangs")
            ),
            (Granted, a(), s("s1"), Some(fourth), owner, None),
            (Released, a(), s("s1"), Some(fourth), owner, None),
            (SessionClosed, None, s("s1"), None, owner, None),
            (SessionOpened, None, s("s2"), None, Some("owner of s2"), None),
            (SessionExpired, None, s("s2"), None, clock, None),
        ]
    );
    assert!(facts.is_sorted_by(|a, b| a.seq < b.seq && a.at <= b.at), "{facts:?}");
    let query = |key, after, limit| EventQuery { key, after, limit };
    let of_key = store.0.events(query(Some(key("a")), 0, 100), WITHIN).await.unwrap();
    assert_eq!(of_key.len(), 8);
    assert!(of_key.iter().all(|fact| facts.contains(fact)));
    let rest = store
        .0
        .events(query(Some(key("a")), of_key[5].seq, 1), WITHIN)
        .await
        .unwrap();
    assert_eq!(rest, of_key[6..7]);
    assert_eq!(store.0.events(query(Some(key("b")), 0, 100), WITHIN).await.unwrap(), []);
}

/// A reader that follows with a cursor sees every fact exactly once, while others write.
pub async fn a_cursor_misses_nothing(backend: &mut dyn Backend) {
    let store = store(backend);
    let clients = 8;
    let rounds = backend.rounds(50);
    let write = futures_util::future::join_all((0..clients).map(|n| {
        let store = store.clone();
        async move {
            let session = format!("s{n}");
            store.open(&session, LONG).await;
            for round in 0..rounds {
                let at = format!("k{n}");
                let grant = store.grant(&at, &session, &format!("r{round}"), LONG).await;
                tokio::task::yield_now().await;
                store.release(&at, &session, grant.token).await;
            }
            store.close(&session).await;
        }
    }));
    let expected = clients * (2 + 2 * rounds as usize);
    let read = async {
        let mut seen: Vec<LockEvent> = Vec::new();
        while seen.len() < expected {
            let after = seen.last().map_or(0, |fact| fact.seq);
            let highest = store.0.changed_since(after, WITHIN).await.unwrap();
            assert!(
                highest > after,
                "no wake-up while {} of {expected} facts are seen",
                seen.len()
            );
            let query = EventQuery {
                key: None,
                after,
                limit: 7,
            };
            seen.extend(store.0.events(query, WITHIN).await.unwrap());
        }
        seen
    };
    let (seen, _) = tokio::join!(read, write);
    assert_eq!(seen, store.events(0).await);
    assert_eq!(seen.len(), expected);
    assert!(seen.is_sorted_by(|a, b| a.seq < b.seq));
}

/// Whoever waits for a change is woken by the next one, at once when it has been already, and in vain after its time.
pub async fn a_change_wakes_who_waits(backend: &mut dyn Backend) {
    let store = store(backend);
    assert_eq!(store.0.changed_since(0, Duration::from_millis(20)).await.unwrap(), 0);
    let (woken, _) = tokio::join!(store.0.changed_since(0, WITHIN), store.open("s1", LONG));
    let first = woken.unwrap();
    assert!(first > 0);
    assert_eq!(store.0.changed_since(0, WITHIN).await.unwrap(), first);
    assert_eq!(
        store.0.changed_since(first, Duration::from_millis(20)).await.unwrap(),
        first
    );
    // A heartbeat, a renew and a refusal are no facts.
    let token = store.grant("a", "s1", "r1", LONG).await.token;
    let now = store.seq().await;
    store.heartbeat("s1").await;
    store.renew("a", "s1", token).await;
    store.refused("a", "s1", "r2").await;
    assert_eq!(store.seq().await, now);
    let events = store.events(first).await;
    assert_eq!(
        events.last().map(|fact| fact.seq),
        Some(now),
        "what is announced can be read"
    );
}

/// The hash of a segment, computed from what is shown and nothing else.
fn hash_of(prev: &str, facts: &[LockEvent]) -> String {
    let mut text = prev.to_owned();
    for fact in facts {
        // A map in order of name, written without spaces, is the canonical form of such values.
        let row = std::collections::BTreeMap::from([
            ("seq", serde_json::json!(fact.seq)),
            ("at", serde_json::json!(crate::canonical::rfc3339(fact.at))),
            ("kind", serde_json::json!(fact.kind.as_str())),
            (
                "lock_key",
                serde_json::json!(fact.lock_key.as_ref().map(ToString::to_string)),
            ),
            (
                "session_id",
                serde_json::json!(fact.session_id.as_ref().map(ToString::to_string)),
            ),
            ("token", serde_json::json!(fact.token.map(lock_api::FencingToken::get))),
            ("actor", serde_json::json!(fact.actor)),
            ("reason", serde_json::json!(fact.reason)),
        ]);
        text.push_str(&serde_json::to_string(&row).unwrap());
    }
    hex::encode(Sha256::digest(text.as_bytes()))
}

fn verify(seals: &[Seal], facts: &[LockEvent]) {
    for (at, seal) in seals.iter().enumerate() {
        let segment: Vec<_> = facts
            .iter()
            .filter(|fact| (seal.first_seq..=seal.last_seq).contains(&fact.seq))
            .cloned()
            .collect();
        // The first seal may stand for what was dropped.
        if at > 0 || !segment.is_empty() {
            assert_eq!(seal.hash, hash_of(&seal.prev_hash, &segment), "seal {}", seal.n);
        }
        match at.checked_sub(1).map(|before| &seals[before]) {
            None if seal.n == 1 => assert_eq!(seal.prev_hash, "0".repeat(64)),
            None => {}
            Some(before) => {
                assert_eq!(
                    (&seal.chain, seal.n, &seal.prev_hash),
                    (&before.chain, before.n + 1, &before.hash)
                );
                let between = facts.iter().any(|f| f.seq > before.last_seq && f.seq < seal.first_seq);
                assert!(!between, "facts between the seals {} and {}", before.n, seal.n);
            }
        }
    }
}

/// Seals cover every fact once, each chained to the one before, and the hashes can be computed from what is shown.
pub async fn seals_chain_and_can_be_verified(backend: &mut dyn Backend) {
    let store1 = store(backend);
    assert_eq!(store1.0.seal(10, WITHIN).await.unwrap(), None, "nothing to seal");
    store1.open("s1", LONG).await;
    for n in 0..5 {
        let at = format!("k\"{n}\\\u{e9}");
        let grant = store1.grant(&at, "s1", &format!("r{n}"), LONG).await;
        store1.revoke(&at, grant.token).await;
    }
    let first = store1.0.seal(4, WITHIN).await.unwrap().unwrap();
    assert_eq!((first.n, first.last_seq - first.first_seq), (1, 3));
    backend.restart().await;
    let store = store(backend);
    if store.seq().await == 0 {
        return; // memory that was restarted has forgotten everything
    }
    while store.0.seal(4, WITHIN).await.unwrap().is_some() {}
    let seals = store.0.seals(0, 100, WITHIN).await.unwrap();
    let facts = store.events(0).await;
    assert_eq!((seals.len(), facts.len()), (3, 11));
    assert_eq!(seals[0], first);
    assert_eq!(seals.last().unwrap().last_seq, facts.last().unwrap().seq);
    verify(&seals, &facts);
    assert_eq!(store.0.seals(first.first_seq, 1, WITHIN).await.unwrap(), seals[1..2]);
    // The check can fail.
    let mut forged = facts.clone();
    forged[2].reason = Some("nothing happened".to_owned());
    assert!(std::panic::catch_unwind(|| verify(&seals, &forged)).is_err());
}

/// Retention drops sealed segments whole, oldest first, never what is young or unsealed; the chain stays verifiable and
/// seqs go on.
pub async fn sealed_segments_are_dropped_whole(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    let mut grants = 0;
    let mut some_facts = async || {
        for _ in 0..3 {
            grants += 1;
            let token = store.grant("a", "s1", &format!("r{grants}"), LONG).await.token;
            store.release("a", "s1", token).await;
        }
    };
    some_facts().await;
    assert_eq!(
        store
            .0
            .seal(7, WITHIN)
            .await
            .unwrap()
            .map(|seal| seal.last_seq - seal.first_seq),
        Some(6)
    );
    backend.pass(T).await;
    some_facts().await;
    store.0.seal(6, WITHIN).await.unwrap().unwrap();
    some_facts().await;
    let all = store.events(0).await;
    let drop = |retention, limit| store.0.drop_sealed(retention, limit, WITHIN);
    assert_eq!(drop(LONG, 1000).await.unwrap(), 0, "all young");
    assert_eq!(
        drop(T / 2, 6).await.unwrap(),
        0,
        "the first segment alone is larger than the limit"
    );
    assert_eq!(store.events(0).await, all);
    assert_eq!(drop(T / 2, 1000).await.unwrap(), 7, "the old segment");
    assert_eq!(store.events(0).await, all[7..]);
    verify(&store.0.seals(0, 100, WITHIN).await.unwrap(), &all[7..]);
    assert_eq!(drop(T / 2, 1000).await.unwrap(), 0);
    backend.pass(T).await;
    assert_eq!(drop(T / 2, 1000).await.unwrap(), 6, "what is not sealed stays");
    assert_eq!(store.events(0).await, all[13..]);
    some_facts().await;
    while store.0.seal(100, WITHIN).await.unwrap().is_some() {}
    let facts = store.events(0).await;
    assert_eq!(facts[..6], all[13..]);
    verify(&store.0.seals(0, 100, WITHIN).await.unwrap(), &facts);
    backend.pass(T).await;
    let last = facts.last().unwrap().seq;
    assert_eq!(drop(T / 2, 1000).await.unwrap(), 12, "everything");
    some_facts().await;
    assert_eq!(store.events(0).await[0].seq, last + 1, "a seq is never given twice");
}
