//! Which commit this binary is built from, as the environment variable `BUILT_FROM_COMMIT` of the compiler. Cargo gives that variable to
//! what it runs too, so its name must not begin as a setting does.
//!
//! `DLOCK_COMMIT` where the build was told (an image is built without `.git`), else what git says of this workspace, with
//! `-dirty` where a source differs from that commit, else `unknown`. A repository that merely surrounds an unpacked archive
//! says nothing of these sources, so its commit is not taken.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a binary is made of. What lies elsewhere, such as a page of the documentation, makes no build dirty.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "stores",
    "actors",
    "gateway",
    "harness",
];

fn main() {
    println!("cargo::rerun-if-env-changed=DLOCK_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let workspace = std::env::var_os("CARGO_MANIFEST_DIR").map(|package| PathBuf::from(package).join("../.."));
    let told = std::env::var("DLOCK_COMMIT").ok().filter(|told| !told.is_empty());
    let commit = told.or_else(|| of_git(&workspace?.canonicalize().ok()?));
    println!(
        "cargo::rustc-env=BUILT_FROM_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
}

/// The commit that git has checked out here; None outside of a repository of this workspace.
fn of_git(workspace: &Path) -> Option<String> {
    let top = git(workspace, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != workspace {
        return None;
    }
    let commit = git(workspace, &["rev-parse", "--verify", "HEAD"])?;
    // A path that is not there would make every build run this again.
    let watch = |path: PathBuf| {
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    };
    // Each commit and checkout is written to the log of HEAD.
    for file in ["HEAD", "logs/HEAD"] {
        watch(workspace.join(git(workspace, &["rev-parse", "--git-path", file])?));
    }
    for source in SOURCES {
        watch(workspace.join(source));
    }
    let status = ["status", "--porcelain", "--untracked-files=normal", "--"];
    let changed = git(workspace, &[&status[..], SOURCES].concat())?;
    Some(if changed.is_empty() { commit } else { commit + "-dirty" })
}

/// What a git command prints; None where it fails or is not installed.
fn git(workspace: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(workspace)
        .args(arguments)
        // Looking may not write: another git may be at work.
        .env("GIT_OPTIONAL_LOCKS", "0")
        .output()
        .ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim_end().to_owned())
}
