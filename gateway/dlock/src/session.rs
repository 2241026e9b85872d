//! Sessions: who is alive.

use crate::api::{Api, LockServerArgs};
use crate::exit::OK;
use crate::output::{self, OutputArgs};

/// Sessions of the lock service.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Live sessions: owner, what is left of each, how many locks it holds.
    List {
        #[command(flatten)]
        servers: LockServerArgs,
        /// The most sessions to show.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// One session with what it holds.
    Show {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Its id.
        session_id: String,
    },
    /// Ends a session and frees everything it holds. Exit code 1 where there is none: never opened, closed before, or expired.
    Close {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Its id.
        session_id: String,
    },
}

pub fn run(args: Args) -> crate::Outcome {
    let format = args.output.output;
    crate::block_on(async {
        let api = Api::new();
        let trace = &api.trace;
        match args.verb {
            Verb::List { servers, limit, cursor } => {
                let page = api
                    .lock_server(&servers, async |s| s.sessions(limit, cursor.as_deref(), trace).await)
                    .await?;
                let columns = [
                    ("SESSION", "session_id"),
                    ("OWNER", "owner"),
                    ("TTL_MS", "ttl_ms"),
                    ("EXPIRES_IN_MS", "expires_in_ms"),
                    ("LAST_HEARTBEAT", "last_heartbeat_at"),
                    ("HELD", "held"),
                ];
                output::list(format, &page, &columns)?;
            }
            Verb::Show { servers, session_id } => {
                let session = api
                    .lock_server(&servers, async |s| s.session(&session_id, trace).await)
                    .await?;
                output::object(format, &session)?;
            }
            Verb::Close { servers, session_id } => {
                // A close of an unknown session succeeds at the server, where it may be one that is repeated.
                let closed = api
                    .lock_server(&servers, async |s| {
                        s.session(&session_id, trace).await?;
                        s.close_session(&session_id, trace).await
                    })
                    .await?;
                output::object(format, &closed)?;
            }
        }
        Ok(OK)
    })
}
