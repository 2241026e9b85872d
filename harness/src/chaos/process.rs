//! Faults of processes, by signals: paused, killed, asked to end; each component and the workers.

use super::catalogue::Entry;
use super::fault::{Fault, Ground, Kind, Level, SHOWS_WITHIN, StoreKind};
use crate::stack::{Hurt, LOCK_SERVER, NodeState, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB, RunError, Step, await_node};

const fn kind(name: &'static str, what: &'static str, undo: &'static str) -> Kind {
    Kind {
        name,
        level: Level::Process,
        what,
        undo,
        on: &StoreKind::ALL,
    }
}

const CONTINUED: &str = "SIGCONT";
const STARTED_AGAIN: &str = "started again on the same address and store";

/// The entries of this level.
pub const ENTRIES: &[Entry] = &[
    Entry {
        kind: kind("process.worker_pause", "a worker is stopped (SIGSTOP)", CONTINUED),
        make: |ground| made(ground.worker()?, Hurt::Pause),
    },
    Entry {
        kind: kind("process.worker_kill", "a worker is killed (SIGKILL)", STARTED_AGAIN),
        make: |ground| made(ground.worker()?, Hurt::Kill),
    },
    Entry {
        kind: kind(
            "process.worker_terminate",
            "a worker is asked to end (SIGTERM)",
            STARTED_AGAIN,
        ),
        make: |ground| made(ground.worker()?, Hurt::Terminate),
    },
    Entry {
        kind: kind(
            "process.lock_server_pause",
            "the lock server is stopped (SIGSTOP)",
            CONTINUED,
        ),
        make: |_| made(LOCK_SERVER.to_owned(), Hurt::Pause),
    },
    Entry {
        kind: kind(
            "process.lock_server_kill",
            "the lock server is killed (SIGKILL)",
            STARTED_AGAIN,
        ),
        make: |_| made(LOCK_SERVER.to_owned(), Hurt::Kill),
    },
    Entry {
        kind: kind(
            "process.lock_server_terminate",
            "the lock server is asked to end (SIGTERM)",
            STARTED_AGAIN,
        ),
        make: |_| made(LOCK_SERVER.to_owned(), Hurt::Terminate),
    },
    Entry {
        kind: kind(
            "process.payments_pause",
            "the payment resource is stopped (SIGSTOP)",
            CONTINUED,
        ),
        make: |_| made(PAYMENT_RESOURCE.to_owned(), Hurt::Pause),
    },
    Entry {
        kind: kind(
            "process.payments_kill",
            "the payment resource is killed (SIGKILL)",
            STARTED_AGAIN,
        ),
        make: |_| made(PAYMENT_RESOURCE.to_owned(), Hurt::Kill),
    },
    Entry {
        kind: kind(
            "process.rail_proxy_pause",
            "the rail proxy is stopped (SIGSTOP)",
            CONTINUED,
        ),
        make: |_| made(RAIL_PROXY.to_owned(), Hurt::Pause),
    },
    Entry {
        kind: kind(
            "process.rail_proxy_kill",
            "the rail proxy is killed (SIGKILL)",
            STARTED_AGAIN,
        ),
        make: |_| made(RAIL_PROXY.to_owned(), Hurt::Kill),
    },
    Entry {
        kind: kind("process.rail_pause", "the rail itself is stopped (SIGSTOP)", CONTINUED),
        make: |_| made(RAIL_STUB.to_owned(), Hurt::Pause),
    },
    Entry {
        kind: kind(
            "process.rail_kill",
            "the rail itself is killed (SIGKILL)",
            STARTED_AGAIN,
        ),
        make: |_| made(RAIL_STUB.to_owned(), Hurt::Kill),
    },
];

fn made(node: String, hurt: Hurt) -> Result<Box<dyn Fault>, RunError> {
    Ok(Box::new(Signalled { node, hurt }))
}

struct Signalled {
    node: String,
    hurt: Hurt,
}

impl Fault for Signalled {
    fn target(&self) -> String {
        self.node.clone()
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { ground.stack.hurt(&self.node, self.hurt) })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let state = await_node(ground.stack, &self.node, "hurt", SHOWS_WITHIN, |state| {
                match self.hurt {
                    Hurt::Pause => state == NodeState::Stopped,
                    _ => state.ended(),
                }
            })
            .await?;
            Ok(format!("the kernel shows {} as {state:?}", self.node))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            match self.hurt {
                Hurt::Pause => ground.stack.hurt(&self.node, Hurt::Resume),
                _ => ground.stack.restart(&self.node).await,
            }
        })
    }
}
