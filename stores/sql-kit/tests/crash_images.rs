//! Power loss: what a disk could hold at every moment of a run, and whether what was answered is still there.
//!
//! This file stands between SQLite and the operating system: each write, truncation and sync is noted and passed on.
//! Afterwards, for every moment, the possible contents of the disk are built: what was synced is there; of the rest
//! nothing, everything, or everything with the last write torn. Each such image is opened and must hold every commit that
//! had been answered by then, and no half of one. The control with `synchronous=NORMAL` must lose some, or this test
//! would prove nothing.

#![allow(unsafe_code, reason = "foreign functions between SQLite and the disk")]
#![allow(clippy::unwrap_used, reason = "a test")]

use host_kit::Host;
use rusqlite::{Connection, ffi};
use sql_kit::{Decision, Location, Migration, Sqlite, SqliteOptions};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

#[derive(Clone)]
enum Step {
    Write { file: PathBuf, at: u64, bytes: Vec<u8> },
    Truncate { file: PathBuf, len: u64 },
    Sync { file: PathBuf },
    Remove { file: PathBuf },
}

/// None while nothing is noted.
static STEPS: Mutex<Option<Vec<Step>>> = Mutex::new(None);

fn note(step: impl FnOnce() -> Step) {
    if let Some(steps) = STEPS.lock().unwrap().as_mut() {
        steps.push(step());
    }
}

fn steps_so_far() -> usize {
    STEPS.lock().unwrap().as_ref().map_or(0, Vec::len)
}

fn file_of(fd: c_int) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

unsafe extern "C" fn noting_pwrite(fd: c_int, from: *const c_void, len: usize, at: i64) -> isize {
    note(|| Step::Write {
        file: file_of(fd),
        at: u64::try_from(at).unwrap(),
        // SAFETY: SQLite passes a buffer of `len` bytes, as pwrite demands.
        bytes: unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.to_vec(),
    });
    // SAFETY: the arguments are passed on unchanged.
    unsafe { libc::pwrite64(fd, from, len, at) }
}

unsafe extern "C" fn noting_ftruncate(fd: c_int, len: i64) -> c_int {
    note(|| Step::Truncate {
        file: file_of(fd),
        len: u64::try_from(len).unwrap(),
    });
    // SAFETY: the arguments are passed on unchanged.
    unsafe { libc::ftruncate64(fd, len) }
}

unsafe extern "C" fn noting_unlink(path: *const c_char) -> c_int {
    // SAFETY: SQLite passes a terminated string.
    let file = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    note(|| Step::Remove { file: file.into() });
    // SAFETY: the argument is passed on unchanged.
    unsafe { libc::unlink(path) }
}

/// SQLite calls these two by name; this program's definitions come before the C library's.
///
/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    note(|| Step::Sync { file: file_of(fd) });
    // SAFETY: the argument is passed on unchanged.
    unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int }
}

/// See [`fdatasync`].
///
/// # Safety
/// As the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    note(|| Step::Sync { file: file_of(fd) });
    // SAFETY: the argument is passed on unchanged.
    unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int }
}

fn stand_between() {
    let put = |name: &str, function: *const ()| {
        let name = CString::new(name).unwrap();
        // SAFETY: the default VFS lives for ever, and each function has the signature of the call it stands for.
        let code = unsafe {
            let vfs = ffi::sqlite3_vfs_find(std::ptr::null());
            let set = (*vfs).xSetSystemCall.unwrap();
            set(
                vfs,
                name.as_ptr(),
                std::mem::transmute::<*const (), ffi::sqlite3_syscall_ptr>(function),
            )
        };
        assert_eq!(code, ffi::SQLITE_OK, "{name:?}");
    };
    put("pwrite", noting_pwrite as *const ());
    put("pwrite64", noting_pwrite as *const ());
    put("ftruncate", noting_ftruncate as *const ());
    put("unlink", noting_unlink as *const ());
}

type Disk = BTreeMap<PathBuf, Vec<u8>>;

fn contents(dir: &Path) -> Disk {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.to_string_lossy().ends_with("-shm") && !path.to_string_lossy().ends_with(".lock"))
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

fn apply(disk: &mut Disk, step: &Step, torn: bool) {
    match step {
        Step::Write { file, at, bytes } => {
            // A disk writes whole sectors.
            let keep = if torn { (bytes.len() / 2) & !511 } else { bytes.len() };
            let (at, contents) = (usize::try_from(*at).unwrap(), disk.entry(file.clone()).or_default());
            if contents.len() < at + keep {
                contents.resize(at + keep, 0);
            }
            contents[at..at + keep].copy_from_slice(&bytes[..keep]);
        }
        Step::Truncate { file, len } => disk
            .entry(file.clone())
            .or_default()
            .resize(usize::try_from(*len).unwrap(), 0),
        Step::Remove { file } => drop(disk.remove(file)),
        Step::Sync { .. } => {}
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Unsynced {
    Lost,
    Kept,
    LastTorn,
}

/// What the disk holds if the power goes after `steps`.
fn image(base: &Disk, steps: &[Step], unsynced: Unsynced) -> Disk {
    let mut disk = base.clone();
    let mut waiting: BTreeMap<&Path, Vec<&Step>> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Sync { file } => {
                for step in waiting.remove(file.as_path()).unwrap_or_default() {
                    apply(&mut disk, step, false);
                }
            }
            Step::Remove { .. } => apply(&mut disk, step, false),
            Step::Write { file, .. } | Step::Truncate { file, .. } => waiting.entry(file).or_default().push(step),
        }
    }
    if unsynced != Unsynced::Lost {
        for steps in waiting.values() {
            for (at, step) in steps.iter().enumerate() {
                apply(&mut disk, step, unsynced == Unsynced::LastTorn && at + 1 == steps.len());
            }
        }
    }
    disk
}

#[derive(Debug, Default)]
struct Found {
    images: u32,
    damaged: u32,
    half: u32,
    lost: u32,
}

/// Opens every image of a run. `answered` says after how many steps which transaction had been answered.
fn examine(base: &Disk, steps: &[Step], answered: &[(usize, i64)], synchronous: &str) -> Found {
    let mut found = Found::default();
    for upto in 0..=steps.len() {
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::LastTorn] {
            // In memory where there is such a place: a thousand images need no disk of their own.
            let dir = tempfile::tempdir_in("/dev/shm")
                .or_else(|_| tempfile::tempdir())
                .unwrap();
            for (path, bytes) in image(base, &steps[..upto], unsynced) {
                std::fs::write(dir.path().join(path.file_name().unwrap()), bytes).unwrap();
            }
            found.images += 1;
            let read = (|| -> rusqlite::Result<(String, i64, i64, i64)> {
                let c = Connection::open(dir.path().join("t.db"))?;
                c.execute_batch(&format!(
                    "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}"
                ))?;
                let one = |sql: &str| c.query_row(sql, [], |row| row.get(0));
                Ok((
                    c.query_row("PRAGMA integrity_check", [], |row| row.get(0))?,
                    one("SELECT mark FROM high")?,
                    one("SELECT coalesce(max(x), 0) FROM done")?,
                    one("SELECT count(*) FROM done")?,
                ))
            })();
            let must_have = answered
                .iter()
                .filter(|(at, _)| *at <= upto)
                .map(|(_, x)| *x)
                .max()
                .unwrap_or(0);
            match read {
                Ok((ok, mark, max, count)) if ok == "ok" => {
                    found.half += u32::from(mark != max || max != count);
                    found.lost += u32::from(mark < must_have);
                }
                _ => found.damaged += 1,
            }
        }
    }
    found
}

const SCHEMA: &[Migration] = &[Migration {
    version: 1,
    name: "one",
    sql: "CREATE TABLE high (id INTEGER PRIMARY KEY, mark INTEGER NOT NULL) STRICT;
          CREATE TABLE done (x INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
          INSERT INTO high VALUES (1, 0);",
}];

const TRANSACTIONS: i64 = 20;

fn transaction(c: &Connection, x: i64) -> rusqlite::Result<()> {
    assert_eq!(
        c.execute("UPDATE high SET mark = ?1 WHERE id = 1 AND mark < ?1", [x])?,
        1
    );
    c.execute("INSERT INTO done VALUES (?1, randomblob(3000))", [x])
        .map(drop)
}

/// Both runs stand in one test: what is noted is the process's.
#[tokio::test]
async fn power_loss_takes_nothing_that_was_answered() {
    stand_between();

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let options = SqliteOptions::new(Location::File(path.clone()), SCHEMA);
    let sqlite = Sqlite::open(options, &Host::system()).unwrap();
    // The store's files as a start leaves them, folded together so that the base is one file.
    sqlite.close().await;
    let sqlite = Sqlite::open(SqliteOptions::new(Location::File(path), SCHEMA), &Host::system()).unwrap();
    let base = contents(dir.path());
    *STEPS.lock().unwrap() = Some(Vec::new());
    let mut answered = Vec::new();
    for x in 1..=TRANSACTIONS {
        sqlite
            .write(Duration::from_secs(20), move |c| {
                transaction(c, x).map(Decision::Commit)
            })
            .await
            .unwrap();
        answered.push((steps_so_far(), x));
    }
    let steps = STEPS.lock().unwrap().take().unwrap();
    sqlite.close().await;
    let full = examine(&base, &steps, &answered, "FULL");
    eprintln!("as sql-kit opens it: {full:?}");
    assert!(full.images > 100, "too few moments: {full:?}");
    assert_eq!((full.damaged, full.half, full.lost), (0, 0, 0), "{full:?}");

    // The control: the same work with synchronous=NORMAL.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let c = Connection::open(&path).unwrap();
    c.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
        .unwrap();
    c.execute_batch(SCHEMA[0].sql).unwrap();
    c.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let base = contents(dir.path());
    *STEPS.lock().unwrap() = Some(Vec::new());
    let mut answered = Vec::new();
    for x in 1..=TRANSACTIONS {
        c.execute_batch("BEGIN IMMEDIATE").unwrap();
        transaction(&c, x).unwrap();
        c.execute_batch("COMMIT").unwrap();
        answered.push((steps_so_far(), x));
    }
    let steps = STEPS.lock().unwrap().take().unwrap();
    let normal = examine(&base, &steps, &answered, "NORMAL");
    eprintln!("control, synchronous=NORMAL: {normal:?}");
    assert!(
        normal.lost > 0,
        "the control lost nothing, so this test cannot see a loss: {normal:?}"
    );
}
