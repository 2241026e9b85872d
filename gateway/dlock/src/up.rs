//! `dlock up`: everything on the embedded stores, with payouts trickling in, until Ctrl-C.

use crate::demo::{CANNOT_RUN, interrupted};
use crate::exit::{self, Failure};
use harness::progress::Progress;
use harness::stack::processes::Lab;
use harness::up::UpPlan;
use harness::workdir::Workdir;
use host_kit::Host;
use std::path::PathBuf;

/// Run all components as child processes on the embedded stores, with payouts trickling in, until Ctrl-C.
///
/// One that ends unasked ends the others too: what still ran would only look like a whole. It is named, with how it ended
/// and where its log is.
///
/// Exit codes: 0 ended by Ctrl-C · 2 it could not begin (a port in use, a component that does not start), or a component
/// ended unasked · 64 usage.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where data, logs and prometheus-targets.json are, and are found again; a temporary directory where nothing is said.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The first of seven ports on loopback: lock-server, payment-resource, rail-proxy, rail-stub, two executors, console.
    #[arg(long, value_name = "N", default_value_t = 7400)]
    base_port: u16,
}

/// Runs it.
pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(go(args))
}

async fn go(args: Args) -> crate::Outcome {
    let failed = |error: harness::stack::RunError| Failure::new(CANNOT_RUN, error.to_string());
    let host = Host::system();
    let clock = host.clock.clone();
    let lab = Lab::of_this_binary(host).map_err(failed)?;
    // A directory that was named is used again as it is; only a temporary one is made here.
    let temporary = if args.dir.is_none() {
        Some(Workdir::new(None).map_err(failed)?)
    } else {
        None
    };
    let dir = match (args.dir, &temporary) {
        (Some(dir), _) => dir,
        (None, Some(workdir)) => workdir.path().to_owned(),
        (None, None) => return Err(Failure::new(exit::INTERNAL, "there is no directory")),
    };
    let plan = UpPlan {
        dir,
        base_port: args.base_port,
    };
    let progress = Progress::spinner(&clock);
    let print = |line: &str| progress.print(line);
    let status = |line: &str| progress.status(line);
    let ended = harness::up::run(&lab, &plan, &print, &status, interrupted()).await;
    progress.finish();
    if let Some(workdir) = temporary {
        // The log of what fell is worth more than a clean directory.
        if let Some(path) = workdir.end(ended.is_err()) {
            eprintln!("data and logs are kept in {}", path.display());
        }
    }
    ended.map(|()| exit::OK).map_err(failed)
}
