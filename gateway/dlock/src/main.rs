//! The dlock binary: every component, the lab, and the operator's verbs (C5.1). The only binary, so the only `main`.
//!
//! Owns: the command line, the configuration of each process, its host handles, exit codes; which part runs where.
//! Does not own: anything a component does. One file per subcommand.
//! On failure: a message on standard error that says what to do, and an exit code a script can act on ([`exit`]).

mod actors;
mod api;
#[cfg(feature = "lab")]
mod bench;
mod completions;
mod config;
mod console;
#[cfg(feature = "lab")]
mod demo;
mod doctor;
mod exec;
mod exit;
mod fence;
#[cfg(feature = "lab")]
mod fence_kit_worker;
mod fence_proxy;
mod healthcheck;
#[cfg(feature = "lab")]
mod jepsen_worker;
mod lineage;
mod lock;
mod lock_server;
mod man;
mod migrate;
#[cfg(feature = "lab")]
mod one_way;
mod output;
mod payment_resource;
mod payout;
mod payout_executor;
mod payout_trace;
mod rail_proxy;
#[cfg(feature = "lab")]
mod rail_stub;
#[cfg(feature = "lab")]
mod scenario;
mod session;
mod trace;
#[cfg(feature = "lab")]
mod up;
mod verify;
mod version;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use exit::Failure;
use std::process::ExitCode;

/// Distributed locks with fencing tokens, and a payout system that shows what they are for.
///
/// Exit codes: 0 done · 1 refused · 64 usage or configuration · 69 service unavailable · 70 internal error ·
/// 75 the lock is held by somebody else · 76 the lock was lost. `dlock exec` passes its command's own code through.
/// With `-o json` an error is one JSON object on standard error: `message`, `exit_code`, `problem`.
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
    /// Run the payment resource: payouts, ledger, fence point (a).
    PaymentResource(payment_resource::Args),
    /// Run a rail proxy: the only way to the rail, fence point (c).
    RailProxy(rail_proxy::Args),
    /// Run a worker: settles payouts under their account's lock.
    PayoutExecutor(payout_executor::Args),
    /// Run a fencing reverse proxy before an HTTP service that knows nothing of tokens.
    FenceProxy(fence_proxy::Args),
    /// Run the operator's console: pages for a browser.
    Console(console::Args),
    /// Run a rail that executes every call it accepts, with faults on demand (lab only).
    #[cfg(feature = "lab")]
    RailStub(rail_stub::Args),

    /// Run everything on the embedded stores, with payouts trickling in, until Ctrl-C (lab only).
    #[cfg(feature = "lab")]
    Up(up::Args),
    /// Show what dlock exists for: paid exactly once under faults, and money lost without the fences (lab only).
    #[cfg(feature = "lab")]
    Demo(demo::Args),
    /// Run one use case and judge it (lab only).
    #[cfg(feature = "lab")]
    Scenario(scenario::Args),
    /// One worker of `dlock scenario jepsen` (lab only).
    #[cfg(feature = "lab")]
    #[command(hide = true)]
    JepsenWorker(jepsen_worker::Args),
    /// One writer of `dlock scenario fence-kit` (lab only).
    #[cfg(feature = "lab")]
    #[command(hide = true)]
    FenceKitWorker(fence_kit_worker::Args),
    /// Lose what one container sends another one (lab only).
    #[cfg(feature = "lab")]
    #[command(hide = true)]
    OneWay(one_way::Args),
    /// Measure throughput and latency of a lock server (lab only).
    #[cfg(feature = "lab")]
    Bench(bench::Args),

    /// Look at locks, take, give back, break and watch them.
    Lock(lock::Args),
    /// Look at sessions, or end one.
    Session(session::Args),
    /// Run a command while holding a lock.
    Exec(exec::Args),
    /// The fence for your own side effect: SQL for PostgreSQL; a fencing proxy's open requests.
    Fence(fence::Args),
    /// Look at payouts, settle one by hand, fence off a revoked holder.
    Payout(payout::Args),
    /// What the actors did: dump, follow, put together and check their traces.
    Trace(trace::Args),
    /// The actors of running components.
    Actors(actors::Args),
    /// The identity of the lock store's history: look at it, raise the token floor, dismiss a doubt.
    Lineage(lineage::Args),

    /// Check a deployment from outside, and say what is wrong and how to mend it.
    Doctor(doctor::Args),
    /// Check an exported audit trail or ledger offline.
    Verify(verify::Args),
    /// Bring stores to the schema of this binary, without serving.
    Migrate(migrate::Args),
    /// Ask a component whether it is ready: exit code 0 or 1, for container health checks.
    Healthcheck(healthcheck::Args),
    /// Write completions for bash, zsh or fish.
    Completions(completions::Args),
    /// Write manual pages.
    Man(man::Args),
    /// What this binary is: version, commit, features.
    Version(version::Args),
}

fn main() -> ExitCode {
    let parsed = Cli::command()
        .try_get_matches()
        .and_then(|matches| Ok((output::is_json(&matches), Cli::from_arg_matches(&matches)?)));
    let (as_json, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are answers, everything else is a mistake in usage (C5.1: 64).
            if error.use_stderr() && output::asks_for_json(std::env::args_os()) {
                return Failure::usage(error.to_string().trim_end()).report(true);
            }
            let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    gateway_kit::built_from(version::COMMIT);
    let result = match cli.command {
        Command::LockServer(args) => lock_server::run(&args),
        Command::PaymentResource(args) => payment_resource::run(&args),
        Command::RailProxy(args) => rail_proxy::run(&args),
        Command::PayoutExecutor(args) => payout_executor::run(&args),
        Command::FenceProxy(args) => fence_proxy::run(&args),
        Command::Console(args) => console::run(&args),
        #[cfg(feature = "lab")]
        Command::RailStub(args) => rail_stub::run(args),
        #[cfg(feature = "lab")]
        Command::Up(args) => up::run(args),
        #[cfg(feature = "lab")]
        Command::Demo(args) => demo::run(args),
        #[cfg(feature = "lab")]
        Command::Scenario(args) => scenario::run(args),
        #[cfg(feature = "lab")]
        Command::JepsenWorker(args) => jepsen_worker::run(args),
        #[cfg(feature = "lab")]
        Command::FenceKitWorker(args) => fence_kit_worker::run(args),
        #[cfg(feature = "lab")]
        Command::OneWay(args) => one_way::run(args),
        #[cfg(feature = "lab")]
        Command::Bench(args) => bench::run(args),
        Command::Lock(args) => lock::run(args),
        Command::Session(args) => session::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Fence(args) => fence::run(args),
        Command::Payout(args) => payout::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Actors(args) => actors::run(args),
        Command::Lineage(args) => lineage::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Migrate(args) => migrate::run(args),
        Command::Healthcheck(args) => healthcheck::run(args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Version(args) => version::run(&args),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(as_json),
    }
}

/// Runs a future to its end inside an actix system on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(work)
}

/// What every subcommand answers: an exit code, or a failure that knows its own.
pub(crate) type Outcome = Result<u8, Failure>;
