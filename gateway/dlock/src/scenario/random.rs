//! `dlock scenario random`: random faults under load, judged; then the negative control.

use super::Ran;
use crate::demo::Lab;
use clap::ArgAction;
use harness::report::euros;
use harness::scenario::random::{self, Plan};
use harness::stack::RunError;
use std::time::Duration;

/// What is asked of a random run.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "For random")]
pub struct RandomArgs {
    /// How long faults are injected.
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
}

/// Runs it, and the negative control after it.
pub async fn run(lab: &Lab, args: &RandomArgs) -> Result<Ran, RunError> {
    let plan = args.plan();
    let random::Ran { mut report, .. } = random::run(&lab.setup, &plan).await?;
    let mut text = String::new();
    if !args.no_control {
        let control = random::run(&lab.setup, &plan.control()).await?;
        let (again, lost) = control.evidence.paid_again();
        report.compare("the negative control lost money, or this run is void", true, lost > 0);
        text = format!(
            "\nNegative control: with both fences off the same driver paid {again} of {} payouts more than once and lost {}.\n",
            control.evidence.payouts.len(),
            euros(lost),
        );
    }
    Ran::new(report.ok(), format!("{}{text}", report.text()), &report)
}
