//! `dlock trace`: what the components' actors did, out of their rings and out of files.

use crate::api::{Api, url};
use crate::config::duration;
use crate::exit::{self, Failure, OK, REFUSED};
use crate::output::{self, Format, OutputArgs};
use futures_util::future::join_all;
use http_client::CallError;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trace_kit::{Checked, Dump, Filter, Record, Skew, check, check_dump, draw, merge};

/// What the actors did: dump, follow, put together and check their traces.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Writes what the rings of these components hold, on one time axis.
    ///
    /// What was asked for is written even where a component does not answer; the exit code is 69 then.
    Dump {
        /// The components' addresses.
        #[arg(value_name = "URL", required = true, value_parser = url)]
        urls: Vec<String>,
        /// Only records above this number, in each component.
        #[arg(long, value_name = "SEQ")]
        since: Option<u64>,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        to: ToArgs,
    },
    /// Prints records as they come, and says where a ring was faster than this command.
    Tail {
        /// The components' addresses.
        #[arg(value_name = "URL", required = true, value_parser = url)]
        urls: Vec<String>,
        /// How many of the records that are there already are printed, for each component.
        #[arg(long, value_name = "N", default_value_t = 10)]
        lines: usize,
        /// How often the components are asked.
        #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration)]
        every: Duration,
        /// End after this many records.
        #[arg(long, value_name = "N")]
        count: Option<u64>,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Puts dumps of several processes on one time axis; says what their calls tell of their clocks.
    Merge {
        /// Dumps in JSONL, or addresses of components.
        #[arg(value_name = "FILE|URL", required = true)]
        sources: Vec<String>,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        to: ToArgs,
    },
    /// Checks a dump (JSONL) or a drawing (trace-event JSON): each begin has its end, each arrow both its ends.
    ///
    /// Exit codes: 0 well formed · 1 something is wrong.
    Check {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Also demand that the arrow of at least one payout passes all of these components.
        #[arg(long, value_name = "COMPONENT,…", value_delimiter = ',')]
        crosses: Vec<String>,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Which records. Token, key and payout choose whole traces in a dump, single records while following.
#[derive(clap::Args, Debug, Clone)]
struct FilterArgs {
    /// Only actors whose path is this, or lies below it.
    #[arg(long, value_name = "PATH")]
    actor: Option<String>,
    /// Only this trace.
    #[arg(long, value_name = "ID", value_parser = trace_id)]
    trace_id: Option<String>,
    /// Only traces in which this token is carried.
    #[arg(long)]
    token: Option<u64>,
    /// Only traces that name this payout.
    #[arg(long)]
    payout: Option<String>,
    /// Only traces that name this key.
    #[arg(long, allow_hyphen_values = true)]
    key: Option<String>,
}

/// 32 hexadecimal digits.
fn trace_id(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    if lower.len() == 32 && lower.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(lower)
    } else {
        Err("must be 32 hexadecimal digits".to_owned())
    }
}

impl FilterArgs {
    fn filter(self) -> Filter {
        Filter {
            trace_id: self.trace_id,
            token: self.token,
            key: self.key,
            payout: self.payout,
            actor: self.actor,
        }
    }
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DumpFormat {
    /// One JSON object a line.
    #[default]
    Jsonl,
    /// The trace-event JSON that Perfetto and Chrome open.
    Perfetto,
}

/// Where it is written, and how.
#[derive(clap::Args, Debug, Clone)]
struct ToArgs {
    /// How to write it.
    #[arg(long, value_enum, default_value_t)]
    format: DumpFormat,
    /// Write into FILE instead of standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Move processes whose clocks cannot be right, by what the calls between them say.
    #[arg(long)]
    align: bool,
}

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(async {
        match args.verb {
            Verb::Dump {
                urls,
                since,
                filter,
                to,
            } => {
                let mut query = String::new();
                if let Some(since) = since {
                    query = format!("&since={since}");
                }
                // Whole traces are chosen here: one component does not know what another one names.
                let (dumps, missing) = read_all(&urls, &query).await;
                put_together(dumps, &filter.filter(), &to)?;
                ended(missing)
            }
            Verb::Merge { sources, filter, to } => {
                let mut dumps = Vec::new();
                let (urls, files): (Vec<_>, Vec<_>) = sources
                    .into_iter()
                    .partition(|source| source.starts_with("http://") || source.starts_with("https://"));
                let urls: Vec<String> = urls
                    .iter()
                    .map(|text| url(text).map_err(|reason| Failure::usage(format!("{text}: {reason}"))))
                    .collect::<Result<_, _>>()?;
                for file in files {
                    dumps.push(read_file(Path::new(&file))?);
                }
                let (read, missing) = read_all(&urls, "").await;
                dumps.extend(read);
                put_together(dumps, &filter.filter(), &to)?;
                ended(missing)
            }
            Verb::Check { file, crosses, output } => check_file(&file, &crosses, output.output),
            Verb::Tail {
                urls,
                lines,
                every,
                count,
                filter,
                output,
            } => {
                let mut tail = Tail {
                    api: Api::new(),
                    filter: filter.filter(),
                    format: output.output,
                    left: count,
                };
                tail.follow(&urls, lines, every).await
            }
        }
    })
}

/// The dumps of the components that answer; what is wrong with the others goes to standard error.
async fn read_all(urls: &[String], query: &str) -> (Vec<Dump>, usize) {
    let api = Api::new();
    let asked = urls.iter().map(|url| read_url(&api, url, query));
    let mut dumps = Vec::new();
    for answer in join_all(asked).await {
        match answer {
            Ok(dump) => dumps.push(dump),
            Err(error) => eprintln!("dlock: {error}"),
        }
    }
    let missing = urls.len() - dumps.len();
    (dumps, missing)
}

async fn read_url(api: &Api, url: &str, query: &str) -> Result<Dump, String> {
    let path = format!("/debug/trace?header=true{query}");
    let text = api.plain(url).text(&path, &api.trace).await;
    let text = text.map_err(|error| explained(url, &error))?;
    Dump::parse(&text).map_err(|error| format!("{url}: {error}"))
}

/// What a call to a debug route failed with, and what to do about it.
pub fn explained(url: &str, error: &CallError) -> String {
    let hint = if error.code() == Some(http_contract::Code::NotFound) {
        " (is debug.endpoints on there?)"
    } else {
        ""
    };
    format!("{url}: {error}{hint}")
}

fn read_file(path: &Path) -> Result<Dump, Failure> {
    let named = |error: String| Failure::usage(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    Dump::parse(&text).map_err(|error| named(error.to_string()))
}

fn ended(missing: usize) -> crate::Outcome {
    Ok(if missing == 0 { OK } else { exit::UNAVAILABLE })
}

fn put_together(dumps: Vec<Dump>, filter: &Filter, to: &ToArgs) -> Result<(), Failure> {
    let (mut dump, skews) = merge(dumps, to.align);
    for line in skews.iter().map(|skew| about_clocks(skew, to.align)) {
        eprintln!("{line}");
    }
    for process in dump.processes.values().filter(|process| process.dropped > 0) {
        eprintln!(
            "{}: the ring holds from {} on; {} older records are gone",
            process.title(),
            process.first_seq,
            process.dropped
        );
    }
    filter.apply(&mut dump);
    let text = match to.format {
        DumpFormat::Jsonl => dump.to_jsonl(),
        DumpFormat::Perfetto => {
            let drawing = draw(&dump);
            if drawing.arrows_left_out > 0 {
                eprintln!(
                    "{} arrows are not drawn: they would point into the past{}",
                    drawing.arrows_left_out,
                    if to.align { "" } else { " (try --align)" }
                );
            }
            drawing.json
        }
    };
    match &to.out {
        Some(path) => {
            std::fs::File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(path)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|error| Failure::new(exit::INTERNAL, format!("{}: {error}", path.display())))?;
            eprintln!("{} records in {}", dump.records.len(), path.display());
        }
        None => std::io::stdout()
            .lock()
            .write_all(text.as_bytes())
            .map_err(|error| Failure::new(exit::INTERNAL, format!("standard output: {error}")))?,
    }
    Ok(())
}

/// What the calls between two processes say of their clocks.
fn about_clocks(skew: &Skew, aligned: bool) -> String {
    let Skew {
        caller,
        server,
        calls,
        impossible,
        ahead_least_us: least,
        ahead_most_us: most,
        ..
    } = skew;
    let told = if skew.may_agree() {
        "the clocks may agree".to_owned()
    } else {
        let moved = if aligned { "; moved" } else { "; see --align" };
        format!("the clocks DISAGREE, {impossible} of the calls cannot have been like that{moved}")
    };
    format!("{caller} -> {server}: {calls} calls, the server's clock is {least} to {most} us ahead: {told}")
}

fn check_file(path: &Path, crosses: &[String], format: Format) -> crate::Outcome {
    let named = |error: String| Failure::new(REFUSED, format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    // A dump is an object a line; a drawing is one object with `traceEvents`.
    let first = text.lines().next().unwrap_or_default();
    let is_dump = serde_json::from_str::<serde_json::Value>(first).is_ok_and(|line| line.get("traceEvents").is_none());
    let checked = if is_dump {
        let dump = Dump::parse(&text).map_err(|error| named(error.to_string()))?;
        let lines = check_dump(&dump);
        if lines.ok() && !crosses.is_empty() {
            check(&draw(&dump).json).map_err(named)?
        } else {
            lines
        }
    } else {
        check(&text).map_err(named)?
    };
    let demanded: Vec<&str> = crosses.iter().map(String::as_str).collect();
    let crossed = demanded.is_empty() || !checked.crossing(&demanded).is_empty();
    match format {
        Format::Json => output::line(format, &checked, String::new)?,
        Format::Table => print!("{}", told(&checked)),
    }
    if !crossed {
        eprintln!("dlock: no payout's arrow passes all of {}", crosses.join(", "));
    }
    Ok(if checked.ok() && crossed { OK } else { REFUSED })
}

fn told(checked: &Checked) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = writeln!(
        text,
        "{} events: {} slices, {} spans, {} arrows; processes: {}",
        checked.events,
        checked.slices,
        checked.spans,
        checked.arrows,
        checked.processes.join(", ")
    );
    for way in &checked.payouts {
        let _ = writeln!(text, "payout {}: {}", way.payout, way.components.join(" -> "));
    }
    for finding in &checked.findings {
        let _ = writeln!(text, "WRONG: {finding}");
    }
    if checked.wrong > checked.findings.len() {
        let _ = writeln!(text, "WRONG: … {} in all", checked.wrong);
    }
    text
}

/// Follows rings.
struct Tail {
    api: Api,
    filter: Filter,
    format: Format,
    left: Option<u64>,
}

/// Where a component's ring was left.
#[derive(Default)]
struct At {
    boot_id: Option<String>,
    seq: u64,
    /// Whether the last question was not answered, so that it is said once.
    silent: bool,
}

impl Tail {
    async fn follow(&mut self, urls: &[String], lines: usize, every: Duration) -> crate::Outcome {
        let mut at: Vec<At> = urls.iter().map(|_| At::default()).collect();
        loop {
            for (url, at) in urls.iter().zip(&mut at) {
                self.ask(url, at, lines).await?;
                if self.left == Some(0) {
                    return Ok(OK);
                }
            }
            tokio::time::sleep(every).await;
        }
    }

    async fn ask(&mut self, url: &str, at: &mut At, lines: usize) -> Result<(), Failure> {
        let begins = at.boot_id.is_none();
        let query = if begins {
            format!("&limit={lines}")
        } else {
            format!("&since={}", at.seq)
        };
        let dump = match read_url(&self.api, url, &query).await {
            Ok(dump) => dump,
            Err(error) => {
                if !std::mem::replace(&mut at.silent, true) {
                    eprintln!("dlock: {error}");
                }
                return Ok(());
            }
        };
        at.silent = false;
        let Some(process) = dump.processes.values().next() else {
            return Ok(());
        };
        if at.boot_id.as_ref().is_some_and(|known| *known != process.boot_id) {
            eprintln!("{}: has been restarted", process.title());
            // Its numbers begin anew: what it did so far is asked for at once.
            *at = At {
                boot_id: Some(process.boot_id.clone()),
                ..At::default()
            };
            return Box::pin(self.ask(url, at, lines)).await;
        }
        if !begins && process.first_seq > at.seq + 1 {
            let lost = process.first_seq - at.seq - 1;
            eprintln!("{}: {lost} records were lost before they were read", process.title());
        }
        at.boot_id = Some(process.boot_id.clone());
        // With a limit the newest are given, so that the last one is the last of all.
        at.seq = process.next_seq.saturating_sub(1);
        for record in dump.records.iter().filter(|record| self.filter.names(record)) {
            output::line(self.format, record, || line(record))?;
            if let Some(left) = &mut self.left {
                *left -= 1;
                if *left == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// One record for a human.
fn line(record: &Record) -> String {
    use std::fmt::Write as _;
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(record.at_wall_us) * 1_000).map_or_else(
        |_| record.at_wall_us.to_string(),
        |at| {
            format!(
                "{:02}:{:02}:{:02}.{:06}",
                at.hour(),
                at.minute(),
                at.second(),
                at.microsecond()
            )
        },
    );
    let mut text = format!(
        "{at} {:<16} {} {} {} queued {} us, took {} us",
        record.instance,
        record.actor,
        record.message,
        record.code.as_deref().unwrap_or(&record.outcome),
        record.queued_ns / 1_000,
        record.handled_ns / 1_000,
    );
    // Writing into a String cannot fail.
    if let Some(key) = &record.key {
        let _ = write!(text, " key {key}");
    }
    if let Some(payout) = &record.payout {
        let _ = write!(text, " payout {payout}");
    }
    if let Some(token) = record.token {
        let _ = write!(text, " token {token}");
    }
    let _ = write!(text, " trace {}", record.trace_id);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_id_is_32_hexadecimal_digits() {
        let id = "4BF92F3577B34DA6A3CE929D0E0E4736";
        assert_eq!(trace_id(id), Ok(id.to_ascii_lowercase()));
        for wrong in ["", "4bf9", &format!("{}x", &id[1..])] {
            assert!(trace_id(wrong).is_err(), "{wrong}");
        }
    }
}
