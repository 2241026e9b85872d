//! `dlock demo`: payouts paid exactly once while workers are paused and killed; and, with the fences switched off, money
//! lost.
//!
//! Exit codes: 0 every cell and invariant came out as it must, including that fencing off loses money; 1 a verdict
//! failed; 2 could not run.

use crate::exit::{self, Failure};
use crate::output::{Format, OutputArgs};
use harness::progress::Progress;
use harness::report::Run;
use harness::scenario::{Say, Setup, StackKind};
use harness::servers::{Backends, ServerOptions};
use harness::stack::processes::Lab as Processes;
use harness::workdir::Workdir;
use host_kit::Host;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A verdict failed.
pub const FAILED: u8 = 1;
/// The run could not be made.
pub const CANNOT_RUN: u8 = 2;

/// Show what dlock is for: all components as processes, workers paused and killed, fences on and off.
///
/// Exit codes: 0 everything as it must be, including that fencing off loses money · 1 a verdict failed · 2 could not
/// run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Replays the choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Keep data, logs, histories and evidence in DIR (a new directory beside you where nothing is said).
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    #[allow(
        clippy::option_option,
        reason = "not given, given without a directory, given with one"
    )]
    keep: Option<Option<PathBuf>>,
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs it.
pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(async move {
        tokio::select! {
            biased;
            () = interrupted() => Err(Failure::new(CANNOT_RUN, "interrupted")),
            outcome = go(args) => outcome,
        }
    })
}

async fn go(args: Args) -> crate::Outcome {
    args.report.check()?;
    let Lab {
        setup,
        workdir,
        progress,
    } = lab(
        "demo",
        args.seed,
        &StoreArgs::default(),
        &ServerOptions::default(),
        args.keep,
    )
    .await?;
    let report = harness::demo::run(&setup, &progress).await;
    progress.finish();
    let mut report = match report {
        Ok(report) => report,
        Err(error) => {
            keep_traces(&[], &workdir, true)?;
            let kept = workdir
                .end(true)
                .map(|path| format!("; its files are in {}", path.display()));
            return Err(Failure::new(CANNOT_RUN, format!("{error}{}", kept.unwrap_or_default())));
        }
    };
    let stays = !report.ok || matches!(workdir, Workdir::Kept(_));
    report.kept = stays.then(|| workdir.path().display().to_string());
    write_json(&workdir.path().join("demo.json"), &report)?;
    let replay = format!("dlock demo --seed {}", report.seed);
    let run = Run::of_demo(&report, &replay);
    args.report.write(run, stays.then(|| workdir.path()))?;
    keep_traces(args.report.dirs(), &workdir, stays)?;
    match args.output.output {
        Format::Json => {
            let json = serde_json::to_string_pretty(&report);
            println!(
                "{}",
                json.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?
            );
        }
        Format::Table => println!("{}", report.text()),
    }
    for what in &report.wrong {
        eprintln!("WRONG: {what}");
    }
    if let Some(path) = workdir.end(!report.ok) {
        eprintln!("results, data and histories are kept in {}", path.display());
    }
    Ok(if report.ok { exit::OK } else { FAILED })
}

/// Where the report of a run goes.
#[derive(clap::Args, Debug, Default)]
pub struct ReportArgs {
    /// Write the report into DIR: `report.html` for a human, `report.json`, `history.jsonl` and `junit.xml` for machines, the
    /// ledger for beancount, and what the actors did: `trace.jsonl`, and `trace.perfetto.json` for Perfetto and Chrome. A run whose files are kept has the same beside them.
    #[arg(long = "report", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl ReportArgs {
    /// Where it was asked for.
    pub fn dirs(&self) -> &[PathBuf] {
        self.dir.as_slice()
    }

    /// Finds out before a long run whether its report can be written.
    pub fn check(&self) -> Result<(), Failure> {
        self.dir
            .as_deref()
            .map_or(Ok(()), harness::report::writable)
            .map_err(|error| Failure::new(CANNOT_RUN, error.to_string()))
    }

    /// Writes the report where it was asked for, and beside the run's files where they stay.
    pub fn write(&self, run: Result<Run, harness::stack::RunError>, beside: Option<&Path>) -> Result<(), Failure> {
        let failed = |error: harness::stack::RunError| Failure::new(CANNOT_RUN, error.to_string());
        let dirs: Vec<_> = self.dir.as_deref().into_iter().chain(beside).collect();
        if dirs.is_empty() {
            return Ok(());
        }
        let run = run.map_err(failed)?;
        for dir in dirs {
            run.write(dir).map_err(failed)?;
            eprintln!("report: {}", dir.join("report.html").display());
        }
        Ok(())
    }
}

/// Puts the traces of a run together, where its report was asked for and where its files stay.
pub fn keep_traces(reports: &[PathBuf], workdir: &Workdir, stays: bool) -> Result<(), Failure> {
    let dirs: Vec<&Path> = reports
        .iter()
        .map(PathBuf::as_path)
        .chain(stays.then(|| workdir.path()))
        .collect();
    let Some(first) = dirs.first() else { return Ok(()) };
    let merged = harness::traces::merge_below(workdir.path(), &dirs);
    let merged = merged.map_err(|error| Failure::new(CANNOT_RUN, error.to_string()))?;
    if let Some(records) = merged {
        let path = first.join(harness::traces::DRAWING);
        eprintln!(
            "trace: {records} records, drawn for ui.perfetto.dev in {}",
            path.display()
        );
    }
    Ok(())
}

/// Where the stores of a run are.
#[derive(clap::Args, Debug, Default)]
pub struct StoreArgs {
    /// The lock store: `sqlite` (a temporary one), `pg` or `etcd` (a server in a container for this run), or the URL of a
    /// server that runs (`postgres://…`, `etcd://…`), where each stack gets a schema or prefix of its own; `sqlite` where
    /// nothing is said.
    #[arg(long, value_name = "STORE")]
    pub store: Option<String>,
    /// paydb: `sqlite`, `pg` or a `postgres://…` URL whose user may make schemas and roles. Where nothing is said: on
    /// PostgreSQL when the lock store is, else `sqlite`.
    #[arg(long, value_name = "STORE")]
    pub pay_store: Option<String>,
}

impl StoreArgs {
    /// The same as on a command line, without passwords.
    pub fn replay(&self) -> String {
        let named = [("--store", &self.store), ("--pay-store", &self.pay_store)];
        named
            .into_iter()
            .filter_map(|(flag, store)| Some(format!(" {flag} {}", without_password(store.as_deref()?))))
            .collect()
    }
}

/// A store's URL with its password, where there is one, as `***`.
fn without_password(store: &str) -> String {
    let Some((scheme, rest)) = store.split_once("://") else {
        return store.to_owned();
    };
    // A password may hold an @; a host may not.
    match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:***@{host}"),
            None => store.to_owned(),
        },
        None => store.to_owned(),
    }
}

/// What a run of the lab needs.
pub struct Lab {
    pub setup: Setup,
    pub workdir: Workdir,
    pub progress: Progress,
}

/// Prepares a run: prints its seed, makes its directory and its progress.
pub async fn lab(
    what: &str,
    seed: Option<u64>,
    stores: &StoreArgs,
    servers: &ServerOptions,
    #[allow(clippy::option_option, reason = "as on the command line")] keep: Option<Option<PathBuf>>,
) -> Result<Lab, Failure> {
    let host = Host::system();
    // Short enough to be typed again.
    let seed = seed.unwrap_or_else(|| host.random.below(1_000_000));
    eprintln!("dlock {what}, seed {seed}");
    let keep = keep.map(|dir| dir.unwrap_or_else(|| PathBuf::from(format!("dlock-{what}-{seed}"))));
    let failed = |error: harness::stack::RunError| Failure::new(CANNOT_RUN, error.to_string());
    let workdir = Workdir::new(keep).map_err(failed)?;
    let progress = Progress::bar(&host.clock);
    let say: Say = {
        let progress = progress.clone();
        Rc::new(move |line| progress.tell(&format!("  {line}")))
    };
    let lab = Processes::of_this_binary(host).map_err(failed)?;
    let backends = Backends::with(&lab, stores.store.as_deref(), stores.pay_store.as_deref(), servers)
        .await
        .map_err(failed)?;
    let setup = Setup {
        lab,
        stack: StackKind::Processes,
        backends: Rc::new(backends),
        root: workdir.path().to_owned(),
        seed,
        say,
        hold: None,
    };
    Ok(Lab {
        setup,
        workdir,
        progress,
    })
}

/// Writes results beside the data.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_vec_pretty(value).map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    std::fs::write(path, text).map_err(|error| Failure::new(exit::INTERNAL, format!("{}: {error}", path.display())))
}

/// Ctrl-C, or a request to end.
pub async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers the signals end the process at once; the reaper ends its children.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_replays_a_run_holds_no_password() {
        let args = |store: &str| StoreArgs {
            store: Some(store.to_owned()),
            pay_store: None,
        };
        for (store, line) in [
            ("pg", " --store pg"),
            ("etcd://a:2379,b:2379/x", " --store etcd://a:2379,b:2379/x"),
            ("postgres://me:s@cret@db/x", " --store postgres://me:***@db/x"),
            ("postgres://me@db/x", " --store postgres://me@db/x"),
        ] {
            assert_eq!(args(store).replay(), line);
        }
        assert_eq!(StoreArgs::default().replay(), "");
    }
}
