//! What the payment resource takes from the settings (C5.2).

use gateway_kit::{Settings, mask};
use lock_api::StoreError;
use payment_store::{Fencing, PgPaymentsOptions};
use pg_kit::{Access, PasswordSource};
use std::path::PathBuf;
use std::time::Duration;

/// Why the payment resource does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A setting that it cannot serve.
    #[error("{name}: {reason}")]
    Setting {
        /// The setting's name.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The store cannot be opened.
    #[error("paydb cannot be opened: {0}")]
    Store(#[from] StoreError),
    /// The address cannot be listened on, or the server failed.
    #[error(transparent)]
    Serve(#[from] std::io::Error),
}

/// Where paydb is.
#[derive(Clone, Debug)]
pub enum Paydb {
    /// In files: its directory.
    Directory(PathBuf),
    /// On PostgreSQL, as the payment resource's role.
    Postgres(PgPaymentsOptions),
}

/// The payment resource's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// `payment.store.url` and its companions.
    pub paydb: Paydb,
    /// `payment.store.timeout`.
    pub store_timeout: Duration,
    /// `executor.ambiguous-sla`.
    pub ambiguous_sla: Duration,
    /// The kill switch of fence point (a).
    pub fencing: Fencing,
}

impl Config {
    /// Reads the settings.
    ///
    /// # Errors
    /// [`RunError::Setting`] where one cannot be served.
    pub fn from_settings(settings: &Settings) -> Result<Self, RunError> {
        let paydb = paydb(settings)?;
        #[cfg(feature = "lab")]
        let fencing = Fencing::from_switch(settings.boolean("payment.fencing.enabled"));
        #[cfg(not(feature = "lab"))]
        let fencing = Fencing::Enforced;
        Ok(Self {
            paydb,
            store_timeout: settings.duration("payment.store.timeout"),
            ambiguous_sla: settings.duration("executor.ambiguous-sla"),
            fencing,
        })
    }
}

fn paydb(settings: &Settings) -> Result<Paydb, RunError> {
    let store = settings.text("payment.store.url").unwrap_or_default();
    if let Some(path) = store.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
        return Ok(Paydb::Directory(PathBuf::from(path)));
    }
    if !store.starts_with("postgres://") && !store.starts_with("postgresql://") {
        return Err(RunError::Setting {
            name: "payment.store.url",
            reason: format!(
                "{} is of a kind this build does not have; it has sqlite:DIRECTORY and postgres://…",
                mask(store)
            ),
        });
    }
    let password = PasswordSource::file_or_environment(settings.text("payment.store.password-file"));
    let schema = settings.text("payment.store.schema").unwrap_or_default();
    pg_kit::check_name("schema", schema).map_err(|error| RunError::Setting {
        name: "payment.store.schema",
        reason: error.to_string(),
    })?;
    Ok(Paydb::Postgres(PgPaymentsOptions {
        access: Access {
            password,
            pool_max: usize::try_from(settings.integer("payment.store.pool-max")).unwrap_or(usize::MAX),
            ..Access::at(store)
        },
        schema: schema.to_owned(),
    }))
}
