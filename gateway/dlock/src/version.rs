//! What this binary is.

use crate::output::OutputArgs;

/// What `--version` says.
pub const TEXT: &str = env!("CARGO_PKG_VERSION");

/// The commit it was built from, where the build said so (`DLOCK_COMMIT`).
const COMMIT: &str = match option_env!("DLOCK_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Version, commit and features of this binary. The commit is known where the build was told (`DLOCK_COMMIT`).
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let compiled_in = [("etcd", cfg!(feature = "etcd")), ("lab", cfg!(feature = "lab"))];
    let features: Vec<&str> = compiled_in
        .iter()
        .filter(|(_, is)| *is)
        .map(|(name, _)| *name)
        .collect();
    let version = serde_json::json!({ "version": TEXT, "commit": COMMIT, "features": features });
    crate::output::object(args.output.output, &version)?;
    Ok(crate::exit::OK)
}
