//! The book as lines of JSON in a file, so that a rail that is killed still knows what it did.
//!
//! Owns: one file, appended to. Does not own: what an entry means. On failure: a line that cannot be written ends the
//! process; half a line at the end of the file, left by a kill, was never acted on and is cut off.
//!
//! A line is written before what it says is done or shown to anybody. It is handed to the kernel, not to the disk: it
//! outlives the process, which is all a laboratory kills.

use crate::book::{Declined, Execution};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry {
    /// A body was read to its last byte.
    Body,
    /// It was a call of this reference.
    Call { reference: String },
    /// Money moved.
    Executed { reference: String, execution: Execution },
    /// The rail refused.
    Declined { reference: String, declined: Declined },
}

/// The file.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Opens a file, makes it where there is none, and answers what stands in it.
    pub fn open(path: &Path) -> io::Result<(Self, Vec<Entry>)> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let text = std::fs::read_to_string(path)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(u64::try_from(whole).unwrap_or(u64::MAX))?;
        let entries = text[..whole]
            .lines()
            .map(|line| serde_json::from_str(line).map_err(io::Error::other))
            .collect::<io::Result<_>>()?;
        Ok((Self(file), entries))
    }

    /// Appends an entry in one write.
    pub fn append(&mut self, entry: &Entry) {
        let written = serde_json::to_vec(entry)
            .map_err(io::Error::other)
            .and_then(|mut line| {
                line.push(b'\n');
                self.0.write_all(&line)
            });
        if let Err(error) = written {
            tracing::error!(event = "book_not_kept", %error);
            std::process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_line_that_a_kill_left_is_cut_off_and_the_rest_is_read() {
        let dir = std::env::temp_dir().join(format!("rail-book-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("book.jsonl");
        let call = |reference: &str| Entry::Call {
            reference: reference.to_owned(),
        };
        let (mut journal, before) = Journal::open(&file).unwrap();
        assert_eq!(before, []);
        journal.append(&call("p1"));
        journal.0.write_all(b"{\"entry\":\"exec").unwrap();
        let (mut journal, found) = Journal::open(&file).unwrap();
        assert_eq!(found, [call("p1")]);
        journal.append(&call("p2"));
        assert_eq!(Journal::open(&file).unwrap().1, [call("p1"), call("p2")]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
