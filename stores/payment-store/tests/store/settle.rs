//! P5, P6, P7 (C1.6, post / fail / ambiguous) and P9's cancel.

use super::bench;
use crate::support::{Bench, WITHIN, ambiguous, command, done, fail, fenced_out, no_evidence, post, refused, replayed};
use payment_store::{FenceReason, PayoutState, Refusal, Resolution, StepOutcome, Verb};

async fn claimed() -> Bench {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    b.payout("Q", "A", 400).await;
    done(b.claim("P", 5).await);
    b
}

#[tokio::test]
async fn a_post_writes_both_legs_and_the_balance() {
    let b = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    let posted = done(b.post("P", 5, "r1").await);
    assert_eq!(
        (posted.state, posted.rail_reference.as_deref()),
        (PayoutState::Posted, Some("r1"))
    );
    let legs: Vec<_> = b.store.ledger(None, 0, 10, WITHIN).await.unwrap();
    let legs: Vec<_> = legs
        .iter()
        .map(|leg| {
            (
                leg.account_id.as_str(),
                leg.amount_minor,
                leg.token,
                leg.rail_reference.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        legs,
        [
            ("A", -400, Some(5), Some("r1")),
            ("house:payouts:EUR", 400, Some(5), Some("r1"))
        ]
    );
    let account = b.account_now("A").await;
    assert_eq!((account.balance_minor, account.held_minor), (600, 0));
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn without_matching_evidence_nothing_is_settled() {
    let b = claimed().await;
    let before = b.all_rows().await;
    assert_eq!(no_evidence(b.post("P", 5, "r1").await), "NONE");
    assert_eq!(no_evidence(b.fail("P", 5).await), "NONE");
    assert_eq!(no_evidence(b.ambiguous("P", 5).await), "NONE");
    for (outcome, post_ok, fail_ok, ambiguous_ok) in [
        (None, false, false, true),
        (Some("TIMEOUT"), false, false, true),
        (Some("ACKED"), true, false, false),
        (Some("DECLINED"), false, true, false),
        (Some("NOT_RECEIVED"), false, true, false),
        (Some("NOT_SENT"), false, true, false),
    ] {
        b.rail.says("P", outcome, Some("r1")).await;
        assert_eq!(
            no_evidence(b.post("P", 5, "another").await),
            outcome.unwrap_or("INTENT")
        );
        if !post_ok {
            no_evidence(b.post("P", 5, "r1").await);
        }
        if !fail_ok {
            no_evidence(b.fail("P", 5).await);
        }
        if !ambiguous_ok {
            no_evidence(b.ambiguous("P", 5).await);
        }
    }
    assert_eq!(b.all_rows().await, before);
}

#[tokio::test]
async fn a_lower_token_is_stale_a_higher_one_has_claimed_nothing() {
    let b = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    let before = b.all_rows().await;
    assert_eq!(fenced_out(b.post("P", 4, "r1").await), (FenceReason::Stale, 5));
    assert_eq!(fenced_out(b.post("P", 6, "r1").await), (FenceReason::NotClaimed, 5));
    assert_eq!(fenced_out(b.fail("P", 6).await), (FenceReason::NotClaimed, 5));
    assert_eq!(fenced_out(b.ambiguous("P", 6).await), (FenceReason::NotClaimed, 5));
    // The mark's token belongs to P, not to Q.
    b.rail.says("Q", Some("ACKED"), Some("r2")).await;
    assert_eq!(fenced_out(b.post("Q", 5, "r2").await), (FenceReason::TokenSpent, 5));
    assert_eq!(b.all_rows().await, before);
}

#[tokio::test]
async fn at_a_barrier_nothing_is_recorded_so_the_token_is_stale() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    b.fence("A", 8).await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    assert_eq!(fenced_out(b.post("P", 7, "r1").await), (FenceReason::Stale, 7));
    assert_eq!(fenced_out(b.claim("P", 7).await), (FenceReason::Stale, 7));
    done(b.claim("P", 8).await);
}

#[tokio::test]
async fn a_final_step_replays_even_after_the_mark_moved_on() {
    let b = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.post("P", 5, "r1").await);
    done(b.claim("Q", 6).await);
    let before = b.all_rows().await;
    assert_eq!(replayed(b.post("P", 5, "r1").await).state, PayoutState::Posted);
    // Another step of the same token is not the step it did.
    assert_eq!(fenced_out(b.fail("P", 5).await), (FenceReason::Stale, 6));
    assert_eq!(b.all_rows().await, before);
}

#[tokio::test]
async fn an_ambiguous_step_replays_as_what_is_recorded_now() {
    let b = claimed().await;
    b.rail.says("P", Some("TIMEOUT"), None).await;
    done(b.ambiguous("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("late")).await;
    done(b.resolve("P", 6, Resolution::Posted).await);
    assert_eq!(replayed(b.ambiguous("P", 5).await).state, PayoutState::Posted);
}

#[tokio::test]
async fn the_next_holder_posts_what_the_former_submitted() {
    // C1.8: ACKED → post with the stored reference, no submit.
    let b = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.claim("P", 6).await);
    assert_eq!(fenced_out(b.post("P", 5, "r1").await), (FenceReason::Stale, 6));
    done(b.post("P", 6, "r1").await);
    assert_eq!(b.legs("P").await, 2);
}

#[tokio::test]
async fn case_p07_fifty_posts_at_once_write_two_legs() {
    let b = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let store = b.store.clone();
            tokio::spawn(async move { store.apply(command("P", post(5, "r1")), WITHIN).await.unwrap() })
        })
        .collect();
    let (mut fresh, mut again) = (0, 0);
    for call in calls {
        match call.await.unwrap() {
            StepOutcome::Done(_) => fresh += 1,
            StepOutcome::Replayed(_) => again += 1,
            StepOutcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
    assert_eq!((fresh, again, b.legs("P").await), (1, 49, 2));
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn case_p08_post_fail_and_ambiguous_at_once_have_one_winner() {
    for outcome in ["ACKED", "DECLINED", "TIMEOUT"] {
        let b = claimed().await;
        b.rail.says("P", Some(outcome), Some("r1")).await;
        let calls: Vec<_> = [
            post(5, "r1"),
            fail(5),
            ambiguous(5),
            post(5, "r1"),
            fail(5),
            ambiguous(5),
        ]
        .into_iter()
        .map(|verb| {
            let store = b.store.clone();
            tokio::spawn(async move { store.apply(command("P", verb), WITHIN).await.unwrap() })
        })
        .collect();
        let mut won = 0;
        for call in calls {
            match call.await.unwrap() {
                StepOutcome::Done(_) => won += 1,
                StepOutcome::Replayed(_) => {}
                StepOutcome::Refused(refusal) => assert!(
                    matches!(
                        refusal,
                        Refusal::IllegalTransition { .. } | Refusal::EvidenceMissing { .. }
                    ),
                    "{refusal:?}"
                ),
            }
        }
        assert_eq!(won, 1, "with {outcome}");
        let account = b.account_now("A").await;
        let expected = match outcome {
            "ACKED" => (600, 0),
            "DECLINED" => (1_000, 0),
            _ => (1_000, 400),
        };
        assert_eq!((account.balance_minor, account.held_minor), expected, "with {outcome}");
        assert_eq!(b.violations().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn case_p08_even_when_the_evidence_changes_between_them_one_wins() {
    let b = claimed().await;
    b.rail.says("P", Some("TIMEOUT"), None).await;
    done(b.ambiguous("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    assert_eq!(
        refused(b.post("P", 5, "r1").await),
        Refusal::IllegalTransition {
            from: PayoutState::RailAmbiguous,
            to: PayoutState::Posted
        }
    );
    assert_eq!(b.legs("P").await, 0);
}

#[tokio::test]
async fn case_p20_the_same_post_twice_is_one_row() {
    let b = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.post("P", 5, "r1").await);
    let before = b.all_rows().await;
    replayed(b.post("P", 5, "r1").await);
    assert_eq!(b.all_rows().await, before);
    let history = b.store.history("P".into(), 0, 10, WITHIN).await.unwrap().unwrap();
    let steps: Vec<_> = history.iter().map(|step| (step.to_state, step.token)).collect();
    assert_eq!(
        steps,
        [
            (PayoutState::Pending, None),
            (PayoutState::Claimed, Some(5)),
            (PayoutState::Posted, Some(5))
        ]
    );
}

#[tokio::test]
async fn only_a_pending_payout_is_cancelled() {
    let b = claimed().await;
    let cancel = || Verb::Cancel {
        operator: "op".into(),
        reason: Some("asked by phone".into()),
    };
    assert_eq!(
        refused(b.apply("P", cancel()).await),
        Refusal::IllegalTransition {
            from: PayoutState::Claimed,
            to: PayoutState::Failed
        }
    );
    let cancelled = done(b.apply("Q", cancel()).await);
    assert_eq!(
        (cancelled.state, cancelled.failure_reason.as_deref()),
        (PayoutState::Failed, Some("CANCELLED"))
    );
    refused(b.apply("Q", cancel()).await);
    refused(b.claim("Q", 9).await);
    assert_eq!(b.mark("A").await, 5);
    let last = b
        .store
        .history("Q".into(), 0, 10, WITHIN)
        .await
        .unwrap()
        .unwrap()
        .pop()
        .unwrap();
    assert_eq!((last.actor.as_str(), last.token), ("op", None));
}
