//! The lineage of the lock store: break-glass after a restore (01 §1.6).

use crate::api::{Api, LockServerArgs, OperatorArgs};
use crate::exit::OK;
use crate::output::{self, OutputArgs};
use http_contract::lock::FloorBody;

/// Whether the lock store is the one it was, and how to go on when it is not.
///
/// A store that may have been rewound grants nothing (503 TOKEN_REGRESSION) until the floor is above every token it ever
/// granted, or somebody who knows that a client's witness lied dismisses the doubt.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    servers: LockServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// The lineage, its floor and its state.
    Show,
    /// Raises the token floor: no token at or below it is ever minted again.
    Floor {
        /// The new floor.
        floor: u64,
        #[command(flatten)]
        by: OperatorArgs,
    },
    /// Clears the doubt without raising the floor.
    Dismiss {
        #[command(flatten)]
        by: OperatorArgs,
    },
}

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(async {
        let api = Api::new();
        let trace = &api.trace;
        let change = match args.verb {
            None | Some(Verb::Show) => None,
            Some(Verb::Floor { floor, by }) => Some((
                by.operator,
                FloorBody {
                    floor: Some(floor),
                    dismiss: None,
                    reason: by.reason,
                },
            )),
            Some(Verb::Dismiss { by }) => Some((
                by.operator,
                FloorBody {
                    floor: None,
                    dismiss: Some(true),
                    reason: by.reason,
                },
            )),
        };
        let lineage = match change {
            None => api.lock_server(&args.servers, async |s| s.lineage(trace).await).await?,
            Some((operator, body)) => {
                api.lock_server(&args.servers, async |s| s.floor(&operator, &body, trace).await)
                    .await?
            }
        };
        output::object(args.output.output, &lineage)?;
        Ok(OK)
    })
}
