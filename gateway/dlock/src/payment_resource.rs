//! The payment resource.

use crate::config::{ConfigArgs, component};

/// Payouts, ledger and fence point (a): accepts a write only under a token that is not stale (P1 to P10).
#[derive(clap::Args)]
pub struct Args {
    /// The address to listen on; port 0 takes a free one. Setting `http.listen`.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where paydb is: `sqlite:DIRECTORY`, or `postgres://…` as the payment resource's role. Setting `payment.store.url`.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let flags = [
        ("http.listen", args.listen.clone()),
        ("payment.store.url", args.store.clone()),
    ];
    component("payment-resource", &args.config, &flags, payment_resource::run)
}
