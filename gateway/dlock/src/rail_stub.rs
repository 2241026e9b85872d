//! The rail stub: the environment, for the lab.

use crate::exit::{Failure, INTERNAL, OK};
use std::path::PathBuf;
use std::rc::Rc;

/// A rail that is not idempotent: every accepted call executes. Its faults are set over `PUT /faults`.
#[derive(clap::Args)]
pub struct Args {
    /// The address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: String,
    /// Where asynchronous acks go: the rail proxy's `/v1/rail/acks`, or `@FILE` with a file that holds that URL by then.
    #[arg(long, value_name = "URL", value_parser = ack_url)]
    ack_url: Option<String>,
    /// What chance hangs on: the same seed gives the same faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep the book in this file over a restart; without it a restarted rail has forgotten everything.
    #[arg(long, value_name = "FILE")]
    book: Option<PathBuf>,
    /// A name with a dot under which it is asked for. Addresses, localhost and names without a dot are always its own.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
}

/// Names the fault points to be armed, as `debug.fault-points` does for every other component.
const FAULT_POINTS: &str = "DLOCK_DEBUG_FAULT_POINTS";

/// An address, or a file that will hold one.
fn ack_url(text: &str) -> Result<String, String> {
    if text.starts_with('@') {
        return Ok(text.to_owned());
    }
    crate::api::url(text)
}

pub fn run(args: Args) -> crate::Outcome {
    gateway_kit::init_logging("rail-stub", gateway_kit::LogFormat::Auto);
    let points = std::env::var(FAULT_POINTS).unwrap_or_default();
    let faults = host_kit::Faults::parse(&points).map_err(|error| Failure::usage(error.to_string()))?;
    let options = rail_stub::Options {
        listen: args.listen,
        ack_url: args.ack_url.as_deref().map(rail_stub::AckUrl::parse),
        seed: args.seed,
        book: args.book,
        hosts: args.hosts,
        at_point: Some(Rc::new(move |point| faults.hit(point))),
    };
    crate::block_on(rail_stub::run(options))
        .map(|()| OK)
        .map_err(|error| Failure::new(INTERNAL, format!("rail-stub: {error}")))
}
