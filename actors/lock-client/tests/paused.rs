//! The client against the real lock server, core and store on a paused clock, over links that are troubled on purpose.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use actix_web::http::Method;
use actor_kit::TraceContext;
use common::{Bench, Ear, Lab, Trouble, key, millis, options, paused, secs, suspendable};
use futures_util::FutureExt;
use http_contract::lock::KeyStatus;
use lock_api::{LockError, LostReason};
use lock_client::{LeaderElection, LeaseSeen, LeaseWatch, Term};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The TTL and margin of the defaults.
const TTL: Duration = Duration::from_secs(15);
const MARGIN: Duration = Duration::from_secs(1);

#[test]
fn a_lock_is_taken_kept_and_given_back() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("a/b")).await.unwrap();
        let ear = Ear::on(&held);
        // Forty TTLs.
        for _ in 0..20 {
            tokio::time::sleep(secs(30)).await;
            assert_eq!(held.check_still_held(), Ok(held.token()));
            assert!(held.remaining() <= TTL - MARGIN);
            assert!(held.check_still_held_for(secs(5)).is_ok());
            assert_eq!(
                held.check_still_held_for(secs(15)).unwrap_err().reason,
                LostReason::DeadlineLapsed
            );
        }
        assert_eq!(lab.show(&key("a/b")).await.state, KeyStatus::Held);
        held.release().await.unwrap();
        assert_eq!(lab.show(&key("a/b")).await.state, KeyStatus::Free);
        assert!(ear.heard().is_empty(), "a release is no loss");
        bench.client.close().await.unwrap();
        assert!(lab.sessions().await.is_empty());
    });
}

#[test]
fn case_l02_every_way_to_lose_tells_exactly_once_with_its_reason() {
    paused(|| async {
        let lab = Lab::new().await;
        for (way, reason) in [
            ("lapse", LostReason::DeadlineLapsed),
            ("revoke", LostReason::Revoked),
            ("close", LostReason::SessionLost),
            ("supersede", LostReason::Superseded),
        ] {
            let bench = Bench::new(&lab, options(way)).await;
            let key = key(way);
            let held = bench.client.acquire(&key).await.unwrap();
            let (ear, lost) = (Ear::on(&held), held.lost());
            let session = lab.session_of(way).await;
            match way {
                "lapse" => {
                    bench.link().cut(Trouble::Swallow);
                    bench.beat().cut(Trouble::Swallow);
                }
                "revoke" => drop(lab.revoke(&key, held.token()).await),
                "close" => assert_eq!(
                    lab.ask(Method::DELETE, &format!("/v1/sessions/{session}"), &[], None)
                        .await
                        .0,
                    200
                ),
                _ => {
                    // Somebody gives it away behind our back, and another one takes it.
                    assert_eq!(lab.raw_release(&key, &session, held.token()).await.0, 200);
                    let other = lab.raw_session("other").await;
                    assert_eq!(lab.raw_acquire(&key, json!({ "session_id": other })).await.0, 200);
                }
            }
            let lost = tokio::time::timeout(TTL, lost).await.unwrap();
            assert_eq!((lost.reason, lost.token), (reason, held.token()), "{way}");
            assert_eq!(ear.heard(), [reason], "{way}");
            assert_eq!(held.check_still_held().unwrap_err().reason, reason);
            assert_eq!(Ear::on(&held).heard(), [reason], "registered late, called at once");
            bench.link().heal();
            bench.beat().heal();
            tokio::time::sleep(secs(60)).await;
            assert_eq!(ear.heard(), [reason], "{way}: told once");
            assert_eq!(bench.lost(reason.as_str()), 1, "{way}: counted once");
            match held.release().await {
                Err(LockError::Lost(again)) => assert_eq!(again.reason, reason),
                other => panic!("{way}: {other:?}"),
            }
            assert_eq!(ear.heard(), [reason]);
        }
    });
}

/// Whoever looks first does not decide the reason: not the client's own watch over deadlines, not a second heartbeat that
/// shows the loss again, not the application, and not the first server that cannot say.
#[test]
fn case_l02_a_revoke_is_told_as_revoked_however_long_its_reason_takes() {
    paused(|| async {
        let lab = Lab::new().await;
        for (n, (trouble, times)) in [
            (Trouble::SlowAnswer(millis(450)), u32::MAX),
            (Trouble::Status(502), 2),
            (Trouble::Swallow, 3),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("w{n}");
            let bench = Bench::new(&lab, options(&name)).await;
            let key = key(&name);
            let held = bench.client.acquire(&key).await.unwrap();
            let ear = Ear::on(&held);
            bench.link().trouble_times("history", trouble, times);
            lab.revoke(&key, held.token()).await;
            tokio::time::timeout(TTL, held.must_stop()).await.unwrap();
            assert!(ear.heard().is_empty(), "{trouble:?}: its reason is not known yet");
            assert_eq!(held.check_still_held().unwrap_err().reason, LostReason::Superseded);
            assert_eq!(held.remaining(), Duration::ZERO);
            // Asked while the reason is looked for: answered with the reason.
            match held.renew().await {
                Err(LockError::Lost(lost)) => assert_eq!(lost.reason, LostReason::Revoked, "{trouble:?}"),
                other => panic!("{trouble:?}: {other:?}"),
            }
            assert_eq!(ear.heard(), [LostReason::Revoked], "{trouble:?}");
            assert_eq!(held.check_still_held().unwrap_err().reason, LostReason::Revoked);
            assert_eq!(held.lost().await.reason, LostReason::Revoked);
            tokio::time::sleep(secs(60)).await;
            assert_eq!(ear.heard(), [LostReason::Revoked], "{trouble:?}: told once");
            assert_eq!(bench.lost("revoked"), 1, "{trouble:?}: counted once");
        }
    });
}

#[test]
fn case_l02_a_loss_whose_reason_nobody_can_tell_is_told_all_the_same() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let ear = Ear::on(&held);
        bench.link().trouble("history", Trouble::Swallow);
        lab.revoke(&key("k"), held.token()).await;
        tokio::time::timeout(TTL, held.must_stop()).await.unwrap();
        let lost = tokio::time::timeout(secs(3), held.lost()).await.unwrap();
        assert_eq!(lost.reason, LostReason::Superseded, "the token is stale in any case");
        assert_eq!(ear.heard(), [LostReason::Superseded]);
        tokio::time::sleep(secs(60)).await;
        assert_eq!(ear.heard(), [LostReason::Superseded]);
    });
}

#[test]
fn whoever_watches_is_told_what_each_answer_promised_of_a_lease() {
    paused(|| async {
        let lab = Lab::new().await;
        let seen: Arc<Mutex<Vec<LeaseSeen>>> = Arc::default();
        let told = seen.clone();
        let watch = LeaseWatch::new(move |lease| told.lock().unwrap().push(lease.clone()));
        let bench = Bench::new(&lab, options("w1").lease_watch(watch)).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        tokio::time::sleep(TTL).await;
        let seen = seen.lock().unwrap().clone();
        assert!(seen.len() > 2, "the grant, renewals and heartbeats: {seen:?}");
        for lease in &seen {
            assert_eq!((&lease.key, lease.token), (held.key(), held.token()));
            assert!(lease.sent < lease.until && lease.until <= lease.sent + TTL, "{lease:?}");
        }
        assert!(
            seen.windows(2).all(|pair| pair[0].until <= pair[1].until),
            "a promise is never taken back: {seen:?}"
        );
        // The margin is the client's own business, not the server's promise.
        let until = seen.last().unwrap().until;
        assert_eq!(until, lab.clock.boot() + held.remaining() + MARGIN);
    });
}

#[test]
fn case_l03_a_late_heartbeat_answer_counts_from_its_send() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let ear = Ear::on(&held);
        // The first heartbeat's answer takes 0.6 of the TTL; the ones after it get no answer at all.
        bench
            .beat()
            .trouble_times("heartbeat", Trouble::SlowAnswer(TTL * 3 / 5), 1);
        bench.beat().trouble("heartbeat", Trouble::LoseAnswer);
        let lost = held.lost().await;
        let now = lab.clock.mono();
        assert_eq!(lost.reason, LostReason::DeadlineLapsed);
        let sent = bench.beat().calls("heartbeat")[0];
        assert!(now >= sent + TTL - MARGIN, "the answer counts");
        assert!(
            now <= sent + TTL - MARGIN + millis(20),
            "from the send: {:?} after it",
            now - sent
        );
        assert_eq!(ear.heard(), [LostReason::DeadlineLapsed]);
        assert_eq!(
            lab.show(&key("k")).await.state,
            KeyStatus::Held,
            "told before the server frees the key"
        );
    });
}

#[test]
fn case_l04_a_host_that_slept_has_lost_its_locks_on_wake() {
    paused(|| async {
        let lab = Lab::new().await;
        let (host, suspension) = suspendable(3);
        let bench = Bench::start(&lab, options("w1"), 1, &host).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let ear = Ear::on(&held);
        let lost = held.lost();
        suspension.suspend(secs(60));
        // No timer has fired: the monotonic clock stood still. The check before the side effect says so at once.
        assert_eq!(held.check_still_held().unwrap_err().reason, LostReason::DeadlineLapsed);
        assert_eq!(ear.heard(), [LostReason::DeadlineLapsed]);
        assert!(lost.now_or_never().is_some());

        let held = bench.client.acquire_within(&key("k2"), secs(20)).await.unwrap();
        let lost = held.lost();
        suspension.suspend(secs(60));
        // Nobody asks: it is noticed within a quarter of the margin all the same.
        assert!(tokio::time::timeout(MARGIN / 4 + millis(10), lost).await.is_ok());
    });
}

#[test]
fn case_l06_a_waiter_waits_for_the_holders_own_ttl() {
    paused(|| async {
        let lab = Lab::new().await;
        let w1 = Bench::new(&lab, options("w1").session_ttl(secs(30))).await;
        let w2 = Bench::new(&lab, options("w2").session_ttl(secs(5))).await;
        let held = w1.client.acquire(&key("k")).await.unwrap();
        let ear = Ear::on(&held);
        let granted_at = lab.clock.mono();
        w1.link().cut(Trouble::Swallow);
        w1.beat().cut(Trouble::Swallow);
        let second = w2.client.acquire_within(&key("k"), secs(60)).await.unwrap();
        assert!(
            lab.clock.mono() - granted_at >= secs(30),
            "{:?}",
            lab.clock.mono() - granted_at
        );
        assert_eq!(
            ear.heard(),
            [LostReason::DeadlineLapsed],
            "the first holder knew before"
        );
        assert!(second.token() > held.token());
        assert!(second.check_still_held().is_ok());
    });
}

#[test]
fn case_l11_failing_heartbeats_for_half_the_ttl_cost_nothing() {
    for trouble in [
        Trouble::Status(503),
        Trouble::Swallow,
        Trouble::Refuse,
        Trouble::Garbage,
    ] {
        paused(|| async move {
            let lab = Lab::new().await;
            let bench = Bench::new(&lab, options("w1")).await;
            let held = bench.client.acquire(&key("k")).await.unwrap();
            let ear = Ear::on(&held);
            bench.beat().cut(trouble);
            tokio::time::sleep(TTL / 2).await;
            bench.beat().heal();
            tokio::time::sleep(TTL * 2).await;
            assert!(ear.heard().is_empty(), "{trouble:?}");
            assert!(held.check_still_held().is_ok(), "{trouble:?}");
            if trouble != Trouble::Swallow {
                let calls = bench.beat().calls("heartbeat");
                let gaps: Vec<_> = calls
                    .windows(2)
                    .map(|pair| pair[1] - pair[0])
                    .filter(|gap| *gap < secs(2))
                    .collect();
                assert!(gaps.len() >= 4, "repeated well before the next regular one: {gaps:?}");
                assert!(gaps.iter().any(|gap| *gap != gaps[0]), "with jitter: {gaps:?}");
            }
        });
    }
}

#[test]
fn a_heartbeat_answered_with_anything_but_life_ends_in_lost_by_the_deadline() {
    for trouble in [
        Trouble::Status(404),
        Trouble::Status(500),
        Trouble::Garbage,
        Trouble::Swallow,
        Trouble::LoseAnswer,
    ] {
        paused(|| async move {
            let lab = Lab::new().await;
            let bench = Bench::new(&lab, options("w1")).await;
            let held = bench.client.acquire(&key("k")).await.unwrap();
            bench.beat().cut(trouble);
            let opened = lab.clock.mono();
            let lost = tokio::time::timeout(TTL, held.lost()).await.expect("by the deadline");
            assert_eq!(lost.reason, LostReason::DeadlineLapsed, "{trouble:?}");
            assert!(lab.clock.mono() - opened <= TTL - MARGIN + millis(20), "{trouble:?}");
        });
    }
}

#[test]
fn a_session_the_server_does_not_know_is_lost_at_once_and_another_one_is_opened() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let session = lab.session_of("w1").await;
        lab.ask(Method::DELETE, &format!("/v1/sessions/{session}"), &[], None)
            .await;
        assert_eq!(held.lost().await.reason, LostReason::SessionLost);
        let again = bench.client.acquire(&key("k")).await.unwrap();
        assert!(again.token() > held.token());
        assert_ne!(lab.session_of("w1").await, session);
    });
}

#[test]
fn case_l13_a_ttl_that_cannot_work_is_an_error_of_the_call() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        for ttl in [0, 1, 999, 1_000, 2_000] {
            let refused = bench.client.lock(&key("k")).ttl(millis(ttl)).acquire().await;
            assert!(
                matches!(refused, Err(LockError::Invalid { .. })),
                "{ttl} ms: {refused:?}"
            );
        }
        for ttl in [secs(24 * 3600 + 1), Duration::MAX] {
            assert!(matches!(
                bench.client.lock(&key("k")).ttl(ttl).acquire().await,
                Err(LockError::Invalid { .. })
            ));
        }
        // Within the SDK's bounds, beyond the server's: its refusal is passed on.
        let refused = bench.client.lock(&key("k")).ttl(secs(3600)).acquire().await;
        assert!(
            matches!(&refused, Err(LockError::Invalid { detail }) if detail.contains("ttl_ms")),
            "{refused:?}"
        );
        assert!(bench.link().calls("acquire").len() == 1, "only the last one was sent");
        assert_eq!(lab.show(&key("k")).await.token, None, "nothing was granted");
    });
}

#[test]
fn case_l18_whenever_the_caller_goes_away_the_key_comes_back() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1").session_ttl(secs(120))).await;
        let other = Bench::new(&lab, options("w2")).await;
        bench.link().trouble("acquire", Trouble::SlowRequest(millis(10)));
        bench.link().trouble("acquire", Trouble::SlowAnswer(millis(10)));
        // A call takes 12 ms; the caller goes after each of them, before, and after the end.
        for gone_after in 0..=15 {
            let key = key(&format!("k{gone_after}"));
            let gone = tokio::time::timeout(millis(gone_after), bench.client.acquire(&key)).await;
            drop(gone);
            let waited_from = lab.clock.mono();
            let held = other.client.acquire_within(&key, secs(30)).await.unwrap();
            let waited = lab.clock.mono() - waited_from;
            assert!(
                waited < secs(5),
                "gone after {gone_after} ms: the key was stuck for {waited:?}"
            );
            held.release().await.unwrap();
        }
        tokio::time::sleep(secs(60)).await;
        let state = bench.observe().await;
        assert_eq!(
            (&state["acquires"], &state["guards"], &state["releases"]),
            (&json!(0), &json!(0), &json!(0)),
            "{state}"
        );
    });
}

#[test]
fn a_waiter_that_goes_away_leaves_the_queue() {
    paused(|| async {
        let lab = Lab::new().await;
        let (w1, w2) = (
            Bench::new(&lab, options("w1")).await,
            Bench::new(&lab, options("w2")).await,
        );
        let held = w1.client.acquire(&key("k")).await.unwrap();
        assert!(
            tokio::time::timeout(secs(3), w2.client.acquire_within(&key("k"), secs(30)))
                .await
                .is_err()
        );
        tokio::time::sleep(millis(50)).await;
        assert_eq!(lab.show(&key("k")).await.waiters, 0);
        held.release().await.unwrap();
        tokio::time::sleep(secs(1)).await;
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Free);
    });
}

#[test]
fn case_l19_a_dropped_guard_gives_the_key_back_and_is_renewed_no_more() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let ear = Ear::on(&held);
        tokio::time::sleep(secs(12)).await;
        let renewed = bench.link().calls("renew").len();
        assert!(renewed >= 2);
        drop(held);
        tokio::time::sleep(millis(50)).await;
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Free);
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let panicked = std::panic::AssertUnwindSafe(async {
            let _held = held;
            panic!("the application's");
        });
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        assert!(panicked.catch_unwind().await.is_err());
        std::panic::set_hook(hook);
        tokio::time::sleep(millis(50)).await;
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Free);
        tokio::time::sleep(secs(30)).await;
        assert_eq!(bench.link().calls("renew").len(), renewed);
        assert!(ear.heard().is_empty());
    });
}

#[test]
fn case_l21_a_loss_does_not_mask_the_applications_own_result() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let result: Result<Result<u8, &str>, LockError> = bench
            .client
            .with_lock(&key("k"), |token, lock| {
                let lab = &lab;
                async move {
                    lab.revoke(&key("k"), token).await;
                    assert_eq!(lock.lost().await.reason, LostReason::Revoked);
                    Err("the application's own")
                }
            })
            .await;
        assert_eq!(result, Ok(Err("the application's own")));
        let kept = bench
            .client
            .with_lock(&key("k"), |token, lock| async move {
                lock.check_still_held().map(|checked| checked == token)
            })
            .await;
        assert_eq!(kept, Ok(Ok(true)));
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Free);
    });
}

#[test]
fn case_l22_a_lost_answer_is_found_again_under_the_same_request() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::start(&lab, options("w1"), 2, &lab.host(11)).await;
        bench.client.ready().await.unwrap();
        bench.links[0].trouble_times("acquire", Trouble::LoseAnswer, 1);
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let granted: Vec<_> = lab
            .history(&key("k"))
            .await
            .into_iter()
            .filter(|row| row.kind == "GRANTED")
            .collect();
        assert_eq!(granted.len(), 1, "{granted:?}");
        assert_eq!(granted[0].token, Some(held.token().get()));
        assert_eq!(
            bench.links[1].calls("acquire").len(),
            1,
            "the second attempt went to the other server"
        );
        // The deadline counts from the attempt that was answered, and what was left by then.
        assert!(
            held.remaining() <= TTL - MARGIN - secs(2) + millis(100),
            "{:?}",
            held.remaining()
        );
        let session = lab.session_of("w1").await;
        let (status, body) = lab
            .raw_acquire(&key("k"), json!({ "session_id": session, "request_id": "another" }))
            .await;
        assert_eq!(
            (status, &body["code"], &body["holder"]["self"]),
            (409, &json!("HELD_BY_OTHER"), &json!(true))
        );
    });
}

/// A lock server was killed with the answer to a release; by the next attempt, at another one, somebody else held the key.
/// What was asked for is done: the caller hears of no loss.
#[test]
fn a_release_whose_answer_was_lost_is_done_when_another_holds_the_key() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::start(&lab, options("w1"), 2, &lab.host(11)).await;
        bench.client.ready().await.unwrap();
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let ear = Ear::on(&held);
        bench.links[0].trouble_times("release", Trouble::LoseAnswer, 1);
        let other = lab.raw_session("other").await;
        let wait = json!({ "session_id": other, "wait_ms": 20_000 });
        let next = async { lab.raw_acquire(&key("k"), wait).await };
        let (released, (status, _)) = tokio::join!(held.release(), next);
        assert_eq!(status, 200, "the first attempt freed the key");
        released.unwrap();
        assert!(ear.heard().is_empty());
        // Without such an attempt before it, the same answer is a loss.
        let held = bench.client.acquire(&key("m")).await.unwrap();
        let session = lab.session_of("w1").await;
        assert_eq!(lab.raw_release(&key("m"), &session, held.token()).await.0, 200);
        assert_eq!(lab.raw_acquire(&key("m"), json!({ "session_id": other })).await.0, 200);
        match held.release().await {
            Err(LockError::Lost(lost)) => assert_eq!(lost.reason, LostReason::Superseded),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn case_d03_two_tasks_of_one_process_exclude_each_other() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let first = bench.client.acquire(&key("k")).await.unwrap();
        match bench.client.try_acquire(&key("k")).await {
            Err(LockError::HeldByOther(held)) => {
                assert!(held.is_self);
                assert_eq!((held.holder.token, held.holder.owner.as_str()), (first.token(), "w1"));
            }
            other => panic!("{other:?}"),
        }
        match bench.client.acquire(&key("k")).await {
            Err(LockError::ContentionExceeded { attempts: 5 }) => {}
            other => panic!("{other:?}"),
        }
        let k = key("k");
        let waiting = bench.client.acquire_within(&k, secs(20));
        let give = async {
            tokio::time::sleep(secs(3)).await;
            assert!(
                first.check_still_held().is_ok(),
                "the second task's attempts did not harm the first one's lock"
            );
            let token = first.token();
            first.release().await.unwrap();
            token
        };
        let (second, first_token) = tokio::join!(waiting, give);
        assert!(second.unwrap().token() > first_token);
    });
}

#[test]
fn case_d04_a_grant_after_a_long_wait_has_its_full_ttl() {
    paused(|| async {
        let lab = Lab::new().await;
        let w1 = Bench::new(&lab, options("w1")).await;
        let w2 = Bench::new(&lab, options("w2").session_ttl(secs(60)).grant_ttl(TTL)).await;
        let first = w1.client.acquire(&key("k")).await.unwrap();
        let k = key("k");
        let waiting = w2.client.acquire_within(&k, secs(30));
        let give = async {
            tokio::time::sleep(secs(20)).await;
            first.release().await.unwrap();
        };
        let (second, ()) = tokio::join!(waiting, give);
        let second = second.unwrap();
        assert!(
            second.remaining() > TTL - MARGIN - millis(100),
            "{:?}",
            second.remaining()
        );
        w2.link().cut(Trouble::Swallow);
        let granted = lab.clock.mono();
        second.lost().await;
        let kept = lab.clock.mono() - granted;
        assert!(
            kept > TTL - MARGIN - millis(100) && kept <= TTL - MARGIN,
            "its own TTL counts from the grant, not from the request: {kept:?}"
        );
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Held);
    });
}

#[test]
fn case_d05_heartbeats_alone_do_not_keep_a_grant() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        bench.link().trouble("renew", Trouble::Swallow);
        let lost = held.lost().await;
        assert_eq!(lost.reason, LostReason::DeadlineLapsed);
        assert_eq!(
            lab.show(&key("k")).await.state,
            KeyStatus::Held,
            "told before the server frees the key"
        );
        tokio::time::sleep(MARGIN + secs(1)).await;
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Free);
        assert_eq!(lab.sessions().await.len(), 1, "the session lives on");
        // Still owned by its guard: the client did not give it back behind its holder's back.
        assert!(bench.link().calls("release").is_empty());
    });
}

#[test]
fn a_lock_lost_to_a_deadline_is_not_released_under_its_holder() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1").safety_margin(secs(7))).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        bench.link().trouble("renew", Trouble::Swallow);
        held.lost().await;
        let beats = bench.beat().calls("heartbeat").len();
        tokio::time::sleep(secs(6)).await;
        assert!(
            bench.beat().calls("heartbeat").len() > beats,
            "the client has seen that the server still has it"
        );
        // Its holder may not have noticed yet.
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Held);
        drop(held);
        tokio::time::sleep(millis(50)).await;
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Free, "its holder has ended");
    });
}

#[test]
fn another_server_takes_over() {
    for trouble in [Trouble::Refuse, Trouble::Swallow, Trouble::Status(503)] {
        paused(|| async move {
            let lab = Lab::new().await;
            let bench = Bench::start(&lab, options("w1"), 2, &lab.host(5)).await;
            bench.links[0].cut(trouble);
            bench.beats[0].cut(trouble);
            bench.client.ready().await.unwrap();
            let held = bench.client.acquire(&key("k")).await.unwrap();
            let ear = Ear::on(&held);
            tokio::time::sleep(secs(60)).await;
            assert!(held.check_still_held().is_ok(), "{trouble:?}");
            // And back again, when the second one fails and the first one is well.
            bench.links[0].heal();
            bench.beats[0].heal();
            bench.links[1].cut(trouble);
            bench.beats[1].cut(trouble);
            tokio::time::sleep(secs(60)).await;
            assert!(held.check_still_held().is_ok(), "{trouble:?}");
            assert!(ear.heard().is_empty());
            held.release().await.unwrap();
        });
    }
}

#[test]
fn without_a_server_there_is_no_grant_and_later_there_is() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::start(&lab, options("w1"), 1, &lab.host(5)).await;
        bench.link().cut(Trouble::Refuse);
        bench.beat().cut(Trouble::Refuse);
        assert!(matches!(bench.client.ready().await, Err(LockError::Unavailable { .. })));
        assert!(matches!(
            bench.client.acquire(&key("k")).await,
            Err(LockError::Unavailable { .. })
        ));
        let k = key("k");
        let waiting = bench.client.acquire_within(&k, secs(30));
        let heal = async {
            tokio::time::sleep(secs(10)).await;
            bench.link().heal();
            bench.beat().heal();
        };
        let (held, ()) = tokio::join!(waiting, heal);
        assert!(held.unwrap().check_still_held().is_ok());
    });
}

/// What waited for the session went on in the trace of whoever opened it.
#[test]
fn acquires_that_waited_for_the_session_stay_in_their_own_traces() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::start(&lab, options("w1"), 1, &lab.host(5)).await;
        bench.link().trouble_times("open", Trouble::SlowAnswer(secs(1)), 1);
        let host = lab.host(6);
        let traces = [0; 2].map(|_| TraceContext::root(&host.random));
        let one = async |name: &str, trace| {
            let held = bench.client.lock(&key(name)).trace(trace).acquire().await.unwrap();
            held.release().await.unwrap();
        };
        tokio::join!(one("a", traces[0]), one("b", traces[1]));
        let mine = traces.map(|trace| trace.trace_id());
        assert_eq!(bench.link().traces("acquire"), mine);
        let mut released = bench.link().traces("release");
        released.sort_unstable();
        let mut expected = mine;
        expected.sort_unstable();
        assert_eq!(released, expected);
        assert!(!mine.contains(&bench.link().traces("open")[0]));
    });
}

#[test]
fn an_outage_longer_than_the_session_is_survived_by_the_client() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        bench.link().cut(Trouble::Refuse);
        bench.beat().cut(Trouble::Refuse);
        assert_eq!(held.lost().await.reason, LostReason::DeadlineLapsed);
        tokio::time::sleep(secs(60)).await;
        bench.link().heal();
        bench.beat().heal();
        let again = bench.client.acquire_within(&key("k"), secs(10)).await.unwrap();
        assert!(again.token() > held.token());
    });
}

#[test]
fn contention_is_retried_five_times_with_full_jitter_and_then_told() {
    paused(|| async {
        let lab = Lab::new().await;
        let (w1, w2) = (
            Bench::new(&lab, options("w1")).await,
            Bench::new(&lab, options("w2")).await,
        );
        let _held = w1.client.acquire(&key("k")).await.unwrap();
        let mut waits = std::collections::BTreeSet::new();
        for _ in 0..5 {
            let from = w2.link().calls("acquire").len();
            assert_eq!(
                w2.client.acquire(&key("k")).await.unwrap_err(),
                LockError::ContentionExceeded { attempts: 5 }
            );
            let calls = w2.link().calls("acquire")[from..].to_vec();
            assert_eq!(calls.len(), 5);
            for (n, pair) in calls.windows(2).enumerate() {
                let wait = pair[1] - pair[0];
                assert!(wait <= millis((50 << n) + 10), "wait {n} took {wait:?}");
                waits.insert(wait);
            }
        }
        assert!(waits.len() > 10, "{waits:?}");
        match w2.client.try_acquire(&key("k")).await {
            Err(LockError::HeldByOther(held)) => assert_eq!((held.holder.owner.as_str(), held.is_self), ("w1", false)),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn the_highest_token_ever_seen_is_sent_along() {
    paused(|| async {
        let lab = Lab::new().await;
        let (w1, w2) = (
            Bench::new(&lab, options("w1")).await,
            Bench::new(&lab, options("w2")).await,
        );
        for n in 0..10 {
            w1.client
                .acquire(&key(&format!("k{n}")))
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        let held = w1.client.acquire(&key("k")).await.unwrap();
        assert_eq!(w1.observe().await["witness"], json!(held.token().get()));
        // A refusal shows a token too.
        assert!(w2.client.try_acquire(&key("k")).await.is_err());
        assert_eq!(w2.observe().await["witness"], json!(held.token().get()));
    });
}

#[test]
fn a_panic_of_the_client_costs_its_locks_and_nothing_else() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let ear = Ear::on(&held);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        bench.link().trouble_times("inspect", Trouble::Panic, 1);
        assert!(matches!(
            bench.client.inspect(&key("k")).await,
            Err(LockError::Unavailable { .. })
        ));
        std::panic::set_hook(hook);
        assert_eq!(held.lost().await.reason, LostReason::SessionLost);
        assert_eq!(ear.heard(), [LostReason::SessionLost]);
        drop(held);
        let again = bench.client.acquire_within(&key("k"), secs(30)).await.unwrap();
        assert!(again.check_still_held().is_ok());
    });
}

#[test]
fn closing_ends_the_session_and_tells_the_holders() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let (other, ear) = (bench.client.clone(), Ear::on(&held));
        bench.client.clone().close().await.unwrap();
        assert_eq!(ear.heard(), [LostReason::SessionLost]);
        assert!(lab.sessions().await.is_empty());
        assert_eq!(lab.show(&key("k")).await.state, KeyStatus::Free);
        assert!(other.acquire(&key("k")).await.is_err());
        assert!(held.renew().await.is_err());
        assert!(matches!(held.release().await, Err(LockError::Lost(_))));
        assert!(!other.is_running());
    });
}

#[test]
fn the_session_ends_with_the_last_handle() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        let Bench { client, .. } = bench;
        drop(client);
        tokio::time::sleep(secs(60)).await;
        assert!(held.check_still_held().is_ok(), "a guard keeps its client alive");
        drop(held);
        tokio::time::sleep(millis(100)).await;
        assert!(lab.sessions().await.is_empty());
    });
}

#[test]
fn renewing_by_hand_moves_the_deadline() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1").session_ttl(secs(60)).grant_ttl(secs(15))).await;
        let held = bench.client.acquire(&key("k")).await.unwrap();
        tokio::time::sleep(secs(4)).await;
        assert!(held.remaining() <= secs(10) + millis(10));
        held.renew().await.unwrap();
        assert!(held.remaining() > secs(13), "{:?}", held.remaining());
        lab.revoke(&key("k"), held.token()).await;
        match held.renew().await {
            Err(LockError::Lost(lost)) => assert_eq!(lost.reason, LostReason::Revoked),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn one_leads_and_the_next_one_follows_under_a_higher_term() {
    paused(|| async {
        let lab = Lab::new().await;
        let (w1, w2) = (
            Bench::new(&lab, options("w1")).await,
            Bench::new(&lab, options("w2")).await,
        );
        let (e1, e2) = (
            LeaderElection::new(w1.client.clone(), key("leader")),
            LeaderElection::new(w2.client.clone(), key("leader")),
        );
        assert_eq!(e1.leader().await, Ok(None));
        let first = e1.campaign().await.unwrap();
        let seen = e2.leader().await.unwrap().unwrap();
        assert_eq!((seen.owner.as_str(), seen.token), ("w1", first.token()));
        let resign = async {
            tokio::time::sleep(secs(90)).await;
            first.release().await.unwrap();
        };
        let (second, ()) = tokio::join!(e2.campaign(), resign);
        let second = second.unwrap();
        assert_eq!(e1.leader().await.unwrap().unwrap().token, second.token());
        assert!(second.token() > seen.token);
    });
}

#[test]
fn a_leader_that_is_deposed_is_stopped_where_it_waits_and_told_why() {
    paused(|| async {
        let lab = Lab::new().await;
        let bench = Bench::new(&lab, options("w1")).await;
        let election = LeaderElection::new(bench.client.clone(), key("leader"));
        let led = election
            .lead(|term, _| {
                let lab = &lab;
                async move {
                    lab.revoke(&key("leader"), term).await;
                    std::future::pending::<()>().await;
                }
            })
            .await;
        let Ok(Term::Lost(lost)) = led else {
            panic!("{led:?}");
        };
        assert_eq!(lost.reason, LostReason::Revoked);
        // Its own answer counts when it ends by itself, and the leadership is given back.
        let led = election.lead(|term, lock| async move { lock.check_still_held() == Ok(term) });
        assert_eq!(led.await, Ok(Term::Done(true)));
        assert_eq!(lab.show(&key("leader")).await.state, KeyStatus::Free);
    });
}

/// The servers let nobody wait for longer than 3 s: the client learns it from them and waits for as long as it was told to.
#[test]
fn case_l37_the_servers_bound_of_a_wait_is_learnt_from_it() {
    paused(|| async {
        let k = key("k");
        let lab = Lab::with(&[("lock.acquire.wait-max", "3s")]).await;
        let holder = lab.raw_session("holder").await;
        let (_, grant) = lab
            .raw_acquire(&k, json!({ "session_id": holder, "ttl_ms": 300_000 }))
            .await;
        let token = grant["token"].to_string().parse().unwrap();
        let bench = Bench::new(&lab, options("w1")).await;
        let from = lab.clock.mono();
        // Refused only when its own budget is over.
        let refused = bench.client.acquire_within(&k, secs(20)).await.unwrap_err();
        assert!(matches!(refused, LockError::ContentionExceeded { .. }), "{refused}");
        let took = lab.clock.mono() - from;
        assert!(took > secs(18) && took < secs(22), "{took:?}");
        // And granted when the key is freed at last, before who came later.
        let (waits, later) = (bench.client.acquire_within(&k, secs(20)), async {
            tokio::time::sleep(secs(9)).await;
            let other = lab.raw_session("later").await;
            let ask = json!({ "session_id": other, "wait_ms": 3_000, "request_id": "later" });
            let waits = lab.raw_acquire(&k, ask);
            let frees = async {
                tokio::time::sleep(millis(1_500)).await;
                assert_eq!(lab.raw_release(&k, &holder, token).await.0, 200);
            };
            tokio::join!(waits, frees).0
        });
        let (held, (status, _)) = tokio::join!(waits, later);
        held.unwrap().check_still_held().unwrap();
        assert_eq!(status, 409, "who came later was granted before");
    });
}

/// A proxy cuts the connection every 5 s, and another one waits from 4 s on: the first one stays the first.
#[test]
fn case_l38_a_waiter_whose_connection_is_cut_every_five_seconds_is_first() {
    paused(|| async {
        let k = key("k");
        let lab = Lab::new().await;
        let holder = lab.raw_session("holder").await;
        let (_, grant) = lab
            .raw_acquire(&k, json!({ "session_id": holder, "ttl_ms": 300_000 }))
            .await;
        let token = grant["token"].to_string().parse().unwrap();
        // Two addresses: the place is at the server where it waited.
        let bench = Bench::start(&lab, options("b"), 2, &lab.host(11)).await;
        bench.client.ready().await.unwrap();
        for link in &bench.links {
            link.trouble("acquire", Trouble::CutAfter(secs(5)));
        }
        let later = lab.raw_session("c").await;
        let waits = async {
            let held = bench.client.acquire_within(&k, secs(120)).await.unwrap();
            assert_eq!(lab.show(&k).await.holder.unwrap().owner, "b");
            held.release().await.unwrap();
        };
        let others = async {
            tokio::time::sleep(secs(4)).await;
            let ask = json!({ "session_id": later, "wait_ms": 30_000, "request_id": "c" });
            let waits = lab.raw_acquire(&k, ask);
            let frees = async {
                // Just after the fifth cut.
                while bench.link().calls("acquire").len() < 5 {
                    tokio::time::sleep(millis(1)).await;
                }
                tokio::time::sleep(millis(5_003)).await;
                assert_eq!(lab.raw_release(&k, &holder, token).await.0, 200);
            };
            tokio::join!(waits, frees).0
        };
        let ((), (status, granted)) = tokio::join!(waits, others);
        assert_eq!(
            (status, &granted["token"]),
            (200, &json!(3)),
            "who came later was granted before"
        );
        assert_eq!(
            bench.links[1].calls("acquire").len(),
            0,
            "it left the server where its place was"
        );
    });
}

/// An outage at the start counts for the wait like any other: it ends neither the acquire nor the client.
#[test]
fn case_l39_an_outage_at_the_start_counts_for_the_wait() {
    paused(|| async {
        let k = key("k");
        let lab = Lab::new().await;
        let bench = Bench::start(&lab, options("w1"), 1, &lab.host(11)).await;
        bench.link().cut(Trouble::Refuse);
        let heals = async {
            tokio::time::sleep(secs(9)).await;
            bench.link().heal();
        };
        let (held, ()) = tokio::join!(bench.client.acquire_within(&k, secs(20)), heals);
        held.unwrap().release().await.unwrap();
        bench.client.close().await.unwrap();
        // An outage that lasts ends it when the wait is over, with what stood in the way.
        let bench = Bench::start(&lab, options("w2"), 1, &lab.host(12)).await;
        bench.link().cut(Trouble::Refuse);
        let from = lab.clock.mono();
        let error = bench.client.acquire_within(&k, secs(20)).await.unwrap_err();
        assert!(error.to_string().contains("connection refused"), "{error}");
        assert!(lab.clock.mono() - from >= secs(19));
    });
}

/// Closed while its session was being opened: the session ends as soon as its id is known, and not by its TTL.
#[test]
fn case_l33_a_client_that_is_closed_while_it_opens_its_session_leaves_none() {
    paused(|| async {
        let lab = Lab::new().await;
        for close in [true, false] {
            let bench = Bench::start(&lab, options("w1"), 1, &lab.host(11)).await;
            bench.link().trouble("open", Trouble::SlowAnswer(millis(500)));
            tokio::time::sleep(millis(100)).await;
            assert_eq!(lab.sessions().await.len(), 1, "it is open at the server");
            if close {
                bench.client.close().await.unwrap();
            } else {
                drop(bench.client);
                tokio::time::sleep(secs(1)).await;
            }
            assert!(lab.sessions().await.is_empty());
        }
    });
}
