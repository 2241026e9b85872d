//! Faults of the network between containers: a node taken out of it and put back, as when its cable is pulled. Only a
//! stack of containers has one.

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
];

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
