//! What a database promises to those who use it, on a file and in memory.

#![allow(clippy::unwrap_used, reason = "a test")]

use host_kit::Host;
use sql_kit::{Decision, Location, Migration, SqlError, Sqlite, SqliteOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

const SCHEMA: &[Migration] = &[
    Migration {
        version: 1,
        name: "one",
        sql: "CREATE TABLE t (x INTEGER PRIMARY KEY) STRICT;",
    },
    Migration {
        version: 2,
        name: "two",
        sql: "CREATE TABLE u (x INTEGER PRIMARY KEY REFERENCES t) STRICT;",
    },
];

async fn insert(sqlite: &Sqlite, x: i64) -> Result<usize, SqlError> {
    sqlite
        .write(SOON, move |c| {
            c.execute("INSERT INTO t VALUES (?1)", [x]).map(Decision::Commit)
        })
        .await
}

async fn all(sqlite: &Sqlite) -> Vec<i64> {
    sqlite
        .read(SOON, |c| {
            c.prepare_cached("SELECT x FROM t ORDER BY x")?
                .query_map([], |row| row.get(0))?
                .collect()
        })
        .await
        .unwrap()
}

fn file(dir: &tempfile::TempDir) -> SqliteOptions {
    SqliteOptions::new(Location::File(dir.path().join("made/t.db")), SCHEMA)
}

#[tokio::test]
async fn what_was_answered_is_there_after_closing_and_opening() {
    let dir = tempfile::tempdir().unwrap();
    for (host, start) in [(Host::system(), 0), (Host::simulated(1), 10)] {
        let sqlite = Sqlite::open(file(&dir), &host).unwrap();
        for x in start..start + 5 {
            assert_eq!(insert(&sqlite, x).await, Ok(1));
        }
        sqlite.health(SOON).await.unwrap();
        sqlite.close().await;
    }
    let sqlite = Sqlite::open(file(&dir), &Host::system()).unwrap();
    assert_eq!(all(&sqlite).await, [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]);
}

#[tokio::test(start_paused = true)]
async fn memory_works_on_a_paused_clock() {
    let sqlite = Sqlite::open(SqliteOptions::new(Location::Memory, SCHEMA), &Host::simulated(1)).unwrap();
    insert(&sqlite, 7).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(all(&sqlite).await, [7]);
    sqlite.health(SOON).await.unwrap();
}

#[tokio::test]
async fn a_refused_job_undoes_itself_alone() {
    for sqlite in [
        Sqlite::open(SqliteOptions::new(Location::Memory, SCHEMA), &Host::simulated(1)).unwrap(),
        Sqlite::open(SqliteOptions::new(Location::Memory, SCHEMA), &Host::system()).unwrap(),
    ] {
        let roll_back = sqlite.write(SOON, |c| {
            c.execute("INSERT INTO t VALUES (1)", [])?;
            Ok(Decision::Rollback("refused"))
        });
        let fail = sqlite.write(SOON, |c| {
            c.execute("INSERT INTO t VALUES (2)", [])?;
            c.execute("INSERT INTO t VALUES (2)", []).map(Decision::Commit)
        });
        let panic = sqlite.write(SOON, |c| -> rusqlite::Result<Decision<()>> {
            c.execute("INSERT INTO t VALUES (3)", [])?;
            panic!("on purpose")
        });
        let foreign = sqlite.write(SOON, |c| {
            c.execute("INSERT INTO u VALUES (99)", []).map(Decision::Commit)
        });
        let (kept, rolled, failed, panicked, foreign) =
            tokio::join!(insert(&sqlite, 4), roll_back, fail, panic, foreign);
        assert_eq!((kept, rolled), (Ok(1), Ok("refused")));
        assert!(matches!(failed, Err(SqlError::Unavailable(why)) if why.contains("UNIQUE")));
        assert!(matches!(panicked, Err(SqlError::Unavailable(why)) if why.contains("panicked")));
        assert!(matches!(foreign, Err(SqlError::Unavailable(why)) if why.contains("FOREIGN KEY")));
        assert_eq!(all(&sqlite).await, [4]);
    }
}

/// A job that holds the writer until the barrier is met.
fn hold(sqlite: &Sqlite, barrier: &Arc<Barrier>) -> tokio::task::JoinHandle<Result<(), SqlError>> {
    let (sqlite, barrier) = (sqlite.clone(), barrier.clone());
    tokio::spawn(async move {
        sqlite
            .write(SOON, move |_| {
                barrier.wait();
                barrier.wait();
                Ok(Decision::Commit(()))
            })
            .await
    })
}

async fn meet(barrier: &Arc<Barrier>) {
    let barrier = barrier.clone();
    tokio::task::spawn_blocking(move || barrier.wait()).await.unwrap();
}

#[tokio::test]
async fn what_waits_while_the_writer_works_shares_one_commit() {
    let dir = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(file(&dir), &Host::system()).unwrap();
    let barrier = Arc::new(Barrier::new(2));
    let held = hold(&sqlite, &barrier);
    meet(&barrier).await;
    let polled = Arc::new(AtomicUsize::new(0));
    let waiting = futures(&sqlite, 0..100, &polled);
    // A call is sent when its future is first polled.
    while polled.load(Ordering::SeqCst) < 100 {
        tokio::task::yield_now().await;
    }
    meet(&barrier).await;
    for job in waiting {
        job.await.unwrap().unwrap();
    }
    held.await.unwrap().unwrap();
    let sizes = sqlite.batch_sizes();
    assert_eq!((sizes.commits, sizes.jobs), (2, 101), "{sizes:?}");
    assert_eq!(all(&sqlite).await.len(), 100);
}

fn futures(
    sqlite: &Sqlite,
    xs: std::ops::Range<i64>,
    polled: &Arc<AtomicUsize>,
) -> Vec<tokio::task::JoinHandle<Result<usize, SqlError>>> {
    xs.map(|x| {
        let (sqlite, polled) = (sqlite.clone(), polled.clone());
        tokio::spawn(async move {
            polled.fetch_add(1, Ordering::SeqCst);
            insert(&sqlite, x).await
        })
    })
    .collect()
}

#[tokio::test]
async fn a_job_whose_caller_gave_up_before_it_began_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(file(&dir), &Host::system()).unwrap();
    let barrier = Arc::new(Barrier::new(2));
    let held = hold(&sqlite, &barrier);
    meet(&barrier).await;
    // One caller waits too short, one goes away.
    let late = sqlite
        .write(Duration::from_millis(20), |c| {
            c.execute("INSERT INTO t VALUES (1)", []).map(Decision::Commit)
        })
        .await;
    assert!(matches!(&late, Err(SqlError::Unavailable(_))), "{late:?}");
    let polled = Arc::new(AtomicUsize::new(0));
    let gone = futures(&sqlite, 2..3, &polled).remove(0);
    while polled.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    meet(&barrier).await;
    held.await.unwrap().unwrap();
    insert(&sqlite, 3).await.unwrap();
    assert_eq!(all(&sqlite).await, [3]);
}

#[tokio::test]
async fn a_job_that_began_and_is_not_answered_in_time_is_unknown() {
    let sqlite = Sqlite::open(SqliteOptions::new(Location::Memory, SCHEMA), &Host::system()).unwrap();
    let barrier = Arc::new(Barrier::new(2));
    let begun = barrier.clone();
    let (sent, seen) = (Arc::new(AtomicUsize::new(0)), barrier.clone());
    let count = sent.clone();
    let call = sqlite.write(Duration::from_secs(3), move |c| {
        c.execute("INSERT INTO t VALUES (1)", [])?;
        count.fetch_add(1, Ordering::SeqCst);
        begun.wait();
        Ok(Decision::Commit(()))
    });
    let answer = call.await;
    assert!(matches!(&answer, Err(SqlError::Unknown(_))), "{answer:?}");
    meet(&seen).await;
    assert_eq!((all(&sqlite).await, sent.load(Ordering::SeqCst)), (vec![1], 1));
}

/// Two lock servers once had one file under two names, and granted the same key twice with the same token.
#[tokio::test]
async fn a_second_user_of_an_exclusive_file_is_refused_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = file(&dir);
    options.exclusive = true;
    let Location::File(path) = options.location.clone() else {
        unreachable!()
    };
    let first = Sqlite::open(options.clone(), &Host::system()).unwrap();
    let (hard, soft) = (dir.path().join("hard.db"), dir.path().join("soft.db"));
    std::fs::hard_link(&path, &hard).unwrap();
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    let refused = |location: &std::path::Path| {
        let mut other = options.clone();
        other.location = Location::File(location.to_owned());
        match Sqlite::open(other, &Host::system()) {
            Err(SqlError::Unavailable(why)) => why,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{} was let in", location.display()),
        }
    };
    for other in [&hard, &soft] {
        let why = refused(other);
        assert!(
            why.contains("another process") && why.contains(other.file_name().unwrap().to_str().unwrap()),
            "{why}"
        );
    }
    // Without the name's lock the file's own still stands, and the other way round.
    std::fs::remove_file(format!("{}.lock", path.display())).unwrap();
    assert!(refused(&path).contains("another process"));
    first.close().await;
    Sqlite::open(options.clone(), &Host::system()).unwrap().close().await;
}

#[tokio::test]
async fn a_second_user_of_an_exclusive_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = file(&dir);
    options.exclusive = true;
    let first = Sqlite::open(options.clone(), &Host::system()).unwrap();
    let Err(SqlError::Unavailable(why)) = Sqlite::open(options.clone(), &Host::system()) else {
        panic!("a second one was let in")
    };
    assert!(why.contains("t.db.lock") && why.contains("another process"), "{why}");
    first.close().await;
    Sqlite::open(options, &Host::system()).unwrap();
}

/// What was refused is somebody else's, or a later program's: nothing of ours stays beside it.
#[tokio::test]
async fn a_file_that_is_refused_has_no_lock_file_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    Sqlite::open(file(&dir), &Host::system()).unwrap().close().await;
    let mut older = file(&dir);
    (older.exclusive, older.migrations) = (true, &SCHEMA[..1]);
    assert!(Sqlite::open(older, &Host::system()).is_err());
    let mut same = file(&dir);
    same.exclusive = true;
    let lock = dir.path().join("made/t.db.lock");
    assert!(!lock.exists());
    // An open store keeps its own.
    let open = Sqlite::open(same, &Host::system()).unwrap();
    assert!(lock.exists());
    open.close().await;
}
