//! How the store is opened.

use super::error::unavailable;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use lock_api::StoreError;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Where the password comes from; read when the store is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdPassword {
    /// A file holds it, alone; one newline at its end is no part of it.
    File(PathBuf),
    /// An environment variable holds it.
    Environment(String),
}

/// How the cluster is reached.
#[derive(Clone, Debug)]
pub struct EtcdAccess {
    /// The members, `host:port` each.
    pub endpoints: Vec<String>,
    /// The user, where the cluster has users.
    pub user: Option<String>,
    /// That user's password.
    pub password: EtcdPassword,
    /// The authorities that the members' certificates are checked against (PEM). Given, every connection is TLS.
    pub ca_file: Option<PathBuf>,
    /// This side's certificate (PEM) for members that ask for one; together with [`Self::key_file`].
    pub cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    pub key_file: Option<PathBuf>,
    /// The name that the members' certificates must have, where it is not the endpoint's host.
    pub server_name: Option<String>,
    /// How long making a connection may take.
    pub connect_within: Duration,
    /// How long a call waits for one member before another is asked as well; a quarter of the call's own time where that is
    /// less.
    pub patience: Duration,
}

/// How to open a lock store on etcd.
#[derive(Clone, Debug)]
pub struct EtcdLockStoreOptions {
    /// How the cluster is reached.
    pub access: EtcdAccess,
    /// The beginning of every key of the store. Two prefixes are two stores. 1 to 64 characters of `[a-zA-Z0-9_.-]`, parts
    /// joined by single slashes.
    pub prefix: String,
    /// The id that the store must have (`lock.store.lineage`); another one is a doubt, and nothing is granted until an
    /// operator has cleared it. None takes whatever is there.
    pub expected_lineage: Option<String>,
    /// The shortest lease the cluster grants. A session below it is told by its stamps, one write per heartbeat; any other
    /// by its lease, which costs none.
    pub shortest_lease: Duration,
    /// How long the lease of a stamped session lives: it only cleans up where no lock server is left to do so.
    pub stamped_lease: Duration,
    /// Operations in one transaction, at most: the cluster's `--max-txn-ops`.
    pub operations_max: usize,
    /// How often the facts are looked at without being told to: the safety net for a lost watch.
    pub poll_every: Duration,
}

impl EtcdLockStoreOptions {
    /// A store at `etcd://host:port[,host:port…]`, under the prefix `dlock`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when that is no such URL.
    pub fn at(url: &str) -> Result<Self, StoreError> {
        Ok(Self {
            access: EtcdAccess {
                endpoints: endpoints(url)?,
                user: None,
                password: EtcdPassword::Environment("ETCDCTL_PASSWORD".to_owned()),
                ca_file: None,
                cert_file: None,
                key_file: None,
                server_name: None,
                connect_within: Duration::from_secs(2),
                patience: Duration::from_millis(200),
            },
            prefix: "dlock".to_owned(),
            expected_lineage: None,
            shortest_lease: Duration::from_secs(2),
            stamped_lease: Duration::from_secs(60),
            operations_max: 128,
            poll_every: Duration::from_secs(1),
        })
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        let fits = self.prefix.len() <= 64
            && self.prefix.split('/').all(|part| {
                !part.is_empty()
                    && part
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
            });
        if !fits {
            return Err(unavailable(format!(
                "the prefix {:?}: 1 to 64 characters of [a-zA-Z0-9_.-], parts joined by single slashes",
                self.prefix
            )));
        }
        if self.operations_max < 32 {
            return Err(unavailable("a transaction of the store takes 32 operations at least"));
        }
        if self.access.cert_file.is_some() != self.access.key_file.is_some() {
            return Err(unavailable(
                "a client certificate needs its key, and a key its certificate",
            ));
        }
        if self.access.ca_file.is_none() && self.access.cert_file.is_some() {
            return Err(unavailable("a client certificate needs the authorities' file as well"));
        }
        Ok(())
    }
}

/// The members that a URL names.
fn endpoints(url: &str) -> Result<Vec<String>, StoreError> {
    let wanted = "an etcd store is etcd://host:port[,host:port…]";
    let rest = url.strip_prefix("etcd://").ok_or_else(|| unavailable(wanted))?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('@') {
        return Err(unavailable(
            "an etcd URL names no user and no password: set lock.store.user",
        ));
    }
    rest.split(',')
        .map(|at| {
            let good = at.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty()
                    && !host.contains(['/', '?', '#', ' '])
                    && port.parse::<u16>().is_ok_and(|port| port > 0)
            });
            if good {
                Ok(at.to_owned())
            } else {
                Err(unavailable(format!("{at:?} is no host:port; {wanted}")))
            }
        })
        .collect()
}

impl EtcdAccess {
    /// The endpoints with their scheme.
    pub(super) fn urls(&self) -> Vec<String> {
        let scheme = if self.ca_file.is_some() { "https" } else { "http" };
        self.endpoints.iter().map(|at| format!("{scheme}://{at}")).collect()
    }

    /// Reads the files and the environment.
    pub(super) fn connect_options(&self) -> Result<ConnectOptions, StoreError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.connect_within)
            .with_keep_alive(Duration::from_secs(5), Duration::from_secs(3))
            .with_keep_alive_while_idle(true)
            .with_tcp_keepalive(Duration::from_secs(15))
            // A member without a leader says so at once, instead of letting the call run into its deadline.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(user) = &self.user {
            options = options.with_user(user.clone(), self.password()?);
        }
        if let Some(ca) = &self.ca_file {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
            if let (Some(cert), Some(key)) = (&self.cert_file, &self.key_file) {
                tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
            }
            if let Some(name) = &self.server_name {
                tls = tls.domain_name(name.clone());
            }
            options = options.with_tls(tls);
        }
        Ok(options)
    }

    fn password(&self) -> Result<String, StoreError> {
        match &self.password {
            EtcdPassword::File(path) => {
                let bytes = read(path)?;
                let text = String::from_utf8(bytes)
                    .map_err(|_| unavailable(format!("the password file {} is no text", path.display())))?;
                Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
            }
            EtcdPassword::Environment(name) => std::env::var(name).map_err(|_| {
                unavailable(format!(
                    "the user has no password: {name} is not set, and no file is named"
                ))
            }),
        }
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, StoreError> {
    std::fs::read(path).map_err(|error| unavailable(format!("{} cannot be read: {error}", path.display())))
}

impl fmt::Display for EtcdAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.endpoints.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_members_and_nothing_else() {
        let options = EtcdLockStoreOptions::at("etcd://a:2379,[::1]:2379").unwrap();
        assert_eq!(options.access.endpoints, ["a:2379", "[::1]:2379"]);
        assert_eq!(options.access.urls(), ["http://a:2379", "http://[::1]:2379"]);
        for bad in [
            "etcd://",
            "etcd://a",
            "etcd://a:0",
            "etcd://a:1,",
            "http://a:1",
            "etcd://u:p@a:1",
            "etcd://a:1/x",
        ] {
            assert!(EtcdLockStoreOptions::at(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn a_prefix_is_harmless() {
        let with = |prefix: &str| {
            let mut options = EtcdLockStoreOptions::at("etcd://a:1").unwrap();
            options.prefix = prefix.to_owned();
            options.check()
        };
        for good in ["dlock", "a/b", "t1_2.x-y"] {
            assert_eq!(with(good), Ok(()), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "a//b", "a b", "é", &"x".repeat(65)] {
            assert!(with(bad).is_err(), "{bad} was taken");
        }
    }
}
