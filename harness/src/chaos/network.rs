//! Faults of the network between containers: a node taken out of it and put back, as when its cable is pulled; or one
//! direction between two of them lost. Only a stack of containers has one.
//!
//! Owns: who is struck, and seeing it from inside the containers.
//! Does not own: how a direction is lost (`stack/one_way.rs`).
//! On failure: [`RunError`]; a direction that still works, or one that was not struck and is lost, fails.

use super::catalogue::Entry;
use super::fault::{Fault, Ground, Kind, Level, SHOWS_WITHIN, StoreKind};
use crate::stack::{LOCK_SERVER, Network, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB, RunError, Step, eventually};

const fn kind(name: &'static str, what: &'static str) -> Kind {
    Kind {
        name,
        level: Level::Network,
        what,
        undo: "connected again under the same name",
        on: &StoreKind::ALL,
    }
}

const fn one_way(name: &'static str, what: &'static str) -> Kind {
    Kind {
        undo: "the neighbour's own address is asked for again",
        ..kind(name, what)
    }
}

/// The entries of this level.
pub const ENTRIES: &[Entry] = &[
    Entry {
        kind: kind("network.worker_disconnected", "a worker is taken out of the network"),
        make: |ground| {
            Ok(Box::new(Disconnected {
                node: ground.worker()?,
                from: LOCK_SERVER,
            }))
        },
    },
    Entry {
        kind: kind(
            "network.lock_server_disconnected",
            "the lock server is taken out of the network",
        ),
        make: |_| made(LOCK_SERVER, RAIL_PROXY),
    },
    Entry {
        kind: kind(
            "network.payments_disconnected",
            "the payment resource is taken out of the network",
        ),
        make: |_| made(PAYMENT_RESOURCE, RAIL_PROXY),
    },
    Entry {
        kind: kind(
            "network.rail_proxy_disconnected",
            "the rail proxy is taken out of the network",
        ),
        make: |_| made(RAIL_PROXY, PAYMENT_RESOURCE),
    },
    Entry {
        kind: kind(
            "network.rail_disconnected",
            "the rail itself is taken out of the network",
        ),
        make: |_| made(RAIL_STUB, RAIL_PROXY),
    },
    Entry {
        kind: one_way(
            "network.worker_requests_lost",
            "what a worker sends the lock server is lost, one way",
        ),
        make: |ground| directed(&ground.worker()?, LOCK_SERVER),
    },
    Entry {
        kind: one_way(
            "network.grants_lost",
            "what the lock server sends a worker is lost, one way: it grants, and the worker does not hear of it",
        ),
        make: |ground| directed(LOCK_SERVER, &ground.worker()?),
    },
    Entry {
        kind: one_way(
            "network.payments_answers_lost",
            "what the payment resource sends a worker is lost, one way",
        ),
        make: |ground| directed(PAYMENT_RESOURCE, &ground.worker()?),
    },
    Entry {
        kind: one_way(
            "network.rail_proxy_answers_lost",
            "what the rail proxy sends a worker is lost, one way",
        ),
        make: |ground| directed(RAIL_PROXY, &ground.worker()?),
    },
    Entry {
        kind: one_way(
            "network.submissions_lost",
            "what the rail proxy sends the rail is lost, one way",
        ),
        make: |_| directed(RAIL_PROXY, RAIL_STUB),
    },
    Entry {
        kind: one_way(
            "network.rail_answers_lost",
            "what the rail sends the rail proxy is lost, one way: it executes, and nobody hears of it",
        ),
        make: |_| directed(RAIL_STUB, RAIL_PROXY),
    },
];

fn directed(from: &str, to: &str) -> Result<Box<dyn Fault>, RunError> {
    Ok(Box::new(OneWay {
        from: from.to_owned(),
        to: to.to_owned(),
    }))
}

struct OneWay {
    from: String,
    to: String,
}

impl OneWay {
    async fn arriving(&self, ground: &Ground<'_>, wanted: bool) -> Result<(), RunError> {
        let network = network(ground)?;
        let what = format!("what {} sends {} arriving: {wanted}", self.from, self.to);
        eventually(ground.stack.host(), &what, SHOWS_WITHIN, async || {
            Ok((network.arrives(&self.from, &self.to).await? == wanted).then_some(()))
        })
        .await
    }
}

impl Fault for OneWay {
    fn target(&self) -> String {
        format!("{}->{}", self.from, self.to)
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { network(ground)?.cut_one_way(&self.from, &self.to).await })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            self.arriving(ground, false).await?;
            let (from, to) = (&self.from, &self.to);
            if !network(ground)?.arrives(to, from).await? {
                return Err(RunError::Other(format!("what {to} sends {from} is lost as well")));
            }
            Ok(format!(
                "what {from} sends {to} is lost, what {to} sends {from} arrives"
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            network(ground)?.mend_one_way(&self.from, &self.to).await?;
            self.arriving(ground, true).await
        })
    }
}

fn made(node: &str, from: &'static str) -> Result<Box<dyn Fault>, RunError> {
    Ok(Box::new(Disconnected {
        node: node.to_owned(),
        from,
    }))
}

struct Disconnected {
    node: String,
    /// A component that is asked for from there.
    from: &'static str,
}

fn network<'a>(ground: &'a Ground<'_>) -> Result<&'a dyn Network, RunError> {
    let missing = || RunError::Other("only a stack of containers has a network: --stack containers".to_owned());
    ground.stack.network().ok_or_else(missing)
}

impl Disconnected {
    async fn reaching(&self, ground: &Ground<'_>, wanted: bool) -> Result<(), RunError> {
        let network = network(ground)?;
        let what = format!("{} reaching {}: {wanted}", self.node, self.from);
        eventually(ground.stack.host(), &what, SHOWS_WITHIN, async || {
            Ok((network.reaches(&self.node, self.from).await? == wanted).then_some(()))
        })
        .await
    }
}

impl Fault for Disconnected {
    fn target(&self) -> String {
        self.node.clone()
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { network(ground)?.disconnect(&self.node).await })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            self.reaching(ground, false).await?;
            Ok(format!("{} gets no answer from {}", self.node, self.from))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            network(ground)?.connect(&self.node).await?;
            self.reaching(ground, true).await
        })
    }
}
