//! `dlock version` tells the truth about what the binary was built from.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn said_by(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let said = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| said.trim().to_owned())
}

fn git(at: &Path, arguments: &[&str]) -> Option<String> {
    said_by(
        Command::new("git")
            .arg("-C")
            .arg(at)
            .args(["-c", "user.name=test", "-c", "user.email=test@example.invalid"])
            .args(arguments),
    )
}

#[test]
fn the_binary_names_its_commit_and_every_feature_it_has() {
    let json = said_by(Command::new(env!("CARGO_BIN_EXE_dlock")).args(["version", "-o", "json"])).unwrap();
    let version: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = [
        ("etcd", cfg!(feature = "etcd")),
        ("lab", cfg!(feature = "lab")),
        ("otel", cfg!(feature = "otel")),
    ];
    let expected: Vec<&str> = expected.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
    assert_eq!(version["features"], serde_json::json!(expected));
    let commit = version["commit"].as_str().unwrap();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    let here = git(&workspace, &["rev-parse", "--show-toplevel"]).map(PathBuf::from);
    if std::env::var_os("DLOCK_COMMIT").is_some() {
        return;
    }
    if here.is_some_and(|here| here == workspace) {
        let head = git(&workspace, &["rev-parse", "HEAD"]).unwrap();
        assert_eq!(commit.trim_end_matches("-dirty"), head);
    } else {
        assert_eq!(commit, "unknown");
    }
}

/// A workspace of one file, and the build script compiled as cargo would.
struct Bench {
    dir: tempfile::TempDir,
    script: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("build-script");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let compiled = Command::new(rustc)
            .args(["--edition", "2024", "-o"])
            .arg(&script)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs"))
            .status()
            .unwrap();
        assert!(compiled.success());
        let bench = Self { dir, script };
        std::fs::create_dir_all(bench.workspace().join("gateway/dlock")).unwrap();
        std::fs::write(bench.workspace().join("Cargo.toml"), "[workspace]\n").unwrap();
        bench
    }

    fn workspace(&self) -> PathBuf {
        self.dir.path().join("outer/workspace")
    }

    fn committed(&self, at: &Path) -> String {
        git(at, &["init", "--quiet"]).expect("git is needed for this test");
        git(at, &["add", "--all"]).unwrap();
        git(at, &["commit", "--quiet", "--message", "one"]).unwrap();
        git(at, &["rev-parse", "HEAD"]).unwrap()
    }

    fn commit(&self, told: Option<&str>) -> String {
        let mut command = Command::new(&self.script);
        command
            .env("CARGO_MANIFEST_DIR", self.workspace().join("gateway/dlock"))
            .env_remove("DLOCK_COMMIT");
        if let Some(told) = told {
            command.env("DLOCK_COMMIT", told);
        }
        let said = said_by(&mut command).unwrap();
        let commits: Vec<&str> = said
            .lines()
            .filter_map(|line| line.strip_prefix("cargo::rustc-env=BUILT_FROM_COMMIT="))
            .collect();
        assert_eq!(commits.len(), 1, "{said}");
        commits[0].to_owned()
    }
}

#[test]
fn outside_of_git_the_commit_is_unknown_unless_the_build_was_told() {
    let bench = Bench::new();
    assert_eq!(bench.commit(None), "unknown");
    assert_eq!(bench.commit(Some("")), "unknown");
    assert_eq!(bench.commit(Some("0123abc")), "0123abc");
}

#[test]
fn a_repository_around_an_unpacked_archive_says_nothing_of_it() {
    let bench = Bench::new();
    bench.committed(&bench.dir.path().join("outer"));
    assert_eq!(bench.commit(None), "unknown");
}

#[test]
fn in_git_it_is_head_and_dirty_where_a_source_differs() {
    let bench = Bench::new();
    let commit = bench.committed(&bench.workspace());
    assert_eq!(bench.commit(None), commit);
    // A page is no part of a binary; a source is, changed or new.
    std::fs::write(bench.workspace().join("README.md"), "text").unwrap();
    assert_eq!(bench.commit(None), commit);
    std::fs::write(bench.workspace().join("gateway/dlock/new.rs"), "").unwrap();
    assert_eq!(bench.commit(None), format!("{commit}-dirty"));
    std::fs::remove_file(bench.workspace().join("gateway/dlock/new.rs")).unwrap();
    std::fs::write(bench.workspace().join("Cargo.toml"), "[workspace]\n# changed\n").unwrap();
    assert_eq!(bench.commit(None), format!("{commit}-dirty"));
    // What the build was told comes first: it is the one who packs that knows.
    assert_eq!(bench.commit(Some("0123abc")), "0123abc");
}
