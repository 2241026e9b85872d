//! The demo: what dlock exists for, shown on one machine in two minutes.
//!
//! Owns: which runs belong to it, how many go on at once, and the results as files.
//! Does not own: the runs.
//! On failure: [`RunError`] when a run could not be made; the report says what came out wrong.

use crate::progress::Progress;
use crate::report::{CellReport, DemoReport, ScenarioReport};
use crate::scenario::{self, Setup, UseCase, uc03};
use crate::stack::RunError;
use futures_util::future::LocalBoxFuture;
use futures_util::{StreamExt, TryStreamExt};

/// How many stacks run at once. Most of a run is waiting for leases to end, so that two cores carry several.
const AT_ONCE: usize = 4;

/// The use cases of the demo, before the matrix.
pub const CASES: [UseCase; 6] = [
    UseCase::Uc01,
    UseCase::Uc02,
    UseCase::Uc04,
    UseCase::Uc05,
    UseCase::Uc06,
    UseCase::Uc08,
];

enum Done {
    Scenario(UseCase, ScenarioReport),
    Cell(usize, CellReport),
}

type Job<'a> = LocalBoxFuture<'a, Result<Done, RunError>>;

/// Runs everything.
///
/// # Errors
/// When a run cannot be made.
pub async fn run(setup: &Setup, progress: &Progress) -> Result<DemoReport, RunError> {
    let clock = setup.lab.host().clock.clone();
    let began = clock.mono();
    let mut jobs: Vec<Job<'_>> = Vec::new();
    // The longest first, so that it does not stand alone at the end.
    let mut cases = CASES;
    cases.sort_by_key(|case| *case != UseCase::Uc04);
    for case in cases {
        jobs.push(Box::pin(async move {
            let report = scenario::run(setup, case).await.map_err(named(case.id()))?;
            Ok(Done::Scenario(case, report))
        }));
    }
    jobs.extend(cells(setup));
    let (scenarios, matrix) = all(jobs, progress).await?;
    let took = clock.mono().saturating_sub(began);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    Ok(DemoReport::new(setup.seed, took_ms, scenarios, matrix))
}

/// Runs UC-03's twelve cells alone.
///
/// # Errors
/// When a run cannot be made.
pub async fn matrix(setup: &Setup, progress: &Progress) -> Result<Vec<CellReport>, RunError> {
    Ok(all(cells(setup), progress).await?.1)
}

fn cells(setup: &Setup) -> Vec<Job<'_>> {
    let cell = |(n, cell): (usize, uc03::MatrixCell)| -> Job<'_> {
        Box::pin(async move {
            let report = uc03::run(setup, cell).await.map_err(named(&cell.id()))?;
            Ok(Done::Cell(n, report))
        })
    };
    uc03::CELLS.into_iter().enumerate().map(cell).collect()
}

async fn all(jobs: Vec<Job<'_>>, progress: &Progress) -> Result<(Vec<ScenarioReport>, Vec<CellReport>), RunError> {
    let total = jobs.len();
    let (mut scenarios, mut cells) = (Vec::new(), Vec::new());
    let mut running = futures_util::stream::iter(jobs).buffer_unordered(AT_ONCE);
    while let Some(done) = running.try_next().await? {
        let line = match done {
            Done::Scenario(case, report) => {
                let line = format!("{}: {}{}", case.id(), report.title, verdict(report.ok()));
                scenarios.push((case, report));
                line
            }
            Done::Cell(n, cell) => {
                let line = format!("{}: {}{}", cell.report.id, cell.measured, verdict(cell.ok()));
                cells.push((n, cell));
                line
            }
        };
        progress.done(scenarios.len() + cells.len(), total, &line);
    }
    scenarios.sort_by_key(|(case, _)| *case);
    cells.sort_by_key(|(n, _)| *n);
    Ok((
        scenarios.into_iter().map(|(_, report)| report).collect(),
        cells.into_iter().map(|(_, report)| report).collect(),
    ))
}

const fn verdict(ok: bool) -> &'static str {
    if ok { ", as it must be" } else { ", WRONG" }
}

fn named(run: &str) -> impl FnOnce(RunError) -> RunError {
    let run = run.to_owned();
    move |error| RunError::Other(format!("{run}: {error}"))
}
