//! What a database says when its file cannot do what is asked: one clear error each, nothing half done, and nothing lost.

#![allow(clippy::unwrap_used, reason = "a test")]

use host_kit::Host;
use rusqlite::Connection;
use sql_kit::{Attach, Decision, Location, Migration, SqlError, Sqlite, SqliteOptions};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

const SCHEMA: &[Migration] = &[Migration {
    version: 1,
    name: "one",
    sql: "CREATE TABLE t (x INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;",
}];

fn options(path: &Path) -> SqliteOptions {
    SqliteOptions::new(Location::File(path.to_owned()), SCHEMA)
}

fn open(path: &Path) -> Sqlite {
    Sqlite::open(options(path), &Host::system()).unwrap()
}

fn refused(path: &Path) -> SqlError {
    Sqlite::open(options(path), &Host::system()).expect_err("it was opened")
}

async fn insert(sqlite: &Sqlite, x: i64, bytes: i64) -> Result<(), SqlError> {
    sqlite
        .write(SOON, move |c| {
            c.execute("INSERT INTO t VALUES (?1, randomblob(?2))", [x, bytes])
                .map(|_| Decision::Commit(()))
        })
        .await
}

async fn count(sqlite: &Sqlite) -> Result<i64, SqlError> {
    sqlite
        .read(SOON, |c| c.query_row("SELECT count(*) FROM t", [], |row| row.get(0)))
        .await
}

fn overwrite(path: &Path, at: u64, with: &[u8]) {
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(with).unwrap();
}

/// A closed file with some pages of data.
async fn filled(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("t.db");
    let sqlite = open(&path);
    for x in 0..200 {
        insert(&sqlite, x, 1000).await.unwrap();
    }
    sqlite.close().await;
    assert!(
        !dir.path().join("t.db-wal").exists(),
        "closing folds the log into the file"
    );
    path
}

#[tokio::test]
async fn a_full_database_refuses_and_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let sqlite = open(&dir.path().join("t.db"));
    insert(&sqlite, 1, 10).await.unwrap();
    let set_limit = |pages: i64| {
        sqlite.write(SOON, move |c| {
            c.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
                .map(Decision::Commit)
        })
    };
    set_limit(8).await.unwrap();
    let full = insert(&sqlite, 2, 1 << 20).await;
    assert!(
        matches!(&full, Err(SqlError::Unavailable(why)) if why.contains("disk full")),
        "{full:?}"
    );
    assert_eq!(count(&sqlite).await, Ok(1));
    set_limit(1 << 20).await.unwrap();
    insert(&sqlite, 3, 1 << 20).await.unwrap();
    assert_eq!(count(&sqlite).await, Ok(2));
}

/// A real file system without room: a small tmpfs, where this process may mount one.
#[tokio::test]
async fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
        .arg(dir.path())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("not run: this process may not mount a file system");
        return;
    }
    let dir = Mounted(dir);
    let sqlite = open(&dir.0.path().join("t.db"));
    let ballast = dir.0.path().join("ballast");
    fs::write(&ballast, vec![0; 1 << 20]).unwrap();
    let mut kept = 0;
    let error = loop {
        match insert(&sqlite, kept, 20_000).await {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 1000, "the disk never filled");
    };
    assert!(
        matches!(&error, SqlError::Unavailable(why) if why.contains("disk full")),
        "{error:?}"
    );
    let health = sqlite.health(SOON).await;
    assert!(
        health.is_err() || insert(&sqlite, -1, 500_000).await.is_err(),
        "it said that it can write"
    );
    assert_eq!(
        count(&sqlite).await,
        Ok(kept),
        "what was answered is there, what was refused is not"
    );
    fs::remove_file(&ballast).unwrap();
    sqlite.health(SOON).await.unwrap();
    insert(&sqlite, kept, 20_000).await.unwrap();
    sqlite.close().await;
    let sqlite = open(&dir.0.path().join("t.db"));
    assert_eq!(count(&sqlite).await, Ok(kept + 1));
    sqlite.close().await;
}

#[tokio::test]
async fn a_locked_file_is_waited_for_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let mut options = options(&path);
    options.busy_timeout = Duration::from_millis(50);
    let sqlite = Sqlite::open(options, &Host::system()).unwrap();
    insert(&sqlite, 1, 10).await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let locked = insert(&sqlite, 2, 10).await;
    assert!(
        matches!(&locked, Err(SqlError::Unavailable(why)) if why.contains("locked by another")),
        "{locked:?}"
    );
    assert!(sqlite.health(SOON).await.is_err());
    assert_eq!(count(&sqlite).await, Ok(1), "reading goes on");
    other.execute_batch("COMMIT").unwrap();
    insert(&sqlite, 2, 10).await.unwrap();
    sqlite.health(SOON).await.unwrap();
}

#[tokio::test]
async fn two_processes_that_write_one_file_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (open(&dir.path().join("t.db")), open(&dir.path().join("t.db")));
    let write = |sqlite: Sqlite, start: i64| async move {
        for x in start..start + 100 {
            insert(&sqlite, x, 10).await.unwrap();
        }
    };
    tokio::join!(write(one.clone(), 0), write(two.clone(), 1000));
    assert_eq!((count(&one).await, count(&two).await), (Ok(200), Ok(200)));
}

#[tokio::test]
async fn a_damaged_file_is_refused_at_the_start() {
    for (name, damage) in [
        (
            "no database",
            (|path: &Path| overwrite(path, 0, b"no SQLite at all")) as fn(&Path),
        ),
        ("a damaged page", |path| overwrite(path, 3 * 4096, &[0xff; 4096])),
        ("a shortened file", |path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_len(20 * 4096 + 100).unwrap();
        }),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = filled(&dir).await;
        damage(&path);
        let error = refused(&path);
        assert!(
            matches!(&error, SqlError::Corrupt(why) if why.contains("t.db") && why.contains("damaged")),
            "{name}: {error:?}"
        );
    }
}

#[tokio::test]
async fn damage_that_is_met_later_stops_all_writing() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(&dir).await;
    let mark: u32 = Connection::open(&path)
        .unwrap()
        .query_row(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'file_mark'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let mut file = fs::File::open(&path).unwrap();
    let mut before = Vec::new();
    file.read_to_end(&mut before).unwrap();
    // Every page but the schema's, the table's root, and the one that each write begins with.
    for page in (3..before.len() / 4096).filter(|page| page + 1 != mark as usize) {
        overwrite(&path, page as u64 * 4096, &[0xff; 4096]);
    }
    let mut options = options(&path);
    options.check_bytes_max = 0;
    let sqlite = Sqlite::open(options, &Host::system()).unwrap();
    sqlite.health(SOON).await.unwrap();
    let met = sqlite
        .write(SOON, |c| {
            c.execute("DELETE FROM t WHERE x = 150", []).map(Decision::Commit)
        })
        .await;
    assert!(
        matches!(&met, Err(SqlError::Corrupt(why)) if why.contains("damaged")),
        "{met:?}"
    );
    let sound = sqlite
        .write(SOON, |c| c.execute("PRAGMA user_version = 7", []).map(Decision::Commit))
        .await;
    assert!(
        matches!(sound, Err(SqlError::Corrupt(_))),
        "nothing is written over damage: {sound:?}"
    );
    assert!(matches!(sqlite.health(SOON).await, Err(SqlError::Corrupt(_))));
}

#[tokio::test]
async fn a_newer_or_foreign_schema_is_refused_in_clear_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(&dir).await;
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch("INSERT INTO schema_migration VALUES (2, 'two', 0)")
        .unwrap();
    let newer = refused(&path).to_string();
    assert!(
        newer.contains("has version 2") && newer.contains("knows up to 1"),
        "{newer}"
    );
    raw.execute_batch("DELETE FROM schema_migration; INSERT INTO schema_migration VALUES (1, 'other', 0)")
        .unwrap();
    let other = refused(&path);
    assert!(
        matches!(&other, SqlError::Corrupt(why) if why.contains("\"other\"")),
        "{other:?}"
    );
    let foreign = dir.path().join("foreign.db");
    Connection::open(&foreign)
        .unwrap()
        .execute_batch("CREATE TABLE photos (x)")
        .unwrap();
    let error = refused(&foreign);
    assert!(
        matches!(&error, SqlError::Corrupt(why) if why.contains("somebody else")),
        "{error:?}"
    );
}

const READ_ONLY: &str = "SQL_KIT_READ_ONLY";

/// Not a test of its own: what `a_read_only_file_is_refused` runs as a user that may not write.
#[test]
#[ignore = "run by a_read_only_file_is_refused"]
fn child_opens_a_read_only_file() {
    let path = PathBuf::from(std::env::var(READ_ONLY).unwrap());
    println!("\nrefused: {}", refused(&path));
    let mut exclusive = options(&path);
    exclusive.exclusive = true;
    println!("refused: {}", Sqlite::open(exclusive, &Host::system()).unwrap_err());
}

#[tokio::test]
async fn a_read_only_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(&dir).await;
    let protect = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    protect(&path, 0o444);
    protect(dir.path(), 0o555);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--ignored", "--exact", "child_opens_a_read_only_file", "--nocapture"])
        .env(READ_ONLY, &path);
    // Root may write anything: the child is somebody who may not.
    let root = fs::File::options().append(true).open(&path).is_ok();
    if root {
        child.uid(65_534).gid(65_534);
    }
    let output = child.output().unwrap();
    protect(dir.path(), 0o755);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("refused: ")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("t.db") && lines[0].contains("read-only"), "{text}");
    assert!(
        lines[1].contains("t.db.lock") && lines[1].contains("ermission denied"),
        "{text}"
    );
}

#[tokio::test]
async fn another_file_is_attached_when_it_comes_and_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, theirs) = (dir.path().join("mine.db"), dir.path().join("the irs #1?.db"));
    let mut options = options(&mine);
    options.attach = vec![Attach {
        schema: "theirs",
        path: theirs.clone(),
    }];
    let sqlite = Sqlite::open(options, &Host::system()).unwrap();
    let read = || async {
        sqlite
            .read(SOON, |c| {
                c.query_row("SELECT count(*) FROM theirs.t", [], |row| row.get::<_, i64>(0))
            })
            .await
    };
    let not_yet = read().await;
    assert!(
        matches!(&not_yet, Err(SqlError::Unavailable(why)) if why.contains("no such table")),
        "{not_yet:?}"
    );
    let other = open(&theirs);
    insert(&other, 1, 10).await.unwrap();
    assert_eq!(read().await, Ok(1));
    // A job sees in the other file whatever was answered there before the job was sent.
    for x in 2..50 {
        insert(&other, x, 10).await.unwrap();
        let seen = sqlite
            .write(SOON, move |c| {
                c.execute("INSERT INTO t VALUES (?1, x'00')", [x])?;
                c.query_row("SELECT count(*) FROM theirs.t", [], |row| row.get::<_, i64>(0))
                    .map(Decision::Commit)
            })
            .await;
        assert_eq!((seen, read().await), (Ok(x), Ok(x)));
    }
    let written = sqlite
        .write(SOON, |c| c.execute("DELETE FROM theirs.t", []).map(Decision::Commit))
        .await;
    assert!(
        matches!(&written, Err(SqlError::Unavailable(why)) if why.contains("readonly")),
        "{written:?}"
    );
    // One that is stopped inside a transaction stops nobody else (D12).
    let stopped = Connection::open(&theirs).unwrap();
    stopped.execute_batch("BEGIN IMMEDIATE; DELETE FROM t").unwrap();
    insert(&sqlite, 1000, 10).await.unwrap();
    assert_eq!(read().await, Ok(49));
}
