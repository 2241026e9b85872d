//! `dlock scenario UC-0x`, `random`, `faults`: a scenario on stacks of its own, judged and printed; the catalogue of faults.
//!
//! Exit codes: 0 all held, 1 a check or verdict failed, 2 could not run.

mod fence_kit;
mod held;
mod random;

use crate::demo::{CANNOT_RUN, FAILED, Lab, ReportArgs, StoreArgs, keep_traces, lab, write_json};
use crate::exit::{self, Failure};
use crate::output::{Format, OutputArgs};
use harness::chaos::catalogue;
use harness::chaos::fault::StoreKind;
use harness::report::{CellReport, Run, ScenarioReport, matrix_text, money};
use harness::scenario::uc03::{self, MatrixCell};
use harness::scenario::uc07::{self, Failover};
use harness::scenario::{self, StackKind, UseCase, crash_points, jepsen};
use harness::servers::ServerOptions;
use harness::stack::RunError;
use harness::workdir::Workdir;
use held::Holding;
use std::path::PathBuf;

/// Run a scenario against a dlock of child processes, and judge it.
///
/// Exit codes: 0 all held · 1 a check or verdict failed · 2 could not run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// UC-01 to UC-08 (UC-03 is the matrix of both kill switches); `crash-points`: every component killed at each of its
    /// fault points; `jepsen`: Jepsen's lock workload; `fence-kit`: a table and a service behind the fence kit, in random
    /// chaos; `random`: random faults under load; `faults`: only list the kinds of fault.
    #[arg(value_name = "SCENARIO", value_parser = what)]
    what: What,
    /// Replays the choices of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    stores: StoreArgs,
    /// What the system is made of: child processes on the loopback interface, or containers on networks of their own
    /// around this very binary (Docker is needed).
    #[arg(long, value_enum, default_value_t = StackArg::Processes)]
    stack: StackArg,
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
    #[command(flatten)]
    held: held::HoldArgs,
    #[command(flatten)]
    random: random::RandomArgs,
    #[command(flatten)]
    fence_kit: fence_kit::FenceKitArgs,
}

/// What a stack is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum StackArg {
    Processes,
    Containers,
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Case(UseCase),
    CrashPoints,
    Jepsen,
    FenceKit,
    Random,
    Faults,
}

fn what(text: &str) -> Result<What, String> {
    match text.to_ascii_lowercase().as_str() {
        crash_points::NAME => Ok(What::CrashPoints),
        "jepsen" => Ok(What::Jepsen),
        "fence-kit" => Ok(What::FenceKit),
        "random" => Ok(What::Random),
        "faults" => Ok(What::Faults),
        text => UseCase::parse(text).map(What::Case).ok_or_else(|| {
            format!(
                "must be UC-01 to UC-08, {}, jepsen, fence-kit, random or faults",
                crash_points::NAME
            )
        }),
    }
}

/// How it is run.
enum Runs {
    Case(UseCase),
    Cell(MatrixCell),
    CrashPoints,
    Jepsen,
    FenceKit,
    Failover(Failover),
    Random,
}

/// What a scenario came to.
struct Ran {
    ok: bool,
    text: String,
    json: serde_json::Value,
    /// What its report is written from.
    run: Result<Run, RunError>,
}

impl Ran {
    fn new(
        ok: bool,
        text: String,
        result: &impl serde::Serialize,
        run: Result<Run, RunError>,
    ) -> Result<Self, RunError> {
        let json = serde_json::to_value(result).map_err(|error| RunError::Other(error.to_string()))?;
        Ok(Self { ok, text, json, run })
    }

    fn of(report: &ScenarioReport, replay: &str) -> Result<Self, RunError> {
        Self::new(report.ok(), report.text(), report, Run::of_scenario(report, replay))
    }
}

/// Runs it.
pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(async move {
        let holding = Holding::default();
        tokio::select! {
            biased;
            () = holding.interrupted_otherwise() => Err(Failure::new(CANNOT_RUN, "interrupted")),
            outcome = go(args, &holding) => outcome,
        }
    })
}

async fn go(mut args: Args, holding: &Holding) -> crate::Outcome {
    // Its table wants a PostgreSQL.
    if args.what == What::FenceKit && args.stores.store.is_none() && args.stores.pay_store.is_none() {
        args.stores.pay_store = Some("pg".to_owned());
    }
    let cell = args
        .held
        .cell(
            args.what == What::Case(UseCase::Uc03),
            args.stack == StackArg::Containers,
        )
        .map_err(Failure::usage)?;
    let runs = match args.what {
        What::Faults => {
            list(args.output.output);
            return Ok(exit::OK);
        }
        What::Random => Runs::Random,
        What::CrashPoints => Runs::CrashPoints,
        What::Jepsen => Runs::Jepsen,
        What::FenceKit => Runs::FenceKit,
        What::Case(UseCase::Uc07) => Runs::Failover(
            Failover::of(args.stores.store.as_deref()).map_err(|error| Failure::new(CANNOT_RUN, error.to_string()))?,
        ),
        // Only UC-03 has cells.
        What::Case(case) => cell.map_or(Runs::Case(case), Runs::Cell),
    };
    args.report.check()?;
    let mut options = args.stores.replay();
    if args.stack == StackArg::Containers {
        options.push_str(" --stack containers");
    }
    // UC-07 hurts its servers, so it starts its own.
    let stores = if matches!(runs, Runs::Failover(_)) {
        StoreArgs::default()
    } else {
        args.stores
    };
    // Faults want servers that can be hurt: more than one, and a disk that can be filled.
    let servers = if matches!(runs, Runs::Random) {
        ServerOptions::for_faults()
    } else {
        ServerOptions::default()
    };
    let mut lab = lab("scenario", args.seed, &stores, &servers, args.keep).await?;
    lab.setup.stack = match args.stack {
        StackArg::Processes => StackKind::Processes,
        StackArg::Containers => StackKind::Containers,
    };
    if args.held.hold {
        lab.setup.hold = Some(holding.hold(&lab.progress));
    }
    let replay = |name: &str| format!("dlock scenario {name} --seed {}{options}", lab.setup.seed);
    let ran = runs.go(&lab, &args.random, &args.fence_kit, &replay).await;
    lab.progress.finish();
    let Ran { ok, text, json, run } = match ran {
        Ok(ran) => ran,
        Err(error) => {
            lab.setup.backends.clean_up().await;
            keep_traces(&[], &lab.workdir, true)?;
            let kept = lab
                .workdir
                .end(true)
                .map(|path| format!("; its files are in {}", path.display()));
            return Err(Failure::new(CANNOT_RUN, format!("{error}{}", kept.unwrap_or_default())));
        }
    };
    lab.setup.backends.clean_up().await;
    write_json(&lab.workdir.path().join("scenario.json"), &json)?;
    let stays = !ok || matches!(lab.workdir, Workdir::Kept(_));
    args.report.write(run, stays.then(|| lab.workdir.path()))?;
    keep_traces(args.report.dirs(), &lab.workdir, stays)?;
    match args.output.output {
        Format::Json => println!("{json:#}"),
        Format::Table => println!("{text}"),
    }
    if let Some(path) = lab.workdir.end(!ok) {
        eprintln!("kept in {}", path.display());
    }
    Ok(if ok { exit::OK } else { FAILED })
}

impl Runs {
    /// Runs it; `replay` makes the command line that runs it again out of its name.
    async fn go(
        self,
        lab: &Lab,
        random: &random::RandomArgs,
        fence_kit: &fence_kit::FenceKitArgs,
        replay: &dyn Fn(&str) -> String,
    ) -> Result<Ran, RunError> {
        let setup = &lab.setup;
        match self {
            Self::Random => random::run(lab, random, replay).await,
            Self::FenceKit => {
                let plan = fence_kit.plan(random.lasting());
                let report = scenario::fence_kit::run(setup, &plan).await?;
                Ran::of(&report, &replay(&fence_kit.line(plan.lasting)))
            }
            Self::Jepsen => Ran::of(&jepsen::run(setup).await?, &replay("jepsen")),
            Self::CrashPoints => {
                let report = crash_points::run(setup).await?;
                let table = lab.workdir.path().join("crash-points.md");
                std::fs::write(&table, report.markdown())
                    .map_err(RunError::io(format!("writing {}", table.display())))?;
                let run = Run::of_scenario(&report.report, &replay(crash_points::NAME));
                Ran::new(report.ok(), report.text(), &report, run)
            }
            Self::Failover(failover) => Ran::of(&uc07::run(setup, failover).await?, &replay(UseCase::Uc07.id())),
            Self::Cell(cell) => {
                let clock = &setup.lab.host().clock;
                let began = clock.mono();
                let cells = [uc03::run(setup, cell).await?];
                let took_ms = u64::try_from(clock.mono().saturating_sub(began).as_millis()).unwrap_or(u64::MAX);
                let text = format!("{}{}", matrix_text(&cells), money(&cells));
                let name = format!("{} --cell {}", UseCase::Uc03.id(), cell.id());
                let run = Run::of_cells(&cells, setup.seed, took_ms, &replay(&name));
                Ran::new(cells.iter().all(CellReport::ok), text, &cells, run)
            }
            Self::Case(UseCase::Uc03) => {
                let clock = &setup.lab.host().clock;
                let began = clock.mono();
                let cells = harness::demo::matrix(setup, &lab.progress).await?;
                let took_ms = u64::try_from(clock.mono().saturating_sub(began).as_millis()).unwrap_or(u64::MAX);
                let text = format!("{}{}", matrix_text(&cells), money(&cells));
                let run = Run::of_cells(&cells, setup.seed, took_ms, &replay(UseCase::Uc03.id()));
                Ran::new(cells.iter().all(CellReport::ok), text, &cells, run)
            }
            Self::Case(case) => Ran::of(&scenario::run(setup, case).await?, &replay(case.id())),
        }
    }
}

/// Prints the catalogue of faults.
fn list(format: Format) {
    let entries = catalogue::all();
    let on = |stores: &[StoreKind]| stores.iter().map(|store| store.as_str()).collect::<Vec<_>>();
    match format {
        Format::Json => {
            let kinds: Vec<_> = entries
                .iter()
                .map(|entry| {
                    let kind = entry.kind;
                    serde_json::json!({
                        "kind": kind.name, "level": kind.level, "what": kind.what, "undone_by": kind.undo,
                        "stores": on(kind.on),
                    })
                })
                .collect();
            println!("{:#}", serde_json::Value::from(kinds));
        }
        Format::Table => {
            for entry in &entries {
                let kind = entry.kind;
                println!(
                    "{}\n    {}; undone by: {} ({})",
                    kind.name,
                    kind.what,
                    kind.undo,
                    on(kind.on).join(", ")
                );
            }
            println!("{} kinds", entries.len());
        }
    }
}
