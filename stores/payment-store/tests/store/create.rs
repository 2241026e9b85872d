//! P1, P2: accounts, credits, payouts.

use super::bench;
use crate::support::{WITHIN, new_payout};
use payment_store::{AMOUNT_MAX_MINOR, CreateOutcome, Creditor, NewAccount, NewCredit};

fn open(currency: &str, opening_balance_minor: i64) -> NewAccount {
    NewAccount {
        account_id: "A".into(),
        currency: currency.into(),
        opening_balance_minor,
        actor: None,
    }
}

fn credit(key: &str, account_id: &str, amount_minor: i64) -> NewCredit {
    NewCredit {
        idempotency_key: key.into(),
        account_id: account_id.into(),
        amount_minor,
        reference: "top-up".into(),
        actor: None,
    }
}

#[tokio::test]
async fn an_account_is_opened_once() {
    let b = bench().await;
    assert!(matches!(
        b.store.open_account(open("EUR", 10), WITHIN).await.unwrap(),
        CreateOutcome::Created(_)
    ));
    assert!(matches!(
        b.store.open_account(open("EUR", 10), WITHIN).await.unwrap(),
        CreateOutcome::Existing(_)
    ));
    for other in [open("EUR", 11), open("USD", 10)] {
        assert!(matches!(
            b.store.open_account(other, WITHIN).await.unwrap(),
            CreateOutcome::Conflict { .. }
        ));
    }
}

#[tokio::test]
async fn case_p10_a_reused_key_with_another_body_makes_nothing() {
    let b = bench().await;
    b.account("A", 10).await;
    b.account("B", 10).await;
    assert!(matches!(
        b.store.credit(credit("k", "A", 5), WITHIN).await.unwrap(),
        CreateOutcome::Created(account) if account.balance_minor == 15
    ));
    assert!(matches!(
        b.store.credit(credit("k", "A", 5), WITHIN).await.unwrap(),
        CreateOutcome::Existing(account) if account.balance_minor == 15
    ));
    let before = b.all_rows().await;
    for other in [credit("k", "A", 6), credit("k", "B", 5)] {
        assert_eq!(b.store.credit(other, WITHIN).await.unwrap(), CreateOutcome::KeyReused);
    }
    b.payout("P", "A", 5).await;
    let mut other = new_payout("P", "A", 6);
    assert_eq!(
        b.store.create_payout(other.clone(), WITHIN).await.unwrap(),
        CreateOutcome::KeyReused
    );
    other.amount_minor = 5;
    assert!(matches!(
        b.store.create_payout(other.clone(), WITHIN).await.unwrap(),
        CreateOutcome::Existing(payout) if payout.payout_id == "P"
    ));
    // The same id under another key is another request.
    other.idempotency_key = "another".into();
    assert!(matches!(
        b.store.create_payout(other, WITHIN).await.unwrap(),
        CreateOutcome::Conflict { .. }
    ));
    assert_ne!(b.all_rows().await, before);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_payout_needs_its_account_and_its_currency() {
    let b = bench().await;
    b.account("A", 10).await;
    let mut payout = new_payout("P", "nobody", 5);
    assert_eq!(
        b.store.create_payout(payout.clone(), WITHIN).await.unwrap(),
        CreateOutcome::AccountNotFound
    );
    payout.account_id = "A".into();
    payout.currency = "USD".into();
    assert_eq!(
        b.store.create_payout(payout, WITHIN).await.unwrap(),
        CreateOutcome::CurrencyMismatch { currency: "EUR".into() }
    );
}

#[tokio::test]
async fn a_balance_never_leaves_what_json_can_carry() {
    let b = bench().await;
    b.account("A", AMOUNT_MAX_MINOR).await;
    assert_eq!(
        b.store.credit(credit("k", "A", 1), WITHIN).await.unwrap(),
        CreateOutcome::BalanceTooLarge
    );
}

#[tokio::test]
async fn case_p12_text_is_kept_and_compared_byte_for_byte() {
    let b = bench().await;
    b.account("A", 1_000).await;
    // é composed and decomposed, an emoji of several code points, right-to-left, a line separator.
    let texts = ["\u{e9}", "e\u{301}", "👩‍🚀", "\u{5e9}\u{5dc}\u{5d5}\u{5dd}", "a\u{2028}b"];
    for (n, text) in texts.into_iter().enumerate() {
        let mut payout = new_payout(&format!("P{n}"), "A", 1);
        payout.creditor = Creditor {
            name: text.into(),
            account: text.into(),
        };
        payout.reference = Some(text.into());
        b.store.create_payout(payout.clone(), WITHIN).await.unwrap();
        let kept = b.now(&format!("P{n}")).await;
        assert_eq!(
            (kept.creditor.name.as_bytes(), kept.reference.unwrap().as_bytes()),
            (text.as_bytes(), text.as_bytes())
        );
        // The other Unicode form of the same letters is another body.
        if text == "\u{e9}" {
            payout.creditor.name = "e\u{301}".into();
            assert_eq!(
                b.store.create_payout(payout, WITHIN).await.unwrap(),
                CreateOutcome::KeyReused
            );
        }
    }
}
