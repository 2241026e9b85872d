//! The lock server.

use crate::config::{ConfigArgs, component};

/// Grants locks under rising tokens (L1 to L11). Fails closed: on doubt there is no grant.
#[derive(clap::Args)]
pub struct Args {
    /// The address to listen on; port 0 takes a free one. Setting `http.listen`.
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The lock store: `sqlite:PATH`, `postgres://…`, `etcd://host:port[,host:port…]`. Setting `lock.store.url`.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let flags = [
        ("http.listen", args.listen.clone()),
        ("lock.store.url", args.store.clone()),
    ];
    component("lock-server", &args.config, &flags, lock_server::run)
}
