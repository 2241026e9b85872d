//! `dlock payout trace`: everything of one payout, from every place that knows something of it, in order of time.
//!
//! ```text
//! payment history · submission · lock history · refusals ─┐
//! trace rings: the traces that touched the payout ────────┼─▶ lines, sorted by time ─▶ table or JSON
//! log files: lines of the payout and of those traces ─────┘
//! ```
//!
//! Owns: which places are asked, how what they say is told in one line. Does not own: any of it.
//! On failure: a place that cannot be reached is named, the rest is shown, and the exit code is 69.

mod files;
mod line;
mod records;
mod rings;

pub(crate) use line::Line;

use crate::api::{Api, LockServerArgs, PaymentArgs};
use crate::exit::{Failure, OK, UNAVAILABLE};
use crate::output::{self, Format};
use http_client::CallError;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// What `dlock payout trace` takes.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    at: PaymentArgs,
    #[command(flatten)]
    servers: LockServerArgs,
    /// Workers, or any other components, whose trace rings are read as well; separated by commas, or given again.
    #[arg(long = "executor", alias = "component", value_name = "URL[,URL…]", value_delimiter = ',', value_parser = crate::api::url)]
    executors: Vec<String>,
    /// A log file (JSON lines) whose lines of the payout, and of its traces, are merged in; may be given again.
    #[arg(long = "log", value_name = "FILE")]
    logs: Vec<PathBuf>,
    /// How long before the payout's first record grants of its account's lock are shown. After its last one only those are
    /// that it was settled under: later grants are other payouts'.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = crate::config::duration)]
    around: Duration,
    /// The payout's id.
    payout_id: String,
}

/// A place that was asked.
#[derive(Debug, Serialize)]
pub(crate) struct Source {
    /// What it was asked for.
    what: &'static str,
    /// Where.
    place: String,
    /// `read`, `absent` (it answers, and has nothing of the kind) or `unreached`.
    state: &'static str,
    /// Why it is not read, or what was left out.
    detail: Option<String>,
}

/// What has been gathered so far.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub lines: Vec<Line>,
    pub traces: BTreeSet<String>,
    pub tokens: BTreeSet<u64>,
    pub sources: Vec<Source>,
}

impl Gathered {
    pub(crate) fn read(&mut self, what: &'static str, place: &str, detail: Option<String>) {
        self.sources.push(Source {
            what,
            place: gateway_kit::mask(place),
            state: "read",
            detail,
        });
    }

    /// Takes an answer, or remembers why there is none. A problem is an answer of a component that was reached.
    pub(crate) fn take<T>(&mut self, what: &'static str, place: &str, answer: Result<T, CallError>) -> Option<T> {
        match answer {
            Ok(answer) => {
                self.read(what, place, None);
                Some(answer)
            }
            Err(error) => {
                let reached = matches!(&error, CallError::Problem(problem) if problem.code.status() < 500);
                self.unread(
                    what,
                    place,
                    if reached { "absent" } else { "unreached" },
                    error.to_string(),
                );
                None
            }
        }
    }

    pub(crate) fn unread(&mut self, what: &'static str, place: &str, state: &'static str, detail: String) {
        self.sources.push(Source {
            what,
            place: gateway_kit::mask(place),
            state,
            detail: Some(detail),
        });
    }
}

#[derive(Serialize)]
struct Told {
    payout_id: String,
    account_id: Option<String>,
    lines: Vec<serde_json::Value>,
    sources: Vec<Source>,
}

/// Gathers and shows.
pub async fn run(args: Args, format: Format) -> crate::Outcome {
    let api = Api::new();
    let mut gathered = Gathered::default();
    let account_id = records::gather(&api, &args, &mut gathered).await?;
    let mut places = vec![args.at.payments.clone(), args.at.rail_proxy.clone()];
    places.extend(args.servers.urls.iter().chain(&args.executors).cloned());
    let mut seen = BTreeSet::new();
    places.retain(|place| seen.insert(place.clone()));
    let rings = rings::fetch(&api, &places, &mut gathered).await;
    gathered.traces.extend(rings::traces_of(&rings, &args.payout_id));
    let files = files::read(&args.logs, &args.payout_id, &mut gathered)?;
    rings::tell(&rings, &mut gathered);
    gathered.lines.extend(files);
    gathered.lines.sort_by_key(|line| line.at_ns);
    show(&args.payout_id, account_id, gathered, format)
}

fn show(payout_id: &str, account_id: Option<String>, gathered: Gathered, format: Format) -> crate::Outcome {
    let first = gathered.lines.first().map_or(0, |line| line.at_ns);
    let lines = gathered.lines.iter().map(|line| line.told(first)).collect();
    let unreached: Vec<String> = gathered
        .sources
        .iter()
        .filter(|source| source.state == "unreached")
        .map(|source| {
            let why = source.detail.as_deref().unwrap_or_default();
            format!("{} of {}: {why}", source.what, source.place)
        })
        .collect();
    let absent: Vec<String> = gathered
        .sources
        .iter()
        .filter(|source| source.state == "absent" || source.state == "read" && source.detail.is_some())
        .map(|source| {
            let why = source.detail.as_deref().unwrap_or_default();
            format!("{} of {}: {why}", source.what, source.place)
        })
        .collect();
    let told = Told {
        payout_id: payout_id.to_owned(),
        account_id,
        lines,
        sources: gathered.sources,
    };
    match format {
        Format::Json => output::object(format, &told)?,
        Format::Table => {
            let columns = [
                ("AT (UTC)", "at"),
                ("AFTER", "after"),
                ("COMPONENT", "component"),
                ("WHO", "actor"),
                ("TOKEN", "token"),
                ("WHAT", "what"),
            ];
            output::list(format, &serde_json::json!({ "items": told.lines }), &columns)?;
        }
    }
    for note in &absent {
        eprintln!("dlock: {note}");
    }
    if unreached.is_empty() {
        return Ok(OK);
    }
    Err(Failure::new(
        UNAVAILABLE,
        format!("not everything could be read: {}", unreached.join("; ")),
    ))
}
