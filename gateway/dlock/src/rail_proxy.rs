//! The rail proxy.

use crate::config::{ConfigArgs, checked_component};

/// The way to the rail and fence point (c): records an intent under a token that is not stale, forwards it once, records
/// what came of it (R1 to R7).
#[derive(clap::Args)]
pub struct Args {
    /// The address to listen on; port 0 takes a free one. Setting `http.listen`.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where paydb is: `sqlite:DIRECTORY` or `postgres://…`. Setting `rail.store.url`.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// The rail; with `https:` its certificate is verified. Setting `rail.url`.
    #[arg(long, value_name = "URL")]
    rail: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let flags = [
        ("http.listen", args.listen.clone()),
        ("rail.store.url", args.store.clone()),
        ("rail.url", args.rail.clone()),
    ];
    checked_component("rail-proxy", &args.config, &flags, rail_proxy::check, rail_proxy::run)
}
