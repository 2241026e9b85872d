//! The data are another server's, or older than they were: a promotion and a restore.

use super::super::fault::{Fault, Ground, SHOWS_WITHIN};
use super::super::lineage::{Before, clear, turns, verdict};
use crate::evidence::keep_lost;
use crate::model::LockEvent;
use crate::servers::postgres::Postgres;
use crate::stack::{RunError, Step, eventually};
use std::cell::RefCell;

/// The primary is lost and its standby takes over.
pub(super) struct Promoted {
    server: Postgres,
    /// The name of the one that was lost.
    lost: String,
    before: RefCell<Option<Before>>,
}

impl Promoted {
    /// # Errors
    /// When there is no standby.
    pub(super) fn of(server: Postgres) -> Result<Box<dyn Fault>, RunError> {
        if server.standby().is_none() {
            return Err(RunError::Other(
                "there is no standby to be promoted: start the servers with one (ServerOptions::for_faults)".to_owned(),
            ));
        }
        Ok(Box::new(Self {
            lost: server.primary().container.name.clone(),
            server,
            before: RefCell::default(),
        }))
    }
}

impl Fault for Promoted {
    fn target(&self) -> String {
        self.lost.clone()
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            *self.before.borrow_mut() = Some(Before::read(ground).await?);
            self.server.primary().container.kill().await?;
            self.server.promote().await
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let primary = self.server.primary();
            let what = "the standby takes writes";
            let timeline = eventually(ground.stack.host(), what, SHOWS_WITHIN, async || {
                let recovers = primary.sql("SELECT pg_is_in_recovery()").await?;
                let timeline = primary.sql("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)");
                Ok(match recovers.trim() {
                    "f" => Some(timeline.await?.trim().to_owned()),
                    _ => None,
                })
            })
            .await?;
            let seen = verdict(ground, &self.before).await?;
            let name = &primary.container.name;
            Ok(format!("{name} takes the writes on timeline {timeline}; {seen}"))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            clear(ground).await?;
            self.server.follow_again(ground.stack.host()).await
        })
    }
}

/// Grants that are lost by a restore, besides those that dlock's workers lose by it.
const LOST_GRANTS: usize = 5;
/// How often the restore is tried: it and dlock may wait for each other, and the server then ends one of them.
const ATTEMPTS: usize = 10;
const DUMP: &str = "/tmp/lockdb.sql";

/// lockdb is as it was some grants ago.
pub(super) struct DumpRestored {
    server: Postgres,
    schema: String,
    before: RefCell<Option<Before>>,
    lost: RefCell<Vec<LockEvent>>,
}

impl DumpRestored {
    pub(super) const fn new(server: Postgres, schema: String) -> Self {
        Self {
            server,
            schema,
            before: RefCell::new(None),
            lost: RefCell::new(Vec::new()),
        }
    }

    /// Drops the schema and restores the dump in one transaction, as an operator's script does. Answers the facts that
    /// the dump did not have: read in the same transaction, so that none is missing.
    async fn restore(&self) -> Result<Vec<LockEvent>, RunError> {
        let schema = &self.schema;
        let lock = format!(
            "LOCK TABLE \"{schema}\".lock_clock, \"{schema}\".lock_session, \"{schema}\".lock_grant,
             \"{schema}\".lock_event_turnstile, \"{schema}\".lock_event IN ACCESS EXCLUSIVE MODE"
        );
        let keep = format!("CREATE TEMPORARY TABLE kept AS SELECT * FROM \"{schema}\".lock_event");
        let drop = format!("DROP SCHEMA \"{schema}\" CASCADE");
        let lost = format!(
            "SELECT row_to_json(k) FROM pg_temp.kept k
             WHERE seq > (SELECT coalesce(max(seq), 0) FROM \"{schema}\".lock_event) ORDER BY seq"
        );
        let script = ["-1", "-c", &lock, "-c", &keep, "-c", &drop, "-f", DUMP, "-c", &lost];
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            match self.server.primary().psql(&script).await {
                Ok(printed) => {
                    let facts = printed.lines().filter(|line| line.starts_with('{'));
                    return facts
                        .map(serde_json::from_str)
                        .collect::<Result<_, _>>()
                        .map_err(|error| RunError::Other(format!("a lost fact: {error}")));
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(RunError::Other(format!("restoring the dump: {last}")))
    }
}

impl Fault for DumpRestored {
    fn target(&self) -> String {
        self.schema.clone()
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let dump = ["pg_dump", "-h", "127.0.0.1", "-n", &self.schema, "-f", DUMP, "postgres"];
            self.server.primary().container.run("postgres", &dump).await?;
            turns(ground, LOST_GRANTS).await?;
            *self.before.borrow_mut() = Some(Before::read(ground).await?);
            let lost = self.restore().await?;
            keep_lost(ground.stack.dir(), &lost)?;
            *self.lost.borrow_mut() = lost;
            Ok(())
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let (facts, grants) = {
                let lost = self.lost.borrow();
                let grants = lost.iter().filter(|fact| fact.kind == "GRANTED").count();
                (lost.len(), grants)
            };
            let seen = verdict(ground, &self.before).await?;
            Ok(format!("{facts} facts with {grants} grants are forgotten; {seen}"))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { clear(ground).await })
    }
}
