//! Schemas that somebody else made: their names, and whether their version is the one this program knows.

use crate::fate::{Fate, describe, fate};
use crate::pooled::{Pooled, unavailable};
use lock_api::StoreError;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A name that stands in statements: 1 to 40 characters of `[a-z0-9_]`.
///
/// # Errors
/// [`StoreError::Unavailable`] naming `what` it is the name of.
pub fn check_name(what: &str, name: &str) -> Result<(), StoreError> {
    let fits = (1..=40).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if fits {
        Ok(())
    } else {
        Err(unavailable(format!(
            "the {what} {name:?}: 1 to 40 characters of [a-z0-9_]"
        )))
    }
}

/// Whether a schema that this program does not make itself is of the version it knows: the highest `version` in `table`.
///
/// # Errors
/// [`StoreError::Unavailable`] where it is missing or older, with the words of what to do (`dlock migrate`);
/// [`StoreError::Corrupt`] where it is newer. A server that cannot be asked is [`StoreError::Unavailable`] too.
pub async fn check_schema(
    pool: &Pooled,
    schema: &str,
    table: &str,
    known: i32,
    within: Duration,
) -> Result<(), StoreError> {
    let to_do = "run dlock migrate as the schema's owner";
    let deadline = Instant::now() + within;
    let connection = pool.get(deadline).await?;
    let sql = format!("SELECT coalesce(max(version), 0)::int FROM \"{schema}\".{table}");
    let Ok(answer) = timeout_at(deadline, connection.query_typed(&sql, &[])).await else {
        return Err(unavailable("the schema's version was not answered in time"));
    };
    connection.done();
    let found = match answer {
        Ok(rows) => rows.first().map_or(0, |row| row.get(0)),
        Err(error) => {
            let code = error.code().map_or("", |state| state.code()).to_owned();
            let detail = describe(&error);
            return Err(match code.as_str() {
                "42P01" | "3F000" => unavailable(format!("the schema {schema} is missing here: {to_do} ({detail})")),
                "42501" => unavailable(format!(
                    "the schema {schema} is not open to this role: {to_do}, naming the role ({detail})"
                )),
                _ if fate(&error) == Fate::Corrupt => StoreError::Corrupt { detail },
                _ => unavailable(detail),
            });
        }
    };
    match found {
        _ if found == known => Ok(()),
        _ if found > known => Err(StoreError::Corrupt {
            detail: format!("the schema {schema} is of version {found}, this program knows {known}"),
        }),
        _ => Err(unavailable(format!(
            "the schema {schema} is of version {found}, this program needs {known}: {to_do}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_be_a_statement_is_refused() {
        for name in ["", "Pay", "pay-1", "a\"; DROP SCHEMA x; --", &"x".repeat(41)] {
            let said = check_name("schema", name).unwrap_err().to_string();
            assert!(said.contains("the schema"), "{said}");
        }
        check_name("schema", "pay_2").unwrap();
    }
}
