//! How the store is opened.

use super::error::unavailable;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use lock_api::StoreError;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Where the password comes from; read again when its file, or one of the certificates, has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdPassword {
    /// A file holds it, alone; one newline at its end is no part of it. Refused where others can read it.
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
    /// Whether the password may go in the clear to members beyond this machine (`?insecure_transport=true`).
    pub insecure_transport: bool,
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
    /// A store at `etcd://host:port[,host:port…][?insecure_transport=true]`, under the prefix `dlock`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when that is no such URL.
    pub fn at(url: &str) -> Result<Self, StoreError> {
        let (url, insecure_transport) = match url.split_once('?') {
            None | Some((_, "insecure_transport=false")) => (url.split('?').next().unwrap_or(url), false),
            Some((url, "insecure_transport=true")) => (url, true),
            Some(_) => {
                return Err(unavailable(
                    "an etcd URL has one parameter, insecure_transport, which is true or false",
                ));
            }
        };
        Ok(Self {
            access: EtcdAccess {
                endpoints: endpoints(url)?,
                insecure_transport,
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
        if self.access.user.is_some()
            && self.access.ca_file.is_none()
            && !self.access.insecure_transport
            && let Some(at) = self.access.endpoints.iter().find(|at| !is_this_machine(at))
        {
            return Err(unavailable(format!(
                "{at} is another machine, and the user's password would go to whoever answers there: name the authorities' \
                 file (lock.store.ca-file), or say ?insecure_transport=true in the URL where the network itself is trusted"
            )));
        }
        if self.access.ca_file.is_none() && self.access.cert_file.is_some() {
            return Err(unavailable("a client certificate needs the authorities' file as well"));
        }
        Ok(())
    }
}

/// Whether a member is on the loopback interface.
fn is_this_machine(at: &str) -> bool {
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
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

    /// The files that a connection is made of.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let password = match &self.password {
            EtcdPassword::File(path) if self.user.is_some() => Some(path),
            EtcdPassword::File(_) | EtcdPassword::Environment(_) => None,
        };
        let files = [
            self.ca_file.as_ref(),
            self.cert_file.as_ref(),
            self.key_file.as_ref(),
            password,
        ];
        files.into_iter().flatten().cloned().collect()
    }

    /// Reads the files and the environment. A key that is not that of the certificate is refused here, and not by the first
    /// member that is asked.
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
            let unusable = |error: tls_kit::Unusable| unavailable(error.to_string());
            let text = |path: &PathBuf| path.display().to_string();
            let authorities = tls_kit::authorities(Some(&text(ca))).map_err(unusable)?;
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca)?));
            if let (Some(cert), Some(key)) = (&self.cert_file, &self.key_file) {
                let identity = tls_kit::Identity {
                    chain: tls_kit::certificates(&text(cert)).map_err(unusable)?,
                    key: tls_kit::key(&text(key)).map_err(unusable)?,
                };
                tls_kit::verifying_client(authorities, Some(identity)).map_err(unusable)?;
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
                tls_kit::secret(path).map_err(|error| unavailable(format!("the password file {error}")))
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
            "etcd://a:1?insecure_transport=yes",
            "etcd://a:1?x=true",
        ] {
            assert!(EtcdLockStoreOptions::at(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn case_s4_a_users_password_goes_to_no_member_that_was_not_verified() {
        let check = |url: &str, change: fn(&mut EtcdAccess)| {
            let mut options = EtcdLockStoreOptions::at(url).unwrap();
            change(&mut options.access);
            options.check().map_err(|error| error.to_string())
        };
        let user: fn(&mut EtcdAccess) = |access| access.user = Some("dlock".to_owned());
        for url in [
            "etcd://a:1",
            "etcd://127.0.0.1:1,10.0.0.1:1",
            "etcd://a:1?insecure_transport=false",
        ] {
            let said = check(url, user).unwrap_err();
            assert!(
                said.contains("insecure_transport=true") && said.contains("lock.store.ca-file"),
                "{said}"
            );
        }
        for url in [
            "etcd://127.0.0.1:1,localhost:2,[::1]:3",
            "etcd://a:1?insecure_transport=true",
        ] {
            check(url, user).unwrap();
        }
        check("etcd://a:1", |_| {}).unwrap();
        check("etcd://a:1", |access| {
            access.user = Some("dlock".to_owned());
            access.ca_file = Some("/ca.pem".into());
        })
        .unwrap();
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
