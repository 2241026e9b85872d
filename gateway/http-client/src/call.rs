//! One call: what is sent, what comes back, and what a failure may mean.

use crate::recorded::{CallTrace, Open, Subject};
use crate::whole::{tcp, whole};
use actor_kit::TraceContext;
use awc::error::{ConnectError, SendRequestError};
use awc::http::Method;
use http_contract::refusal::RefusalsAnswer;
use http_contract::{Problem, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The largest answer that is read: exports and pages of a thousand rows fit many times over.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Everything but letters, digits, `-`, `_` and `~` is encoded; the dot too, so that a key `..` is no path step.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Encodes a value as one path segment, or one query value.
#[must_use]
pub fn path_segment(value: &str) -> String {
    utf8_percent_encode(value, SEGMENT).to_string()
}

/// Reads the address of a component, `http://host[:port][/path]`: without blanks around it and slashes at its end.
///
/// # Errors
/// What it must be. The address is not repeated: it may hold a password.
pub fn base_url(text: &str) -> Result<&str, &'static str> {
    let text = text.trim().trim_end_matches('/');
    if text.starts_with("https:") {
        return Err("must begin with http://: components are reached in the clear, no https is spoken to them");
    }
    match text.strip_prefix("http://") {
        Some(host) if !host.is_empty() && !host.contains(char::is_whitespace) => Ok(text),
        _ => Err("must be an address such as http://127.0.0.1:8080"),
    }
}

/// How a client connects and waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long an idle connection is kept. Below the servers' own keep-alive, so that a request does not meet a
    /// connection that is just being closed.
    pub keep_alive: Duration,
    /// How many connections at most to all hosts together.
    pub connections_max: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            keep_alive: Duration::from_secs(10),
            connections_max: 1024,
        }
    }
}

/// An HTTP client for the current thread, without redirects and without a time-out of its own (each call has one).
#[must_use]
pub fn client(options: &ClientOptions) -> awc::Client {
    let connector = awc::Connector::new()
        .connector(whole(tcp()))
        .timeout(options.connect_timeout)
        .conn_keep_alive(options.keep_alive)
        .limit(options.connections_max);
    awc::Client::builder()
        .connector(connector)
        .disable_redirects()
        .disable_timeout()
        .finish()
}

/// Why a call has no answer, by what it may have done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The server refused it and said why.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// It never reached the server: nothing was done.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may or may not have been done: no answer, or a broken one.
    #[error("no answer, it may have been done: {0}")]
    Ambiguous(String),
    /// Something answered, but not what the contract says.
    #[error("unreadable answer (status {status}): {detail}")]
    Garbled {
        /// The HTTP status.
        status: u16,
        /// What was wrong with it.
        detail: String,
    },
}

impl CallError {
    /// The server's problem, where it gave one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }

    /// The problem's code, where the server gave one.
    #[must_use]
    pub fn code(&self) -> Option<http_contract::Code> {
        self.problem().map(|problem| problem.code)
    }

    /// Reads a failure of awc. A connection that was refused, not resolved or not made in time never carried the
    /// request. `Disconnected` was seen after the peer had read all of it, so it is ambiguous, as is everything else.
    fn from_send(error: &SendRequestError) -> Self {
        let text = error.to_string();
        match error {
            SendRequestError::Url(_)
            | SendRequestError::Connect(
                ConnectError::Resolver(_)
                | ConnectError::NoRecords
                | ConnectError::Timeout
                | ConnectError::Unresolved
                | ConnectError::SslIsNotSupported,
            ) => Self::NotSent(text),
            SendRequestError::Connect(ConnectError::Io(io)) if io.kind() == std::io::ErrorKind::ConnectionRefused => {
                Self::NotSent(text)
            }
            _ => Self::Ambiguous(text),
        }
    }
}

/// An answer with what its head said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// The HTTP status, 2xx.
    pub status: u16,
    /// Whether the server replayed what it had recorded before.
    pub replayed: bool,
    /// The body.
    pub body: T,
}

/// Calls one server. Cheap to clone; belongs to one thread.
#[derive(Clone)]
pub struct Caller {
    client: awc::Client,
    base: String,
    timeout: Duration,
    /// Where its calls are recorded; nowhere for the operator's verbs.
    traced: Option<CallTrace>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

/// The head of a call.
pub(crate) struct Head<'a> {
    /// The call's name in traces.
    pub(crate) name: &'static str,
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    pub(crate) trace: &'a TraceContext,
    timeout: Option<Duration>,
    pub(crate) token: Option<u64>,
    pub(crate) about: Subject<'a>,
}

impl<'a> Head<'a> {
    pub(crate) fn new(name: &'static str, method: Method, path: impl Into<String>, trace: &'a TraceContext) -> Self {
        Self {
            name,
            method,
            path: path.into(),
            headers: Vec::new(),
            trace,
            timeout: None,
            token: None,
            about: Subject::Nothing,
        }
    }

    pub(crate) fn get(name: &'static str, path: impl Into<String>, trace: &'a TraceContext) -> Self {
        Self::new(name, Method::GET, path, trace)
    }

    pub(crate) fn post(name: &'static str, path: impl Into<String>, trace: &'a TraceContext) -> Self {
        Self::new(name, Method::POST, path, trace)
    }

    pub(crate) const fn about_key(mut self, key: &'a lock_api::LockKey) -> Self {
        self.about = Subject::Key(key);
        self
    }

    pub(crate) const fn about_payout(mut self, payout_id: &'a str) -> Self {
        self.about = Subject::Payout(payout_id);
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    pub(crate) fn token(mut self, token: lock_api::FencingToken) -> Self {
        self.token = Some(token.get());
        self.header(header::FENCING_TOKEN, token)
    }

    pub(crate) fn optional(self, name: &'static str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.header(name, value),
            None => self,
        }
    }

    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl Caller {
    /// Calls the server at `base` (`http://host:port`, a trailing slash is dropped; see [`base_url`]), each call within
    /// `timeout`.
    #[must_use]
    pub fn new(client: awc::Client, base: impl Into<String>, timeout: Duration) -> Self {
        let base: String = base.into();
        Self {
            client,
            base: base.trim_end_matches('/').to_owned(),
            timeout,
            traced: None,
        }
    }

    /// The same, with each call recorded in the trace of this process, as a call to `peer`: a span of its own, which the
    /// server is told as the cause of its request.
    #[must_use]
    pub fn traced(mut self, kit: &actor_kit::Kit, peer: &str) -> Self {
        self.traced = Some(CallTrace::new(kit, peer));
        self
    }

    /// The server's address.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn request(&self, head: &Head<'_>) -> awc::ClientRequest {
        self.request_in(head, head.trace)
    }

    fn request_in(&self, head: &Head<'_>, trace: &TraceContext) -> awc::ClientRequest {
        let timeout = head.timeout.unwrap_or(self.timeout);
        let mut request = self
            .client
            .request(head.method.clone(), format!("{}{}", self.base, head.path))
            .timeout(timeout)
            .insert_header((header::TRACEPARENT, trace.to_traceparent()));
        for (name, value) in &head.headers {
            request = request.insert_header((*name, value.as_str()));
        }
        request
    }

    /// A call with a JSON body that is answered with JSON.
    pub(crate) async fn json<B: Serialize, T: DeserializeOwned>(
        &self,
        head: Head<'_>,
        body: Option<&B>,
    ) -> Result<Answer<T>, CallError> {
        self.json_seen(head, body, |_| None).await
    }

    /// As [`Self::json`], for an answer that brings a token.
    pub(crate) async fn json_seen<B: Serialize, T: DeserializeOwned>(
        &self,
        head: Head<'_>,
        body: Option<&B>,
        token_of: impl FnOnce(&T) -> Option<u64>,
    ) -> Result<Answer<T>, CallError> {
        let mut open = self.begin(&head);
        let answer = async {
            let (status, replayed, bytes) = self.exchange(&head, body, open.trace()).await?;
            match serde_json::from_slice(&bytes) {
                Ok(body) => Ok(Answer { status, replayed, body }),
                Err(error) => Err(CallError::Garbled {
                    status,
                    detail: error.to_string(),
                }),
            }
        }
        .await;
        if let Some(token) = answer.as_ref().ok().and_then(|answer| token_of(&answer.body)) {
            open.token(token);
        }
        open.end(answer.as_ref().err());
        answer
    }

    fn begin(&self, head: &Head<'_>) -> Open {
        Open::begin(self.traced.as_ref(), head)
    }

    /// A call that is answered with JSON and only the body matters.
    pub(crate) async fn body<B: Serialize, T: DeserializeOwned>(
        &self,
        head: Head<'_>,
        body: Option<&B>,
    ) -> Result<T, CallError> {
        self.json(head, body).await.map(|answer| answer.body)
    }

    /// A call without a body of its own.
    pub(crate) async fn plain<T: DeserializeOwned>(&self, head: Head<'_>) -> Result<T, CallError> {
        self.body::<(), T>(head, None).await
    }

    /// A call whose successful answer is taken as bytes.
    pub(crate) async fn raw<B: Serialize>(
        &self,
        head: Head<'_>,
        body: Option<&B>,
    ) -> Result<(u16, bool, bytes::Bytes), CallError> {
        let open = self.begin(&head);
        let answer = self.exchange(&head, body, open.trace()).await;
        open.end(answer.as_ref().err());
        answer
    }

    async fn exchange<B: Serialize>(
        &self,
        head: &Head<'_>,
        body: Option<&B>,
        trace: &TraceContext,
    ) -> Result<(u16, bool, bytes::Bytes), CallError> {
        let request = self.request_in(head, trace);
        let sent = match body {
            Some(body) => request.send_json(body).await,
            None => request.send().await,
        };
        let timeout = head.timeout.unwrap_or(self.timeout);
        let mut answer = sent.map_err(|error| CallError::from_send(&error))?.timeout(timeout);
        let status = answer.status().as_u16();
        let replayed = answer
            .headers()
            .get(header::IDEMPOTENT_REPLAYED)
            .is_some_and(|value| value == "true");
        let bytes = answer
            .body()
            .limit(ANSWER_BYTES_MAX)
            .await
            .map_err(|error| CallError::Ambiguous(format!("status {status}, body: {error}")))?;
        if (200..300).contains(&status) {
            return Ok((status, replayed, bytes));
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(CallError::Problem(Box::new(problem))),
            Err(error) => Err(CallError::Garbled {
                status,
                detail: error.to_string(),
            }),
        }
    }

    /// Whether `GET path` answers 2xx, for probes (`/readyz`, `/livez`).
    ///
    /// # Errors
    /// Whatever kept it from answering, with a problem's detail where there is one.
    pub async fn probe(&self, path: &str, trace: &TraceContext) -> Result<(), CallError> {
        self.raw::<()>(Head::get("probe", path, trace), None).await.map(drop)
    }

    /// `GET path` as text, for `/metrics`, `/readyz` and exports.
    ///
    /// # Errors
    /// Whatever kept it from answering.
    pub async fn text(&self, path: &str, trace: &TraceContext) -> Result<String, CallError> {
        let (status, _, bytes) = self.raw::<()>(Head::get("text", path, trace), None).await?;
        String::from_utf8(bytes.to_vec()).map_err(|error| CallError::Garbled {
            status,
            detail: error.to_string(),
        })
    }

    /// `GET /v1/refusals`: what this component refused under a token, the newest `limit` that fit.
    ///
    /// # Errors
    /// Whatever kept it from answering.
    pub async fn refusals(
        &self,
        about: RefusalFilter<'_>,
        limit: u32,
        trace: &TraceContext,
    ) -> Result<RefusalsAnswer, CallError> {
        let limit = limit.to_string();
        let parts = [
            ("payout_id", about.payout_id),
            ("account_id", about.account_id),
            ("key", about.key),
            ("limit", Some(limit.as_str())),
        ];
        self.plain(Head::get(
            "list_refusals",
            format!("/v1/refusals{}", query(&parts)),
            trace,
        ))
        .await
    }

    /// `GET path` as JSON, for `/debug/…`, `/version` and whatever has no typed call.
    ///
    /// # Errors
    /// Whatever kept it from answering.
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str, trace: &TraceContext) -> Result<T, CallError> {
        self.plain(Head::get("get", path, trace)).await
    }

    /// `POST path` with a JSON body, for `/debug/…` and whatever has no typed call.
    ///
    /// # Errors
    /// Whatever kept it from answering.
    pub async fn post_json<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        trace: &TraceContext,
    ) -> Result<T, CallError> {
        self.body(Head::post("post", path, trace), Some(body)).await
    }
}

/// Which refusals to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusalFilter<'a> {
    /// Only those about this payout.
    pub payout_id: Option<&'a str>,
    /// Only those about this account.
    pub account_id: Option<&'a str>,
    /// Only those about this lock.
    pub key: Option<&'a str>,
}

/// `?limit=&cursor=` and filters, without those that are missing.
pub(crate) fn query(parts: &[(&str, Option<&str>)]) -> String {
    let mut text = String::new();
    for (name, value) in parts {
        if let Some(value) = value {
            text.push(if text.is_empty() { '?' } else { '&' });
            text.push_str(name);
            text.push('=');
            text.push_str(&path_segment(value));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_path_segment_whatever_it_holds() {
        assert_eq!(path_segment("a/b"), "a%2Fb");
        assert_eq!(path_segment(".."), "%2E%2E");
        assert_eq!(path_segment("%25 ?#é"), "%2525%20%3F%23%C3%A9");
    }

    #[test]
    fn a_query_leaves_out_what_is_missing() {
        assert_eq!(query(&[("state", None)]), "");
        assert_eq!(
            query(&[("state", Some("PENDING")), ("cursor", None), ("limit", Some("5"))]),
            "?state=PENDING&limit=5"
        );
    }

    #[test]
    fn only_a_connection_that_was_never_made_counts_as_not_sent() {
        let io = |kind: std::io::ErrorKind| SendRequestError::Connect(ConnectError::Io(kind.into()));
        assert!(matches!(
            CallError::from_send(&io(std::io::ErrorKind::ConnectionRefused)),
            CallError::NotSent(_)
        ));
        assert!(matches!(
            CallError::from_send(&SendRequestError::Connect(ConnectError::Timeout)),
            CallError::NotSent(_)
        ));
        for ambiguous in [
            io(std::io::ErrorKind::ConnectionReset),
            SendRequestError::Connect(ConnectError::Disconnected),
            SendRequestError::Timeout,
            SendRequestError::Send(std::io::ErrorKind::BrokenPipe.into()),
        ] {
            assert!(
                matches!(CallError::from_send(&ambiguous), CallError::Ambiguous(_)),
                "{ambiguous:?}"
            );
        }
    }
}
