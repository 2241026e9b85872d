//! Opening one connection, its pragmas, and the files attached to it.

use crate::error::undone;
use crate::{Attach, Location, SqlError, SqliteOptions};
use rusqlite::{Connection, OpenFlags};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// A connection together with the attached files that could not be attached yet.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) missing: Vec<Attach>,
}

/// The name of the database in messages.
pub(crate) fn file_name(location: &Location) -> String {
    match location {
        Location::File(path) => path.display().to_string(),
        Location::Memory => "memory".to_owned(),
    }
}

/// Makes the directory, so that a store can be named before it exists.
pub(crate) fn make_directory(location: &Location) -> Result<(), SqlError> {
    let Location::File(path) = location else { return Ok(()) };
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        None => Ok(()),
        Some(parent) => std::fs::create_dir_all(parent).map_err(|error| {
            SqlError::Unavailable(format!("{}: cannot make the directory: {error}", parent.display()))
        }),
    }
}

/// What every SQLite file begins with.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// What keeps a second process away while it lives. The operating system frees it when the process ends in whatever way.
pub(crate) struct Exclusive {
    /// The name, so that a file that was moved away is not made anew beside its owner.
    _name: File,
    /// The file itself, whatever other name leads to it (a link). A lock by `flock` does not meet SQLite's own by `fcntl`.
    /// Closed after SQLite's connection, because closing any descriptor of a file frees the process's locks by `fcntl`.
    _file: File,
    /// The name, where it was made here.
    made: Option<PathBuf>,
}

impl Exclusive {
    /// Takes away what was made beside a file that was refused. Who finds the name gone still meets the lock on the file.
    pub(crate) fn withdraw(self) {
        if let Some(name) = &self.made {
            // A file that stays is in nobody's way.
            let _ = std::fs::remove_file(name);
        }
    }
}

/// Takes the locks that keep a second process away from the file.
pub(crate) fn lock_exclusively(location: &Location) -> Result<Option<Exclusive>, SqlError> {
    let Location::File(path) = location else {
        return Ok(None);
    };
    is_no_other_file(path)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let made = (!name.exists()).then(|| name.clone());
    let lock = lock_one(path, &name)?;
    match lock_one(path, path) {
        Ok(file) => Ok(Some(Exclusive {
            _name: lock,
            _file: file,
            made,
        })),
        Err(error) => {
            if let Some(name) = made {
                let _ = std::fs::remove_file(name);
            }
            Err(error)
        }
    }
}

/// Refuses what is there and is no database, before anything is made beside it.
fn is_no_other_file(path: &Path) -> Result<(), SqlError> {
    if path.is_dir() {
        return Err(SqlError::Unavailable(format!("{}: is a directory", path.display())));
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head));
    // One that is not there is made, and an empty one is a database; one that cannot be read is told of where it is opened.
    if read.is_ok() && !head.is_empty() && head != MAGIC {
        return Err(SqlError::Corrupt(format!(
            "{}: the file is no database",
            path.display()
        )));
    }
    Ok(())
}

fn lock_one(path: &Path, held: &Path) -> Result<File, SqlError> {
    let refuse = |why: String| SqlError::Unavailable(format!("{}: {why}", path.display()));
    let open = |write: bool| {
        let mut options = File::options();
        options.read(true).write(write).create(write).truncate(false).open(held)
    };
    // What may only be read can be locked all the same; that it cannot be written is said where it is opened.
    let lock = open(true)
        .or_else(|error| open(false).map_err(|_| error))
        .map_err(|error| refuse(format!("cannot open {}: {error}", held.display())))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(refuse(format!(
            "in use by another process, which holds {}; one process at a time may have this file open",
            held.display()
        ))),
        Err(std::fs::TryLockError::Error(error)) => Err(refuse(format!("cannot lock {}: {error}", held.display()))),
    }
}

/// Opens a connection that may write.
pub(crate) fn open_writer(options: &SqliteOptions) -> Result<Opened, SqlError> {
    let file = file_name(&options.location);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match &options.location {
        Location::File(path) => Connection::open_with_flags(path, flags),
        Location::Memory => Connection::open_in_memory_with_flags(flags),
    }
    .map_err(|error| undone(&file, "open", &error))?;
    let native = |error: rusqlite::Error| undone(&file, "open", &error);
    connection.busy_timeout(options.busy_timeout).map_err(native)?;
    if connection.is_readonly(rusqlite::MAIN_DB).map_err(native)? {
        return Err(SqlError::Unavailable(format!("{file}: open: the file is read-only")));
    }
    let mode: String = connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(native)?;
    if mode != "wal" && options.location != Location::Memory {
        return Err(SqlError::Unavailable(format!(
            "{file}: open: the journal mode is {mode:?} and cannot be made WAL"
        )));
    }
    connection
        .execute_batch("PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864;")
        .map_err(native)?;
    settle(&connection).map_err(native)?;
    Ok(with_attached(connection, &options.attach))
}

/// Opens a connection that only reads. It sees the last commit.
pub(crate) fn open_reader(path: &Path, options: &SqliteOptions) -> Result<Opened, SqlError> {
    let file = file_name(&options.location);
    let native = |error: rusqlite::Error| undone(&file, "open for reading", &error);
    // Opened for writing because a reader of a log keeps its place in the shared memory file; made unable to write.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(native)?;
    connection.busy_timeout(options.busy_timeout).map_err(native)?;
    settle(&connection).map_err(native)?;
    connection.execute_batch("PRAGMA query_only = ON").map_err(native)?;
    Ok(with_attached(connection, &options.attach))
}

fn settle(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "PRAGMA foreign_keys = ON; PRAGMA recursive_triggers = ON; PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -32768;",
    )?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(())
}

fn with_attached(connection: Connection, attach: &[Attach]) -> Opened {
    let mut opened = Opened {
        connection,
        missing: attach.to_vec(),
    };
    opened.attach_missing();
    opened
}

impl Opened {
    /// Attaches what has come into being. Outside a transaction only.
    pub(crate) fn attach_missing(&mut self) {
        let connection = &self.connection;
        self.missing.retain(|attach| {
            if !attach.path.exists() {
                return true;
            }
            match connection.execute(
                "ATTACH DATABASE ?1 AS ?2",
                [&read_only_uri(&attach.path), attach.schema],
            ) {
                Ok(_) => false,
                Err(error) => {
                    tracing::warn!(event = "attach_failed", path = %attach.path.display(), %error);
                    true
                }
            }
        });
    }
}

/// A `file:` URI that opens an existing file for reading.
fn read_only_uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => {
                // Writing into a String cannot fail.
                let _ = write!(uri, "%{byte:02X}");
            }
        }
    }
    uri.push_str("?mode=ro");
    uri
}

/// Reads a small file from end to end.
pub(crate) fn check(connection: &Connection, options: &SqliteOptions) -> Result<(), SqlError> {
    let file = file_name(&options.location);
    let native = |error: rusqlite::Error| undone(&file, "check", &error);
    let size = |pragma: &str| {
        connection
            .query_row(pragma, [], |row| row.get::<_, i64>(0))
            .map_err(native)
    };
    let bytes = size("PRAGMA main.page_count")?.saturating_mul(size("PRAGMA main.page_size")?);
    if u64::try_from(bytes).unwrap_or(u64::MAX) > options.check_bytes_max {
        return Ok(());
    }
    let found: String = connection
        .query_row("PRAGMA main.quick_check(1)", [], |row| row.get(0))
        .map_err(native)?;
    if found == "ok" {
        Ok(())
    } else {
        Err(SqlError::Corrupt(format!(
            "{file}: check: the file is damaged: {found}"
        )))
    }
}
