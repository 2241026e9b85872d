//! `--hold`: a scenario's stack stays at its end, with a console beside it, until Ctrl-C.

use crate::demo::interrupted;
use harness::progress::Progress;
use harness::scenario::hold::Hold;
use harness::scenario::uc03::MatrixCell;
use std::cell::Cell;
use std::rc::Rc;

/// The cell that is shown where none is named: both fences stand, and the worker sleeps between its claim and its submit.
const CELL: &str = "on-on-submit";

/// How a scenario is looked at.
#[derive(clap::Args, Debug, Default)]
pub struct HoldArgs {
    /// Start a console beside the stack, and keep the stack when the story is over, before the harness probes and judges,
    /// until Ctrl-C. The console's address is printed.
    #[arg(long)]
    pub hold: bool,
    /// UC-03 alone: one cell of the matrix, as PAYMENT-RAIL-POINT, such as `on-on-submit` or `off-on-claim`. With --hold
    /// on-on-submit where nothing is said.
    #[arg(long, value_name = "CELL")]
    cell: Option<String>,
}

impl HoldArgs {
    /// The one cell that is to be run, where it is one.
    pub fn cell(&self, uc03: bool, containers: bool) -> Result<Option<MatrixCell>, String> {
        if self.hold && containers {
            return Err("--hold: only with --stack processes".to_owned());
        }
        let named = match &self.cell {
            Some(_) if !uc03 => return Err("--cell: only UC-03 has cells".to_owned()),
            Some(cell) => cell.as_str(),
            None if self.hold && uc03 => CELL,
            None => return Ok(None),
        };
        MatrixCell::parse(named).map(Some).ok_or_else(|| {
            format!("--cell {named}: must be on or off for each fence and claim, submit or post, as in {CELL}")
        })
    }
}

/// Whether a run is being held now: then Ctrl-C ends the hold, not the run.
#[derive(Clone, Debug, Default)]
pub struct Holding(Rc<Cell<bool>>);

impl Holding {
    /// Returns when the user asks to end while nothing is held.
    pub async fn interrupted_otherwise(&self) {
        loop {
            interrupted().await;
            if !self.0.get() {
                return;
            }
        }
    }

    /// What holds a run.
    pub fn hold(&self, progress: &Progress) -> Hold {
        let began = {
            let progress = progress.clone();
            move |name: &str, console: &str| progress.tell(&format!("  {name}: console {console}"))
        };
        let until = {
            let (progress, holding) = (progress.clone(), self.0.clone());
            move |name: &str, console: &str| {
                progress.tell(&format!(
                    "  {name}: held; look at {console}, Ctrl-C goes on to the verdicts"
                ));
                let holding = holding.clone();
                let held: futures_util::future::LocalBoxFuture<'static, ()> = Box::pin(async move {
                    holding.set(true);
                    interrupted().await;
                    holding.set(false);
                });
                held
            }
        };
        Hold {
            began: Rc::new(began),
            until: Rc::new(until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(hold: bool, cell: Option<&str>) -> HoldArgs {
        HoldArgs {
            hold,
            cell: cell.map(str::to_owned),
        }
    }

    #[test]
    fn a_held_matrix_is_one_cell() {
        assert_eq!(args(false, None).cell(true, false), Ok(None));
        let cell = |args: HoldArgs| args.cell(true, false).map(|cell| cell.map(|cell| cell.id()));
        assert_eq!(cell(args(true, None)), Ok(Some("uc-03-on-on-submit".to_owned())));
        assert_eq!(
            cell(args(false, Some("off-on-claim"))),
            Ok(Some("uc-03-off-on-claim".to_owned()))
        );
        assert!(
            cell(args(false, Some("on-on")))
                .unwrap_err()
                .starts_with("--cell on-on")
        );
        assert!(args(false, Some("on-on-post")).cell(false, false).is_err());
        assert!(args(true, None).cell(true, true).is_err());
    }
}
