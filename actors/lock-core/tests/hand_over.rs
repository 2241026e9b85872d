//! Delays after unclean losses and requests to yield, over the real store in memory, on a paused clock.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod support;

use lock_api::{
    EventKind, FencingToken, Grant, HeartbeatOutcome, LockDelay, LockKey, Operator, RenewOutcome, RevokeOutcome,
    RevokeRequest, SessionId, YieldOutcome, YieldRequest,
};
use lock_core::{Acquired, Refusal};
use std::time::Duration;
use support::{World, granted, ms, paused};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(5);
const DELAY: Duration = Duration::from_secs(3);
const REASON: &str = "this node is drained";

async fn take_with_delay(world: &World, key: &str, session: &SessionId) -> Grant {
    let mut call = world.call(key, session, TTL);
    call.request.lock_delay = LockDelay::new(DELAY).unwrap();
    granted(world.acquire(call).await)
}

fn waits(world: &World, key: &'static str, session: &SessionId) -> JoinHandle<(Grant, Duration)> {
    let (world, session) = (world.clone(), session.clone());
    tokio::task::spawn_local(async move {
        let grant = granted(world.wait_for(key, &session, TTL, ms(30_000)).await);
        (grant, world.now())
    })
}

#[track_caller]
fn delayed(answer: Result<Acquired, Refusal>) -> (FencingToken, Duration, u32) {
    match answer {
        Ok(Acquired::Delayed {
            last_token,
            ends_in,
            waiters,
        }) => (last_token, ends_in, waiters),
        other => panic!("not told of a delay: {other:?}"),
    }
}

async fn revoke(world: &World, grant: &Grant) -> FencingToken {
    let request = RevokeRequest {
        key: grant.key.clone(),
        revoke_token: grant.token,
        operator: Operator::new("ann").unwrap(),
        reason: REASON.to_owned(),
    };
    match world.service.revoke(request, &world.trace).await.unwrap() {
        RevokeOutcome::Revoked { token, .. } => token,
        other => panic!("not revoked: {other:?}"),
    }
}

async fn ask(world: &World, key: &str, token: FencingToken, by: &str) -> YieldOutcome {
    let request = YieldRequest {
        key: LockKey::new(key).unwrap(),
        token,
        operator: Operator::new(by).unwrap(),
        reason: REASON.to_owned(),
    };
    world.service.ask_to_yield(request, &world.trace).await.unwrap()
}

#[test]
fn nobody_is_granted_an_expired_key_before_its_delay_and_the_head_is_granted_when_it_has_passed() {
    paused(async {
        let world = World::new(1).await;
        let (one, two, three) = (
            world.worker("w1").await,
            world.worker("w2").await,
            world.worker("w3").await,
        );
        let begun = world.now();
        let lost = take_with_delay(&world, "k", &one).await;
        let head = waits(&world, "k", &two);
        world.waiters("k", 1).await;
        let second = waits(&world, "k", &three);
        world.waiters("k", 2).await;
        world.sleep(TTL + DELAY / 2).await;
        // A newcomer is told, the loser too, and nobody is overtaken.
        let (last, ends_in, waiters) = delayed(world.try_acquire("k", &one, TTL).await);
        assert_eq!((last, waiters), (lost.token, 2));
        assert!(ends_in <= DELAY && !ends_in.is_zero(), "{ends_in:?}");
        assert_eq!(world.metric("lock_acquire_total{outcome=\"delayed\"}"), 1.0);
        let (grant, at) = head.await.unwrap();
        assert!(at - begun >= TTL + DELAY, "granted after {:?}", at - begun);
        assert!(
            at - begun <= TTL + DELAY + ms(500),
            "granted only after {:?}",
            at - begun
        );
        assert!(grant.token > lost.token);
        world.release(&grant).await.unwrap();
        assert_eq!(second.await.unwrap().1, at, "a release leaves no delay");
    });
}

#[test]
fn a_revoke_leaves_the_delay_and_a_release_or_a_close_none() {
    paused(async {
        let world = World::new(2).await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let grant = take_with_delay(&world, "k", &one).await;
        world.release(&grant).await.unwrap();
        let grant = take_with_delay(&world, "k", &two).await;
        world.close(&two).await;
        let again = take_with_delay(&world, "k", &one).await;
        assert!(again.token > grant.token);
        let waiter = world.worker("w3").await;
        let waiting = waits(&world, "k", &waiter);
        world.waiters("k", 1).await;
        let broken = world.now();
        let minted = revoke(&world, &again).await;
        let (last, _, _) = delayed(world.try_acquire("k", &one, TTL).await);
        assert_eq!(last, minted);
        let (state, _) = world.inspect("k").await;
        assert!(state.grant.is_none() && state.closed_for.is_some_and(|left| left <= DELAY));
        let (_, at) = waiting.await.unwrap();
        assert!(at - broken >= DELAY, "granted {:?} after the revoke", at - broken);
        assert!(
            at - broken <= DELAY + ms(500),
            "granted only {:?} after it",
            at - broken
        );
    });
}

#[test]
fn a_wait_that_is_over_within_the_delay_is_answered_so() {
    paused(async {
        let world = World::new(3).await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let grant = take_with_delay(&world, "k", &one).await;
        revoke(&world, &grant).await;
        let begun = world.now();
        let (_, ends_in, waiters) = delayed(world.wait_for("k", &two, TTL, ms(1_000)).await);
        assert!(world.now() - begun >= ms(1_000));
        assert_eq!(waiters, 0);
        assert!(ends_in <= DELAY - ms(1_000), "{ends_in:?}");
    });
}

#[test]
fn the_holder_reads_of_a_request_in_heartbeat_and_renewal_and_its_release_hands_over_at_once() {
    paused(async {
        let world = World::new(4).await;
        let (one, two) = (world.worker("w1").await, world.worker("w2").await);
        let grant = take_with_delay(&world, "k", &one).await;
        let waiting = waits(&world, "k", &two);
        world.waiters("k", 1).await;
        for by in ["ann", "bob"] {
            match ask(&world, "k", grant.token, by).await {
                YieldOutcome::Asked(asked) => {
                    let said = asked.yield_asked.unwrap();
                    assert_eq!(
                        (said.by.as_str(), said.reason.as_str()),
                        ("ann", REASON),
                        "the first is kept"
                    );
                }
                other => panic!("not asked: {other:?}"),
            }
        }
        let HeartbeatOutcome::Alive { held, .. } = world.beat(&one).await else {
            panic!("the session lives");
        };
        assert_eq!(held[0].yield_asked.as_ref().map(|asked| asked.by.as_str()), Some("ann"));
        let RenewOutcome::Renewed(renewed) = world.renew(&grant).await.unwrap() else {
            panic!("the grant stands");
        };
        assert!(renewed.yield_asked.is_some());
        assert_eq!(world.holder("k").await.unwrap().token, grant.token, "nothing ended");
        let released = world.now();
        world.release(&grant).await.unwrap();
        let (next, at) = waiting.await.unwrap();
        assert_eq!(
            (at, &next.yield_asked),
            (released, &None),
            "the next grant is asked for nothing"
        );
        let query = lock_api::EventQuery {
            key: LockKey::new("k").ok(),
            after: 0,
            limit: 100,
        };
        let events = world.service.events(query).await.unwrap();
        let asked = events.iter().filter(|event| event.kind == EventKind::YieldRequested);
        assert_eq!(asked.count(), 1, "recorded once");
        assert!(matches!(
            ask(&world, "k", grant.token, "ann").await,
            YieldOutcome::NotHolder { .. }
        ));
        world.release(&next).await.unwrap();
        assert_eq!(ask(&world, "k", next.token, "ann").await, YieldOutcome::NotHeld);
        assert_eq!(ask(&world, "nobody", next.token, "ann").await, YieldOutcome::NotFound);
    });
}
