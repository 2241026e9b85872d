//! What the console takes from the settings (C5.2).

use gateway_kit::Settings;
use std::time::Duration;

/// Why the console cannot run.
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
    /// The address cannot be listened on, or the server failed.
    #[error(transparent)]
    Serve(std::io::Error),
}

/// The console's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// `console.lock-servers`, in order of preference.
    pub lock_servers: Vec<String>,
    /// `console.payments`.
    pub payments: String,
    /// `console.rail-proxy`.
    pub rail_proxy: String,
    /// `console.executors`.
    pub executors: Vec<String>,
    /// `console.scenario`: a file or an address.
    pub scenario: Option<String>,
    /// `console.hosts`: names under which it may be asked for besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// `console.read-only`.
    pub read_only: bool,
    /// `console.call-timeout`.
    pub call_timeout: Duration,
    /// `console.viewers-max`.
    pub viewers_max: usize,
}

impl Config {
    /// Reads the settings.
    ///
    /// # Errors
    /// [`RunError::Setting`] where one is missing or cannot be worked with.
    pub fn from_settings(settings: &Settings) -> Result<Self, RunError> {
        let needed = |name| {
            settings
                .text(name)
                .map(str::to_owned)
                .ok_or_else(|| wrong(name, "is needed"))
        };
        let lock_servers = urls("console.lock-servers", &needed("console.lock-servers")?)?;
        if lock_servers.is_empty() {
            return Err(wrong("console.lock-servers", "names no server"));
        }
        Ok(Self {
            lock_servers,
            payments: needed("console.payments")?,
            rail_proxy: needed("console.rail-proxy")?,
            executors: urls(
                "console.executors",
                settings.text("console.executors").unwrap_or_default(),
            )?,
            scenario: settings.text("console.scenario").map(str::to_owned),
            hosts: list(settings.text("console.hosts").unwrap_or_default())
                .map(|host| host.to_ascii_lowercase())
                .collect(),
            read_only: settings.boolean("console.read-only"),
            call_timeout: settings.duration("console.call-timeout"),
            viewers_max: usize::try_from(settings.integer("console.viewers-max")).unwrap_or(usize::MAX),
        })
    }
}

fn wrong(name: &'static str, reason: &str) -> RunError {
    RunError::Setting {
        name,
        reason: reason.to_owned(),
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn urls(name: &'static str, text: &str) -> Result<Vec<String>, RunError> {
    list(text)
        .map(|url| {
            http_client::base_url(url)
                .map(str::to_owned)
                .map_err(|reason| wrong(name, reason))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: [(&str, &str); 3] = [
        ("console.lock-servers", "http://127.0.0.1:1, http://127.0.0.1:2"),
        ("console.payments", "http://127.0.0.1:3"),
        ("console.rail-proxy", "http://127.0.0.1:4"),
    ];

    fn read(pairs: &[(&str, &str)]) -> Result<Config, RunError> {
        let flags: Vec<_> = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Config::from_settings(&Settings::load(None, [], &flags).unwrap())
    }

    #[test]
    fn the_defaults_are_safe() {
        let config = read(&NEEDED).unwrap();
        assert_eq!(config.lock_servers, ["http://127.0.0.1:1", "http://127.0.0.1:2"]);
        assert!(config.executors.is_empty() && config.scenario.is_none() && config.hosts.is_empty());
        assert_eq!(config.viewers_max, 64);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (missing, _) in NEEDED {
            let rest: Vec<_> = NEEDED.into_iter().filter(|(name, _)| *name != missing).collect();
            let error = read(&rest).unwrap_err().to_string();
            assert!(error.starts_with(missing), "{error}");
        }
        let mut pairs = NEEDED.to_vec();
        pairs.push(("console.executors", "http://a worker"));
        let error = read(&pairs).unwrap_err().to_string();
        assert!(error.starts_with("console.executors must be an address"), "{error}");
    }
}
