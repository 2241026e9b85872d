//! P8 (C1.6, resolve) and escalation.

use super::bench;
use crate::support::{
    Bench, WITHIN, by_hand, command, done, fenced_out, no_evidence, post, refused, replayed, resolve,
};
use host_kit::Random;
use payment_store::{FenceReason, PayoutState, Refusal, Resolution, StepOutcome};

async fn ambiguous() -> Bench {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    b.payout("Q", "A", 400).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("TIMEOUT"), None).await;
    done(b.ambiguous("P", 5).await);
    b
}

#[tokio::test]
async fn the_reconciler_needs_evidence_on_his_side() {
    let b = ambiguous().await;
    for (outcome, posted, failed) in [
        (Some("TIMEOUT"), false, false),
        (None, false, false),
        (Some("NOT_SENT"), false, false),
        (Some("ACKED"), true, false),
        (Some("DECLINED"), false, true),
        (Some("NOT_RECEIVED"), false, true),
    ] {
        b.rail.says("P", outcome, None).await;
        let before = b.all_rows().await;
        if !posted {
            no_evidence(b.resolve("P", 6, Resolution::Posted).await);
        }
        if !failed {
            no_evidence(b.resolve("P", 6, Resolution::Failed).await);
        }
        assert_eq!(b.all_rows().await, before, "{outcome:?}");
    }
    let failed = done(b.resolve("P", 6, Resolution::Failed).await);
    assert_eq!(
        (failed.state, failed.failure_reason.as_deref()),
        (PayoutState::Failed, Some("NOT_RECEIVED"))
    );
    assert_eq!((b.mark("A").await, b.account_now("A").await.held_minor), (6, 0));
}

#[tokio::test]
async fn a_resolution_advances_the_mark_and_posts_both_legs() {
    let b = ambiguous().await;
    b.rail.says("P", Some("ACKED"), Some("late")).await;
    let before = b.all_rows().await;
    assert_eq!(
        fenced_out(b.resolve("P", 4, Resolution::Posted).await),
        (FenceReason::Stale, 5)
    );
    // The token that claimed it is spent: a resolution needs a grant of its own.
    assert_eq!(
        fenced_out(b.resolve("P", 5, Resolution::Posted).await),
        (FenceReason::TokenSpent, 5)
    );
    assert_eq!(b.all_rows().await, before);
    let posted = done(b.resolve("P", 6, Resolution::Posted).await);
    assert_eq!(
        (posted.rail_reference.as_deref(), b.legs("P").await, b.mark("A").await),
        (Some("late"), 2, 6)
    );
    // The token is spent on it.
    assert_eq!(fenced_out(b.claim("Q", 6).await), (FenceReason::TokenSpent, 6));
    assert_eq!(
        replayed(b.resolve("P", 6, Resolution::Posted).await).state,
        PayoutState::Posted
    );
    done(b.claim("Q", 7).await);
    assert_eq!(
        replayed(b.resolve("P", 6, Resolution::Posted).await).state,
        PayoutState::Posted
    );
    assert_eq!(
        fenced_out(b.resolve("P", 6, Resolution::Failed).await),
        (FenceReason::Stale, 7)
    );
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn only_an_ambiguous_payout_is_resolved() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    b.rail.says("P", Some("ACKED"), Some("r")).await;
    for (token, from) in [(3, PayoutState::Pending), (4, PayoutState::Claimed)] {
        if from == PayoutState::Claimed {
            done(b.claim("P", 3).await);
        }
        assert_eq!(
            refused(b.resolve("P", token, Resolution::Posted).await),
            Refusal::IllegalTransition {
                from,
                to: PayoutState::Posted
            }
        );
    }
}

#[tokio::test]
async fn by_hand_needs_no_evidence_but_may_not_contradict_it() {
    let b = ambiguous().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    let before = b.all_rows().await;
    no_evidence(b.apply("P", by_hand(6, Resolution::Failed, None)).await);
    no_evidence(b.apply("P", by_hand(6, Resolution::Posted, Some("r2"))).await);
    b.rail.says("P", Some("NOT_RECEIVED"), None).await;
    no_evidence(b.apply("P", by_hand(6, Resolution::Posted, Some("r1"))).await);
    b.rail.says("P", Some("TIMEOUT"), None).await;
    assert_eq!(
        fenced_out(b.apply("P", by_hand(4, Resolution::Posted, None)).await),
        (FenceReason::Stale, 5)
    );
    assert_eq!(b.all_rows().await, before);
    let posted = done(b.apply("P", by_hand(6, Resolution::Posted, Some("seen"))).await);
    assert_eq!(posted.rail_reference.as_deref(), Some("seen"));
    let last = b
        .store
        .history("P".into(), 0, 10, WITHIN)
        .await
        .unwrap()
        .unwrap()
        .pop()
        .unwrap();
    assert_eq!((last.actor.as_str(), last.token), ("op", Some(6)));
    assert!(last.detail.unwrap().contains("seen on the statement"));
}

#[tokio::test]
async fn case_d02_a_late_ack_between_lookup_and_resolution_decides() {
    let b = ambiguous().await;
    b.rail.says("P", Some("NOT_RECEIVED"), None).await;
    // The reconciler has read NOT_RECEIVED; before his resolution arrives the rail acks.
    b.rail.says("P", Some("ACKED"), Some("late")).await;
    assert_eq!(no_evidence(b.resolve("P", 6, Resolution::Failed).await), "ACKED");
    done(b.resolve("P", 6, Resolution::Posted).await);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn case_p06_post_reconcile_and_late_ack_at_once_write_two_legs() {
    let seed = 0x0d10_c006_u64;
    println!("seed {seed}");
    let random = Random::seeded(seed);
    for round in 0..12 {
        let b = bench().await;
        b.account("A", 1_000).await;
        b.payout("P", "A", 400).await;
        done(b.claim("P", 5).await);
        b.rail.says("P", Some("TIMEOUT"), None).await;
        if random.chance(0.5) {
            done(b.ambiguous("P", 5).await);
        }
        let mut verbs = vec![
            post(5, "late"),
            crate::support::ambiguous(5),
            resolve(6, Resolution::Posted),
            resolve(7, Resolution::Posted),
            resolve(8, Resolution::Failed),
        ];
        for last in (1..verbs.len()).rev() {
            verbs.swap(last, usize::try_from(random.below(last as u64 + 1)).unwrap());
        }
        let rail = b.another_rail().await;
        let ack = tokio::spawn(async move { rail.says("P", Some("ACKED"), Some("late")).await });
        let calls: Vec<_> = verbs
            .into_iter()
            .map(|verb| {
                let store = b.store.clone();
                tokio::spawn(async move { store.apply(command("P", verb), WITHIN).await.unwrap() })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        ack.await.unwrap();
        // Whatever happened, the next holder brings it to its end.
        if b.now("P").await.state == PayoutState::Claimed {
            done(b.claim("P", 9).await);
            done(b.post("P", 9, "late").await);
        } else if b.now("P").await.state == PayoutState::RailAmbiguous {
            done(b.resolve("P", 9, Resolution::Posted).await);
        }
        assert_eq!(
            (b.now("P").await.state, b.legs("P").await),
            (PayoutState::Posted, 2),
            "round {round}"
        );
        assert_eq!(b.violations().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn escalation_is_a_flag_and_changes_nothing_else() {
    let b = ambiguous().await;
    assert_eq!(
        b.store
            .escalate(b.store.tally(WITHIN).await.unwrap().now_ms - 3_600_000, 10, WITHIN)
            .await
            .unwrap(),
        Vec::<String>::new()
    );
    let before = b.now("P").await;
    assert_eq!(b.store.escalate(i64::MAX, 10, WITHIN).await.unwrap(), ["P"]);
    assert_eq!(
        b.store.escalate(i64::MAX, 10, WITHIN).await.unwrap(),
        Vec::<String>::new()
    );
    let after = b.now("P").await;
    assert!(after.escalated_at_ms.is_some());
    assert_eq!((after.state, after.version), (before.state, before.version));
    assert_eq!(b.store.tally(WITHIN).await.unwrap().escalated, 1);
    b.rail.says("P", Some("ACKED"), Some("late")).await;
    assert!(matches!(
        b.resolve("P", 6, Resolution::Posted).await,
        StepOutcome::Done(_)
    ));
}
