//! P4 (C1.6, claim).

use super::bench;
use crate::support::{WITHIN, claim, command, done, fenced_out, refused, replayed, t};
use payment_store::{FenceReason, PayoutState, Refusal, Resolution, StepOutcome, Verb};

#[tokio::test]
async fn a_claim_advances_the_mark_and_holds_the_money() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    let claimed = done(b.claim("P", 5).await);
    assert_eq!(
        (claimed.state, claimed.claim_token, claimed.version),
        (PayoutState::Claimed, Some(5), 2)
    );
    let account = b.account_now("A").await;
    assert_eq!(
        (account.fence, account.balance_minor, account.held_minor),
        (5, 1_000, 400)
    );
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_lower_token_is_stale_and_changes_no_row() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    b.payout("Q", "A", 100).await;
    done(b.claim("P", 5).await);
    let before = b.all_rows().await;
    assert_eq!(fenced_out(b.claim("Q", 4).await), (FenceReason::Stale, 5));
    assert_eq!(fenced_out(b.claim("P", 4).await), (FenceReason::Stale, 5));
    assert_eq!(b.all_rows().await, before);
}

#[tokio::test]
async fn one_grant_gives_one_payout() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    b.payout("Q", "A", 100).await;
    done(b.claim("P", 5).await);
    let before = b.all_rows().await;
    assert_eq!(fenced_out(b.claim("Q", 5).await), (FenceReason::TokenSpent, 5));
    assert_eq!(replayed(b.claim("P", 5).await).claim_token, Some(5));
    assert_eq!(b.all_rows().await, before);
}

#[tokio::test]
async fn a_token_of_another_account_is_another_token() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.account("B", 1_000).await;
    b.payout("P", "A", 100).await;
    b.payout("Q", "B", 100).await;
    done(b.claim("P", 5).await);
    b.fence("B", 6).await;
    // On B the mark is 5 by a barrier; that 5 was used on A does not make it spent here.
    assert_eq!(fenced_out(b.claim("Q", 5).await), (FenceReason::Stale, 5));
    done(b.claim("Q", 6).await);
}

#[tokio::test]
async fn a_replay_answers_what_is_recorded_now() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.post("P", 5, "r1").await);
    assert_eq!(replayed(b.claim("P", 5).await).state, PayoutState::Posted);
}

#[tokio::test]
async fn a_claim_does_not_replay_once_the_mark_moved_on() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    done(b.claim("P", 5).await);
    let taken_over = done(b.claim("P", 6).await);
    assert_eq!((taken_over.claim_token, taken_over.version), (Some(6), 3));
    assert_eq!(fenced_out(b.claim("P", 5).await), (FenceReason::Stale, 6));
}

#[tokio::test]
async fn a_business_refusal_leaves_the_mark() {
    let b = bench().await;
    b.account("A", 100).await;
    b.payout("P", "A", 101).await;
    b.payout("Q", "A", 100).await;
    let before = b.all_rows().await;
    assert_eq!(
        refused(b.claim("P", 5).await),
        Refusal::InsufficientFunds {
            available_minor: 100,
            amount_minor: 101,
            currency: "EUR".into(),
        }
    );
    assert_eq!(b.all_rows().await, before);
    // The token is not spent by it.
    done(b.claim("Q", 5).await);
}

#[tokio::test]
async fn what_the_worker_re_read_is_in_the_predicate() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    let stale_read = |version| Verb::Claim {
        token: t(9),
        expected_version: Some(version),
    };
    done(b.claim("P", 5).await);
    assert_eq!(
        refused(b.apply("P", stale_read(1)).await),
        Refusal::VersionConflict { expected: 1, actual: 2 }
    );
    assert_eq!(b.mark("A").await, 5);
    done(b.apply("P", stale_read(2)).await);
}

#[tokio::test]
async fn an_ambiguous_payout_is_claimed_by_nobody() {
    // FR-23.
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("TIMEOUT"), None).await;
    done(b.ambiguous("P", 5).await);
    for token in [6, 7, 1_000] {
        assert_eq!(
            refused(b.claim("P", token).await),
            Refusal::IllegalTransition {
                from: PayoutState::RailAmbiguous,
                to: PayoutState::Claimed
            }
        );
    }
    assert_eq!(b.mark("A").await, 5);
}

#[tokio::test]
async fn an_unknown_payout_is_not_found() {
    let b = bench().await;
    assert_eq!(refused(b.claim("nobody", 1).await), Refusal::PayoutNotFound);
}

#[tokio::test]
async fn case_p02_ambiguous_money_stays_held() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 600).await;
    b.payout("Q", "A", 401).await;
    b.payout("R", "A", 400).await;
    done(b.claim("P", 1).await);
    b.rail.says("P", Some("TIMEOUT"), None).await;
    done(b.ambiguous("P", 1).await);
    assert_eq!(
        refused(b.claim("Q", 2).await),
        Refusal::InsufficientFunds {
            available_minor: 400,
            amount_minor: 401,
            currency: "EUR".into(),
        }
    );
    done(b.claim("R", 2).await);
}

#[tokio::test]
async fn case_p04_a_failed_payout_is_never_claimed_again() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 600).await;
    done(b.claim("P", 1).await);
    b.rail.says("P", Some("DECLINED"), None).await;
    done(b.fail("P", 1).await);
    let credit = payment_store::NewCredit {
        idempotency_key: "k".into(),
        account_id: "A".into(),
        amount_minor: 5_000,
        reference: "top-up".into(),
        actor: None,
    };
    b.store.credit(credit, WITHIN).await.unwrap();
    assert_eq!(
        refused(b.claim("P", 2).await),
        Refusal::IllegalTransition {
            from: PayoutState::Failed,
            to: PayoutState::Claimed
        }
    );
    assert_eq!(b.account_now("A").await.held_minor, 0);
}

#[tokio::test]
async fn case_p09_the_sixth_claim_exceeds_the_balance() {
    let b = bench().await;
    b.account("A", 5_000).await;
    for n in 1..=6u64 {
        b.payout(&format!("P{n}"), "A", 1_000).await;
    }
    for n in 1..=5u64 {
        done(b.claim(&format!("P{n}"), n).await);
    }
    assert_eq!(
        refused(b.claim("P6", 6).await),
        Refusal::InsufficientFunds {
            available_minor: 0,
            amount_minor: 1_000,
            currency: "EUR".into(),
        }
    );
    assert_eq!(b.mark("A").await, 5);
}

#[tokio::test]
async fn case_d06_a_dead_workers_claim_is_taken_over_without_a_second_look_at_the_funds() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 1_000).await;
    done(b.claim("P", 1).await);
    // Nothing is available any more, and nothing is PENDING on the account: another worker finds it in the list.
    let claimed = payment_store::PayoutQuery {
        state: Some(PayoutState::Claimed),
        account_id: Some("A".into()),
        after: 0,
        limit: 10,
    };
    let found = b.store.payouts(claimed, WITHIN).await.unwrap();
    assert_eq!(found.len(), 1);
    done(b.claim("P", 2).await);
    b.rail.says("P", Some("ACKED"), Some("r")).await;
    done(b.post("P", 2, "r").await);
    assert_eq!(b.account_now("A").await.balance_minor, 0);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn case_d11_parallel_claims_never_hold_more_than_the_balance() {
    let b = bench().await;
    b.account("A", 1_000).await;
    for n in 0..40 {
        b.payout(&format!("P{n}"), "A", 90).await;
    }
    // Two stores on one database, as two processes would have it.
    let stores = [b.store.clone(), b.another_store().await];
    let calls: Vec<_> = (0..40u64)
        .map(|n| {
            let store = stores[usize::from(n % 2 == 1)].clone();
            tokio::spawn(async move {
                store
                    .apply(command(&format!("P{n}"), claim(n + 1)), WITHIN)
                    .await
                    .unwrap()
            })
        })
        .collect();
    let mut claimed = 0;
    for call in calls {
        claimed += usize::from(matches!(call.await.unwrap(), StepOutcome::Done(_)));
    }
    // Later tokens may overtake lower ones, so fewer than 11 may get through; never more.
    assert!((1..=11).contains(&claimed), "{claimed} claims of 90 on 1,000");
    let account = b.account_now("A").await;
    assert!(account.held_minor <= account.balance_minor);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn case_d14_a_payout_that_can_never_be_submitted_is_failed_and_its_hold_freed() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 1_000).await;
    done(b.claim("P", 1).await);
    assert_eq!(crate::support::no_evidence(b.fail("P", 1).await), "NONE");
    // What R6 with forbid records.
    b.rail.says("P", Some("NOT_SENT"), None).await;
    done(b.fail("P", 1).await);
    assert_eq!(b.account_now("A").await.held_minor, 0);
    assert_eq!(
        refused(b.resolve("P", 2, Resolution::Posted).await),
        Refusal::IllegalTransition {
            from: PayoutState::Failed,
            to: PayoutState::Posted
        }
    );
}
