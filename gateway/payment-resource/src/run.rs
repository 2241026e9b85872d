//! The process: store, row, gateway.

use crate::config::{Config, Paydb, RunError};
use crate::document::openapi;
use crate::routes::{PaymentResource, configure};
use actor_kit::{Kit, RestartPolicy};
use gateway_kit::{Drain, Gateway, Settings};
use host_kit::Host;
use payment_core::Payments;
use payment_store::{PaymentStore, PgPayments, SqlitePayments};
use prometheus::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long the readiness asks the store.
const HEALTH_WITHIN: Duration = Duration::from_millis(900);

/// How long a check of the whole ledger may take.
pub(crate) const VERIFY_WITHIN: Duration = Duration::from_secs(60);

/// What whoever looks at the readiness is told while the fence is off (FR-29).
const FENCE_OFF: &str =
    "FENCE POINT (a) IS OFF (payment.fencing.enabled=false): stale workers write here and money is lost";

/// The one place that chooses the backend.
async fn open_store(config: &Config, host: &Host) -> Result<Arc<dyn PaymentStore>, RunError> {
    Ok(match &config.paydb {
        Paydb::Directory(directory) => Arc::new(SqlitePayments::open(directory, config.fencing, host).await?),
        Paydb::Postgres(options) => Arc::new(PgPayments::open(options.clone(), config.fencing, host).await?),
    })
}

/// Opens the store, which brings files to this build's schema, and closes it again. On PostgreSQL the schema is another
/// role's: it is looked at and left alone.
///
/// # Errors
/// [`RunError`].
pub async fn migrate(settings: &Settings, host: &Host) -> Result<(), RunError> {
    let config = Config::from_settings(settings)?;
    open_store(&config, host).await.map(drop)
}

/// Runs the payment resource until it is told to stop.
///
/// # Errors
/// [`RunError`].
pub async fn run(settings: Settings, listen: String, host: Host) -> Result<(), RunError> {
    run_and_tell(settings, listen, host, |_, _| {}).await
}

/// As [`run`]; `listening` is told the address once connections are accepted, and what ends the process.
///
/// # Errors
/// [`RunError`].
pub async fn run_and_tell(
    settings: Settings,
    listen: String,
    host: Host,
    listening: impl FnOnce(SocketAddr, Drain),
) -> Result<(), RunError> {
    let config = Config::from_settings(&settings)?;
    let enforced = config.fencing.is_enforced();
    if !enforced {
        tracing::error!(event = "fencing_off", point = payment_core::POINT, "{FENCE_OFF}");
    }
    let registry = Registry::new();
    let store = open_store(&config, &host).await?;
    let trace_capacity = usize::try_from(settings.integer("debug.trace-capacity")).unwrap_or(usize::MAX);
    let kit = Kit::with(
        "payment-resource",
        &host,
        &registry,
        trace_capacity,
        RestartPolicy::default(),
    );
    let payments = Payments::start(
        &kit,
        &registry,
        store,
        enforced,
        config.ambiguous_sla,
        config.store_timeout,
    );
    let (healthy, alive) = (payments.clone(), payments.clone());
    let store_connections = settings.integer("payment.store.pool-max");
    let mut gateway = Gateway::new("payment-resource", &host, settings, registry, kit)
        .store_connections(store_connections)
        .openapi(openapi())
        .examples(include_str!("examples.json"))
        .list("/v1/ledger/verify")
        .route_timeout("/v1/ledger/verify", VERIFY_WITHIN + VERIFY_WITHIN / 10)
        .ready_check("store", move || {
            let payments = healthy.clone();
            Box::pin(async move {
                let health = payments.store().health(HEALTH_WITHIN).await;
                health.map_err(|error| error.detail().to_owned())
            })
        })
        .ready_check("actors", move || {
            let alive = alive.is_alive();
            Box::pin(async move {
                if alive {
                    Ok(())
                } else {
                    Err("the supervisor of payouts has stopped".to_owned())
                }
            })
        });
    if !enforced {
        gateway = gateway.ready_note("fencing", FENCE_OFF);
    }
    let drain = gateway.drain();
    let server = PaymentResource {
        payments,
        within: config.store_timeout,
        host,
        exports: PaymentResource::exports(),
    };
    gateway
        .serve_and_tell(
            &listen,
            move |config| configure(config, server.clone()),
            |address| listening(address, drain),
        )
        .await?;
    Ok(())
}
