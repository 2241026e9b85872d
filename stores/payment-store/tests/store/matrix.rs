//! The point-(a) half of the matrix of C1.6: what the switch of the payment resource loses, and what it does not. The
//! rail is played by the test as its own switch would have it.

use super::bench_with;
use crate::support::{Bench, done, fenced_out, no_evidence};
use payment_store::{FenceReason, Fencing, PayoutState};

/// W2 takes the whole way under token 2, as the recovery of C1.8 does.
async fn w2_pays(b: &Bench, n: u32, reference: &str) {
    done(b.claim("P", 2).await);
    b.rail.says_of("P", n, Some("ACKED"), Some(reference)).await;
    done(b.post("P", 2, reference).await);
}

async fn bench(fencing: Fencing) -> Bench {
    let b = bench_with(fencing).await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    b
}

#[tokio::test]
async fn on_paused_before_claim_two_legs() {
    let b = bench(Fencing::Enforced).await;
    w2_pays(&b, 1, "r2").await;
    assert_eq!(fenced_out(b.claim("P", 1).await), (FenceReason::Stale, 2));
    assert_eq!((b.legs("P").await, b.now("P").await.state), (2, PayoutState::Posted));
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn on_paused_before_post_two_legs() {
    let b = bench(Fencing::Enforced).await;
    done(b.claim("P", 1).await);
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.claim("P", 2).await);
    done(b.post("P", 2, "r1").await);
    assert_eq!(fenced_out(b.post("P", 1, "r1").await), (FenceReason::Stale, 2));
    assert_eq!(b.legs("P").await, 2);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn off_on_paused_before_claim_two_legs_under_a_payout_pushed_back_to_claimed() {
    let b = bench(Fencing::Off).await;
    w2_pays(&b, 1, "r2").await;
    let pushed = done(b.claim("P", 1).await);
    assert_eq!((pushed.state, pushed.claim_token), (PayoutState::Claimed, Some(1)));
    // The rail's fence stands: W1's submission is refused there, so W1 has no reference to post with.
    assert_eq!(b.legs("P").await, 2);
    let said = b.violations().await.join("\n");
    assert!(
        said.contains("CLAIMED with 2 ledger legs"),
        "INV-03 must be seen broken: {said}"
    );
}

#[tokio::test]
async fn off_on_paused_before_submit_two_legs() {
    let b = bench(Fencing::Off).await;
    done(b.claim("P", 1).await);
    w2_pays(&b, 1, "r2").await;
    // W1's submission is refused at the rail; nothing of W1 reaches point (a).
    assert_eq!((b.legs("P").await, b.now("P").await.state), (2, PayoutState::Posted));
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn off_on_paused_before_post_four_legs() {
    let b = bench(Fencing::Off).await;
    done(b.claim("P", 1).await);
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.claim("P", 2).await);
    done(b.post("P", 2, "r1").await);
    done(b.post("P", 1, "r1").await);
    assert_eq!(b.legs("P").await, 4);
    let said = b.violations().await.join("\n");
    assert!(
        said.contains("POSTED with 4 ledger legs"),
        "INV-03 must be seen broken: {said}"
    );
    // Money is gone that was paid once: the balance went down twice.
    assert_eq!(b.account_now("A").await.balance_minor, 200);
}

#[tokio::test]
async fn on_off_paused_before_submit_two_legs_over_two_executions() {
    let b = bench(Fencing::Enforced).await;
    done(b.claim("P", 1).await);
    w2_pays(&b, 2, "r2").await;
    // The rail trusts W1 and executes again; point (a) does not let W1 post it.
    b.rail.says_of("P", 1, Some("ACKED"), Some("r1")).await;
    assert_eq!(fenced_out(b.post("P", 1, "r1").await), (FenceReason::Stale, 2));
    assert_eq!(b.legs("P").await, 2);
}

#[tokio::test]
async fn off_off_paused_before_claim_four_legs() {
    let b = bench(Fencing::Off).await;
    w2_pays(&b, 2, "r2").await;
    done(b.claim("P", 1).await);
    b.rail.says_of("P", 1, Some("ACKED"), Some("r1")).await;
    done(b.post("P", 1, "r1").await);
    assert_eq!(b.legs("P").await, 4);
}

#[tokio::test]
async fn off_off_paused_before_submit_four_legs() {
    let b = bench(Fencing::Off).await;
    done(b.claim("P", 1).await);
    w2_pays(&b, 2, "r2").await;
    b.rail.says_of("P", 1, Some("ACKED"), Some("r1")).await;
    done(b.post("P", 1, "r1").await);
    assert_eq!(b.legs("P").await, 4);
}

#[tokio::test]
async fn off_drops_the_predicates_and_nothing_else() {
    let b = bench(Fencing::Off).await;
    b.payout("huge", "A", 1_000_000).await;
    // No mark, no version, no funds.
    done(b.claim("huge", 1).await);
    done(b.claim("P", 9).await);
    done(b.claim("P", 3).await);
    assert_eq!((b.mark("A").await, b.now("P").await.claim_token), (0, Some(3)));
    // A repeated step still replays, evidence is still demanded, an unknown payout is still unknown.
    crate::support::replayed(b.claim("P", 3).await);
    no_evidence(b.post("P", 3, "r").await);
    no_evidence(b.fail("P", 3).await);
    b.rail.says("P", Some("ACKED"), Some("r")).await;
    done(b.post("P", 3, "r").await);
    crate::support::replayed(b.post("P", 3, "r").await);
    assert_eq!(b.legs("P").await, 2);
    crate::support::refused(b.claim("nobody", 3).await);
}
