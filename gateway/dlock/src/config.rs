//! The configuration of a process (C5.2): file, environment, flags, in rising order.

use crate::exit::Failure;
use gateway_kit::Settings;
use host_kit::Host;
use std::path::PathBuf;

/// What every subcommand that reads the configuration takes.
#[derive(clap::Args, Debug, Default)]
pub struct ConfigArgs {
    /// A TOML file with settings; environment variables and flags override it.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    config: Option<PathBuf>,
    /// Any setting by its name, as in `--set lock.session.ttl=20s`; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = name_and_value, help_heading = "Configuration")]
    set: Vec<(String, String)>,
    /// Print the effective configuration as TOML, each value with its source, and exit.
    #[arg(long, help_heading = "Configuration")]
    pub print_config: bool,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE, such as lock.session.ttl=20s".to_owned()),
    }
}

impl ConfigArgs {
    /// Whether `--set` gives this setting, or the environment does.
    pub fn names(&self, name: &str) -> bool {
        let variable = format!("DLOCK_{}", name.replace(['.', '-'], "_").to_ascii_uppercase());
        self.set.iter().any(|(set, _)| set == name) || std::env::var_os(variable).is_some()
    }

    /// Loads the settings. `flags` are the subcommand's own flags by the names of the settings they stand for; an
    /// explicit `--set` of the same name comes first, so that the two are not silently ranked: the flag wins, as it is
    /// the more specific.
    pub fn load(&self, flags: &[(&str, Option<String>)]) -> Result<Settings, Failure> {
        let mut all = self.set.clone();
        for (name, value) in flags {
            if let Some(value) = value {
                all.push(((*name).to_owned(), value.clone()));
            }
        }
        Settings::load(self.config.as_deref(), std::env::vars(), &all)
            .map_err(|error| Failure::usage(error.to_string()))
    }
}

/// The handles of this process, with the fault points of a lab build armed.
pub fn host(settings: &Settings) -> Result<Host, Failure> {
    #[allow(unused_mut, reason = "only a lab build arms fault points")]
    let mut host = Host::system();
    #[cfg(feature = "lab")]
    if let Some(points) = settings.text("debug.fault-points") {
        host.faults = host_kit::Faults::parse(points).map_err(|error| Failure::usage(error.to_string()))?;
    }
    let _ = settings;
    Ok(host)
}

/// An error of a component that can tell whether its configuration is to blame.
pub trait Blame: std::fmt::Display {
    /// Whether starting it again is of no use before somebody has changed a setting.
    fn is_misconfigured(&self) -> bool;
}

/// An address that is none, and not one that is taken.
fn is_no_address(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::InvalidInput
}

impl Blame for lock_server::RunError {
    fn is_misconfigured(&self) -> bool {
        match self {
            Self::UnknownStore { .. } => true,
            Self::Http(error) => is_no_address(error),
            Self::Store { .. } => false,
        }
    }
}

impl Blame for payment_resource::RunError {
    fn is_misconfigured(&self) -> bool {
        match self {
            Self::Setting { .. } => true,
            Self::Serve(error) => is_no_address(error),
            Self::Store(_) => false,
        }
    }
}

impl Blame for rail_proxy::RunError {
    fn is_misconfigured(&self) -> bool {
        match self {
            Self::Setting { .. } => true,
            Self::Serve(error) => is_no_address(error),
            Self::Store(_) => false,
        }
    }
}

impl Blame for payout_executor::RunError {
    fn is_misconfigured(&self) -> bool {
        match self {
            Self::Setting { .. } | Self::History(..) | Self::Lock(lock_api::LockError::Invalid { .. }) => true,
            Self::Serve(error) => is_no_address(error),
            Self::Lock(_) | Self::Metrics(_) => false,
        }
    }
}

impl Blame for operator_console::RunError {
    fn is_misconfigured(&self) -> bool {
        match self {
            Self::Setting { .. } => true,
            Self::Serve(error) => is_no_address(error),
        }
    }
}

impl Blame for fence_kit::RunError {
    fn is_misconfigured(&self) -> bool {
        match self {
            Self::Option(_) => true,
            Self::Serve(error) => is_no_address(error),
            Self::Store(_) => false,
        }
    }
}

/// Files that a setting names and that have to be readable from the start.
const READ_FILES: [&str; 3] = [
    "lock.store.password-file",
    "payment.store.password-file",
    "rail.store.password-file",
];

fn files_can_be_read(settings: &Settings) -> Result<(), Failure> {
    for name in READ_FILES {
        if let Some(path) = settings.text(name) {
            let read = std::fs::File::open(path);
            read.map_err(|error| Failure::usage(format!("{name}: {path}: {error}")))?;
        }
    }
    Ok(())
}

/// Loads the configuration, prints it where that is asked for, else runs a component to its end.
pub fn component<E: Blame, F: Future<Output = Result<(), E>>>(
    name: &'static str,
    config: &ConfigArgs,
    flags: &[(&str, Option<String>)],
    run: impl FnOnce(Settings, String, Host) -> F,
) -> crate::Outcome {
    checked_component(name, config, flags, |_| Ok(()), run)
}

/// As [`component`], with what the component itself finds wrong in a configuration, so that printing it tells too.
pub fn checked_component<E: Blame, F: Future<Output = Result<(), E>>>(
    name: &'static str,
    config: &ConfigArgs,
    flags: &[(&str, Option<String>)],
    check: impl FnOnce(&Settings) -> Result<(), E>,
    run: impl FnOnce(Settings, String, Host) -> F,
) -> crate::Outcome {
    let settings = config.load(flags)?;
    check(&settings).map_err(|error| Failure::usage(error.to_string()))?;
    if config.print_config {
        print!("{}", settings.to_toml());
        return Ok(crate::exit::OK);
    }
    gateway_kit::init_logging(name, gateway_kit::LogFormat::configured(&settings));
    gateway_kit::apply_log_filter(settings.text("log.filter")).map_err(Failure::usage)?;
    files_can_be_read(&settings)?;
    let host = host(&settings)?;
    let listen = settings.text("http.listen").unwrap_or("127.0.0.1:0").to_owned();
    let reloading = reload_on_hangup(config, flags, settings.clone());
    let running = async {
        tokio::select! {
            biased;
            ended = run(settings, listen, host) => ended,
            never = reloading => match never {},
        }
    };
    match crate::block_on(running) {
        Ok(()) => Ok(crate::exit::OK),
        Err(error) => {
            tracing::error!(event = "component_failed", %error);
            let code = if error.is_misconfigured() {
                crate::exit::USAGE
            } else {
                crate::exit::UNAVAILABLE
            };
            Err(Failure::new(code, format!("{name}: {error}")))
        }
    }
}

/// What may be changed while a component runs. Passwords in files are read again for each connection anyway.
const RELOADED: &[&str] = &["log.filter"];

/// Reads the configuration again at each SIGHUP: what can be changed at once is, the rest is named. One that is not valid
/// changes nothing.
async fn reload_on_hangup(
    config: &ConfigArgs,
    flags: &[(&str, Option<String>)],
    mut running: Settings,
) -> std::convert::Infallible {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::error!(event = "signals_unavailable", signal = "SIGHUP", %error);
            return std::future::pending().await;
        }
    };
    loop {
        if hangups.recv().await.is_none() {
            return std::future::pending().await;
        }
        let read = match config.load(flags) {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(event = "reload_refused", %error, "the configuration in force stays");
                continue;
            }
        };
        if let Err(error) = gateway_kit::apply_log_filter(read.text("log.filter")) {
            tracing::error!(event = "reload_refused", error, "the configuration in force stays");
            continue;
        }
        let (changed, waiting): (Vec<_>, Vec<_>) = running
            .differing(&read)
            .into_iter()
            .partition(|name| RELOADED.contains(name));
        tracing::info!(event = "configuration_reloaded", changed = changed.join(", "));
        if !waiting.is_empty() {
            tracing::warn!(
                event = "restart_needed",
                detail = waiting.join(", "),
                "changed, and read at the start only"
            );
        }
        // What waits for a restart is named again at the next signal.
        running.take(&read, RELOADED);
    }
}

/// A duration on the command line: `15s`, `500ms`, `1m 30s`.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("must be a duration such as 15s or 500ms ({error})"))
}
