//! A gateway: the HTTP side of one component.

mod answers;
mod black_box;
mod builtin;
mod frame;
mod guard;
mod listener;
mod record;
mod refusals;

#[cfg(test)]
pub(crate) use builtin::{GET_ROUTES, POST_ROUTES};
pub(crate) use frame::Matched;
pub(crate) use listener::Link;
pub use listener::{Connections, Waiting, serve_apps};

use self::black_box::BlackBox;
use crate::metrics::HttpMetrics;
use crate::openapi::Routes;
use crate::{ApiError, Settings};
use actix_web::body::BoxBody;
use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::middleware::from_fn;
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{App, HttpResponse};
use actor_kit::Kit;
use futures_util::future::{LocalBoxFuture, join_all};
use host_kit::Host;
use http_contract::Code;
use prometheus::Registry;
use serde_json::Value;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::watch;

type Check = Arc<dyn Fn() -> LocalBoxFuture<'static, Result<(), String>> + Send + Sync>;
type DrainHook = Box<dyn FnOnce() -> LocalBoxFuture<'static, ()>>;

/// The end of a gateway's life, as its parts see it. Cheap to clone. Long answers (server-sent events, a queued acquire)
/// wait for it beside what they are about.
#[derive(Clone, Debug)]
pub struct Drain(Arc<watch::Sender<bool>>);

impl Drain {
    fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Begins to drain, as SIGTERM does. A second call changes nothing.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Whether draining has begun.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until draining begins.
    pub async fn begun(&self) {
        // The sender lives in `self`, so the channel cannot close while this waits.
        let _ = self.0.subscribe().wait_for(|draining| *draining).await;
    }
}

/// What every request needs of its gateway.
pub(crate) struct Shared {
    pub(crate) component: &'static str,
    pub(crate) host: Host,
    pub(crate) kit: Kit,
    pub(crate) registry: Registry,
    pub(crate) openapi: Value,
    pub(crate) routes: Routes,
    pub(crate) body_bytes_max: usize,
    pub(crate) request_timeout: Duration,
    pub(crate) route_timeouts: Vec<(String, Duration)>,
    pub(crate) checks: Vec<(String, Check)>,
    pub(crate) notes: Vec<(String, Note)>,
    pub(crate) drain: Drain,
    pub(crate) started: AtomicBool,
    pub(crate) metrics: HttpMetrics,
    pub(crate) refusals: refusals::Refusals,
    hosts: guard::Hosts,
    answers: answers::Answers,
    pub(crate) debug: bool,
    pub(crate) debug_control: bool,
    /// The path under which requests stand in the trace.
    pub(crate) requests: Arc<str>,
    black_box: Option<Arc<BlackBox>>,
}

impl Shared {
    /// A handler has panicked, which is in the trace by now.
    fn after_panic(&self, path: &str) {
        if let Some(black_box) = &self.black_box {
            black_box.panicked(path);
        }
    }
}

/// What `/readyz` says although the component is ready; none while there is nothing to say.
type Note = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The HTTP side of one component: its routes inside a frame of request ids, traces, time-outs, problems, metrics and
/// logs, beside the routes that every component has (C3.1).
pub struct Gateway {
    component: &'static str,
    host: Host,
    settings: Settings,
    registry: Registry,
    kit: Kit,
    openapi: Option<utoipa::openapi::OpenApi>,
    examples: Value,
    checks: Vec<(String, Check)>,
    notes: Vec<(String, Note)>,
    route_timeouts: Vec<(String, Duration)>,
    hosts: Vec<String>,
    lists: Vec<&'static str>,
    lists_at_once: usize,
    on_drain: Vec<DrainHook>,
    drain: Drain,
    /// Shared with another listener of the process, where there is one.
    connections: Option<Connections>,
    /// Installed when it serves a socket: tests and simulations write no files by themselves.
    black_box: Option<Arc<BlackBox>>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("component", &self.component)
            .finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway of this component. Its metrics are registered in `registry`, one per process.
    #[must_use]
    pub fn new(component: &'static str, host: &Host, settings: Settings, registry: Registry, kit: Kit) -> Self {
        Self {
            component,
            host: host.clone(),
            settings,
            registry,
            kit,
            openapi: None,
            examples: Value::Null,
            checks: Vec::new(),
            notes: Vec::new(),
            route_timeouts: Vec::new(),
            hosts: Vec::new(),
            lists: vec!["/v1/refusals", "/debug/trace", "/debug/actors"],
            lists_at_once: answers::LISTS_AT_ONCE,
            on_drain: Vec::new(),
            drain: Drain::new(),
            connections: None,
            black_box: None,
        }
    }

    /// The document of the component's routes. Below `/v1/` nothing else is served: a route that is not documented does
    /// not exist.
    #[must_use]
    pub fn openapi(mut self, document: utoipa::openapi::OpenApi) -> Self {
        self.openapi = Some(document);
        self
    }

    /// Answers that a real component has given, for its document: JSON, for each operation id its request, and its answers by
    /// status; refusals by status and code. `scripts/check-openapi --record` writes it.
    ///
    /// # Panics
    /// When it is no JSON: a file of the calling crate.
    #[must_use]
    pub fn examples(mut self, recorded: &str) -> Self {
        self.examples = serde_json::from_str(recorded).expect("examples are JSON");
        self
    }

    /// Something without which the component is not ready. Asked at each `/readyz`, with a second to answer.
    #[must_use]
    pub fn ready_check(
        mut self,
        name: impl Into<String>,
        check: impl Fn() -> LocalBoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name.into(), Arc::new(check)));
        self
    }

    /// Something that whoever looks at the readiness must see although the component is ready: a fence that is off (FR-29).
    #[must_use]
    pub fn ready_note(self, name: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        self.ready_note_while(name, move || Some(text.clone()))
    }

    /// As [`Gateway::ready_note`], as long as there is something to say. Asked at each `/readyz`; must not wait.
    #[must_use]
    pub fn ready_note_while(
        mut self,
        name: impl Into<String>,
        note: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.notes.push((name.into(), Arc::new(note)));
        self
    }

    /// Another time-out than `http.request-timeout` for the route with this path in the document: for one that waits on
    /// purpose.
    #[must_use]
    pub fn route_timeout(mut self, template: impl Into<String>, timeout: Duration) -> Self {
        self.route_timeouts.push((template.into(), timeout));
        self
    }

    /// A route whose GET costs as much as a list, although the document shows no `limit` of it: its requests take turns with
    /// those for lists.
    #[must_use]
    pub fn list(mut self, template: &'static str) -> Self {
        self.lists.push(template);
        self
    }

    /// How many connections the component has to its store at most: lists and exports take a quarter of them, so that there is
    /// always one for a heartbeat, a release or a probe.
    #[must_use]
    pub fn store_connections(mut self, most: u64) -> Self {
        let quarter = usize::try_from(most / 4).unwrap_or(usize::MAX);
        self.lists_at_once = quarter.clamp(1, answers::LISTS_AT_ONCE);
        self
    }

    /// Further names under which this component is asked for, beside those of `http.hosts`.
    #[must_use]
    pub fn hosts(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.hosts.extend(names);
        self
    }

    /// What is to be done when draining begins; the process goes on serving what is in flight meanwhile, and does not end
    /// before this has ended, within `http.drain-timeout`.
    #[must_use]
    pub fn on_drain(mut self, hook: impl FnOnce() -> LocalBoxFuture<'static, ()> + 'static) -> Self {
        self.on_drain.push(Box::new(hook));
        self
    }

    /// The connections of the process, where it has another listener too: both have one bound.
    #[must_use]
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = Some(connections);
        self
    }

    /// The end of this gateway's life: to wait for it, or to bring it about without a signal.
    #[must_use]
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }

    fn shared(&self) -> Data<Shared> {
        let mut openapi = self.openapi.as_ref().map_or(Value::Null, |document| {
            serde_json::to_value(document).expect("an OpenAPI document is plain data")
        });
        let mut routes = Routes::of(&openapi);
        for template in builtin::GET_ROUTES {
            routes.add(template, "GET");
        }
        routes.lists(&self.lists);
        for template in builtin::POST_ROUTES {
            routes.add(template, "POST");
        }
        if !openapi.is_null() {
            crate::document::complete(&mut openapi, &self.examples, builtin::serves);
        }
        let metrics = HttpMetrics::register(&self.registry, self.component);
        metrics.expect(&routes);
        Data::new(Shared {
            component: self.component,
            host: self.host.clone(),
            kit: self.kit.clone(),
            registry: self.registry.clone(),
            openapi,
            routes,
            // At most 65,536 by its bounds.
            body_bytes_max: usize::try_from(self.settings.integer("http.body-limit")).unwrap_or(usize::MAX),
            request_timeout: self.settings.duration("http.request-timeout"),
            route_timeouts: self.route_timeouts.clone(),
            checks: self.checks.clone(),
            notes: self.notes.clone(),
            drain: self.drain.clone(),
            started: AtomicBool::new(false),
            metrics,
            refusals: refusals::Refusals::new(self.host.clock.wall_ms()),
            hosts: guard::Hosts::of(&self.settings, &self.hosts),
            answers: answers::Answers::new(
                usize::try_from(self.settings.integer("http.answer-bytes-max")).unwrap_or(usize::MAX),
                self.lists_at_once,
            ),
            debug: self.settings.boolean("debug.endpoints"),
            debug_control: self.settings.boolean("debug.control"),
            requests: format!("{}/requests", self.component).into(),
            black_box: self.black_box.clone(),
        })
    }

    /// What makes this gateway's actix applications, for whoever serves them without a socket: tests and simulations.
    #[must_use]
    pub fn apps<F>(&self, configure: F) -> Apps<F>
    where
        F: Fn(&mut ServiceConfig) + Clone + Send + 'static,
    {
        Apps {
            shared: self.shared(),
            configure,
        }
    }

    /// Listens on `listen`, logs `"event":"listening"` with the address, serves until SIGTERM, SIGINT or [`Drain::begin`],
    /// drains, and returns. A second signal ends what is still in flight.
    ///
    /// # Errors
    /// The address cannot be listened on, or the server failed.
    pub async fn serve<F>(self, listen: &str, configure: F) -> io::Result<()>
    where
        F: Fn(&mut ServiceConfig) + Clone + Send + 'static,
    {
        self.serve_and_tell(listen, configure, |_| {}).await
    }

    /// As [`Gateway::serve`]; `listening` is told the address once connections are accepted.
    ///
    /// # Errors
    /// As [`Gateway::serve`].
    pub async fn serve_and_tell<F>(
        mut self,
        listen: &str,
        configure: F,
        listening: impl FnOnce(SocketAddr),
    ) -> io::Result<()>
    where
        F: Fn(&mut ServiceConfig) + Clone + Send + 'static,
    {
        self.black_box = BlackBox::install(&self.settings, &self.kit, &self.host);
        let quits = black_box::on_quit(self.black_box.clone());
        let settings = &self.settings;
        let black_box = self
            .black_box
            .clone()
            .filter(|_| settings.boolean("debug.dump-on-exit"));
        let drain_timeout = settings.duration("http.drain-timeout");
        #[cfg(feature = "otel")]
        let exporting = crate::otel::start(&self.host, &self.settings, &self.registry, &self.kit)?;
        let apps = self.apps(configure);
        let (answer_bytes, of_caller) = apps.shared.answers.bounds();
        tracing::info!(event = "answers_bounded", answer_bytes, of_caller);
        let connections = match self.connections.take() {
            Some(connections) => connections,
            None => Connections::of_process(settings, &self.registry)?,
        };
        let (server, addresses) = serve_apps(listen, settings, &connections, drain_timeout, move || apps.app())?;
        let handle = server.handle();
        for address in &addresses {
            tracing::info!(
                event = "listening",
                addr = %address,
                component = self.component,
                version = env!("CARGO_PKG_VERSION"),
            );
        }
        if let Some(address) = addresses.first() {
            listening(*address);
        }
        let (drain, delay) = (self.drain.clone(), settings.duration("http.drain-delay"));
        let hooks = self.on_drain;
        let clock = self.host.clock.clone();
        let ending = async move {
            let reason = tokio::select! {
                biased;
                signal = signalled() => signal,
                () = drain.begun() => "asked to",
            };
            drain.begin();
            tracing::info!(event = "draining", reason);
            let hooks = join_all(hooks.into_iter().map(|hook| hook()));
            let orderly = async {
                let serving = async {
                    clock.sleep(delay).await;
                    handle.stop(true).await;
                };
                let acting = tokio::time::timeout(delay + drain_timeout, hooks);
                let (acted, ()) = futures_util::future::join(acting, serving).await;
                acted.is_ok()
            };
            tokio::select! {
                in_time = orderly => if !in_time {
                    tracing::warn!(event = "drain_cut_short", reason = "http.drain-timeout has passed");
                },
                signal = signalled() => {
                    tracing::warn!(event = "drain_cut_short", reason = signal);
                    handle.stop(false).await;
                }
            }
        };
        let (mut server, mut ending) = (std::pin::pin!(server), std::pin::pin!(ending));
        let served = tokio::select! {
            biased;
            () = &mut ending => server.await,
            served = &mut server => {
                // Stopped by `ending`, which still waits for the hooks; or broken, and then nobody asks it to end.
                if self.drain.is_draining() {
                    ending.await;
                }
                served
            }
        };
        quits.abort();
        if let Some(black_box) = black_box {
            black_box.write_and_tell("exit", "debug.dump-on-exit");
        }
        #[cfg(feature = "otel")]
        if let Some(exporting) = exporting {
            exporting.stop().await;
        }
        tracing::info!(event = "stopped");
        served
    }
}

/// Makes a gateway's actix applications. They share one state; each is to be initialised on the thread that serves it.
#[derive(Clone)]
pub struct Apps<F> {
    shared: Data<Shared>,
    configure: F,
}

impl<F> fmt::Debug for Apps<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apps")
            .field("component", &self.shared.component)
            .finish_non_exhaustive()
    }
}

impl<F: Fn(&mut ServiceConfig) + Clone + Send + 'static> Apps<F> {
    /// One application: the frame, the routes of every component, the component's own.
    pub fn app(
        &self,
    ) -> App<
        impl ServiceFactory<
            ServiceRequest,
            Config = (),
            Response = ServiceResponse<BoxBody>,
            Error = actix_web::Error,
            InitError = (),
        > + use<F>,
    > {
        App::new()
            .app_data(self.shared.clone())
            .configure(|config| builtin::configure(config, &self.shared))
            .configure(&self.configure)
            .default_service(web::to(nothing_here))
            .wrap(from_fn(frame::frame))
    }
}

/// Waits for SIGTERM or SIGINT and says which it was.
async fn signalled() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        },
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(event = "signals_unavailable", %error);
            std::future::pending().await
        }
    }
}

async fn nothing_here() -> Result<HttpResponse, ApiError> {
    Err(ApiError::new(Code::NotFound, "no such route"))
}
