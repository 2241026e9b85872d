//! A store whose history was moved or lost: crashed, failed over, restored, set back. One test per row of
//! `docs/restore.md`. Where it is detected, no token at or below an earlier one is granted.
#![cfg(feature = "pg")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and read the clock")]

mod pg_steps;

use host_kit::Host;
use lock_api::{
    AcquireOutcome, EventKind, FencingToken, FloorOutcome, LineageState, LockStore, Operator, ReleaseOutcome,
    StoreError,
};
use lock_store::PgLockStore;
use pg_steps::load::{Seen, holder, under_load};
use pg_steps::{LONG, Place, WITHIN, acquire, ask, facts, granted, one_holder_at_a_time, open, release};
use std::time::{Duration, Instant};
use test_servers::{OwnNetwork, OwnOptions, OwnPostgres, OwnVolume, PASSWORD};
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// Grants a key `times` times. Answers the last token.
async fn turns(store: &PgLockStore, key: &str, session: &str, times: u32) -> FencingToken {
    let mut last = None;
    for n in 0..times {
        let token = granted(store, key, session, &format!("turn-{n}"), LONG).await;
        assert!(last < Some(token));
        assert_eq!(release(store, key, session, token).await, ReleaseOutcome::Released);
        last = Some(token);
    }
    last.unwrap()
}

/// Nothing is granted, and the store says that it is in doubt.
async fn is_in_doubt(store: &PgLockStore, key: &str, session: &str) {
    let answer = acquire(store, ask(key, session, "in-doubt", LONG)).await;
    assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
    assert_eq!(store.lineage(WITHIN).await.unwrap().state, LineageState::Regressed);
    assert!(store.health(WITHIN).await.unwrap().problem.is_some());
}

async fn raise_floor(store: &PgLockStore, floor: u64) -> FloorOutcome {
    let operator = Operator::new("ops").unwrap();
    store
        .advance_floor(floor, operator, "after a restore".into(), WITHIN)
        .await
        .unwrap()
}

/// How often the floor was raised by the store itself, by its facts.
async fn jumps(store: &PgLockStore) -> usize {
    facts(store)
        .await
        .into_iter()
        .filter(|fact| fact.kind == EventKind::FloorAdvanced && fact.actor.as_deref() == Some("store"))
        .count()
}

async fn sql(url: &str, text: &str) -> Option<String> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let said = client
        .simple_query(text)
        .await
        .unwrap_or_else(|error| panic!("{text}: {error:?}"));
    said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

async fn until(what: &str, url: &str, text: &str) {
    let from = Instant::now();
    while sql(url, text).await.as_deref() != Some("t") {
        assert!(from.elapsed() < WITHIN, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What a server needs that others copy from.
fn source() -> OwnOptions {
    OwnOptions {
        settings: vec!["wal_level=replica".into(), "max_wal_senders=5".into()],
        prepare: "echo 'host replication all all scram-sha-256' >> \"$PGDATA/pg_hba.conf\"".into(),
        ..OwnOptions::default()
    }
}

/// The server crashes: nothing to do. The log is played forward, the lineage and the floor stay, the sequence skips ahead.
#[tokio::test]
async fn a_crash_restart_is_nothing_to_do_about() {
    let server = OwnPostgres::start(&OwnOptions::default()).await;
    let place = Place::on(server.url());
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    let last = turns(&store, "a", "s1", 20).await;
    let before = store.lineage(WITHIN).await.unwrap();
    server.signal("KILL").await;
    server.ended().await;
    server.start_again().await;
    // The connections that broke are noticed by the first call on each.
    while store.lineage(WITHIN).await.is_err() {}
    let after = store.lineage(WITHIN).await.unwrap();
    assert_eq!(
        (&after.lineage, after.token_floor, after.state),
        (&before.lineage, before.token_floor, LineageState::Ok)
    );
    assert!(granted(&store, "a", "s1", "r", LONG).await > last);
    assert_eq!(jumps(&store).await, 0);
}

/// The primary is lost under load and its synchronous standby promoted; the same handle goes on with it. Every grant that
/// was answered is there, and the floor has jumped, since the timeline is another one.
#[tokio::test]
async fn a_promoted_synchronous_standby_has_every_grant() {
    let network = OwnNetwork::new();
    let mut options = source();
    options.docker = vec!["--network".into(), network.0.clone()];
    let primary = OwnPostgres::start(&options).await;
    options.instead = Some(format!(
        "until pg_basebackup -h {} -U postgres -D \"$PGDATA\" -R -X stream -c fast; do sleep 0.2; done; \
         exec postgres -c max_connections=200",
        primary.name
    ));
    let standby = OwnPostgres::start(&options).await;
    sql(&primary.url(), "ALTER SYSTEM SET synchronous_standby_names = '*'").await;
    sql(&primary.url(), "SELECT pg_reload_conf()").await;
    let is_sync = "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("a synchronous standby", &primary.url(), is_sync).await;

    let both = format!(
        "postgres://postgres:{PASSWORD}@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        primary.port(),
        standby.port()
    );
    let place = Place::on(primary.url());
    let mut options = place.options();
    options.access.url = both;
    let store = PgLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "keeper", LONG).await;
    let kept = granted(&store, "kept", "keeper", "r", LONG).await;
    let mut highest = 0;
    let seen = under_load(&store, 4, 2, Duration::from_secs(2), async |seen: &Seen| {
        seen.progress(30).await;
        primary.signal("KILL").await;
        primary.ended().await;
        highest = seen.highest();
        assert_eq!(sql(&standby.url(), "SELECT pg_promote()").await.as_deref(), Some("t"));
        seen.progress(30).await;
    })
    .await;
    assert!(seen.failed() > 0);
    assert_eq!(holder(&store, "kept", WITHIN).await.unwrap().as_str(), "keeper");
    one_holder_at_a_time(&facts(&store).await);
    let lineage = store.lineage(WITHIN).await.unwrap();
    assert!(
        lineage.token_floor > highest.max(kept.get()) && lineage.state == LineageState::Ok,
        "{lineage:?}"
    );
    assert_eq!(jumps(&store).await, 1, "one promotion is one jump");
    drop((primary, standby));
    drop(network);
}

/// A dump is restored into a new cluster: the system identifier is another one, and the floor jumps before the first grant.
#[tokio::test]
async fn a_dump_in_a_new_cluster_is_detected() {
    let old = OwnPostgres::start(&OwnOptions::default()).await;
    let place = Place::on(old.url());
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    turns(&store, "a", "s1", 5).await;
    let dump = old.shell(
        &format!(
            "pg_dump -U postgres -h /var/run/postgresql --inserts -n {} postgres",
            place.schema
        ),
        "",
    );
    let lost = turns(&store, "a", "s1", 50).await;
    store.close();
    let new = Place {
        url: test_servers::postgres_or_skip().await,
        schema: place.schema.clone(),
    };
    // The program's own lines, which begin with a backslash, are for psql alone.
    let dump: String = dump
        .lines()
        .filter(|line| !line.starts_with('\\'))
        .fold(String::new(), |all, line| all + line + "\n");
    sql(&new.url, &dump).await;
    let store = new.open().await;
    let first = granted(&store, "a", "s1", "new", LONG).await;
    assert!(first > lost, "{first} after {lost}");
    assert_eq!(store.lineage(WITHIN).await.unwrap().state, LineageState::Ok);
    assert_eq!(jumps(&store).await, 1);
    store.close();
    sql(&new.url, &format!("DROP SCHEMA {} CASCADE", new.schema)).await;
}

/// The sequence is set back below what the facts know of: detected for every key, also one that was never held.
#[tokio::test]
async fn a_sequence_set_back_is_detected_by_the_facts() {
    let place = Place::fresh().await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    let last = turns(&store, "a", "s1", 10).await;
    let admin = place.client().await;
    admin.batch_execute("SELECT setval('lock_token_seq', 5)").await.unwrap();
    is_in_doubt(&store, "never held", "s1").await;
    // A floor that the facts are above would end no doubt.
    let low = raise_floor(&store, 7).await;
    assert!(
        matches!(low, FloorOutcome::OutOfBounds { lowest, .. } if lowest == last.get()),
        "{low:?}"
    );
    assert!(matches!(
        raise_floor(&store, last.get()).await,
        FloorOutcome::Changed(_)
    ));
    assert!(granted(&store, "never held", "s1", "r", LONG).await > last);
}

/// The sequence is set back and the facts and tombstones that know better are gone (their retention has passed): what a
/// client has seen is all that tells, and that is enough.
#[tokio::test]
async fn a_sequence_set_back_without_facts_is_detected_by_a_witness_alone() {
    let place = Place::fresh().await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    let last = turns(&store, "a", "s1", 10).await;
    while store.seal(100, WITHIN).await.unwrap().is_some() {}
    assert!(store.drop_sealed(Duration::ZERO, 1000, WITHIN).await.unwrap() > 0);
    assert!(store.purge_tombstones(Duration::ZERO, 1000, WITHIN).await.unwrap() > 0);
    let admin = place.client().await;
    admin.batch_execute("SELECT setval('lock_token_seq', 2)").await.unwrap();
    // Not detectable: no part of the store knows more than the sequence says.
    let unseen = granted(&store, "b", "s1", "r", LONG).await;
    assert!(unseen < last);
    let mut seen = ask("a", "s1", "seen", LONG);
    seen.witness = Some(last);
    let answer = acquire(&store, seen).await;
    assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
    is_in_doubt(&store, "a", "s1").await;
    assert!(matches!(
        raise_floor(&store, last.get()).await,
        FloorOutcome::Changed(_)
    ));
    assert!(granted(&store, "a", "s1", "r2", LONG).await > last);
}

/// The cluster is restored to a point in time from a base backup and the archived log: the timeline is another one, and the
/// floor jumps above what was granted after that point.
#[tokio::test]
async fn a_point_in_time_restore_is_detected() {
    let volume = OwnVolume::new(&[]);
    let mount = vec!["--volume".to_owned(), format!("{}:/archive", volume.0)];
    let mut options = source();
    options.docker.clone_from(&mount);
    // The volume is root's until somebody hands it over.
    let opener = OwnPostgres::start_unready(&OwnOptions {
        docker: mount.clone(),
        instead: Some("exec sleep infinity".into()),
        ..OwnOptions::default()
    });
    test_servers::docker(&["exec", "-u", "root", &opener.name, "chown", "postgres", "/archive"]);
    options.settings.extend([
        "archive_mode=on".to_owned(),
        "archive_command=cp %p /archive/%f".to_owned(),
    ]);
    let old = OwnPostgres::start(&options).await;
    let place = Place::on(old.url());
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    turns(&store, "a", "s1", 5).await;
    old.shell(
        "pg_basebackup -h /var/run/postgresql -U postgres -D /archive/base -X none -c fast",
        "",
    );
    let there = granted(&store, "there", "s1", "r", LONG).await;
    sql(&place.url, "SELECT pg_create_restore_point('here')").await;
    let lost = turns(&store, "a", "s1", 50).await;
    let switched = sql(&place.url, "SELECT pg_walfile_name(pg_switch_wal())")
        .await
        .unwrap();
    let archived = format!("SELECT last_archived_wal >= '{switched}' FROM pg_stat_archiver");
    until("the log in the archive", &place.url, &archived).await;
    store.close();
    drop(old);

    let new = OwnPostgres::start(&OwnOptions {
        docker: mount,
        instead: Some(
            "cp -r /archive/base/. \"$PGDATA\"; touch \"$PGDATA/recovery.signal\"; \
             exec postgres -c max_connections=200 -c 'restore_command=cp /archive/%f %p' -c recovery_target_name=here \
             -c recovery_target_action=promote"
                .into(),
        ),
        ..OwnOptions::default()
    })
    .await;
    until("the end of the recovery", &new.url(), "SELECT NOT pg_is_in_recovery()").await;
    let place = Place {
        url: new.url(),
        schema: place.schema,
    };
    let store = place.open().await;
    let first = granted(&store, "a", "s1", "new", LONG).await;
    assert!(first > lost, "{first} after {lost}");
    assert_eq!(holder(&store, "there", WITHIN).await.unwrap().as_str(), "s1");
    assert!(first > there);
    assert_eq!(jumps(&store).await, 1);
    drop((new, opener));
    drop(volume);
}

/// The schema is dropped and a program that starts makes a new one.
async fn made_anew(place: &Place) {
    let admin = place.client().await;
    test_servers::drop_schema(&admin, &place.schema).await;
    place.open().await.close();
}

/// With `lock.store.lineage` the new store is another one than the configured: no grant until an operator has set a floor.
#[tokio::test]
async fn a_store_made_anew_is_detected_by_the_configured_lineage() {
    let place = Place::fresh().await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    let last = turns(&store, "a", "s1", 10).await;
    let mut options = place.options();
    options.expected_lineage = Some(store.lineage(WITHIN).await.unwrap().lineage);
    store.close();
    made_anew(&place).await;
    let store = PgLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "s1", LONG).await;
    is_in_doubt(&store, "a", "s1").await;
    assert!(matches!(
        raise_floor(&store, last.get()).await,
        FloorOutcome::Changed(_)
    ));
    assert!(granted(&store, "a", "s1", "r", LONG).await > last);
}

/// Without it, a lock server that starts takes the new store for what it is; a witness tells.
#[tokio::test]
async fn a_store_made_anew_is_detected_by_a_witness_where_no_lineage_is_configured() {
    let place = Place::fresh().await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    let last = turns(&store, "a", "s1", 10).await;
    store.close();
    made_anew(&place).await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    assert!(granted(&store, "unwitnessed", "s1", "r", LONG).await < last);
    let mut seen = ask("a", "s1", "seen", LONG);
    seen.witness = Some(last);
    let answer = acquire(&store, seen).await;
    assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
    is_in_doubt(&store, "a", "s1").await;
}

/// A lock server that runs meanwhile knows which store it had opened, whatever is configured.
#[tokio::test]
async fn a_store_made_anew_is_detected_by_a_lock_server_that_runs() {
    let place = Place::fresh().await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    turns(&store, "a", "s1", 10).await;
    let admin = place.client().await;
    test_servers::drop_schema(&admin, &place.schema).await;
    let gone = store.acquire(vec![ask("a", "s1", "gone", LONG)], WITHIN).await;
    assert!(matches!(gone, Err(StoreError::Corrupt { .. })), "{gone:?}");
    let other = place.open().await;
    open(&other, "s1", LONG).await;
    is_in_doubt(&store, "a", "s1").await;
    is_in_doubt(&other, "a", "s1").await;
}
