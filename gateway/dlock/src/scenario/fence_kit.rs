//! `dlock scenario fence-kit`: a table and a service that know no locks, in random chaos, with the kit and without.

use harness::scenario::fence_kit::{Fence, Plan};
use std::time::Duration;

/// What is asked of such a run.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "For fence-kit")]
pub struct FenceKitArgs {
    /// Only with the kit on, or only with it off; both, one after the other, where nothing is said.
    #[arg(long, value_enum)]
    fence: Option<FenceArg>,
}

/// Whether the kit is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FenceArg {
    On,
    Off,
}

impl FenceKitArgs {
    /// The plan; each half goes on for `lasting`.
    pub fn plan(&self, lasting: Duration) -> Plan {
        Plan {
            lasting,
            fences: match self.fence {
                None => vec![Fence::Off, Fence::On],
                Some(FenceArg::On) => vec![Fence::On],
                Some(FenceArg::Off) => vec![Fence::Off],
            },
            install: fence_kit::sql::INSTALL,
        }
    }

    /// The same as on a command line.
    pub fn line(&self, lasting: Duration) -> String {
        let fence = match self.fence {
            None => "",
            Some(FenceArg::On) => " --fence on",
            Some(FenceArg::Off) => " --fence off",
        };
        format!("fence-kit --for {}{fence}", humantime::format_duration(lasting))
    }
}
