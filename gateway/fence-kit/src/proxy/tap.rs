//! A connection that remembers whether it was read to its end, and shows the client a head that it reads right.
//!
//! Owns: the one fact that tells a chunked answer which was cut off from a whole one. The client ends both alike; but it
//! asks the connection for more only while the last chunk has not arrived, so a connection that told its end meanwhile was
//! closed too early. Does not own: what the bytes say; of the head, [`wire`](super::wire) says it.
//! On failure: errors pass through as they are.

use super::wire::final_head;
use actix_rt::net::{ActixStream, Ready, TcpStream};
use actix_service::{Service, fn_service};
use actix_tls::connect::{ConnectError, ConnectInfo, Connection, Connector};
use actix_web::http::Uri;
use bytes::{Buf, BytesMut};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Whether the other side has closed, as far as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended(Arc<AtomicBool>);

impl Ended {
    /// What was asked for beyond what came, the connection's end was the answer.
    pub(super) fn was_read(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How much is read at once while there is no final head.
const PIECE_BYTES: usize = 4_096;

/// The stream of one connection, which carries one answer.
#[derive(Debug)]
pub(super) struct Tapped {
    io: TcpStream,
    ended: Ended,
    /// Before the final head is there: what came of it. After that: what the client has yet to read of it.
    held: BytesMut,
    past_head: bool,
}

impl Tapped {
    /// Reads, and notes the end.
    fn poll_io(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (had, room) = (buf.filled().len(), buf.remaining());
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(()))) && room > 0 && buf.filled().len() == had {
            self.ended.0.store(true, Ordering::Relaxed);
        }
        read
    }

    /// Ready when there is nothing to wait for before the client reads: a final head, or the end, before which a head may
    /// have been cut off.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.past_head {
            let mut piece = [0; PIECE_BYTES];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(self.poll_io(cx, &mut piece))?;
            self.held.extend_from_slice(piece.filled());
            self.past_head = piece.filled().is_empty() || final_head(&mut self.held)?;
        }
        Poll::Ready(Ok(()))
    }
}

/// Makes connections whose end is noted in `ended`.
pub(super) fn connector(
    ended: &Ended,
) -> impl Service<ConnectInfo<Uri>, Response = Connection<Uri, Tapped>, Error = ConnectError> + Clone + 'static {
    let (plain, ended) = (Connector::default().service(), ended.clone());
    fn_service(move |to: ConnectInfo<Uri>| {
        let (connecting, ended) = (plain.call(to), ended.clone());
        async move {
            let (io, to) = connecting.await?.into_parts();
            let tapped = Tapped {
                io,
                ended,
                held: BytesMut::new(),
                past_head: false,
            };
            Ok(Connection::new(to, tapped))
        }
    })
}

impl AsyncRead for Tapped {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_head(cx))?;
        if self.held.is_empty() {
            return self.poll_io(cx, buf);
        }
        let some = self.held.len().min(buf.remaining());
        buf.put_slice(&self.held[..some]);
        self.held.advance(some);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tapped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl ActixStream for Tapped {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_read_ready(&self.io, cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_write_ready(&self.io, cx)
    }
}
