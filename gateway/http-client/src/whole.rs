//! A connection on which an answer that was cut off is no answer, and an interim answer is not the last one (cases P33, P36).
//!
//! Owns: telling a whole answer from one whose connection ended before its length or its last chunk. awc ends both alike; but
//! it asks the connection for more only while more is to come, so an end in the middle of an answer is made an error here.
//! Does not own: what the bytes say; of the head, [`head`](super::head) says it.
//! On failure: errors pass through as they are. One answer is read after the other: the first write after one was read
//! begins the next.

use crate::head::{BodyEnd, final_head};
use actix_rt::net::{ActixStream, Ready, TcpStream};
use actix_service::{Service, fn_service};
use actix_tls::connect::{ConnectError, ConnectInfo, Connection, Connector};
use awc::http::Uri;
use bytes::{Buf, BytesMut};
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read at once while there is no final head.
const PIECE_BYTES: usize = 4_096;

/// The stream of one connection.
#[derive(Debug)]
pub struct Whole<S> {
    io: S,
    /// Before the final head is there: what came of it. After that: what the client has yet to read of it.
    held: BytesMut,
    /// What ends the answer that is read now; none before its final head.
    ends: Option<BodyEnd>,
}

impl<S> Whole<S> {
    /// A connection on which nothing was read yet.
    pub fn new(io: S) -> Self {
        Self {
            io,
            held: BytesMut::new(),
            ends: None,
        }
    }

    /// A request is written: the next head is another answer's.
    fn begin(&mut self) {
        if self.held.is_empty() {
            self.ends = None;
        }
    }
}

impl<S: AsyncRead + Unpin> Whole<S> {
    /// Reads a piece of a body.
    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (had, room) = (buf.filled().len(), buf.remaining());
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let is_end = room > 0 && buf.filled().len() == had;
        if is_end && self.ends == Some(BodyEnd::Told) {
            return Poll::Ready(Err(cut_off()));
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the final head is held, and then true; false at an end before any of it.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.ends.is_none() {
            let mut piece = [0; PIECE_BYTES];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut piece))?;
            if piece.filled().is_empty() {
                return Poll::Ready(if self.held.is_empty() {
                    Ok(false)
                } else {
                    Err(cut_off())
                });
            }
            self.held.extend_from_slice(piece.filled());
            self.ends = final_head(&mut self.held)?;
        }
        Poll::Ready(Ok(true))
    }
}

fn cut_off() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the connection ended in the middle of an answer",
    )
}

/// Makes connections over which answers are whole, out of `connect`'s.
pub fn whole<C, S>(
    connect: C,
) -> impl Service<ConnectInfo<Uri>, Response = Connection<Uri, Whole<S>>, Error = ConnectError> + Clone + 'static
where
    C: Service<ConnectInfo<Uri>, Response = Connection<Uri, S>, Error = ConnectError> + Clone + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Debug + 'static,
{
    fn_service(move |to: ConnectInfo<Uri>| {
        let connecting = connect.call(to);
        async move {
            let (io, to) = connecting.await?.into_parts();
            Ok(Connection::new(to, Whole::new(io)))
        }
    })
}

/// Makes connections over TCP in the clear.
#[must_use]
pub fn tcp()
-> impl Service<ConnectInfo<Uri>, Response = Connection<Uri, TcpStream>, Error = ConnectError> + Clone + 'static {
    Connector::default().service()
}

impl<S: AsyncRead + Unpin> AsyncRead for Whole<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !ready!(self.poll_head(cx))? {
            return Poll::Ready(Ok(()));
        }
        if self.held.is_empty() {
            return self.poll_body(cx, buf);
        }
        let some = self.held.len().min(buf.remaining());
        buf.put_slice(&self.held[..some]);
        self.held.advance(some);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Whole<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.begin();
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin();
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

/// A bound of awc's, which reads and writes without asking before.
impl<S: AsyncRead + AsyncWrite + Unpin + 'static> ActixStream for Whole<S> {
    fn poll_read_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        Poll::Ready(Ok(Ready::READABLE))
    }

    fn poll_write_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        Poll::Ready(Ok(Ready::WRITABLE))
    }
}
