//! Which backends a run uses, and each stack's own part of them.

use super::docker::Docker;
use super::etcd::{EtcdCluster, EtcdOptions};
use super::postgres::{Postgres, PostgresOptions};
use crate::chaos::fault::StoreKind;
use crate::stack::RunError;
use crate::stack::processes::Lab;
use pg_kit::{Access, Connector};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long `dlock migrate` may take.
const MIGRATE_WITHIN: Duration = Duration::from_secs(60);

/// Where the lock stores of a run's stacks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockBackend {
    /// A file in each stack's directory.
    Embedded,
    /// A schema for each stack in the database of this URL, whose user may make schemas.
    Pg(String),
    /// A prefix for each stack in the cluster of this URL.
    Etcd(String),
}

/// Where the paydbs of a run's stacks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayBackend {
    /// A directory in each stack's directory.
    Embedded,
    /// A schema and two roles for each stack in the database of this URL, whose user may make schemas and roles.
    Pg(String),
}

/// How the servers that a run starts itself are started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// PostgreSQL.
    pub postgres: PostgresOptions,
    /// etcd.
    pub etcd: EtcdOptions,
}

impl ServerOptions {
    /// So that every fault of the catalogue can be injected: PostgreSQL with a standby, few connections and a small disk;
    /// etcd with three members and a small database.
    #[must_use]
    pub const fn for_faults() -> Self {
        Self {
            postgres: PostgresOptions {
                max_connections: 80,
                disk_mib: Some(320),
                standby: true,
            },
            etcd: EtcdOptions {
                members: 3,
                quota_mib: Some(48),
            },
        }
    }
}

/// A store as a component is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreAt {
    /// Its URL.
    pub url: String,
    /// What else it has to be told.
    pub settings: BTreeMap<String, String>,
}

/// The stores of one stack; what is None is embedded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stores {
    /// lockdb.
    pub lock: Option<StoreAt>,
    /// paydb as the payment resource reaches it.
    pub payment: Option<StoreAt>,
    /// paydb as the rail proxy reaches it.
    pub rail: Option<StoreAt>,
}

/// What is to be taken away at the end.
#[derive(Clone, Debug)]
struct Made {
    url: String,
    schema: String,
    roles: Vec<String>,
}

/// The backends of a run.
#[derive(Debug)]
pub struct Backends {
    /// Of the lock stores.
    pub lock: LockBackend,
    /// Of the paydbs.
    pub pay: PayBackend,
    /// The PostgreSQL that this run has started, to be hurt.
    pub postgres: Option<Postgres>,
    /// The etcd that this run has started, to be hurt.
    pub etcd: Option<EtcdCluster>,
    lab: Lab,
    made: RefCell<Vec<Made>>,
}

/// `sqlite`, `pg`, `etcd`, or the URL of a server that runs.
enum Named {
    Embedded,
    StartPg,
    StartEtcd,
    Pg(String),
    Etcd(String),
}

fn named(what: &str, text: &str) -> Result<Named, RunError> {
    Ok(match text {
        "sqlite" => Named::Embedded,
        "pg" => Named::StartPg,
        "etcd" => Named::StartEtcd,
        url if url.starts_with("postgres://") || url.starts_with("postgresql://") => Named::Pg(url.to_owned()),
        url if url.starts_with("etcd://") => Named::Etcd(url.to_owned()),
        _ => {
            return Err(RunError::Other(format!(
                "{what} must be sqlite, pg, etcd, postgres://… or etcd://…"
            )));
        }
    })
}

impl Backends {
    /// Everything embedded.
    #[must_use]
    pub fn embedded(lab: &Lab) -> Self {
        Self {
            lock: LockBackend::Embedded,
            pay: PayBackend::Embedded,
            postgres: None,
            etcd: None,
            lab: lab.clone(),
            made: RefCell::default(),
        }
    }

    /// What the command line names. `pg` and `etcd` start a server in a container for this run; a URL uses one that
    /// runs. Where paydb is not named it is on PostgreSQL together with the lock store, else embedded.
    ///
    /// # Errors
    /// When a name is unknown or a server cannot be started.
    pub async fn of(lab: &Lab, lock: Option<&str>, pay: Option<&str>) -> Result<Self, RunError> {
        Self::with(lab, lock, pay, &ServerOptions::default()).await
    }

    /// As [`Self::of`], where the servers that are started are started like this.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub async fn with(
        lab: &Lab,
        lock: Option<&str>,
        pay: Option<&str>,
        options: &ServerOptions,
    ) -> Result<Self, RunError> {
        let mut backends = Self::embedded(lab);
        let lock = named("--store", lock.unwrap_or("sqlite"))?;
        let pay = pay.map(|pay| named("--pay-store", pay)).transpose()?;
        if matches!(pay, Some(Named::StartEtcd | Named::Etcd(_))) {
            return Err(RunError::Other(
                "--pay-store: paydb is sqlite or PostgreSQL, never etcd".to_owned(),
            ));
        }
        let starts = |named: &Named| matches!(named, Named::StartPg | Named::StartEtcd);
        let docker = if starts(&lock) || pay.as_ref().is_some_and(starts) {
            Some(Docker::connect(lab).await?)
        } else {
            None
        };
        // One server serves both, as two databases would; the schemas keep them apart.
        let started = match &docker {
            Some(docker) if matches!(lock, Named::StartPg) || matches!(pay, Some(Named::StartPg)) => {
                Some(Postgres::start(docker, lab.host(), &options.postgres).await?)
            }
            _ => None,
        };
        backends.postgres.clone_from(&started);
        let started = started.map(|server| server.url());
        let pg = |url: Option<String>| url.ok_or_else(|| RunError::Other("no PostgreSQL was started".to_owned()));
        backends.pay = match (&pay, &lock) {
            (Some(Named::Pg(url)), _) | (None, Named::Pg(url)) => PayBackend::Pg(url.clone()),
            (Some(Named::StartPg), _) | (None, Named::StartPg) => PayBackend::Pg(pg(started.clone())?),
            _ => PayBackend::Embedded,
        };
        backends.lock = match lock {
            Named::Embedded => LockBackend::Embedded,
            Named::Pg(url) => LockBackend::Pg(url),
            Named::Etcd(url) => LockBackend::Etcd(url),
            Named::StartPg => LockBackend::Pg(pg(started)?),
            Named::StartEtcd => {
                let docker = docker.ok_or_else(|| RunError::Other("Docker is needed".to_owned()))?;
                let cluster = EtcdCluster::start(&docker, lab.host(), &options.etcd).await?;
                let url = cluster.url();
                backends.etcd = Some(cluster);
                LockBackend::Etcd(url)
            }
        };
        Ok(backends)
    }

    /// What kind of store the lock store is.
    #[must_use]
    pub const fn kind(&self) -> StoreKind {
        match self.lock {
            LockBackend::Embedded => StoreKind::Sqlite,
            LockBackend::Pg(_) => StoreKind::Pg,
            LockBackend::Etcd(_) => StoreKind::Etcd,
        }
    }

    /// In a word, for reports.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match (&self.lock, &self.pay) {
            (LockBackend::Embedded, PayBackend::Embedded) => "sqlite",
            (LockBackend::Embedded, PayBackend::Pg(_)) => "sqlite, paydb on pg",
            (LockBackend::Pg(_), PayBackend::Pg(_)) => "pg",
            (LockBackend::Pg(_), PayBackend::Embedded) => "pg, paydb on sqlite",
            (LockBackend::Etcd(_), PayBackend::Embedded) => "etcd, paydb on sqlite",
            (LockBackend::Etcd(_), PayBackend::Pg(_)) => "etcd, paydb on pg",
        }
    }

    /// The lock store's alone, in a word.
    #[must_use]
    pub const fn describe_lock(&self) -> &'static str {
        match self.lock {
            LockBackend::Embedded => "sqlite",
            LockBackend::Pg(_) => "pg",
            LockBackend::Etcd(_) => "etcd",
        }
    }

    /// Where a store of this run is for a component in a container: the URL with the servers' names in their networks, and
    /// those networks. What this run has not started keeps its URL.
    #[must_use]
    pub fn inside(&self, url: &str) -> (String, BTreeSet<String>) {
        let servers = self
            .postgres
            .iter()
            .flat_map(|pair| std::iter::once(pair.primary()).chain(pair.standby()))
            .map(|server| &server.container)
            .chain(self.etcd.iter().flat_map(|cluster| &cluster.members));
        let (mut url, mut networks) = (url.to_owned(), BTreeSet::new());
        for server in servers {
            let outside = format!("127.0.0.1:{}", server.host_port());
            if url.contains(&outside) {
                let (network, port) = server.published();
                url = url.replace(&outside, &format!("{}:{port}", server.full_name()));
                networks.insert(network);
            }
        }
        if !networks.is_empty() && url.starts_with("postgres") {
            // The network is this run's own, and the servers have no certificates.
            let joint = if url.contains('?') { '&' } else { '?' };
            url = format!("{url}{joint}insecure_transport=true");
        }
        (url, networks)
    }

    /// New stores for one stack.
    ///
    /// # Errors
    /// When paydb's schema cannot be made.
    pub async fn fresh(&self) -> Result<Stores, RunError> {
        let id = self.lab.host().ids.ulid().to_ascii_lowercase();
        let lock = match &self.lock {
            LockBackend::Embedded => None,
            LockBackend::Pg(url) => {
                let schema = format!("lab_{id}");
                self.made.borrow_mut().push(Made {
                    url: url.clone(),
                    schema: schema.clone(),
                    roles: Vec::new(),
                });
                Some(StoreAt {
                    url: url.clone(),
                    settings: BTreeMap::from([("lock.store.schema".to_owned(), schema)]),
                })
            }
            LockBackend::Etcd(url) => Some(StoreAt {
                url: url.clone(),
                settings: BTreeMap::from([("lock.store.prefix".to_owned(), format!("lab/{id}"))]),
            }),
        };
        let PayBackend::Pg(url) = &self.pay else {
            return Ok(Stores {
                lock,
                ..Stores::default()
            });
        };
        let schema = format!("pay_{id}");
        let (payment, rail) = (format!("lab_payment_{id}"), format!("lab_rail_{id}"));
        self.made.borrow_mut().push(Made {
            url: url.clone(),
            schema: schema.clone(),
            roles: vec![payment.clone(), rail.clone()],
        });
        self.migrate(url, &schema, &payment, &rail).await?;
        // The roles are made without a password; the lab gives them one that is good for this run.
        let password = self.lab.host().ids.ulid();
        for role in [&payment, &rail] {
            self.sql(url, &format!("ALTER ROLE \"{role}\" PASSWORD '{password}'"))
                .await?;
        }
        let at = |component: &str, role: &str| {
            let setting = format!("{component}.store.schema");
            Ok::<_, RunError>(Some(StoreAt {
                url: as_user(url, role, &password)?,
                settings: BTreeMap::from([(setting, schema.clone())]),
            }))
        };
        Ok(Stores {
            lock,
            payment: at("payment", &payment)?,
            rail: at("rail", &rail)?,
        })
    }

    async fn migrate(&self, url: &str, schema: &str, payment: &str, rail: &str) -> Result<(), RunError> {
        let mut command = Command::new(self.lab.exe());
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("DLOCK_")) {
            command.env_remove(variable);
        }
        command
            .args(["migrate", "--payment-store", url, "--schema", schema])
            .args(["--payment-role", payment, "--rail-role", rail, "--create-roles"])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(MIGRATE_WITHIN, command.output())
            .await
            .map_err(|_| RunError::NeverCame {
                what: "dlock migrate".to_owned(),
                within: MIGRATE_WITHIN,
            })?
            .map_err(RunError::io("starting dlock migrate"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(RunError::Other(format!(
            "dlock migrate: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }

    async fn sql(&self, url: &str, sql: &str) -> Result<(), RunError> {
        let failed = |error: &dyn std::fmt::Display| RunError::Other(format!("the run's database: {error}"));
        let connector = Connector::new(&Access::at(url)).map_err(|error| failed(&error))?;
        let (client, io) = connector.connect_alone().await.map_err(|error| failed(&error))?;
        let done = client.batch_execute(sql).await;
        drop(client);
        drop(io.await);
        done.map_err(|error| failed(&pg_kit::describe(&error)))
    }

    /// Takes away what the run has made on servers that stay. Whatever cannot be removed is named in the log.
    pub async fn clean_up(&self) {
        for made in self.made.take() {
            let mut sql = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE;", made.schema);
            for role in &made.roles {
                sql.push_str(&format!("DROP ROLE IF EXISTS \"{role}\";"));
            }
            if let Err(error) = self.sql(&made.url, &sql).await {
                tracing::warn!(event = "left_behind", schema = made.schema, %error);
            }
        }
    }
}

/// The same database as another user.
fn as_user(url: &str, user: &str, password: &str) -> Result<String, RunError> {
    let odd = || RunError::Other("a PostgreSQL URL is postgres://user[:password]@host[:port]/database".to_owned());
    let (scheme, rest) = url.split_once("://").ok_or_else(odd)?;
    let authority_ends = rest.find('/').unwrap_or(rest.len());
    let host = rest[..authority_ends].rfind('@').map_or(0, |at| at + 1);
    Ok(format!("{scheme}://{user}:{password}@{}", &rest[host..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_url_is_exchanged() {
        let other = |url| as_user(url, "u", "p").unwrap();
        assert_eq!(other("postgres://a:b@h:1/d?x=y@z"), "postgres://u:p@h:1/d?x=y@z");
        assert_eq!(other("postgres://h/d"), "postgres://u:p@h/d");
        assert_eq!(other("postgresql://a@h1:1,h2:2/d"), "postgresql://u:p@h1:1,h2:2/d");
        assert!(as_user("h/d", "u", "p").is_err());
    }

    #[test]
    fn a_store_is_a_word_or_a_url() {
        assert!(matches!(named("--store", "sqlite"), Ok(Named::Embedded)));
        assert!(matches!(named("--store", "etcd://a:1"), Ok(Named::Etcd(_))));
        let said = named("--store", "mysql://x").err().unwrap().to_string();
        assert!(said.starts_with("--store must be sqlite"), "{said}");
    }
}
