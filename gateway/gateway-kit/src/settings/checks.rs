//! What a configuration must be as a whole: settings that relate to one another, to the chosen backend, to the build.

use super::value::NO_TLS;
use super::{ConfigError, Settings, backend};

/// Settings that only some backends of the lock store read, with those backends.
const OF_BACKENDS: &[(&str, &[&str])] = &[
    ("lock.store.prefix", &["etcd"]),
    ("lock.store.user", &["etcd"]),
    ("lock.store.ca-file", &["etcd"]),
    ("lock.store.cert-file", &["etcd"]),
    ("lock.store.key-file", &["etcd"]),
    ("lock.store.password-file", &["pg", "etcd"]),
    ("lock.store.schema", &["pg"]),
    ("lock.store.pool-max", &["pg"]),
    ("lock.store.connect-timeout", &["pg"]),
    ("lock.store.pooler", &["pg"]),
];

impl Settings {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.check_pairs()?;
        self.check_backend()?;
        self.check_rail_tls()?;
        self.check_scenario()?;
        self.check_build()
    }

    fn check_pairs(&self) -> Result<(), ConfigError> {
        let d = |name| self.optional_duration(name);
        let pair = |first, second, holds: bool, reason| {
            if holds {
                return Ok(());
            }
            let (first_value, second_value) = (self.shown(first), self.shown(second));
            Err(ConfigError::Conflict {
                first,
                first_value,
                second,
                second_value,
                reason,
            })
        };
        let below = |first, second, reason| pair(first, second, d(first) < d(second), reason);
        let at_most = |first, second, reason| {
            pair(
                first,
                second,
                d(first).is_none_or(|value| Some(value) <= d(second)),
                reason,
            )
        };
        pair(
            "lock.client.safety-margin",
            "lock.session.ttl",
            d("lock.client.safety-margin").map(|margin| margin * 2) < d("lock.session.ttl"),
            "the margin must be less than half of the TTL",
        )?;
        below(
            "lock.heartbeat.interval",
            "lock.session.ttl",
            "the interval must be less than the TTL",
        )?;
        at_most(
            "lock.session.ttl-min",
            "lock.session.ttl",
            "the TTL must not be below its lower bound",
        )?;
        at_most(
            "lock.session.ttl",
            "lock.session.ttl-max",
            "the TTL must not be above its upper bound",
        )?;
        at_most(
            "lock.grant.ttl",
            "lock.session.ttl-max",
            "the TTL must not be above its upper bound",
        )?;
        pair(
            "lock.grant.ttl",
            "lock.session.ttl-min",
            d("lock.grant.ttl").is_none_or(|ttl| Some(ttl) >= d("lock.session.ttl-min")),
            "the TTL must not be below its lower bound",
        )?;
        at_most(
            "lock.acquire.backoff-min",
            "lock.acquire.backoff-max",
            "the bounds must be in order",
        )?;
        below(
            "rail.read-timeout",
            "executor.rail-timeout",
            "the proxy must give up before the executor does (C3.7)",
        )?;
        pair(
            "lock.store",
            "lock.store.url",
            self.text("lock.store.url").map(backend) == self.text("lock.store")
                || self
                    .entries
                    .get("lock.store.url")
                    .is_some_and(|url| url.source == "the default")
                    && self.text("lock.store") == Some("sqlite"),
            "the URL must be of the named backend",
        )
    }

    /// What is set for a backend that is not in use would promise something that nobody keeps.
    fn check_backend(&self) -> Result<(), ConfigError> {
        for (name, _) in OF_BACKENDS {
            let set = self
                .entries
                .get_key_value(name)
                .filter(|(_, entry)| entry.source != "the default");
            if let (Some((name, _)), false) = (set, self.fits_backend(name)) {
                return Err(ConfigError::Conflict {
                    first: name,
                    first_value: self.shown(name),
                    second: "lock.store",
                    second_value: self.shown("lock.store"),
                    reason: "the named backend does not read this setting",
                });
            }
        }
        let schema = self.text("lock.store.schema").unwrap_or_default();
        let fits = schema.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
            && !schema.starts_with("pg_")
            && !schema.starts_with(|first: char| first.is_ascii_digit());
        if fits {
            return Ok(());
        }
        Err(ConfigError::Invalid {
            name: "lock.store.schema",
            source_name: self.source("lock.store.schema").to_owned(),
            reason: "must be of a-z, 0-9 and _, and not begin with a digit or pg_".to_owned(),
        })
    }

    /// Whether the chosen backend of the lock store reads this setting; true of whatever is no backend's own.
    pub(super) fn fits_backend(&self, name: &str) -> bool {
        OF_BACKENDS
            .iter()
            .filter(|(own, _)| *own == name)
            .all(|(_, backends)| self.text("lock.store").is_some_and(|store| backends.contains(&store)))
    }

    /// What is set for a connection that is not encrypted would promise something that nobody keeps.
    fn check_rail_tls(&self) -> Result<(), ConfigError> {
        let conflict = |first, second, reason| {
            Err(ConfigError::Conflict {
                first,
                first_value: self.shown(first),
                second,
                second_value: self.shown(second),
                reason,
            })
        };
        const CERT: &str = "rail.tls.cert-file";
        const KEY: &str = "rail.tls.key-file";
        if self.text(CERT).is_some() != self.text(KEY).is_some() {
            return conflict(
                CERT,
                KEY,
                "a certificate is shown with its key, so it is both or neither",
            );
        }
        if self.text("rail.url").is_some_and(|url| !url.starts_with("https:")) {
            for name in ["rail.tls.ca-file", CERT, KEY] {
                if self.text(name).is_some() {
                    return conflict(name, "rail.url", "an address without https is reached in the clear");
                }
            }
        }
        Ok(())
    }

    /// A file or an address, so its kind is text.
    fn check_scenario(&self) -> Result<(), ConfigError> {
        match self.text("console.scenario") {
            Some(address) if address.starts_with("https:") => Err(ConfigError::Invalid {
                name: "console.scenario",
                source_name: self.source("console.scenario").to_owned(),
                reason: NO_TLS.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// What is asked of a build that cannot do it is refused, not passed over.
    fn check_build(&self) -> Result<(), ConfigError> {
        match self.entries.get("otel.endpoint") {
            Some(entry) if !cfg!(feature = "otel") => Err(ConfigError::Invalid {
                name: "otel.endpoint",
                source_name: entry.source.clone(),
                reason: "needs a build with the feature otel; this one exports no spans".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}
