//! An older copy of a file in its place is noticed, whichever way it came there; a file that is the one that was written
//! last never is (case P35).

#![allow(clippy::unwrap_used, reason = "a test")]

use host_kit::Host;
use sql_kit::{Decision, Location, Migration, Restored, Sqlite, SqliteOptions, restored};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const ATTRIBUTE: &str = "user.dlock.commits";

const SCHEMA: &[Migration] = &[Migration {
    version: 1,
    name: "one",
    sql: "CREATE TABLE t (x INTEGER PRIMARY KEY) STRICT;",
}];

fn open(path: &Path) -> Sqlite {
    let mut options = SqliteOptions::new(Location::File(path.to_owned()), SCHEMA);
    options.noted_at_restore = Some("SELECT count(*) FROM t");
    Sqlite::open(options, &Host::system()).unwrap()
}

async fn insert(sqlite: &Sqlite, x: i64) {
    sqlite
        .write(SOON, move |c| {
            c.execute("INSERT INTO t VALUES (?1)", [x]).map(Decision::Commit)
        })
        .await
        .unwrap();
}

async fn noticed(sqlite: &Sqlite) -> Option<Restored> {
    sqlite.read(SOON, restored).await.unwrap()
}

async fn epoch_of(path: &Path) -> i64 {
    let sqlite = open(path);
    let epoch = noticed(&sqlite).await.map_or(0, |restored| restored.epoch);
    sqlite.close().await;
    epoch
}

/// A directory of its own below a temporary one, with a file that holds `x = 1`, and whether attributes are kept there.
async fn file_with_one() -> (tempfile::TempDir, PathBuf, bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("live/t.db");
    let sqlite = open(&path);
    insert(&sqlite, 1).await;
    assert_eq!(noticed(&sqlite).await, None, "a first start is no restore");
    sqlite.close().await;
    let keeps = xattr::get(&path, ATTRIBUTE).is_ok_and(|value| value.is_some());
    if !keeps {
        eprintln!("*** this file system keeps no extended attributes: some ways of a restore are not tried ***");
    }
    (dir, path, keeps)
}

/// What a copy leaves of attributes where it was asked to take them along.
fn with_attributes(from: &Path, to: &Path) {
    if let Ok(Some(value)) = xattr::get(from, ATTRIBUTE) {
        xattr::set(to, ATTRIBUTE, &value).unwrap();
    }
}

/// A way to put `copy` in the place of `live`.
type Way = fn(&Path, &Path);

/// The ways, and whether each needs a file system with attributes to be noticed.
const WAYS: [(&str, bool, Way); 6] = [
    ("copied over the file", true, |copy, live| {
        fs::write(live, fs::read(copy).unwrap()).unwrap();
    }),
    ("copied over the file with its attributes", true, |copy, live| {
        fs::write(live, fs::read(copy).unwrap()).unwrap();
        with_attributes(copy, live);
    }),
    ("moved in", false, |copy, live| {
        fs::rename(copy, live).unwrap();
    }),
    ("rsync", false, |copy, live| {
        let part = live.with_extension("part");
        fs::copy(copy, &part).unwrap();
        fs::rename(&part, live).unwrap();
    }),
    ("rsync -X", false, |copy, live| {
        let part = live.with_extension("part");
        fs::copy(copy, &part).unwrap();
        with_attributes(copy, &part);
        fs::rename(&part, live).unwrap();
    }),
    ("removed and copied anew", false, |copy, live| {
        fs::remove_file(live).unwrap();
        fs::copy(copy, live).unwrap();
        with_attributes(copy, live);
    }),
];

#[tokio::test]
async fn case_p35_an_older_copy_is_noticed_whichever_way_it_comes_back() {
    for (way, needs_attributes, put_back) in WAYS {
        let (dir, path, keeps) = file_with_one().await;
        if needs_attributes && !keeps {
            continue;
        }
        let copy = dir.path().join("copy.db");
        fs::copy(&path, &copy).unwrap();
        with_attributes(&path, &copy);
        let sqlite = open(&path);
        insert(&sqlite, 2).await;
        insert(&sqlite, 3).await;
        sqlite.close().await;

        put_back(&copy, &path);
        let sqlite = open(&path);
        let seen = noticed(&sqlite).await.unwrap_or_else(|| panic!("not noticed: {way}"));
        assert_eq!((seen.epoch, seen.noted, seen.is_untold), (1, 1, true), "{way}");
        insert(&sqlite, 4).await;
        sqlite.close().await;
        // One restore is one epoch, and another one is another.
        assert_eq!(epoch_of(&path).await, 1, "{way}");
        fs::copy(&path, &copy).unwrap();
        with_attributes(&path, &copy);
        let sqlite = open(&path);
        insert(&sqlite, 5).await;
        sqlite.close().await;
        put_back(&copy, &path);
        assert_eq!(epoch_of(&path).await, 2, "{way}");
    }
}

/// All within one opening: copied after the start, work, a stop without a word, the copy put back.
#[tokio::test]
async fn case_p35_a_copy_that_was_taken_while_it_was_open_is_noticed() {
    let (dir, path, keeps) = file_with_one().await;
    if !keeps {
        return;
    }
    let copy = dir.path().join("copy.db");
    let sqlite = open(&path);
    fs::copy(&path, &copy).unwrap();
    insert(&sqlite, 2).await;
    // What is on disk now is what a killed process would leave; its connections are closed so that nothing is cached.
    sqlite.close().await;
    fs::write(&path, fs::read(&copy).unwrap()).unwrap();
    assert_eq!(epoch_of(&path).await, 1);
}

/// The file is lost and made anew where an earlier one was; or an earlier program's file, which knows no mark, comes back.
#[tokio::test]
async fn case_p35_a_lost_file_and_one_of_before_the_marks_are_noticed() {
    let (_dir, path, keeps) = file_with_one().await;
    if !keeps {
        return;
    }
    let unmark = || {
        rusqlite::Connection::open(&path)
            .unwrap()
            .execute_batch("DROP TABLE file_mark")
            .unwrap();
    };
    unmark();
    assert_eq!(epoch_of(&path).await, 1, "an earlier program's file over this one");
    fs::remove_file(&path).unwrap();
    assert_eq!(epoch_of(&path).await, 1, "a new file where one was lost");

    // An upgrade: nothing has ever been said about that file.
    unmark();
    xattr::remove(&path, ATTRIBUTE).unwrap();
    xattr::remove(path.parent().unwrap(), format!("{ATTRIBUTE}.t.db")).unwrap();
    assert_eq!(epoch_of(&path).await, 0, "an upgrade is no restore");
}

/// What a crash leaves: the second attribute not yet written, or none of this commit's; and what a power cut leaves, an
/// attribute behind the file. None of it is a restore, and the next one is noticed all the same.
#[tokio::test]
async fn case_p35_a_crash_between_file_and_attribute_is_no_restore() {
    let (dir, path, keeps) = file_with_one().await;
    if !keeps {
        return;
    }
    let said = || String::from_utf8(xattr::get(&path, ATTRIBUTE).unwrap().unwrap()).unwrap();
    let commits: i64 = said().parse().unwrap();
    for left in [format!("{commits}?"), format!("{}?", commits + 1), "1".to_owned()] {
        xattr::set(&path, ATTRIBUTE, left.as_bytes()).unwrap();
        assert_eq!(epoch_of(&path).await, 0, "{left}");
    }
    let copy = dir.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    let sqlite = open(&path);
    insert(&sqlite, 2).await;
    sqlite.close().await;
    assert!(!said().ends_with('?'), "{}", said());
    fs::write(&path, fs::read(&copy).unwrap()).unwrap();
    assert_eq!(epoch_of(&path).await, 1);
}

/// What was noticed but not recorded, because the disk was full or another process wrote, is noticed at the first batch.
#[tokio::test]
async fn case_p35_a_restore_is_noticed_before_the_first_batch_of_a_start_that_could_not_write() {
    let (dir, path, keeps) = file_with_one().await;
    if !keeps {
        return;
    }
    let copy = dir.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    let sqlite = open(&path);
    insert(&sqlite, 2).await;
    sqlite.close().await;
    fs::write(&path, fs::read(&copy).unwrap()).unwrap();

    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut options = SqliteOptions::new(Location::File(path.clone()), SCHEMA);
    options.busy_timeout = Duration::from_millis(20);
    let sqlite = Sqlite::open(options, &Host::system()).unwrap();
    assert_eq!(noticed(&sqlite).await, None);
    other.execute_batch("ROLLBACK").unwrap();
    let seen = sqlite.write(SOON, |c| restored(c).map(Decision::Commit)).await.unwrap();
    assert_eq!(seen.map(|seen| seen.epoch), Some(1));
}

/// Refusals and reads make no commit: they cost no write to the disk.
#[tokio::test]
async fn case_p35_what_changes_nothing_counts_nothing() {
    let (_dir, path, keeps) = file_with_one().await;
    if !keeps {
        return;
    }
    let said = || xattr::get(&path, ATTRIBUTE).unwrap().unwrap();
    let before = said();
    let sqlite = open(&path);
    sqlite.write(SOON, |_| Ok(Decision::Commit(()))).await.unwrap();
    sqlite
        .write(SOON, |c| {
            c.execute("INSERT INTO t VALUES (9)", []).map(Decision::Rollback)
        })
        .await
        .unwrap();
    sqlite.health(SOON).await.unwrap();
    sqlite.close().await;
    assert_eq!(said(), before);
}
