//! What the proxy takes from the settings (C5.2).

use crate::line::ADDRESS_WITHIN;
use crate::tls::{self, RailTls};
use gateway_kit::{Settings, mask};
use lock_api::StoreError;
use pg_kit::{Access, PasswordSource};
use rail_store::Fencing;
use std::path::PathBuf;
use std::time::Duration;

/// Why the proxy cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting that it cannot serve.
    #[error("{name}: {reason}")]
    Setting {
        /// The setting's name.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Store(StoreError),
    /// The address cannot be listened on, or the server failed.
    #[error(transparent)]
    Serve(std::io::Error),
}

/// Where paydb is.
#[derive(Clone, Debug)]
pub enum Paydb {
    /// In files: its directory.
    Directory(PathBuf),
    /// On PostgreSQL.
    Postgres {
        /// How it is reached, as the rail's role.
        access: Access,
        /// `rail.store.schema`.
        schema: String,
    },
}

/// The proxy's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where paydb is.
    pub paydb: Paydb,
    /// The rail.
    pub rail_url: String,
    /// How the rail is verified, and who we are there; None where it is reached in the clear.
    pub rail_tls: Option<RailTls>,
    /// `rail.read-timeout`.
    pub read_timeout: Duration,
    /// `rail.visibility-horizon`.
    pub visibility_horizon: Duration,
    /// `rail.store.timeout`.
    pub store_timeout: Duration,
    /// `http.request-timeout`.
    pub request_timeout: Duration,
    /// The kill switch of fence point (c).
    pub fencing: Fencing,
}

impl Config {
    /// Reads the settings.
    ///
    /// # Errors
    /// [`RunError::Setting`] where one is missing, cannot be served, or names a file that cannot be used.
    pub fn from_settings(settings: &Settings) -> Result<Self, RunError> {
        let wrong = |name, reason: &str| RunError::Setting {
            name,
            reason: reason.to_owned(),
        };
        let paydb = paydb(settings)?;
        let rail_url = settings
            .text("rail.url")
            .ok_or_else(|| wrong("rail.url", "is required (--rail URL)"))?;
        let rail_tls = tls::of_settings(settings, rail_url)?;
        #[cfg(feature = "lab")]
        let fencing = Fencing::from_switch(settings.boolean("rail.fencing.enabled"));
        #[cfg(not(feature = "lab"))]
        let fencing = Fencing::Enforced;
        Ok(Self {
            paydb,
            rail_url: rail_url.trim_end_matches('/').to_owned(),
            rail_tls,
            read_timeout: settings.duration("rail.read-timeout"),
            visibility_horizon: settings.duration("rail.visibility-horizon"),
            store_timeout: settings.duration("rail.store.timeout"),
            request_timeout: settings.duration("http.request-timeout"),
            fencing,
        })
    }

    /// What can be seen of the settings without a store: whether the rail could be spoken to as they say, certificates read.
    /// Settings that are missing are no fault here.
    ///
    /// # Errors
    /// [`RunError::Setting`].
    pub fn check(settings: &Settings) -> Result<(), RunError> {
        match settings.text("rail.url") {
            Some(rail_url) => tls::of_settings(settings, rail_url).map(drop),
            None => Ok(()),
        }
    }

    /// How long a caller of R1 is let wait for the outcome: the line, the intent, the forwarder's claim, the rail, the
    /// outcome.
    #[must_use]
    pub fn submit_within(&self) -> Duration {
        ADDRESS_WITHIN + self.read_timeout + self.store_timeout * 3 + Duration::from_millis(500)
    }

    /// The frame's own bound on R1 lies behind every bound inside, so that it never answers 503 after an intent.
    #[must_use]
    pub fn submit_route_timeout(&self) -> Duration {
        self.submit_within() + self.request_timeout
    }

    /// How long a lookup at the rail may take.
    #[must_use]
    pub fn lookup_timeout(&self) -> Duration {
        self.read_timeout.min(self.request_timeout)
    }

    /// The frame's bound on R3.
    #[must_use]
    pub fn lookup_route_timeout(&self) -> Duration {
        self.lookup_timeout() + self.store_timeout * 3 + self.request_timeout
    }
}

/// paydb, as `rail.store.url` and its companions name it.
pub(crate) fn paydb(settings: &Settings) -> Result<Paydb, RunError> {
    let store = settings.text("rail.store.url").unwrap_or_default();
    if let Some(directory) = store.strip_prefix("sqlite:") {
        return Ok(Paydb::Directory(PathBuf::from(directory)));
    }
    if !store.starts_with("postgres://") && !store.starts_with("postgresql://") {
        return Err(RunError::Setting {
            name: "rail.store.url",
            reason: format!(
                "{} is of a kind this build does not have; it has sqlite:DIRECTORY and postgres://…",
                mask(store)
            ),
        });
    }
    let password = PasswordSource::file_or_environment(settings.text("rail.store.password-file"));
    Ok(Paydb::Postgres {
        access: Access {
            password,
            pool_max: usize::try_from(settings.integer("rail.store.pool-max")).unwrap_or(usize::MAX),
            ..Access::at(store)
        },
        schema: settings.text("rail.store.schema").unwrap_or_default().to_owned(),
    })
}
