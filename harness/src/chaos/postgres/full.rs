//! The disk of the server is full.

use super::super::fault::{Fault, Ground, SHOWS_WITHIN};
use super::Side;
use crate::servers::container::Container;
use crate::servers::postgres::Postgres;
use crate::stack::{RunError, Step, eventually};

/// How often another MiB of log is asked for on a full disk. More than the log may have: at the end of what it has, the
/// server stops.
const LOG_MIB: usize = 96;
const FILLER: &str = "dlock_chaos_filler";

/// Everything that is left on the disk is taken by a file that is not the server's.
pub(super) struct DiskFull {
    server: Postgres,
    disk: Container,
    ballast: String,
}

impl DiskFull {
    /// # Errors
    /// When the server's data are not on a small disk of their own.
    pub(super) fn on(server: Postgres) -> Result<Box<dyn Fault>, RunError> {
        let disk = server.primary().disk.clone().ok_or_else(|| {
            RunError::Other(
                "a disk can be filled only where the server has a small one of its own: start it with one \
                 (ServerOptions::for_faults)"
                    .to_owned(),
            )
        })?;
        Ok(Box::new(Self {
            server,
            disk,
            ballast: format!("{}/ballast", Postgres::data_dir()),
        }))
    }

    /// Writes until the server says that there is no room. None where the connection broke first.
    async fn refused(&self) -> Result<Option<String>, RunError> {
        let Ok(side) = Side::open(&self.server).await else {
            return Ok(None);
        };
        // Not logged, so that it is the table that finds no room.
        let table = format!("CREATE UNLOGGED TABLE IF NOT EXISTS {FILLER} (filler text)");
        let rows = format!("INSERT INTO {FILLER} SELECT repeat(md5(n::text), 60) FROM generate_series(1, 2000) n");
        for sql in [&table, &rows] {
            if let Err(error) = side.run(sql).await {
                return Ok(Some(error.to_string()).filter(|said| said.contains("53100")));
            }
        }
        Ok(None)
    }
}

impl Fault for DiskFull {
    fn target(&self) -> String {
        self.server.primary().container.name.clone()
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let fill = format!("cat /dev/zero > {} 2>/dev/null; true", self.ballast);
            self.disk.run("root", &["sh", "-c", &fill]).await.map(drop)
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let container = &self.server.primary().container;
            let refused = eventually(ground.stack.host(), "the disk full", SHOWS_WITHIN, async || {
                if let Some(said) = self.refused().await? {
                    return Ok(Some(format!("the server says: {said}")));
                }
                let state = container.state().await?;
                Ok(state.starts_with("exited").then(|| format!("the server has {state}")))
            })
            .await?;
            // A log that finds no room is what really stops a server.
            let mut logged = 0;
            if let Ok(side) = Side::open(&self.server).await {
                let more = "SELECT pg_logical_emit_message(false, 'dlock-chaos', repeat('x', 1048576))";
                while logged < LOG_MIB && side.run(more).await.is_ok() {
                    logged += 1;
                }
            }
            let log = container.log_tail().await;
            let panic = log.lines().rev().find(|line| line.contains("PANIC"));
            let state = container.state().await?;
            Ok(match panic {
                Some(line) => {
                    let line = line.trim();
                    format!("{refused}; after {logged} MiB more of log: {line}; the container is {state}")
                }
                None => format!("{refused}; {logged} MiB more of log were written; the container is {state}"),
            })
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            self.disk.run("root", &["rm", "-f", &self.ballast]).await?;
            let host = ground.stack.host();
            let server = self.server.primary();
            // A server that was about to end may still do so.
            eventually(
                host,
                "the server back with room on its disk",
                SHOWS_WITHIN,
                async || {
                    if server.container.state().await?.starts_with("exited") {
                        server.container.restart().await?;
                    }
                    let Ok(side) = Side::open(&self.server).await else {
                        return Ok(None);
                    };
                    let dropped = side.run(&format!("DROP TABLE IF EXISTS {FILLER}")).await;
                    Ok(dropped.is_ok().then_some(()))
                },
            )
            .await
        })
    }
}
