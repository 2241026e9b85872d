//! The ledger and the histories are append-only; verify sees what is wrong.

use crate::support::{Bench, WITHIN, done};
use payment_store::{PaymentStore, SqlitePayments};
use std::time::Duration;

async fn posted() -> Bench {
    let b = Bench::new().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("r1"));
    done(b.post("P", 5, "r1").await);
    b
}

#[tokio::test]
async fn the_database_refuses_to_change_what_was_written() {
    // FR-25, FR-30.
    let b = posted().await;
    let db = b.side();
    for statement in [
        "UPDATE ledger_entry SET amount_minor = 1",
        "DELETE FROM ledger_entry",
        "UPDATE payout_transition SET token = 1",
        "DELETE FROM payout_transition",
        "UPDATE payment_event SET actor = 'x'",
        "DELETE FROM payment_event",
        "DELETE FROM payout",
        "UPDATE account SET fence = 4",
        "INSERT OR REPLACE INTO ledger_entry SELECT * FROM ledger_entry",
    ] {
        // REPLACE deletes without triggers unless they are recursive; the store's own connections set this too.
        db.execute_batch("PRAGMA recursive_triggers = ON").unwrap();
        let error = db.execute_batch(statement).unwrap_err().to_string();
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
    let db = b.side();
    db.execute_batch("UPDATE account SET balance_minor = 601").unwrap();
    assert!(b.violations().await[0].contains("stored balance of 601"));
    db.execute_batch("UPDATE account SET balance_minor = 600").unwrap();
    db.execute_batch("UPDATE payout SET state = 'CLAIMED'").unwrap();
    let said = b.violations().await.join("\n");
    assert!(
        said.contains("CLAIMED with 2 ledger legs") && said.contains("history ends in POSTED"),
        "{said}"
    );
    db.execute_batch("UPDATE payout SET state = 'POSTED'").unwrap();
    db.execute_batch(
        "INSERT INTO ledger_entry (payout_id, account_id, currency, amount_minor, at) VALUES ('P', 'A', 'EUR', -1, 0)",
    )
    .unwrap();
    let said = b.violations().await.join("\n");
    assert!(said.contains("POSTED with 3 ledger legs"), "{said}");
}

#[tokio::test]
async fn a_failed_payout_that_the_rail_executed_is_a_violation() {
    let b = Bench::new().await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("DECLINED"), None);
    done(b.fail("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("r"));
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

#[tokio::test]
async fn case_p13_another_process_that_holds_the_file_delays_and_never_refuses() {
    let b = posted().await;
    b.payout("Q", "A", 1).await;
    let db = b.side();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let store: std::sync::Arc<SqlitePayments> = b.store.clone();
    let call = tokio::spawn(async move {
        store
            .apply(crate::support::command("Q", crate::support::claim(6)), WITHIN)
            .await
    });
    // Too short a time to begin: certainly not done, and said so.
    let hurried = b
        .store
        .apply(
            crate::support::command("Q", crate::support::claim(7)),
            Duration::from_millis(50),
        )
        .await
        .unwrap_err();
    assert!(!hurried.is_ambiguous(), "{hurried}");
    assert!(!call.is_finished());
    db.execute_batch("COMMIT").unwrap();
    assert_eq!(done(call.await.unwrap().unwrap()).claim_token, Some(6));
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
