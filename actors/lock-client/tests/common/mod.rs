//! The real lock server in this process, on a paused clock and a store in memory, behind links that can be troubled.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use actix_web::http::Method;
use actix_web::test::{self, TestRequest};
use actor_kit::{Kit, TraceContext};
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use gateway_kit::{Gateway, Settings};
use host_kit::{Blocking, Clock, ClockSource, Host, Ids, Random};
use http_contract::lock::{
    AcquireBody, AuditRow, GrantAnswer, HeartbeatAnswer, HeartbeatRequest, LockView, OpenSessionAnswer,
    OpenSessionRequest, ReleaseAnswer, RenewBody, RevokeBody,
};
use http_contract::{Page, Problem};
use lock_api::{FencingToken, LockKey, LostReason, Owner, SessionId};
use lock_client::{
    Call, CallFailure, CallFuture, ClientOptions, HeldLock, LockClient, LockMetrics, LockView as View, Placement,
    Servers, Transport,
};
use lock_core::{LockService, Metrics};
use lock_server::{Bounds, LockServer};
use lock_store::{SqliteLockStore, SqliteLockStoreOptions};
use prometheus::Registry;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn key(key: &str) -> LockKey {
    LockKey::new(key).unwrap()
}

/// Runs on a paused clock: hours pass in milliseconds.
pub fn paused<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let system = actix_rt::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    });
    system.block_on(test());
}

/// Boot time that can run ahead of everything else, as after a suspended host wakes up.
#[derive(Clone)]
pub struct Suspension {
    base: tokio::time::Instant,
    slept_ms: Arc<AtomicU64>,
}

impl Suspension {
    pub fn suspend(&self, by: Duration) {
        self.slept_ms
            .fetch_add(u64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl ClockSource for Suspension {
    fn mono(&self) -> Duration {
        self.base.elapsed()
    }

    fn boot(&self) -> Duration {
        self.base.elapsed() + millis(self.slept_ms.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> i64 {
        i64::try_from(self.boot().as_millis()).unwrap()
    }
}

/// What a link does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No connection.
    Refuse,
    /// The request never arrives, and nothing comes back.
    Swallow,
    /// The server does it, and nothing comes back.
    LoseAnswer,
    /// Something in between answers instead of the server.
    Status(u16),
    /// Something answers that is not what the contract says.
    Garbage,
    /// The request takes this long to the server.
    SlowRequest(Duration),
    /// The answer takes this long from the server.
    SlowAnswer(Duration),
    /// The connection is cut after this long, with the request under way.
    CutAfter(Duration),
    /// A defect: the client's own code panics.
    Panic,
}

struct Rule {
    verb: Option<&'static str>,
    trouble: Trouble,
    times: Option<u32>,
}

/// Verb, time and trace of a call.
type Made = (&'static str, Duration, TraceContext);

type Serve = Rc<dyn Fn(TestRequest) -> LocalBoxFuture<'static, (u16, Bytes)>>;

/// A way to the server.
#[derive(Clone)]
pub struct Link {
    serve: Serve,
    rules: Rc<RefCell<Vec<Rule>>>,
    /// Every call that was made, whatever became of it.
    log: Rc<RefCell<Vec<Made>>>,
    clock: Clock,
    /// How long a request and an answer take at best.
    pub latency: Duration,
}

impl Link {
    pub fn trouble(&self, verb: &'static str, trouble: Trouble) {
        self.rule(Some(verb), trouble, None);
    }

    pub fn trouble_times(&self, verb: &'static str, trouble: Trouble, times: u32) {
        self.rule(Some(verb), trouble, Some(times));
    }

    pub fn cut(&self, trouble: Trouble) {
        self.rule(None, trouble, None);
    }

    fn rule(&self, verb: Option<&'static str>, trouble: Trouble, times: Option<u32>) {
        self.rules.borrow_mut().push(Rule { verb, trouble, times });
    }

    pub fn heal(&self) {
        self.rules.borrow_mut().clear();
    }

    pub fn calls(&self, verb: &str) -> Vec<Duration> {
        self.log
            .borrow()
            .iter()
            .filter(|(called, ..)| *called == verb)
            .map(|(_, at, _)| *at)
            .collect()
    }

    /// The traces that calls of this verb belonged to, in the order in which they were made.
    pub fn traces(&self, verb: &str) -> Vec<[u8; 16]> {
        let log = self.log.borrow();
        log.iter()
            .filter(|(called, ..)| *called == verb)
            .map(|(.., trace)| trace.trace_id())
            .collect()
    }

    fn meet(&self, verb: &'static str) -> Option<Trouble> {
        let mut rules = self.rules.borrow_mut();
        let at = rules
            .iter()
            .position(|rule| rule.verb.is_none_or(|named| named == verb) && rule.times != Some(0))?;
        if let Some(times) = &mut rules[at].times {
            *times -= 1;
        }
        Some(rules[at].trouble)
    }

    async fn travel(
        &self,
        verb: &'static str,
        request: TestRequest,
        trace: TraceContext,
    ) -> Result<(u16, Bytes), CallFailure> {
        self.log.borrow_mut().push((verb, self.clock.mono(), trace));
        let trouble = self.meet(verb);
        match trouble {
            Some(Trouble::Refuse) => return Err(CallFailure::NotSent("connection refused".into())),
            Some(Trouble::Panic) => panic!("a defect on purpose"),
            Some(Trouble::Swallow) => return std::future::pending().await,
            Some(Trouble::Status(status)) => return Ok((status, Bytes::from_static(b"{\"not\": \"ours\"}"))),
            Some(Trouble::Garbage) => return Ok((200, Bytes::from_static(b"\x00<html>"))),
            Some(Trouble::SlowRequest(by)) => tokio::time::sleep(by).await,
            _ => {}
        }
        tokio::time::sleep(self.latency).await;
        let served = (self.serve)(request);
        let answer = match trouble {
            Some(Trouble::CutAfter(after)) => tokio::time::timeout(after, served)
                .await
                .map_err(|_| CallFailure::Ambiguous("connection reset".into()))?,
            _ => served.await,
        };
        match trouble {
            Some(Trouble::LoseAnswer) => return std::future::pending().await,
            Some(Trouble::SlowAnswer(by)) => tokio::time::sleep(by).await,
            _ => {}
        }
        tokio::time::sleep(self.latency).await;
        Ok(answer)
    }

    fn call<T: DeserializeOwned + 'static>(
        &self,
        verb: &'static str,
        request: TestRequest,
        call: Call,
    ) -> CallFuture<T> {
        let link = self.clone();
        let request = request.insert_header(("traceparent", call.trace.to_traceparent()));
        Box::pin(async move {
            let answered = tokio::time::timeout(call.within, link.travel(verb, request, call.trace)).await;
            let (status, body) = answered.map_err(|_| CallFailure::Ambiguous("time-out".into()))??;
            let garbled = |error: serde_json::Error| CallFailure::Ambiguous(format!("status {status}: {error}"));
            if status < 300 {
                return serde_json::from_slice(&body).map_err(garbled);
            }
            let problem: Problem = serde_json::from_slice(&body).map_err(garbled)?;
            Err(CallFailure::Problem(Box::new(problem)))
        })
    }
}

fn path(key: &LockKey, rest: &str) -> String {
    let encoded: String = key
        .as_str()
        .bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect();
    format!("/v1/locks/{encoded}{rest}")
}

fn request(method: Method, uri: &str) -> TestRequest {
    TestRequest::default().method(method).uri(uri)
}

impl Transport for Link {
    fn open_session(&self, body: OpenSessionRequest, call: Call) -> CallFuture<OpenSessionAnswer> {
        self.call("open", request(Method::POST, "/v1/sessions").set_json(body), call)
    }

    fn heartbeat(&self, session: SessionId, body: HeartbeatRequest, call: Call) -> CallFuture<HeartbeatAnswer> {
        let uri = format!("/v1/sessions/{session}/heartbeat");
        self.call("heartbeat", request(Method::POST, &uri).set_json(body), call)
    }

    fn close_session(&self, session: SessionId, call: Call) -> CallFuture<()> {
        let closed = self.call::<serde_json::Value>(
            "close",
            request(Method::DELETE, &format!("/v1/sessions/{session}")),
            call,
        );
        Box::pin(async move { closed.await.map(drop) })
    }

    fn acquire(&self, key: LockKey, body: AcquireBody, call: Call) -> CallFuture<GrantAnswer> {
        self.call(
            "acquire",
            request(Method::POST, &path(&key, "/acquire")).set_json(body),
            call,
        )
    }

    fn renew(&self, key: LockKey, token: FencingToken, body: RenewBody, call: Call) -> CallFuture<GrantAnswer> {
        let renew = request(Method::POST, &path(&key, "/renew")).insert_header(("X-Fencing-Token", token.to_string()));
        self.call("renew", renew.set_json(body), call)
    }

    fn release(&self, key: LockKey, token: FencingToken, session: SessionId, call: Call) -> CallFuture<ReleaseAnswer> {
        let uri = path(&key, &format!("?session_id={session}"));
        self.call(
            "release",
            request(Method::DELETE, &uri).insert_header(("X-Fencing-Token", token.to_string())),
            call,
        )
    }

    fn inspect(&self, key: LockKey, call: Call) -> CallFuture<LockView> {
        self.call("inspect", request(Method::GET, &path(&key, "")), call)
    }

    fn history(&self, key: LockKey, call: Call) -> CallFuture<Vec<AuditRow>> {
        let rows = self.call::<Page<AuditRow>>(
            "history",
            request(Method::GET, &path(&key, "/history?limit=1000")),
            call,
        );
        Box::pin(async move { rows.await.map(|page| page.items) })
    }
}

/// One lock server, reached over as many links as are asked for.
pub struct Lab {
    serve: Serve,
    pub clock: Clock,
    pub server_host: Host,
}

impl Lab {
    pub async fn new() -> Self {
        Self::with(&[]).await
    }

    pub async fn with(flags: &[(&str, &str)]) -> Self {
        let host = Host::simulated(7);
        let flags: Vec<_> = flags
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let settings = Settings::load(None, Vec::new(), &flags).unwrap();
        let registry = Registry::new();
        let store = SqliteLockStore::open(SqliteLockStoreOptions::memory(), &host)
            .await
            .unwrap();
        let kit = Kit::new("lock-server", &host, &registry);
        let config = lock_server::core_config(&settings);
        let service = LockService::start(&kit, Arc::new(store), config, Metrics::new(&registry));
        let bounds = Bounds::of(&settings);
        let gateway = Gateway::new("lock-server", &host, settings, registry, kit)
            .openapi(lock_server::openapi())
            .route_timeout("/v1/locks/{key}/acquire", secs(40));
        let server = LockServer {
            service,
            bounds,
            host: host.clone(),
            drain: gateway.drain(),
        };
        let apps = gateway.apps(move |config| lock_server::configure(config, server.clone()));
        let app = Rc::new(test::init_service(apps.app()).await);
        let serve: Serve = Rc::new(move |request| {
            let app = app.clone();
            Box::pin(async move {
                let response = test::call_service(&*app, request.to_request()).await;
                (response.status().as_u16(), test::read_body(response).await)
            })
        });
        Self {
            serve,
            clock: host.clock.clone(),
            server_host: host,
        }
    }

    pub fn link(&self) -> Link {
        Link {
            serve: self.serve.clone(),
            rules: Rc::default(),
            log: Rc::default(),
            clock: self.clock.clone(),
            latency: millis(1),
        }
    }

    /// A call of somebody else, over an untroubled way.
    pub async fn ask(
        &self,
        method: Method,
        uri: &str,
        headers: &[(&'static str, &str)],
        body: Option<serde_json::Value>,
    ) -> (u16, serde_json::Value) {
        let mut asked = request(method, uri);
        for (name, value) in headers {
            asked = asked.insert_header((*name, *value));
        }
        if let Some(body) = body {
            asked = asked.set_json(body);
        }
        let (status, bytes) = (self.serve)(asked).await;
        (
            status,
            serde_json::from_slice(&bytes).unwrap_or(serde_json::Value::Null),
        )
    }

    pub async fn show(&self, key: &LockKey) -> LockView {
        let (status, body) = self.ask(Method::GET, &path(key, ""), &[], None).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_value(body).unwrap()
    }

    pub async fn history(&self, key: &LockKey) -> Vec<AuditRow> {
        let (status, body) = self
            .ask(Method::GET, &path(key, "/history?limit=1000"), &[], None)
            .await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_value::<Page<AuditRow>>(body).unwrap().items
    }

    pub async fn revoke(&self, key: &LockKey, token: FencingToken) -> u64 {
        let body = RevokeBody {
            revoke_token: token.get(),
            reason: "stuck for an hour".into(),
        };
        let body = serde_json::to_value(body).unwrap();
        let (status, body) = self
            .ask(
                Method::POST,
                &path(key, "/revoke"),
                &[("X-Operator", "olga")],
                Some(body),
            )
            .await;
        assert_eq!(status, 200, "{body}");
        body["token"].as_u64().unwrap()
    }

    pub async fn raw_acquire(&self, key: &LockKey, body: serde_json::Value) -> (u16, serde_json::Value) {
        self.ask(Method::POST, &path(key, "/acquire"), &[], Some(body)).await
    }

    pub async fn raw_release(&self, key: &LockKey, session: &str, token: FencingToken) -> (u16, serde_json::Value) {
        let uri = path(key, &format!("?session_id={session}"));
        self.ask(Method::DELETE, &uri, &[("X-Fencing-Token", &token.to_string())], None)
            .await
    }

    pub async fn sessions(&self) -> Vec<serde_json::Value> {
        let (_, body) = self.ask(Method::GET, "/v1/sessions", &[], None).await;
        body["items"].as_array().unwrap().clone()
    }

    pub async fn session_of(&self, owner: &str) -> String {
        let sessions = self.sessions().await;
        let found = sessions.iter().find(|session| session["owner"] == owner).unwrap();
        found["session_id"].as_str().unwrap().to_owned()
    }

    /// Somebody else's session.
    pub async fn raw_session(&self, owner: &str) -> String {
        let body = serde_json::json!({ "owner": owner, "ttl_ms": 300_000 });
        let (status, body) = self.ask(Method::POST, "/v1/sessions", &[], Some(body)).await;
        assert_eq!(status, 201);
        body["session_id"].as_str().unwrap().to_owned()
    }

    pub fn host(&self, seed: u64) -> Host {
        Host::simulated(seed)
    }
}

/// A client on this thread, with the links it uses.
pub struct Bench {
    pub client: LockClient,
    pub links: Vec<Link>,
    pub beats: Vec<Link>,
    pub kit: Kit,
    pub registry: Registry,
}

pub fn options(owner: &str) -> ClientOptions {
    ClientOptions::new(Owner::new(owner).unwrap())
}

impl Bench {
    /// Over one link for work and one for heartbeats.
    pub async fn new(lab: &Lab, options: ClientOptions) -> Self {
        let bench = Self::start(lab, options, 1, &lab.host(11)).await;
        bench.client.ready().await.unwrap();
        bench
    }

    pub async fn start(lab: &Lab, options: ClientOptions, servers: usize, host: &Host) -> Self {
        let links: Vec<_> = (0..servers).map(|_| lab.link()).collect();
        let beats: Vec<_> = (0..servers).map(|_| lab.link()).collect();
        let registry = Registry::new();
        let kit = Kit::new("test", host, &registry);
        let metrics = LockMetrics::new(&registry).unwrap();
        // Links belong to this thread, and so does a client that is placed here: the closure is called before it could
        // go anywhere else.
        let servers = OnThisThread(Servers {
            work: links
                .iter()
                .map(|link| Rc::new(link.clone()) as Rc<dyn Transport>)
                .collect(),
            heartbeat: beats
                .iter()
                .map(|link| Rc::new(link.clone()) as Rc<dyn Transport>)
                .collect(),
        });
        PLACED.with(|placed| placed.borrow_mut().replace(servers));
        let connect = Box::new(|| PLACED.with(|placed| placed.borrow_mut().take().unwrap().0));
        let client = LockClient::start(options, &kit, &metrics, Placement::Here, connect)
            .await
            .unwrap();
        Self {
            client,
            links,
            beats,
            kit,
            registry,
        }
    }

    pub fn link(&self) -> &Link {
        &self.links[0]
    }

    pub fn beat(&self) -> &Link {
        &self.beats[0]
    }

    pub fn lost(&self, reason: &str) -> u64 {
        let families = self.registry.gather();
        let lost = families
            .iter()
            .find(|family| family.name() == "lock_lost_total")
            .unwrap();
        let metric = lost
            .get_metric()
            .iter()
            .find(|metric| metric.get_label()[0].value() == reason);
        metric.map_or(0, |metric| metric.get_counter().get_value() as u64)
    }

    pub async fn observe(&self) -> serde_json::Value {
        let actors = self.kit.actors().await;
        let client = actors.iter().find(|actor| actor.path.ends_with("lock-client")).unwrap();
        serde_json::to_value(&client.state).unwrap()
    }
}

struct OnThisThread(Servers);

thread_local! {
    static PLACED: RefCell<Option<OnThisThread>> = const { RefCell::new(None) };
}

/// Hears of losses.
#[derive(Clone, Default)]
pub struct Ear(Arc<Mutex<Vec<LostReason>>>);

impl Ear {
    pub fn of(view: &View) -> Self {
        let ear = Self::default();
        let heard = ear.0.clone();
        view.on_lock_lost(move |lost| heard.lock().unwrap().push(lost.reason));
        ear
    }

    pub fn on(held: &HeldLock) -> Self {
        Self::of(&held.view())
    }

    pub fn heard(&self) -> Vec<LostReason> {
        self.0.lock().unwrap().clone()
    }
}

/// A host whose boot time can be sent ahead.
pub fn suspendable(seed: u64) -> (Host, Suspension) {
    let suspension = Suspension {
        base: tokio::time::Instant::now(),
        slept_ms: Arc::default(),
    };
    let (clock, random) = (Clock::new(suspension.clone()), Random::seeded(seed));
    let host = Host {
        ids: Ids::new(clock.clone(), random.clone()),
        clock,
        random,
        blocking: Blocking::Inline,
        faults: host_kit::Faults::none(),
    };
    (host, suspension)
}
