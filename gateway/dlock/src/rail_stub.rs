//! The rail stub: the environment, for the lab.

use crate::exit::{Failure, INTERNAL, OK};

/// A rail that is not idempotent: every accepted call executes. Its faults are set over `PUT /faults`.
#[derive(clap::Args)]
pub struct Args {
    /// The address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: String,
    /// Where asynchronous acks go: the rail proxy's `/v1/rail/acks`.
    #[arg(long, value_name = "URL")]
    ack_url: Option<String>,
    /// What chance hangs on: the same seed gives the same faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(rail_stub::run(&args.listen, args.ack_url, args.seed))
        .map(|()| OK)
        .map_err(|error| Failure::new(INTERNAL, format!("rail-stub: {error}")))
}
