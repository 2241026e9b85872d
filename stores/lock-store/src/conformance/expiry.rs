//! What ends, and when.

use super::Backend;
use super::helpers::{LONG, PAST_T, T, WITHIN, assert_left, key, sid, store};
use lock_api::{AcquireOutcome, EventKind, HeartbeatOutcome, RenewOutcome};
use std::time::Duration;

/// A sweep ends what is due, says which, and when the next will be.
pub async fn expire_due_ends_what_is_due_and_nothing_else(backend: &mut dyn Backend) {
    let store = store(backend);
    assert_eq!(store.sweep().await.next_due_in, None, "nothing lives");
    store.open("short", T).await;
    store.open("long", LONG).await;
    let own = store.grant("own", "long", "r1", T).await.token;
    let with = store.grant("with", "short", "r2", LONG).await.token;
    store.grant("stays", "long", "r3", LONG).await;
    let report = store.sweep().await;
    assert!(report.grants.is_empty() && report.sessions.is_empty() && !report.more);
    assert_left(backend, report.next_due_in.unwrap(), T);
    backend.pass(PAST_T).await;
    let report = store.sweep().await;
    assert_eq!(report.grants.len(), 1, "{report:?}");
    assert_eq!((&report.grants[0].key, report.grants[0].token), (&key("own"), own));
    assert_eq!(report.sessions.len(), 1, "{report:?}");
    assert_eq!(report.sessions[0].session_id, sid("short"));
    assert_eq!(report.sessions[0].released.len(), 1, "{report:?}");
    assert_eq!(report.sessions[0].released[0].token, with);
    assert!(!report.more);
    assert_eq!(store.holder("own").await, None);
    assert_eq!(store.holder("with").await, None);
    assert!(store.holder("stays").await.is_some());
    let again = store.sweep().await;
    assert!(again.grants.is_empty() && again.sessions.is_empty(), "{again:?}");
    let ended: Vec<_> = store
        .events(0)
        .await
        .into_iter()
        .filter(|f| matches!(f.kind, EventKind::Expired | EventKind::SessionExpired))
        .collect();
    assert_eq!(ended.len(), 3);
    assert!(
        ended.iter().all(|fact| fact.actor.as_deref() == Some("lease-clock")),
        "{ended:?}"
    );
}

/// A sweep stops at its limit and says that more is due; what is left over ends in the next ones.
pub async fn a_sweep_stops_at_its_limit(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("keeps", LONG).await;
    for n in 0..4 {
        store.grant(&format!("own{n}"), "keeps", &format!("r{n}"), T).await;
    }
    for session in ["s1", "s2"] {
        store.open(session, T).await;
        for n in 0..3 {
            store
                .grant(&format!("{session}/{n}"), session, &format!("{session}{n}"), LONG)
                .await;
        }
    }
    backend.pass(PAST_T).await;
    let (mut grants, mut sessions, mut sweeps) = (0, 0, 0);
    loop {
        let report = store.0.expire_due(3, WITHIN).await.unwrap();
        let released: usize = report.sessions.iter().map(|session| session.released.len()).sum();
        assert!(
            report.grants.len() + report.sessions.len() + released <= 3,
            "more than its limit: {report:?}"
        );
        grants += report.grants.len() + released;
        sessions += report.sessions.len();
        sweeps += 1;
        assert!(sweeps < 20, "it gets nowhere");
        if !report.more {
            break;
        }
        assert_eq!(report.next_due_in, Some(Duration::ZERO));
    }
    assert_eq!((grants, sessions), (10, 2));
    assert_eq!(
        store
            .0
            .list(String::new(), None, 100, WITHIN)
            .await
            .unwrap()
            .iter()
            .filter(|s| s.grant.is_some())
            .count(),
        0
    );
    assert!(matches!(store.heartbeat("keeps").await, HeartbeatOutcome::Alive { .. }));
}

/// An acquire that meets a grant past its own TTL takes the key over in the same transaction, and both facts are there.
pub async fn an_acquire_takes_over_what_has_expired(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let old = store.grant("a", "s1", "r1", T).await.token;
    backend.pass(PAST_T).await;
    let new = store.grant("a", "s2", "r2", LONG).await.token;
    assert!(new > old);
    let kinds: Vec<_> = store
        .events(0)
        .await
        .into_iter()
        .filter(|fact| fact.lock_key.is_some())
        .map(|fact| (fact.kind, fact.token.unwrap()))
        .collect();
    assert_eq!(
        kinds,
        [
            (EventKind::Granted, old),
            (EventKind::Expired, old),
            (EventKind::Granted, new)
        ]
    );
    assert_eq!(store.sweep().await.grants.len(), 0, "it had ended before");
    assert_eq!(store.holder("a").await, Some(("s2".to_owned(), new.get())));
}

/// D09: an acquire judges the grant's own expiry alone. A holder whose session is being extended at that moment keeps its
/// grant, and only a sweep ends a session that is due.
pub async fn case_d09_an_acquire_never_ends_a_session(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", T).await;
    store.open("s2", LONG).await;
    let grant = store.grant("a", "s1", "r1", LONG).await;
    backend.pass(T * 3 / 4).await;
    let (asked, beat, asked_again) = tokio::join!(
        store.acquire("a", "s2", "r2", T),
        store.heartbeat("s1"),
        store.acquire("a", "s2", "r3", T)
    );
    for answer in [asked, asked_again] {
        assert!(matches!(answer, AcquireOutcome::HeldByOther(_)), "{answer:?}");
    }
    let HeartbeatOutcome::Alive { held, .. } = beat else {
        panic!("{beat:?}")
    };
    assert_eq!(held.len(), 1);
    backend.pass(T * 3 / 4).await;
    assert_eq!(store.holder("a").await, Some(("s1".to_owned(), grant.token.get())));
    // Due and not swept: the session is dead, and still nobody but the sweep takes its key away.
    backend.pass(PAST_T).await;
    let held = store.refused("a", "s2", "r4").await;
    assert_eq!(
        (held.holder.token, held.holder.expires_in),
        (grant.token, Duration::ZERO)
    );
    assert_eq!(store.sweep().await.sessions.len(), 1);
    store.grant("a", "s2", "r5", T).await;
}

/// L07: the rows are locked by somebody for three TTLs; renew waits, and acquire does or is refused before its wait, while
/// the lease has not ended. What each that waited sees is judged by the time at which it has the row: nobody is granted
/// twice, nobody is revived.
pub async fn case_l07_expiry_is_judged_after_the_wait(backend: &mut dyn Backend) {
    let store = store(backend);
    for id in ["s1", "s2", "s3"] {
        store.open(id, LONG).await;
    }
    let old = store.grant("a", "s1", "r1", T).await.token;
    let held = backend.hold_writes();
    let could_hold = held.is_some();
    let pass = async {
        // Each of the calls has been sent when this one gets its turn.
        tokio::task::yield_now().await;
        backend.pass(T * 3).await;
        if let Some(free) = held {
            free();
        }
    };
    let (renewed, two, three, ()) = tokio::join!(
        store.renew("a", "s1", old),
        store.acquire("a", "s2", "r2", LONG),
        store.acquire("a", "s3", "r3", LONG),
        pass,
    );
    if could_hold {
        assert_eq!(renewed, RenewOutcome::NotHolder, "its end was judged before the wait");
        let granted = [&two, &three]
            .into_iter()
            .filter(|answer| matches!(answer, AcquireOutcome::Granted { .. }))
            .count();
        let refused = [&two, &three]
            .into_iter()
            .filter(|answer| matches!(answer, AcquireOutcome::HeldByOther(held) if held.holder.token == old))
            .count();
        assert!(granted == 1 || refused == 2, "{two:?} {three:?}");
        if granted == 0 {
            store.grant("a", "s2", "r4", LONG).await;
        }
    }
    let facts = store.events(0).await;
    let mut live = None;
    for fact in facts.iter().filter(|fact| fact.lock_key.is_some()) {
        match fact.kind {
            EventKind::Granted => assert_eq!(live.replace(fact.token), None, "granted twice: {facts:?}"),
            _ => assert_eq!(live.take(), Some(fact.token)),
        }
    }
}

/// A restart gives every live lease its full TTL again: it may run longer, never shorter; and what had ended stays ended.
pub async fn a_restart_gives_the_full_ttl_again(backend: &mut dyn Backend) {
    let before = store(backend);
    before.open("s1", T).await;
    before.open("s2", LONG).await;
    let held = before.grant("a", "s1", "r1", T).await;
    let freed = before.grant("b", "s1", "r2", T).await;
    before.release("b", "s1", freed.token).await;
    backend.pass(T * 3 / 4).await;
    drop(before);
    if !backend.restart().await {
        return;
    }
    let store = store(backend);
    let grant = store.inspect("a").await.grant.unwrap();
    assert_eq!(
        (grant.token, &grant.session_id, &grant.request_id),
        (held.token, &held.session_id, &held.request_id)
    );
    assert!(grant.expires_in > T / 4, "{grant:?}");
    backend.pass(T * 3 / 4).await;
    assert!(store.sweep().await.grants.is_empty());
    assert!(matches!(store.heartbeat("s1").await, HeartbeatOutcome::Alive { held, .. } if held.len() == 1));
    let state = store.inspect("b").await;
    assert_eq!((state.last_token, state.grant), (Some(freed.token), None));
    backend.pass(PAST_T).await;
    let report = store.sweep().await;
    assert!(report.grants.len() + report.sessions.len() >= 1, "{report:?}");
    assert!(store.grant("a", "s2", "r3", T).await.token > held.token);
}

/// D10: the wall clock jumps: no live lease ends early, none lives longer.
pub async fn case_d10_a_jump_of_the_wall_clock_ends_nothing(backend: &mut dyn Backend) {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    let day = 24 * 60 * 60 * 1000;
    for (n, jump) in [20_000, 400 * day, -800 * day].into_iter().enumerate() {
        let grant = store.grant("a", "s1", &format!("r{n}"), T).await;
        if !backend.jump_wall(jump) {
            return;
        }
        backend.pass(T / 2).await;
        let report = store.sweep().await;
        assert!(report.grants.is_empty() && report.sessions.is_empty(), "{report:?}");
        store.refused("a", "s2", "x").await;
        assert!(matches!(
            store.renew("a", "s1", grant.token).await,
            RenewOutcome::Renewed(_)
        ));
        backend.pass(PAST_T).await;
        assert_eq!(
            store.sweep().await.grants.len(),
            1,
            "after a jump by {jump} ms it still ends in time"
        );
    }
}
