//! `dlock scenario random`: random faults under load, judged; then the negative control.

use super::Ran;
use crate::demo::Lab;
use clap::ArgAction;
use harness::report::{Run, euros};
use harness::scenario::random::{self, Plan};
use harness::stack::RunError;
use std::time::Duration;

/// What is asked of a random run.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "For random")]
pub struct RandomArgs {
    /// How long faults are injected; of fence-kit, in each half.
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "1m")]
    lasting: Duration,
    /// How many workers pay.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=64), default_value = "12")]
    workers: u16,
    /// How many accounts the payouts are spread over: fewer make more contention.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), default_value = "12")]
    accounts: u16,
    /// How many payouts are asked for, at even distances; three every two seconds where nothing is said.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    payouts: Option<u32>,
    /// Only this kind of fault, by its name in `dlock scenario faults`; may be repeated.
    #[arg(long = "fault", value_name = "KIND", action = ArgAction::Append)]
    faults: Vec<String>,
    /// Go on past the time until every kind was injected once.
    #[arg(long)]
    every_kind: bool,
    /// Do not run the negative control (the same driver with the fences off, which must lose money).
    #[arg(long)]
    no_control: bool,
}

impl RandomArgs {
    /// How long faults are injected.
    pub const fn lasting(&self) -> Duration {
        self.lasting
    }

    fn plan(&self) -> Plan {
        let default = u32::try_from(self.lasting.as_secs() * 3 / 2).unwrap_or(u32::MAX);
        Plan {
            workers: usize::from(self.workers),
            accounts: usize::from(self.accounts),
            payouts: self.payouts.unwrap_or(default).clamp(1, 100_000),
            lasting: self.lasting,
            every_kind: self.every_kind,
            kinds: self.faults.clone(),
            fenced: true,
        }
    }

    /// The same as on a command line.
    fn line(&self, plan: &Plan) -> String {
        let mut line = format!(
            "random --for {} --workers {} --accounts {} --payouts {}",
            humantime::format_duration(plan.lasting),
            plan.workers,
            plan.accounts,
            plan.payouts,
        );
        for kind in &plan.kinds {
            line.push_str(&format!(" --fault {kind}"));
        }
        for (given, flag) in [(self.every_kind, " --every-kind"), (self.no_control, " --no-control")] {
            if given {
                line.push_str(flag);
            }
        }
        line
    }
}

/// Runs it, and the negative control after it.
pub async fn run(lab: &Lab, args: &RandomArgs, replay: &dyn Fn(&str) -> String) -> Result<Ran, RunError> {
    let plan = args.plan();
    let random::Ran { mut report, evidence } = random::run(&lab.setup, &plan).await?;
    if !args.no_control {
        let control = random::run(&lab.setup, &plan.control()).await?;
        report.control = Some(random::control(&control.evidence));
    }
    report.replay = replay(&args.line(&plan));
    let mut text = report.text();
    if let Some(control) = &report.control {
        text.push_str(&format!(
            "\nNegative control: {}; {} payouts were paid more than once, {} lost.\n",
            control.what,
            control.payouts_paid_twice,
            euros(control.lost_minor),
        ));
    }
    let run = Run::with_evidence(&report, evidence, "");
    Ran::new(report.ok(), text, &report, Ok(run))
}
