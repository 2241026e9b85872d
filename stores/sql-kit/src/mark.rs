//! Whether a file is the one that was written last, or an older copy of it that was put in its place (case P35).
//!
//! ```text
//! BEGIN → judge → jobs → attribute "n+1?" → COMMIT, with n+1 in the file → attribute "n+1" → answers
//! ```
//!
//! Owns: the table `file_mark`, and the extended attributes of the file and of its directory. Each commit that changes
//! something counts one number up, in the file and in the attributes. Who copies the content over the file leaves the
//! attribute, which is then ahead of it. Who moves another file in brings another time of birth than the row names.
//! Does not own: what a restore means for what the file holds; its owner asks [`restored`].
//! On failure: doubt. A crash between COMMIT and the second attribute leaves "n+1?", which stands for n and for n+1: nobody
//! was answered about n+1 yet. A power cut can leave an attribute that is behind the file, which is no restore. Where the
//! file system keeps no attributes, the time of birth alone tells, and the log says so.

use crate::Location;
use rusqlite::{Connection, OptionalExtension, params};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The attribute of the file itself.
const OF_FILE: &str = "user.dlock.commits";

const TABLE: &str = "CREATE TABLE IF NOT EXISTS main.file_mark (
    id INTEGER PRIMARY KEY CHECK (id = 1), commits INTEGER NOT NULL, born TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0, restored_at INTEGER, noted INTEGER, told INTEGER NOT NULL DEFAULT 0) STRICT";

/// A restore that was noticed: the file has lost what was written after the copy was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// How many restores were noticed so far, from 1.
    pub epoch: i64,
    /// When the latest one was noticed, in milliseconds since 1970.
    pub at_ms: i64,
    /// What [`crate::SqliteOptions::noted_at_restore`] answered then.
    pub noted: i64,
    /// Nobody has called [`restore_was_told`] for it yet.
    pub is_untold: bool,
}

/// The latest restore of the main file of this connection; none: none was ever noticed.
///
/// # Errors
/// As SQLite has them.
pub fn restored(connection: &Connection) -> rusqlite::Result<Option<Restored>> {
    connection
        .prepare_cached(
            "SELECT epoch, coalesce(restored_at, 0), coalesce(noted, 0), told < epoch
               FROM main.file_mark WHERE id = 1 AND epoch > 0",
        )?
        .query_row([], |row| {
            Ok(Restored {
                epoch: row.get(0)?,
                at_ms: row.get(1)?,
                noted: row.get(2)?,
                is_untold: row.get(3)?,
            })
        })
        .optional()
}

/// Records that the file's owner has drawn its conclusion from the latest restore, in the transaction that draws it.
///
/// # Errors
/// As SQLite has them.
pub fn restore_was_told(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE main.file_mark SET told = epoch WHERE id = 1")?
        .execute([])
        .map(drop)
}

/// Makes the table where it is missing.
pub(crate) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    let exists = connection
        .prepare("SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = 'file_mark'")?
        .exists([])?;
    if exists {
        Ok(())
    } else {
        connection.execute_batch(TABLE)
    }
}

/// What an attribute says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    commits: i64,
    /// This commit had begun and was not yet answered: the one before may be the last.
    is_pending: bool,
}

impl Said {
    fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let number = text.strip_suffix('?');
        Some(Self {
            commits: number.unwrap_or(text).parse().ok()?,
            is_pending: number.is_some(),
        })
    }

    /// The least that the file must hold.
    fn least(self) -> i64 {
        self.commits - i64::from(self.is_pending)
    }
}

/// What stands outside the content of one file.
pub(crate) struct Mark {
    path: PathBuf,
    /// The directory and the attribute there: it is left where the file's own is copied back together with the file.
    directory: Option<(PathBuf, String)>,
    /// What [`restored`] notes at a restore.
    noted: Option<&'static str>,
    /// An attribute could not be written, which was said.
    has_failed: bool,
}

impl Mark {
    /// None for a database in memory.
    pub(crate) fn of(location: &Location, noted: Option<&'static str>) -> Option<Self> {
        let Location::File(path) = location else { return None };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // Everybody's directory for temporary files is left alone.
        let is_shared = std::fs::metadata(parent).is_ok_and(|parent| parent.mode() & 0o1000 != 0);
        let directory = path
            .file_name()
            .filter(|_| !is_shared)
            .map(|name| (parent.to_owned(), format!("{OF_FILE}.{}", name.to_string_lossy())));
        Some(Self {
            path: path.clone(),
            directory,
            noted,
            has_failed: false,
        })
    }

    /// Whether a restore would be noticed now. Outside a transaction another process can commit in between, so yes means:
    /// to be judged again inside one.
    pub(crate) fn suspects(&self, connection: &Connection) -> rusqlite::Result<bool> {
        Ok(match row(connection)? {
            None => true,
            Some((commits, born)) => self.evidence(Some((commits, &born))).is_some(),
        })
    }

    /// Judges the file inside a transaction that has its write lock, and records a restore there. Answers whether
    /// something was written.
    pub(crate) fn judge(&self, connection: &Connection, now_ms: i64) -> rusqlite::Result<bool> {
        let row = row(connection)?;
        let evidence = self.evidence(row.as_ref().map(|(commits, born)| (*commits, born.as_str())));
        if row.is_some() && evidence.is_none() {
            return Ok(false);
        }
        let born = self.born();
        let commits = row.as_ref().map_or(0, |(commits, _)| *commits).max(self.highest());
        let is_restored = i64::from(evidence.is_some());
        let noted: Option<i64> = match (self.noted, &evidence) {
            (Some(sql), Some(_)) => Some(connection.query_row(sql, [], |row| row.get(0))?),
            _ => None,
        };
        let epoch: i64 = connection.query_row(
            "INSERT INTO main.file_mark (id, commits, born, epoch, restored_at, noted)
                  VALUES (1, ?1, ?2, ?3, CASE ?3 WHEN 1 THEN ?4 END, ?5)
             ON CONFLICT (id) DO UPDATE SET commits = excluded.commits, born = excluded.born, epoch = epoch + 1,
                  restored_at = excluded.restored_at, noted = excluded.noted
             RETURNING epoch",
            params![commits, born, is_restored, now_ms, noted],
            |row| row.get(0),
        )?;
        if let Some(detail) = evidence {
            let file = self.path.display().to_string();
            tracing::error!(
                event = "file_restored",
                file,
                epoch,
                detail,
                "the file is not the one that was written last"
            );
        }
        Ok(true)
    }

    /// Why the file is not the one that was written last. `row`: what it says of itself, its commits and its birth.
    fn evidence(&self, row: Option<(i64, &str)>) -> Option<String> {
        let (commits, wrote) = row.unwrap_or((0, ""));
        let born = self.born();
        // A file system that tells no birth is compared with one that does by nothing.
        if !wrote.is_empty() && wrote.get(..1) == born.get(..1) && wrote != born {
            return Some("it is another file than the one that was written".to_owned());
        }
        for (place, said) in [("file", self.of_file()), ("directory", self.of_directory())] {
            if let Some(said) = said.filter(|said| commits < said.least()) {
                return Some(format!(
                    "it holds {commits} commits, its {place} has seen {}",
                    said.commits
                ));
            }
        }
        None
    }

    /// Names the file on its disk: by its time of birth where the file system knows it, else by its number. Numbers are
    /// given again, and some file systems change them at each mount.
    fn born(&self) -> String {
        std::fs::metadata(&self.path).map_or_else(
            |_| String::new(),
            |file| match file.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()) {
                Some(at) => format!("b{}", at.as_nanos()),
                None => format!("i{}", file.ino()),
            },
        )
    }

    fn of_file(&self) -> Option<Said> {
        xattr::get_deref(&self.path, OF_FILE)
            .ok()
            .flatten()
            .and_then(|value| Said::parse(&value))
    }

    fn of_directory(&self) -> Option<Said> {
        let (directory, name) = self.directory.as_ref()?;
        xattr::get_deref(directory, name)
            .ok()
            .flatten()
            .and_then(|value| Said::parse(&value))
    }

    fn highest(&self) -> i64 {
        let said = [self.of_file(), self.of_directory()];
        said.into_iter().flatten().map(|said| said.commits).max().unwrap_or(0)
    }

    /// Counts a commit that is about to be made. Answers its number, for [`Self::committed`].
    pub(crate) fn committing(&mut self, connection: &Connection) -> rusqlite::Result<i64> {
        let commits = connection
            .prepare_cached("UPDATE main.file_mark SET commits = commits + 1 WHERE id = 1 RETURNING commits")?
            .query_row([], |row| row.get(0))?;
        self.say(&format!("{commits}?"));
        Ok(commits)
    }

    /// The commit of this number is durable. Called before anybody is answered.
    pub(crate) fn committed(&mut self, commits: i64) {
        // Another process that writes the same file may have gone on meanwhile.
        if self.of_file().is_none_or(|said| said.commits <= commits) {
            self.say(&commits.to_string());
        }
        if let Some((directory, name)) = &self.directory {
            // Whoever may not write the directory's attributes has the file's own.
            let _ = xattr::set_deref(directory, name, commits.to_string().as_bytes());
        }
    }

    fn say(&mut self, value: &str) {
        if let Err(error) = xattr::set_deref(&self.path, OF_FILE, value.as_bytes())
            && !std::mem::replace(&mut self.has_failed, true)
        {
            self.warn(&error);
        }
    }

    fn warn(&self, error: &io::Error) {
        let file = self.path.display().to_string();
        tracing::warn!(
            event = "restore_unnoticed",
            file,
            %error,
            "no extended attribute can be kept: an older copy written over this file would not be noticed"
        );
    }
}

fn row(connection: &Connection) -> rusqlite::Result<Option<(i64, String)>> {
    connection
        .prepare_cached("SELECT commits, born FROM main.file_mark WHERE id = 1")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}
