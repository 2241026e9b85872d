//! `dlock bench`: acquire+release and heartbeats against one lock server.

use crate::demo::{CANNOT_RUN, FAILED, interrupted, write_json};
use crate::exit::{self, Failure};
use crate::output::{Format, OutputArgs};
use harness::bench::{BenchPlan, LivePlan};
use harness::stack::processes::Lab;
use harness::workdir::Workdir;
use host_kit::Host;
use std::path::PathBuf;
use std::time::Duration;

/// Measure acquire+release and heartbeats against one lock server: latency from the intended start in an open loop, the
/// most there is in a closed loop, the batch sizes reached, memory per live key.
///
/// Exit codes: 0 measured without an error · 1 some call failed · 2 could not run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A lock server that runs already; else a child on the embedded store.
    #[arg(long, value_name = "URL", env = "DLOCK_LOCK_SERVER", conflicts_with = "store", value_parser = crate::api::url)]
    lock_server: Option<String>,
    /// The child's store: `sqlite` (a temporary one), `pg` or `etcd` (a server in a container for this run), or the URL
    /// of a server that runs; `sqlite` where nothing is said.
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// Acquire+release pairs that are due each second in the open loop.
    #[arg(long, default_value_t = 220)]
    rate: u32,
    /// Heartbeats that are due each second in the open loop.
    #[arg(long, default_value_t = 240)]
    heartbeat_rate: u32,
    /// Numbers of clients of the closed loop.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    clients: Vec<usize>,
    /// How long each load is measured.
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    for_: Duration,
    /// How long each load runs before it is measured.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    warm_up: Duration,
    /// Hold this many keys at once and heartbeat, instead of the loads above.
    #[arg(long, value_name = "N", requires = "sessions")]
    live_keys: Option<usize>,
    /// With --live-keys: the sessions that hold them.
    #[arg(long, value_name = "N", requires = "live_keys", value_parser = clap::value_parser!(u64).range(1..))]
    sessions: Option<u64>,
    /// With --live-keys: each session's heartbeat interval.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    heartbeat: Duration,
    /// Measure what the trace costs instead: two servers, with and without it, in turns, this many rounds of the most
    /// clients.
    #[arg(long, value_name = "ROUNDS", conflicts_with_all = ["lock_server", "live_keys"], value_parser = clap::value_parser!(u64).range(1..=1000))]
    trace_cost: Option<u64>,
    /// Write the results as JSON into FILE as well.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// `15s`, `500ms`, `2m`, as in the configuration.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a duration such as 500ms, 10s or 2m".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    match &text[at..] {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
    .ok_or_else(wrong)
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
    let workdir = Workdir::new(None).map_err(failed)?;
    let lab = Lab::of_this_binary(Host::system()).map_err(failed)?;
    let live = match (args.live_keys, args.sessions) {
        (Some(keys), Some(sessions)) => Some(LivePlan {
            keys,
            sessions: usize::try_from(sessions).map_err(|error| Failure::usage(error.to_string()))?,
            heartbeat: args.heartbeat,
        }),
        _ => None,
    };
    let plan = BenchPlan {
        lock_server: args.lock_server,
        store: args.store,
        dir: workdir.path().to_owned(),
        rate: args.rate,
        heartbeat_rate: args.heartbeat_rate,
        clients: args.clients,
        for_: args.for_,
        warm_up: args.warm_up,
        live,
        trace_cost: args
            .trace_cost
            .map(|rounds| usize::try_from(rounds).unwrap_or(usize::MAX)),
        settings: std::collections::BTreeMap::new(),
    };
    let report = harness::bench::run(&lab, &plan, &|line| eprintln!("{line}"))
        .await
        .map_err(failed)?;
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
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
    Ok(if report.without_errors() { exit::OK } else { FAILED })
}

#[cfg(test)]
mod tests {
    use super::duration;
    use std::time::Duration;

    #[test]
    fn durations_read_as_in_the_configuration() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "5", "s", "5h", "-1s", "1.5s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
