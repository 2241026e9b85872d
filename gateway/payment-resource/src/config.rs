//! What the payment resource takes from the settings (C5.2).

use gateway_kit::{Settings, mask};
use lock_api::StoreError;
use payment_store::Fencing;
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

/// The payment resource's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// paydb's directory.
    pub directory: PathBuf,
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
        let store = settings.text("payment.store.url").unwrap_or_default();
        let directory = store
            .strip_prefix("sqlite:")
            .filter(|path| !path.is_empty())
            .ok_or_else(|| RunError::Setting {
                name: "payment.store.url",
                reason: format!(
                    "{} is of a kind this build does not have; it has sqlite:DIRECTORY",
                    mask(store)
                ),
            })?;
        #[cfg(feature = "lab")]
        let fencing = Fencing::from_switch(settings.boolean("payment.fencing.enabled"));
        #[cfg(not(feature = "lab"))]
        let fencing = Fencing::Enforced;
        Ok(Self {
            directory: PathBuf::from(directory),
            store_timeout: settings.duration("payment.store.timeout"),
            ambiguous_sla: settings.duration("executor.ambiguous-sla"),
            fencing,
        })
    }
}
