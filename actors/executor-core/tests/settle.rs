//! A payout from its lock to its last step, whatever the other components answer.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use executor_core::{History, Line, Roles};
use http_contract::Code;
use http_contract::payment::PayoutState;
use http_contract::rail::Outcome;
use std::time::Duration;
use support::{Bench, Fault, SECOND, Shared, config, paused};

fn world(state: PayoutState) -> Shared {
    let world = Shared::default();
    world.with(|w| w.payout("P", "A", state));
    world
}

async fn one_worker(world: &Shared) -> Bench {
    Bench::start(world, config(Roles::Pay, 1)).await
}

/// Settles P, which must come to `state`, and answers the calls that were made for it.
async fn calls_until(world: &Shared, state: PayoutState) -> Vec<String> {
    let bench = one_worker(world).await;
    bench.until_settled("P", state).await;
    world.with(|w| w.seen())
}

#[test]
fn a_payout_goes_from_lock_to_release_in_order_under_one_token() {
    paused(async {
        let calls = calls_until(&world(PayoutState::Pending), PayoutState::Posted).await;
        assert_eq!(
            calls,
            [
                "acquire payout:A",
                "reread P",
                "claim P 1",
                "submit P 1",
                "post P 1",
                "release 1"
            ]
        );
    });
}

#[test]
fn recovery_follows_the_record_and_submits_only_where_there_is_none() {
    let cases = [
        (Some(Some(Outcome::Acked)), PayoutState::Posted, "post P 1"),
        (Some(Some(Outcome::Declined)), PayoutState::Failed, "fail P 1"),
        (Some(Some(Outcome::NotReceived)), PayoutState::Failed, "fail P 1"),
        (Some(Some(Outcome::NotSent)), PayoutState::Failed, "fail P 1"),
        (
            Some(Some(Outcome::Timeout)),
            PayoutState::RailAmbiguous,
            "ambiguous P 1",
        ),
        (Some(None), PayoutState::RailAmbiguous, "ambiguous P 1"),
        (None, PayoutState::Posted, "submit P 1"),
    ];
    for (submission, state, step) in cases {
        paused(async {
            let world = world(PayoutState::Claimed);
            if let Some(outcome) = submission {
                world.with(|w| w.submission("P", outcome));
            }
            let calls = calls_until(&world, state).await;
            let mut expected = vec!["acquire payout:A", "reread P", "fence P 1", "claim P 1", step];
            if submission.is_none() {
                expected.push("post P 1");
            }
            expected.push("release 1");
            assert_eq!(calls, expected, "{submission:?}");
        });
    }
}

#[test]
fn what_somebody_else_settled_meanwhile_is_left_alone() {
    for state in [PayoutState::Posted, PayoutState::Failed, PayoutState::RailAmbiguous] {
        paused(async {
            let world = world(PayoutState::Pending);
            world.with(|w| {
                let settle = move |w: &mut support::World| w.payouts.get_mut("P").unwrap().state = state;
                w.fault("reread", Fault::First(Box::new(settle)));
            });
            let calls = calls_until(&world, state).await;
            assert_eq!(calls, ["acquire payout:A", "reread P", "release 1"]);
        });
    }
}

#[test]
fn an_acknowledgement_that_was_lost_is_read_back_and_never_sent_again() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| w.fault("submit", Fault::DoneButLost));
        let calls = calls_until(&world, PayoutState::Posted).await;
        assert_eq!(calls[3..], ["submit P 1", "readback P", "post P 1", "release 1"]);
    });
}

#[test]
fn a_submission_without_a_record_is_left_claimed_and_the_next_holder_decides() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| w.fault("submit", Fault::NotSent));
        let bench = one_worker(&world).await;
        bench
            .until("the first worker puts it down", |w| w.tokens == 1 && w.held.is_empty())
            .await;
        assert_eq!(world.with(|w| w.state("P")), PayoutState::Claimed);
        world.with(|w| assert_eq!(w.seen()[3..], ["submit P 1", "readback P", "release 1"]));
        bench.until_settled("P", PayoutState::Posted).await;
        // Its own grant and token, the fence first.
        let expected = [
            "acquire payout:A",
            "reread P",
            "fence P 2",
            "claim P 2",
            "submit P 2",
            "post P 2",
            "release 2",
        ];
        assert_eq!(world.with(|w| w.seen()), expected);
        assert_eq!((bench.ended("left"), bench.ended("posted")), (1, 1));
    });
}

#[test]
fn an_intent_without_an_outcome_is_read_back_until_the_read_time_out_and_then_ambiguous() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| {
            w.fault("submit", Fault::Refuse(Code::SubmissionInFlight));
            w.submission("P", None);
        });
        let bench = one_worker(&world).await;
        let began = bench.kit.clock().mono();
        bench.until_settled("P", PayoutState::RailAmbiguous).await;
        let took = bench.kit.clock().mono() - began;
        assert!((8 * SECOND..10 * SECOND).contains(&took), "{took:?}");
        let calls = world.with(|w| w.seen());
        assert_eq!(calls.iter().filter(|call| call.starts_with("submit")).count(), 1);
        assert_eq!(calls[calls.len() - 2..], ["ambiguous P 1", "release 1"]);
        // It rests with the reconciler, which is not here: nobody touches it again.
        tokio::time::sleep(100 * SECOND).await;
        assert!(world.with(|w| w.seen()).is_empty());
    });
}

#[test]
fn an_outcome_that_arrives_while_it_is_read_back_settles_it() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| {
            w.fault("submit", Fault::Refuse(Code::SubmissionInFlight));
            w.submission("P", None);
        });
        let bench = one_worker(&world).await;
        bench
            .until("it is read back", |w| w.calls.iter().any(|call| call == "readback P"))
            .await;
        world.with(|w| w.submission("P", Some(Outcome::Declined)));
        bench.until_settled("P", PayoutState::Failed).await;
    });
}

#[test]
fn an_ambiguous_answer_is_no_second_submit_and_a_better_record_is_followed() {
    paused(async {
        let first = world(PayoutState::Pending);
        first.with(|w| w.fault("submit", Fault::Refuse(Code::RailAmbiguous)));
        let calls = calls_until(&first, PayoutState::RailAmbiguous).await;
        assert_eq!(calls[3..], ["submit P 1", "ambiguous P 1", "release 1"]);
    });
    paused(async {
        // A late ack was recorded before P7 arrived: it is refused, and the record says why.
        let second = world(PayoutState::Pending);
        second.with(|w| {
            w.fault("submit", Fault::Refuse(Code::RailAmbiguous));
            w.fault("ambiguous", Fault::Refuse(Code::OutcomeEvidenceMissing));
            w.submission("P", Some(Outcome::Acked));
        });
        let calls = calls_until(&second, PayoutState::Posted).await;
        assert_eq!(
            calls[3..],
            ["submit P 1", "ambiguous P 1", "readback P", "post P 1", "release 1"]
        );
    });
}

#[test]
fn whoever_is_fenced_out_does_nothing_more_under_that_token() {
    for verb in ["claim", "submit", "post"] {
        paused(async {
            let world = world(PayoutState::Pending);
            world.with(|w| {
                w.fault(verb, Fault::Refuse(Code::FencedOut));
                // The record of the newer holder is there to be followed; it must not be.
                w.submission("P", Some(Outcome::Acked));
            });
            let bench = one_worker(&world).await;
            bench
                .until("it is put down", |w| w.tokens == 1 && w.held.is_empty())
                .await;
            let calls = world.with(|w| w.seen());
            assert_eq!(
                calls[calls.len() - 2..],
                [format!("{verb} P 1"), "release 1".to_owned()]
            );
        });
    }
}

#[test]
fn the_last_step_is_asked_again_as_a_replay_and_not_for_ever() {
    paused(async {
        let lost = world(PayoutState::Pending);
        lost.with(|w| w.fault("post", Fault::DoneButLost));
        let bench = one_worker(&lost).await;
        bench
            .until("a second post", |w| {
                w.calls.iter().filter(|call| *call == "post P 1").count() == 2
            })
            .await;
        bench.until_settled("P", PayoutState::Posted).await;
        assert_eq!(bench.ended("posted"), 1);
    });
    paused(async {
        let down = world(PayoutState::Pending);
        down.with(|w| (0..4).for_each(|_| w.fault("post", Fault::Refuse(Code::BackendUnavailable))));
        let bench = one_worker(&down).await;
        bench
            .until("it is put down", |w| w.tokens == 1 && w.held.is_empty())
            .await;
        let posts = down
            .with(|w| w.seen())
            .iter()
            .filter(|call| call.starts_with("post"))
            .count();
        assert_eq!(posts, 4);
        // The next holder reads the record and posts without a submit.
        bench.until_settled("P", PayoutState::Posted).await;
        assert!(!down.with(|w| w.seen()).iter().any(|call| call.starts_with("submit")));
    });
}

#[test]
fn case_d14_a_submission_that_is_refused_for_ever_is_forbidden_and_failed() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| (0..2).for_each(|_| w.fault("submit", Fault::Refuse(Code::SubmissionMismatch))));
        let bench = one_worker(&world).await;
        bench
            .until("the first leaves it", |w| w.tokens == 1 && w.held.is_empty())
            .await;
        assert_eq!(world.with(|w| w.state("P")), PayoutState::Claimed);
        bench.until_settled("P", PayoutState::Failed).await;
        let calls = world.with(|w| w.seen());
        assert_eq!(
            calls[calls.len() - 5..],
            ["submit P 2", "readback P", "forbid P 2", "fail P 2", "release 2"]
        );
    });
}

#[test]
fn case_d13_after_a_restore_the_rail_is_asked_before_anything_is_sent_again() {
    paused(async {
        let world = world(PayoutState::Claimed);
        world.with(|w| {
            w.fault("submit", Fault::Refuse(Code::SubmissionsInDoubt));
            w.verdicts.push_back((http_contract::rail::Verdict::Executed, 1));
        });
        let bench = one_worker(&world).await;
        bench.until_settled("P", PayoutState::Posted).await;
        let calls = world.with(|w| w.seen());
        assert_eq!(calls.iter().filter(|call| call.starts_with("submit")).count(), 1);
        assert!(calls.contains(&"lookup P".to_owned()) && calls.contains(&"post P 2".to_owned()));
    });
}

#[test]
fn a_lock_that_is_lost_stops_the_next_side_effect() {
    for (verb, next) in [("reread", "claim"), ("claim", "submit"), ("submit", "post")] {
        paused(async {
            let world = world(PayoutState::Pending);
            // The grant goes to somebody else while the call is under way.
            let lose = |w: &mut support::World| {
                w.held.clear();
                w.held_elsewhere.insert("payout:A".into());
            };
            world.with(|w| w.fault(verb, Fault::First(Box::new(lose))));
            let bench = one_worker(&world).await;
            bench.until("it is put down", |_| bench.ended("lock_lost") == 1).await;
            let calls = world.with(|w| w.seen());
            assert!(!calls.iter().any(|call| call.starts_with(next)), "{calls:?}");
        });
    }
}

#[cfg(feature = "lab")]
#[test]
fn the_negative_control_goes_on_without_its_lock_but_presents_its_token() {
    paused(async {
        let world = world(PayoutState::Pending);
        let lose = |w: &mut support::World| w.held.clear();
        world.with(|w| w.fault("claim", Fault::First(Box::new(lose))));
        let mut config = config(Roles::Pay, 1);
        config.ignore_lock_lost = true;
        let bench = Bench::start(&world, config).await;
        bench.until_settled("P", PayoutState::Posted).await;
        let calls = world.with(|w| w.seen());
        assert!(calls.contains(&"submit P 1".to_owned()) && calls.contains(&"post P 1".to_owned()));
    });
}

#[test]
fn without_a_grant_nothing_is_touched() {
    paused(async {
        let held = world(PayoutState::Pending);
        held.with(|w| assert!(w.held_elsewhere.insert("payout:A".into())));
        let bench = one_worker(&held).await;
        bench
            .until("it gave up three times", |_| bench.ended("contended") >= 3)
            .await;
        assert_eq!(held.with(|w| w.seen()), Vec::<String>::new());
        // Re-queued untouched: once the key is free it is paid.
        held.with(|w| w.held_elsewhere.clear());
        bench.until_settled("P", PayoutState::Posted).await;
    });
    paused(async {
        let down = world(PayoutState::Pending);
        down.with(|w| w.lock_server_down = true);
        let bench = one_worker(&down).await;
        tokio::time::sleep(60 * SECOND).await;
        assert_eq!(down.with(|w| w.seen()), Vec::<String>::new());
        // UC-08: it comes back.
        down.with(|w| w.lock_server_down = false);
        bench.until_settled("P", PayoutState::Posted).await;
    });
}

#[test]
fn a_payout_without_funds_rests_and_keeps_nobody_from_their_turn() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| {
            w.fault("claim", Fault::Refuse(Code::InsufficientFunds));
            w.payout("Q", "B", PayoutState::Pending);
        });
        let bench = one_worker(&world).await;
        bench
            .until("one rests, the other is paid", |_| {
                bench.ended("posted") == 1 && bench.ended("unfunded") == 1
            })
            .await;
        let resting = if world.with(|w| w.state("P")) == PayoutState::Pending {
            "P"
        } else {
            "Q"
        };
        assert_eq!(world.with(|w| w.state(resting)), PayoutState::Pending);
        // After its rest it is tried again.
        bench.until_settled(resting, PayoutState::Posted).await;
    });
}

#[test]
fn a_worker_that_panics_is_restarted_and_the_payout_recovered_under_a_new_grant() {
    for verb in ["reread", "claim", "submit", "post"] {
        paused(async {
            let world = world(PayoutState::Pending);
            world.with(|w| w.fault(verb, Fault::Panic));
            let bench = one_worker(&world).await;
            bench.until_settled("P", PayoutState::Posted).await;
            let calls = world.with(|w| w.seen());
            let executed = calls.iter().filter(|call| call.starts_with("submit")).count();
            // The planted panic comes before the call is carried out, so a second submit is the first that is.
            assert_eq!(executed, if verb == "submit" { 2 } else { 1 }, "{calls:?}");
            assert!(
                calls.contains(&"release 1".to_owned()) && calls.contains(&"post P 2".to_owned()),
                "{calls:?}"
            );
        });
    }
}

#[test]
fn a_worker_that_is_paused_by_its_path_stands_still_between_two_steps_and_finds_its_lock_lost() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| w.fault("claim", Fault::Slow(SECOND)));
        let bench = one_worker(&world).await;
        bench
            .until("it claims", |w| w.calls.iter().any(|call| call.starts_with("claim")))
            .await;
        bench.kit.pause("payout-executor/worker-1", 60 * SECOND).unwrap();
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(world.with(|w| w.seen()).last().unwrap(), "claim P 1");
        world.with(|w| {
            w.held.clear();
            w.held_elsewhere.insert("payout:A".into());
        });
        tokio::time::sleep(20 * SECOND).await;
        bench.kit.resume("payout-executor/worker-1").unwrap();
        bench.until("it is put down", |_| bench.ended("lock_lost") == 1).await;
        assert!(world.with(|w| w.seen()).iter().all(|call| !call.starts_with("submit")));
    });
}

#[test]
fn draining_finishes_what_is_in_hand_and_takes_no_more() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| {
            w.payout("Q", "A", PayoutState::Pending);
            w.fault("submit", Fault::Slow(3 * SECOND));
        });
        let bench = one_worker(&world).await;
        bench
            .until("it submits", |w| w.calls.iter().any(|call| call.starts_with("submit")))
            .await;
        assert!(bench.executor.drain(10 * SECOND).await);
        world.with(|w| {
            assert_eq!(
                (w.state("P"), w.state("Q")),
                (PayoutState::Posted, PayoutState::Pending)
            );
            assert!(w.held.is_empty());
        });
        let lists = world.with(|w| w.lists);
        tokio::time::sleep(60 * SECOND).await;
        assert_eq!(world.with(|w| w.state("Q")), PayoutState::Pending);
        assert_eq!(world.with(|w| w.lists), lists, "it polls for no more");
    });
}

#[test]
fn draining_does_not_wait_beyond_its_bound() {
    paused(async {
        let world = world(PayoutState::Pending);
        world.with(|w| w.fault("submit", Fault::Slow(60 * SECOND)));
        let bench = one_worker(&world).await;
        bench
            .until("it submits", |w| w.calls.iter().any(|call| call.starts_with("submit")))
            .await;
        let began = bench.kit.clock().mono();
        assert!(!bench.executor.drain(5 * SECOND).await);
        assert_eq!(bench.kit.clock().mono() - began, 5 * SECOND);
    });
}

#[test]
fn many_workers_settle_all_with_one_grant_each_and_never_two_of_one_account_at_once() {
    paused(async {
        let world = Shared::default();
        world.with(|w| {
            for n in 0..60 {
                w.payout(&format!("P{n:02}"), &format!("A{}", n % 5), PayoutState::Pending);
            }
            w.payout("C", "A0", PayoutState::Claimed);
        });
        let mut config = config(Roles::Pay, 4);
        config.poll_batch = 16;
        let bench = Bench::start(&world, config).await;
        bench
            .until("all are posted", |w| {
                w.payouts.values().all(|p| p.state == PayoutState::Posted)
            })
            .await;
        bench.until("all are released", |w| w.held.is_empty()).await;
        let calls = world.with(|w| w.seen());
        let count = |verb: &str| calls.iter().filter(|call| call.starts_with(verb)).count();
        assert_eq!(
            (count("acquire"), count("release"), count("submit"), count("post")),
            (61, 61, 61, 61)
        );
        assert_eq!(
            bench.ended("contended"),
            0,
            "workers of one process do not contend with each other"
        );
        let claimed = calls.iter().position(|call| call.starts_with("claim C ")).unwrap();
        let first_post = calls.iter().position(|call| call.starts_with("post")).unwrap();
        assert!(claimed < first_post, "CLAIMED comes before PENDING");
        let mut tokens: Vec<_> = calls
            .iter()
            .filter(|c| c.starts_with("claim"))
            .map(|c| c.rsplit(' ').next().unwrap())
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 61, "one grant settles one payout");
    });
}

#[test]
fn the_history_holds_every_call_with_its_token() {
    paused(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        let world = world(PayoutState::Pending);
        world.with(|w| w.fault("submit", Fault::DoneButLost));
        let clock = host_kit::Clock::tokio();
        let history = History::append(&path, "W1", &clock).unwrap();
        let bench = Bench::start_with(&world, config(Roles::Pay, 1), history).await;
        bench.until_settled("P", PayoutState::Posted).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Line> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let seen: Vec<_> = lines
            .iter()
            .filter(|line| line.event != "invoke")
            .map(|line| (line.verb.as_str(), line.event.as_str(), line.token))
            .collect();
        assert_eq!(
            seen,
            [
                ("acquire", "ok", Some(1)),
                ("reread", "ok", None),
                ("claim", "ok", Some(1)),
                ("submit", "unknown", Some(1)),
                ("readback", "ok", None),
                ("post", "ok", Some(1)),
                ("release", "ok", Some(1)),
            ]
        );
        assert!(
            lines
                .iter()
                .all(|line| line.client == "W1" && line.payout.as_deref() == Some("P"))
        );
        assert_eq!(lines[0].key.as_deref(), Some("payout:A"));
    });
}

#[test]
fn the_list_of_fault_points_is_that_of_the_source() {
    let source = concat!(include_str!("../src/flow.rs"), include_str!("../src/reconciler.rs"));
    let mut found: Vec<_> = source
        .split("fault_point!(")
        .skip(1)
        .filter_map(|rest| rest.split('"').nth(1))
        .collect();
    found.sort_unstable();
    let mut listed = executor_core::FAULT_POINTS.to_vec();
    listed.sort_unstable();
    assert_eq!(found, listed);
}

/// In this process a crash is a panic of the worker; the harness kills whole processes at the same points.
#[cfg(feature = "lab")]
#[test]
fn case_p05_a_crash_at_each_fault_point_settles_the_payout_with_one_submission_at_most() {
    for point in executor_core::FAULT_POINTS {
        paused(async {
            let world = Shared::default();
            let (state, submits) = match *point {
                "executor.before_fail" | "executor.after_fail" => {
                    world.with(|w| w.payout("P", "A", PayoutState::Claimed));
                    world.with(|w| w.submission("P", Some(Outcome::Declined)));
                    (PayoutState::Failed, 0)
                }
                "executor.before_ambiguous" | "executor.after_ambiguous" => {
                    world.with(|w| w.payout("P", "A", PayoutState::Claimed));
                    world.with(|w| w.submission("P", Some(Outcome::Timeout)));
                    (PayoutState::RailAmbiguous, 0)
                }
                "executor.before_lookup"
                | "executor.after_lookup"
                | "executor.before_resolve"
                | "executor.after_resolve" => {
                    world.with(|w| w.payout("P", "A", PayoutState::RailAmbiguous));
                    world.with(|w| w.verdicts.extend([(http_contract::rail::Verdict::Executed, 1); 2]));
                    (PayoutState::Posted, 0)
                }
                "executor.before_fence" | "executor.after_fence" => {
                    world.with(|w| w.payout("P", "A", PayoutState::Claimed));
                    (PayoutState::Posted, 1)
                }
                _ => {
                    world.with(|w| w.payout("P", "A", PayoutState::Pending));
                    (PayoutState::Posted, 1)
                }
            };
            let mut host = host_kit::Host::simulated(11);
            host.faults = host_kit::Faults::parse(&format!("{point}=panic")).unwrap();
            let roles = if state == PayoutState::RailAmbiguous {
                Roles::Pay
            } else {
                Roles::Both
            };
            let bench = Bench::start_on(&host, &world, config(roles, 1), History::off()).await;
            bench.until_settled("P", state).await;
            // What crashed after its last step finds nothing more to do.
            tokio::time::sleep(100 * SECOND).await;
            assert!(host.faults.reached()[point] >= 1, "{point} was not reached");
            let calls = world.with(|w| w.seen());
            let submitted = calls.iter().filter(|call| call.starts_with("submit")).count();
            assert_eq!(
                (world.with(|w| w.state("P")), submitted),
                (state, submits),
                "{point}: {calls:?}"
            );
            assert!(world.with(|w| w.held.is_empty()), "{point}: its lock is given back");
            let restarts: u64 = bench.kit.actors().await.iter().map(|actor| actor.restarts).sum();
            assert_eq!(restarts, 1, "{point}");
        });
    }
}

/// 5,000 payouts of one account wait, and behind them one of another: it has its turn in the first round, as with none of
/// them, whether the others have no money, no lock, or a worker that is slow with them.
#[test]
fn case_p22_an_account_has_its_turn_however_many_payouts_of_another_wait() {
    for (what, workers) in [("unfunded", 1), ("locked", 1), ("slow", 2)] {
        paused(async {
            let world = Shared::default();
            world.with(|w| {
                for n in 0..5_000 {
                    w.payout(&format!("A-{n:04}"), "A", PayoutState::Pending);
                }
                w.payout("B", "B", PayoutState::Pending);
                match what {
                    "unfunded" => drop(w.unfunded.insert("A".to_owned())),
                    "locked" => drop(w.held_elsewhere.insert("payout:A".to_owned())),
                    _ => w.fault("claim", Fault::Slow(Duration::from_secs(3_000))),
                }
            });
            let bench = Bench::start(&world, config(Roles::Pay, workers)).await;
            bench.until(what, |w| w.state("B") == PayoutState::Posted).await;
            let tried = bench.ended("unfunded") + bench.ended("contended");
            assert!(tried <= 2, "{what}: {tried} of the other account were tried before");
        });
    }
}

/// A payout whose worker panics each time is passed over for a while; the others of its account and of any other are paid.
#[test]
fn case_p22_a_payout_that_always_fails_in_an_unforeseen_way_keeps_nobody_from_their_turn() {
    paused(async {
        let world = Shared::default();
        world.with(|w| {
            w.payout("A-0", "A", PayoutState::Pending);
            w.payout("A-1", "A", PayoutState::Pending);
            w.payout("B-0", "B", PayoutState::Pending);
            w.fault("reread", Fault::Panic);
        });
        let bench = one_worker(&world).await;
        bench
            .until("two are paid", |w| {
                w.payouts
                    .values()
                    .filter(|payout| payout.state == PayoutState::Posted)
                    .count()
                    == 2
            })
            .await;
        bench
            .until("and the third, once it does not fail any more", |w| {
                w.payouts.values().all(|payout| payout.state == PayoutState::Posted)
            })
            .await;
    });
}
