//! The server is gone or stands still.

use super::super::fault::{Fault, Ground, SHOWS_WITHIN, unready};
use crate::servers::postgres::Postgres;
use crate::stack::{LOCK_SERVER, RunError, Step, eventually};

/// Ended by a signal, until it is started again.
pub(super) struct Down {
    signal: &'static str,
    server: Postgres,
}

impl Down {
    pub(super) const fn by(signal: &'static str, server: Postgres) -> Self {
        Self { signal, server }
    }
}

/// Awaits that the primary's container has ended. Answers its state.
pub(super) async fn ended(ground: &Ground<'_>, server: &Postgres) -> Result<String, RunError> {
    let container = &server.primary().container;
    let what = format!("{} ended", container.name);
    eventually(ground.stack.host(), &what, SHOWS_WITHIN, async || {
        Ok(Some(container.state().await?).filter(|state| state.starts_with("exited")))
    })
    .await
}

impl Fault for Down {
    fn target(&self) -> String {
        self.server.primary().container.name.clone()
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { self.server.primary().container.signal(self.signal).await })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let state = ended(ground, &self.server).await?;
            let said = unready(ground, LOCK_SERVER).await?;
            Ok(format!("SIG{}: the server has {state}; {said}", self.signal))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            // Also where it took its time to end, and was not seen to.
            ended(ground, &self.server).await?;
            let server = self.server.primary();
            server.container.restart().await?;
            server.ready(ground.stack.host()).await
        })
    }
}

/// Stopped where it stands.
pub(super) struct Paused {
    server: Postgres,
}

impl Paused {
    pub(super) const fn new(server: Postgres) -> Self {
        Self { server }
    }
}

impl Fault for Paused {
    fn target(&self) -> String {
        self.server.primary().container.name.clone()
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { self.server.primary().container.pause().await })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let container = &self.server.primary().container;
            eventually(ground.stack.host(), "the server paused", SHOWS_WITHIN, async || {
                Ok((container.state().await? == "paused").then_some(()))
            })
            .await?;
            let said = unready(ground, LOCK_SERVER).await?;
            Ok(format!("the engine shows {} as paused; {said}", container.name))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let server = self.server.primary();
            server.container.resume().await?;
            server.ready(ground.stack.host()).await
        })
    }
}
