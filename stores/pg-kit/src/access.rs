//! How a database is reached, as it is configured.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Where the password comes from; read again for each new connection, so that short-lived ones work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordSource {
    /// The URL has it, or none is needed.
    Url,
    /// A file holds it, alone; one newline at its end is no part of it. Refused where others can read it.
    File(PathBuf),
    /// An environment variable holds it; where it is not set, the URL's holds.
    Environment(String),
}

impl PasswordSource {
    /// A configured file; without one the environment's `PGPASSWORD`, as the database's own programs do it.
    #[must_use]
    pub fn file_or_environment(path: Option<&str>) -> Self {
        path.map_or_else(
            || Self::Environment("PGPASSWORD".to_owned()),
            |path| Self::File(PathBuf::from(path)),
        )
    }
}

/// How a database is reached.
#[derive(Clone)]
pub struct Access {
    /// `postgres://user@host:port/database`, with the parameters of libpq that tokio-postgres knows, and `sslmode`,
    /// `sslrootcert`, `sslcert`, `sslkey`, `insecure_transport`; see [`crate::Tls`].
    pub url: String,
    /// Where the password comes from.
    pub password: PasswordSource,
    /// The most connections of the pool.
    pub pool_max: usize,
    /// How long making a connection may take.
    pub connect_within: Duration,
    /// After this long the server ends a statement by itself (`statement_timeout`), the last resort where the caller's
    /// cancelling does not get through. Sent as each connection begins, which a pooler in transaction mode refuses: None
    /// there. What the URL's `options` say comes after it and wins.
    pub statement_within: Option<Duration>,
}

impl Access {
    /// What is at a URL, with a pool of 16 and 5 s for a connection.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            password: PasswordSource::Url,
            pool_max: 16,
            connect_within: Duration::from_secs(5),
            statement_within: None,
        }
    }
}

impl fmt::Debug for Access {
    // The URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("pool_max", &self.pool_max)
            .finish_non_exhaustive()
    }
}
