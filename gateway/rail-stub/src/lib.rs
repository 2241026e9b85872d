//! The rail stub: the environment, not the system. Deliberately not idempotent: every accepted call executes, again and
//! again (FR-21, C3.6), and it sees neither a token nor an idempotency key.
//!
//! Owns: a book of what it read, executed and declined, and faults on demand. It depends on no other package.
//! Does not own: anybody else's idea of what it did.
//! On failure: it behaves badly on purpose. A restart begins with an empty book, unless the book is kept in a file: then it
//! goes on where it stood, as a rail's books do. Faults are not kept.
//!
//! It speaks HTTP/1.1 over its own small server, because half of its faults are done to the socket.

mod ack;
mod book;
mod fault;
mod guard;
mod http;
mod journal;
mod submit;

pub use ack::AckUrl;
pub use fault::{Fault, Faults, Rule};

use book::Book;
use http::{Answer, Connection, NoRequest, Request};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

/// How many connections are served at once; further ones wait in the listener's queue (NFR-11).
const CONNECTIONS_MAX: usize = 4_096;

/// How long a connection may be idle between requests.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// How long an orderly end waits for calls that are being answered.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// What is called at each fault point of the stub, with the point's name (`rail_stub.before_execute`). It may not return.
pub type AtPoint = Rc<dyn Fn(&'static str)>;

/// What every connection shares. One thread, so no lock.
#[derive(Clone)]
pub(crate) struct Shared {
    pub book: Rc<RefCell<Book>>,
    pub acks: ack::Acks,
    hosts: Rc<[String]>,
    at_point: AtPoint,
}

impl Shared {
    /// Reaches a fault point.
    pub fn at(&self, point: &'static str) {
        (self.at_point)(point);
    }

    /// The instant that is written into the book, for showing.
    pub fn now(&self) -> time::OffsetDateTime {
        time::OffsetDateTime::now_utc()
    }
}

/// What a stub is asked to be.
#[derive(Clone, Default)]
pub struct Options {
    /// The address to listen on; port 0 takes a free one.
    pub listen: String,
    /// Where asynchronous acks go.
    pub ack_url: Option<AckUrl>,
    /// What chance hangs on.
    pub seed: u64,
    /// The file that keeps the book over a restart.
    pub book: Option<PathBuf>,
    /// Names with a dot under which it is asked for. Addresses, `localhost` and names without a dot are always its own.
    pub hosts: Vec<String>,
    /// What is called at each fault point.
    pub at_point: Option<AtPoint>,
}

/// A stub that has its address and serves nobody yet.
pub struct Stub {
    listener: TcpListener,
    shared: Shared,
}

impl Stub {
    /// Takes the address. `ack_url` is where asynchronous acks go, `seed` what chance hangs on.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn bind(listen: &str, ack_url: Option<String>, seed: u64) -> io::Result<Self> {
        Self::bind_with(Options {
            listen: listen.to_owned(),
            ack_url: ack_url.map(AckUrl::Known),
            seed,
            ..Options::default()
        })
        .await
    }

    /// As [`Stub::bind`], with everything that can be chosen.
    ///
    /// # Errors
    /// The address cannot be had, or the book's file cannot be read or written.
    pub async fn bind_with(options: Options) -> io::Result<Self> {
        let mut book = Book::new(options.seed);
        if let Some(file) = &options.book {
            book.keep_in(file)?;
        }
        let at_point = options.at_point.unwrap_or_else(|| Rc::new(|_| {}));
        Ok(Self {
            listener: TcpListener::bind(&options.listen).await?,
            shared: Shared {
                book: Rc::new(RefCell::new(book)),
                acks: ack::Acks::new(options.ack_url, at_point.clone()),
                hosts: options.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
                at_point,
            },
        })
    }

    /// The address it has.
    ///
    /// # Errors
    /// The operating system does not know it.
    pub fn addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is ready, then lets calls that are being answered end within two seconds. Call it inside a
    /// `LocalSet` (an actix system is one): connections run on the current thread.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (draining, drained) = watch::channel(false);
        tokio::pin!(stop);
        loop {
            let place = places.clone().acquire_owned();
            let accepted = async {
                let place = place.await;
                (place, self.listener.accept().await)
            };
            tokio::select! {
                biased;
                () = &mut stop => break,
                (place, accepted) = accepted => match accepted {
                    Ok((stream, _)) => {
                        let (shared, drained) = (self.shared.clone(), drained.clone());
                        tokio::task::spawn_local(async move {
                            serve_connection(&shared, Connection::new(stream), drained).await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: let some connections end.
                        tracing::warn!(event = "accept_failed", %error);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
        draining.send_replace(true);
        drop(self.listener);
        let all = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(DRAIN_MAX, places.acquire_many(all)).await;
    }
}

/// The process: takes the address, prints `{"event":"listening","addr":…}` on standard output, serves until SIGTERM or
/// SIGINT.
///
/// # Errors
/// The address cannot be had, the book's file cannot be read, or signals cannot be awaited.
pub async fn run(options: Options) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let seed = options.seed;
    let stub = Stub::bind_with(options).await?;
    let line = serde_json::json!({
        "event": "listening",
        "component": "rail-stub",
        "addr": stub.addr()?.to_string(),
        "seed": seed,
    });
    println!("{line}");
    stub.serve(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
    .await;
    Ok(())
}

async fn serve_connection(shared: &Shared, mut connection: Connection, mut draining: watch::Receiver<bool>) {
    loop {
        let request = tokio::select! {
            biased;
            request = tokio::time::timeout(IDLE_MAX, connection.read()) => request.unwrap_or(Err(NoRequest::Closed)),
            _ = draining.wait_for(|draining| *draining) => return,
        };
        let keep = match request {
            Err(NoRequest::Closed) => return,
            Err(NoRequest::Bad(status, detail)) => {
                let bytes = Answer::error(status, detail).bytes(false);
                let _ = connection.stream.write_all(&bytes).await;
                return;
            }
            Ok(mut request) => {
                let head = request.method == "HEAD";
                let refused = guard::kept_out(&request, &shared.hosts);
                if refused.is_none() && request.method == "POST" && request.path == "/submit" {
                    if !submit::submit(shared, &mut connection, &request).await || *draining.borrow() {
                        return;
                    }
                    continue;
                }
                if head {
                    request.method = "GET".to_owned();
                }
                let answer = refused.unwrap_or_else(|| answer(shared, &request));
                let bytes = if head {
                    answer.head(request.keep_alive)
                } else {
                    answer.bytes(request.keep_alive)
                };
                connection.stream.write_all(&bytes).await.is_ok() && request.keep_alive
            }
        };
        if !keep || *draining.borrow() {
            return;
        }
    }
}

/// Everything but the submit.
fn answer(shared: &Shared, request: &Request) -> Answer {
    let mut book = shared.book.borrow_mut();
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/submissions") => match http::query_value(&request.query, "client_reference") {
            None => Answer::error(400, "client_reference must be given"),
            Some(reference) => look_up(&mut book, &reference),
        },
        ("GET", "/faults") => Answer::json(200, &book.faults),
        ("PUT", "/faults") => {
            let read: Result<Faults, _> = serde_json::from_slice(&request.body);
            match read
                .map_err(|error| error.to_string())
                .and_then(|faults| faults.check().map(|()| faults))
            {
                Ok(faults) => {
                    book.faults = faults;
                    Answer::json(200, &book.faults)
                }
                Err(detail) => Answer::error(400, detail),
            }
        }
        ("DELETE", "/faults") => {
            book.faults = Faults::default();
            Answer::json(200, &book.faults)
        }
        ("GET", "/stats") => Answer::json(200, book.stats()),
        ("GET", "/livez" | "/readyz" | "/startupz") => Answer::json(200, &serde_json::json!({ "status": "ok" })),
        (method, path) if !allowed(path).is_empty() => match method {
            "OPTIONS" => Answer {
                status: 204,
                content_type: "application/json",
                headers: String::new(),
                body: Vec::new(),
            },
            _ => Answer::error(405, "the method is not one of this path"),
        }
        .header("allow", allowed(path)),
        _ => Answer::error(
            404,
            "there is no such path; the rail stub's contract is C3.6 in docs/04-contracts.md",
        ),
    }
}

/// What may be asked for at a path; nothing where there is none.
fn allowed(path: &str) -> &'static str {
    match path {
        "/submit" => "POST, OPTIONS",
        "/submissions" | "/stats" | "/livez" | "/readyz" | "/startupz" => "GET, HEAD, OPTIONS",
        "/faults" => "GET, PUT, DELETE, HEAD, OPTIONS",
        _ => "",
    }
}

fn look_up(book: &mut Book, reference: &str) -> Answer {
    let (seed, nth) = (book.seed(), book.next_lookup(reference));
    if let Some(met) = book.faults.meet(fault::Group::Lookup, seed, reference, nth) {
        book.count(met.fault);
        return Answer::error(500, "the lookup broke down");
    }
    Answer::json(200, &book.look_up(reference))
}
