//! A store that an older program wrote is brought to this program's schema with everything in it, and a migration that
//! was published never changes.
//!
//! Whoever adds version N + 1 finds the fixture of version N here already, and has to add that of N + 1
//! (`scripts/release/schema-fixture`) for whoever comes next.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use host_kit::Host;
use lock_api::{
    AcquireOutcome, AcquireRequest, EventKind, EventQuery, LockDelay, LockKey, LockStore, OpenSession, Operator, Owner,
    RequestId, RevokeOutcome, RevokeRequest, SessionId, Ttl, YieldOutcome, YieldRequest,
};
use lock_store::{SqliteLockStore, SqliteLockStoreOptions, canonical};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(30);
const BACKENDS: [&str; 2] = ["sqlite", "pg"];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixture(backend: &str, version: u32) -> PathBuf {
    package().join(format!("tests/fixtures/{backend}-v{version}.sql"))
}

/// The versions that there are migrations for, from 1.
fn versions(backend: &str) -> Vec<u32> {
    let mut versions: Vec<u32> = std::fs::read_dir(package().join("migrations").join(backend))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.split('_').next().unwrap().parse().unwrap())
        .collect();
    versions.sort_unstable();
    versions
}

#[test]
fn every_version_has_a_fixture_that_a_program_of_that_version_wrote() {
    for backend in BACKENDS {
        let versions = versions(backend);
        assert_eq!(
            versions,
            (1..=u32::try_from(versions.len()).unwrap()).collect::<Vec<u32>>()
        );
        for version in versions {
            let fixture = fixture(backend, version);
            assert!(
                fixture.exists(),
                "{} is missing: make it with scripts/release/schema-fixture before this version is released",
                fixture.display()
            );
        }
    }
}

#[test]
fn a_published_migration_never_changes() {
    let workspace = package().join("../..");
    let sums = std::fs::read_to_string(workspace.join("scripts/release/migrations.sha256")).unwrap();
    let published: BTreeMap<String, String> = sums
        .lines()
        .map(|line| line.split_once("  ").unwrap())
        .map(|(sum, file)| (file.to_owned(), sum.to_owned()))
        .collect();
    let mut here = BTreeMap::new();
    for folder in [
        "stores/lock-store/migrations/pg",
        "stores/lock-store/migrations/sqlite",
        "stores/pay-schema/migrations",
        "stores/payment-store/migrations",
        "stores/rail-store/migrations",
    ] {
        for entry in std::fs::read_dir(workspace.join(folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let sum = hex::encode(Sha256::digest(std::fs::read(entry.path()).unwrap()));
            here.insert(format!("{folder}/{name}"), sum);
        }
    }
    assert_eq!(
        here, published,
        "stores exist that ran these migrations and will not run them again: add a new one, and its line to \
         scripts/release/migrations.sha256, instead of changing one"
    );
}

/// What the fixture's program had been told to do, looked for in what this program finds; then the next grant.
async fn holds_what_it_held(store: &dyn LockStore, backend: &str, version: u32) {
    let context = format!("{backend} v{version}");
    let key = |name: &str| LockKey::new(name).unwrap();
    let query = EventQuery {
        key: None,
        after: 0,
        limit: 1000,
    };
    let events = store.events(query, WITHIN).await.unwrap();
    let of = |kind: EventKind| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!(
        (of(EventKind::Granted), of(EventKind::Released), of(EventKind::Revoked)),
        (5, 3, 1),
        "{context}: {events:?}"
    );
    let revoked = events.iter().find(|event| event.kind == EventKind::Revoked).unwrap();
    assert_eq!(
        (revoked.actor.as_deref(), revoked.reason.as_deref()),
        (Some("alice"), Some("made for the fixture"))
    );

    // The seals still fit: not a byte of what they seal is different.
    let seals = store.seals(0, 1000, WITHIN).await.unwrap();
    assert!(!seals.is_empty(), "{context}");
    for seal in &seals {
        let sealed = events
            .iter()
            .filter(|e| (seal.first_seq..=seal.last_seq).contains(&e.seq));
        assert_eq!(
            canonical::seal_hash(&seal.prev_hash, sealed),
            seal.hash,
            "{context}: seal {}",
            seal.n
        );
    }

    let states = store
        .inspect(
            vec![key("fixture/free"), key("fixture/held"), key("fixture/revoked")],
            WITHIN,
        )
        .await
        .unwrap();
    let last: Vec<u64> = states.iter().map(|state| state.last_token.unwrap().get()).collect();
    assert_eq!(last, [3, 4, 6], "{context}");
    assert!(states[0].grant.is_none() && states[2].grant.is_none(), "{context}");
    let held = states[1].grant.as_ref().expect("what was held is held");
    assert_eq!((held.token.get(), held.owner.as_str()), (4, "holder"), "{context}");
    let closed: Vec<bool> = states.iter().map(|state| state.closed_for.is_some()).collect();
    if version < 2 {
        // What an older program did not know of is not there.
        assert!(
            held.lock_delay.is_none() && held.yield_asked.is_none(),
            "{context}: {held:?}"
        );
        assert_eq!(closed, [false, false, false], "{context}: {states:?}");
    } else {
        assert_eq!(held.lock_delay.get(), Duration::from_secs(30), "{context}");
        let asked = held.yield_asked.as_ref().expect("what was asked stands");
        assert_eq!(
            (asked.by.as_str(), asked.reason.as_str()),
            ("alice", "made for the fixture"),
            "{context}"
        );
        assert_eq!(closed, [false, false, true], "{context}: {states:?}");
    }

    // A restored copy may first raise its floor; it never mints what was minted.
    let session = SessionId::new("01M8NK4T0SKSNQ32TVWZRJE7ZZ").unwrap();
    let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
    store
        .open(
            vec![OpenSession {
                session_id: session.clone(),
                owner: Owner::new("newcomer").unwrap(),
                ttl,
                metadata: None,
            }],
            WITHIN,
        )
        .await
        .unwrap();
    let asked = ["fixture/free", "fixture/held"].map(|name| AcquireRequest {
        key: key(name),
        session_id: session.clone(),
        request_id: RequestId::new(name.replace('/', ".")).unwrap(),
        ttl,
        metadata: None,
        witness: None,
        lock_delay: LockDelay::new(LockDelay::MAX).unwrap(),
    });
    let answers = store.acquire(asked.to_vec(), WITHIN).await.unwrap();
    let AcquireOutcome::Granted { grant, .. } = &answers[0] else {
        panic!("{context}: {:?}", answers[0]);
    };
    assert!(grant.token.get() > 6, "{context}: {grant:?}");
    assert!(
        matches!(answers[1], AcquireOutcome::HeldByOther(_)),
        "{context}: {:?}",
        answers[1]
    );

    // And works from now on: the request to yield on what was granted before, the delay on what is granted now.
    let (operator, reason) = (Operator::new("alice").unwrap(), "after the upgrade".to_owned());
    let asked_for = YieldRequest {
        key: key("fixture/held"),
        token: held.token,
        operator: operator.clone(),
        reason: reason.clone(),
    };
    let outcome = store.ask_to_yield(asked_for, WITHIN).await.unwrap();
    assert!(
        matches!(&outcome, YieldOutcome::Asked(grant) if grant.token == held.token && grant.yield_asked.is_some()),
        "{context}: {outcome:?}"
    );
    let broken = RevokeRequest {
        key: key("fixture/free"),
        revoke_token: grant.token,
        operator,
        reason,
    };
    let outcome = store.revoke(broken, WITHIN).await.unwrap();
    assert!(
        matches!(outcome, RevokeOutcome::Revoked { .. }),
        "{context}: {outcome:?}"
    );
    let answers = store.acquire(asked.to_vec(), WITHIN).await.unwrap();
    assert!(
        matches!(answers[0], AcquireOutcome::Delayed { .. }),
        "{context}: {:?}",
        answers[0]
    );
}

#[tokio::test]
async fn every_older_store_in_a_file_is_brought_up_to_date_with_its_data() {
    for version in versions("sqlite") {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lock.db");
        // A dump's tables are in the order of their names, so one refers to another that comes later.
        let dump = std::fs::read_to_string(fixture("sqlite", version)).unwrap();
        let sql = format!("PRAGMA foreign_keys = OFF;\n{dump}");
        rusqlite::Connection::open(&file).unwrap().execute_batch(&sql).unwrap();
        let store = SqliteLockStore::open(SqliteLockStoreOptions::file(&file), &Host::system())
            .await
            .unwrap();
        holds_what_it_held(&store, "sqlite", version).await;
        store.close().await;
        let connection = rusqlite::Connection::open(&file).unwrap();
        let migrated: u32 = connection
            .query_row("SELECT max(version) FROM schema_migration", [], |row| row.get(0))
            .unwrap();
        assert_eq!(Some(&migrated), versions("sqlite").last());
    }
}

#[cfg(feature = "pg")]
#[tokio::test]
async fn every_older_store_on_postgres_is_brought_up_to_date_with_its_data() {
    use lock_store::{PgLockStore, PgLockStoreOptions};
    let url = test_servers::postgres_or_skip().await;
    let connect = async |url: &str| {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let admin = connect(&url).await;
    for version in versions("pg") {
        // A database of its own: a dump names its schema everywhere.
        let database = test_servers::fresh_schema();
        admin
            .batch_execute(&format!("CREATE DATABASE {database}"))
            .await
            .unwrap();
        let (server, _) = url.rsplit_once('/').unwrap();
        let own = format!("{server}/{database}");
        let client = connect(&own).await;
        let sql = std::fs::read_to_string(fixture("pg", version)).unwrap();
        client.batch_execute(&sql).await.unwrap();
        let store = PgLockStore::open(PgLockStoreOptions::at(&own), &Host::system())
            .await
            .unwrap();
        holds_what_it_held(&store, "pg", version).await;
        store.close();
        let migrated: i32 = client
            .query_one("SELECT max(version) FROM dlock.lock_schema", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(u32::try_from(migrated).ok().as_ref(), versions("pg").last());
        drop(client);
        admin
            .batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)"))
            .await
            .unwrap();
    }
}
