//! P10 (C1.6, account fence).

use super::bench;
use crate::support::{done, fenced_out, replayed};
use payment_store::{FenceOutcome, FenceReason};

#[tokio::test]
async fn the_mark_goes_to_just_below_the_token() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    assert_eq!(b.fence("A", 8).await, FenceOutcome::Raised { fence: 7 });
    let before = b.all_rows().await;
    assert_eq!(b.fence("A", 8).await, FenceOutcome::Raised { fence: 7 });
    assert_eq!(
        b.fence("A", 5).await,
        FenceOutcome::FencedOut {
            reason: FenceReason::Stale,
            highest: 7
        }
    );
    assert_eq!(
        b.fence("A", 7).await,
        FenceOutcome::FencedOut {
            reason: FenceReason::Stale,
            highest: 7
        }
    );
    assert_eq!(b.fence("nobody", 8).await, FenceOutcome::AccountNotFound);
    assert_eq!(b.all_rows().await, before);
    // The token itself is not spent by it.
    done(b.claim("P", 8).await);
    assert_eq!(
        b.fence("A", 8).await,
        FenceOutcome::FencedOut {
            reason: FenceReason::TokenSpent,
            highest: 8
        }
    );
}

#[tokio::test]
async fn a_first_token_has_nothing_below_it() {
    let b = bench().await;
    b.account("A", 1_000).await;
    assert_eq!(b.fence("A", 1).await, FenceOutcome::Raised { fence: 0 });
}

#[tokio::test]
async fn case_d07_a_revoked_holder_is_refused_although_nobody_acquired() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    // W1 holds 7 and has done nothing; the revoke minted 8.
    b.fence("A", 8).await;
    b.rail.says("P", Some("ACKED"), Some("r")).await;
    let before = b.all_rows().await;
    assert_eq!(fenced_out(b.claim("P", 7).await), (FenceReason::Stale, 7));
    assert_eq!(fenced_out(b.post("P", 7, "r").await), (FenceReason::Stale, 7));
    assert_eq!(b.all_rows().await, before);
}

#[tokio::test]
async fn case_d07_even_a_holder_that_had_claimed_is_refused_from_then_on() {
    // The revoke's token is the very next one, so the mark does not move: the barrier alone shuts the holder out.
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    b.payout("Q", "A", 100).await;
    done(b.claim("P", 7).await);
    assert_eq!(b.fence("A", 8).await, FenceOutcome::Raised { fence: 7 });
    b.rail.says("P", Some("ACKED"), Some("r")).await;
    let before = b.all_rows().await;
    assert_eq!(fenced_out(b.claim("P", 7).await), (FenceReason::Stale, 7));
    assert_eq!(fenced_out(b.claim("Q", 7).await), (FenceReason::Stale, 7));
    assert_eq!(fenced_out(b.post("P", 7, "r").await), (FenceReason::Stale, 7));
    assert_eq!(b.all_rows().await, before);
    // The next holder settles it.
    done(b.claim("P", 9).await);
    done(b.post("P", 9, "r").await);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_step_that_was_done_before_the_barrier_still_replays() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 100).await;
    done(b.claim("P", 7).await);
    b.rail.says("P", Some("ACKED"), Some("r")).await;
    done(b.post("P", 7, "r").await);
    b.fence("A", 8).await;
    replayed(b.post("P", 7, "r").await);
}
