//! Prints which verdict catches which planted violation, as Markdown; fails when one is caught by nobody.
//!
//!     cargo run --package harness --example mutations

use harness::mutation::{Row, markdown, table};
use std::process::ExitCode;

fn main() -> ExitCode {
    let rows = table();
    println!("# Planted violations, and the verdict that catches each\n");
    println!(
        "Made by `make mutation-table`; not edited by hand. Into the record of a lawful run one violation is planted at a"
    );
    println!(
        "time; the verdict that it belongs to must fail. {} kinds.\n",
        rows.len()
    );
    print!("{}", markdown(&rows));
    if rows.iter().all(Row::caught) {
        ExitCode::SUCCESS
    } else {
        eprintln!("a planted violation was not caught");
        ExitCode::FAILURE
    }
}
