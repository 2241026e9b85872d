//! The process: which store it opens, and how it runs.

use crate::config::{Config, Paydb, RunError, paydb};
use crate::{Assembled, assemble, configure};
use gateway_kit::Settings;
use host_kit::Host;
use rail_store::{Fencing, PgRail, PgRailOptions, RailStore, SqliteRailStore, SqliteRailStoreOptions};
use std::sync::Arc;

/// The one place that chooses the backend.
pub(crate) async fn open_store(config: &Config, host: &Host) -> Result<Arc<dyn RailStore>, RunError> {
    let fencing = config.fencing;
    match &config.paydb {
        Paydb::Directory(directory) => {
            SqliteRailStore::open(SqliteRailStoreOptions::directory(directory, fencing), host)
                .map(|store| -> Arc<dyn RailStore> { Arc::new(store) })
        }
        Paydb::Postgres { access, schema } => {
            let options = PgRailOptions {
                access: access.clone(),
                schema: schema.clone(),
                fencing,
            };
            PgRail::open(options, host)
                .await
                .map(|store| -> Arc<dyn RailStore> { Arc::new(store) })
        }
    }
    .map_err(RunError::Store)
}

/// Brings the proxy's file to this build's schema without serving. On PostgreSQL the schema's owner does that, for both
/// fence points at once, and never a component.
///
/// # Errors
/// [`RunError`]: a store of another kind, or one that cannot be opened.
pub fn migrate(settings: &Settings, host: &Host) -> Result<(), RunError> {
    match paydb(settings)? {
        Paydb::Directory(directory) => {
            let options = SqliteRailStoreOptions::directory(&directory, Fencing::Enforced);
            SqliteRailStore::open(options, host).map(drop).map_err(RunError::Store)
        }
        Paydb::Postgres { .. } => Err(RunError::Setting {
            name: "rail.store.url",
            reason: "on PostgreSQL paydb's schema is its owner's to make, not the proxy's".to_owned(),
        }),
    }
}

/// What is wrong with the settings, as far as it can be seen without a store: the certificate files of the rail are read.
///
/// # Errors
/// [`RunError::Setting`].
pub fn check(settings: &Settings) -> Result<(), RunError> {
    Config::check(settings)
}

/// The process: serves on `listen` until SIGTERM, then drains: requests in flight and submissions under way are ended.
///
/// # Errors
/// [`RunError`].
pub async fn run(settings: Settings, listen: String, host: Host) -> Result<(), RunError> {
    let Assembled { gateway, state } = assemble(&settings, &host).await?;
    gateway
        .serve(&listen, move |config| configure(config, state.clone()))
        .await
        .map_err(RunError::Serve)
}
