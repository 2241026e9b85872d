//! `sql-kit`'s errors as the SPI's, one to one.

use lock_api::{InvalidValue, StoreError};
use sql_kit::SqlError;

pub(super) fn store_error(error: SqlError) -> StoreError {
    match error {
        SqlError::Unavailable(detail) => StoreError::Unavailable { detail },
        SqlError::Unknown(detail) => StoreError::Unknown { detail },
        SqlError::Corrupt(detail) => StoreError::Corrupt { detail },
    }
}

/// A stored value that could never have been written: damage, or somebody's hand.
pub(super) fn sane<T>(value: Result<T, InvalidValue>) -> rusqlite::Result<T> {
    value.map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Null, Box::new(error)))
}

/// A write that changed another number of rows than the one it had just read: the file was changed behind our back, and
/// what is observed is no longer what is stored. Damage as well: nothing is written any more before a restart.
pub(super) fn exactly_one(changed: usize) -> rusqlite::Result<()> {
    there((changed == 1).then_some(()))
}

/// Something observed that must be there; see [`exactly_one`].
pub(super) fn there<T>(found: Option<T>) -> rusqlite::Result<T> {
    sane(found.ok_or(InvalidValue::new(
        "the row of a grant, session or counter",
        "was changed by somebody else behind the store's back",
    )))
}
