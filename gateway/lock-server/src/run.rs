//! The process: store, core, gateway.

use crate::bounds::Bounds;
use crate::document::openapi_within;
use crate::routes::{LockServer, configure};
use actor_kit::{Kit, TraceContext};
use futures_util::future::LocalBoxFuture;
use gateway_kit::{Gateway, Settings};
use host_kit::Host;
use lock_api::{LineageState, LockStore, StoreError};
use lock_core::{Config, LockService, Metrics};
use lock_store::{PgLockStore, PgLockStoreOptions, SqliteLockStore, SqliteLockStoreOptions};
use pg_kit::{Access, PasswordSource};
use prometheus::Registry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Why the lock server does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The store cannot be opened.
    #[error("the lock store {url} cannot be opened: {error}")]
    Store {
        /// Where it is, without secrets.
        url: String,
        /// Why.
        error: StoreError,
    },
    /// This build has no such backend.
    #[error("the lock store {url} is of a kind this build does not have; it has sqlite:PATH, postgres://…{}", if cfg!(feature = "etcd") { " and etcd://host:port" } else { "" })]
    UnknownStore {
        /// Where it is, without secrets.
        url: String,
    },
    /// The address cannot be listened on, or the server failed.
    #[error(transparent)]
    Http(#[from] io::Error),
}

/// What the core keeps to under this configuration.
#[must_use]
pub fn core_config(settings: &Settings) -> Config {
    let count = |name| usize::try_from(settings.integer(name)).unwrap_or(usize::MAX);
    Config {
        store_timeout: settings.duration("lock.store.timeout"),
        batch_max: count("lock.store.batch-max"),
        waiters_max: count("lock.acquire.waiters-max"),
        expiry_interval: settings.duration("lock.expiry.interval"),
        tombstone_retention: settings.duration("lock.tombstone.retention"),
        seal_interval: settings.duration("lock.audit.seal-interval"),
        audit_retention: settings.duration("lock.audit.retention"),
        // Seldom beside the sealing, without which there is nothing to drop; never less often than hourly.
        drop_interval: (settings.duration("lock.audit.seal-interval") * 30).min(Duration::from_secs(60 * 60)),
        // Purged several times within the shortest retention that is of use, but not in a tight loop.
        purge_interval: (settings.duration("lock.tombstone.retention") / 4)
            .clamp(Duration::from_millis(250), Duration::from_secs(10)),
        ..Config::default()
    }
}

/// How often it is said that the store is not open yet.
const SAYS_EVERY: Duration = Duration::from_secs(5);

/// An open backend, and how it is closed.
struct Backend {
    store: Arc<dyn LockStore>,
    close: LocalBoxFuture<'static, ()>,
}

/// The settings of the store on PostgreSQL.
fn pg_options(settings: &Settings, url: &str, expected_lineage: Option<String>) -> PgLockStoreOptions {
    let access = Access {
        password: PasswordSource::file_or_environment(settings.text("lock.store.password-file")),
        pool_max: usize::try_from(settings.integer("lock.store.pool-max")).unwrap_or(usize::MAX),
        connect_within: settings.duration("lock.store.connect-timeout"),
        ..Access::at(url)
    };
    let mut options = PgLockStoreOptions {
        access,
        through_pooler: settings.boolean("lock.store.pooler"),
        expected_lineage,
        ..PgLockStoreOptions::at(url)
    };
    if let Some(schema) = settings.text("lock.store.schema") {
        schema.clone_into(&mut options.schema);
    }
    options
}

/// Opens the store. As long as that takes, it is said what is waited for.
async fn open_store(settings: &Settings, host: &Host) -> Result<Backend, RunError> {
    let url = gateway_kit::mask(settings.text("lock.store.url").unwrap_or_default());
    let mut opening = std::pin::pin!(open_backend(settings, host));
    let since = host.clock.mono();
    loop {
        tokio::select! {
            biased;
            opened = &mut opening => return opened,
            () = host.clock.sleep(SAYS_EVERY) => {
                let waited = host.clock.mono().saturating_sub(since);
                tracing::warn!(event = "lock_store_awaited", url, waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
            }
        }
    }
}

/// The one place that chooses the backend.
async fn open_backend(settings: &Settings, host: &Host) -> Result<Backend, RunError> {
    let url = settings.text("lock.store.url").unwrap_or_default();
    let shown = gateway_kit::mask(url);
    let expected_lineage = settings.text("lock.store.lineage").map(str::to_owned);
    let opened = if let Some(path) = url.strip_prefix("sqlite:") {
        let options = SqliteLockStoreOptions {
            expected_lineage,
            ..SqliteLockStoreOptions::file(path)
        };
        SqliteLockStore::open(options, host).await.map(|store| Backend {
            store: Arc::new(store.clone()),
            close: Box::pin(store.close()),
        })
    } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let options = pg_options(settings, url, expected_lineage);
        PgLockStore::open(options, host).await.map(|store| Backend {
            store: Arc::new(store.clone()),
            close: Box::pin(async move { store.close() }),
        })
    } else if let Some(opened) = open_etcd(url, &expected_lineage, settings, host).await {
        opened
    } else {
        return Err(RunError::UnknownStore { url: shown });
    };
    opened.map_err(|error| RunError::Store { url: shown, error })
}

/// A store on etcd. None where the URL is none of etcd's, or this build has no such backend.
#[cfg(feature = "etcd")]
async fn open_etcd(
    url: &str,
    expected_lineage: &Option<String>,
    settings: &Settings,
    host: &Host,
) -> Option<Result<Backend, StoreError>> {
    use lock_store::{EtcdLockStore, EtcdLockStoreOptions, EtcdPassword};
    if !url.starts_with("etcd://") {
        return None;
    }
    let file = |name| settings.text(name).map(std::path::PathBuf::from);
    let opening = async {
        let mut options = EtcdLockStoreOptions::at(url)?;
        options.expected_lineage.clone_from(expected_lineage);
        if let Some(prefix) = settings.text("lock.store.prefix") {
            prefix.clone_into(&mut options.prefix);
        }
        let access = &mut options.access;
        access.user = settings.text("lock.store.user").map(str::to_owned);
        if let Some(path) = file("lock.store.password-file") {
            access.password = EtcdPassword::File(path);
        }
        access.ca_file = file("lock.store.ca-file");
        access.cert_file = file("lock.store.cert-file");
        access.key_file = file("lock.store.key-file");
        let store = EtcdLockStore::open(options, host).await?;
        Ok(Backend {
            store: Arc::new(store.clone()),
            close: Box::pin(async move { store.close() }),
        })
    };
    Some(opening.await)
}

#[cfg(not(feature = "etcd"))]
async fn open_etcd(
    _url: &str,
    _expected_lineage: &Option<String>,
    _settings: &Settings,
    _host: &Host,
) -> Option<Result<Backend, StoreError>> {
    None
}

/// Opens the store, which brings it to this build's schema, and closes it again.
///
/// # Errors
/// [`RunError`].
pub async fn migrate(settings: &Settings, host: &Host) -> Result<(), RunError> {
    open_store(settings, host).await.map(drop)
}

/// Runs the lock server until it is told to stop.
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
    listening: impl FnOnce(SocketAddr, gateway_kit::Drain),
) -> Result<(), RunError> {
    let registry = Registry::new();
    let Backend { store, close } = open_store(&settings, &host).await?;
    let trace_capacity = usize::try_from(settings.integer("debug.trace-capacity")).unwrap_or(usize::MAX);
    let kit = Kit::with(
        "lock-server",
        &host,
        &registry,
        trace_capacity,
        actor_kit::RestartPolicy::default(),
    );
    let service = LockService::start(&kit, store, core_config(&settings), Metrics::new(&registry));
    let bounds = Bounds::of(&settings);
    // Behind the bound inside, so that the frame never answers 503 while the store may still say what it granted.
    let acquire_timeout = bounds.wait_max + service.acquire_within() + settings.duration("http.request-timeout");

    let (health, lineage, actors) = (service.clone(), service.clone(), service.clone());
    let (draining, ending) = (service.clone(), service.clone());
    let drain_trace = TraceContext::root(&host.random);
    let store_connections = settings.integer("lock.store.pool-max");
    let gateway = Gateway::new("lock-server", &host, settings, registry, kit)
        .store_connections(store_connections)
        .openapi(openapi_within(&bounds))
        .examples(include_str!("examples.json"))
        .route_timeout("/v1/locks/{key}/acquire", acquire_timeout)
        .ready_check("store", move || {
            let service = health.clone();
            Box::pin(async move {
                match service.health().await {
                    Ok(health) => health.problem.map_or(Ok(()), Err),
                    Err(refusal) => Err(refusal.to_string()),
                }
            })
        })
        .ready_check("lineage", move || {
            let service = lineage.clone();
            Box::pin(async move {
                match service.lineage().await {
                    Ok(lineage) if lineage.state == LineageState::Ok => Ok(()),
                    Ok(lineage) => Err(format!(
                        "the store may have been rewound, no grant: {}",
                        lineage.detail.unwrap_or_default()
                    )),
                    Err(refusal) => Err(refusal.to_string()),
                }
            })
        })
        .ready_check("actors", move || {
            let alive = actors.is_alive();
            Box::pin(async move {
                if alive {
                    Ok(())
                } else {
                    Err("the lease clock has stopped".to_owned())
                }
            })
        })
        .on_drain(move || {
            Box::pin(async move {
                // Who waits for a key is told to go elsewhere; what is held stays held.
                draining.drain(&drain_trace);
            })
        });
    let drain = gateway.drain();
    let server = LockServer {
        service,
        bounds,
        host,
        drain: drain.clone(),
    };
    let served = gateway
        .serve_and_tell(
            &listen,
            move |config| configure(config, server.clone()),
            |address| listening(address, drain),
        )
        .await;
    // Nobody is served any more. The store is left to the next process; what is held in it stays held.
    ending.stop();
    close.await;
    Ok(served?)
}
