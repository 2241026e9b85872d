//! The sessions of the server: ended, crowded out, kept waiting.

use super::super::fault::{Fault, Ground, SHOWS_WITHIN};
use super::{OWN, Side, of_dlock};
use crate::servers::postgres::Postgres;
use crate::stack::{RunError, Step, eventually};
use std::cell::RefCell;

/// Ends every connection of dlock, again and again.
pub(super) struct Terminated {
    server: Postgres,
    /// The connections there were.
    before: RefCell<Vec<String>>,
}

impl Terminated {
    pub(super) fn new(server: Postgres) -> Self {
        Self {
            server,
            before: RefCell::default(),
        }
    }
}

impl Fault for Terminated {
    fn target(&self) -> String {
        self.server.primary().container.name.clone()
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let side = Side::open(&self.server).await?;
            let before = side.rows(&format!("SELECT pid FROM {}", of_dlock())).await?;
            *self.before.borrow_mut() = before;
            let again_and_again = format!(
                "DO $$ BEGIN LOOP
                     PERFORM pg_terminate_backend(pid) FROM {};
                     PERFORM pg_stat_clear_snapshot();
                     PERFORM pg_sleep(0.1);
                 END LOOP; END $$",
                of_dlock()
            );
            // It goes on in the server until its own connection is terminated.
            tokio::spawn(async move {
                if let Err(error) = side.0.batch_execute(&again_and_again).await {
                    tracing::debug!(event = "terminating_ended", %error);
                }
            });
            Ok(())
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let before = self.before.borrow().clone();
            let side = Side::open(&self.server).await?;
            let still = format!("SELECT pid FROM {}", of_dlock());
            let what = "every connection terminated";
            eventually(ground.stack.host(), what, SHOWS_WITHIN, async || {
                let now = side.rows(&still).await?;
                Ok((!before.iter().any(|pid| now.contains(pid))).then_some(()))
            })
            .await?;
            Ok(format!(
                "the server has ended all {} connections of dlock (57P01) and goes on so with new ones",
                before.len()
            ))
        })
    }

    fn undo<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let side = Side::open(&self.server).await?;
            let own = format!(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
                 WHERE application_name = '{OWN}' AND pid <> pg_backend_pid()"
            );
            side.run(&own).await
        })
    }
}

/// Takes every place of the server.
pub(super) struct Crowded {
    server: Postgres,
    idle: RefCell<Vec<Side>>,
    refused: RefCell<String>,
}

/// How often dlock's own connections are ended so that their places can be taken. Whoever connects first has the place.
const ROUNDS: usize = 5;

impl Crowded {
    pub(super) fn new(server: Postgres) -> Self {
        Self {
            server,
            idle: RefCell::default(),
            refused: RefCell::default(),
        }
    }

    /// Connects until the server refuses.
    async fn fill(&self) -> Result<(), RunError> {
        loop {
            match Side::open(&self.server).await {
                Ok(side) => self.idle.borrow_mut().push(side),
                Err(error) if error.to_string().contains("53300") => {
                    *self.refused.borrow_mut() = error.to_string();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Fault for Crowded {
    fn target(&self) -> String {
        self.server.primary().container.name.clone()
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let side = Side::open(&self.server).await?;
            for _ in 0..ROUNDS {
                self.fill().await?;
                let ended = side
                    .number(&format!(
                        "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 1000)) FROM {}",
                        of_dlock()
                    ))
                    .await?;
                if ended == 0 {
                    break;
                }
            }
            self.fill().await?;
            self.idle.borrow_mut().push(side);
            Ok(())
        })
    }

    fn observe<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let side = self.idle.borrow_mut().pop();
            let side = side.ok_or_else(|| RunError::Other("no connection was had".to_owned()))?;
            let left = side.number(&format!("SELECT count(*) FROM {}", of_dlock())).await?;
            self.idle.borrow_mut().push(side);
            Ok(format!(
                "{} idle connections, {left} of dlock's left, and the next one is refused: {}",
                self.idle.borrow().len(),
                self.refused.borrow()
            ))
        })
    }

    fn undo<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            self.idle.borrow_mut().clear();
            Ok(())
        })
    }
}

/// Keeps tables locked, so that everybody else waits.
pub(super) struct LockHeld {
    server: Postgres,
    schema: String,
    tables: &'static [&'static str],
    holder: RefCell<Option<Side>>,
}

/// How often the locks are asked for: dlock and the fault may wait for each other, and the server then ends one of them.
const ATTEMPTS: usize = 10;

impl LockHeld {
    pub(super) const fn new(server: Postgres, schema: String, tables: &'static [&'static str]) -> Self {
        Self {
            server,
            schema,
            tables,
            holder: RefCell::new(None),
        }
    }

    fn all(&self) -> String {
        let tables = self.tables.iter().map(|table| format!("\"{}\".{table}", self.schema));
        tables.collect::<Vec<_>>().join(", ")
    }
}

impl Fault for LockHeld {
    fn target(&self) -> String {
        format!("{} in {}", self.tables.join(", "), self.schema)
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let side = Side::open(&self.server).await?;
            let lock = format!("BEGIN; LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", self.all());
            let mut last = String::new();
            for _ in 0..ATTEMPTS {
                match side.run(&lock).await {
                    Ok(()) => {
                        *self.holder.borrow_mut() = Some(side);
                        return Ok(());
                    }
                    Err(error) => last = error.to_string(),
                }
                side.run("ROLLBACK").await?;
            }
            Err(RunError::Other(format!("locking {}: {last}", self.all())))
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let side = Side::open(&self.server).await?;
            let waiting = format!(
                "SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                 JOIN pg_namespace n ON n.oid = c.relnamespace WHERE NOT l.granted AND n.nspname = '{}'",
                self.schema
            );
            let what = "somebody waits for the locked tables";
            let waiting = eventually(ground.stack.host(), what, SHOWS_WITHIN, async || {
                Ok(Some(side.number(&waiting).await?).filter(|waiting| *waiting > 0))
            })
            .await?;
            Ok(format!(
                "ACCESS EXCLUSIVE on {}: {waiting} session(s) of dlock wait for it",
                self.tables.join(", ")
            ))
        })
    }

    fn undo<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let holder = self.holder.borrow_mut().take();
            match holder {
                Some(side) => side.run("ROLLBACK").await,
                None => Ok(()),
            }
        })
    }
}
