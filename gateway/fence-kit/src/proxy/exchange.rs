//! One exchange with the service: a fresh connection, one request, one answer, streamed.
//!
//! Owns: the connection to the service, closed before [`exchange`] answers; no redirect is followed, nothing is retried; the
//! answer is read to its end although its caller has gone, because its end is what the fence waits for. Does not own: marks.
//! On failure: [`End`] says whether the request certainly never left. Everything else is no answer.

use super::headers::for_caller;
use actix_rt::net::TcpStream;
use actix_service::{Service, fn_service};
use actix_tls::connect::{ConnectError as TcpError, ConnectInfo, Connection};
use actix_web::http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::web;
use awc::body::{BodyStream, SizedStream};
use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::Uri;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long a caller may leave a piece of its answer lying before it gets no more of it.
const CALLER_STALL: Duration = Duration::from_secs(5);
/// How many pieces of an answer wait for their caller.
pub(super) const PIECES_MAX: usize = 16;

/// A request on its way to the service.
pub(super) struct Plan {
    pub(super) method: Method,
    pub(super) url: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Body,
    pub(super) connect_within: Duration,
    /// The bound on the answer's head and on each piece after it.
    pub(super) piece_within: Duration,
    /// Whether the answer is read to its end whatever becomes of the caller.
    pub(super) to_the_end: bool,
}

/// What a request brings along.
pub(super) enum Body {
    /// Nothing.
    None,
    /// All of it is here.
    Whole(Bytes),
    /// The beginning is here, the rest is still arriving; at most `bytes_max` in all.
    Streamed {
        first: Vec<Bytes>,
        rest: web::Payload,
        length: Option<u64>,
        bytes_max: u64,
    },
}

/// The head of an answer, and where its body comes from.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) length: Option<u64>,
    pub(super) pieces: mpsc::Receiver<Piece>,
}

/// A piece of an answer's body.
pub(super) enum Piece {
    Data(Bytes),
    /// There was no more. Without it the body was cut off.
    End,
}

/// How an exchange ended.
#[derive(Debug)]
pub(super) enum End {
    /// With the whole answer.
    Answered,
    /// No connection was made.
    NeverSent(String),
    /// In any other way.
    NoAnswer(String),
    /// The caller has gone, and nobody else waits for the end.
    Abandoned,
}

/// The head on its way to the caller, and the pieces behind it.
pub(super) struct Caller {
    pub(super) head: Option<oneshot::Sender<Head>>,
    pub(super) pieces: mpsc::Sender<Piece>,
    pub(super) receiver: Option<mpsc::Receiver<Piece>>,
}

impl Caller {
    /// False when it has gone.
    fn tell(&mut self, status: StatusCode, headers: Vec<(HeaderName, HeaderValue)>, length: Option<u64>) -> bool {
        match (self.head.take(), self.receiver.take()) {
            (Some(head), Some(pieces)) => {
                let head_of_answer = Head {
                    status,
                    headers,
                    length,
                    pieces,
                };
                head.send(head_of_answer).is_ok()
            }
            _ => false,
        }
    }

    async fn give(&self, data: Bytes) -> bool {
        matches!(
            tokio::time::timeout(CALLER_STALL, self.pieces.send(Piece::Data(data))).await,
            Ok(Ok(()))
        )
    }
}

/// Connects, and notes when a connection was made: until then not a byte has left, for whatever reason.
fn noting(
    made: &Rc<Cell<bool>>,
) -> impl Service<ConnectInfo<Uri>, Response = Connection<Uri, TcpStream>, Error = TcpError> + Clone + 'static {
    let (tcp, made) = (http_client::tcp(), made.clone());
    fn_service(move |to: ConnectInfo<Uri>| {
        let (connecting, made) = (tcp.call(to), made.clone());
        async move {
            let connection = connecting.await?;
            made.set(true);
            Ok(connection)
        }
    })
}

/// Sends the request and passes the answer on. Whatever of the connection is left is closed when this ends or is dropped.
pub(super) async fn exchange(plan: Plan, caller: &mut Caller) -> End {
    // A client of its own for one call: no connection is used twice, so that none can have gone stale, which would be one
    // more request without an answer.
    let made = Rc::new(Cell::new(false));
    let client = awc::Client::builder()
        .connector(
            awc::Connector::new()
                .connector(http_client::whole(noting(&made)))
                .timeout(plan.connect_within)
                .limit(1),
        )
        .disable_redirects()
        .disable_timeout()
        .no_default_headers()
        .finish();
    let (head_only, within) = (plan.method == Method::HEAD, plan.piece_within);
    let mut request = client.request(plan.method, plan.url).force_close().no_decompress();
    for header in plan.headers {
        request = request.append_header(header);
    }
    let sent = match plan.body {
        Body::None => request.send(),
        Body::Whole(bytes) => request.send_body(bytes),
        Body::Streamed {
            first,
            rest,
            length,
            bytes_max,
        } => {
            let body = bounded(first, rest, bytes_max);
            match length {
                Some(length) => request.send_body(SizedStream::new(length, body)),
                None => request.send_body(BodyStream::new(body)),
            }
        }
    };
    let mut response = match tokio::time::timeout(within, sent).await {
        Ok(Ok(response)) => response,
        // A socket that this machine has no descriptor for, a host that cannot be reached: nothing was passed on.
        Ok(Err(error)) if !made.get() => return End::NeverSent(error.to_string()),
        Ok(Err(error)) => return not_answered(&error),
        Err(_) if !made.get() => return End::NeverSent(format!("no connection within {within:?}")),
        Err(_) => return End::NoAnswer(format!("no answer within {within:?}")),
    };
    let status = response.status();
    // Those that are only interim were passed over.
    if status.is_informational() {
        return End::NoAnswer(format!("an answer that was not asked for, {}", status.as_u16()));
    }
    let length = response
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<u64>().ok());
    let mut listening = caller.tell(status, for_caller(response.headers()), length);
    // Whatever stands behind such a head is not of this answer, and closed unread.
    if has_no_body(head_only, status) {
        return End::Answered;
    }
    let mut received = 0_u64;
    loop {
        if !listening && !plan.to_the_end {
            return End::Abandoned;
        }
        match tokio::time::timeout(within, response.next()).await {
            Err(_) => return End::NoAnswer(format!("the answer stopped for {within:?}")),
            Ok(Some(Ok(data))) => {
                received = received.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
                listening = listening && caller.give(data).await;
            }
            Ok(Some(Err(error))) => return End::NoAnswer(format!("the answer broke off: {error}")),
            Ok(None) => break,
        }
    }
    // A connection that ended early is an error before this. Where its end is all that ends a body, nothing tells.
    match length {
        Some(length) if length != received => {
            End::NoAnswer(format!("the answer broke off after {received} of {length} bytes"))
        }
        _ => End::Answered,
    }
}

/// Whether an answer ends with its head, whatever that says of a length (RFC 9112 §6.3).
pub(super) fn has_no_body(head_only: bool, status: StatusCode) -> bool {
    head_only || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED
}

/// The request's body, cut off with an error where it becomes longer than it may be.
fn bounded(
    first: Vec<Bytes>,
    rest: web::Payload,
    bytes_max: u64,
) -> impl Stream<Item = Result<Bytes, io::Error>> + 'static {
    let rest = rest.map(|piece| piece.map_err(|error| io::Error::other(error.to_string())));
    let mut left = bytes_max;
    stream::iter(first.into_iter().map(Ok))
        .chain(rest)
        .map(move |piece: Result<Bytes, io::Error>| {
            let piece = piece?;
            left = left
                .checked_sub(u64::try_from(piece.len()).unwrap_or(u64::MAX))
                .ok_or_else(|| io::Error::other("the body is longer than the proxy passes on"))?;
            Ok(piece)
        })
}

/// What a failure says once the connection was made. `Disconnected` was seen after the peer had read all of the request.
fn not_answered(error: &SendRequestError) -> End {
    match error {
        SendRequestError::Connect(ConnectError::Disconnected) => {
            End::NoAnswer("the service closed the connection without an answer".to_owned())
        }
        _ => End::NoAnswer(error.to_string()),
    }
}

/// Why a request's body did not arrive.
pub(super) fn body_error(error: &PayloadError) -> String {
    format!("could not be read: {error}")
}
