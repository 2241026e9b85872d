//! Completions for a shell.

use crate::exit::{Failure, INTERNAL, OK};
use clap_complete::Shell;
use std::io::Write;

/// Write completions for a shell to standard output.
///
/// bash: `dlock completions bash > /etc/bash_completion.d/dlock`; zsh: `dlock completions zsh > "${fpath[1]}/_dlock"`;
/// fish: `dlock completions fish > ~/.config/fish/completions/dlock.fish`.
#[derive(clap::Args)]
pub struct Args {
    /// Which shell.
    #[arg(value_parser = shell, value_name = "bash|zsh|fish")]
    shell: Shell,
}

/// The shells that were tried; clap could write for more.
fn shell(text: &str) -> Result<Shell, String> {
    match text {
        "bash" => Ok(Shell::Bash),
        "zsh" => Ok(Shell::Zsh),
        "fish" => Ok(Shell::Fish),
        _ => Err("must be bash, zsh or fish".to_owned()),
    }
}

/// Writes those of `command`.
pub fn run(args: &Args, mut command: clap::Command) -> crate::Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "dlock", &mut text);
    let mut out = std::io::stdout().lock();
    out.write_all(&text)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(INTERNAL, format!("standard output: {error}")))?;
    Ok(OK)
}
