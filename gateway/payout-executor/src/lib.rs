//! The payout worker as a process, with its operations endpoints.
//!
//! ```text
//! settings → SDK session (own thread) + HTTP ports → executor-core's actors          /livez /readyz /metrics /debug/…
//! ```
//!
//! Owns: the HTTP implementation of the executor's ports (each with its token and `X-Actor`), the wiring of one process,
//! its drain.
//! Does not own: any decision about a payout (`executor-core`), the lock (`lock-client`); it serves no route of its own.
//! On failure: without a session it is not ready and pays nothing (FR-27). SIGTERM finishes the payout in hand within
//! `http.drain-timeout` and releases its lock; what does not end by then is left as it is recorded.

mod config;
mod ports;

pub use config::{Config, RunError};
pub use ports::{HttpPayments, HttpRail};

use actor_kit::{Kit, RestartPolicy};
use executor_core::{Executor, ExecutorMetrics, History};
use gateway_kit::{Gateway, Settings};
use host_kit::Host;
use http_client::{Caller, PaymentApi, RailProxyApi};
use lock_client::{LockClient, LockMetrics, Placement, over_http};
use prometheus::Registry;
use std::rc::Rc;
use utoipa::OpenApi;

/// The component's name in logs, metrics and actor paths.
pub const COMPONENT: &str = "payout-executor";

#[derive(OpenApi)]
#[openapi(info(
    title = "dlock payout-executor",
    description = "The payout worker. It serves operations endpoints only."
))]
struct Document;

/// The OpenAPI document: no routes of its own.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// An executor that works already, and whose operations endpoints are not served yet.
pub struct Assembled {
    /// The frame around the operations endpoints; draining it drains the executor.
    pub gateway: Gateway,
    /// Its actors.
    pub executor: Executor,
    /// Its session.
    pub locks: LockClient,
}

/// Opens the session and starts the actors on the current `LocalSet` (an actix system is one).
///
/// # Errors
/// [`RunError`]: a configuration that cannot work.
pub async fn assemble(settings: &Settings, host: &Host, placement: Placement) -> Result<Assembled, RunError> {
    let config = Config::from_settings(settings)?;
    let registry = Registry::new();
    let kit = Kit::with(
        COMPONENT,
        host,
        &registry,
        usize::try_from(settings.integer("debug.trace-capacity")).unwrap_or(usize::MAX),
        RestartPolicy::default(),
    );
    kit.name_instance(config.lock_options.owner.as_str());
    let metrics = ExecutorMetrics::new(&registry)?;
    let lock_metrics = LockMetrics::new(&registry)?;
    let history = match &config.history_file {
        Some(path) => History::append(path, config.lock_options.owner.as_str(), &host.clock)
            .map_err(|error| RunError::History(path.clone(), error))?,
        None => History::off(),
    };
    let connect = over_http(&config.lock_servers, &kit)?;
    let mut lock_options = config.lock_options.clone();
    lock_options.lease_watch = history.lease_watch(lock_options.lock_delay);
    let locks = LockClient::start(lock_options, &kit, &lock_metrics, placement, connect).await?;

    let actor = config.lock_options.owner.as_str();
    // One pool per server, so that a rail that keeps silent takes no connection from the payment resource.
    let caller = |url: &str, peer: &str| {
        Caller::new(
            http_client::client(&http_client::ClientOptions::default()),
            url,
            config.call_timeout,
        )
        .traced(&kit, peer)
    };
    let payments = HttpPayments::new(PaymentApi::new(caller(&config.payments, "payment-resource")), actor);
    let rail = HttpRail::new(RailProxyApi::new(caller(&config.rail_proxy, "rail-proxy")), actor);
    let executor = Executor::start(
        &config.executor,
        &kit,
        Rc::new(payments),
        Rc::new(rail),
        locks.clone(),
        history,
        metrics,
    );

    let mut gateway = Gateway::new(COMPONENT, host, settings.clone(), registry, kit)
        .openapi(openapi())
        .ready_check("lock-session", {
            let locks = locks.clone();
            move || {
                let locks = locks.clone();
                Box::pin(async move { locks.ready().await.map_err(|error| error.to_string()) })
            }
        })
        .on_drain({
            let (executor, locks, within) = (executor.clone(), locks.clone(), settings.duration("http.drain-timeout"));
            move || {
                Box::pin(async move {
                    if !executor.drain(within).await {
                        tracing::warn!(event = "drain_cut_short", "a payout is left as it is recorded");
                        return;
                    }
                    // Nothing is held any more; the session needs no time to expire.
                    if let Err(error) = locks.close().await {
                        tracing::info!(event = "session_not_closed", %error);
                    }
                })
            }
        });
    #[cfg(feature = "lab")]
    if config.executor.ignore_lock_lost {
        tracing::error!(
            event = "lock_lost_ignored",
            "THIS WORKER GOES ON WITHOUT ITS LOCK: ONLY THE FENCES HOLD IT BACK"
        );
        gateway = gateway.ready_note(
            "lock",
            "THIS WORKER GOES ON WITHOUT ITS LOCK: only the fences hold it back",
        );
    }
    let _ = &mut gateway;
    Ok(Assembled {
        gateway,
        executor,
        locks,
    })
}

/// The process: works, and serves its operations endpoints on `listen`, until SIGTERM; then drains.
///
/// # Errors
/// [`RunError`].
pub async fn run(settings: Settings, listen: String, host: Host) -> Result<(), RunError> {
    let Assembled { gateway, .. } = assemble(&settings, &host, Placement::OwnThread).await?;
    gateway.serve(&listen, |_| {}).await.map_err(RunError::Serve)
}
