//! `dlock one-way`: what the harness runs inside a container of a stack to lose the packets of one direction.

use crate::exit::{Failure, INTERNAL, OK, REFUSED};
use harness::stack::one_way;
use std::net::Ipv4Addr;

/// Lose what this container sends to another one (started by `dlock scenario`).
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Lose everything that is sent to this address.
    Cut {
        /// Whose.
        address: Ipv4Addr,
    },
    /// Lose nothing any more.
    Mend {
        /// Whose.
        address: Ipv4Addr,
    },
    /// Exit with 0 once a datagram has come, with 1 when none did.
    Hear,
    /// Send datagrams.
    Say {
        /// Where to.
        address: Ipv4Addr,
    },
}

pub fn run(args: Args) -> crate::Outcome {
    let failed = |detail: String| Failure::new(INTERNAL, detail);
    crate::block_on(async {
        match args.verb {
            Verb::Cut { address } => one_way::cut(address).await.map(|()| OK).map_err(failed),
            Verb::Mend { address } => one_way::mend(address).await.map(|()| OK).map_err(failed),
            Verb::Say { address } => one_way::say(address).await.map(|()| OK).map_err(failed),
            Verb::Hear => match one_way::hear().await.map_err(failed)? {
                true => Ok(OK),
                false => Ok(REFUSED),
            },
        }
    })
}
