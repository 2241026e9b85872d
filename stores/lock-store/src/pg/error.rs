//! What the errors of this store's own functions mean; any other is judged by [`pg_kit::fate`].

use lock_api::{InvalidValue, StoreError};
use tokio_postgres::Error;

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The database's clock moved (DL002).
    ClockMoved,
    /// The store's history is another one (DL003).
    Restored,
    /// The store is not the one that was configured (DL005).
    OtherStore,
    /// Any other.
    Other(pg_kit::Fate),
}

fn fate_of_code(code: &str) -> Fate {
    match code {
        "DL001" => Fate::Other(pg_kit::Fate::Again),
        "DL002" => Fate::ClockMoved,
        "DL003" => Fate::Restored,
        "DL004" => Fate::Other(pg_kit::Fate::Refused),
        "DL005" => Fate::OtherStore,
        "DL009" => Fate::Other(pg_kit::Fate::Corrupt),
        _ => Fate::Other(pg_kit::fate_of_code(code)),
    }
}

pub(super) fn fate(error: &Error) -> Fate {
    error
        .code()
        .map_or_else(|| Fate::Other(pg_kit::fate(error)), |state| fate_of_code(state.code()))
}

/// A stored value that could never have been written.
pub(super) fn sane<T>(value: Result<T, InvalidValue>) -> Result<T, StoreError> {
    value.map_err(|error| StoreError::Corrupt {
        detail: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_of_our_own_functions_are_mapped_on_purpose() {
        use pg_kit::Fate::{Again, Corrupt, Refused, Unknown};
        for (code, expected) in [
            ("DL001", Fate::Other(Again)),
            ("DL002", Fate::ClockMoved),
            ("DL003", Fate::Restored),
            ("DL004", Fate::Other(Refused)),
            ("DL005", Fate::OtherStore),
            ("DL009", Fate::Other(Corrupt)),
            ("DL999", Fate::Other(Unknown)),
            ("40001", Fate::Other(Again)),
        ] {
            assert_eq!(fate_of_code(code), expected, "{code}");
        }
    }
}
