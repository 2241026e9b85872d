//! The server's settings: it takes no writes, or takes its time with them.

use super::super::fault::{Fault, Ground, SHOWS_WITHIN, unready};
use super::{Side, of_dlock};
use crate::servers::postgres::Postgres;
use crate::stack::{LOCK_SERVER, RunError, Step, eventually};
use std::time::Duration;

async fn set(server: &Postgres, sql: &[&str]) -> Result<Side, RunError> {
    let side = Side::open(server).await?;
    // One at a time: ALTER SYSTEM stands in no transaction, and several statements together are one.
    for sql in sql {
        side.run(sql).await?;
    }
    side.run("SELECT pg_reload_conf()").await?;
    Ok(side)
}

/// Takes no writes.
pub(super) struct ReadOnly {
    server: Postgres,
}

impl ReadOnly {
    pub(super) const fn new(server: Postgres) -> Self {
        Self { server }
    }
}

impl Fault for ReadOnly {
    fn target(&self) -> String {
        self.server.primary().container.name.clone()
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let side = set(&self.server, &["ALTER SYSTEM SET default_transaction_read_only = on"]).await?;
            side.run(&format!("SELECT pg_terminate_backend(pid, 5000) FROM {}", of_dlock()))
                .await
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let what = "a write refused (25006)";
            let refused = eventually(ground.stack.host(), what, SHOWS_WITHIN, async || {
                let side = Side::open(&self.server).await?;
                let refused = side.run("CREATE TABLE dlock_chaos_probe ()").await.err();
                if refused.is_none() {
                    side.run("DROP TABLE dlock_chaos_probe").await?;
                }
                Ok(refused
                    .map(|error| error.to_string())
                    .filter(|said| said.contains("25006")))
            })
            .await?;
            let said = unready(ground, LOCK_SERVER).await?;
            Ok(format!("the server refuses a write: {refused}; {said}"))
        })
    }

    fn undo<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let side = set(&self.server, &["ALTER SYSTEM RESET default_transaction_read_only"]).await?;
            side.run(&format!("SELECT pg_terminate_backend(pid, 5000) FROM {}", of_dlock()))
                .await
        })
    }
}

/// What `commit_delay` is set to: the most that it can be.
const DELAY: Duration = Duration::from_millis(100);

/// Takes its time with each commit.
pub(super) struct CommitDelayed {
    server: Postgres,
}

impl CommitDelayed {
    pub(super) const fn new(server: Postgres) -> Self {
        Self { server }
    }
}

impl Fault for CommitDelayed {
    fn target(&self) -> String {
        self.server.primary().container.name.clone()
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let delay = format!("ALTER SYSTEM SET commit_delay = {}", DELAY.as_micros());
            set(&self.server, &[&delay, "ALTER SYSTEM SET commit_siblings = 0"])
                .await
                .map(drop)
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let clock = &ground.stack.host().clock;
            let side = Side::open(&self.server).await?;
            side.run("CREATE TABLE IF NOT EXISTS dlock_chaos_commit (n int)")
                .await?;
            let took = eventually(ground.stack.host(), "a slow commit", SHOWS_WITHIN, async || {
                let set = side.rows("SHOW commit_delay").await?;
                let from = clock.mono();
                side.run("INSERT INTO dlock_chaos_commit VALUES (1)").await?;
                let took = clock.mono().saturating_sub(from);
                let delayed = set.first().is_some_and(|set| *set == DELAY.as_micros().to_string());
                Ok((delayed && took >= DELAY).then_some(took))
            })
            .await?;
            side.run("DROP TABLE dlock_chaos_commit").await?;
            Ok(format!("a commit of one row took {} ms", took.as_millis()))
        })
    }

    fn undo<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let reset = ["ALTER SYSTEM RESET commit_delay", "ALTER SYSTEM RESET commit_siblings"];
            set(&self.server, &reset).await.map(drop)
        })
    }
}
