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
    ///
    /// What is worth a warning is said on standard error.
    pub fn load(&self, flags: &[(&str, Option<String>)]) -> Result<Settings, Failure> {
        let settings = self.read(flags)?;
        for warning in self.warnings(&settings, flags) {
            eprintln!("dlock: {warning}");
        }
        Ok(settings)
    }

    fn read(&self, flags: &[(&str, Option<String>)]) -> Result<Settings, Failure> {
        let mut all = self.set.clone();
        for (name, value) in flags {
            if let Some(value) = value {
                all.push(((*name).to_owned(), value.clone()));
            }
        }
        // A variable of somebody else need not be UTF-8.
        let env = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            Some((name, value.to_string_lossy().into_owned()))
        });
        Settings::load(self.config.as_deref(), env, &all).map_err(|error| Failure::usage(error.to_string()))
    }

    /// What is worth a warning once, at the start.
    fn warnings(&self, settings: &Settings, flags: &[(&str, Option<String>)]) -> Vec<String> {
        let mut warnings = Vec::new();
        let of_a_service = settings.of_a_service();
        if !of_a_service.is_empty() {
            warnings.push(format!(
                "{} of the environment belong to a Service called dlock and are no settings: passed over",
                of_a_service.join(", ")
            ));
        }
        let set = self.set.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let own = flags
            .iter()
            .filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        for (name, value) in set.chain(own) {
            let Some(setting) = gateway_kit::SETTINGS.iter().find(|setting| setting.name == name) else {
                continue;
            };
            let file = format!("{}.password-file", name.trim_end_matches(".url"));
            let file = gateway_kit::SETTINGS.iter().find(|setting| setting.name == file);
            let file = file.map(|file| format!(", or give the password in a file: {}", file.name));
            let instead = format!("set {} instead{}", setting.variable(), file.unwrap_or_default());
            warnings.extend(password_in_arguments(name, value, &instead));
        }
        warnings
    }
}

/// The warning for an address with a password that stands in the arguments of this process, where every user of the machine can
/// read it (case S12). One that a variable of the environment gave stands there not.
pub fn password_in_arguments(name: &str, value: &str, instead: &str) -> Option<String> {
    let stands_there = || std::env::args_os().any(|arg| arg.to_string_lossy().contains(value));
    (gateway_kit::mask(value) != value && stands_there()).then(|| {
        format!(
            "{name}: the arguments of a process can be read by others (ps, /proc), the password in them too; {instead}"
        )
    })
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
const READ_FILES: [&str; 6] = [
    "lock.store.ca-file",
    "lock.store.cert-file",
    "lock.store.key-file",
    "lock.store.password-file",
    "payment.store.password-file",
    "rail.store.password-file",
];

/// An address of PostgreSQL that is none will be none after any number of restarts.
fn databases_can_be_addressed(settings: &Settings) -> Result<(), Failure> {
    for name in ["lock.store.url", "payment.store.url", "rail.store.url"] {
        let url = settings.text(name).unwrap_or_default();
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            let refused =
                |error: &dyn std::fmt::Display| Failure::usage(format!("{name}: {}: {error}", gateway_kit::mask(url)));
            // Without what only pg-kit reads: sslmode and the files it names.
            let (plain, _) = pg_kit::Tls::of_url(url).map_err(|error| refused(&error))?;
            plain
                .parse::<tokio_postgres::Config>()
                .map_err(|error| refused(&error))?;
        }
    }
    Ok(())
}

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
    let settings = config.read(flags)?;
    check(&settings).map_err(|error| Failure::usage(error.to_string()))?;
    let warnings = config.warnings(&settings, flags);
    if config.print_config {
        for warning in warnings {
            eprintln!("dlock: {warning}");
        }
        print!("{}", settings.to_toml());
        return Ok(crate::exit::OK);
    }
    gateway_kit::init_logging(name, gateway_kit::LogFormat::configured(&settings));
    gateway_kit::apply_log_filter(settings.text("log.filter")).map_err(Failure::usage)?;
    for detail in warnings {
        tracing::warn!(event = "configuration_doubtful", detail);
    }
    files_can_be_read(&settings)?;
    databases_can_be_addressed(&settings)?;
    // Before the first store and the first thread.
    gateway_kit::Descriptors::raise().map_err(|error| Failure::usage(format!("{name}: {error}")))?;
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
        let read = match config.read(flags) {
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
