//! Processes that are killed, stopped and resumed at each step of a submission.

#![cfg(feature = "lab")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking, and a thread reads a child's output"
)]

mod support;

use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::Duration;
use support::process::Process;
use support::{BOUND, HORIZON_MS, await_verdict, with_world};
use tokio::io::AsyncReadExt;

/// Not a test: the proxy as a process of its own, when this binary is started again as one.
#[test]
fn child() {
    support::process::child();
}

/// Killed at each step: never sent twice, and what was sent can be found.
#[test]
fn killed_at_each_step_a_submission_is_never_sent_twice() {
    with_world(async |world| {
        let survivor = world.proxy().await;
        for (point, sent) in [
            ("before_intent", 0),
            ("after_intent", 0),
            ("before_forwarded_at", 0),
            ("after_forwarded_at", 0),
            ("before_send", 0),
            ("after_send", 1),
            ("before_outcome", 1),
            ("after_outcome", 1),
        ] {
            let (payout, account) = (point.replace('_', "-"), format!("a-{point}"));
            world.payments().claimed(&payout, &account, 7);
            let process = Process::start(&world, &format!("rail_proxy.{point}=kill"), &[]).await;
            let _caller = process.begin_submit(&payout, &account, 7).await;
            process.await_state('Z').await;
            assert_eq!(world.rail.bodies_read(&payout).await, sent, "{point}");
            drop(process);

            // Another process, the same request: a first submission only where no intent was committed.
            let again = survivor.submit(&payout, &account, 7).await;
            let (status, code, outcome) = match point {
                "before_intent" => (200, "", "ACKED"),
                "after_outcome" => (200, "", "ACKED"),
                _ => (409, "SUBMISSION_IN_FLIGHT", ""),
            };
            assert_eq!(
                (again.status, again.code(), again.outcome()),
                (status, code, outcome),
                "{point}: {again:?}"
            );
            assert_eq!(again.replayed, point != "before_intent", "{point}");
            // Nor under a new token.
            world.payments().set(&payout, "CLAIMED", 8);
            assert_eq!(
                survivor.submit(&payout, &account, 8).await.code(),
                "ALREADY_SUBMITTED",
                "{point}"
            );
            let total = if point == "before_intent" { 1 } else { sent };
            assert_eq!(world.rail.bodies_read(&payout).await, total, "{point}");

            // What can be known is found; what left and cannot be found stays for a human.
            match point {
                "after_intent" | "before_forwarded_at" => {
                    await_verdict(&survivor, &payout, "NOT_RECEIVED").await;
                }
                "after_forwarded_at" | "before_send" => {
                    tokio::time::sleep(Duration::from_millis(HORIZON_MS + 50)).await;
                    for _ in 0..3 {
                        assert_eq!(
                            survivor.look_up(&payout).await.body["verdict"],
                            "INCONCLUSIVE",
                            "{point}"
                        );
                    }
                }
                _ => assert_eq!(survivor.look_up(&payout).await.body["verdict"], "EXECUTED", "{point}"),
            }
            assert_eq!(world.rail.bodies_read(&payout).await, total, "{point}");
        }
        assert_eq!(survivor.metric("rail_duplicate_attempted_total").await, 0.0);
    });
}

/// What was answered is on disk: killed right after its answers, a proxy has lost none of them.
#[test]
fn an_outcome_that_was_answered_survives_a_kill() {
    with_world(async |world| {
        let mut answered = Vec::new();
        for round in 0..3 {
            let process = Process::start(&world, "", &[]).await;
            for n in 0..10_u64 {
                let (payout, account) = (format!("p{round}-{n}"), format!("a{round}-{n}"));
                world.payments().claimed(&payout, &account, 7);
                let answer = process.proxy.submit(&payout, &account, 7).await;
                assert_eq!(answer.outcome(), "ACKED");
                answered.push((payout, answer.body["rail_reference"].clone()));
            }
            process.signal(Signal::SIGKILL);
            process.await_state('Z').await;
        }
        let survivor = world.proxy().await;
        for (payout, reference) in answered {
            let row = survivor.submission(&payout).await;
            assert_eq!(
                (row.outcome(), &row.body["rail_reference"]),
                ("ACKED", &reference),
                "{payout}"
            );
            assert_eq!(world.rail.bodies_read(&payout).await, 1);
        }
    });
}

/// Proxy 1 commits the intent and is stopped before sending; two lookups through proxy 2 conclude; proxy 1 resumes.
#[test]
fn case_d01_a_stopped_proxy_does_not_send_when_it_resumes() {
    with_world(async |world| {
        let second = world.proxy().await;
        for point in ["after_intent", "before_forwarded_at"] {
            let (payout, account) = (point.replace('_', "-"), format!("a-{point}"));
            world.payments().claimed(&payout, &account, 7);
            let first = Process::start(&world, &format!("rail_proxy.{point}=stop"), &[]).await;
            let mut caller = first.begin_submit(&payout, &account, 7).await;
            first.await_state('T').await;
            // The worker reads an intent without outcome and sets the payout ambiguous.
            let row = second.submission(&payout).await;
            assert_eq!(
                (row.status, &row.body["outcome"], &row.body["forwarded_at"]),
                (200, &Value::Null, &Value::Null)
            );
            world.payments().set(&payout, "RAIL_AMBIGUOUS", 7);
            await_verdict(&second, &payout, "NOT_RECEIVED").await;
            let lookups = world.count(&format!(
                "SELECT COUNT(*) FROM rail_lookup WHERE payout_id = '{payout}' AND saw_nothing"
            ));
            assert_eq!(lookups, 2, "{point}: one silence is not enough");
            world.payments().set(&payout, "FAILED", 7);

            first.signal(Signal::SIGCONT);
            let mut answer = String::new();
            tokio::time::timeout(BOUND, caller.read_to_string(&mut answer))
                .await
                .unwrap()
                .unwrap();
            println!("{point}: {}", answer.lines().next().unwrap());
            assert!(answer.contains("NOT_RECEIVED"), "{point}: {answer}");
            assert_eq!(
                world.rail.bodies_read(&payout).await,
                0,
                "{point}: it was sent after all"
            );
            assert_eq!(second.submission(&payout).await.outcome(), "NOT_RECEIVED");
        }
    });
}

/// A proxy that is stopped while it waits for the rail keeps no other from its work, and settles when it resumes.
#[test]
fn a_stopped_proxy_stops_nobody_else() {
    with_world(async |world| {
        let second = world.proxy().await;
        let first = Process::start(&world, "rail_proxy.before_send=stop", &[]).await;
        world.payments().claimed("p1", "a1", 7).claimed("p2", "a2", 7);
        let _caller = first.begin_submit("p1", "a1", 7).await;
        first.await_state('T').await;
        assert_eq!(second.submit("p2", "a2", 7).await.outcome(), "ACKED");
        // It has left for the rail as far as anybody can know: silence proves nothing.
        tokio::time::sleep(Duration::from_millis(HORIZON_MS + 50)).await;
        for _ in 0..3 {
            assert_eq!(second.look_up("p1").await.body["verdict"], "INCONCLUSIVE");
        }
        first.signal(Signal::SIGCONT);
        second.await_outcome("p1", "ACKED").await;
        assert_eq!(world.rail.bodies_read("p1").await, 1);
    });
}

/// SIGTERM while a submission is under way: it ends first, its caller is answered, the process exits 0.
#[test]
fn sigterm_lets_a_submission_end() {
    with_world(async |world| {
        let mut process = Process::start(&world, "", &[("rail.read-timeout", "9s")]).await;
        world.payments().claimed("p1", "a1", 7);
        world.rail.rule("p1", "latency", 500).await;
        let mut caller = process.begin_submit("p1", "a1", 7).await;
        tokio::time::timeout(BOUND, async {
            while world.rail.bodies_read("p1").await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        process.signal(Signal::SIGTERM);
        let mut answer = String::new();
        tokio::time::timeout(BOUND, caller.read_to_string(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert!(answer.contains("ACKED"), "{answer}");
        process.await_state('Z').await;
        assert!(process.child.wait().unwrap().success());
        assert_eq!(
            world.count("SELECT COUNT(*) FROM rail_submission WHERE outcome = 'ACKED'"),
            1
        );
    });
}
