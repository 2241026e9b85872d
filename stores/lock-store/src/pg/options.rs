//! How the store is opened.

use lock_api::StoreError;
use pg_kit::{Access, unavailable};
use std::time::Duration;

/// What the server itself ends, for when neither the end of the call nor its cancelling reaches it. Each wait for a row
/// ends by the call's own deadline, long before.
const STATEMENT_WITHIN: Duration = Duration::from_secs(60);

/// How to open a lock store on PostgreSQL.
#[derive(Clone, Debug)]
pub struct PgLockStoreOptions {
    /// How the database is reached. The one that listens comes on top of the pool.
    pub access: Access,
    /// The schema that holds the store; made when it is missing. Two schemas are two stores. 1 to 40 characters of
    /// `[a-z0-9_]`, not beginning with a digit or `pg_`.
    pub schema: String,
    /// How often the facts are looked at without being told to: the safety net for a lost notification.
    pub poll_every: Duration,
    /// How often the database's clock is compared with this process's own and the store is told so; whoever starts later
    /// takes the clock's word for the time since. At most half of 1 s, or a restart delays expiry by this much.
    pub watch_every: Duration,
    /// True where a pooler in transaction mode stands in between: then nobody listens, and facts are found by looking.
    /// Where it is false and such a pooler is met, the store does not open.
    pub through_pooler: bool,
    /// The id that the store must have (`lock.store.lineage`); another one is a doubt, and nothing is granted until an
    /// operator has cleared it. None takes what is there at the opening, and no other afterwards.
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
            watch_every: Duration::from_millis(500),
            through_pooler: false,
            expected_lineage: None,
        }
    }

    /// The access with the ceiling of each statement. A pooler has no connection that it could be set on.
    pub(super) fn bounded_access(&self) -> Access {
        let mut access = self.access.clone();
        if !self.through_pooler {
            access.statement_within.get_or_insert(STATEMENT_WITHIN);
        }
        access
    }

    /// The schema's name stands unquoted in statements, so it has to be harmless.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let name = &self.schema;
        let fits = !name.is_empty()
            && name.len() <= 40
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && !name.starts_with("pg_")
            && !name.starts_with(|first: char| first.is_ascii_digit());
        if fits {
            Ok(())
        } else {
            Err(unavailable(format!(
                "the schema {name:?}: 1 to 40 characters of [a-z0-9_], not beginning with a digit or pg_"
            )))
        }
    }
}
