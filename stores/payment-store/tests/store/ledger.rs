//! The ledger and the histories are append-only; verify sees what is wrong.

use super::bench;
use crate::support::{Bench, WITHIN, done};
use payment_store::NewCredit;

async fn posted() -> Bench {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.post("P", 5, "r1").await);
    b
}

#[tokio::test]
async fn the_database_refuses_to_change_what_was_written() {
    // FR-25, FR-30.
    let b = posted().await;
    for statement in [
        "UPDATE ledger_entry SET amount_minor = 1",
        "DELETE FROM ledger_entry",
        "UPDATE payout_transition SET token = 1",
        "DELETE FROM payout_transition",
        "UPDATE payment_event SET actor = 'x'",
        "DELETE FROM payment_event",
        "DELETE FROM payout",
        "UPDATE account SET fence = 4",
    ] {
        let error = b.execute(statement).await.unwrap_err();
        assert!(
            error.contains("append-only") || error.contains("never") || error.contains("only rises"),
            "{statement}: {error}"
        );
    }
}

#[tokio::test]
async fn verify_names_what_is_wrong() {
    let b = posted().await;
    assert_eq!(b.violations().await, Vec::<String>::new());
    b.execute("UPDATE account SET balance_minor = 601").await.unwrap();
    assert!(b.violations().await[0].contains("stored balance of 6.01 EUR"));
    b.execute("UPDATE account SET balance_minor = 600").await.unwrap();
    b.execute("UPDATE payout SET state = 'CLAIMED'").await.unwrap();
    let said = b.violations().await.join("\n");
    assert!(
        said.contains("CLAIMED with 2 ledger legs") && said.contains("history ends in POSTED"),
        "{said}"
    );
    b.execute("UPDATE payout SET state = 'POSTED'").await.unwrap();
    b.execute(
        "INSERT INTO ledger_entry (payout_id, account_id, currency, amount_minor, at) VALUES ('P', 'A', 'EUR', -1, 0)",
    )
    .await
    .unwrap();
    let said = b.violations().await.join("\n");
    assert!(said.contains("POSTED with 3 ledger legs"), "{said}");
}

#[tokio::test]
async fn a_failed_payout_that_the_rail_executed_is_a_violation() {
    let b = bench().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("DECLINED"), None).await;
    done(b.fail("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("r")).await;
    assert!(b.violations().await[0].contains("FAILED, the rail executed"));
}

#[tokio::test]
async fn the_tally_counts_each_state() {
    let b = posted().await;
    b.payout("Q", "A", 1).await;
    let tally = b.store.tally(WITHIN).await.unwrap();
    let counts: Vec<_> = tally.by_state.iter().map(|(_, n)| *n).collect();
    assert_eq!(counts, [1, 0, 0, 1, 0]);
    assert!(tally.oldest_open_ms.is_some() && tally.oldest_ambiguous_ms.is_none());
}

/// PENDING without funds is a lawful rest (C1.8), so it must not look like a backlog that grows for ever.
#[tokio::test]
async fn a_payout_without_funds_is_no_backlog_until_they_come() {
    let b = bench().await;
    let tally = async || b.store.tally(WITHIN).await.unwrap();
    b.account("poor", 100).await;
    let unfunded = b.payout("U", "poor", 101).await;
    assert_eq!(tally().await.oldest_open_ms, None);
    // What another payout holds is not there to be spent.
    let held = b.payout("H", "poor", 60).await;
    done(b.claim("H", 5).await);
    b.payout("L", "poor", 50).await;
    assert_eq!(
        tally().await.oldest_open_ms,
        Some(held.created_at_ms),
        "it is the one in hand"
    );
    b.rail.says("H", Some("TIMEOUT"), None).await;
    done(b.ambiguous("H", 5).await);
    assert_eq!(
        tally().await.oldest_open_ms,
        None,
        "the ambiguous one still holds its money"
    );
    let credit = NewCredit {
        account_id: "poor".into(),
        idempotency_key: "c1".into(),
        amount_minor: 100,
        reference: "funds".into(),
        actor: None,
    };
    b.store.credit(credit, WITHIN).await.unwrap();
    assert_eq!(tally().await.oldest_open_ms, Some(unfunded.created_at_ms));
}

#[tokio::test]
async fn the_audit_trail_names_an_actor_for_every_fact() {
    let b = posted().await;
    b.fence("A", 9).await;
    let facts = b.store.audit(0, 100, WITHIN).await.unwrap();
    let kinds: Vec<_> = facts
        .iter()
        .map(|fact| (fact.kind.as_str(), fact.actor.as_str(), fact.token))
        .collect();
    assert_eq!(
        kinds,
        [
            ("ACCOUNT_OPENED", "unnamed", None),
            ("CREATE", "client", None),
            ("CLAIM", "w1", Some(5)),
            ("POST", "w1", Some(5)),
            ("FENCE_RAISED", "op", Some(9))
        ]
    );
}
