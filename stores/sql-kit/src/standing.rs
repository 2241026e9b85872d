//! Whether the path still leads to the files that are open (case L41).
//!
//! Owns: the identity (device and inode) of the database, its log, its shared memory and its lock file.
//! Does not own: what follows from a change: the writer refuses everything from then on.
//! On failure: a file that cannot be looked at counts as replaced.
//!
//! Looked at by name alone. Closing any descriptor of the database would free the process's locks by `fcntl`.

use crate::{Location, SqlError, SqliteOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Device and inode.
type Id = (u64, u64);

/// A file as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Seen {
    path: PathBuf,
    id: Id,
}

/// The files as they were when they were opened.
#[derive(Debug)]
pub(crate) struct Standing {
    /// The database and its lock file: the same for as long as the process has them open.
    kept: Vec<Seen>,
    /// The log and the shared memory: made anew with a new connection.
    beside: Vec<Seen>,
}

pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn look(path: &Path) -> std::io::Result<Id> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

impl Seen {
    /// None where there is no such file.
    pub(crate) fn at(path: PathBuf) -> Option<Self> {
        look(&path).ok().map(|id| Self { path, id })
    }

    /// Whether its path leads elsewhere by now, in words.
    pub(crate) fn moved(&self) -> Option<String> {
        let path = self.path.display();
        match look(&self.path) {
            Ok(id) if id == self.id => None,
            Ok(_) => Some(format!("{path}: replaced by another file while it was open")),
            Err(error) => Some(format!("{path}: gone while it was open: {error}")),
        }
    }
}

impl Standing {
    /// The files of a database before SQLite opens it. None in memory.
    pub(crate) fn of(options: &SqliteOptions) -> Result<Option<Self>, SqlError> {
        let Location::File(path) = &options.location else {
            return Ok(None);
        };
        let refuse = |error| SqlError::Unavailable(format!("{}: {error}", path.display()));
        let mut kept = vec![Seen {
            id: look(path).map_err(refuse)?,
            path: path.clone(),
        }];
        kept.extend(options.exclusive.then(|| Seen::at(beside(path, ".lock"))).flatten());
        Ok(Some(Self {
            kept,
            beside: Vec::new(),
        }))
    }

    /// Takes the log and the shared memory of a connection that has just read.
    pub(crate) fn take_beside(&mut self) {
        let path = &self.kept[0].path;
        self.beside = ["-wal", "-shm"]
            .iter()
            .filter_map(|ending| Seen::at(beside(path, ending)))
            .collect();
    }

    /// Forgets the log and the shared memory, which go with the last connection.
    pub(crate) fn forget_beside(&mut self) {
        self.beside.clear();
    }

    /// What is not where it was opened, in words.
    pub(crate) fn moved(&self) -> Option<String> {
        self.kept.iter().chain(&self.beside).find_map(Seen::moved)
    }
}
