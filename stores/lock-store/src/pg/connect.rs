//! How the database is reached.

use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool, RecyclingMethod};
use lock_api::StoreError;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, Error, NoTls};

/// Where the password comes from; read again for each new connection, so that short-lived ones work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordSource {
    /// The URL has it, or none is needed.
    Url,
    /// A file holds it, alone; one newline at its end is no part of it.
    File(PathBuf),
    /// An environment variable holds it.
    Environment(String),
}

/// How to open a lock store on PostgreSQL.
#[derive(Clone)]
pub struct PgLockStoreOptions {
    /// `postgres://user@host:port/database`.
    pub url: String,
    /// Where the password comes from.
    pub password: PasswordSource,
    /// The schema that holds the store; made when it is missing. Two schemas are two stores.
    pub schema: String,
    /// The most connections at once, beside the one that listens.
    pub pool_max: usize,
    /// How long making a connection may take.
    pub connect_within: Duration,
    /// How often the facts are looked at without being told to: the safety net for a lost notification.
    pub poll_every: Duration,
    /// True where a pooler in transaction mode stands in between: then nobody listens, and facts are found by looking.
    pub through_pooler: bool,
    /// The id that the store must have (`lock.store.lineage`); another one is a doubt, and nothing is granted until an
    /// operator has cleared it. None takes whatever is there.
    pub expected_lineage: Option<String>,
}

impl fmt::Debug for PgLockStoreOptions {
    // The URL may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgLockStoreOptions")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl PgLockStoreOptions {
    /// A store at a URL, in the schema `dlock`.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            password: PasswordSource::Url,
            schema: "dlock".to_owned(),
            pool_max: 16,
            connect_within: Duration::from_secs(5),
            poll_every: Duration::from_secs(1),
            through_pooler: false,
            expected_lineage: None,
        }
    }
}

/// Makes connections.
#[derive(Clone)]
pub(super) struct Connector {
    config: Config,
    password: PasswordSource,
}

impl Connector {
    pub(super) fn new(options: &PgLockStoreOptions) -> Result<Self, StoreError> {
        let unusable = |detail: String| StoreError::Unavailable { detail };
        let mut config =
            Config::from_str(&options.url).map_err(|error| unusable(format!("the store's URL: {error}")))?;
        let name = &options.schema;
        let fits = !name.is_empty()
            && name.len() <= 40
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !fits {
            return Err(unusable(format!(
                "the schema {name:?}: 1 to 40 characters of [a-z0-9_]"
            )));
        }
        config
            .connect_timeout(options.connect_within)
            // A peer that vanished without a word is noticed, also in the middle of an answer.
            .keepalives_idle(Duration::from_secs(5))
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(15));
        if config.get_application_name().is_none() {
            config.application_name("dlock");
        }
        Ok(Self {
            config,
            password: options.password.clone(),
        })
    }

    /// The configuration with the password as it is now.
    pub(super) fn config(&self) -> Config {
        let mut config = self.config.clone();
        let secret = match &self.password {
            PasswordSource::Url => None,
            PasswordSource::File(path) => std::fs::read_to_string(path)
                .map_err(|error| tracing::error!(event = "database_password_unreadable", %error))
                .ok(),
            PasswordSource::Environment(name) => std::env::var(name).ok(),
        };
        if let Some(secret) = secret {
            config.password(secret.strip_suffix('\n').unwrap_or(&secret));
        }
        config
    }

    pub(super) fn pool(self, max: usize) -> Result<Pool, StoreError> {
        let config = self.config.clone();
        let manager = Manager::from_connect(
            config,
            self,
            ManagerConfig {
                // A connection that is broken is noticed by the next call on it, which costs that call nothing but a
                // new one; a question before each call would cost every call a round trip.
                recycling_method: RecyclingMethod::Fast,
            },
        );
        Pool::builder(manager)
            .max_size(max)
            .build()
            .map_err(|error| StoreError::Unavailable {
                detail: error.to_string(),
            })
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        _config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(async move {
            let (client, connection) = self.config().connect(NoTls).await?;
            let task = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(event = "database_connection_ended", %error);
                }
            });
            Ok((client, task))
        })
    }
}
