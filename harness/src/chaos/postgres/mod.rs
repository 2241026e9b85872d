//! Faults of PostgreSQL, which holds lockdb and paydb of a run: down, in the way, unwilling, full, moved.
//!
//! Owns: the entries of this level; the connections of the harness's own that faults are made and seen with.
//! Does not own: how servers are started ([`crate::servers::postgres`]); whether dlock gets over it (the driver).
//! On failure: a server that the run has not started itself is hurt by nobody: an error that says what to start.

mod down;
mod full;
mod moved;
mod sessions;
mod settings;

use super::catalogue::Entry;
use super::fault::{Ground, Kind, Level, StoreKind};
use crate::servers::postgres::Postgres;
use crate::stack::RunError;
use pg_kit::{Access, Connector};
use std::collections::BTreeMap;
use tokio_postgres::{Client, SimpleQueryMessage};

/// The name that connections of the faults go by, so that no fault hits itself.
const OWN: &str = "dlock-chaos";

const fn kind(name: &'static str, what: &'static str, undo: &'static str) -> Kind {
    Kind {
        name,
        level: Level::Postgres,
        what,
        undo,
        on: &[StoreKind::Pg],
    }
}

const STARTED_AGAIN: &str = "started again on its data and port";

/// The entries of this level.
pub const ENTRIES: &[Entry] = &[
    Entry {
        kind: kind(
            "postgres.restart_fast",
            "the server is shut down fast (SIGINT): sessions end, a checkpoint is written",
            STARTED_AGAIN,
        ),
        make: |ground| Ok(Box::new(down::Down::by("INT", server(ground)?))),
    },
    Entry {
        kind: kind(
            "postgres.restart_immediate",
            "the server is shut down at once (SIGQUIT), without a checkpoint",
            "started again: it recovers from its log",
        ),
        make: |ground| Ok(Box::new(down::Down::by("QUIT", server(ground)?))),
    },
    Entry {
        kind: kind(
            "postgres.kill",
            "the server is killed with all its processes (SIGKILL)",
            "started again: it recovers from its log",
        ),
        make: |ground| Ok(Box::new(down::Down::by("KILL", server(ground)?))),
    },
    Entry {
        kind: kind(
            "postgres.pause",
            "every process of the server stands still; connections stay and nothing answers",
            "continued",
        ),
        make: |ground| Ok(Box::new(down::Paused::new(server(ground)?))),
    },
    Entry {
        kind: kind(
            "postgres.connections_terminated",
            "every connection of dlock is terminated, and each new one within 100 ms",
            "no more are terminated",
        ),
        make: |ground| Ok(Box::new(sessions::Terminated::new(server(ground)?))),
    },
    Entry {
        kind: kind(
            "postgres.too_many_connections",
            "idle connections of another program take every place of the server",
            "they are closed",
        ),
        make: |ground| Ok(Box::new(sessions::Crowded::new(server(ground)?))),
    },
    Entry {
        kind: kind(
            "postgres.lock_held",
            "another program's transaction holds the tables of the lock store",
            "rolled back",
        ),
        make: |ground| {
            let tables = &["lock_session", "lock_grant", "lock_event"];
            Ok(Box::new(sessions::LockHeld::new(
                server(ground)?,
                lock_schema(ground)?,
                tables,
            )))
        },
    },
    Entry {
        kind: kind(
            "postgres.ledger_locked",
            "another program's transaction holds payouts, accounts and the ledger",
            "rolled back",
        ),
        make: |ground| {
            let tables = &["payout", "account", "ledger_entry"];
            Ok(Box::new(sessions::LockHeld::new(
                server(ground)?,
                pay_schema(ground)?,
                tables,
            )))
        },
    },
    Entry {
        kind: kind(
            "postgres.read_only",
            "the server takes no writes (default_transaction_read_only), and every session begins anew",
            "it takes writes again, and every session begins anew",
        ),
        make: |ground| Ok(Box::new(settings::ReadOnly::new(server(ground)?))),
    },
    Entry {
        kind: kind(
            "postgres.commit_delayed",
            "every commit waits 100 ms before its log is flushed (commit_delay), as on a slow disk",
            "commits as before",
        ),
        make: |ground| Ok(Box::new(settings::CommitDelayed::new(server(ground)?))),
    },
    Entry {
        kind: kind(
            "postgres.disk_full",
            "the disk of data and log is full",
            "room is made, and the server started again where it has ended",
        ),
        make: |ground| full::DiskFull::on(server(ground)?),
    },
    Entry {
        kind: kind(
            "postgres.standby_promoted",
            "the primary is killed and its synchronous standby promoted",
            "the one that was killed follows the new primary with a new copy",
        ),
        make: |ground| moved::Promoted::of(server(ground)?),
    },
    Entry {
        kind: kind(
            "postgres.dump_restored",
            "a dump of lockdb that is some grants old is restored under the running lock server",
            "nothing to take back; a doubt is ended by an operator who raises the floor",
        ),
        make: |ground| {
            Ok(Box::new(moved::DumpRestored::new(
                server(ground)?,
                lock_schema(ground)?,
            )))
        },
    },
];

/// The server that this run has started itself.
fn server(ground: &Ground<'_>) -> Result<Postgres, RunError> {
    ground.backends.postgres.clone().ok_or_else(|| {
        RunError::Other(
            "this fault hurts a PostgreSQL that the run has started itself, never one that a URL names: say --store pg"
                .to_owned(),
        )
    })
}

fn schema_of(settings: Option<&BTreeMap<String, String>>, setting: &str) -> Result<String, RunError> {
    settings
        .and_then(|settings| settings.get(setting))
        .cloned()
        .ok_or_else(|| {
            RunError::Other(format!(
                "the stack has no {setting}: that database is not on PostgreSQL"
            ))
        })
}

/// The schema of the stack's lock store.
fn lock_schema(ground: &Ground<'_>) -> Result<String, RunError> {
    let lock = ground.stack.spec().stores.lock.as_ref();
    schema_of(lock.map(|at| &at.settings), "lock.store.schema")
}

/// The schema of the stack's paydb.
fn pay_schema(ground: &Ground<'_>) -> Result<String, RunError> {
    let payment = ground.stack.spec().stores.payment.as_ref();
    schema_of(payment.map(|at| &at.settings), "payment.store.schema")
}

/// A connection of the harness's own to the primary, as its superuser.
struct Side(Client);

impl Side {
    async fn open(server: &Postgres) -> Result<Self, RunError> {
        let failed = |error: &dyn std::fmt::Display| RunError::Other(format!("a side connection: {error}"));
        let access = Access::at(server.url_of_primary(OWN));
        let connector = Connector::new(&access).map_err(|error| failed(&error))?;
        // The task that moves the connection ends with the client.
        let (client, _moves) = connector.connect_alone().await.map_err(|error| failed(&error))?;
        Ok(Self(client))
    }

    /// Runs statements. Answers what the server said against them, with its SQLSTATE in parentheses.
    async fn run(&self, sql: &str) -> Result<(), RunError> {
        let done = self.0.batch_execute(sql).await;
        done.map_err(|error| RunError::Other(pg_kit::describe(&error)))
    }

    /// The first column of every row.
    async fn rows(&self, sql: &str) -> Result<Vec<String>, RunError> {
        let said = self.0.simple_query(sql).await;
        let said = said.map_err(|error| RunError::Other(pg_kit::describe(&error)))?;
        let rows = said.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok(rows.collect())
    }

    /// The first column of the first row as a number, 0 where there is none.
    async fn number(&self, sql: &str) -> Result<u64, RunError> {
        let rows = self.rows(sql).await?;
        Ok(rows.first().and_then(|row| row.parse().ok()).unwrap_or(0))
    }
}

/// The connections of everybody but the faults themselves.
fn of_dlock() -> String {
    format!("pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> '{OWN}'")
}
