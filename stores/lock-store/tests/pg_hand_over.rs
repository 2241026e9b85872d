//! The delay after an unclean loss on a shared database: what a lock server of the schema before is told, and two servers
//! that ask as a delay ends, on the database's own clock.
#![cfg(feature = "pg")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and read the clock")]

mod pg_steps;

use lock_api::{
    AcquireOutcome, AcquireRequest, FencingToken, LockDelay, LockKey, LockStore, Operator, ReleaseOutcome,
    RevokeRequest,
};
use lock_store::PgLockStore;
use pg_steps::{LONG, Place, WITHIN, acquire, ask, facts, granted, one_holder_at_a_time, open, release};
use std::time::{Duration, Instant};

fn with_delay(mut request: AcquireRequest, delay: Duration) -> AcquireRequest {
    request.lock_delay = LockDelay::new(delay).unwrap();
    request
}

async fn lose(store: &PgLockStore, at: &str, token: FencingToken) {
    let broken = RevokeRequest {
        key: LockKey::new(at).unwrap(),
        revoke_token: token,
        operator: Operator::new("ops@example").unwrap(),
        reason: "the holder hangs".to_owned(),
    };
    store.revoke(broken, WITHIN).await.unwrap();
}

/// A lock server of the version before calls the function of the same name with one argument less.
#[tokio::test]
async fn a_program_of_before_is_told_of_a_closed_key_as_of_a_held_one() {
    let place = Place::fresh().await;
    let (store, client) = (place.open().await, place.client().await);
    open(&store, "s1", LONG).await;
    open(&store, "s2", LONG).await;
    let answer = acquire(&store, with_delay(ask("a", "s1", "r1", LONG), LockDelay::MAX)).await;
    let AcquireOutcome::Granted { grant, .. } = answer else {
        panic!("{answer:?}")
    };
    lose(&store, "a", grant.token).await;
    let rows = client
        .query(
            "SELECT ord, outcome, session_id, owner, token, left_us, at_us IS NOT NULL FROM lock_acquire(1000, NULL, NULL,
                 ARRAY['a', 'b'], ARRAY['s2', 's2'], ARRAY['r2', 'r3'], ARRAY[600000, 600000]::bigint[],
                 ARRAY[NULL, NULL]::text[], ARRAY[NULL, NULL]::bigint[]) ORDER BY ord",
            &[],
        )
        .await
        .unwrap();
    let outcomes: Vec<&str> = rows.iter().map(|row| row.get(1)).collect();
    assert_eq!(outcomes, ["HELD_BY_OTHER", "GRANTED"]);
    let (session, owner): (&str, &str) = (rows[0].get(2), rows[0].get(3));
    assert_eq!(session, "lock-delay");
    assert!(!owner.is_empty() && lock_api::Owner::new(owner).is_ok() && lock_api::SessionId::new(session).is_ok());
    let (token, left): (i64, i64) = (rows[0].get(4), rows[0].get(5));
    assert!(
        token > i64::try_from(grant.token.get()).unwrap(),
        "the one that the revoke minted"
    );
    assert!(left > 30_000_000 && left <= 60_000_000, "{left}");
    // What it was granted has no delay, and what it says is found by the new ones.
    let state = store
        .inspect(vec![LockKey::new("b").unwrap()], WITHIN)
        .await
        .unwrap()
        .remove(0);
    assert!(state.grant.unwrap().lock_delay.is_none());
    assert!(matches!(
        acquire(&store, ask("a", "s2", "r4", LONG)).await,
        AcquireOutcome::Delayed { .. }
    ));
}

/// Two servers, a session on each, asking without pause as the delay ends: one grant at a time, none before the end.
#[tokio::test]
async fn two_servers_grant_a_key_once_as_its_delay_ends() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    open(&stores[0], "s0", LONG).await;
    open(&stores[1], "s1", LONG).await;
    let delay = Duration::from_millis(300);
    for round in 0..10 {
        let asked = with_delay(ask("a", "s0", &format!("lost{round}"), LONG), delay);
        let answer = acquire(&stores[round % 2], asked).await;
        let AcquireOutcome::Granted { grant, .. } = answer else {
            panic!("round {round}: {answer:?}")
        };
        let lost = grant.token;
        let began = Instant::now();
        lose(&stores[round % 2], "a", lost).await;
        let wins = |n: usize| {
            let store = stores[n].clone();
            async move {
                loop {
                    match acquire(&store, ask("a", &format!("s{n}"), &format!("next{round}"), LONG)).await {
                        AcquireOutcome::Granted { grant, .. } => return Some((n, grant.token)),
                        AcquireOutcome::HeldByOther(_) => return None,
                        AcquireOutcome::Delayed { ends_in, .. } => assert!(ends_in <= delay, "{ends_in:?}"),
                        other => panic!("round {round}: {other:?}"),
                    }
                }
            }
        };
        let (one, two) = tokio::join!(wins(0), wins(1));
        assert!(
            began.elapsed() >= delay,
            "round {round}: granted after {:?}",
            began.elapsed()
        );
        let (winner, token) = match (one, two) {
            (Some(won), None) | (None, Some(won)) => won,
            other => panic!("round {round}: {other:?}"),
        };
        assert!(token > lost);
        assert_eq!(
            release(&stores[winner], "a", &format!("s{winner}"), token).await,
            ReleaseOutcome::Released
        );
    }
    assert_eq!(one_holder_at_a_time(&facts(&stores[0]).await), 20);
    granted(&stores[0], "a", "s0", "last", LONG).await;
}
