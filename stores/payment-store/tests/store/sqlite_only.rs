//! What only files can show: a rail file that is not there, another process that holds one, REPLACE.

use crate::support::{Bench, Rail, WITHIN, ambiguous, claim, command, done, new_payout, no_evidence, post};
use payment_store::{Fencing, PaymentStore};
use std::time::Duration;

#[tokio::test]
async fn a_rail_file_that_is_not_there_is_no_evidence() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        payment_store::SqlitePayments::open(dir.path(), payment_store::Fencing::Enforced, &host_kit::Host::system())
            .await
            .unwrap();
    let open = payment_store::NewAccount {
        account_id: "A".into(),
        currency: "EUR".into(),
        opening_balance_minor: 10,
        actor: None,
    };
    store.open_account(open, WITHIN).await.unwrap();
    store.create_payout(new_payout("P", "A", 10), WITHIN).await.unwrap();
    done(store.apply(command("P", claim(1)), WITHIN).await.unwrap());
    no_evidence(store.apply(command("P", ambiguous(1)), WITHIN).await.unwrap());
    // It comes into being while the store is open.
    let rail = Rail::open(dir.path());
    rail.says("P", Some("ACKED"), Some("r")).await;
    done(store.apply(command("P", post(1, "r")), WITHIN).await.unwrap());
}

#[tokio::test]
async fn case_p13_another_process_that_holds_the_file_delays_and_never_refuses() {
    let b = Bench::on_sqlite(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    b.payout("Q", "A", 1).await;
    let db = b.side();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let store = b.store.clone();
    let call = tokio::spawn(async move { store.apply(command("Q", claim(6)), WITHIN).await });
    // Too short a time to begin: certainly not done, and said so.
    let hurried = b
        .store
        .apply(command("Q", claim(7)), Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(!hurried.is_ambiguous(), "{hurried}");
    assert!(!call.is_finished());
    db.execute_batch("COMMIT").unwrap();
    assert_eq!(done(call.await.unwrap().unwrap()).claim_token, Some(6));
}

#[tokio::test]
async fn replace_deletes_nothing_either() {
    // REPLACE deletes without triggers unless they are recursive; the store's own connections set this too.
    let b = Bench::on_sqlite(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    done(b.claim("P", 5).await);
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(b.post("P", 5, "r1").await);
    let error = b
        .execute("PRAGMA recursive_triggers = ON; INSERT OR REPLACE INTO ledger_entry SELECT * FROM ledger_entry")
        .await
        .unwrap_err();
    assert!(error.contains("append-only"), "{error}");
}
