//! What becomes of a database whose files are replaced under it, or whose disk takes no more; and who may read its files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use host_kit::Host;
use sql_kit::{Attach, Decision, Location, Migration, SqlError, Sqlite, SqliteOptions};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

const SCHEMA: &[Migration] = &[Migration {
    version: 1,
    name: "one",
    sql: "CREATE TABLE t (x INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;",
}];

fn options(path: &Path, exclusive: bool) -> SqliteOptions {
    let mut options = SqliteOptions::new(Location::File(path.to_owned()), SCHEMA);
    options.exclusive = exclusive;
    options
}

fn open(path: &Path, exclusive: bool) -> Sqlite {
    Sqlite::open(options(path, exclusive), &Host::system()).unwrap()
}

async fn insert(sqlite: &Sqlite, x: i64, bytes: i64) -> Result<(), SqlError> {
    sqlite
        .write(SOON, move |c| {
            c.execute("INSERT INTO t VALUES (?1, randomblob(?2))", [x, bytes])
                .map(|_| Decision::Commit(()))
        })
        .await
}

/// What is done to the files below a directory.
type Deed = fn(&Path);

/// What is done to the files of an open database.
const DONE: [(&str, Deed); 8] = [
    ("the directory is moved away", |dir| {
        fs::rename(dir, dir.with_extension("old")).unwrap();
    }),
    ("another directory stands in its place", |dir| {
        fs::rename(dir, dir.with_extension("old")).unwrap();
        fs::create_dir(dir).unwrap();
    }),
    ("all files are removed", |dir| {
        for entry in fs::read_dir(dir).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }),
    ("the database is removed", |dir| {
        fs::remove_file(dir.join("t.db")).unwrap()
    }),
    ("the log is removed", |dir| {
        fs::remove_file(dir.join("t.db-wal")).unwrap()
    }),
    ("the shared memory is removed", |dir| {
        fs::remove_file(dir.join("t.db-shm")).unwrap()
    }),
    ("a copy is moved over the database", |dir| {
        fs::copy(dir.join("t.db"), dir.join("copy")).unwrap();
        fs::rename(dir.join("copy"), dir.join("t.db")).unwrap();
    }),
    ("an empty log stands in its place", |dir| {
        fs::write(dir.join("empty"), "").unwrap();
        fs::rename(dir.join("empty"), dir.join("t.db-wal")).unwrap();
    }),
];

#[tokio::test]
async fn case_l41_nothing_is_written_any_more_once_the_files_were_replaced() {
    for exclusive in [true, false] {
        for (name, replace) in DONE {
            let whole = tempfile::tempdir().unwrap();
            let dir = whole.path().join("data");
            let sqlite = open(&dir.join("t.db"), exclusive);
            insert(&sqlite, 1, 10).await.unwrap();
            sqlite.health(SOON).await.unwrap();
            replace(&dir);
            for _ in 0..2 {
                let refused = insert(&sqlite, 2, 10).await;
                assert!(matches!(&refused, Err(SqlError::Unavailable(_))), "{name}: {refused:?}");
                let said = sqlite.health(SOON).await.unwrap_err().to_string();
                assert!(said.starts_with("replaced: "), "{name}: {said}");
            }
            sqlite.close().await;
        }
    }
}

#[tokio::test]
async fn case_l41_an_attached_file_that_was_replaced_is_believed_no_more() {
    let whole = tempfile::tempdir().unwrap();
    let (path, beside) = (whole.path().join("t.db"), whole.path().join("other.db"));
    let other = open(&beside, false);
    let mut attaching = options(&path, false);
    attaching.attach = vec![Attach {
        schema: "other",
        path: beside.clone(),
    }];
    let sqlite = Sqlite::open(attaching, &Host::system()).unwrap();
    insert(&sqlite, 1, 10).await.unwrap();
    fs::rename(&beside, whole.path().join("away.db")).unwrap();
    let refused = insert(&sqlite, 2, 10).await;
    assert!(
        matches!(&refused, Err(SqlError::Unavailable(said)) if said.contains("other.db")),
        "{refused:?}"
    );
    other.close().await;
}

/// While the first owner lives nobody else can open the path, whatever was done to the files.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn case_l41_a_second_owner_is_refused_while_the_first_one_lives() {
    for (name, replace) in DONE {
        let whole = tempfile::tempdir().unwrap();
        let path = whole.path().join("data/t.db");
        let first = open(&path, true);
        insert(&first, 1, 10).await.unwrap();
        replace(&whole.path().join("data"));
        match Sqlite::open(options(&path, true), &Host::system()) {
            Err(SqlError::Unavailable(said)) => assert!(said.contains("in use by another process"), "{name}: {said}"),
            Err(other) => panic!("{name}: {other}"),
            Ok(_) => panic!("{name}: a second one was let in"),
        }
        first.close().await;
    }
}

/// A real file system without room: a small tmpfs, where this process may mount one.
#[tokio::test]
async fn case_l36_a_full_disk_is_told_until_a_write_of_some_size_works() {
    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            drop(Command::new("umount").arg("-l").arg(self.0.path()).status());
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
        .arg(dir.path())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("not run: this process may not mount a file system");
        return;
    }
    let dir = Mounted(dir);
    let sqlite = open(&dir.0.path().join("t.db"), true);
    let ballast = dir.0.path().join("ballast");
    fs::write(&ballast, vec![0; 2 << 20]).unwrap();
    let mut kept = 0;
    while insert(&sqlite, kept, 20_000).await.is_ok() {
        kept += 1;
        assert!(kept < 1000, "the disk never filled");
    }
    // A page may still find its place in the log; a load of some size does not.
    for _ in 0..3 {
        let said = sqlite.health(SOON).await.unwrap_err().to_string();
        assert!(said.starts_with("full: "), "{said}");
    }
    fs::remove_file(&ballast).unwrap();
    sqlite.health(SOON).await.unwrap();
    insert(&sqlite, kept, 20_000).await.unwrap();
    let names: Vec<_> = fs::read_dir(dir.0.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !names.iter().any(|name| name.to_string_lossy().contains("probe")),
        "{names:?}"
    );
    sqlite.close().await;
}

/// Whatever the umask of the process lets through.
#[tokio::test]
async fn case_s8_nobody_else_reads_the_files() {
    let whole = tempfile::tempdir().unwrap();
    fs::set_permissions(whole.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for exclusive in [true, false] {
        let dir = whole.path().join(format!("deep/{exclusive}"));
        let sqlite = open(&dir.join("t.db"), exclusive);
        insert(&sqlite, 1, 10).await.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&whole.path().join("deep")), mode(&dir)), (0o700, 0o700));
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
        sqlite.close().await;
    }
}
