//! `dlock scenario UC-0x`: one use case on stacks of its own, judged and printed.
//!
//! Exit codes: 0 all held, 1 a check or verdict failed, 2 could not run.

use crate::demo::{CANNOT_RUN, FAILED, Lab, StoreArgs, interrupted, lab, write_json};
use crate::exit::{self, Failure};
use crate::output::{Format, OutputArgs};
use harness::report::{CellReport, matrix_text, money};
use harness::scenario::jepsen;
use harness::scenario::uc07::{self, Failover};
use harness::scenario::{self, UseCase};
use std::path::PathBuf;

/// Run one use case against a dlock of child processes, and judge it.
///
/// Exit codes: 0 all held · 1 a check or verdict failed · 2 could not run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// UC-01 to UC-08; UC-03 is the matrix of both kill switches. `jepsen` is Jepsen's lock workload.
    #[arg(value_name = "UC-0x", value_parser = case)]
    case: Case,
    /// Replays the choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    stores: StoreArgs,
    /// Keep data, logs, histories and evidence in DIR (a new directory beside you where nothing is said).
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    #[allow(
        clippy::option_option,
        reason = "not given, given without a directory, given with one"
    )]
    keep: Option<Option<PathBuf>>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Use(UseCase),
    Jepsen,
}

fn case(text: &str) -> Result<Case, String> {
    if text.eq_ignore_ascii_case("jepsen") {
        return Ok(Case::Jepsen);
    }
    UseCase::parse(text)
        .map(Case::Use)
        .ok_or_else(|| "must be UC-01 to UC-08, or jepsen".to_owned())
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
    let failed = |error: harness::stack::RunError| Failure::new(CANNOT_RUN, error.to_string());
    let failover = match args.case {
        Case::Use(UseCase::Uc07) => Some(Failover::of(args.stores.store.as_deref()).map_err(failed)?),
        _ => None,
    };
    // UC-07 hurts its servers, so it starts its own.
    let stores = if failover.is_some() {
        StoreArgs::default()
    } else {
        args.stores
    };
    let Lab {
        setup,
        workdir,
        progress,
    } = lab("scenario", args.seed, &stores, args.keep).await?;
    let (ok, text, json) = if args.case == Case::Use(UseCase::Uc03) {
        let cells = harness::demo::matrix(&setup, &progress).await;
        let cells = cells.inspect_err(|_| progress.finish()).map_err(failed)?;
        let ok = cells.iter().all(CellReport::ok);
        (
            ok,
            format!("{}{}", matrix_text(&cells), money(&cells)),
            serde_json::to_value(&cells),
        )
    } else {
        let report = match (failover, args.case) {
            (Some(failover), _) => uc07::run(&setup, failover).await,
            (None, Case::Use(case)) => scenario::run(&setup, case).await,
            (None, Case::Jepsen) => jepsen::run(&setup).await,
        };
        let report = report.inspect_err(|_| progress.finish()).map_err(failed)?;
        (report.ok(), report.text(), serde_json::to_value(&report))
    };
    progress.finish();
    setup.backends.clean_up().await;
    let json = json.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    write_json(&workdir.path().join("scenario.json"), &json)?;
    match args.output.output {
        Format::Json => println!("{json:#}"),
        Format::Table => println!("{text}"),
    }
    if let Some(path) = workdir.end(!ok) {
        eprintln!("kept in {}", path.display());
    }
    Ok(if ok { exit::OK } else { FAILED })
}
