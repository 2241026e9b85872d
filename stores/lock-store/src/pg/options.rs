//! How the store is opened.

use lock_api::StoreError;
use pg_kit::{Access, unavailable};
use std::time::Duration;

/// How to open a lock store on PostgreSQL.
#[derive(Clone, Debug)]
pub struct PgLockStoreOptions {
    /// How the database is reached. The one that listens comes on top of the pool.
    pub access: Access,
    /// The schema that holds the store; made when it is missing. Two schemas are two stores. 1 to 40 characters of
    /// `[a-z0-9_]`.
    pub schema: String,
    /// How often the facts are looked at without being told to: the safety net for a lost notification.
    pub poll_every: Duration,
    /// True where a pooler in transaction mode stands in between: then nobody listens, and facts are found by looking.
    pub through_pooler: bool,
    /// The id that the store must have (`lock.store.lineage`); another one is a doubt, and nothing is granted until an
    /// operator has cleared it. None takes whatever is there.
    pub expected_lineage: Option<String>,
}

impl PgLockStoreOptions {
    /// A store at a URL, in the schema `dlock`.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            access: Access::at(url),
            schema: "dlock".to_owned(),
            poll_every: Duration::from_secs(1),
            through_pooler: false,
            expected_lineage: None,
        }
    }

    /// The schema's name stands unquoted in statements, so it has to be harmless.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let name = &self.schema;
        let fits = !name.is_empty()
            && name.len() <= 40
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if fits {
            Ok(())
        } else {
            Err(unavailable(format!(
                "the schema {name:?}: 1 to 40 characters of [a-z0-9_]"
            )))
        }
    }
}
