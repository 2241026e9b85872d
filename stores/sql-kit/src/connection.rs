//! Opening one connection, its pragmas, and the files attached to it.

use crate::error::undone;
use crate::standing::{Seen, beside};
use crate::{Attach, Location, SqlError, SqliteOptions};
use rusqlite::{Connection, OpenFlags};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A connection together with the attached files that could not be attached yet.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) missing: Vec<Attach>,
    /// The attached files as they were.
    attached: Vec<Seen>,
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
        Some(parent) => std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(|error| {
                SqlError::Unavailable(format!("{}: cannot make the directory: {error}", parent.display()))
            }),
    }
}

/// Makes an empty file that nobody else can read, where there is none: SQLite gives its log the same mode (case S8).
pub(crate) fn make_file(location: &Location) -> Result<(), SqlError> {
    let Location::File(path) = location else { return Ok(()) };
    // Never opens one that is there: closing it would free the locks of another connection of this process.
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(_) if path.exists() => Ok(()),
        Err(error) => Err(SqlError::Unavailable(format!(
            "{}: cannot be made: {error}",
            path.display()
        ))),
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
    /// The path itself, for every process that sees the same files: holds also where all of them, or their directory, were
    /// replaced under the owner (case L41).
    #[cfg(target_os = "linux")]
    _path: std::os::unix::net::UnixListener,
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
    let name = beside(path, ".lock");
    let made = (!name.exists()).then(|| name.clone());
    let lock = lock_one(path, &name)?;
    let taken = || -> Result<Exclusive, SqlError> {
        let file = lock_one(path, path)?;
        #[cfg(target_os = "linux")]
        let path = lock_path(path)?;
        Ok(Exclusive {
            _name: lock,
            _file: file,
            made: made.clone(),
            #[cfg(target_os = "linux")]
            _path: path,
        })
    };
    match taken() {
        Ok(taken) => Ok(Some(taken)),
        Err(error) => {
            if let Some(name) = made {
                let _ = std::fs::remove_file(name);
            }
            Err(error)
        }
    }
}

/// Takes the path's name in the kernel's own name space of sockets, which no file stands for and which the kernel frees with
/// the process. The name holds the mount name space: the same path in another container is another file.
#[cfg(target_os = "linux")]
fn lock_path(path: &Path) -> Result<std::os::unix::net::UnixListener, SqlError> {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let refuse = |why: String| SqlError::Unavailable(format!("{}: {why}", path.display()));
    let whole = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
        .canonicalize()
        .map(|parent| parent.join(path.file_name().unwrap_or_default()))
        .map_err(|error| refuse(error.to_string()))?;
    let mounts = std::fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    (mounts, whole).hash(&mut hasher);
    let name = format!("dlock-store-{:016x}", hasher.finish());
    SocketAddr::from_abstract_name(name)
        .and_then(|name| UnixListener::bind_addr(&name))
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => refuse(
                "in use by another process, which opened this path before its files were replaced; end that one first"
                    .to_owned(),
            ),
            _ => refuse(format!("cannot be kept for this process: {error}")),
        })
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
        options
            .read(true)
            .write(write)
            .create(write)
            .truncate(false)
            .mode(0o600)
            .open(held)
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
        attached: Vec::new(),
    };
    opened.attach_missing();
    opened
}

impl Opened {
    /// Attaches what has come into being. Outside a transaction only.
    pub(crate) fn attach_missing(&mut self) {
        let (connection, attached) = (&self.connection, &mut self.attached);
        self.missing.retain(|attach| {
            let Some(seen) = Seen::at(attach.path.clone()) else {
                return true;
            };
            match connection.execute(
                "ATTACH DATABASE ?1 AS ?2",
                [&read_only_uri(&attach.path), attach.schema],
            ) {
                Ok(_) => {
                    attached.push(seen);
                    false
                }
                Err(error) => {
                    tracing::warn!(event = "attach_failed", path = %attach.path.display(), %error);
                    true
                }
            }
        });
    }
}

impl Opened {
    /// Which attached file is not where it was attached from, in words.
    pub(crate) fn moved(&self) -> Option<String> {
        self.attached.iter().find_map(Seen::moved)
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
