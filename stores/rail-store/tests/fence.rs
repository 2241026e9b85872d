//! The predicates of C1.6 at point (c), one by one and in their order.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking"
)]

mod support;

use rail_store::{AccountFence, FenceOutcome, FenceReason, FencedOut, Fencing, ForwardClaim, Outcome, SubmitOutcome};
use support::files::Files;
use support::{
    Paydb, Place, WITHIN, World, acked, block_on, declined, fence_request, on_every_backend, request, timeout, token,
};

fn fenced_out(outcome: SubmitOutcome) -> FencedOut {
    match outcome {
        SubmitOutcome::FencedOut(refused) => refused,
        other => panic!("not fenced out: {other:?}"),
    }
}

fn an_intent_is_committed_with_the_advanced_mark(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let intent = world.intent("p1", "a1", 7);
    assert_eq!(world.now("p1"), intent);
    assert_eq!(
        (intent.outcome, intent.forwarded_at, intent.client_reference.as_str()),
        (None, None, "p1")
    );
    assert_eq!((world.mark("a1"), world.mark("a2")), (7, 0));
}

fn a_stale_token_changes_nothing(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    world.intent("p1", "a1", 7);
    world.claimed("p2", "a1", 5);
    let refused = fenced_out(world.submit("p2", "a1", 5));
    assert_eq!(
        (refused.reason, refused.presented, refused.highest_token),
        (FenceReason::Stale, token(5), 7)
    );
    assert_eq!(block_on(world.store.submission("p2".into(), WITHIN)).unwrap(), None);
    assert_eq!(world.mark("a1"), 7);
}

fn a_token_has_one_side_effect_and_a_barrier_is_not_one(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    world.intent("p1", "a1", 7);
    world.claimed("p2", "a1", 7);
    assert_eq!(fenced_out(world.submit("p2", "a1", 7)).reason, FenceReason::TokenSpent);

    // A barrier raised by token 9 stands at 8: token 8 is stale, not spent.
    assert!(matches!(
        world.fence("p2", 9, false),
        FenceOutcome::Fenced { highest_token: 8, .. }
    ));
    assert_eq!(fenced_out(world.submit("p2", "a1", 8)).reason, FenceReason::Stale);
}

fn a_refusal_leaves_the_mark_where_it_was(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 3);
    world.intent("p1", "a1", 3);
    world.payout("pending", "a1", "PENDING", None);
    world.claimed("other-token", "a1", 8);
    world.claimed("other-account", "a2", 9);
    for (payout, t) in [
        ("p1", 9),
        ("pending", 9),
        ("other-token", 9),
        ("other-account", 9),
        ("missing", 9),
    ] {
        let refused = world.submit(payout, "a1", t);
        assert!(
            !matches!(refused, SubmitOutcome::Intent(_) | SubmitOutcome::FencedOut(_)),
            "{payout}: {refused:?}"
        );
        assert_eq!(world.mark("a1"), 3, "{payout} moved the mark");
    }
}

fn checks_come_in_the_order_of_the_contract(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    world.intent("p1", "a1", 7);
    // Replay before mark: the mark has moved on, the step is still this token's.
    world.claimed("p2", "a1", 8);
    world.intent("p2", "a1", 8);
    assert!(matches!(world.submit("p1", "a1", 7), SubmitOutcome::Replay(_)));
    // Mark before existing submission: a stale token is not told that the payout was submitted.
    assert!(matches!(world.submit("p2", "a1", 6), SubmitOutcome::FencedOut(_)));
    // Existing submission before payout: the payout is no longer CLAIMED, and that is not what is answered.
    world.payout("p2", "a1", "POSTED", Some(8));
    assert!(matches!(
        world.submit("p2", "a1", 9),
        SubmitOutcome::AlreadySubmitted(_)
    ));
}

fn the_body_must_agree_with_the_payout_in_every_field(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let changed = |change: &dyn Fn(&mut rail_store::SubmitRequest)| {
        let mut request = request("p1", "a1", 7);
        change(&mut request);
        block_on(world.store.submit(request, WITHIN)).unwrap()
    };
    for (field, outcome) in [
        ("account_id", changed(&|r| r.account_id = "a2".into())),
        ("amount_minor", changed(&|r| r.amount_minor += 1)),
        ("currency", changed(&|r| r.currency = "USD".into())),
        ("creditor.name", changed(&|r| r.creditor_name = "Eve".into())),
        ("creditor.account", changed(&|r| r.creditor_account = "DE03".into())),
    ] {
        assert_eq!(outcome, SubmitOutcome::Mismatch { field });
    }
    for (state, claim) in [
        ("PENDING", None),
        ("RAIL_AMBIGUOUS", Some(7)),
        ("POSTED", Some(7)),
        ("CLAIMED", Some(6)),
    ] {
        world.payout("p1", "a1", state, claim);
        assert!(
            matches!(world.submit("p1", "a1", 7), SubmitOutcome::NotClaimed { .. }),
            "{state} {claim:?}"
        );
    }
    assert_eq!(
        (world.submit("p9", "a1", 7), world.mark("a1")),
        (SubmitOutcome::PayoutNotFound, 0)
    );
}

#[test]
fn without_the_payment_file_nothing_is_guessed() {
    let world = World::on(Paydb::Files(Files::empty()), Fencing::Enforced);
    let Paydb::Files(files) = &world.paydb else {
        unreachable!()
    };
    assert_eq!(world.submit("p1", "a1", 7), SubmitOutcome::PayoutsUnknown);
    assert_eq!(world.fence("p1", 7, true), FenceOutcome::PayoutsUnknown);
    // An empty file of that name is not a payment file either.
    drop(files.payments());
    assert_eq!(
        (world.submit("p1", "a1", 7), world.mark("a1")),
        (SubmitOutcome::PayoutsUnknown, 0)
    );
    files.create_payments();
    world.claimed("p1", "a1", 7);
    world.intent("p1", "a1", 7);
}

fn a_replay_is_the_same_token_payout_and_body(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let intent = world.intent("p1", "a1", 7);
    assert_eq!(
        world.submit("p1", "a1", 7),
        SubmitOutcome::Replay(Box::new(intent.clone()))
    );
    let mut other = request("p1", "a1", 7);
    other.amount_minor += 1;
    assert_eq!(
        block_on(world.store.submit(other, WITHIN)).unwrap(),
        SubmitOutcome::KeyReused
    );
    let mut other = request("p2", "a1", 9);
    other.idempotency_key = "p1".into();
    assert_eq!(
        block_on(world.store.submit(other, WITHIN)).unwrap(),
        SubmitOutcome::KeyReused
    );
    // A key is its payout's id: one that was never used belongs to another payout too (case P37).
    for (payout, token) in [("p2", 9), ("p1", 7)] {
        let mut other = request(payout, "a1", token);
        other.idempotency_key = "never used".into();
        assert_eq!(
            block_on(world.store.submit(other, WITHIN)).unwrap(),
            SubmitOutcome::KeyReused,
            "{payout} {token}"
        );
    }
    // It answers what is recorded now.
    world.claim(&intent);
    world.record(&intent, timeout());
    let SubmitOutcome::Replay(now) = world.submit("p1", "a1", 7) else {
        panic!("no replay")
    };
    assert_eq!(now.outcome, Some(Outcome::Timeout));
}

fn a_submission_is_claimed_for_forwarding_once_and_never_over_an_outcome(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let intent = world.intent("p1", "a1", 7);
    assert_eq!(world.claim(&intent), ForwardClaim::Forward { duplicate: false });
    assert_eq!(world.claim(&intent), ForwardClaim::Refused { duplicate: false });
    world.claimed("p2", "a1", 8);
    let intent = world.intent("p2", "a1", 8);
    world.record(&intent, acked("R2"));
    assert_eq!(world.claim(&intent), ForwardClaim::Refused { duplicate: false });
    assert_eq!(world.now("p2").forwarded_at, None);
}

/// DECLINED, then the same payout under a new token: the recorded DECLINED.
fn case_p03_a_declined_payout_is_not_submitted_again(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, declined("no such account"));
    world.claimed("p1", "a1", 8);
    let SubmitOutcome::AlreadySubmitted(existing) = world.submit("p1", "a1", 8) else {
        panic!("submitted again")
    };
    assert_eq!(
        (existing.outcome, existing.decline_reason.as_deref()),
        (Some(Outcome::Declined), Some("no such account"))
    );
    assert_eq!(world.mark("a1"), 7);
}

/// W1 is revoked, nobody acquires: after the account fence its old token is refused.
fn case_d07_a_fence_shuts_out_a_revoked_holder(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let fence = |t| block_on(world.store.fence_account("a1".into(), token(t), WITHIN)).unwrap();
    let AccountFence::Fenced(mark) = fence(9) else {
        panic!("refused")
    };
    assert_eq!(mark.highest_token, 8);
    for t in [7, 8] {
        world.claimed("p1", "a1", t);
        assert_eq!(fenced_out(world.submit("p1", "a1", t)).reason, FenceReason::Stale);
    }
    assert!(
        matches!(fence(9), AccountFence::Fenced(_)),
        "the same fence again is no refusal"
    );
    assert!(matches!(fence(8), AccountFence::FencedOut(_)));
    assert!(matches!(fence(1), AccountFence::FencedOut(_)));
    world.claimed("p1", "a1", 9);
    world.intent("p1", "a1", 9);
    assert!(matches!(fence(9), AccountFence::FencedOut(_)), "token 9 has submitted");
}

/// R6 beside a submit that is about to commit: whichever comes first, no old submit slips in unseen.
fn case_d11_a_fence_sees_the_intent_or_prevents_it(place: &Place) {
    // Two processes racing for the same payout, on threads of their own.
    let world = World::new(place);
    let (one, two) = (world.another_process(), world.another_process());
    for round in 0..20 {
        let (payout, account) = (format!("p{round}"), format!("a{round}"));
        world.claimed(&payout, &account, 7);
        let (submitted, fenced) = block_on(async {
            tokio::join!(
                one.submit(request(&payout, &account, 7), WITHIN),
                two.fence_submission(fence_request(&payout, 8, false), WITHIN)
            )
        });
        let FenceOutcome::Fenced { submission, .. } = fenced.unwrap() else {
            panic!("the new holder was refused")
        };
        match submitted.unwrap() {
            SubmitOutcome::Intent(intent) => assert_eq!(
                submission.map(|s| s.submission_id),
                Some(intent.submission_id),
                "round {round}: the fence missed an intent"
            ),
            SubmitOutcome::FencedOut(_) => assert_eq!(submission, None, "round {round}"),
            other => panic!("round {round}: {other:?}"),
        }
    }
}

/// A claim whose submission is refused for ever: R6 with forbid makes a final NOT_SENT.
fn case_d14_what_can_never_be_submitted_is_forbidden(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let FenceOutcome::Fenced {
        submission: Some(row),
        highest_token,
    } = world.fence("p1", 8, true)
    else {
        panic!("not forbidden")
    };
    assert_eq!(
        (row.outcome, row.token, highest_token),
        (Some(Outcome::NotSent), token(8), 7)
    );
    // Said again, it is what is there; and nothing submits it any more.
    assert!(matches!(world.fence("p1", 9, true), FenceOutcome::Fenced { submission: Some(again), .. } if again == row));
    world.claimed("p1", "a1", 10);
    let SubmitOutcome::AlreadySubmitted(existing) = world.submit("p1", "a1", 10) else {
        panic!("submitted after all")
    };
    assert_eq!(existing.outcome, Some(Outcome::NotSent));
    assert_eq!(world.claim(&existing), ForwardClaim::Refused { duplicate: false });
    // A payout that has a submission is never overwritten by a forbid.
    world.settled("p2", "a1", 11, acked("R2"));
    assert!(
        matches!(world.fence("p2", 12, true), FenceOutcome::Fenced { submission: Some(kept), .. }
        if kept.outcome == Some(Outcome::Acked))
    );
    assert_eq!(world.fence("p9", 20, true), FenceOutcome::PayoutNotFound);
}

fn a_fence_at_or_below_the_mark_is_refused_and_its_own_token_stays_usable(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    assert!(matches!(
        world.fence("p1", 7, false),
        FenceOutcome::Fenced {
            submission: None,
            highest_token: 6
        }
    ));
    world.intent("p1", "a1", 7);
    for t in [7, 6] {
        let FenceOutcome::FencedOut(refused) = world.fence("p1", t, false) else {
            panic!("{t} passed")
        };
        assert_eq!((refused.reason, refused.highest_token), (FenceReason::Stale, 7));
    }
}

fn the_database_itself_refuses_what_must_never_happen(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, acked("R1"));
    world.settled("p2", "a1", 8, timeout());
    world.look_up("p2", support::book(&[]));
    for sql in [
        "DELETE FROM rail_submission",
        "UPDATE rail_submission SET outcome = 'TIMEOUT' WHERE payout_id = 'p1'",
        "UPDATE rail_submission SET outcome = NULL, outcome_at = NULL WHERE payout_id = 'p2'",
        "UPDATE rail_submission SET amount_minor = 1 WHERE payout_id = 'p2'",
        "UPDATE rail_submission SET forwarded_at = 1 WHERE payout_id = 'p2'",
        "UPDATE rail_submission SET token = 99 WHERE payout_id = 'p2'",
        "UPDATE rail_high_water SET highest_token = 1",
        "DELETE FROM rail_high_water",
        "DELETE FROM rail_lookup",
        "UPDATE rail_lookup SET verdict = 'EXECUTED'",
        // FR-18, below all code of ours.
        "INSERT INTO rail_submission (submission_id, payout_id, account_id, token, idempotency_key, client_reference,
             amount_minor, currency, intent_at, fencing_enforced)
         SELECT 'x', payout_id, account_id, 99, idempotency_key, client_reference, amount_minor, currency, intent_at, TRUE
           FROM rail_submission WHERE payout_id = 'p1'",
    ] {
        assert!(world.raw(sql).is_err(), "{sql} was let through");
    }
}

fn several_processes_claim_one_submission_once(place: &Place) {
    let world = World::new(place);
    world.claimed("p1", "a1", 7);
    let intent = world.intent("p1", "a1", 7);
    let stores: Vec<_> = (0..4).map(|_| world.another_process()).collect();
    let claims = block_on(async {
        // All of them are sent before the first is answered.
        let calls: Vec<_> = stores
            .iter()
            .cycle()
            .take(20)
            .map(|store| {
                let (store, id) = (store.clone(), intent.submission_id.clone());
                tokio::spawn(async move { store.claim_forward(id, WITHIN).await.unwrap() })
            })
            .collect();
        let mut claims = Vec::new();
        for call in calls {
            claims.push(call.await.unwrap());
        }
        claims
    });
    let forwarded = claims
        .iter()
        .filter(|claim| matches!(claim, ForwardClaim::Forward { .. }))
        .count();
    assert_eq!((claims.len(), forwarded), (20, 1));
}

on_every_backend! {
    an_intent_is_committed_with_the_advanced_mark,
    a_stale_token_changes_nothing,
    a_token_has_one_side_effect_and_a_barrier_is_not_one,
    a_refusal_leaves_the_mark_where_it_was,
    checks_come_in_the_order_of_the_contract,
    the_body_must_agree_with_the_payout_in_every_field,
    a_replay_is_the_same_token_payout_and_body,
    a_submission_is_claimed_for_forwarding_once_and_never_over_an_outcome,
    case_p03_a_declined_payout_is_not_submitted_again,
    case_d07_a_fence_shuts_out_a_revoked_holder,
    case_d11_a_fence_sees_the_intent_or_prevents_it,
    case_d14_what_can_never_be_submitted_is_forbidden,
    a_fence_at_or_below_the_mark_is_refused_and_its_own_token_stays_usable,
    the_database_itself_refuses_what_must_never_happen,
    several_processes_claim_one_submission_once,
}

/// The switch off: what a naive service would do, and nothing else.
#[cfg(feature = "lab")]
mod switch_off {
    use super::*;

    /// The matrix's half of this point: whether a paused W1 that submits late leads to a second forward.
    fn a_late_submit_is_forwarded_again_only_without_the_fence(place: &Place) {
        for enforced in [true, false] {
            let world = if enforced {
                World::new(place)
            } else {
                World::unfenced(place)
            };
            // W1 (7) claims and is paused before it submits; W2 (8) re-claims, submits, is acknowledged.
            world.claimed("p1", "a1", 7);
            world.claimed("p1", "a1", 8);
            let w2 = world.intent("p1", "a1", 8);
            assert_eq!(world.claim(&w2), ForwardClaim::Forward { duplicate: false });
            world.record(&w2, acked("R8"));
            world.payout("p1", "a1", "POSTED", Some(8));
            // W1 resumes.
            let late = world.submit("p1", "a1", 7);
            if enforced {
                assert_eq!(fenced_out(late).reason, FenceReason::Stale);
                assert_eq!(world.mark("a1"), 8);
            } else {
                let SubmitOutcome::Intent(w1) = late else {
                    panic!("{late:?}")
                };
                assert_eq!(world.claim(&w1), ForwardClaim::Forward { duplicate: true });
                assert_eq!(world.mark("a1"), 0, "no mark is kept");
                assert!(!w1.fencing_enforced);
            }
        }
    }

    /// W1 paused before it posts: it has submitted, W2 finds the submission; one forward either way.
    fn a_submission_that_is_found_is_not_sent_again_either_way(place: &Place) {
        for enforced in [true, false] {
            let world = if enforced {
                World::new(place)
            } else {
                World::unfenced(place)
            };
            world.settled("p1", "a1", 7, acked("R7"));
            let FenceOutcome::Fenced { submission, .. } = world.fence("p1", 8, false) else {
                panic!("refused")
            };
            assert_eq!(submission.unwrap().rail_reference.as_deref(), Some("R7"));
            assert_eq!(world.mark("a1"), if enforced { 7 } else { 0 });
        }
    }

    fn a_fence_only_reads_and_a_replay_is_still_a_replay(place: &Place) {
        let world = World::unfenced(place);
        let w1 = world.intent("p1", "a1", 7);
        assert!(matches!(world.submit("p1", "a1", 7), SubmitOutcome::Replay(again) if *again == w1));
        assert!(matches!(
            world.fence("p2", 8, true),
            FenceOutcome::Fenced {
                submission: None,
                highest_token: 0
            }
        ));
        let account = block_on(world.store.fence_account("a1".into(), token(9), WITHIN)).unwrap();
        assert!(matches!(account, AccountFence::Fenced(mark) if mark.highest_token == 0));
        world.intent("p1", "a1", 6);
        let rows = block_on(world.store.submissions(rail_store::OutcomeFilter::All, 0, 10, WITHIN)).unwrap();
        assert_eq!(rows.len(), 2);
    }

    /// Switched on again, what was submitted without the fence is still a submission.
    fn a_fence_that_stands_again_sees_what_was_done_without_it(place: &Place) {
        let world = World::unfenced(place);
        world.claimed("p1", "a1", 7);
        world.intent("p1", "a1", 7);
        let again = world.another(Fencing::Enforced);
        world.claimed("p1", "a1", 9);
        let outcome = block_on(again.submit(request("p1", "a1", 9), WITHIN)).unwrap();
        assert!(matches!(outcome, SubmitOutcome::AlreadySubmitted(_)), "{outcome:?}");
    }

    on_every_backend! {
        a_late_submit_is_forwarded_again_only_without_the_fence,
        a_submission_that_is_found_is_not_sent_again_either_way,
        a_fence_only_reads_and_a_replay_is_still_a_replay,
        a_fence_that_stands_again_sees_what_was_done_without_it,
    }
}
