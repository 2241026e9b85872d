//! What the executor takes from the settings (C5.2).

use executor_core::{ExecutorConfig, Roles};
use gateway_kit::Settings;
use lock_api::{LockError, Owner};
use lock_client::ClientOptions;
use std::path::PathBuf;
use std::time::Duration;

/// Why the executor cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting that it cannot work with.
    #[error("{name} {reason}")]
    Setting {
        /// The setting's name.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The session cannot be had with these settings.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The history file cannot be written.
    #[error("debug.history-file {0}: {1}")]
    History(PathBuf, std::io::Error),
    /// A metric stands twice in the registry.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
    /// The address cannot be listened on, or the server failed.
    #[error(transparent)]
    Serve(std::io::Error),
}

/// The executor's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// `executor.lock-servers`, in order of preference.
    pub lock_servers: Vec<String>,
    /// `executor.payments`.
    pub payments: String,
    /// `executor.rail-proxy`.
    pub rail_proxy: String,
    /// `executor.call-timeout`.
    pub call_timeout: Duration,
    /// `executor.owner` and the `lock.*` settings of a client.
    pub lock_options: ClientOptions,
    /// `debug.history-file`.
    pub history_file: Option<PathBuf>,
    /// What the actors need.
    pub executor: ExecutorConfig,
}

impl Config {
    /// Reads the settings.
    ///
    /// # Errors
    /// [`RunError::Setting`] where one is missing or cannot be worked with.
    pub fn from_settings(settings: &Settings) -> Result<Self, RunError> {
        let wrong = |name, reason: &str| RunError::Setting {
            name,
            reason: reason.to_owned(),
        };
        let needed = |name| {
            settings
                .text(name)
                .map(str::to_owned)
                .ok_or_else(|| wrong(name, "is needed"))
        };
        let lock_servers: Vec<String> = needed("executor.lock-servers")?
            .split(',')
            .map(|url| url.trim().to_owned())
            .filter(|url| !url.is_empty())
            .collect();
        if lock_servers.is_empty() {
            return Err(wrong("executor.lock-servers", "names no server"));
        }
        let owner = Owner::new(needed("executor.owner")?).map_err(|error| wrong("executor.owner", error.reason))?;
        gateway_kit::visible("owner", owner.as_str()).map_err(|error| wrong("executor.owner", error.reason))?;
        let count = |name| usize::try_from(settings.integer(name)).unwrap_or(usize::MAX);
        let lock_options = ClientOptions::configured(
            owner,
            |name| settings.optional_duration(name),
            u32::try_from(settings.integer("lock.acquire.max-attempts")).unwrap_or(u32::MAX),
        );
        #[cfg(feature = "lab")]
        let lock_options = match settings.optional_duration("executor.lock-delay") {
            Some(delay) => lock_options.lock_delay(delay),
            None => lock_options,
        };
        Ok(Self {
            lock_servers,
            payments: needed("executor.payments")?,
            rail_proxy: needed("executor.rail-proxy")?,
            call_timeout: settings.duration("executor.call-timeout"),
            lock_options,
            history_file: settings.text("debug.history-file").map(PathBuf::from),
            executor: ExecutorConfig {
                roles: settings
                    .text("executor.role")
                    .and_then(Roles::parse)
                    .ok_or_else(|| wrong("executor.role", "must be pay, reconcile or both"))?,
                concurrency: count("executor.concurrency"),
                poll_interval: settings.duration("executor.poll.interval"),
                poll_batch: u32::try_from(settings.integer("executor.poll.batch")).unwrap_or(u32::MAX),
                reconcile_interval: settings.duration("executor.reconcile.interval"),
                rail_timeout: settings.duration("executor.rail-timeout"),
                rail_read_timeout: settings.duration("rail.read-timeout"),
                #[cfg(feature = "lab")]
                ignore_lock_lost: settings.boolean("executor.ignore-lock-lost"),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: [(&str, &str); 4] = [
        ("executor.lock-servers", "http://127.0.0.1:1, http://127.0.0.1:2"),
        ("executor.payments", "http://127.0.0.1:3"),
        ("executor.rail-proxy", "http://127.0.0.1:4"),
        ("executor.owner", "W1"),
    ];

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let flags: Vec<_> = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Settings::load(None, [], &flags).unwrap()
    }

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let config = Config::from_settings(&settings(&NEEDED)).unwrap();
        assert_eq!(config.lock_servers, ["http://127.0.0.1:1", "http://127.0.0.1:2"]);
        assert_eq!(config.executor.concurrency, 4);
        assert_eq!(config.executor.poll_interval, Duration::from_secs(1));
        assert_eq!(config.executor.reconcile_interval, Duration::from_secs(30));
        assert_eq!(config.executor.rail_timeout, Duration::from_secs(10));
        assert_eq!(config.executor.rail_read_timeout, Duration::from_secs(8));
        assert_eq!(config.executor.roles, Roles::Both);
        assert_eq!(config.lock_options.session_ttl, Duration::from_secs(15));
        assert_eq!(config.history_file, None);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (missing, _) in NEEDED {
            let rest: Vec<_> = NEEDED.into_iter().filter(|(name, _)| *name != missing).collect();
            let error = Config::from_settings(&settings(&rest)).unwrap_err();
            assert!(error.to_string().starts_with(missing), "{error}");
        }
    }
}
