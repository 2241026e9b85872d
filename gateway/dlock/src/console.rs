//! The operator's console.

use crate::config::{ConfigArgs, component};

/// Pages for a browser that show who holds what under which token, what each payout went through, who was refused and why.
/// It authenticates nobody: whoever can reach it can look, and can break a grant unless it is read-only.
#[derive(clap::Args)]
pub struct Args {
    /// The address to listen on; port 0 takes a free one. Setting `http.listen`.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The lock servers, in order of preference, separated by commas. Setting `console.lock-servers`.
    #[arg(long, value_name = "URL[,URL…]", env = "DLOCK_LOCK_SERVER")]
    lock_server: Option<String>,
    /// The payment resource. Setting `console.payments`.
    #[arg(long, value_name = "URL")]
    payments: Option<String>,
    /// The rail proxy. Setting `console.rail-proxy`.
    #[arg(long, value_name = "URL")]
    rail_proxy: Option<String>,
    /// A payout executor; may be repeated. Setting `console.executors`.
    #[arg(long, value_name = "URL")]
    executor: Vec<String>,
    /// The status of a running scenario, a file or an address. Setting `console.scenario`.
    #[arg(long, value_name = "FILE|URL")]
    scenario: Option<String>,
    /// Show only: no grant can be broken from it. Setting `console.read-only`.
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let executors = Some(args.executor.join(",")).filter(|urls| !urls.is_empty());
    let flags = [
        ("http.listen", args.listen.clone()),
        ("console.lock-servers", args.lock_server.clone()),
        ("console.payments", args.payments.clone()),
        ("console.rail-proxy", args.rail_proxy.clone()),
        ("console.executors", executors),
        ("console.scenario", args.scenario.clone()),
        ("console.read-only", args.read_only.then(|| "true".to_owned())),
    ];
    component("console", &args.config, &flags, operator_console::run)
}
