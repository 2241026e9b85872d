//! What the proxy takes from the settings (C5.2).

use gateway_kit::Settings;
use lock_api::StoreError;
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

/// The proxy's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// paydb's directory.
    pub directory: PathBuf,
    /// The rail.
    pub rail_url: String,
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
    /// [`RunError::Setting`] where one is missing or cannot be served.
    pub fn from_settings(settings: &Settings) -> Result<Self, RunError> {
        let wrong = |name, reason: &str| RunError::Setting {
            name,
            reason: reason.to_owned(),
        };
        let directory = directory(settings)?;
        let rail_url = settings
            .text("rail.url")
            .ok_or_else(|| wrong("rail.url", "is required (--rail URL)"))?;
        if !rail_url.starts_with("http://") {
            return Err(wrong("rail.url", "must begin with http://"));
        }
        #[cfg(feature = "lab")]
        let fencing = Fencing::from_switch(settings.boolean("rail.fencing.enabled"));
        #[cfg(not(feature = "lab"))]
        let fencing = Fencing::Enforced;
        Ok(Self {
            directory,
            rail_url: rail_url.trim_end_matches('/').to_owned(),
            read_timeout: settings.duration("rail.read-timeout"),
            visibility_horizon: settings.duration("rail.visibility-horizon"),
            store_timeout: settings.duration("rail.store.timeout"),
            request_timeout: settings.duration("http.request-timeout"),
            fencing,
        })
    }

    /// How long a caller of R1 is let wait for the outcome: the intent, the forwarder's claim, the rail, the outcome.
    #[must_use]
    pub fn submit_within(&self) -> Duration {
        self.read_timeout + self.store_timeout * 3 + Duration::from_millis(500)
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

/// paydb's directory, as `rail.store.url` names it.
pub(crate) fn directory(settings: &Settings) -> Result<PathBuf, RunError> {
    let store = settings.text("rail.store.url").unwrap_or_default();
    let directory = store.strip_prefix("sqlite:").ok_or_else(|| RunError::Setting {
        name: "rail.store.url",
        reason: "only sqlite:DIRECTORY is served".to_owned(),
    })?;
    Ok(PathBuf::from(directory))
}
