//! `dlock verify`: what was exported, checked without any server.
//!
//! ```text
//! audit rows + seals → form → order → chain → hash of each segment → tokens and grants of each key
//! ledger             → form → two legs a fact, that sum to zero → balances
//! ```
//!
//! Owns: the rules an export has to keep, and reading the forms the product writes.
//! Does not own: how a segment is hashed (`lock_server::seal`, the stores' own code).
//! On failure: a file that cannot be read, or is none of these forms, is wrong. What the files do not show is `not checked`.

mod audit;
pub mod export;
mod ledger;
mod read;

use crate::doctor::report::Report;
use crate::exit::Failure;
use crate::output::OutputArgs;

/// Check an exported audit trail or ledger offline: nothing is asked of any server.
///
/// The audit trail and its seals come from `dlock lock audit --seals-to SEALS > AUDIT`, or from pages of `GET /v1/audit` and
/// `GET /v1/audit/seals`; the whole ledger from `GET /v1/ledger/export` as jsonl or csv. Exit code 0 where nothing is wrong, else 1.
///
/// Seals that come from the same store at the same time show that the export is consistent, not that the store is
/// genuine: who can write the store can seal other rows anew. Seals that were exported earlier and kept elsewhere show
/// whether a row that they cover was changed, removed or put in since.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("what").args(["audit", "ledger"]).required(true).multiple(true)))]
pub struct Args {
    /// The audit trail: one JSON object a line, or pages; `-` is standard input.
    #[arg(long, value_name = "FILE|-")]
    audit: Option<String>,
    /// Its seals, fetched before the trail, or an older file of them that was kept elsewhere. Without them a changed row is
    /// not noticed; with seals of the same export only one that was not sealed anew.
    #[arg(long, value_name = "FILE", requires = "audit")]
    seals: Option<String>,
    /// The ledger, jsonl or csv; `-` is standard input.
    #[arg(long, value_name = "FILE|-")]
    ledger: Option<String>,
    /// The accounts, pages of `GET /v1/accounts`, fetched with the ledger while nothing is paid. Without them no balance is checked.
    #[arg(long, value_name = "FILE", requires = "ledger")]
    accounts: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let named = [&args.audit, &args.seals, &args.ledger, &args.accounts];
    if named.iter().filter(|name| name.as_deref() == Some("-")).count() > 1 {
        return Err(Failure::usage("standard input can be one of the files only"));
    }
    let mut report = Report::default();
    if let Some(name) = &args.audit {
        let rows = read::text(name)?;
        let seals = args.seals.as_deref().map(read::text).transpose()?;
        nothing_there(name, &rows, &mut report);
        if let (Some(name), Some(seals)) = (&args.seals, &seals) {
            nothing_there(name, seals, &mut report);
        }
        audit::check(name, &rows, args.seals.as_deref().zip(seals.as_deref()), &mut report);
    }
    if let Some(name) = &args.ledger {
        let rows = read::text(name)?;
        nothing_there(name, &rows, &mut report);
        let accounts = args.accounts.as_deref().map(read::text).transpose()?;
        ledger::check(
            name,
            &rows,
            args.accounts.as_deref().zip(accounts.as_deref()),
            &mut report,
        );
    }
    report.finish(args.output.output)
}

/// A new store exports nothing, and so does an export that failed: which of them it was is for the reader to know.
fn nothing_there(name: &str, text: &str, report: &mut Report) {
    if text.trim().is_empty() {
        report.warning(
            name,
            "rows",
            "the file is empty, so there is nothing in it to be wrong",
            "if anything has happened yet, the export failed: make it again and look at its exit code",
        );
    }
}

/// A list in a line: the first ones, and how many more there are.
fn some(items: &[String]) -> String {
    const NAMED_MAX: usize = 5;
    let mut text = items.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
    if items.len() > NAMED_MAX {
        text.push_str(&format!("; and {} more", items.len() - NAMED_MAX));
    }
    text
}
