//! The dlock binary: every component, the lab, and the operator's verbs (C5.1). The only binary, so the only `main`.
//!
//! Owns: the command line, the configuration of each process, its host handles, exit codes; which part runs where.
//! Does not own: anything a component does. One file per subcommand.
//! On failure: a message on standard error that says what to do, and an exit code a script can act on ([`exit`]).

mod api;
mod config;
mod exec;
mod exit;
mod healthcheck;
mod lineage;
mod lock;
mod lock_server;
mod output;
mod payout;
#[cfg(feature = "lab")]
mod rail_stub;
mod session;
mod version;

use clap::{Parser, Subcommand};
use exit::Failure;
use std::process::ExitCode;

/// Distributed locks with fencing tokens, and a payout system that shows what they are for.
///
/// Exit codes: 0 done · 1 refused · 64 usage or configuration · 69 service unavailable · 70 internal error ·
/// 75 the lock is held by somebody else · 76 the lock was lost. `dlock exec` passes its command's own code through.
#[derive(Parser)]
#[command(name = "dlock", version = version::TEXT, max_term_width = 100, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a lock server: the only minter of tokens.
    LockServer(lock_server::Args),
    /// Run a rail that executes every call it accepts, with faults on demand (lab only).
    #[cfg(feature = "lab")]
    RailStub(rail_stub::Args),

    /// Look at locks, take, give back, break and watch them.
    Lock(lock::Args),
    /// Look at sessions, or end one.
    Session(session::Args),
    /// Run a command while holding a lock.
    Exec(exec::Args),
    /// Look at payouts, settle one by hand, fence off a revoked holder.
    Payout(payout::Args),
    /// The identity of the lock store's history: look at it, raise the token floor, dismiss a doubt.
    Lineage(lineage::Args),

    /// Ask a component whether it is ready: exit code 0 or 1, for container health checks.
    Healthcheck(healthcheck::Args),
    /// What this binary is: version, commit, features.
    Version(version::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, everything else is a mistake in usage (C5.1: 64).
            let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match cli.command {
        Command::LockServer(args) => lock_server::run(&args),
        #[cfg(feature = "lab")]
        Command::RailStub(args) => rail_stub::run(args),
        Command::Lock(args) => lock::run(args),
        Command::Session(args) => session::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Payout(args) => payout::run(args),
        Command::Lineage(args) => lineage::run(args),
        Command::Healthcheck(args) => healthcheck::run(args),
        Command::Version(args) => version::run(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

/// Runs a future to its end inside an actix system on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(work)
}

/// What every subcommand answers: an exit code, or a failure that knows its own.
pub(crate) type Outcome = Result<u8, Failure>;
