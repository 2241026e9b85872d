//! The rail proxy: fence point (c) as a process, and the one place that speaks to the rail.
//!
//! ```text
//! R1 ─→ desk ─→ submission actor ─→ rail-store (intent │) ─→ forwarder ─→ the rail, once ─→ rail-store (outcome │)
//! R3 ─→ forwarder ─→ the rail, read-only ─→ rail-store          R4 ←─ the rail's asynchronous acks
//! ```
//!
//! Owns: routes R1–R7 (C3.5), the forwarder (what is done with a connection to the rail), the wiring of one process.
//! Does not own: the predicates (`rail-store`), the order of a submission's steps (`rail-core`), payouts.
//! On failure: before an intent is committed a request is refused; afterwards it is never answered 5xx, because meshes
//! and clients retry those: it is answered 409 and read at R2.

mod config;
mod forwarder;
mod line;
mod routes;
mod run;
mod tls;
mod validate;
mod view;

pub use config::{Config, Paydb, RunError};
pub use forwarder::RailForwarder;
pub use routes::openapi;
pub use run::{check, migrate, run};
pub use tls::RailTls;

use actix_web::web::{Data, ServiceConfig};
use actor_kit::{Handle, Kit, RestartPolicy, TraceContext};
use gateway_kit::{Gateway, Settings};
use host_kit::Host;
use prometheus::Registry;
use rail_core::{AwaitQuiet, RailDesk, RailMetrics, RailWatch, Reconciler, SubmissionLimits};
use rail_store::RailStore;
use std::sync::Arc;
use std::time::Duration;

/// The component's name in logs, metrics and actor paths.
pub const COMPONENT: &str = "rail-proxy";

/// What the routes need. Cheap to clone.
#[derive(Clone)]
pub struct State {
    pub(crate) desk: Handle<RailDesk>,
    pub(crate) store: Arc<dyn RailStore>,
    pub(crate) reconciler: Reconciler,
    pub(crate) metrics: RailMetrics,
    pub(crate) host: Host,
    pub(crate) config: Arc<Config>,
}

/// A proxy whose actors run and whose routes are not served yet.
pub struct Assembled {
    /// The frame around its routes.
    pub gateway: Gateway,
    /// What its routes need.
    pub state: State,
}

/// Puts the routes into an application.
pub fn configure(config: &mut ServiceConfig, state: State) {
    config.app_data(Data::new(state));
    routes::configure(config);
}

/// Opens the store, starts the actors on the current `LocalSet` (an actix system is one), and wires the routes.
///
/// # Errors
/// [`RunError`]: a configuration that cannot be served, or a store that cannot be opened.
pub async fn assemble(settings: &Settings, host: &Host) -> Result<Assembled, RunError> {
    let config = Arc::new(Config::from_settings(settings)?);
    let fencing = config.fencing;
    let store = run::open_store(&config, host).await?;
    let registry = Registry::new();
    let kit = Kit::with(
        COMPONENT,
        host,
        &registry,
        usize::try_from(settings.integer("debug.trace-capacity")).unwrap_or(usize::MAX),
        RestartPolicy::default(),
    );
    let metrics = RailMetrics::register(&registry, fencing.is_enforced());
    let rail = Arc::new(RailForwarder::new(
        &config.rail_url,
        config.read_timeout,
        config.rail_tls.clone(),
    ));
    let limits = SubmissionLimits {
        store: config.store_timeout,
    };
    let desk = {
        let (store, rail, metrics) = (store.clone(), rail.clone(), metrics.clone());
        kit.spawn("submissions", move || {
            RailDesk::new(store.clone(), rail.clone(), metrics.clone(), limits)
        })
    };
    {
        let (store, metrics, within) = (store.clone(), metrics.clone(), config.store_timeout);
        kit.spawn("watch", move || RailWatch::new(store.clone(), metrics.clone(), within));
    }
    let reconciler = Reconciler::new(
        store.clone(),
        rail.clone(),
        metrics.clone(),
        host,
        config.visibility_horizon,
        config.store_timeout,
        config.lookup_timeout(),
    );

    let mut gateway = Gateway::new(COMPONENT, host, settings.clone(), registry, kit)
        .store_connections(settings.integer("rail.store.pool-max"))
        .openapi(openapi())
        .examples(include_str!("examples.json"))
        .route_timeout("/v1/rail/submissions", config.submit_route_timeout())
        .route_timeout("/v1/rail/submissions/{payout_id}/lookup", config.lookup_route_timeout())
        .ready_check("store", {
            let store = store.clone();
            move || {
                let store = store.clone();
                Box::pin(async move {
                    let within = Duration::from_millis(900);
                    store.health(within).await.map_err(|error| error.detail().to_owned())
                })
            }
        })
        .ready_note_while("rail", move || {
            let said = rail.handshake_refused()?;
            Some(format!("refused: the last handshake with the rail failed: {said}"))
        })
        .on_drain({
            let (desk, random) = (desk.clone(), host.random.clone());
            let within = config.submit_within();
            move || {
                Box::pin(async move {
                    let trace = TraceContext::root(&random);
                    if let Err(error) = desk.ask(AwaitQuiet, within, &trace).await {
                        tracing::warn!(event = "drain_cut_short", %error);
                    }
                })
            }
        });
    if !fencing.is_enforced() {
        tracing::error!(
            event = "fencing_off",
            point = "rail",
            "THE FENCE AT THE RAIL IS OFF: STALE WORKERS CAN PAY TWICE"
        );
        gateway = gateway.ready_note("fencing", "THE FENCE AT THE RAIL IS OFF: stale workers can pay twice");
    }
    let state = State {
        desk,
        store,
        reconciler,
        metrics,
        host: host.clone(),
        config,
    };
    Ok(Assembled { gateway, state })
}
