//! The delay after an unclean loss: who lost a grant may still act a little, and nobody is granted its key meanwhile.

use super::Backend;
use super::helpers::{
    Dice, LONG, PAST_T, Store, T, WITHIN, acquire_request, assert_left, key, lock_delay, sid, store, ttl,
};
use lock_api::{AcquireOutcome, EventKind, FencingToken, HeartbeatOutcome, LockDelay, ReleaseOutcome, RenewOutcome};
use std::time::Duration;

/// The delay of most cases.
const DELAY: Duration = Duration::from_secs(4);

async fn two_sessions(backend: &dyn Backend) -> Store {
    let store = store(backend);
    store.open("s1", LONG).await;
    store.open("s2", LONG).await;
    store
}

/// The key is closed to both sessions for the time expected, which is shown as well, and to nobody afterwards.
async fn closed_and_then_open(backend: &dyn Backend, store: &Store, at: &str, left: Duration, last: FencingToken) {
    for session in ["s1", "s2"] {
        let (ends_in, last_token) = store.closed(at, session, "while-closed").await;
        assert_left(backend, ends_in, left);
        assert_eq!(last_token, last, "{session}");
    }
    let shown = store.inspect(at).await;
    assert_eq!((&shown.grant, shown.last_token), (&None, Some(last)));
    assert_left(backend, shown.closed_for.unwrap(), left);
    let listed = store.0.list(at.to_owned(), None, 10, WITHIN).await.unwrap();
    assert_left(backend, listed[0].closed_for.unwrap(), left);
    let almost = left - Duration::from_millis(100);
    backend.pass(almost).await;
    store.sweep().await;
    let (ends_in, _) = store.closed(at, "s2", "to-the-end").await;
    assert!(ends_in > Duration::ZERO, "closed for no time at all");
    backend.pass(Duration::from_millis(200)).await;
    assert_eq!(store.inspect(at).await.closed_for, None);
    let next = store.grant(at, "s2", "afterwards", LONG).await;
    assert!(next.token > last, "{next:?} after {last}");
    assert_eq!(store.inspect(at).await.closed_for, None, "a held key is not closed");
}

/// The grant's own time is over: closed to everybody, the loser included, from when the store has recorded it.
pub async fn an_expired_grant_closes_its_key_for_its_delay(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let grant = store.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    assert_eq!(grant.lock_delay, lock_delay(DELAY));
    let held = store.refused("a", "s2", "r2").await;
    assert_eq!(held.holder.lock_delay, lock_delay(DELAY), "whoever is refused sees it");
    assert_eq!(store.inspect("a").await.closed_for, None, "a held key is not closed");
    backend.pass(PAST_T).await;
    assert_eq!(store.sweep().await.grants.len(), 1);
    let facts = store.seq().await;
    closed_and_then_open(backend, &store, "a", DELAY, grant.token).await;
    let since: Vec<_> = store.events(facts).await.into_iter().map(|fact| fact.kind).collect();
    assert_eq!(
        since,
        [EventKind::Granted],
        "neither a refusal nor the end of a delay is a fact"
    );
}

/// The session's time is over: each of its keys is closed for as long as its own grant asked.
pub async fn the_end_of_a_session_closes_its_keys(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    store.open("dies", T).await;
    let one = store.grant_with_delay("a", "dies", "r1", (LONG, DELAY)).await;
    store.grant("b", "dies", "r2", LONG).await;
    store.grant_with_delay("c", "dies", "r3", (LONG, DELAY * 2)).await;
    backend.pass(PAST_T).await;
    let report = store.sweep().await;
    assert_eq!(report.sessions.len(), 1, "{report:?}");
    assert!(store.inspect("b").await.closed_for.is_none());
    store.grant("b", "s2", "r4", T).await;
    closed_and_then_open(backend, &store, "a", DELAY, one.token).await;
    assert!(store.inspect("c").await.closed_for.is_some());
}

/// Broken by an operator: closed as well, under the token that the revoke minted.
pub async fn a_revoke_closes_the_key(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let grant = store.grant_with_delay("a", "s1", "r1", (LONG, DELAY)).await;
    let revoked = store.revoke("a", grant.token).await;
    let lock_api::RevokeOutcome::Revoked { revoked, token } = revoked else {
        panic!("{revoked:?}")
    };
    assert_eq!(revoked.lock_delay, lock_delay(DELAY));
    // It has lost it, and cannot come back to it by what it knows.
    assert_eq!(store.renew("a", "s1", grant.token).await, RenewOutcome::NotHolder);
    let again = store.acquire("a", "s1", "r1", LONG).await;
    assert!(matches!(again, AcquireOutcome::Delayed { .. }), "{again:?}");
    closed_and_then_open(backend, &store, "a", DELAY, token).await;
}

/// A clean end: the key is free at once.
pub async fn a_release_and_a_close_leave_none(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let grant = store.grant_with_delay("a", "s1", "r1", (LONG, DELAY)).await;
    assert_eq!(store.release("a", "s1", grant.token).await, ReleaseOutcome::Released);
    assert_eq!(store.inspect("a").await.closed_for, None);
    assert_eq!(store.sweep().await.grants.len(), 0);
    store.grant("a", "s2", "r2", LONG).await;
    store.open("closes", LONG).await;
    store.grant_with_delay("b", "closes", "r3", (LONG, DELAY)).await;
    assert_eq!(store.close("closes").await.len(), 1);
    assert_eq!(store.inspect("b").await.closed_for, None);
    store.grant("b", "s2", "r4", LONG).await;
}

/// A delay of zero is what there was before there were delays.
pub async fn no_delay_is_as_ever(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let grant = store.grant_with_delay("a", "s1", "r1", (T, Duration::ZERO)).await;
    assert!(grant.lock_delay.is_none());
    backend.pass(PAST_T).await;
    store.sweep().await;
    assert_eq!(store.inspect("a").await.closed_for, None);
    let next = store.grant("a", "s2", "r2", LONG).await;
    store.revoke("a", next.token).await;
    assert_eq!(store.inspect("a").await.closed_for, None);
    store.grant("a", "s1", "r3", LONG).await;
}

/// No sweep has been: the acquire itself finds that the grant is over. It records that, and grants nothing.
pub async fn an_acquire_that_meets_the_end_is_not_granted_around_the_delay(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let grant = store.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    backend.pass(PAST_T).await;
    let shown = store.inspect("a").await;
    assert_eq!(
        (shown.grant, shown.closed_for),
        (None, Some(DELAY)),
        "it is over, and counts from now at the earliest"
    );
    let before = store.seq().await;
    // Also for the very request that held it.
    let (ends_in, last) = store.closed("a", "s1", "r1").await;
    assert_left(backend, ends_in, DELAY);
    assert_eq!(last, grant.token);
    let facts = store.events(before).await;
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!((facts[0].kind, facts[0].token), (EventKind::Expired, Some(grant.token)));
    assert!(store.sweep().await.grants.is_empty(), "it had ended before");
    let HeartbeatOutcome::Alive { held, .. } = store.heartbeat("s1").await else {
        panic!("alive")
    };
    assert!(held.is_empty(), "{held:?}");
    closed_and_then_open(backend, &store, "a", DELAY, grant.token).await;
}

/// A release after the end finds the key free, and leaves it closed: the loss was an unclean one.
pub async fn a_release_that_comes_too_late_leaves_the_delay(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let grant = store.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    backend.pass(PAST_T).await;
    for _ in 0..2 {
        assert_eq!(store.release("a", "s1", grant.token).await, ReleaseOutcome::AlreadyFree);
    }
    closed_and_then_open(backend, &store, "a", DELAY, grant.token).await;
}

/// A replay of a live grant is answered as ever, with the delay that the grant was made with; so is a renew.
pub async fn a_live_grant_is_found_again_whatever_its_delay(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let grant = store.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    let mut asked = acquire_request("a", "s1", "r1", T);
    asked.lock_delay = lock_delay(DELAY * 2);
    let again = store.ask(asked).await;
    let AcquireOutcome::Granted {
        grant: again,
        replayed: true,
    } = again
    else {
        panic!("{again:?}")
    };
    assert_eq!((again.token, again.lock_delay), (grant.token, grant.lock_delay));
    let RenewOutcome::Renewed(renewed) = store.renew("a", "s1", grant.token).await else {
        panic!("held")
    };
    assert_eq!(renewed.lock_delay, grant.lock_delay);
    assert_eq!(store.inspect("a").await.grant.unwrap().lock_delay, grant.lock_delay);
}

/// Each item of a batch stands alone: those of a closed key are refused, others are not, whichever of them comes first.
pub async fn a_batch_with_a_closed_key_twice(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let a = store.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    store.grant_with_delay("b", "s1", "r2", (T, DELAY)).await;
    backend.pass(PAST_T).await;
    // One has been ended before, one is ended by this very batch.
    store.closed("b", "s1", "r3").await;
    let mut free = acquire_request("c", "s2", "r6", T);
    free.lock_delay = lock_delay(DELAY);
    let batch = vec![
        acquire_request("a", "s1", "r4", T),
        acquire_request("b", "s2", "r5", T),
        free,
        acquire_request("a", "s2", "r7", T),
        acquire_request("c", "s1", "r8", T),
        acquire_request("b", "s2", "r5", T),
        acquire_request("a", "nobody", "r9", T),
    ];
    let answers = store.0.acquire(batch, WITHIN).await.unwrap();
    assert_eq!(answers.len(), 7);
    for n in [0, 1, 3, 5] {
        assert!(
            matches!(answers[n], AcquireOutcome::Delayed { .. }),
            "{n}: {:?}",
            answers[n]
        );
    }
    assert!(
        matches!(&answers[0], AcquireOutcome::Delayed { last_token, .. } if *last_token == a.token),
        "{:?}",
        answers[0]
    );
    assert!(
        matches!(&answers[2], AcquireOutcome::Granted { grant, replayed: false } if grant.lock_delay.get() == DELAY)
    );
    assert!(matches!(&answers[4], AcquireOutcome::HeldByOther(held) if held.holder.session_id == sid("s2")));
    assert_eq!(answers[6], AcquireOutcome::SessionNotFound);
    let ended = store
        .events(0)
        .await
        .into_iter()
        .filter(|fact| fact.kind == EventKind::Expired);
    assert_eq!(ended.count(), 2, "each end once");
}

/// The end of a delay is something to wake up for: the next sweep is not due later than it.
pub async fn a_sweep_says_when_a_delay_ends(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    store.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    backend.pass(PAST_T).await;
    let report = store.sweep().await;
    assert_eq!(report.grants.len(), 1);
    assert_left(backend, report.next_due_in.unwrap(), DELAY);
    backend.pass(DELAY + Duration::from_millis(100)).await;
    let report = store.sweep().await;
    assert!(
        report.grants.is_empty() && report.sessions.is_empty() && !report.more,
        "{report:?}"
    );
    assert!(
        report.next_due_in.unwrap() > DELAY,
        "nothing but the sessions: {report:?}"
    );
    store.grant("a", "s2", "r2", T).await;
}

/// What an earlier holder asked for does not outlast it.
pub async fn each_grant_brings_its_own_delay(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let lost = store.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    backend.pass(PAST_T).await;
    store.sweep().await;
    backend.pass(DELAY + Duration::from_millis(100)).await;
    // Not swept in between: the end of the delay is found by the acquire.
    let next = store.grant("a", "s2", "r2", T).await;
    assert!(next.token > lost.token && next.lock_delay.is_none());
    backend.pass(PAST_T).await;
    store.sweep().await;
    assert_eq!(store.inspect("a").await.closed_for, None);
    let third = store.grant_with_delay("a", "s1", "r3", (T, DELAY / 2)).await;
    backend.pass(PAST_T).await;
    store.sweep().await;
    closed_and_then_open(backend, &store, "a", DELAY / 2, third.token).await;
}

/// Retention may be shorter than a delay: what is closed is kept, what was closed goes.
pub async fn a_closed_key_is_not_forgotten(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    let grant = store.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    let free = store.grant("b", "s1", "r2", T).await;
    store.release("b", "s1", free.token).await;
    backend.pass(PAST_T).await;
    store.sweep().await;
    backend.pass(Duration::from_millis(5)).await;
    let purge = || store.0.purge_tombstones(Duration::ZERO, 100, WITHIN);
    assert_eq!(purge().await.unwrap(), 1, "the other key alone");
    assert_eq!(store.inspect("a").await.last_token, Some(grant.token));
    store.closed("a", "s2", "r3").await;
    backend.pass(DELAY + Duration::from_millis(100)).await;
    store.sweep().await;
    assert_eq!(purge().await.unwrap(), 1);
    assert_eq!(store.inspect("a").await.last_token, None);
    assert_eq!(store.inspect("a").await.closed_for, None);
    assert!(store.grant("a", "s2", "r4", T).await.token > grant.token);
}

/// A restart may lengthen a delay, as it may a lease: never to more than the whole, and not one that was found over.
pub async fn a_restart_gives_the_full_delay_again(backend: &mut dyn Backend) {
    let before = two_sessions(backend).await;
    let grant = before.grant_with_delay("a", "s1", "r1", (T, DELAY)).await;
    before.grant_with_delay("b", "s1", "r2", (T, DELAY / 4)).await;
    backend.pass(PAST_T).await;
    before.sweep().await;
    backend.pass(DELAY * 3 / 4).await;
    before.sweep().await;
    drop(before);
    if !backend.restart().await {
        return;
    }
    let store = store(backend);
    let left = store.inspect("a").await.closed_for.unwrap();
    assert!(
        left >= DELAY / 4 - Duration::from_millis(100) && left <= DELAY,
        "{left:?}"
    );
    store.closed("a", "s2", "r3").await;
    assert_eq!(store.inspect("b").await.closed_for, None, "it was over");
    store.grant("b", "s2", "r4", T).await;
    backend.pass(DELAY + Duration::from_millis(100)).await;
    assert!(store.grant("a", "s2", "r5", T).await.token > grant.token);
}

/// The longest delay there is; the wall clock has no part in it.
pub async fn the_longest_delay_and_a_jump_of_the_wall_clock(backend: &mut dyn Backend) {
    let store = two_sessions(backend).await;
    assert!(LockDelay::new(LockDelay::MAX + Duration::from_millis(1)).is_err());
    let grant = store.grant_with_delay("a", "s1", "r1", (T, LockDelay::MAX)).await;
    store.revoke("a", grant.token).await;
    let day = 24 * 60 * 60 * 1000;
    for jump in [400 * day, -800 * day, 400 * day] {
        if !backend.jump_wall(jump) {
            break;
        }
        let (ends_in, _) = store.closed("a", "s2", "r2").await;
        assert!(
            ends_in <= LockDelay::MAX && ends_in > DELAY,
            "{ends_in:?} after a jump by {jump}"
        );
    }
    backend.pass(LockDelay::MAX + Duration::from_millis(100)).await;
    store.grant("a", "s2", "r3", T).await;
}

/// Two sessions ask again and again while a delay ends: one of them is granted, never both, never before the end. Printed
/// with its seed.
pub async fn who_comes_as_a_delay_ends_is_granted_once(backend: &mut dyn Backend) {
    let seed = 20_261_130;
    println!("seed {seed}");
    let store = two_sessions(backend).await;
    let mut dice = Dice(seed);
    let mut last = None;
    for round in 0..backend.rounds(400) {
        let context = format!("seed {seed}, round {round}");
        let delay = Duration::from_millis(200 + dice.roll(800));
        let lost = store
            .grant_with_delay("a", "s1", &format!("lost-{round}"), (LONG, delay))
            .await;
        assert!(last < Some(lost.token), "{context}");
        store.revoke("a", lost.token).await;
        // Somewhere around the end of it.
        let early = Duration::from_millis(dice.roll(150));
        backend.pass(delay.saturating_sub(early)).await;
        let ask = |session: &'static str, spins: u64| {
            let store = store.clone();
            async move {
                for _ in 0..spins {
                    tokio::task::yield_now().await;
                }
                let mut request = acquire_request("a", session, &format!("next-{round}"), LONG);
                request.ttl = ttl(LONG);
                (session, store.ask(request).await)
            }
        };
        let (one, two, sweeps) = (dice.roll(4), dice.roll(4), dice.roll(2) == 0);
        let sweep = async {
            if sweeps {
                store.sweep().await;
            }
        };
        let pass = async {
            tokio::task::yield_now().await;
            backend.pass(Duration::from_millis(75)).await;
        };
        let (first, second, (), ()) = tokio::join!(ask("s1", one), ask("s2", two), sweep, pass);
        let mut granted = None;
        for (session, answer) in [first, second] {
            match answer {
                AcquireOutcome::Granted { grant, replayed: false } => {
                    assert!(
                        early <= Duration::from_millis(75),
                        "{context}: granted {early:?} before the end"
                    );
                    let before = granted.replace((session, grant.token));
                    assert_eq!(before, None, "{context}: granted twice");
                }
                AcquireOutcome::Delayed { ends_in, .. } => {
                    assert!(ends_in <= delay, "{context}: {ends_in:?}");
                }
                AcquireOutcome::HeldByOther(held) => assert!(held.holder.token > lost.token, "{context}: {held:?}"),
                other => panic!("{context}: {other:?}"),
            }
        }
        if granted.is_none() {
            backend.pass(Duration::from_millis(300)).await;
            granted = Some(("s2", store.grant("a", "s2", &format!("late-{round}"), LONG).await.token));
        }
        let (session, token) = granted.unwrap();
        assert_eq!(
            store.holder(key("a").as_str()).await,
            Some((session.to_owned(), token.get())),
            "{context}"
        );
        assert_eq!(store.release("a", session, token).await, ReleaseOutcome::Released);
        last = Some(token);
    }
}
