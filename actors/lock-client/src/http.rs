//! The HTTP transport, and the way most applications begin (feature `http`).

use crate::client::{LockClient, LockMetrics, Placement};
use crate::options::{ClientOptions, invalid};
use crate::transport::{Call, CallFailure, CallFuture, Connect, Servers, Transport};
use actor_kit::Kit;
use host_kit::Host;
use http_client::{CallError, Caller, LockServerApi};
use http_contract::lock::{
    AcquireBody, AuditRow, GrantAnswer, HeartbeatAnswer, HeartbeatRequest, LockView, OpenSessionAnswer,
    OpenSessionRequest, ReleaseAnswer, RenewBody,
};
use lock_api::{FencingToken, LockError, LockKey, SessionId};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// The HTTP client's own time-out lies beyond every call's, which is decided per call.
const BEYOND_ANY_CALL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long to wait for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// How many rows of history are read to find a recent revoke.
const HISTORY_ROWS: u32 = 1000;

impl LockClient {
    /// Connects to the lock servers at these addresses (`http://host:port`), in order of preference, from a thread of the
    /// client's own, and waits for the session.
    ///
    /// ```no_run
    /// use lock_client::{ClientOptions, LockClient, lock_api::{LockKey, Owner}};
    ///
    /// # async fn settle(_token: lock_client::lock_api::FencingToken) {}
    /// # async fn payout() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = LockClient::connect(&["http://127.0.0.1:8080"], ClientOptions::new(Owner::new("worker-1")?)).await?;
    /// let held = client.acquire(&LockKey::new("payout:42")?).await?;
    /// settle(held.check_still_held()?).await; // the token goes along with the side effect
    /// held.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Invalid`] when the options or addresses cannot work; [`LockError::Unavailable`] when no server
    /// answered in `lock.acquire.max-attempts` attempts.
    pub async fn connect<S: AsRef<str>>(urls: &[S], options: ClientOptions) -> Result<Self, LockError> {
        let client = Self::connect_in_background(urls, options).await?;
        client.ready().await?;
        Ok(client)
    }

    /// As [`LockClient::connect`], without waiting for the session: it is opened in the background, again and again while
    /// no server answers. [`LockClient::acquire_within`] waits for it within its own budget, so that an outage at its start
    /// ends nothing (case L39); [`LockClient::ready`] waits for it as `connect` does.
    ///
    /// # Errors
    /// [`LockError::Invalid`] when the options or addresses cannot work; [`LockError::Unavailable`] when no thread can be
    /// had.
    pub async fn connect_in_background<S: AsRef<str>>(urls: &[S], options: ClientOptions) -> Result<Self, LockError> {
        let host = Host::system();
        let registry = prometheus::Registry::new();
        let metrics = LockMetrics::new(&registry).map_err(|error| invalid(error.to_string()))?;
        let kit = Kit::new("lock-client", &host, &registry);
        Self::start(options, &kit, &metrics, Placement::OwnThread, over_http(urls, &kit)?).await
    }
}

/// A transport over HTTP to these servers, in order of preference. Each call is recorded in this process's trace.
///
/// # Errors
/// [`LockError::Invalid`] when there is no address, or one that is no `http` address.
pub fn over_http<S: AsRef<str>>(urls: &[S], kit: &Kit) -> Result<Connect, LockError> {
    let urls: Vec<String> = urls.iter().map(|url| url.as_ref().trim().to_owned()).collect();
    if urls.is_empty() {
        return Err(invalid("no lock server address"));
    }
    for (n, url) in urls.iter().enumerate() {
        if let Err(reason) = http_client::base_url(url) {
            // The address is not repeated: it may hold a password.
            return Err(invalid(format!("lock server {} of {} {reason}", n + 1, urls.len())));
        }
    }
    let kit = kit.clone();
    Ok(Box::new(move || {
        let pool = || {
            let client = http_client::client(&http_client::ClientOptions {
                connect_timeout: CONNECT_WITHIN,
                ..http_client::ClientOptions::default()
            });
            over(urls.iter().map(|url| {
                let caller = Caller::new(client.clone(), url.as_str(), BEYOND_ANY_CALL);
                LockServerApi::new(caller.traced(&kit, "lock-server"))
            }))
        };
        Servers {
            work: pool(),
            heartbeat: pool(),
        }
    }))
}

/// One transport per server over HTTP clients of one's own: for a process, or a simulation, that brings its connections.
/// Give heartbeats a client of their own.
#[must_use]
pub fn over(servers: impl IntoIterator<Item = LockServerApi>) -> Vec<Rc<dyn Transport>> {
    servers
        .into_iter()
        .map(|api| Rc::new(Http(api)) as Rc<dyn Transport>)
        .collect()
}

struct Http(LockServerApi);

async fn within<T>(call: Call, work: impl Future<Output = Result<T, CallError>>) -> Result<T, CallFailure> {
    match tokio::time::timeout(call.within, work).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(CallError::Problem(problem))) => Err(CallFailure::Problem(problem)),
        Ok(Err(CallError::NotSent(detail))) => Err(CallFailure::NotSent(detail)),
        Ok(Err(other)) => Err(CallFailure::Ambiguous(other.to_string())),
        Err(_) => Err(CallFailure::Ambiguous(format!("no answer within {:?}", call.within))),
    }
}

impl Transport for Http {
    fn open_session(&self, request: OpenSessionRequest, call: Call) -> CallFuture<OpenSessionAnswer> {
        let api = self.0.clone();
        Box::pin(async move { within(call, api.open_session(&request, &call.trace)).await })
    }

    fn heartbeat(&self, session: SessionId, request: HeartbeatRequest, call: Call) -> CallFuture<HeartbeatAnswer> {
        let api = self.0.clone();
        Box::pin(async move { within(call, api.heartbeat(session.as_str(), &request, &call.trace)).await })
    }

    fn close_session(&self, session: SessionId, call: Call) -> CallFuture<()> {
        let api = self.0.clone();
        Box::pin(async move {
            within(call, api.close_session(session.as_str(), &call.trace))
                .await
                .map(drop)
        })
    }

    fn acquire(&self, key: LockKey, body: AcquireBody, call: Call) -> CallFuture<GrantAnswer> {
        let api = self.0.clone();
        Box::pin(async move { within(call, api.acquire(&key, &body, &call.trace)).await })
    }

    fn renew(&self, key: LockKey, token: FencingToken, body: RenewBody, call: Call) -> CallFuture<GrantAnswer> {
        let api = self.0.clone();
        Box::pin(async move { within(call, api.renew(&key, token, &body, &call.trace)).await })
    }

    fn release(&self, key: LockKey, token: FencingToken, session: SessionId, call: Call) -> CallFuture<ReleaseAnswer> {
        let api = self.0.clone();
        Box::pin(async move { within(call, api.release(&key, session.as_str(), token, &call.trace)).await })
    }

    fn inspect(&self, key: LockKey, call: Call) -> CallFuture<LockView> {
        let api = self.0.clone();
        Box::pin(async move { within(call, api.lock(&key, &call.trace)).await })
    }

    fn history(&self, key: LockKey, call: Call) -> CallFuture<Vec<AuditRow>> {
        let api = self.0.clone();
        Box::pin(async move {
            within(call, api.history(&key, HISTORY_ROWS, None, &call.trace))
                .await
                .map(|page| page.items)
        })
    }
}
