//! Prints which verdict catches which planted violation, as Markdown; fails when one is caught by nobody.
//!
//!     cargo run --package harness --example mutations

use harness::mutation::{Row, markdown, table};
use std::process::ExitCode;

fn main() -> ExitCode {
    let rows = table();
    println!("{}", markdown(&rows));
    if rows.iter().all(Row::caught) {
        ExitCode::SUCCESS
    } else {
        eprintln!("a planted violation was not caught");
        ExitCode::FAILURE
    }
}
