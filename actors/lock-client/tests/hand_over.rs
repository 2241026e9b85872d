//! Delays after unclean losses and requests to yield, as a client and its holders see them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use actix_web::http::Method;
use common::{Bench, Ear, Lab, Trouble, key, millis, options, paused, secs};
use futures_util::FutureExt;
use lock_api::{FencingToken, LockError, YieldAsked};
use lock_client::{HeldLock, LeaderElection, Term};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The TTL of the defaults.
const TTL: Duration = Duration::from_secs(15);
const DELAY: Duration = Duration::from_secs(3);
const REASON: &str = "this node is drained";

async fn ask(lab: &Lab, name: &str, token: FencingToken, by: &str) -> serde_json::Value {
    let body = json!({ "token": token.get(), "reason": REASON });
    let uri = format!("/v1/locks/{name}/yield");
    let (status, body) = lab.ask(Method::POST, &uri, &[("X-Operator", by)], Some(body)).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// Hears of requests to yield.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<YieldAsked>>>);

impl Asked {
    fn on(held: &HeldLock) -> Self {
        let asked = Self::default();
        let heard = asked.0.clone();
        held.on_yield_requested(move |said| heard.lock().unwrap().push(said));
        asked
    }

    fn by(&self) -> Vec<String> {
        let heard = self.0.lock().unwrap();
        heard.iter().map(|said| said.by.as_str().to_owned()).collect()
    }
}

#[test]
fn a_holder_is_told_once_that_it_is_asked_to_yield_and_its_release_hands_over() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1").lock_delay(DELAY)).await;
        let other = Bench::new(&lab, options("w2")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let (early, lost) = (Asked::on(&held), Ear::on(&held));
        let mut notice = Box::pin(held.asked_to_yield());
        assert_eq!((held.yield_requested(), notice.as_mut().now_or_never()), (None, None));
        ask(&lab, "k", held.token(), "ann").await;
        ask(&lab, "k", held.token(), "bob").await;
        let said = tokio::time::timeout(TTL, notice)
            .await
            .expect("a heartbeat or renewal shows it");
        assert_eq!((said.by.as_str(), said.reason.as_str()), ("ann", REASON));
        assert_eq!(held.yield_requested(), Some(said));
        let late = Asked::on(&held);
        tokio::time::sleep(TTL * 3).await;
        assert_eq!(
            (early.by(), late.by()),
            (vec!["ann".to_owned()], vec!["ann".to_owned()])
        );
        assert_eq!(held.check_still_held(), Ok(held.token()), "nothing ended by it");
        assert!(lost.heard().is_empty());
        let k = key("k");
        let (waiting, ()) = tokio::join!(other.client.acquire_within(&k, secs(30)), async {
            tokio::time::sleep(secs(1)).await;
            held.release().await.unwrap();
        });
        let next = waiting.unwrap();
        assert_eq!(
            next.yield_requested(),
            None,
            "it was the other grant that was asked for"
        );
        assert_eq!(Asked::on(&next).by(), Vec::<String>::new());
    });
}

#[test]
fn a_renewal_alone_shows_the_request_and_one_by_hand_at_once() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        bench.beat().cut(Trouble::Swallow);
        let asked = Asked::on(&held);
        ask(&lab, "k", held.token(), "ann").await;
        held.renew().await.unwrap();
        assert_eq!(asked.by(), ["ann"]);
    });
}

#[test]
fn whoever_lost_its_lock_is_not_asked_to_give_it_up() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let asked = Asked::on(&held);
        ask(&lab, "k", held.token(), "ann").await;
        bench.link().cut(Trouble::Swallow);
        bench.beat().cut(Trouble::Swallow);
        held.lost().await;
        bench.link().heal();
        bench.beat().heal();
        tokio::time::sleep(TTL).await;
        assert_eq!((asked.by(), held.yield_requested()), (vec![], None));
    });
}

#[test]
fn a_key_that_is_closed_after_an_unclean_loss_is_waited_for_within_the_budget() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let other = Bench::new(&lab, options("w2")).await;
        let k = key("k");
        for budget in [secs(10), millis(500)] {
            let held = bench.client.lock(&k).lock_delay(DELAY).acquire().await.unwrap();
            let minted = lab.revoke(&k, held.token()).await;
            match other.client.try_acquire(&k).await {
                Err(LockError::Delayed {
                    last_token,
                    ends_in,
                    attempts: 1,
                }) => assert_eq!((last_token.get(), ends_in <= DELAY), (minted, true)),
                answer => panic!("{answer:?}"),
            }
            let from = lab.clock.mono();
            let answer = other.client.acquire_within(&k, budget).await;
            let took = lab.clock.mono() - from;
            match answer {
                Ok(next) if budget > DELAY => {
                    // What is left of the delay when the budget begins.
                    assert!(took > DELAY - millis(100) && took < DELAY + secs(1), "{took:?}");
                    next.release().await.unwrap();
                }
                Err(error @ LockError::Delayed { .. }) if budget < DELAY => {
                    assert!(error.to_string().contains("unclean loss"), "{error}");
                    assert!(took >= budget, "{took:?}");
                }
                answer => panic!("{budget:?}: {answer:?}"),
            }
            drop(held);
        }
        // Attempts without a wait come to an end, and say that it was the delay.
        match other.client.acquire(&k).await {
            Err(LockError::Delayed { attempts: 5, .. }) => {}
            answer => panic!("{answer:?}"),
        }
    });
}

#[test]
fn a_delay_that_no_server_takes_is_an_error_of_the_call() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let k = key("k");
        let answer = bench.client.lock(&k).lock_delay(millis(60_001)).acquire().await;
        assert!(matches!(answer, Err(LockError::Invalid { .. })), "{answer:?}");
        assert!(bench.link().calls("acquire").is_empty());
    });
}

#[test]
fn a_leader_that_is_asked_to_yield_steps_down_for_the_next_one() {
    paused(|| async {
        let lab = Lab::new().await;
        let (one, two) = (
            Bench::new(&lab, options("w1")).await,
            Bench::new(&lab, options("w2")).await,
        );
        let first = LeaderElection::new(one.client.clone(), key("leader"));
        let second = LeaderElection::new(two.client.clone(), key("leader"));
        let leads = first.lead(|_, _| std::future::pending::<()>());
        let follows = async {
            let leader = loop {
                match second.leader().await.unwrap() {
                    Some(leader) => break leader,
                    None => tokio::time::sleep(millis(100)).await,
                }
            };
            let asks = async {
                tokio::time::sleep(secs(1)).await;
                ask(&lab, "leader", leader.token, "ann").await;
            };
            let (term, ()) = tokio::join!(second.lead(async |term, _| term), asks);
            (leader.token, term.unwrap())
        };
        let (term, (before, after)) = tokio::join!(leads, follows);
        match term.unwrap() {
            Term::SteppedDown(said) => assert_eq!(said.by.as_str(), "ann"),
            other => panic!("{other:?}"),
        }
        match after {
            Term::Done(token) => assert!(token > before),
            other => panic!("{other:?}"),
        }
    });
}
