//! A fencing reverse proxy before a service that knows nothing of tokens.
//!
//! ```text
//! caller ─→ listener ─→ handler ─→ Keeper (intent │) ─→ exchange ─→ the service, once ─→ Keeper (end │) ─→ caller
//! operator ─→ admin listener ─→ what is open, clear
//! ```
//!
//! Owns: two listeners, the order of a request's steps, its bounds. Does not own: what a request means; anything that
//! reaches the service by another way than this.
//! On failure: closed. A request that was passed on and not answered closes its key to newer tokens, also over a crash of
//! this process, until its answer, the bound that the service declares, or an operator.

mod admin;
mod exchange;
mod handler;
mod headers;
mod key;
mod metrics;

pub use admin::{ClearAnswer, ClearBody, MarkAnswer, OpenAnswer, OpenRow, openapi};
pub use key::KeySource;

use crate::keeper::{Keeper, KeeperOptions};
use crate::marks::SqliteMarks;
use actix_web::{App, web};
use actor_kit::{Kit, RestartPolicy};
use gateway_kit::{Connections, Gateway, Settings, serve_apps};
use host_kit::Host;
use lock_api::StoreError;
use metrics::ProxyMetrics;
use prometheus::Registry;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// The component's name in logs and metrics.
pub const COMPONENT: &str = "fence-proxy";

/// How the proxy is run. [`ProxyOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// Where callers come.
    pub listen: String,
    /// Where probes, metrics and operators come: apart, so that no path of the service is shadowed.
    pub admin: String,
    /// The service: `http://host:port`, with a path where all of its own begin with one.
    pub upstream: String,
    /// The file of the marks.
    pub store: PathBuf,
    /// What a request acts on.
    pub key: KeySource,
    /// How it decides.
    pub keeper: KeeperOptions,
    /// GET and HEAD need a token too.
    pub fence_reads: bool,
    /// The bound on one fenced exchange, from the connection to the last byte; of a read, on its head and on each pause.
    pub timeout: Duration,
    /// The bound on a connection to the service.
    pub connect_timeout: Duration,
    /// The largest body that is passed on.
    pub body_bytes_max: u64,
    /// The most requests on their way at once.
    pub in_flight_max: usize,
}

impl ProxyOptions {
    /// A proxy that lets a holder go on under its token, leaves reads alone, waits 30 s for an answer and 2 s for a
    /// connection, passes bodies of 16 MiB and 1,024 requests at once, and never believes that an unanswered one is done.
    #[must_use]
    pub fn new(
        listen: impl Into<String>,
        admin: impl Into<String>,
        upstream: impl Into<String>,
        store: impl Into<PathBuf>,
        key: KeySource,
    ) -> Self {
        Self {
            listen: listen.into(),
            admin: admin.into(),
            upstream: upstream.into(),
            store: store.into(),
            key,
            keeper: KeeperOptions::default(),
            fence_reads: false,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(2),
            body_bytes_max: 16 << 20,
            in_flight_max: 1_024,
        }
    }
}

/// Why the proxy cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An option that it cannot serve.
    #[error("{0}")]
    Option(String),
    /// The marks cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address cannot be listened on, or a server failed.
    #[error(transparent)]
    Serve(#[from] io::Error),
}

/// What every request needs.
struct State {
    keeper: Keeper,
    options: ProxyOptions,
    metrics: ProxyMetrics,
    room: Arc<Semaphore>,
    draining: AtomicBool,
}

impl State {
    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    fn levels(&self) {
        self.metrics.levels(self.keeper.in_flight(), self.keeper.in_doubt());
    }

    /// How many requests are on their way, reads among them.
    fn on_their_way(&self) -> usize {
        self.options.in_flight_max.saturating_sub(self.room.available_permits())
    }
}

/// Where the proxy listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For callers.
    pub listen: SocketAddr,
    /// For operators.
    pub admin: SocketAddr,
}

/// Serves until SIGTERM or SIGINT, then drains: what is on its way is answered, nothing new is passed on. `listening` is
/// told the addresses.
///
/// # Errors
/// [`RunError`].
pub async fn serve(
    mut options: ProxyOptions,
    settings: Settings,
    host: Host,
    listening: impl FnOnce(Addresses),
) -> Result<(), RunError> {
    options.upstream = upstream(&options.upstream).map_err(RunError::Option)?;
    let store = SqliteMarks::open(&options.store, &host)?;
    let keeper = Keeper::new(Arc::new(store), &host, options.keeper).await?;
    let registry = Registry::new();
    let kit = Kit::with(
        COMPONENT,
        &host,
        &registry,
        usize::try_from(settings.integer("debug.trace-capacity")).unwrap_or(usize::MAX),
        RestartPolicy::default(),
    );
    let admin = options.admin.clone();
    let state = web::Data::new(State {
        keeper: keeper.clone(),
        metrics: ProxyMetrics::register(&registry),
        room: Arc::new(Semaphore::new(options.in_flight_max)),
        draining: AtomicBool::new(false),
        options,
    });
    state.levels();

    let connections = Connections::of_process(&settings, &registry)?;
    let (server, addresses) = {
        let (proxied, listen) = (state.clone(), &state.options.listen);
        let apps = move || {
            App::new()
                .app_data(proxied.clone())
                .default_service(web::to(handler::handle))
        };
        serve_apps(listen, &settings, &connections, Duration::from_secs(2), apps)?
    };
    let address = *addresses
        .first()
        .ok_or_else(|| io::Error::other("the listener has no address"))?;
    let handle = server.handle();
    tracing::info!(event = "proxying", addr = %address, component = COMPONENT);

    let (delay, drain_within) = (
        settings.duration("http.drain-delay"),
        settings.duration("http.drain-timeout"),
    );
    let gateway = Gateway::new(COMPONENT, &host, settings, registry, kit)
        .connections(connections)
        .openapi(openapi())
        .examples(include_str!("../examples.json"))
        .ready_check("store", {
            let keeper = keeper.clone();
            move || {
                let keeper = keeper.clone();
                Box::pin(async move {
                    let within = Duration::from_secs(1);
                    keeper.marks().health(within).await.map_err(|error| error.to_string())
                })
            }
        })
        .on_drain({
            let (state, clock) = (state.clone(), host.clock.clone());
            move || Box::pin(async move { drain(&state, &clock, delay, drain_within).await })
        });
    let ending = gateway.drain();
    let proxying = actix_rt::spawn(async move {
        let served = server.await;
        // Nobody is served any more: the process has no other purpose.
        ending.begin();
        served
    });
    let admin_state = state.clone();
    gateway
        .serve_and_tell(
            &admin,
            move |config| admin::configure(config, admin_state.clone()),
            |admin| {
                listening(Addresses { listen: address, admin });
            },
        )
        .await?;
    handle.stop(true).await;
    keeper.flush().await;
    proxying.await.map_err(io::Error::other)??;
    Ok(())
}

/// Passes nothing on any more, and waits for what is on its way. What is still there when the time has passed stays open on
/// disk.
async fn drain(state: &State, clock: &host_kit::Clock, delay: Duration, within: Duration) {
    clock.sleep(delay).await;
    state.draining.store(true, Ordering::Release);
    let until = clock.mono() + within;
    while state.on_their_way() > 0 && clock.mono() < until {
        clock.sleep(Duration::from_millis(10)).await;
    }
    if state.on_their_way() > 0 {
        tracing::warn!(event = "drain_cut_short", reason = "requests are still on their way");
    }
}

/// Whether [`ProxyOptions::upstream`] is one that [`serve`] can reach: plain HTTP, without a query and a user.
///
/// # Errors
/// [`RunError::Option`].
pub fn check_upstream(text: &str) -> Result<(), RunError> {
    upstream(text).map(drop).map_err(RunError::Option)
}

/// An address without the slash at its end.
fn upstream(text: &str) -> Result<String, String> {
    let text = text.trim_end_matches('/');
    let wrong = |reason: &str| Err(format!("--upstream {reason}"));
    match text.parse::<actix_web::http::Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty()) => {
            if uri.query().is_some()
                || uri
                    .authority()
                    .is_some_and(|authority| authority.as_str().contains('@'))
            {
                return wrong("must have no query and no user");
            }
            Ok(text.to_owned())
        }
        Ok(_) => wrong("must begin with http:// and name a host"),
        Err(error) => wrong(&format!("is no address: {error}")),
    }
}
