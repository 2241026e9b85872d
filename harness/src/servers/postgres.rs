//! PostgreSQL in containers: one server, or a primary with a synchronous standby.

use super::docker::{Container, ContainerSpec, Docker};
use crate::stack::{RunError, eventually};
use host_kit::Host;
use std::time::Duration;

/// The images, in the order in which they are looked for, unless `DLOCK_POSTGRES_IMAGE` names one.
const IMAGES: &[&str] = &["postgres:16", "dlock-offline/postgres:16"];
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Of a server on the loopback interface that lives for one run.
const PASSWORD: &str = "dlock-lab";
const DATA: &str = "/var/lib/postgresql/data";

/// One server.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// Its container.
    pub container: Container,
}

impl Postgres {
    /// Starts one on a network of its own.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start(docker: &Docker, host: &Host) -> Result<Self, RunError> {
        let network = docker.network("pg").await?;
        let server = Self::begin(docker, &network, "pg", &[]).await?;
        server.ready(host).await?;
        Ok(server)
    }

    async fn begin(docker: &Docker, network: &str, name: &str, options: &[&str]) -> Result<Self, RunError> {
        let image = docker.image("DLOCK_POSTGRES_IMAGE", IMAGES).await?;
        let mut cmd = vec!["postgres".to_owned()];
        for option in ["max_connections=300"].iter().chain(options) {
            cmd.extend(["-c".to_owned(), (*option).to_owned()]);
        }
        let container = docker
            .start(ContainerSpec {
                name: name.to_owned(),
                image,
                cmd,
                env: vec![format!("POSTGRES_PASSWORD={PASSWORD}")],
                port: 5432,
                network: network.to_owned(),
                ..ContainerSpec::default()
            })
            .await?;
        Ok(Self { container })
    }

    async fn ready(&self, host: &Host) -> Result<(), RunError> {
        let ready = eventually(
            host,
            &format!("{} ready", self.container.name),
            READY_WITHIN,
            async || {
                // Over TCP: over the socket the server of the set-up says yes already.
                let asked = self
                    .container
                    .exec("", &["pg_isready", "-h", "127.0.0.1", "-U", "postgres"])
                    .await;
                Ok(matches!(asked, Ok((0, _))).then_some(()))
            },
        )
        .await;
        match ready {
            Ok(()) => Ok(()),
            Err(error) => Err(RunError::Other(format!(
                "{error}; its log ends with:\n{}",
                self.container.log_tail().await
            ))),
        }
    }

    /// `host:port` as seen from this machine.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.container.host_port)
    }

    /// The URL of its superuser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres:{PASSWORD}@{}/postgres", self.address())
    }

    /// Runs SQL as the superuser. Answers what psql printed, without headings.
    ///
    /// # Errors
    /// When it fails.
    pub async fn sql(&self, sql: &str) -> Result<String, RunError> {
        self.container
            .run(
                "postgres",
                &[
                    "psql",
                    "-h",
                    "127.0.0.1",
                    "-X",
                    "-A",
                    "-t",
                    "-v",
                    "ON_ERROR_STOP=1",
                    "-c",
                    sql,
                ],
            )
            .await
    }
}

/// A primary and its synchronous standby: what the primary answered, the standby has on its disk.
#[derive(Clone, Debug)]
pub struct PostgresPair {
    /// Takes the writes.
    pub primary: Postgres,
    /// Follows.
    pub standby: Postgres,
}

impl PostgresPair {
    /// Starts both, and returns once the standby is synchronous.
    ///
    /// # Errors
    /// When they do not become ready.
    pub async fn start(docker: &Docker, host: &Host) -> Result<Self, RunError> {
        let network = docker.network("pg").await?;
        let primary = Postgres::begin(docker, &network, "primary", &["synchronous_commit=on"]).await?;
        primary.ready(host).await?;
        primary
            .sql("CREATE ROLE replicator LOGIN REPLICATION PASSWORD 'dlock-lab'")
            .await?;
        primary
            .container
            .run(
                "postgres",
                &[
                    "sh",
                    "-c",
                    &format!("echo 'host replication replicator all scram-sha-256' >> {DATA}/pg_hba.conf"),
                ],
            )
            .await?;
        primary.sql("SELECT pg_reload_conf()").await?;
        let standby = Self::standby(docker, &network).await?;
        standby.ready(host).await?;
        primary
            .sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            .await?;
        primary.sql("SELECT pg_reload_conf()").await?;
        eventually(host, "the standby synchronous", READY_WITHIN, async || {
            let state = primary.sql("SELECT sync_state FROM pg_stat_replication").await?;
            Ok((state.trim() == "sync").then_some(()))
        })
        .await?;
        Ok(Self { primary, standby })
    }

    /// A container that copies the primary and follows it.
    async fn standby(docker: &Docker, network: &str) -> Result<Postgres, RunError> {
        let image = docker.image("DLOCK_POSTGRES_IMAGE", IMAGES).await?;
        // The copy is made once; a restarted container goes on with what it has.
        let follow = format!(
            "install -d -o postgres -m 700 /copy && exec setpriv --reuid=postgres --regid=postgres --clear-groups sh -c \"\
             test -s /copy/data/PG_VERSION || PGPASSWORD={PASSWORD} pg_basebackup -c fast -D /copy/data -R -X stream \
             -d 'host=primary user=replicator application_name=standby' && \
             exec postgres -D /copy/data -c max_connections=300\""
        );
        let container = docker
            .start(ContainerSpec {
                name: "standby".to_owned(),
                image,
                cmd: ["sh", "-c", &follow].map(str::to_owned).to_vec(),
                port: 5432,
                network: network.to_owned(),
                ..ContainerSpec::default()
            })
            .await?;
        Ok(Postgres { container })
    }

    /// Makes the standby the primary. Answers once it takes writes.
    ///
    /// # Errors
    /// When it does not.
    pub async fn promote(&self) -> Result<(), RunError> {
        let promoted = self.standby.sql("SELECT pg_promote(true, 60)").await?;
        if promoted.trim() == "t" {
            Ok(())
        } else {
            Err(RunError::Other("the standby was not promoted in 60 s".to_owned()))
        }
    }

    /// A URL that finds whichever of the two takes writes.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "postgres://postgres:{PASSWORD}@{},{}/postgres?target_session_attrs=read-write",
            self.primary.address(),
            self.standby.address()
        )
    }
}
