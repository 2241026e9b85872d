//! Makes connections.

use crate::access::{Access, PasswordSource};
use crate::fate::describe;
use crate::hosts::Hosts;
use crate::pooled::unavailable;
use crate::tls::Tls;
use deadpool_postgres::Connect;
use lock_api::StoreError;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tls_kit::Reloaded;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How many connections a pool makes at once. Each costs both sides a password's worth of computing, so that making all
/// of them at once, when a server comes back, makes none of them in time.
const MAKING_MAX: usize = 4;

/// Makes connections to one database, each with the password and the certificates as they are at that moment.
#[derive(Clone)]
pub struct Connector {
    config: Config,
    hosts: Hosts,
    /// Who may be making one for the pool now.
    making: Arc<Semaphore>,
    /// How long making one connection may take, in the whole.
    within: Duration,
    password: PasswordSource,
    tls: Reloaded<MakeRustlsConnect>,
}

impl Connector {
    /// Reads the URL, the certificates it names and the password's file.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] naming the part that cannot be.
    pub fn new(access: &Access) -> Result<Self, StoreError> {
        let (url, tls) = Tls::of_url(&access.url)?;
        let mut config =
            Config::from_str(&url).map_err(|error| unavailable(format!("the store's URL: {}", describe(&error))))?;
        tls.check_transport(&config)?;
        if let PasswordSource::File(path) = &access.password {
            tls_kit::secret(path).map_err(|error| unavailable(format!("the password file {error}")))?;
        }
        config
            .ssl_mode(tls.mode())
            .connect_timeout(access.connect_within)
            // A peer that vanished without a word is noticed, also in the middle of an answer.
            .keepalives_idle(Duration::from_secs(5))
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(15));
        if config.get_application_name().is_none() {
            config.application_name("dlock");
        }
        if let Some(within) = access.statement_within {
            let own = format!("-c statement_timeout={}", within.as_millis());
            let options = config.get_options().map_or(own.clone(), |said| format!("{own} {said}"));
            config.options(options);
        }
        Ok(Self {
            hosts: Hosts::of(&config),
            making: Arc::new(Semaphore::new(MAKING_MAX)),
            within: access.connect_within,
            config,
            password: access.password.clone(),
            tls: Reloaded::new(tls.files(), move || tls.client().map(MakeRustlsConnect::new))?,
        })
    }

    /// How statements are cancelled: over a connection like theirs.
    pub(crate) fn tls(&self) -> Reloaded<MakeRustlsConnect> {
        self.tls.clone()
    }

    pub(crate) fn template(&self) -> Config {
        self.config.clone()
    }

    /// The password as it is now; none where the URL's holds.
    fn secret(&self) -> Option<String> {
        let secret = match &self.password {
            PasswordSource::Url => None,
            PasswordSource::File(path) => tls_kit::secret(path)
                .map_err(|error| {
                    tracing::error!(event = "database_password_unreadable", %error);
                })
                .ok(),
            PasswordSource::Environment(name) => std::env::var(name).ok(),
        };
        secret.map(|secret| match secret.strip_suffix('\n') {
            Some(secret) => secret.to_owned(),
            None => secret,
        })
    }

    /// A connection that the caller moves itself: for whoever listens. It has no bound but the caller's.
    ///
    /// # Errors
    /// What the driver met at the host that was tried last.
    pub async fn connect_raw(
        &self,
    ) -> Result<
        (
            Client,
            Connection<Socket, impl tokio_postgres::tls::TlsStream + Unpin + Send + use<>>,
        ),
        Error,
    > {
        let (secret, tls) = (self.secret(), self.tls.current());
        self.hosts
            .connect(|host| {
                let (mut host, tls) = (host.clone(), tls.clone());
                if let Some(secret) = &secret {
                    host.password(secret);
                }
                async move { host.connect(tls).await }
            })
            .await
    }

    /// How long making one connection may take.
    #[must_use]
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// A connection of its own, outside any pool. It ends when the client and the task are dropped.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn connect_alone(&self) -> Result<(Client, JoinHandle<()>), StoreError> {
        match timeout(self.within, self.connect_and_spawn()).await {
            Ok(connected) => connected.map_err(|error| unavailable(format!("no connection: {}", describe(&error)))),
            Err(_) => Err(unavailable(
                "no connection: the server accepted and did not answer in time",
            )),
        }
    }

    async fn connect_and_spawn(&self) -> Result<(Client, JoinHandle<()>), Error> {
        let (client, connection) = self.connect_raw().await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(event = "database_connection_ended", %error);
            }
        });
        Ok((client, task))
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        _config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(async {
            // The semaphore is never closed; were it, the bound would be lost and nothing else.
            let _turn = self.making.acquire().await;
            self.connect_and_spawn().await
        })
    }
}
