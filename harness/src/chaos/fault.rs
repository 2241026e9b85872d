//! What a fault is: its kind, its life, and the ground it acts on.

use crate::evidence::Apis;
use crate::servers::Backends;
use crate::stack::{LOCK_SERVER, Links, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB, RunError, Stack, Step, eventually};
use actor_kit::TraceContext;
use host_kit::Random;
use http_client::{Caller, ClientOptions};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a fault's effect, and the health after it, may take to show. Generous: the machine may be busy, and a fault
/// that brings a payout of its own waits until the workers come to it.
pub const SHOWS_WITHIN: Duration = Duration::from_secs(180);
/// How long one probe of a component's readiness may take.
const PROBE_WITHIN: Duration = Duration::from_secs(2);

/// Where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A process of dlock, by signals.
    Process,
    /// An actor inside a process, by the debug control.
    Actor,
    /// A connection between two components, by the fault proxy.
    Link,
    /// The network between containers.
    Network,
    /// The rail, by its own fault plan.
    Rail,
    /// `PostgreSQL`, lockdb or paydb.
    Postgres,
    /// etcd.
    Etcd,
    /// An operator's hand.
    Operator,
}

/// A kind of store, as the tables name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// Embedded.
    Sqlite,
    /// `PostgreSQL`, for lockdb and paydb.
    Pg,
    /// etcd for lockdb; paydb embedded.
    Etcd,
}

impl StoreKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::Pg, Self::Etcd];

    /// As `--store` names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Pg => "pg",
            Self::Etcd => "etcd",
        }
    }
}

/// A kind of fault: an entry of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name, `level.what` (`process.pause`, `link.cut`).
    pub name: &'static str,
    /// Where it strikes.
    pub level: Level,
    /// What happens, in one sentence.
    pub what: &'static str,
    /// How it is undone, in one sentence.
    pub undo: &'static str,
    /// The stores it can be injected with.
    pub on: &'static [StoreKind],
}

/// What faults act on: a running stack, its servers, and a choice of targets by the run's seed.
pub struct Ground<'a> {
    /// The stack.
    pub stack: &'a dyn Stack,
    /// The harness's own clients of it.
    pub apis: &'a Apis,
    /// The servers of its stores, where the run has started them itself.
    pub backends: &'a Backends,
    /// What store it is on.
    pub store: StoreKind,
    /// The choices of the run.
    pub random: &'a Random,
}

impl std::fmt::Debug for Ground<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Ground<'_> {
    /// One of these, by the run's seed.
    #[must_use]
    pub fn pick<'t, T: ?Sized>(&self, from: &'t [&'t T]) -> Option<&'t T> {
        let n = u64::try_from(from.len()).ok().filter(|n| *n > 0)?;
        from.get(usize::try_from(self.random.below(n)).ok()?).copied()
    }

    /// One of the workers that have not ended, by the run's seed.
    ///
    /// # Errors
    /// When every worker has ended.
    pub fn worker(&self) -> Result<String, RunError> {
        let mut alive = Vec::new();
        for worker in self.stack.workers() {
            if !self.stack.state(&worker)?.ended() {
                alive.push(worker);
            }
        }
        let names: Vec<&str> = alive.iter().map(String::as_str).collect();
        self.pick(&names)
            .map(str::to_owned)
            .ok_or_else(|| RunError::Other("every worker has ended".to_owned()))
    }

    /// Awaits that every component answers that it is ready.
    ///
    /// # Errors
    /// [`RunError::NeverCame`] when one does not, with its name.
    pub async fn healthy(&self) -> Result<(), RunError> {
        let Links {
            lock_server,
            payments,
            rail_proxy,
            rail_stub,
        } = self.stack.links();
        let host = self.stack.host();
        for (node, url) in [
            (LOCK_SERVER, lock_server),
            (PAYMENT_RESOURCE, payments),
            (RAIL_PROXY, rail_proxy),
            (RAIL_STUB, rail_stub),
        ] {
            let caller = Caller::new(
                http_client::client(&ClientOptions::default()),
                url.as_str(),
                PROBE_WITHIN,
            );
            eventually(host, &format!("{node} ready"), SHOWS_WITHIN, async || {
                let ready = caller.probe("/readyz", &TraceContext::root(&host.random)).await;
                Ok(ready.is_ok().then_some(()))
            })
            .await?;
        }
        Ok(())
    }
}

/// Awaits that a component answers that it is not ready, or does not answer. Says so in a sentence.
///
/// # Errors
/// [`RunError::NeverCame`] when it stays ready.
pub async fn unready(ground: &Ground<'_>, node: &str) -> Result<String, RunError> {
    let links = ground.stack.links();
    let host = ground.stack.host();
    let url = match node {
        LOCK_SERVER => links.lock_server,
        PAYMENT_RESOURCE => links.payments,
        RAIL_PROXY => links.rail_proxy,
        _ => links.rail_stub,
    };
    let caller = Caller::new(http_client::client(&ClientOptions::default()), url, PROBE_WITHIN);
    let said = eventually(host, &format!("{node} not ready"), SHOWS_WITHIN, async || {
        let ready = caller.probe("/readyz", &TraceContext::root(&host.random)).await;
        Ok(ready.err().map(|error| error.to_string()))
    })
    .await?;
    Ok(format!("{node} is not ready: {said}"))
}

/// One fault in its life. The driver calls each of these once and in this order.
pub trait Fault {
    /// What it struck, once injected (a node, a link, an actor's path).
    fn target(&self) -> String;
    /// Injects it.
    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()>;
    /// Awaits its effect, and says in one sentence what was seen. Never returns before the effect was there.
    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String>;
    /// Takes it back. What ends by itself or cannot be taken back (a kill) is mended here (a new start).
    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()>;
}

/// What became of one fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecord {
    /// The kind's name.
    pub kind: String,
    /// What it struck.
    pub target: String,
    /// Since the run's start.
    pub injected_ms: u64,
    /// Its effect as it was seen.
    pub observed: String,
    /// When its undoing began, since the run's start.
    pub undone_ms: u64,
    /// From the undoing to the whole stack ready again.
    pub recovered_ms: u64,
}
