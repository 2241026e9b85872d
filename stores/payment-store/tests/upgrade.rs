//! A `payment.db` that an older program wrote is brought to this program's schema with everything in it.
//!
//! So far there is one version, so its fixture is opened by the program that knows the same one. Whoever adds version N + 1
//! finds the fixture of version N here already, and has to add that of N + 1 (`scripts/release/paydb-fixture`) for whoever
//! comes next. That a published migration never changes is `lock-store`'s to say, for all stores.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use host_kit::Host;
use lock_api::FencingToken;
use payment_store::{
    Command, CreateOutcome, Creditor, FenceReason, Fencing, NewPayout, PaymentStore, PayoutQuery, PayoutState, Refusal,
    SqlitePayments, StepOutcome, Verb,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(30);
const ACCOUNT: &str = "fixture";

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixture(version: u32) -> PathBuf {
    package().join(format!("tests/fixtures/sqlite-v{version}.sql"))
}

/// The versions that there are migrations for, from 1.
fn versions() -> Vec<u32> {
    let mut versions: Vec<u32> = std::fs::read_dir(package().join("migrations"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.split('_').next().unwrap().parse().unwrap())
        .collect();
    versions.sort_unstable();
    versions
}

#[test]
fn every_version_has_a_fixture_that_a_program_of_that_version_wrote() {
    let versions = versions();
    assert_eq!(
        versions,
        (1..=u32::try_from(versions.len()).unwrap()).collect::<Vec<u32>>()
    );
    for version in versions {
        let fixture = fixture(version);
        assert!(
            fixture.exists(),
            "{} is missing: make it with scripts/release/paydb-fixture before this version is released",
            fixture.display()
        );
    }
}

fn token(value: u64) -> FencingToken {
    FencingToken::from_store(value).unwrap()
}

fn claim(payout: &str, value: u64) -> Command {
    Command {
        payout_id: payout.to_owned(),
        actor: Some("newcomer".to_owned()),
        verb: Verb::Claim {
            token: token(value),
            expected_version: None,
        },
    }
}

/// What the fixture's program had been told to do, looked for in what this program finds.
async fn holds_what_it_held(store: &SqlitePayments, context: &str) {
    let query = PayoutQuery {
        state: None,
        account_id: Some(ACCOUNT.to_owned()),
        after: 0,
        limit: 100,
    };
    let payouts = store.payouts(query, WITHIN).await.unwrap();
    let stand: Vec<(&str, PayoutState, Option<u64>)> = payouts
        .iter()
        .map(|payout| (payout.payout_id.as_str(), payout.state, payout.claim_token))
        .collect();
    assert_eq!(
        stand,
        [
            ("F-posted", PayoutState::Posted, Some(1)),
            ("F-declined", PayoutState::Failed, Some(2)),
            ("F-not-received", PayoutState::Failed, Some(3)),
            ("F-ambiguous", PayoutState::RailAmbiguous, Some(4)),
            ("F-pending", PayoutState::Pending, None),
        ],
        "{context}"
    );
    assert!(payouts.iter().all(|payout| payout.creditor.name == "Zoë"), "{context}");
    assert_eq!(payouts[0].rail_reference.as_deref(), Some("RAIL-000001-0f5e2fd1"));
    assert_eq!(payouts[2].failure_reason.as_deref(), Some("NOT_RECEIVED"));
    assert!(payouts[3].ambiguous_since_ms.is_some(), "{context}");

    // The money: an opening balance, a credit, one payout paid, one held. Nothing of it is another sum.
    let account = store.account(ACCOUNT.to_owned(), WITHIN).await.unwrap().unwrap();
    assert_eq!(
        (
            account.opening_balance_minor,
            account.balance_minor,
            account.held_minor,
            account.fence
        ),
        (10_000, 10_000 + 5_000 - 1_250, 500, 6),
        "{context}"
    );
    let verified = store.verify(WITHIN).await.unwrap();
    assert_eq!(verified.violations, Vec::<String>::new(), "{context}");
    assert_eq!((verified.payouts, verified.entries), (5, 4), "{context}");
    let tally = store.tally(WITHIN).await.unwrap();
    for (state, count) in tally.by_state {
        let counted = payouts.iter().filter(|payout| payout.state == state).count() as u64;
        assert_eq!(count, counted, "{context}: {state:?}");
    }

    // What was done, by whom, under which token.
    let steps = store
        .history("F-not-received".to_owned(), 0, 100, WITHIN)
        .await
        .unwrap()
        .unwrap();
    let steps: Vec<(PayoutState, Option<u64>, &str)> = steps
        .iter()
        .map(|step| (step.to_state, step.token, step.actor.as_str()))
        .collect();
    assert_eq!(
        steps,
        [
            (PayoutState::Pending, None, "the fixture"),
            (PayoutState::Claimed, Some(3), "worker"),
            (PayoutState::RailAmbiguous, Some(3), "worker"),
            (PayoutState::Failed, Some(5), "worker"),
        ],
        "{context}"
    );
    let audit = store.audit(0, 100, WITHIN).await.unwrap();
    assert_eq!(audit.len(), 17, "{context}");
    assert_eq!(audit.last().unwrap().kind, "FENCE_RAISED", "{context}");
}

/// What it must go on refusing and recognising, and the next step that is lawful.
async fn goes_on(store: &SqlitePayments, context: &str) {
    let refused = store.apply(claim("F-pending", 6), WITHIN).await.unwrap();
    let StepOutcome::Refused(Refusal::FencedOut { reason, highest, .. }) = refused else {
        panic!("{context}: {refused:?}");
    };
    assert_eq!((reason, highest), (FenceReason::Stale, 6), "{context}");

    // A request that the old program answered is known by its key, whatever it asks for now.
    let again = |amount_minor| NewPayout {
        idempotency_key: "key-F-pending".to_owned(),
        chosen_id: Some("F-pending".to_owned()),
        fresh_id: "F-fresh".to_owned(),
        account_id: ACCOUNT.to_owned(),
        amount_minor,
        currency: "EUR".to_owned(),
        creditor: Creditor {
            name: "Zoë".to_owned(),
            account: "DE02".to_owned(),
        },
        reference: Some("invoice F-pending".to_owned()),
        actor: Some("the fixture".to_owned()),
    };
    let known = store.create_payout(again(100), WITHIN).await.unwrap();
    assert!(
        matches!(&known, CreateOutcome::Existing(payout) if payout.payout_id == "F-pending"),
        "{context}: {known:?}"
    );
    let other = store.create_payout(again(101), WITHIN).await.unwrap();
    assert!(matches!(other, CreateOutcome::KeyReused), "{context}: {other:?}");

    // Whoever was shut out by hand stays out, even of what he had done.
    let barred = store.apply(claim("F-posted", 1), WITHIN).await.unwrap();
    assert!(
        matches!(barred, StepOutcome::Refused(Refusal::FencedOut { .. })),
        "{context}: {barred:?}"
    );
    let claimed = store.apply(claim("F-pending", 8), WITHIN).await.unwrap();
    assert!(
        matches!(&claimed, StepOutcome::Done(payout) if payout.state == PayoutState::Claimed),
        "{context}: {claimed:?}"
    );
    let again = store.apply(claim("F-pending", 8), WITHIN).await.unwrap();
    assert!(matches!(again, StepOutcome::Replayed(_)), "{context}: {again:?}");
    let account = store.account(ACCOUNT.to_owned(), WITHIN).await.unwrap().unwrap();
    assert_eq!((account.held_minor, account.fence), (600, 8), "{context}");
}

#[tokio::test]
async fn every_older_file_is_brought_up_to_date_with_its_data() {
    for version in versions() {
        let context = format!("v{version}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("payment.db");
        // A dump's tables are in the order of their names, so one refers to another that comes later.
        let dump = std::fs::read_to_string(fixture(version)).unwrap();
        let sql = format!("PRAGMA foreign_keys = OFF;\n{dump}");
        rusqlite::Connection::open(&file).unwrap().execute_batch(&sql).unwrap();
        let store = SqlitePayments::open(dir.path(), Fencing::Enforced, &Host::system())
            .await
            .unwrap();
        holds_what_it_held(&store, &context).await;
        goes_on(&store, &context).await;
        store.close().await;
        let connection = rusqlite::Connection::open(&file).unwrap();
        let migrated: u32 = connection
            .query_row("SELECT max(version) FROM schema_migration", [], |row| row.get(0))
            .unwrap();
        assert_eq!(Some(&migrated), versions().last());
    }
}
