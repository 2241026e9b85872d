//! SQLite's result codes, each mapped on purpose to what the caller has to know.

use rusqlite::ErrorCode;
use std::io::ErrorKind;

impl SqlError {
    /// The same error with a word in front of what it says.
    pub(crate) fn named(self, word: &str) -> Self {
        match self {
            Self::Unavailable(said) => Self::Unavailable(format!("{word}: {said}")),
            Self::Unknown(said) => Self::Unknown(format!("{word}: {said}")),
            Self::Corrupt(said) => Self::Corrupt(format!("{word}: {said}")),
        }
    }
}

/// Why a call failed. The distinction that matters is what it may have done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    /// Certainly not done: not begun in time, refused, or rolled back as a whole.
    #[error("{0}; nothing was done")]
    Unavailable(String),
    /// May or may not have been done: the answer did not arrive in time, or the disk failed inside the commit.
    #[error("{0}; it may or may not have been done")]
    Unknown(String),
    /// The file is damaged or of a schema that this program does not know. Nothing was done.
    #[error("{0}; nothing was done, an operator has to act")]
    Corrupt(String),
}

/// What a native error says about the file and the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call failed, the file is well.
    Call,
    /// Another connection has the file locked.
    Busy,
    /// No space: what could not be written is not there.
    Full,
    /// The file or its directory cannot be written at all.
    ReadOnly,
    /// The disk failed: what is on it is not known.
    Disk,
    /// The contents are not what they must be.
    Damage,
}

pub(crate) fn fault(error: &rusqlite::Error) -> Fault {
    match error {
        rusqlite::Error::SqliteFailure(native, _) => match native.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => Fault::Busy,
            ErrorCode::DiskFull => Fault::Full,
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen => Fault::ReadOnly,
            ErrorCode::SystemIoFailure => Fault::Disk,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Fault::Damage,
            _ => Fault::Call,
        },
        // A value of another type than was ever written into its column.
        rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => Fault::Damage,
        _ => Fault::Call,
    }
}

/// As [`fault`], for a file beside the database.
pub(crate) fn fault_of_file(error: &std::io::Error) -> Fault {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Fault::Full,
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Fault::ReadOnly,
        _ => Fault::Disk,
    }
}

impl Fault {
    /// The word of [`crate::Sqlite::health`] for a fault that a later write may meet again. None for those of one call.
    pub(crate) const fn lasting(self) -> Option<&'static str> {
        match self {
            Self::Full => Some("full"),
            Self::ReadOnly => Some("read_only"),
            Self::Disk => Some("disk"),
            Self::Call | Self::Busy | Self::Damage => None,
        }
    }
}

/// The error of a call whose transaction was certainly rolled back, or never begun.
pub(crate) fn undone(file: &str, what: &str, error: &rusqlite::Error) -> SqlError {
    let kind = match fault(error) {
        Fault::Call => "",
        Fault::Busy => "locked by another connection: ",
        Fault::Full => "disk full: ",
        Fault::ReadOnly => "cannot be opened for writing: ",
        Fault::Disk => "the disk failed: ",
        Fault::Damage => {
            return SqlError::Corrupt(format!("{file}: {what}: the file is damaged or no database: {error}"));
        }
    };
    SqlError::Unavailable(format!("{file}: {what}: {kind}{error}"))
}

/// The error of a commit that failed. Whether frames that reached the log before the disk failed will be found there
/// after a crash cannot be told; a full disk or a lock is noticed before the last frame is whole.
pub(crate) fn commit_failed(file: &str, error: &rusqlite::Error) -> SqlError {
    match fault(error) {
        Fault::Disk | Fault::Call => SqlError::Unknown(format!("{file}: commit: {error}")),
        Fault::Busy | Fault::Full | Fault::ReadOnly | Fault::Damage => undone(file, "commit", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn native(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn each_code_says_what_may_have_been_done() {
        let kinds = |code| {
            let kind = |error| match error {
                SqlError::Unavailable(_) => 'n',
                SqlError::Unknown(_) => '?',
                SqlError::Corrupt(_) => '!',
            };
            (
                kind(undone("f", "write", &native(code))),
                kind(commit_failed("f", &native(code))),
            )
        };
        for (code, expected) in [
            (ffi::SQLITE_FULL, ('n', 'n')),
            (ffi::SQLITE_BUSY, ('n', 'n')),
            (ffi::SQLITE_BUSY_SNAPSHOT, ('n', 'n')),
            (ffi::SQLITE_LOCKED, ('n', 'n')),
            (ffi::SQLITE_READONLY, ('n', 'n')),
            (ffi::SQLITE_CANTOPEN, ('n', 'n')),
            (ffi::SQLITE_IOERR_WRITE, ('n', '?')),
            (ffi::SQLITE_IOERR_FSYNC, ('n', '?')),
            (ffi::SQLITE_CONSTRAINT, ('n', '?')),
            (ffi::SQLITE_CORRUPT, ('!', '!')),
            (ffi::SQLITE_NOTADB, ('!', '!')),
        ] {
            assert_eq!(kinds(code), expected, "result code {code}");
        }
    }
}
