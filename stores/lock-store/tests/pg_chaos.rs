//! A real PostgreSQL server that is hurt while callers use it: each call answers within its deadline with an outcome or a
//! typed error, nobody is granted what another holds, and the same store handle works again afterwards.
#![cfg(feature = "pg")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and read the clock")]

mod pg_steps;

use futures_util::future::join_all;
use host_kit::Host;
use lock_api::{AcquireOutcome, LineageState, LockStore, StoreError};
use lock_store::PgLockStore;
use pg_steps::load::{Seen, holder, under_load};
use pg_steps::{LONG, Place, WITHIN, acquire, ask, facts, granted, one_holder_at_a_time, open};
use std::time::{Duration, Instant};
use test_servers::{OwnOptions, OwnPostgres, OwnVolume};

/// A call's deadline under load.
const CALL: Duration = Duration::from_secs(2);

/// How long a fault that lasts goes on.
fn chaos_for() -> Duration {
    let seconds = std::env::var("DLOCK_TEST_CHAOS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(10, |seconds| seconds.parse().unwrap()))
}

/// After the load everything is as it must be, and works.
async fn all_is_well(store: &PgLockStore, seen: &Seen) {
    let grants = one_holder_at_a_time(&facts(store).await);
    assert!(
        grants as u64 >= seen.grants.get(),
        "{grants} recorded, {:?} seen",
        seen.grants
    );
    open(store, "after", LONG).await;
    let token = granted(store, "after", "after", "r", LONG).await;
    assert!(token.get() > seen.highest(), "{token} after {}", seen.highest());
}

/// Shut down fast, shut down at once, and crashed, each time with callers at work. A crash is nothing to be done about: the
/// server plays its log forward, the lineage stays, and the sequence only ever skips ahead.
#[tokio::test]
async fn a_server_that_is_restarted_or_crashes_grants_nothing_twice() {
    let server = OwnPostgres::start(&OwnOptions::default()).await;
    let place = Place::on(server.url());
    let store = place.open().await;
    let before = store.lineage(WITHIN).await.unwrap();
    open(&store, "keeper", LONG).await;
    granted(&store, "kept", "keeper", "r", LONG).await;
    let seen = under_load(&store, 6, 2, CALL, async |seen: &Seen| {
        for signal in ["INT", "QUIT", "KILL"] {
            seen.progress(20).await;
            server.signal(signal).await;
            server.ended().await;
            let failed = seen.failed();
            // It is down for as long as it takes until somebody has noticed.
            while seen.failed() == failed {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            server.start_again().await;
            seen.progress(20).await;
        }
    })
    .await;
    assert_eq!(holder(&store, "kept", WITHIN).await.unwrap().as_str(), "keeper");
    all_is_well(&store, &seen).await;
    let after = store.lineage(WITHIN).await.unwrap();
    assert_eq!(
        (after.lineage, after.token_floor, after.state),
        (before.lineage, before.token_floor, LineageState::Ok)
    );
}

/// Connections are terminated all the time.
#[tokio::test]
async fn killed_connections_give_typed_errors_and_no_double_grant() {
    let place = Place::fresh().await;
    let (store, admin) = (place.open().await, place.client().await);
    let seen = under_load(&store, 8, 2, CALL, async |seen: &Seen| {
        let until = Instant::now() + chaos_for();
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(100)).await;
            admin
                .execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
                    &[&place.schema],
                )
                .await
                .unwrap();
        }
        seen.progress(20).await;
    })
    .await;
    assert!(seen.failed() > 0);
    all_is_well(&store, &seen).await;
}

/// Two connections for five hundred callers: each is answered, or told in time that nothing was begun.
#[tokio::test]
async fn a_small_pool_serves_many_callers_or_says_so_in_time() {
    let place = Place::fresh().await;
    let mut options = place.options();
    options.access.pool_max = 2;
    let store = PgLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "s1", LONG).await;
    let began = Instant::now();
    let answers = join_all((0..500).map(|n| {
        let store = store.clone();
        async move { store.acquire(vec![ask(&format!("k{n}"), "s1", "r", LONG)], CALL).await }
    }))
    .await;
    assert!(began.elapsed() < CALL + Duration::from_secs(10));
    for answer in &answers {
        assert!(
            matches!(
                answer,
                Ok(_) | Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. })
            ),
            "{answer:?}"
        );
    }
    assert!(answers.iter().any(Result::is_ok));
    assert!(store.connections().0 <= 2);
    open(&store, "after", LONG).await;
    granted(&store, "after", "after", "r", LONG).await;
}

/// Each commit takes 200 ms more, with all its locks in its hands, as behind a slow disk or a distant standby.
#[tokio::test]
async fn slow_commits_make_callers_wait_and_nothing_else() {
    let place = Place::fresh().await;
    let (store, admin) = (place.open().await, place.client().await);
    admin
        .batch_execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 -- Once a transaction, as one flush of the log.
                 IF current_setting('test.slow', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
                     PERFORM set_config('test.slow', pg_current_xact_id()::text, true);
                     PERFORM pg_sleep(0.2);
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON lock_event DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION slow();",
        )
        .await
        .unwrap();
    let seen = under_load(&store, 8, 4, CALL, async |seen: &Seen| seen.progress(12).await).await;
    admin.batch_execute("DROP TRIGGER slow ON lock_event").await.unwrap();
    all_is_well(&store, &seen).await;
}

/// The database is switched to read-only, as operators and failovers do it: nothing is granted, what is held stays held.
#[tokio::test]
async fn a_database_that_is_read_only_grants_nothing() {
    let place = Place::fresh().await;
    let admin = place.client().await;
    let role = &place.schema;
    let rights = format!("CREATE ROLE {role} LOGIN PASSWORD 'own'; GRANT CREATE ON DATABASE postgres TO {role}");
    test_servers::change_database(&admin, &rights).await;
    let mut options = place.options();
    let at = place.url.split_once('@').unwrap().1;
    options.access.url = format!("postgres://{role}:own@{at}?application_name={role}");
    let store = PgLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "keeper", LONG).await;
    let kept = granted(&store, "kept", "keeper", "r", LONG).await;
    let terminate = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1";
    let seen = under_load(&store, 4, 2, CALL, async |seen: &Seen| {
        seen.progress(10).await;
        admin
            .batch_execute(&format!("ALTER ROLE {role} SET default_transaction_read_only = on"))
            .await
            .unwrap();
        admin.execute(terminate, &[role]).await.unwrap();
        let (grants, refused) = (seen.grants.get(), seen.unavailable.get());
        while seen.unavailable.get() < refused + 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // One may have been granted before its connection ended.
        assert!(seen.grants.get() <= grants + 4);
        let answer = store.acquire(vec![ask("new", "keeper", "n", LONG)], CALL).await;
        assert!(
            matches!(&answer, Err(StoreError::Unavailable { detail }) if detail.contains("25006")),
            "{answer:?}"
        );
        assert_eq!(holder(&store, "kept", WITHIN).await.unwrap().as_str(), "keeper");
        assert!(store.health(WITHIN).await.unwrap().problem.is_some(), "not ready");
        admin
            .batch_execute(&format!("ALTER ROLE {role} RESET default_transaction_read_only"))
            .await
            .unwrap();
        admin.execute(terminate, &[role]).await.unwrap();
        seen.progress(10).await;
    })
    .await;
    let again = acquire(&store, ask("kept", "keeper", "r", LONG)).await;
    assert!(
        matches!(&again, AcquireOutcome::Granted { grant, replayed: true } if grant.token == kept),
        "{again:?}"
    );
    all_is_well(&store, &seen).await;
}

/// The disk of data and log is full: the server refuses, then stops; with room again and a start, everything that was
/// answered is there.
#[tokio::test]
async fn a_full_disk_grants_nothing_and_loses_nothing() {
    let volume = OwnVolume::new(&["--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", "o=size=96m"]);
    let mount = format!("{}:/var/lib/postgresql/data", volume.0);
    // It keeps the disk while the server is down.
    let keeper = OwnPostgres::start_unready(&OwnOptions {
        docker: vec!["--volume".into(), mount.clone()],
        instead: Some("exec sleep infinity".into()),
        ..OwnOptions::default()
    });
    let server = OwnPostgres::start(&OwnOptions {
        docker: vec!["--volume".into(), mount],
        settings: vec!["max_wal_size=8MB".into(), "min_wal_size=2MB".into()],
        ..OwnOptions::default()
    })
    .await;
    let place = Place::on(server.url());
    let store = place.open().await;
    open(&store, "keeper", LONG).await;
    let kept = granted(&store, "kept", "keeper", "r", LONG).await;
    let seen = under_load(&store, 4, 2, CALL, async |seen: &Seen| {
        seen.progress(10).await;
        keeper.shell("cat /dev/zero > \"$PGDATA/filler\" || true", "");
        // What is written now needs room that is not there.
        let from = Instant::now();
        let mut n = 0;
        while seen.failed() < 20 {
            n += 1;
            let batch = (0..200)
                .map(|k| ask(&format!("fill/{n}/{k}"), "keeper", "r", LONG))
                .collect();
            match store.acquire(batch, CALL).await {
                Ok(_) | Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(from.elapsed() < Duration::from_secs(60), "the disk is not full");
        }
        keeper.shell("rm \"$PGDATA/filler\"", "");
        server.start_again().await;
        seen.progress(10).await;
    })
    .await;
    let again = acquire(&store, ask("kept", "keeper", "r", LONG)).await;
    assert!(
        matches!(&again, AcquireOutcome::Granted { grant, replayed: true } if grant.token == kept),
        "{again:?}"
    );
    all_is_well(&store, &seen).await;
    drop((server, keeper));
    drop(volume);
}
