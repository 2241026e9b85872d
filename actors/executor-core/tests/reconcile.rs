//! Ambiguous payouts and their reconciliation (Flow D, FR-26).
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use executor_core::Roles;
use http_contract::Code;
use http_contract::payment::PayoutState;
use http_contract::rail::{Outcome, Verdict};
use support::{Bench, Fault, SECOND, Shared, config, paused};

fn ambiguous(verdicts: &[(Verdict, u64)]) -> Shared {
    let world = Shared::default();
    world.with(|w| {
        w.payout("P", "A", PayoutState::RailAmbiguous);
        w.submission("P", Some(Outcome::Timeout));
        w.verdicts.extend(verdicts.iter().copied());
    });
    world
}

#[test]
fn a_verdict_is_resolved_under_a_grant_of_the_reconcilers_own() {
    for (verdict, executions, state) in [
        (Verdict::Executed, 1, PayoutState::Posted),
        (Verdict::Declined, 0, PayoutState::Failed),
        (Verdict::NotReceived, 0, PayoutState::Failed),
    ] {
        paused(async {
            let world = ambiguous(&[(verdict, executions)]);
            let bench = Bench::start(&world, config(Roles::Reconcile, 1)).await;
            bench.until_settled("P", state).await;
            let calls = world.with(|w| w.seen());
            assert_eq!(
                calls,
                ["lookup P", "acquire payout:A", "reread P", "resolve P 1", "release 1"]
            );
        });
    }
}

#[test]
fn case_p01_fifty_lookups_that_say_nothing_leave_it_ambiguous_and_ask_for_no_grant() {
    paused(async {
        let world = ambiguous(&[]);
        world.with(|w| (0..25).for_each(|_| w.fault("lookup", Fault::Refuse(Code::BackendUnavailable))));
        let bench = Bench::start(&world, config(Roles::Both, 2)).await;
        bench.until("fifty lookups", |w| w.calls.len() >= 50).await;
        let calls = world.with(|w| w.seen());
        assert!(calls.iter().all(|call| call == "lookup P"), "{calls:?}");
        assert_eq!(
            world.with(|w| (w.state("P"), w.tokens)),
            (PayoutState::RailAmbiguous, 0)
        );
    });
}

#[test]
fn case_p16_not_found_is_no_verdict_until_the_proxy_says_so() {
    paused(async {
        // The proxy answers INCONCLUSIVE for what it has not found long enough; then the rail has it.
        let world = ambiguous(&[
            (Verdict::Inconclusive, 0),
            (Verdict::Inconclusive, 0),
            (Verdict::Executed, 1),
        ]);
        let bench = Bench::start(&world, config(Roles::Reconcile, 1)).await;
        let began = bench.kit.clock().mono();
        bench.until_settled("P", PayoutState::Posted).await;
        assert!(
            bench.kit.clock().mono() - began >= 60 * SECOND,
            "one lookup in each interval"
        );
        assert_eq!(
            world.with(|w| w.payouts["P"].rail_reference.clone()).as_deref(),
            Some("R-P")
        );
    });
}

#[test]
fn case_d02_an_ack_between_the_lookup_and_the_resolution_is_refused_and_found_in_the_next_round() {
    paused(async {
        let world = ambiguous(&[(Verdict::NotReceived, 0), (Verdict::Executed, 1)]);
        world.with(|w| w.fault("resolve", Fault::Refuse(Code::OutcomeEvidenceMissing)));
        let bench = Bench::start(&world, config(Roles::Reconcile, 1)).await;
        bench.until_settled("P", PayoutState::Posted).await;
        let calls = world.with(|w| w.seen());
        let resolves: Vec<_> = calls.iter().filter(|call| call.starts_with("resolve")).collect();
        assert_eq!(resolves, ["resolve P 1", "resolve P 2"]);
    });
}

#[test]
fn what_is_no_longer_ambiguous_under_the_lock_is_left_alone() {
    paused(async {
        let world = ambiguous(&[(Verdict::Executed, 1)]);
        let by_hand = |w: &mut support::World| w.payouts.get_mut("P").unwrap().state = PayoutState::Failed;
        world.with(|w| w.fault("reread", Fault::First(Box::new(by_hand))));
        let bench = Bench::start(&world, config(Roles::Reconcile, 1)).await;
        bench
            .until("it is released", |w| w.tokens == 1 && w.held.is_empty())
            .await;
        assert!(!world.with(|w| w.seen()).iter().any(|call| call.starts_with("resolve")));
    });
}

#[test]
fn a_worker_never_touches_an_ambiguous_payout_and_a_reconciler_no_other() {
    paused(async {
        let world = ambiguous(&[]);
        world.with(|w| {
            w.payout("Q", "B", PayoutState::Pending);
            w.payout("C", "C", PayoutState::Claimed);
        });
        let pay = Bench::start(&world, config(Roles::Pay, 1)).await;
        pay.until_settled("Q", PayoutState::Posted).await;
        pay.until_settled("C", PayoutState::Posted).await;
        tokio::time::sleep(100 * SECOND).await;
        assert!(!world.with(|w| w.seen()).iter().any(|call| call.contains(" P")));
    });
    paused(async {
        let world = ambiguous(&[]);
        world.with(|w| w.payout("Q", "B", PayoutState::Pending));
        let reconcile = Bench::start(&world, config(Roles::Reconcile, 1)).await;
        reconcile.until("three rounds", |w| w.calls.len() >= 3).await;
        assert!(world.with(|w| w.seen()).iter().all(|call| call == "lookup P"));
        assert!(reconcile.executor.drain(SECOND).await);
        tokio::time::sleep(100 * SECOND).await;
        assert!(world.with(|w| w.seen()).is_empty(), "no round after the drain");
    });
}

#[test]
fn an_ambiguous_submit_is_resolved_by_the_same_process() {
    paused(async {
        let world = Shared::default();
        world.with(|w| {
            w.payout("P", "A", PayoutState::Pending);
            w.fault("submit", Fault::Refuse(Code::RailAmbiguous));
            w.verdicts.push_back((Verdict::Executed, 1));
        });
        let bench = Bench::start(&world, config(Roles::Both, 2)).await;
        bench.until_settled("P", PayoutState::RailAmbiguous).await;
        bench.until_settled("P", PayoutState::Posted).await;
        let calls = world.with(|w| w.seen());
        assert_eq!(calls.iter().filter(|call| call.starts_with("submit")).count(), 1);
        assert!(calls.contains(&"resolve P 2".to_owned()));
    });
}
