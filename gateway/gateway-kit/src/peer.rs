//! Whether the other end of a connection still listens.
//!
//! actix drops a handler when its peer resets the connection, but lets it run on after a plain close. A handler that
//! waits on purpose (a queued acquire) must see both: nobody would take what it is waiting for.
//! On failure: where the socket cannot be looked at (no socket, as in a simulation), the peer counts as there.

use actix_web::HttpRequest;
use actix_web::dev::Extensions;
use std::any::Any;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;

/// A second handle of the connection's socket, which is never read or written.
#[derive(Clone)]
struct Socket(Arc<TcpStream>);

/// For `HttpServer::on_connect`: remembers the socket, and lets the kernel cut the connection of a peer that takes nothing of
/// what is written for `write_timeout`. actix has no such time-out: it waits for the socket as long as that lives.
pub(crate) fn on_connect(write_timeout: Duration) -> impl Fn(&dyn Any, &mut Extensions) + Send + Clone + 'static {
    let cut = cut_stalled(write_timeout);
    move |connection, data| {
        cut(connection, data);
        remember(connection, data);
    }
}

/// For `HttpServer::on_connect` of a server without a gateway's frame: the kernel cuts the connection of a peer that takes nothing
/// of what is written for `write_timeout`.
pub fn cut_stalled(write_timeout: Duration) -> impl Fn(&dyn Any, &mut Extensions) + Send + Clone + 'static {
    move |connection, _| {
        if let Some(stream) = connection.downcast_ref::<actix_web::rt::net::TcpStream>() {
            cut_after(stream, write_timeout);
        }
    }
}

#[cfg(target_os = "linux")]
fn cut_after(stream: &impl AsFd, write_timeout: Duration) {
    let ms = u32::try_from(write_timeout.as_millis()).unwrap_or(u32::MAX);
    // Left as it is where the system refuses: the bound on bytes in flight holds without it.
    let _ = nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::TcpUserTimeout, &ms);
}

#[cfg(not(target_os = "linux"))]
fn cut_after(_: &impl AsFd, _: Duration) {}

fn remember(connection: &dyn Any, data: &mut Extensions) {
    if let Some(stream) = connection.downcast_ref::<actix_web::rt::net::TcpStream>()
        && let Ok(second) = stream.as_fd().try_clone_to_owned()
    {
        data.insert(Socket(Arc::new(TcpStream::from(second))));
    }
}

/// The other end of a request's connection. One that has closed its sending side counts as gone: it said goodbye.
#[derive(Clone)]
pub struct Peer(Option<Socket>);

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("is_gone", &self.is_gone()).finish()
    }
}

impl Peer {
    /// Who sent this request.
    #[must_use]
    pub fn of(request: &HttpRequest) -> Self {
        Self(request.conn_data::<Socket>().cloned())
    }

    /// Whether it has closed or reset the connection by now.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|socket| match socket.0.peek(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        })
    }

    /// Waits until it closes or resets the connection; for ever where there is no socket.
    pub async fn gone(&self) {
        // A handle of its own for the reactor, which gets it out of the way again when this future is dropped.
        let watched = self.0.as_ref().and_then(|socket| socket.0.try_clone().ok());
        if let Some(watched) = watched.and_then(|stream| tokio::net::TcpStream::from_std(stream).ok()) {
            while let Ok(readiness) = watched.ready(Interest::READABLE).await {
                if readiness.is_read_closed() {
                    return;
                }
                // The next request of the connection has arrived early; that is not a goodbye. Nothing is read here, so the
                // readiness is taken back by hand and comes again with the next event.
                let _ = watched.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            }
        }
        std::future::pending().await
    }
}
