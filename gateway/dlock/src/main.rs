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
    // Written before the process ends, however it ends here.
    let _logs = FlushLogs;
    if let Err(error) = gateway_kit::Descriptors::enough_for_a_command() {
        return Failure::usage(error.to_string()).report(as_json);
    }
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

/// Waits for the last log lines when it goes, also with a panic.
struct FlushLogs;

impl Drop for FlushLogs {
    fn drop(&mut self) {
        gateway_kit::flush_logs();
    }
}

/// Runs a future to its end inside an actix system on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    actix_rt::System::new().block_on(work)
}

/// What every subcommand answers: an exit code, or a failure that knows its own.
pub(crate) type Outcome = Result<u8, Failure>;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;
    use lock_api::LockKey;

    /// Whether an argument is a key, or the beginning of one.
    fn is_about_a_key(arg: &Arg) -> bool {
        let named = matches!(arg.get_id().as_str(), "key" | "named_key" | "prefix");
        let typed = arg.get_value_parser().type_id() == std::any::TypeId::of::<LockKey>();
        let shown = arg
            .get_value_names()
            .is_some_and(|names| names.iter().any(|name| name == "KEY"));
        named || typed || shown
    }

    /// The verbs of the tree, with the way to each.
    fn verbs(command: &clap::Command, way: &[String], found: &mut Vec<(Vec<String>, clap::Command)>) {
        let subcommands: Vec<_> = command
            .get_subcommands()
            .filter(|verb| verb.get_name() != "help")
            .collect();
        if subcommands.is_empty() {
            found.push((way.to_vec(), command.clone()));
        }
        for verb in subcommands {
            let way = [way, &[verb.get_name().to_owned()]].concat();
            verbs(verb, &way, found);
        }
    }

    /// What else a verb wants before it can be read.
    fn others(verb: &clap::Command) -> Vec<String> {
        let required = verb.get_arguments().filter(|arg| arg.is_required_set());
        let mut given = vec!["--reason=stuck for an hour".to_owned(), "--operator=olga".to_owned()];
        given.retain(|flag| {
            let long = flag.trim_start_matches('-').split('=').next().unwrap_or_default();
            verb.get_arguments().any(|arg| arg.get_long() == Some(long))
        });
        for arg in required {
            match arg.get_long() {
                Some("reason" | "operator") | None => {}
                Some("listen") => given.push("--listen=127.0.0.1:0".to_owned()),
                Some("upstream") => given.push("--upstream=http://127.0.0.1:1".to_owned()),
                Some("store") => given.push("--store=sqlite:x".to_owned()),
                Some(long) => given.push(format!("--{long}=7")),
            }
        }
        given
    }

    const STRANGE: [&str; 10] = [
        "-x", "--", "-", "--help", "-h", "--key", "--key=a", "-o json", "=", "a/b",
    ];

    #[test]
    fn case_l45_every_lawful_key_can_be_named_in_every_verb() {
        let mut found = Vec::new();
        verbs(&Cli::command(), &[], &mut found);
        let mut positional = 0;
        for (way, verb) in &found {
            let shown = way.join(" ");
            let keys: Vec<_> = verb.get_arguments().filter(|arg| is_about_a_key(arg)).collect();
            for arg in keys.iter().filter(|arg| !arg.is_positional()) {
                assert!(
                    arg.is_allow_hyphen_values_set(),
                    "{shown}: {arg} takes a key, so it needs allow_hyphen_values"
                );
            }
            if !keys.iter().any(|arg| arg.is_positional()) {
                continue;
            }
            positional += 1;
            assert!(
                verb.get_arguments().any(|arg| arg.get_long() == Some("key")),
                "{shown}: a key is taken by api::KeyArgs, which has --key beside it"
            );
            let command_follows = verb.get_arguments().any(clap::Arg::is_last_set);
            let tail: &[String] = if command_follows {
                &["--".to_owned(), "true".to_owned()]
            } else {
                &[]
            };
            for key in STRANGE {
                let mut lines = vec![[&[format!("--key={key}")], tail].concat()];
                if !command_follows {
                    lines.push(vec!["--".to_owned(), key.to_owned()]);
                }
                for line in lines {
                    let args = [&["dlock".to_owned()], &way[..], &others(verb), &line].concat();
                    let matches = Cli::command().try_get_matches_from(&args);
                    let matches = matches.unwrap_or_else(|error| panic!("{args:?}: {error}"));
                    let (mut at, mut deep) = (&matches, 0);
                    while let Some((_, below)) = at.subcommand() {
                        (at, deep) = (below, deep + 1);
                    }
                    assert_eq!(deep, way.len(), "{args:?}");
                    let named = ["key", "named_key"].map(|id| at.try_get_one::<LockKey>(id).ok().flatten());
                    let named: Vec<_> = named.into_iter().flatten().map(LockKey::as_str).collect();
                    assert_eq!(named, [key], "{args:?}");
                }
            }
        }
        assert!(positional > 10, "{positional} verbs take a key");
    }

    #[test]
    fn a_verb_about_a_key_wants_one_and_takes_one() {
        let parse = |args: &[&str]| Cli::command().try_get_matches_from([&["dlock"], args].concat()).is_ok();
        assert!(!parse(&["lock", "show"]) && !parse(&["lock", "show", "a", "--key=b"]));
        assert!(parse(&["lock", "show", "a"]) && parse(&["fence", "open"]) && parse(&["fence", "open", "--key=-x"]));
        assert!(!parse(&["exec", "--", "true"]) && !parse(&["exec", "--key=k"]));
    }
}
