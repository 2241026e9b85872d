//! The forwarder: what is done with a connection to the rail (C3.7).
//!
//! Owns: one fresh connection per call, closed before the reply is given; no redirect is followed, nothing is retried,
//! the whole exchange is bounded in time and size. With `https:` the rail is verified anew on each connection.
//! Does not own: what a reply means (`rail-core`), which authorities are trusted (`tls`).
//! On failure: a reply says why there is no answer. None of them says that nothing was executed, not even that of a rail
//! whose certificate was refused before a byte of the submission was sent (C3.7).

use crate::tls::RailTls;
use awc::error::{ConnectError, PayloadError, SendRequestError};
use awc::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use futures_util::future::LocalBoxFuture;
use rail_core::{NoAnswer, Rail, RailCall, RailReply};
use serde_json::json;
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

/// A client of its own for one call: no connection is ever used twice, none can have gone stale.
fn client(within: Duration, tls: Option<&RailTls>) -> awc::Client {
    let mut connector = awc::Connector::new().timeout(within).limit(1);
    if let Some(tls) = tls {
        connector = connector
            .rustls_0_23(tls.current())
            .handshake_timeout(within)
            // The answer is read by then: what is left is to take leave, and nobody waits for it.
            .disconnect_timeout(Duration::ZERO);
    }
    awc::Client::builder()
        .connector(connector)
        .disable_redirects()
        .disable_timeout()
        .finish()
}

impl Rail for RailForwarder {
    fn submit(&self, call: RailCall) -> LocalBoxFuture<'static, RailReply> {
        let (url, within, tls) = (format!("{}/submit", self.base), self.read_timeout, self.tls.clone());
        let refused = self.refused.clone();
        let body = json!({
            "client_reference": call.client_reference,
            "amount_minor": call.amount_minor,
            "currency": call.currency,
            "creditor": { "name": call.creditor_name, "account": call.creditor_account },
        })
        .to_string();
        Box::pin(async move {
            let client = client(within, tls.as_ref());
            let request = client
                .post(url)
                .force_close()
                .insert_header((CONTENT_TYPE, "application/json"));
            let reply = bounded(within, request.send_body(body)).await;
            refused.note(&reply);
            reply
        })
    }

    fn look_up(&self, client_reference: String, within: Duration) -> LocalBoxFuture<'static, RailReply> {
        let (url, tls) = (format!("{}/submissions", self.base), self.tls.clone());
        let refused = self.refused.clone();
        Box::pin(async move {
            let client = client(within, tls.as_ref());
            match client.get(url).query(&[("client_reference", client_reference)]) {
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
    let announced = response
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<usize>().ok());
    match response.body().limit(ANSWER_BYTES_MAX).await {
        // A body that ends early is given as if it were whole: its length tells.
        Ok(body) if announced.is_some_and(|announced| announced != body.len()) => {
            RailReply::Nothing(NoAnswer::Truncated)
        }
        Ok(body) => RailReply::Answer {
            status,
            body: body.to_vec(),
        },
        Err(PayloadError::Overflow) => RailReply::Nothing(NoAnswer::Oversized),
        Err(PayloadError::Incomplete(_)) => RailReply::Nothing(NoAnswer::Truncated),
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
