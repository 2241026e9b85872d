//! A `rail.db` that an older program wrote is brought to this program's schema with everything in it.
//!
//! So far there is one version, so its fixture is opened by the program that knows the same one. Whoever adds version N + 1
//! finds the fixture of version N here already, and has to add that of N + 1 (`scripts/release/paydb-fixture`) for whoever
//! comes next. That a published migration never changes is `lock-store`'s to say, for all stores.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod support;

use host_kit::Host;
use rail_store::{
    ExceptionFilter, FenceReason, Fencing, ForwardClaim, Outcome, OutcomeFilter, RailStore, SqliteRailStore,
    SubmitOutcome, SubmitRequest,
};
use std::path::{Path, PathBuf};
use support::files::Files;
use support::{WITHIN, token};

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

/// What the fixture's program had been told to do, looked for in what this program finds.
async fn holds_what_it_held(store: &SqliteRailStore, context: &str) {
    let all = store.submissions(OutcomeFilter::All, 0, 100, WITHIN).await.unwrap();
    let stand: Vec<(&str, u64, i64, Option<Outcome>, bool)> = all
        .iter()
        .map(|one| {
            let forwarded = one.forwarded_at.is_some();
            (
                one.payout_id.as_str(),
                one.token.get(),
                one.amount_minor,
                one.outcome,
                forwarded,
            )
        })
        .collect();
    assert_eq!(
        stand,
        [
            ("F-posted", 1, 1_250, Some(Outcome::Acked), true),
            ("F-declined", 2, 300, Some(Outcome::Declined), true),
            ("F-not-received", 3, 400, Some(Outcome::NotReceived), true),
            ("F-ambiguous", 4, 500, Some(Outcome::Timeout), true),
        ],
        "{context}"
    );
    assert!(
        all.iter().all(|one| one.fencing_enforced && one.body_hash.is_some()),
        "{context}"
    );
    assert!(
        all[0].rail_reference.is_some() && all[1].decline_reason.is_some(),
        "{context}"
    );
    assert_eq!(all[3].cause.as_deref(), Some("read_timeout"), "{context}");

    let mark = store.high_water(ACCOUNT.to_owned(), WITHIN).await.unwrap();
    assert_eq!(mark.highest_token, 6, "{context}");
    let verdicts = async |payout: &str| -> Vec<String> {
        let lookups = store.lookups(payout.to_owned(), 100, WITHIN).await.unwrap();
        lookups.into_iter().map(|lookup| lookup.verdict).collect()
    };
    assert_eq!(
        verdicts("F-not-received").await,
        ["NOT_RECEIVED", "NOT_RECEIVED"],
        "{context}"
    );
    assert_eq!(verdicts("F-ambiguous").await, ["INCONCLUSIVE"], "{context}");
    let exceptions = store.exceptions(ExceptionFilter::All, 0, 100, WITHIN).await.unwrap();
    assert_eq!(exceptions.len(), 1, "{context}");
    assert_eq!(
        (exceptions[0].payout_id.as_str(), exceptions[0].kind.as_str()),
        ("F-posted", "DOUBLE_PAYMENT_SUSPECTED"),
        "{context}"
    );
}

fn submit(payout: &str, value: u64) -> SubmitRequest {
    SubmitRequest {
        submission_id: format!("new-{payout}-{value}"),
        token: token(value),
        idempotency_key: payout.to_owned(),
        payout_id: payout.to_owned(),
        account_id: ACCOUNT.to_owned(),
        amount_minor: 1_250,
        currency: "EUR".to_owned(),
        creditor_name: "Ada".to_owned(),
        creditor_account: "DE02".to_owned(),
        actor: Some("newcomer".to_owned()),
    }
}

/// What the old program submitted is never submitted again, and a stale token stays stale; the next payout goes its way.
async fn goes_on(store: &SqliteRailStore, files: &Files, context: &str) {
    files.payout("F-ambiguous", ACCOUNT, "CLAIMED", Some(8));
    let refused = store.submit(submit("F-ambiguous", 8), WITHIN).await.unwrap();
    assert!(
        matches!(&refused, SubmitOutcome::AlreadySubmitted(one) if one.token.get() == 4),
        "{context}: {refused:?}"
    );
    let old = store
        .submission("F-ambiguous".to_owned(), WITHIN)
        .await
        .unwrap()
        .unwrap();
    let sent_again = store.claim_forward(old.submission_id, WITHIN).await.unwrap();
    assert!(
        matches!(sent_again, ForwardClaim::Refused { .. }),
        "{context}: {sent_again:?}"
    );

    files.payout("F-next", ACCOUNT, "CLAIMED", Some(6));
    let stale = store.submit(submit("F-next", 6), WITHIN).await.unwrap();
    let SubmitOutcome::FencedOut(why) = stale else {
        panic!("{context}: {stale:?}");
    };
    assert_eq!((why.reason, why.highest_token), (FenceReason::Stale, 6), "{context}");
    files.payout("F-next", ACCOUNT, "CLAIMED", Some(9));
    let fresh = store.submit(submit("F-next", 9), WITHIN).await.unwrap();
    assert!(matches!(fresh, SubmitOutcome::Intent(_)), "{context}: {fresh:?}");
    let mark = store.high_water(ACCOUNT.to_owned(), WITHIN).await.unwrap();
    assert_eq!(mark.highest_token, 9, "{context}");
}

#[tokio::test]
async fn every_older_file_is_brought_up_to_date_with_its_data() {
    for version in versions() {
        let context = format!("v{version}");
        let files = Files::with_payments();
        let file = files.directory.path().join("rail.db");
        let dump = std::fs::read_to_string(fixture(version)).unwrap();
        let sql = format!("PRAGMA foreign_keys = OFF;\n{dump}");
        rusqlite::Connection::open(&file).unwrap().execute_batch(&sql).unwrap();
        let store = files.open(Fencing::Enforced, &Host::system());
        holds_what_it_held(&store, &context).await;
        goes_on(&store, &files, &context).await;
        store.close().await;
        let connection = rusqlite::Connection::open(&file).unwrap();
        let migrated: u32 = connection
            .query_row("SELECT max(version) FROM schema_migration", [], |row| row.get(0))
            .unwrap();
        assert_eq!(Some(&migrated), versions().last());
    }
}
