//! All wires of a stack, by the names of their links.
//!
//! Owns: one wire for each link, however often a component on it starts again. Does not own: which links there are.
//! On failure: a wire that cannot be laid keeps its component from being started.

use super::link::{Protocol, Wire};
use super::mode::Mode;
use super::url;
use host_kit::Random;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

/// The node name of the lock store's servers.
pub const LOCKDB: &str = "lockdb";
/// The node name of paydb's servers.
pub const PAYDB: &str = "paydb";

/// The wires of a stack.
#[derive(Debug)]
pub struct Wires {
    seed: u64,
    wires: RefCell<BTreeMap<String, Rc<Wire>>>,
}

impl Wires {
    /// None yet. Each wire draws from a stream of its own that hangs on the seed and on its name.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            wires: RefCell::default(),
        }
    }

    /// The name of the link between two nodes.
    #[must_use]
    pub fn link(from: &str, to: &str) -> String {
        format!("{from}->{to}")
    }

    /// The wire of this name (`W1->lock-server`, `rail-proxy->rail-stub`, `lock-server->lockdb`; where a store has
    /// several servers, `lock-server->lockdb/1` and so on).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Rc<Wire>> {
        self.wires.borrow().get(name).cloned()
    }

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Rc<Wire>> {
        self.wires.borrow().values().cloned().collect()
    }

    /// Those that begin at this node.
    #[must_use]
    pub fn of(&self, from: &str) -> Vec<Rc<Wire>> {
        self.where_link(|begins, _| begins == from)
    }

    /// Those that lead to this node, to each of its servers where it has several.
    #[must_use]
    pub fn to(&self, to: &str) -> Vec<Rc<Wire>> {
        self.where_link(|_, ends| ends.split('/').next() == Some(to))
    }

    fn where_link(&self, fits: impl Fn(&str, &str) -> bool) -> Vec<Rc<Wire>> {
        let mut wires = self.all();
        wires.retain(|wire| wire.name().split_once("->").is_some_and(|(from, to)| fits(from, to)));
        wires
    }

    /// Ends every fault of every wire.
    pub fn mend(&self) {
        for wire in self.all() {
            wire.set(Mode::PASS);
        }
    }

    /// The wire of this name, laid to `target` (`host:port`) where there is none yet.
    ///
    /// # Errors
    /// When it cannot be laid.
    pub fn lay(&self, name: &str, target: &str, protocol: Protocol) -> io::Result<Rc<Wire>> {
        if let Some(wire) = self.get(name).filter(|wire| wire.target() == target) {
            return Ok(wire);
        }
        let wire = Rc::new(Wire::lay(
            name,
            target,
            protocol,
            Random::seeded(self.seed ^ hash(name)),
        )?);
        self.wires.borrow_mut().insert(name.to_owned(), Rc::clone(&wire));
        Ok(wire)
    }

    /// The URL of a component (`http://host:port`) with a wire between it and `from`.
    ///
    /// # Errors
    /// When the wire cannot be laid.
    pub fn http(&self, from: &str, to: &str, url: &str) -> io::Result<String> {
        let target = url.trim_start_matches("http://").trim_end_matches('/');
        let wire = self.lay(&Self::link(from, to), target, Protocol::Http)?;
        Ok(format!("http://{}", wire.address()))
    }

    /// A store's URL with a wire between `from` and each of its servers; as it is where it names no server.
    ///
    /// # Errors
    /// When a wire cannot be laid.
    pub fn store(&self, from: &str, to: &str, store: &str) -> io::Result<String> {
        let Some(protocol) = url::protocol(store) else {
            return Ok(store.to_owned());
        };
        let mut servers = Vec::new();
        url::rewired(store, |server| {
            servers.push(server.to_owned());
            Ok::<_, io::Error>(String::new())
        })?;
        let several = servers.len() > 1;
        let mut n = 0;
        url::rewired(store, |server| {
            n += 1;
            let name = Self::link(from, to);
            let name = if several { format!("{name}/{n}") } else { name };
            Ok(self.lay(&name, server, protocol)?.address().to_string())
        })
    }
}

/// FNV-1a: the same name gives the same stream in every build.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
