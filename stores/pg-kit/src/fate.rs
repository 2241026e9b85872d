//! What each error of the database means for the call that met it: every SQLSTATE class on purpose.
//!
//! A statement that the server answered with an error was rolled back: nothing was done. What is not known here is
//! [`Fate::Unknown`], never a grant.

use crate::writes::word;
use lock_api::StoreError;
use tokio_postgres::Error;

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Rolled back for the sake of another transaction: the same call may be made again at once.
    Again,
    /// Nothing was done.
    Refused,
    /// It may have been done.
    Unknown,
    /// Damaged, or of an unknown schema; nothing was done.
    Corrupt,
}

/// What an error means, by its SQLSTATE. A class that the caller's own functions raise is judged by the caller first.
#[must_use]
pub fn fate_of_code(code: &str) -> Fate {
    match code {
        // Could not be serialized, deadlock.
        "40001" | "40P01" => return Fate::Again,
        // The server itself says that it does not know.
        "40003" | "08007" => return Fate::Unknown,
        // A session was ended, or a key inserted, between two statements of one verb.
        "23503" | "23505" => return Fate::Again,
        // Shut down, crashed or its database dropped in the middle of a statement: it may have come to its commit.
        "57P01" | "57P02" | "57P04" | "57P05" => return Fate::Unknown,
        // Data or index corrupted.
        "XX001" | "XX002" => return Fate::Corrupt,
        // No rights on what is there.
        "42501" => return Fate::Refused,
        _ => {}
    }
    match code.get(..2).unwrap_or_default() {
        // Success, warning, no data: no errors, so an error under them is not understood.
        "00" | "01" | "02" => Fate::Unknown,
        // Statement not yet complete, feature not supported, invalid initiation, grantor, role, diagnostics, case.
        "03" | "0A" | "0F" | "0L" | "0P" | "0Z" | "20" | "21" => Fate::Refused,
        // Connection trouble that the server reports: before a statement, except for 08007.
        "08" => Fate::Refused,
        // A triggered action failed, a target or cursor is invalid.
        "09" | "0B" | "24" | "26" | "27" | "34" | "36" => Fate::Refused,
        // A value that cannot be, an invalid state of the transaction (read-only on a standby), a savepoint.
        "22" | "25" | "2D" | "3B" => Fate::Refused,
        // A row that the store's own rules do not admit: somebody's hand.
        "23" | "44" => Fate::Corrupt,
        // Wrong name or password, roles still needed.
        "28" | "2B" => Fate::Refused,
        // Routines that failed inside or outside.
        "2F" | "38" | "39" => Fate::Refused,
        // The database is not there.
        "3D" => Fate::Refused,
        // The schema, a table or a function is not there, or is another one than this program knows.
        "3F" | "42" => Fate::Corrupt,
        // Other rollbacks.
        "40" => Fate::Refused,
        // Out of memory, disk or connections; too complex; a lock that was not to be had in time; cancelled in time.
        "53" | "54" | "55" | "57" => Fate::Refused,
        // An error of the system below the server: on the way to the disk, perhaps of the commit itself.
        "58" => Fate::Unknown,
        // A snapshot that is too old; the server's configuration file.
        "72" | "F0" => Fate::Refused,
        // Foreign data: not used here.
        "HV" => Fate::Unknown,
        // Raised by a function in PL/pgSQL without a code of its own.
        "P0" => Fate::Refused,
        // The server's own inner errors, and whatever is not known here.
        _ => Fate::Unknown,
    }
}

/// What an error means.
#[must_use]
pub fn fate(error: &Error) -> Fate {
    match error.code() {
        Some(state) => fate_of_code(state.code()),
        // No word from the server: broken on the way there or back, or not understood.
        None => Fate::Unknown,
    }
}

/// With what the server said, for the log.
#[must_use]
pub fn describe(error: &Error) -> String {
    error.as_db_error().map_or_else(
        || std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}")),
        |said| format!("{} ({})", said.message(), said.code().code()),
    )
}

/// What readiness says of a store that failed: a word and what is known. The words are `full`, `read_only`, `disk`,
/// `damaged`, `refused` (the server or this side believed the other one's certificate or password not) and `unreachable`.
#[must_use]
pub fn problem(error: &StoreError) -> String {
    let said = error.detail();
    if ["full: ", "read_only: ", "disk: "]
        .iter()
        .any(|word| said.starts_with(word))
    {
        return said.to_owned();
    }
    // As `describe` writes it.
    let code = said
        .rsplit_once('(')
        .and_then(|(_, code)| code.strip_suffix(')'))
        .unwrap_or_default();
    let refused = ["TLS handshake", "authentication error", "password missing"];
    let word = match error {
        StoreError::Corrupt { .. } => "damaged",
        _ if code.starts_with("28") || refused.iter().any(|part| said.contains(part)) => "refused",
        // A standby to which a transaction that may write was begun: no code of its own.
        _ if said.contains("read-write mode during recovery") => "read_only",
        _ => word(code).unwrap_or("unreachable"),
    };
    format!("{word}: {said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_begins_with_a_word() {
        let unavailable = |detail: &str| StoreError::Unavailable {
            detail: detail.to_owned(),
        };
        for (said, word) in [
            ("could not extend file (53100)", "full"),
            ("full: could not extend file (53100)", "full"),
            ("cannot execute INSERT in a read-only transaction (25006)", "read_only"),
            ("no connection: password authentication failed (28P01)", "refused"),
            (
                "no connection: error performing TLS handshake: UnknownIssuer",
                "refused",
            ),
            (
                "no connection: authentication error: server did not use channel binding",
                "refused",
            ),
            ("the database did not answer in time", "unreachable"),
            ("the database system is starting up (57P03)", "unreachable"),
        ] {
            let problem = problem(&unavailable(said));
            assert_eq!(problem.split(": ").next(), Some(word), "{problem}");
        }
        let damaged = StoreError::Corrupt {
            detail: "a page".to_owned(),
        };
        assert_eq!(problem(&damaged), "damaged: a page");
    }

    #[test]
    fn each_sqlstate_class_is_mapped_on_purpose() {
        use Fate::{Again, Corrupt, Refused, Unknown};
        for (code, expected) in [
            ("00000", Unknown),
            ("01000", Unknown),
            ("02000", Unknown),
            ("03000", Refused),
            ("08000", Refused),
            ("08001", Refused),
            ("08003", Refused),
            ("08004", Refused),
            ("08006", Refused),
            ("08007", Unknown),
            ("09000", Refused),
            ("0A000", Refused),
            ("20000", Refused),
            ("21000", Refused),
            ("22003", Refused),
            ("22021", Refused),
            ("2200H", Refused),
            ("23502", Corrupt),
            ("23503", Again),
            ("23505", Again),
            ("23514", Corrupt),
            ("25006", Refused),
            ("25P03", Refused),
            ("26000", Refused),
            ("28P01", Refused),
            ("28000", Refused),
            ("3D000", Refused),
            ("3F000", Corrupt),
            ("40000", Refused),
            ("40001", Again),
            ("40002", Refused),
            ("40003", Unknown),
            ("40P01", Again),
            ("42501", Refused),
            ("42883", Corrupt),
            ("42P01", Corrupt),
            ("53100", Refused),
            ("53200", Refused),
            ("53300", Refused),
            ("54001", Refused),
            ("55P03", Refused),
            ("57014", Refused),
            ("57P01", Unknown),
            ("57P02", Unknown),
            ("57P03", Refused),
            ("57P04", Unknown),
            ("57P05", Unknown),
            ("58030", Unknown),
            ("72000", Refused),
            ("F0000", Refused),
            ("HV000", Unknown),
            ("P0001", Refused),
            ("XX000", Unknown),
            ("XX001", Corrupt),
            ("XX002", Corrupt),
            ("99999", Unknown),
            ("ZZ999", Unknown),
            ("", Unknown),
            ("é", Unknown),
        ] {
            assert_eq!(fate_of_code(code), expected, "{code}");
        }
    }
}
