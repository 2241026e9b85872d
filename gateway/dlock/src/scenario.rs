//! `dlock scenario UC-0x`: one use case on stacks of its own, judged and printed.
//!
//! Exit codes: 0 all held, 1 a check or verdict failed, 2 could not run.

use crate::demo::{CANNOT_RUN, FAILED, Lab, ReportArgs, StoreArgs, interrupted, lab, write_json};
use crate::exit::{self, Failure};
use crate::output::{Format, OutputArgs};
use harness::report::{CellReport, Run, matrix_text, money};
use harness::scenario::uc07::{self, Failover};
use harness::scenario::{self, UseCase};
use harness::workdir::Workdir;
use std::path::PathBuf;
use std::time::Duration;

/// Run one use case against a dlock of child processes, and judge it.
///
/// Exit codes: 0 all held · 1 a check or verdict failed · 2 could not run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// UC-01 to UC-08; UC-03 is the matrix of both kill switches.
    #[arg(value_name = "UC-0x", value_parser = use_case)]
    case: UseCase,
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
    report: ReportArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn use_case(text: &str) -> Result<UseCase, String> {
    UseCase::parse(text).ok_or_else(|| "must be UC-01 to UC-08".to_owned())
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
    args.report.check()?;
    let options = args.stores.replay();
    let failover = match args.case {
        UseCase::Uc07 => Some(Failover::of(args.stores.store.as_deref()).map_err(failed)?),
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
    let replay = format!("dlock scenario {} --seed {}{options}", args.case.id(), setup.seed);
    let began = setup.lab.host().clock.mono();
    let (ok, text, json, run) = if args.case == UseCase::Uc03 {
        let cells = harness::demo::matrix(&setup, &progress).await;
        let cells = cells.inspect_err(|_| progress.finish()).map_err(failed)?;
        let ok = cells.iter().all(CellReport::ok);
        (
            ok,
            format!("{}{}", matrix_text(&cells), money(&cells)),
            serde_json::to_value(&cells),
            Run::of_cells(&cells, setup.seed, took_ms(&setup, began), &replay),
        )
    } else {
        let report = match failover {
            Some(failover) => uc07::run(&setup, failover).await,
            None => scenario::run(&setup, args.case).await,
        };
        let report = report.inspect_err(|_| progress.finish()).map_err(failed)?;
        (
            report.ok(),
            report.text(),
            serde_json::to_value(&report),
            Run::of_scenario(&report, &replay),
        )
    };
    progress.finish();
    setup.backends.clean_up().await;
    let json = json.map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
    write_json(&workdir.path().join("scenario.json"), &json)?;
    let stays = !ok || matches!(workdir, Workdir::Kept(_));
    args.report.write(run, stays.then(|| workdir.path()))?;
    match args.output.output {
        Format::Json => println!("{json:#}"),
        Format::Table => println!("{text}"),
    }
    if let Some(path) = workdir.end(!ok) {
        eprintln!("kept in {}", path.display());
    }
    Ok(if ok { exit::OK } else { FAILED })
}

fn took_ms(setup: &scenario::Setup, began: Duration) -> u64 {
    let took = setup.lab.host().clock.mono().saturating_sub(began);
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
