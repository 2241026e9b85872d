//! Manual pages.

use crate::exit::{Failure, INTERNAL, OK};
use std::path::PathBuf;

/// Write a manual page for each verb.
///
/// `dlock man --dir /usr/local/share/man/man1`, then `man dlock`, `man dlock-lock-acquire`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the pages go; made where it is missing.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Writes those of `command`.
pub fn run(args: &Args, command: clap::Command) -> crate::Outcome {
    let failed = |error: std::io::Error| Failure::new(INTERNAL, format!("{}: {error}", args.dir.display()));
    std::fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(command, &args.dir).map_err(failed)?;
    println!("{}", args.dir.display());
    Ok(OK)
}
