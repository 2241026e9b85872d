//! The payout executor.

use crate::config::{ConfigArgs, component};

/// The worker: takes an account's lock, settles its payouts under the token, reconciles what stayed ambiguous. It serves
/// probes, metrics and debug routes only.
#[derive(clap::Args)]
pub struct Args {
    /// The address to listen on; port 0 takes a free one. Setting `http.listen`.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The lock servers, in order of preference, separated by commas. Setting `executor.lock-servers`.
    #[arg(long, value_name = "URL[,URL…]", env = "DLOCK_LOCK_SERVER")]
    lock_server: Option<String>,
    /// The payment resource. Setting `executor.payments`.
    #[arg(long, value_name = "URL")]
    payments: Option<String>,
    /// The rail proxy. Setting `executor.rail-proxy`.
    #[arg(long, value_name = "URL")]
    rail_proxy: Option<String>,
    /// The name this worker's sessions carry. Setting `executor.owner`.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// What it does: `pay`, `reconcile` or `both`. Setting `executor.role`.
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let flags = [
        ("http.listen", args.listen.clone()),
        ("executor.lock-servers", args.lock_server.clone()),
        ("executor.payments", args.payments.clone()),
        ("executor.rail-proxy", args.rail_proxy.clone()),
        ("executor.owner", args.owner.clone()),
        ("executor.role", args.role.clone()),
    ];
    component("payout-executor", &args.config, &flags, payout_executor::run)
}
