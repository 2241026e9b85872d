//! The socket side of an HTTP server: which connections are open, and which one goes when there are too many.
//!
//! Owns: the listening sockets, the connections of one process and their bound. Does not own: what is asked over them.
//! On failure: with the bound reached, the connection that has been idle longest is closed and the new one served; with all
//! of them busy, the new one is closed after its answer; beyond that new ones wait in the kernel's backlog.
//!
//! HTTP/1.1 alone is spoken here, also where TLS should ever stand before it: the h2 in use has an open advisory (case S10).

use crate::Settings;
use crate::descriptors::{Bounds, Descriptors};
use actix_http::body::{BodySize, BoxBody, MessageBody};
use actix_http::error::DispatchError;
use actix_http::{ConnectionType, HttpService, Request, Response};
use actix_server::{Server, ServerBuilder};
use actix_service::{
    IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt as _, apply_fn_factory, fn_service,
};
use actix_web::HttpResponse;
use actix_web::dev::{AppConfig, Extensions};
use actix_web::rt::net::TcpStream;
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use prometheus::{IntCounter, IntGauge, Registry};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener, ToSocketAddrs};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// How many of the idle connections are closed at once when the bound is reached: so that one look at all of them serves
/// many newcomers.
const CLOSED_AT_ONCE: usize = 128;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection, as its requests and the bound see it.
pub(crate) struct Link {
    /// None once it is closed: whoever still holds the link holds no socket.
    stream: Mutex<Option<TcpStream>>,
    /// Requests that are not answered to their last byte.
    active: AtomicUsize,
    /// Set at the beginning, and when the last answer has ended: the smaller, the longer idle.
    since: AtomicU64,
    /// To be closed once it is idle and nothing has arrived.
    closing: AtomicBool,
    /// To be closed after its next answer: there was no room for it.
    one_answer: AtomicBool,
    /// Its other end has closed its sending side.
    ended: AtomicBool,
    on_ended: Notify,
    reader: AtomicWaker,
    connections: Connections,
}

impl Link {
    /// Whether the other end has closed or reset it by now.
    pub(crate) fn is_gone(&self) -> bool {
        if self.ended.load(Ordering::Acquire) {
            return true;
        }
        match &*locked(&self.stream) {
            Some(stream) => match SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]) {
                Ok(read) => read == 0,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            },
            None => true,
        }
    }

    /// Waits for that. The server reads ahead while a request is handled, so it meets the end by itself.
    pub(crate) async fn gone(&self) {
        let ended = self.on_ended.notified();
        let mut ended = std::pin::pin!(ended);
        // From here on no end is missed.
        ended.as_mut().enable();
        if !self.is_gone() {
            ended.await;
        }
    }

    /// A place for its request, which waits on purpose; see [`Connections::wait`].
    pub(crate) fn wait(&self) -> Option<Waiting> {
        self.connections.wait()
    }

    fn goes_after_this(&self) -> bool {
        self.closing.load(Ordering::Acquire) || self.one_answer.load(Ordering::Acquire)
    }

    fn is_idle(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.on_ended.notify_waiters();
    }
}

/// A request's hold on its connection: while it lives, the connection is not idle.
struct Active(Arc<Link>);

impl Active {
    fn begin(link: Arc<Link>) -> Self {
        link.active.fetch_add(1, Ordering::AcqRel);
        Self(link)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.since.store(self.0.connections.tick(), Ordering::Release);
        self.0.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The connections of one process, over all its listeners. Cheap to clone.
#[derive(Clone)]
pub struct Connections(Arc<Known>);

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections")
            .field("bounds", &self.0.bounds)
            .finish_non_exhaustive()
    }
}

struct Known {
    bounds: Bounds,
    open: Mutex<HashMap<u64, Arc<Link>>>,
    ticks: AtomicU64,
    waiting: AtomicUsize,
    gauge: IntGauge,
    closed: IntCounter,
}

/// The place of a request that waits on purpose. Given back when dropped.
#[derive(Debug)]
pub struct Waiting(Connections);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Connections {
    /// The bound of this process, from its limit of descriptors and `http.connections-max`; said in the log, shown in the
    /// registry's metrics.
    ///
    /// # Errors
    /// The limit leaves no room for connections.
    pub fn of_process(settings: &Settings, registry: &Registry) -> io::Result<Self> {
        let count = |name| usize::try_from(settings.integer(name)).unwrap_or(usize::MAX);
        let (workers, configured) = (count("http.workers"), count("http.connections-max"));
        let descriptors = Descriptors::raise()?;
        let bounds = descriptors.connections(configured.saturating_mul(workers), workers)?;
        tracing::info!(
            event = "bounds_derived",
            descriptors = descriptors.limit,
            descriptors_before = descriptors.limit_before,
            reserved = bounds.reserve,
            connections = bounds.connections,
            connections_hard = bounds.connections_hard,
            waiting = bounds.waiting,
        );
        let gauge = IntGauge::new("http_connections", "Open connections of callers.").expect("a valid metric name");
        let closed = IntCounter::new(
            "http_idle_connections_closed_total",
            "Idle connections that were closed to make room for new ones.",
        )
        .expect("a valid metric name");
        for collector in [
            Box::new(gauge.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(closed.clone()),
        ] {
            if let Err(error) = registry.register(collector) {
                tracing::warn!(event = "metric_not_registered", %error);
            }
        }
        Ok(Self(Arc::new(Known {
            bounds,
            open: Mutex::default(),
            ticks: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            gauge,
            closed,
        })))
    }

    /// A place for a request that waits on purpose (a queued acquire, an event stream); none where so many wait that calls
    /// which are answered at once would find no connection.
    fn wait(&self) -> Option<Waiting> {
        let taken = self
            .0
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| {
                (waiting < self.0.bounds.waiting).then_some(waiting + 1)
            });
        taken.ok().map(|_| Waiting(self.clone()))
    }

    fn tick(&self) -> u64 {
        self.0.ticks.fetch_add(1, Ordering::Relaxed)
    }

    fn accept(&self, stream: TcpStream) -> Conn {
        let id = self.tick();
        let link = Arc::new(Link {
            stream: Mutex::new(Some(stream)),
            active: AtomicUsize::new(0),
            since: AtomicU64::new(id),
            closing: AtomicBool::new(false),
            one_answer: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            on_ended: Notify::new(),
            reader: AtomicWaker::new(),
            connections: self.clone(),
        });
        let mut open = locked(&self.0.open);
        open.insert(id, Arc::clone(&link));
        self.0.gauge.inc();
        if open.len() > self.0.bounds.connections && !self.make_room(&open, id) {
            link.one_answer.store(true, Ordering::Release);
        }
        drop(open);
        Conn { id, link }
    }

    /// Asks those to close that have been idle longest, but not the newest one. False where not enough are idle.
    fn make_room(&self, open: &HashMap<u64, Arc<Link>>, newest: u64) -> bool {
        let mut too_many = open.len().saturating_sub(self.0.bounds.connections);
        let (mut idle, mut going) = (Vec::new(), 0);
        for (id, link) in open.iter().filter(|(_, link)| link.is_idle()) {
            if link.closing.load(Ordering::Acquire) {
                going += 1;
            } else if *id != newest {
                idle.push((link.since.load(Ordering::Acquire), link));
            }
        }
        too_many = too_many.saturating_sub(going);
        if too_many == 0 {
            return true;
        }
        idle.sort_unstable_by_key(|(since, _)| *since);
        let enough = idle.len() >= too_many;
        for (_, link) in idle
            .into_iter()
            .take(too_many.max(self.0.bounds.connections / CLOSED_AT_ONCE))
        {
            link.closing.store(true, Ordering::Release);
            link.reader.wake();
            self.0.closed.inc();
        }
        enough
    }
}

/// A connection as the HTTP server reads and writes it.
pub(crate) struct Conn {
    id: u64,
    link: Arc<Link>,
}

/// Puts a connection's link where its requests find it.
fn remember(conn: &Conn, data: &mut Extensions) {
    data.insert(Arc::clone(&conn.link));
}

impl Drop for Conn {
    fn drop(&mut self) {
        drop(locked(&self.link.stream).take());
        self.link.end();
        let known = &self.link.connections.0;
        locked(&known.open).remove(&self.id);
        known.gauge.dec();
    }
}

impl Conn {
    fn with<T>(&self, io: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut *locked(&self.link.stream) {
            Some(stream) => io(Pin::new(stream)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncRead for Conn {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (had, room) = (buf.filled().len(), buf.remaining());
        let read = self.with(|stream| stream.poll_read(cx, buf));
        match &read {
            Poll::Ready(Ok(())) if room > 0 && buf.filled().len() == had => self.link.end(),
            Poll::Ready(Err(_)) => self.link.end(),
            Poll::Ready(Ok(())) => {}
            Poll::Pending => {
                self.link.reader.register(cx.waker());
                // What has arrived is answered; only then it goes.
                if self.link.closing.load(Ordering::Acquire) && self.link.is_idle() {
                    return Poll::Ready(Ok(()));
                }
            }
        }
        read
    }
}

impl AsyncWrite for Conn {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write(cx, data))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write_vectored(cx, data))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| {
            match SockRef::from(&*stream).shutdown(Shutdown::Write) {
                // The other end was quicker.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
                done => Poll::Ready(done),
            }
        })
    }
}

/// An answer's body, whose connection is busy until its end.
struct Answering {
    body: BoxBody,
    _active: Option<Active>,
}

impl MessageBody for Answering {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }

    fn try_into_bytes(self) -> Result<Bytes, Self> {
        let Self { body, _active } = self;
        body.try_into_bytes().map_err(|body| Self { body, _active })
    }
}

/// Begins to serve applications on `listen`, over HTTP/1.1. Answers the server, which ends with its handle, and the
/// addresses it listens on.
///
/// # Errors
/// The address cannot be listened on.
pub fn serve_apps<F, I, S, B>(
    listen: &str,
    settings: &Settings,
    connections: &Connections,
    shutdown_timeout: Duration,
    apps: F,
) -> io::Result<(Server, Vec<SocketAddr>)>
where
    F: Fn() -> I + Send + Clone + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig> + 'static,
    S::Error: Into<actix_web::Error> + 'static,
    S::InitError: std::fmt::Debug,
    S::Response: Into<Response<B>> + 'static,
    <S::Service as Service<Request>>::Future: 'static,
    S::Service: 'static,
    B: MessageBody + 'static,
{
    let count = |name| usize::try_from(settings.integer(name)).unwrap_or(usize::MAX);
    let workers = count("http.workers");
    let (header_timeout, keep_alive) = (
        settings.duration("http.header-timeout"),
        settings.duration("http.keep-alive"),
    );
    let write_timeout = settings.duration("http.write-timeout");
    let backlog = i32::try_from(settings.integer("http.backlog")).unwrap_or(i32::MAX);
    let sockets = sockets(listen, backlog)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {listen}: {error}")))?;
    let addresses = sockets
        .iter()
        .map(TcpListener::local_addr)
        .collect::<io::Result<Vec<_>>>()?;
    let mut server: ServerBuilder = Server::build()
        .workers(workers)
        .max_concurrent_connections(connections.0.bounds.connections_hard.div_ceil(workers))
        .shutdown_timeout(
            shutdown_timeout
                .as_millis()
                .div_ceil(1_000)
                .try_into()
                .unwrap_or(u64::MAX),
        )
        .disable_signals();
    let ending = server.graceful_shutdown_signal();
    for (socket, address) in sockets.into_iter().zip(addresses.clone()) {
        let (apps, connections, ending) = (apps.clone(), connections.clone(), ending.clone());
        server = server.listen(format!("http {address}"), socket, move || {
            let (accepting, ending) = (connections.clone(), ending.clone());
            let app = apps().into_factory().map_err(|error| error.into().error_response());
            let app = actix_service::map_config(app, |()| AppConfig::default());
            let app = apply_fn_factory(app, |request: Request, app: &_| {
                let link = request.conn_data::<Arc<Link>>().cloned();
                let active = link.clone().map(Active::begin);
                let answered = Service::call(app, request);
                async move {
                    let mut answer: Response<B> = answered.await?.into();
                    if link.is_some_and(|link| link.goes_after_this()) {
                        answer.head_mut().set_connection_type(ConnectionType::Close);
                    }
                    Ok::<_, HttpResponse>(answer.map_body(|_, body| Answering {
                        body: body.boxed(),
                        _active: active,
                    }))
                }
            });
            let http = HttpService::build()
                .graceful_shutdown_signal(move || {
                    let ending = ending.clone();
                    async move { ending.notified().await }
                })
                .keep_alive(keep_alive)
                .client_request_timeout(header_timeout)
                .client_disconnect_timeout(Duration::from_secs(1))
                .local_addr(address)
                .on_connect_ext(remember)
                .h1(app);
            fn_service(move |stream: TcpStream| {
                let peer = stream.peer_addr().ok();
                cut_after(&stream, write_timeout);
                std::future::ready(Ok::<_, DispatchError>((accepting.accept(stream), peer)))
            })
            .and_then(http)
        })?;
    }
    Ok((server.run(), addresses))
}

/// Lets the kernel cut the connection of a peer that takes nothing of what is written for `write_timeout`. actix has no such
/// time-out: it waits for the socket as long as that lives.
#[cfg(target_os = "linux")]
fn cut_after(stream: &TcpStream, write_timeout: Duration) {
    let ms = u32::try_from(write_timeout.as_millis()).unwrap_or(u32::MAX);
    // Left as it is where the system refuses: the bound on bytes in flight holds without it.
    let _ = nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::TcpUserTimeout, &ms);
}

#[cfg(not(target_os = "linux"))]
fn cut_after(_: &TcpStream, _: Duration) {}

/// Listens on every address that `listen` stands for and that can be had.
fn sockets(listen: &str, backlog: i32) -> io::Result<Vec<TcpListener>> {
    let (mut sockets, mut failed) = (Vec::new(), None);
    for address in listen.to_socket_addrs()? {
        match socket(address, backlog) {
            Ok(socket) => sockets.push(socket),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if sockets.is_empty() => Err(error),
        None if sockets.is_empty() => Err(io::Error::other("it stands for no address")),
        _ => Ok(sockets),
    }
}

fn socket(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}
