//! What this binary is.

use crate::output::OutputArgs;

/// What `--version` says.
pub const TEXT: &str = env!("CARGO_PKG_VERSION");

/// The commit it was built from; `-dirty` behind it where sources differed, `unknown` where nobody could say (`build.rs`).
pub const COMMIT: &str = env!("BUILT_FROM_COMMIT");

/// Version, commit and features of this binary. The commit is the one that git had checked out, with `-dirty` where sources
/// differed from it; `unknown` in a build outside of git that was not told (`DLOCK_COMMIT`).
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let compiled_in = [
        ("etcd", cfg!(feature = "etcd")),
        ("lab", cfg!(feature = "lab")),
        ("otel", cfg!(feature = "otel")),
    ];
    let features: Vec<&str> = compiled_in
        .iter()
        .filter(|(_, is)| *is)
        .map(|(name, _)| *name)
        .collect();
    let version = serde_json::json!({ "version": TEXT, "commit": COMMIT, "features": features });
    crate::output::object(args.output.output, &version)?;
    Ok(crate::exit::OK)
}
