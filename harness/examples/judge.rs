//! Judges the evidence of a kept run again.
//!
//!     cargo run --package harness --example judge -- DIR/evidence.json

use harness::invariant::check_all;
use harness::model::Evidence;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: judge EVIDENCE.json");
        return ExitCode::from(2);
    };
    let evidence = std::fs::read_to_string(&path)
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str::<Evidence>(&text).map_err(|error| error.to_string()));
    let evidence = match evidence {
        Ok(evidence) => evidence,
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::from(2);
        }
    };
    let verdicts = check_all(&evidence);
    for verdict in &verdicts {
        println!(
            "{}: {} facts, {} violations",
            verdict.invariant,
            verdict.facts,
            verdict.violations.len()
        );
        for violation in verdict.violations.iter().chain(&verdict.not_checked) {
            println!("    {violation}");
        }
    }
    if verdicts.iter().all(harness::invariant::Verdict::held) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
