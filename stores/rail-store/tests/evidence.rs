//! What counts as evidence (C1.2, C3.7): answers, late acks, lookups, in every order.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod support;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rail_store::{Ack, AckOutcome, Evidence, Execution, ForwardClaim, Outcome, Sighting, Verdict};
use std::time::Duration;
use support::{
    HORIZON, Place, SEED, WITHIN, World, acked, block_on, book, declined, executed, final_nothing, on_every_backend,
    timeout,
};

fn ack(world: &World, payout: &str, evidence: Evidence) -> AckOutcome {
    let ack = Ack {
        client_reference: payout.to_owned(),
        evidence,
        amount_minor: 1_250,
        currency: "EUR".to_owned(),
    };
    block_on(world.store.record_ack(ack, WITHIN)).unwrap()
}

const MOMENT: Duration = Duration::from_secs(1);

/// The rail times out, then 50 lookups fail: still without a known outcome.
fn case_p01_failing_lookups_conclude_nothing(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    for _ in 0..50 {
        world.pass(HORIZON);
        assert_eq!(world.look_up("p1", Sighting::Failed).verdict, Verdict::Inconclusive);
    }
    assert_eq!(world.now("p1").outcome, Some(Outcome::Timeout));
}

/// Not found, not found, found. One "not found" never fails a payout.
fn case_p16_not_found_twice_too_early_and_then_found(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    world.pass(MOMENT);
    for _ in 0..2 {
        assert_eq!(world.look_up("p1", book(&[])).verdict, Verdict::Inconclusive);
    }
    world.pass(HORIZON);
    assert_eq!(
        world.look_up("p1", book(&[])).verdict,
        Verdict::Inconclusive,
        "one is not enough"
    );
    let found = world.look_up("p1", book(&["R1"]));
    assert_eq!((found.verdict, found.executions), (Verdict::Executed, 1));
    assert_eq!(found.submission.unwrap().rail_reference.as_deref(), Some("R1"));
}

fn two_lookups_after_the_horizon_conclude_that_nothing_was_received(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    world.pass(HORIZON);
    assert_eq!(
        world.look_up("p1", book(&[])).verdict,
        Verdict::Inconclusive,
        "exactly the horizon is not later"
    );
    world.pass(MOMENT);
    assert_eq!(
        world.look_up("p1", book(&[])).verdict,
        Verdict::Inconclusive,
        "the first that counts"
    );
    assert_eq!(
        world.look_up("p1", Sighting::Failed).verdict,
        Verdict::Inconclusive,
        "an error is no second"
    );
    assert_eq!(world.look_up("p1", book(&[])).verdict, Verdict::NotReceived);
    assert_eq!(world.now("p1").outcome, Some(Outcome::NotReceived));
    // On a settled row the known verdict.
    assert_eq!(world.look_up("p1", Sighting::Failed).verdict, Verdict::NotReceived);
}

fn a_lookup_dated_by_a_clock_that_was_set_does_not_count(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    world.pass(HORIZON + MOMENT);
    for _ in 0..5 {
        let found = world.look_up_dated("p1", book(&[]), false);
        assert_eq!(found.verdict, Verdict::Inconclusive);
    }
    assert_eq!(
        world.look_up("p1", book(&[])).verdict,
        Verdict::Inconclusive,
        "untrusted ones are no first"
    );
    assert_eq!(world.look_up("p1", book(&[])).verdict, Verdict::NotReceived);
}

fn a_promise_of_the_rail_concludes_at_once(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    assert_eq!(world.look_up("p1", final_nothing()).verdict, Verdict::NotReceived);
}

fn a_forwarded_intent_without_outcome_stays_for_a_human(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let intent = world.intent("p1", "a1", 7);
    world.claim(&intent);
    world.pass(HORIZON * 100);
    for sighting in [book(&[]), book(&[]), final_nothing(), book(&[])] {
        assert_eq!(world.look_up("p1", sighting).verdict, Verdict::Inconclusive);
    }
    assert_eq!(world.now("p1").outcome, None);
    assert_eq!(
        world.look_up("p1", book(&["R1"])).verdict,
        Verdict::Executed,
        "what is there is believed"
    );
}

/// Proxy 1 is stopped between intent and send; two lookups conclude; proxy 1 resumes and does not send.
fn case_d01_a_paused_forwarder_is_stopped_by_the_conclusion(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let intent = world.intent("p1", "a1", 7);
    world.payout("p1", "a1", "RAIL_AMBIGUOUS", Some(7));
    world.pass(HORIZON + MOMENT);
    assert_eq!(world.look_up("p1", book(&[])).verdict, Verdict::Inconclusive);
    assert_eq!(world.look_up("p1", book(&[])).verdict, Verdict::NotReceived);
    world.payout("p1", "a1", "FAILED", Some(7));
    assert_eq!(world.claim(&intent), ForwardClaim::Refused { duplicate: false });
    assert_eq!(world.now("p1").forwarded_at, None);
}

/// Silence seen before the forwarder gave up does not count towards what came after.
fn lookups_before_the_timeout_do_not_count_after_it(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let intent = world.intent("p1", "a1", 7);
    world.pass(HORIZON + MOMENT);
    assert_eq!(
        world.look_up("p1", book(&[])).verdict,
        Verdict::Inconclusive,
        "counts, not yet forwarded"
    );
    world.claim(&intent);
    world.record(&intent, timeout());
    assert_eq!(world.look_up("p1", book(&[])).verdict, Verdict::Inconclusive);
    world.pass(HORIZON + MOMENT);
    assert_eq!(
        world.look_up("p1", book(&[])).verdict,
        Verdict::Inconclusive,
        "the first after the time-out"
    );
    assert_eq!(world.look_up("p1", book(&[])).verdict, Verdict::NotReceived);
}

/// The rail acks late between the conclusion "not received" and the settlement FAILED: the ack is what is recorded.
fn case_d02_a_late_ack_overrules_silence_until_the_payout_is_settled(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    assert_eq!(world.look_up("p1", final_nothing()).verdict, Verdict::NotReceived);
    assert_eq!(ack(&world, "p1", acked("R1")), AckOutcome::Recorded);
    assert_eq!(world.now("p1").outcome, Some(Outcome::Acked));
    assert_eq!(world.exceptions(), []);

    // Once it is settled as FAILED the ack is an exception and overwrites nothing.
    world.settled("p2", "a1", 8, timeout());
    world.look_up("p2", final_nothing());
    world.payout("p2", "a1", "FAILED", Some(8));
    assert_eq!(ack(&world, "p2", acked("R2")), AckOutcome::Anomaly);
    assert_eq!(ack(&world, "p2", acked("R2")), AckOutcome::Duplicate);
    let kept = world.now("p2");
    assert_eq!(
        (kept.outcome, kept.rail_reference.as_deref()),
        (Some(Outcome::NotReceived), Some("R2")),
        "kept beside the outcome"
    );
    assert_eq!(
        world.exceptions(),
        [("p2".into(), "LATE_ACK_AFTER_FAILED".into())],
        "once, however often it is said"
    );
}

fn a_settlement_and_an_ack_that_missed_each_other_are_found(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, acked("R1"));
    world.payout("p1", "a1", "FAILED", Some(7));
    let survey = || block_on(world.store.survey(WITHIN)).unwrap();
    assert_eq!(survey().exceptions_open, 1);
    assert_eq!(survey().exceptions_open, 1);
    assert_eq!(world.exceptions(), [("p1".into(), "LATE_ACK_AFTER_FAILED".into())]);
}

fn case_p21_a_posting_and_a_decline_that_missed_each_other_are_found(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, declined("no funds"));
    world.payout("p1", "a1", "POSTED", Some(7));
    let survey = || block_on(world.store.survey(WITHIN)).unwrap();
    assert_eq!(survey().exceptions_open, 1);
    assert_eq!(survey().exceptions_open, 1);
    assert_eq!(world.exceptions(), [("p1".into(), "LATE_DECLINE_AFTER_POSTED".into())]);
}

fn the_oldest_open_submission_is_seen_until_it_is_settled(place: &Place) {
    let world = World::new(place);
    let survey = || block_on(world.store.survey(WITHIN)).unwrap().ambiguous_since;
    assert_eq!(survey(), None);
    let old = world.settled("p1", "a1", 7, timeout());
    world.pass(MOMENT);
    world.settled("p2", "a1", 8, timeout());
    assert_eq!(survey(), old.outcome_at);
    // A human settled the first by hand.
    world.payout("p1", "a1", "POSTED", Some(7));
    assert_eq!(survey(), world.now("p2").outcome_at);
}

/// The ack comes before the rail's own answer: accepted, one outcome.
fn case_p15_an_ack_before_the_answer(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let intent = world.intent("p1", "a1", 7);
    world.claim(&intent);
    assert_eq!(ack(&world, "p1", acked("R1")), AckOutcome::Recorded);
    let recorded = world.record(&intent, acked("R1"));
    assert_eq!(
        (recorded.outcome, recorded.cause.as_deref()),
        (Some(Outcome::Acked), Some("ack"))
    );
    assert_eq!(ack(&world, "p1", acked("R1")), AckOutcome::Duplicate);
    assert_eq!(world.exceptions(), []);

    world.claimed("p2", "a1", 8);
    let intent = world.intent("p2", "a1", 8);
    world.claim(&intent);
    ack(&world, "p2", acked("R2"));
    assert_eq!(
        world.record(&intent, timeout()).outcome,
        Some(Outcome::Acked),
        "a time-out knows less"
    );
}

fn an_ack_of_other_money_or_of_nothing_is_no_outcome(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    for (amount_minor, currency) in [(1_251, "EUR"), (1_250, "USD")] {
        let ack = Ack {
            client_reference: "p1".into(),
            evidence: acked("R1"),
            amount_minor,
            currency: currency.into(),
        };
        assert_eq!(
            block_on(world.store.record_ack(ack, WITHIN)).unwrap(),
            AckOutcome::Anomaly
        );
    }
    assert_eq!(ack(&world, "never", acked("R1")), AckOutcome::Unknown);
    assert_eq!(world.now("p1").outcome, Some(Outcome::Timeout));
    assert_eq!(world.exceptions().len(), 2);

    let other_money = Sighting::Book {
        executions: vec![Execution {
            amount_minor: 1,
            ..executed("R1")
        }],
        declined: Vec::new(),
        is_final: true,
    };
    let found = world.look_up("p1", other_money);
    assert_eq!((found.verdict, found.executions), (Verdict::Inconclusive, 1));
    assert_eq!(world.exceptions().len(), 3);
}

fn more_than_one_execution_is_found_once(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    let found = world.look_up("p1", book(&["R1", "R2"]));
    assert_eq!(
        (found.verdict, found.executions, found.double_found),
        (Verdict::Executed, 2, true)
    );
    assert!(!world.look_up("p1", book(&["R1", "R2"])).double_found, "counted once");
    assert_eq!(world.exceptions(), [("p1".into(), "DOUBLE_PAYMENT_SUSPECTED".into())]);
    // Another reference than the recorded one is suspicious too.
    world.settled("p2", "a1", 8, acked("R3"));
    world.look_up("p2", book(&["R4"]));
    assert_eq!(world.exceptions().len(), 2);
    assert_eq!(world.now("p2").rail_reference.as_deref(), Some("R3"));
}

fn a_refusal_in_the_rails_book_is_believed(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    let refused = Sighting::Book {
        executions: Vec::new(),
        declined: vec!["account closed".into()],
        is_final: false,
    };
    let found = world.look_up("p1", refused);
    assert_eq!(found.verdict, Verdict::Declined);
    assert_eq!(
        found.submission.unwrap().decline_reason.as_deref(),
        Some("account closed")
    );
}

/// What can happen to one submission, in any order.
#[derive(Clone, Debug)]
enum Step {
    Answer(Said),
    Ack(Said),
    LookUp(Option<&'static str>),
    Silence,
    Pass,
    PayoutFails,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    Acked(&'static str),
    Declined,
    Timeout,
}

impl Said {
    fn evidence(self) -> Evidence {
        match self {
            Self::Acked(reference) => acked(reference),
            Self::Declined => declined("no funds"),
            Self::Timeout => timeout(),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let reference = prop_oneof![4 => Just("R1"), 1 => Just("R2")];
    let said = prop_oneof![3 => reference.clone().prop_map(Said::Acked), 2 => Just(Said::Declined)];
    let answer = prop_oneof![3 => said.clone(), 2 => Just(Said::Timeout)];
    prop_oneof![
        3 => answer.prop_map(Step::Answer),
        3 => said.prop_map(Step::Ack),
        2 => reference.prop_map(|reference| Step::LookUp(Some(reference))),
        1 => Just(Step::LookUp(None)),
        2 => Just(Step::Silence),
        2 => Just(Step::Pass),
        1 => Just(Step::PayoutFails),
    ]
}

/// Lives through one order of steps with a payout of its own.
fn live_through(world: &World, payout: &str, account: &str, steps: Vec<Step>) {
    world.claimed(payout, account, 7);
    let intent = world.intent(payout, account, 7);
    world.claim(&intent);
    let (mut answered, mut said) = (false, Vec::new());
    for step in steps {
        let before = world.now(payout);
        match step {
            // The forwarder speaks once.
            Step::Answer(what) if !answered => {
                answered = true;
                said.push(what);
                world.record(&intent, what.evidence());
            }
            Step::Answer(_) => {}
            Step::Ack(what) => {
                said.push(what);
                ack(world, payout, what.evidence());
            }
            Step::LookUp(Some(reference)) => {
                said.push(Said::Acked(reference));
                world.look_up(payout, book(&[reference]));
            }
            Step::LookUp(None) => {
                world.look_up(payout, Sighting::Failed);
            }
            Step::Silence => {
                world.look_up(payout, book(&[]));
            }
            Step::Pass => world.pass(HORIZON + MOMENT),
            Step::PayoutFails => world.payout(payout, account, "FAILED", Some(7)),
        }
        let after = world.now(payout);
        let rank = |outcome: Option<Outcome>| match outcome {
            None => 0,
            Some(Outcome::Timeout) => 1,
            Some(Outcome::NotReceived) => 2,
            Some(_) => 3,
        };
        assert!(
            rank(after.outcome) >= rank(before.outcome),
            "{before:?} became {after:?}"
        );
        if rank(before.outcome) == 3 {
            // What contradicts it is kept beside it: filled in once, never changed.
            let kept = rail_store::Submission {
                rail_reference: before.rail_reference.clone().or(after.rail_reference.clone()),
                decline_reason: before.decline_reason.clone().or(after.decline_reason.clone()),
                ..before.clone()
            };
            assert_eq!(&after, &kept, "a final outcome was overwritten");
        }
        assert_eq!(after.forwarded_at, before.forwarded_at);
    }
    let end = world.now(payout);
    let exceptions: Vec<_> = world.exceptions().into_iter().filter(|(of, _)| of == payout).collect();
    let acks: std::collections::BTreeSet<_> = said
        .iter()
        .filter_map(|what| match what {
            Said::Acked(r) => Some(*r),
            _ => None,
        })
        .collect();
    let any_decline = said.contains(&Said::Declined);
    if acks.len() > 1 || (!acks.is_empty() && any_decline) {
        assert!(
            !exceptions.is_empty(),
            "a contradiction went unnoticed: {said:?} ended as {end:?}"
        );
    } else if let (Some(reference), true) = (acks.first(), exceptions.is_empty()) {
        assert_eq!(end.outcome, Some(Outcome::Acked), "{:?}", said);
        assert_eq!(end.rail_reference.as_deref(), Some(*reference));
    } else if any_decline && acks.is_empty() {
        assert_eq!(end.outcome, Some(Outcome::Declined));
        assert_eq!(exceptions.len(), 0);
    }
}

/// Every order of ack, decline, duplicate and late: nothing final is ever overwritten, nothing becomes less known, and
/// whatever contradicts what is recorded is an exception for a human.
fn case_p14_every_order_of_ack_decline_duplicate_and_late(place: &Place) {
    let world = World::new(place);
    let mut runner = TestRunner::new_with_rng(
        ProptestConfig {
            cases: if place.is_pg() { 60 } else { 300 },
            failure_persistence: None,
            ..ProptestConfig::default()
        },
        TestRng::from_seed(RngAlgorithm::ChaCha, &SEED.to_le_bytes().repeat(4)),
    );
    let case = std::cell::Cell::new(0);
    runner
        .run(&proptest::collection::vec(step(), 1..12), |steps| {
            case.set(case.get() + 1);
            live_through(&world, &format!("p{}", case.get()), &format!("a{}", case.get()), steps);
            Ok(())
        })
        .unwrap();
}

on_every_backend! {
    case_p01_failing_lookups_conclude_nothing,
    case_p16_not_found_twice_too_early_and_then_found,
    two_lookups_after_the_horizon_conclude_that_nothing_was_received,
    a_lookup_dated_by_a_clock_that_was_set_does_not_count,
    a_promise_of_the_rail_concludes_at_once,
    a_forwarded_intent_without_outcome_stays_for_a_human,
    case_d01_a_paused_forwarder_is_stopped_by_the_conclusion,
    lookups_before_the_timeout_do_not_count_after_it,
    case_d02_a_late_ack_overrules_silence_until_the_payout_is_settled,
    a_settlement_and_an_ack_that_missed_each_other_are_found,
    case_p21_a_posting_and_a_decline_that_missed_each_other_are_found,
    the_oldest_open_submission_is_seen_until_it_is_settled,
    case_p15_an_ack_before_the_answer,
    an_ack_of_other_money_or_of_nothing_is_no_outcome,
    more_than_one_execution_is_found_once,
    a_refusal_in_the_rails_book_is_believed,
    case_p14_every_order_of_ack_decline_duplicate_and_late,
}
