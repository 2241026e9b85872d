//! The forwarder: what is done with a connection to the rail (C3.7).
//!
//! Owns: one fresh connection per call, of sockets that a submission had before its intent, closed before the reply is given;
//! no redirect is followed, nothing is retried, the whole exchange is bounded in time and size. With `https:` the rail is verified anew on each connection.
//! Does not own: what a reply means (`rail-core`), which authorities are trusted (`tls`).
//! On failure: a reply says why there is no answer. None of them says that nothing was executed, not even that of a rail
//! whose certificate was refused before a byte of the submission was sent (C3.7).

use crate::line::{self, Sockets};
use crate::tls::RailTls;
use actix_rt::net::{ActixStream, TcpStream};
use actix_service::{Service, fn_service};
use actix_tls::connect::rustls_0_23::TlsConnector;
use actix_tls::connect::rustls_0_23::reexports::AsyncTlsStream;
use actix_tls::connect::{ConnectError as TcpError, ConnectInfo, Connection};
use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::Uri;
use awc::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use futures_util::future::LocalBoxFuture;
use rail_core::{Line, NoAnswer, Rail, RailCall, RailReply, Unprepared};
use rustls::ClientConfig;
use serde_json::json;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The largest answer of a rail that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// What stands before the reason of a failed handshake.
const TLS: &str = "tls: ";

/// Speaks to one rail over HTTP/1.1.
#[derive(Clone, Debug)]
pub struct RailForwarder {
    base: String,
    read_timeout: Duration,
    tls: Option<RailTls>,
    refused: Refused,
}

/// Why the last handshake failed; none where it did not.
#[derive(Clone, Debug, Default)]
struct Refused(Arc<Mutex<Option<String>>>);

impl Refused {
    fn said(&self) -> MutexGuard<'_, Option<String>> {
        // Each change leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a call met. One that did not come to a handshake says nothing of it.
    fn note(&self, reply: &RailReply) {
        match reply {
            RailReply::Nothing(NoAnswer::NotConnected(said)) if said.starts_with(TLS) => {
                *self.said() = Some(said.clone());
            }
            RailReply::Nothing(NoAnswer::NotConnected(_) | NoAnswer::ReadTimeout) => {}
            RailReply::Answer { .. } | RailReply::Nothing(_) => *self.said() = None,
        }
    }
}

impl RailForwarder {
    /// A forwarder to the rail at `base`, each submission within `read_timeout`; over `tls` where `base` is `https:`. Without
    /// it such a rail is never reached.
    #[must_use]
    pub fn new(base: &str, read_timeout: Duration, tls: Option<RailTls>) -> Self {
        Self {
            base: base.trim_end_matches('/').to_owned(),
            read_timeout,
            tls,
            refused: Refused::default(),
        }
    }

    /// Why the last handshake with the rail failed; none where it did not.
    #[must_use]
    pub fn handshake_refused(&self) -> Option<String> {
        self.refused.said().clone()
    }
}

/// A client of its own for one call: no connection is ever used twice, none can have gone stale. With `tls` its connections
/// are encrypted below what tells a whole answer from one that was cut off, whose end can be told under TLS too.
fn client<C>(tcp: C, within: Duration, tls: Option<&RailTls>) -> awc::Client
where
    C: Service<ConnectInfo<Uri>, Response = Connection<Uri, TcpStream>, Error = TcpError> + Clone + 'static,
{
    let connector = awc::Connector::new();
    match tls {
        Some(tls) => finish(
            connector.connector(http_client::whole(encrypted(tcp, tls.current()))),
            within,
        ),
        None => finish(connector.connector(http_client::whole(tcp)), within),
    }
}

fn finish<C, S>(connector: awc::Connector<C>, within: Duration) -> awc::Client
where
    C: Service<ConnectInfo<Uri>, Response = Connection<Uri, S>, Error = TcpError> + Clone + 'static,
    S: ActixStream + Debug + 'static,
{
    awc::Client::builder()
        .connector(connector.timeout(within).limit(1))
        .disable_redirects()
        .disable_timeout()
        .finish()
}

/// Makes connections over `tcp`'s to a rail that is verified by `tls`.
fn encrypted<C>(
    tcp: C,
    tls: Arc<ClientConfig>,
) -> impl Service<ConnectInfo<Uri>, Response = Connection<Uri, AsyncTlsStream<TcpStream>>, Error = TcpError> + Clone + 'static
where
    C: Service<ConnectInfo<Uri>, Response = Connection<Uri, TcpStream>, Error = TcpError> + Clone + 'static,
{
    let tls = TlsConnector::service(tls);
    fn_service(move |to: ConnectInfo<Uri>| {
        let (connecting, tls) = (tcp.call(to), tls.clone());
        async move { tls.call(connecting.await?).await.map_err(TcpError::Io) }
    })
}

/// What awc is to be asked for, and the `Host` that the rail is to see. awc would encrypt an `https:` address by itself; here
/// the connection is encrypted already. Where it is not, an `https:` address stays one, which awc cannot reach: nothing is ever
/// sent to it in the clear.
fn reached_as(url: &str, is_encrypted: bool) -> (String, Option<String>) {
    let Some(rest) = url.strip_prefix("https://").filter(|_| is_encrypted) else {
        return (url.to_owned(), None);
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let port = if has_port { "" } else { ":443" };
    (format!("http://{authority}{port}{path}"), Some(host.to_owned()))
}

/// One submission's way to the rail, before its connection is open.
struct OpenLine {
    forwarder: RailForwarder,
    sockets: Sockets,
}

impl Line for OpenLine {
    fn submit(self: Box<Self>, call: RailCall) -> LocalBoxFuture<'static, RailReply> {
        let Self { forwarder, sockets } = *self;
        let (url, within, tls) = (
            format!("{}/submit", forwarder.base),
            forwarder.read_timeout,
            forwarder.tls,
        );
        let refused = forwarder.refused;
        let body = json!({
            "client_reference": call.client_reference,
            "amount_minor": call.amount_minor,
            "currency": call.currency,
            "creditor": { "name": call.creditor_name, "account": call.creditor_account },
        })
        .to_string();
        Box::pin(async move {
            let client = client(line::connector(sockets), within, tls.as_ref());
            let (url, host) = reached_as(&url, tls.is_some());
            let request = with_host(client.post(url), host)
                .force_close()
                .insert_header((CONTENT_TYPE, "application/json"));
            let reply = bounded(within, request.send_body(body)).await;
            refused.note(&reply);
            reply
        })
    }
}

impl Rail for RailForwarder {
    fn prepare(&self) -> LocalBoxFuture<'static, Result<Box<dyn Line>, Unprepared>> {
        let forwarder = self.clone();
        Box::pin(async move {
            let sockets = line::open(&forwarder.base).await?;
            Ok(Box::new(OpenLine { forwarder, sockets }) as Box<dyn Line>)
        })
    }

    fn look_up(&self, client_reference: String, within: Duration) -> LocalBoxFuture<'static, RailReply> {
        let (url, tls) = (format!("{}/submissions", self.base), self.tls.clone());
        let refused = self.refused.clone();
        Box::pin(async move {
            let client = client(http_client::tcp(), within, tls.as_ref());
            let (url, host) = reached_as(&url, tls.is_some());
            match with_host(client.get(url), host).query(&[("client_reference", client_reference)]) {
                Ok(request) => {
                    let reply = bounded(within, request.force_close().send()).await;
                    refused.note(&reply);
                    reply
                }
                Err(error) => RailReply::Nothing(NoAnswer::NotConnected(error.to_string())),
            }
        })
    }
}

fn with_host(request: awc::ClientRequest, host: Option<String>) -> awc::ClientRequest {
    match host {
        Some(host) => request.insert_header((HOST, host)),
        None => request,
    }
}

/// Sends and reads the whole answer, within a time that counts from now. Whatever is left of the exchange when the time
/// has passed is dropped, and with it the socket, before this answers.
async fn bounded(within: Duration, request: awc::SendClientRequest) -> RailReply {
    tokio::time::timeout(within, exchange(request))
        .await
        .unwrap_or(RailReply::Nothing(NoAnswer::ReadTimeout))
}

async fn exchange(request: awc::SendClientRequest) -> RailReply {
    let mut response = match request.await {
        Ok(response) => response,
        Err(error) => return RailReply::Nothing(no_answer(&error)),
    };
    let status = response.status().as_u16();
    // Those that are only interim were passed over.
    if response.status().is_informational() {
        return RailReply::Nothing(NoAnswer::Broken(format!("an answer that was not asked for, {status}")));
    }
    let announced = response
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<usize>().ok());
    match response.body().limit(ANSWER_BYTES_MAX).await {
        Ok(body) if announced.is_some_and(|announced| announced != body.len()) => {
            RailReply::Nothing(NoAnswer::Truncated)
        }
        Ok(body) => RailReply::Answer {
            status,
            body: body.to_vec(),
        },
        Err(PayloadError::Overflow) => RailReply::Nothing(NoAnswer::Oversized),
        Err(PayloadError::Incomplete(_)) => RailReply::Nothing(NoAnswer::Truncated),
        Err(PayloadError::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            RailReply::Nothing(NoAnswer::Truncated)
        }
        Err(error) => RailReply::Nothing(NoAnswer::Broken(error.to_string())),
    }
}

fn no_answer(error: &SendRequestError) -> NoAnswer {
    match error {
        SendRequestError::Timeout => NoAnswer::ReadTimeout,
        // Seen after the peer had read the whole request and closed.
        SendRequestError::Connect(ConnectError::Disconnected) => {
            NoAnswer::Broken("closed without an answer".to_owned())
        }
        SendRequestError::Connect(ConnectError::Io(error)) if is_tls(error) => {
            NoAnswer::NotConnected(format!("{TLS}{error}"))
        }
        SendRequestError::Connect(error) => NoAnswer::NotConnected(error.to_string()),
        error => NoAnswer::Broken(error.to_string()),
    }
}

/// Whether the handshake failed, and not the network under it.
fn is_tls(error: &std::io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some())
}
