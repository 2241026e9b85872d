//! A wire: one link, listening in its target's place.
//!
//! Owns: the address, accepting, the mode, the numbers, whatever runs for it. Does not own: a connection's life.
//! On failure: where nobody listens at the target, nobody listens here, until somebody does again.

use super::connection::serve;
use super::counters::{Counters, Counts};
use super::deliver::{Delivered, deliver};
use super::mode::{Flow, Line, Messages, Mode};
use host_kit::{Random, Reserved};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How many connections a wire serves at once; further ones are reset.
pub const CONNECTIONS_MAX: u64 = 512;
/// How many copies and held requests of a wire wait or are on their way at once; further ones are not delivered.
pub const SECOND_MAX: usize = 64;
/// How many connections wait to be accepted.
const BACKLOG: u32 = 256;
/// How often a target that refused is tried.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// What is spoken over a wire. The messages of HTTP alone are understood; it also says how a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// PostgreSQL's.
    Postgres,
    /// etcd's, HTTP/2.
    Etcd,
}

/// What everything that runs for a wire shares. One thread, so no lock.
pub(super) struct Shared {
    pub target: String,
    pub protocol: Protocol,
    pub random: Random,
    pub counters: Counters,
    pub mode: watch::Sender<Mode>,
    /// The target refused the last connection.
    pub dead: watch::Sender<bool>,
    /// Copies and held requests.
    second: Cell<usize>,
    tasks: RefCell<JoinSet<()>>,
}

impl Shared {
    fn run(&self, work: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(work);
    }

    /// Sends a request once more.
    pub fn copy(self: &Rc<Self>, request: Vec<u8>, messages: Messages) {
        let Messages::Duplicate { within } = messages else {
            return;
        };
        let after = self.random.up_to(within);
        self.send(request, after, |counts, how| {
            counts.duplicated += 1;
            counts.duplicates_turned_away += u64::from(how == Delivered::TurnedAway);
        });
    }

    /// Delivers a held request.
    pub fn late(self: &Rc<Self>, request: Vec<u8>, after: Duration) {
        self.send(request, after, |counts, how| {
            counts.delivered_late += 1;
            counts.late_turned_away += u64::from(how == Delivered::TurnedAway);
        });
    }

    fn send(self: &Rc<Self>, request: Vec<u8>, after: Duration, answered: fn(&mut Counts, Delivered)) {
        if self.second.get() >= SECOND_MAX {
            self.counters.count(|counts| counts.undelivered += 1);
            return;
        }
        self.second.set(self.second.get() + 1);
        let shared = Rc::clone(self);
        self.run(async move {
            tokio::time::sleep(after).await;
            let delivered = deliver(&shared.target, &request).await;
            shared.counters.count(|counts| match delivered {
                Some(how) => answered(counts, how),
                None => counts.undelivered += 1,
            });
            shared.second.set(shared.second.get() - 1);
        });
    }
}

/// One link. Dropping it ends its connections and takes back the address.
pub struct Wire {
    name: String,
    address: SocketAddr,
    shared: Rc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
    /// Holds the address without listening, so that it stays ours, and refuses, while nobody listens.
    _reserved: Reserved,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("target", &self.shared.target)
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

impl Wire {
    /// Lays a wire to `target` (`host:port`) on a free port of 127.0.0.1. Call it inside a `LocalSet`.
    ///
    /// # Errors
    /// When no address can be had.
    pub fn lay(name: &str, target: &str, protocol: Protocol, random: Random) -> io::Result<Self> {
        let reserved = Reserved::loopback()?;
        let address = reserved.address();
        let listener = socket(address)?.listen(BACKLOG)?;
        let shared = Rc::new(Shared {
            target: target.to_owned(),
            protocol,
            random,
            counters: Counters::default(),
            mode: watch::Sender::new(Mode::PASS),
            dead: watch::Sender::new(false),
            second: Cell::new(0),
            tasks: RefCell::default(),
        });
        let accepting = tokio::task::spawn_local(accept(Rc::clone(&shared), listener, address));
        Ok(Self {
            name: name.to_owned(),
            address,
            shared,
            accepting,
            _reserved: reserved,
        })
    }

    /// Its name, `from->to`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it leads, `host:port`.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.shared.target
    }

    /// What is spoken over it.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.shared.protocol
    }

    /// What it does.
    #[must_use]
    pub fn mode(&self) -> Mode {
        *self.shared.mode.borrow()
    }

    /// Makes it do something else, with the connections that live too. Returns at once; that it has happened is seen in
    /// the numbers.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
        // What runs holds what is shared: taken out, it ends here.
        drop(self.shared.tasks.take());
    }
}

/// A socket on an address that several may have at once: the one that holds it and the one that listens.
fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn accept(shared: Rc<Shared>, listener: TcpListener, address: SocketAddr) {
    let (mut mode, mut dead) = (shared.mode.subscribe(), shared.dead.subscribe());
    let mut listener = Some(listener);
    loop {
        let (now, is_dead) = (*mode.borrow_and_update(), *dead.borrow_and_update());
        let refuses = match now.line {
            Line::Refused => true,
            Line::Up => is_dead && now.requests != Flow::Swallow,
            _ => false,
        };
        if refuses {
            listener = None;
        } else if listener.is_none() {
            listener = socket(address)
                .and_then(|socket| socket.listen(BACKLOG))
                .inspect_err(|error| tracing::warn!(event = "wire_not_listening", %address, %error))
                .ok();
        }
        let next = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None if refuses => std::future::pending().await,
                // The address was not to be had a moment ago.
                None => {
                    tokio::time::sleep(TRY_EVERY).await;
                    Err(io::ErrorKind::AddrInUse.into())
                }
            }
        };
        tokio::select! {
            biased;
            changed = mode.changed() => if changed.is_err() {
                return;
            },
            changed = dead.changed() => if changed.is_err() {
                return;
            },
            () = lives(&shared.target), if is_dead => {
                shared.dead.send_replace(false);
            }
            accepted = next => match accepted {
                Ok((caller, _)) => accepted_one(&shared, caller),
                // Out of file descriptors, most likely: let some connections end.
                Err(_) => tokio::time::sleep(TRY_EVERY).await,
            },
        }
    }
}

fn accepted_one(shared: &Rc<Shared>, caller: TcpStream) {
    shared.counters.count(|counts| counts.connections += 1);
    if shared.counters.read().live >= CONNECTIONS_MAX {
        shared.counters.count(|counts| counts.resets += 1);
        drop(caller.set_zero_linger());
        return;
    }
    let served = Live::begin(Rc::clone(shared));
    let shared = Rc::clone(shared);
    shared.clone().run(async move {
        serve(shared, caller).await;
        drop(served);
    });
}

/// Counts a connection as long as it lives.
struct Live(Rc<Shared>);

impl Live {
    fn begin(shared: Rc<Shared>) -> Self {
        shared.counters.count(|counts| counts.live += 1);
        Self(shared)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.counters.count(|counts| counts.live -= 1);
    }
}

/// Awaits that somebody listens at the target.
async fn lives(target: &str) {
    loop {
        tokio::time::sleep(TRY_EVERY).await;
        if TcpStream::connect(target).await.is_ok() {
            return;
        }
    }
}
