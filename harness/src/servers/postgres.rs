//! PostgreSQL in containers: one server, or a primary with a synchronous standby.
//!
//! Owns: how they are started and found, promotion, and making the one that was left behind follow again.
//! Does not own: what is done to hurt them.
//! On failure: [`RunError`] with the end of the server's log.

use super::container::Container;
use super::docker::{ContainerSpec, Docker};
use crate::stack::{RunError, eventually};
use host_kit::Host;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The images, in the order in which they are looked for, unless `DLOCK_POSTGRES_IMAGE` names one.
const IMAGES: &[&str] = &["postgres:16", "dlock-offline/postgres:16"];
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Of a server on the loopback interface that lives for one run.
const PASSWORD: &str = "dlock-lab";
const DATA: &str = "/var/lib/postgresql/data";
/// The names of the first and the second server, in the run and on their network.
const NAMES: [&str; 2] = ["pg", "pg2"];

/// How the servers are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresOptions {
    /// How many connections a server takes.
    pub max_connections: u16,
    /// Each server's data on a disk of this many MiB, held in memory, so that it can be filled. At least 192.
    pub disk_mib: Option<u32>,
    /// A second server that follows synchronously: what the primary answered, it has on its disk.
    pub standby: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            max_connections: 300,
            disk_mib: None,
            standby: false,
        }
    }
}

/// One server of them.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its container.
    pub container: Container,
    /// Keeps its disk while it is down, and can write there.
    pub disk: Option<Container>,
}

impl Server {
    /// `host:port` as seen from this machine.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.container.host_port())
    }

    /// Runs SQL as the superuser. Answers what psql printed, without headings.
    ///
    /// # Errors
    /// When it fails.
    pub async fn sql(&self, sql: &str) -> Result<String, RunError> {
        self.psql(&["-c", sql]).await
    }

    /// Runs psql inside as the superuser, over TCP. Answers what it printed, without headings.
    ///
    /// # Errors
    /// When it fails.
    pub async fn psql(&self, args: &[&str]) -> Result<String, RunError> {
        let mut command = vec![
            "psql",
            "-h",
            "127.0.0.1",
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
        ];
        command.extend(args);
        self.container.run("postgres", &command).await
    }

    /// Awaits that it takes connections.
    ///
    /// # Errors
    /// When it does not, with the end of its log.
    pub async fn ready(&self, host: &Host) -> Result<(), RunError> {
        let what = format!("{} ready", self.container.name);
        // Over TCP: over the socket the server of the set-up says yes already.
        let ready = eventually(host, &what, READY_WITHIN, async || {
            let asked = self
                .container
                .exec("", &["pg_isready", "-h", "127.0.0.1", "-U", "postgres"]);
            Ok(matches!(asked.await, Ok((0, _))).then_some(()))
        });
        match ready.await {
            Ok(()) => Ok(()),
            Err(error) => Err(RunError::Other(format!(
                "{error}; its log ends with:\n{}",
                self.container.log_tail().await
            ))),
        }
    }
}

/// One server, or a primary and its standby. Clones are the same.
#[derive(Clone, Debug)]
pub struct Postgres {
    servers: Vec<Server>,
    primary: Rc<Cell<usize>>,
    options: PostgresOptions,
}

impl Postgres {
    /// Starts one on a network of its own, or two, and returns once the standby is synchronous.
    ///
    /// # Errors
    /// When they do not become ready.
    pub async fn start(docker: &Docker, host: &Host, options: &PostgresOptions) -> Result<Self, RunError> {
        let network = docker.network("pg").await?;
        let mut postgres = Self {
            servers: Vec::new(),
            primary: Rc::default(),
            options: options.clone(),
        };
        let first = postgres.begin(docker, &network, NAMES[0], postgres.command()).await?;
        postgres.servers.push(first);
        postgres.primary().ready(host).await?;
        if options.standby {
            let primary = postgres.primary();
            primary
                .sql(&format!(
                    "CREATE ROLE replicator LOGIN REPLICATION PASSWORD '{PASSWORD}'"
                ))
                .await?;
            let admit = format!("echo 'host replication replicator all scram-sha-256' >> {DATA}/pg_hba.conf");
            primary.container.run("postgres", &["sh", "-c", &admit]).await?;
            primary.sql("SELECT pg_reload_conf()").await?;
            let second = postgres
                .begin(docker, &network, NAMES[1], postgres.following(NAMES[0]))
                .await?;
            postgres.servers.push(second);
            postgres.synchronous(host).await?;
        }
        Ok(postgres)
    }

    async fn begin(&self, docker: &Docker, network: &str, name: &str, cmd: Vec<String>) -> Result<Server, RunError> {
        let image = docker.image("DLOCK_POSTGRES_IMAGE", IMAGES).await?;
        let mut spec = ContainerSpec {
            name: name.to_owned(),
            image,
            cmd,
            env: vec![format!("POSTGRES_PASSWORD={PASSWORD}")],
            port: 5432,
            network: network.to_owned(),
            ..ContainerSpec::default()
        };
        let mut disk = None;
        if let Some(mib) = self.options.disk_mib {
            let size = format!("size={mib}m");
            let options = [("type", "tmpfs"), ("device", "tmpfs"), ("o", size.as_str())];
            let volume = docker.volume(&format!("{name}-disk"), &options).await?;
            spec.volumes = vec![(volume, DATA.to_owned())];
            // What is in memory goes with the last who has it: this one stays when the server ends.
            disk = Some(
                docker
                    .start(ContainerSpec {
                        name: format!("{name}-disk"),
                        cmd: ["sleep", "infinity"].map(str::to_owned).to_vec(),
                        ..spec.clone()
                    })
                    .await?,
            );
        }
        Ok(Server {
            container: docker.start(spec).await?,
            disk,
        })
    }

    fn settings(&self) -> String {
        let mut settings = format!("-c max_connections={}", self.options.max_connections);
        if self.options.disk_mib.is_some() {
            settings.push_str(" -c max_wal_size=64MB -c min_wal_size=32MB");
        }
        settings
    }

    fn command(&self) -> Vec<String> {
        let settings = self.settings();
        let words = std::iter::once("postgres").chain(settings.split(' '));
        words.map(str::to_owned).collect()
    }

    /// Copies this primary and follows it. The copy is made once; a restarted container goes on with what it has.
    fn following(&self, primary: &str) -> Vec<String> {
        let follow = format!(
            "install -d -o postgres -m 700 {DATA} && exec setpriv --reuid=postgres --regid=postgres --clear-groups sh -c \"\
             test -s {DATA}/PG_VERSION || PGPASSWORD={PASSWORD} pg_basebackup -c fast -D {DATA} -R -X stream \
             -d 'host={primary} user=replicator application_name=standby' && exec postgres -D {DATA} {}\"",
            self.settings()
        );
        ["sh", "-c", &follow].map(str::to_owned).to_vec()
    }

    /// Awaits the standby, and has the primary wait for it from then on.
    async fn synchronous(&self, host: &Host) -> Result<(), RunError> {
        let Some(standby) = self.standby() else { return Ok(()) };
        standby.ready(host).await?;
        let primary = self.primary();
        primary
            .sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            .await?;
        primary.sql("SELECT pg_reload_conf()").await?;
        eventually(host, "the standby synchronous", READY_WITHIN, async || {
            let state = primary.sql("SELECT sync_state FROM pg_stat_replication").await?;
            Ok((state.trim() == "sync").then_some(()))
        })
        .await
    }

    /// Takes the writes.
    #[must_use]
    pub fn primary(&self) -> &Server {
        &self.servers[self.primary.get()]
    }

    /// Follows, where there is one.
    #[must_use]
    pub fn standby(&self) -> Option<&Server> {
        self.servers.get(1 - self.primary.get())
    }

    /// Makes the standby the primary. Answers once it takes writes.
    ///
    /// # Errors
    /// When it does not, or there is none.
    pub async fn promote(&self) -> Result<(), RunError> {
        let standby = self.standby().ok_or_else(|| {
            RunError::Other("there is no standby to be promoted: start the servers with one".to_owned())
        })?;
        let promoted = standby.sql("SELECT pg_promote(true, 60)").await?;
        if promoted.trim() != "t" {
            return Err(RunError::Other("the standby was not promoted in 60 s".to_owned()));
        }
        // It may have copied that somebody follows it, and would wait for them.
        standby.sql("ALTER SYSTEM RESET synchronous_standby_names").await?;
        standby.sql("SELECT pg_reload_conf()").await?;
        self.primary.set(1 - self.primary.get());
        Ok(())
    }

    /// Makes what was the primary before [`Postgres::promote`] a synchronous standby with a new copy of the data.
    ///
    /// # Errors
    /// When it does not become one.
    pub async fn follow_again(&self, host: &Host) -> Result<(), RunError> {
        let Some(left) = self.standby() else { return Ok(()) };
        let cmd = self.following(&self.primary().container.name);
        if let Some(disk) = &left.disk {
            // It must have ended before its files go.
            if left.container.state().await? == "running" {
                left.container.kill().await?;
            }
            let wipe = format!("find {DATA} -mindepth 1 -delete");
            disk.run("root", &["sh", "-c", &wipe]).await?;
        }
        left.container.replace(cmd).await?;
        self.synchronous(host).await
    }

    /// Where the disks of the servers are mounted, for who writes there.
    #[must_use]
    pub const fn data_dir() -> &'static str {
        DATA
    }

    /// The URL of the superuser; of a pair, one that finds whichever takes writes.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(Server::address).collect();
        let attributes = if self.servers.len() > 1 {
            "?target_session_attrs=read-write"
        } else {
            ""
        };
        format!(
            "postgres://postgres:{PASSWORD}@{}/postgres{attributes}",
            addresses.join(",")
        )
    }

    /// The URL of the superuser at the primary alone, as this application.
    #[must_use]
    pub fn url_of_primary(&self, application: &str) -> String {
        format!(
            "postgres://postgres:{PASSWORD}@{}/postgres?application_name={application}",
            self.primary().address()
        )
    }
}
