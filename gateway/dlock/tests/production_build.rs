//! A build without the feature `lab` has no way to switch a fence off: the switch is not compiled in (C5.2, FR-29).
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The production binary: the one that `PRODUCTION_BINARY` names, as `make unit` does, which has just built it; else
/// built here, in a directory of its own, so that the binary under test elsewhere is not replaced.
fn production() -> PathBuf {
    if let Some(built) = std::env::var_os("PRODUCTION_BINARY") {
        return built.into();
    }
    let target = assert_cmd::cargo::cargo_bin!("dlock")
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("production");
    let built = common::cargo()
        .args([
            "build",
            "--quiet",
            "--offline",
            "--package",
            "dlock",
            "--bin",
            "dlock",
            "--no-default-features",
            "--target-dir",
        ])
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join("debug").join("dlock")
}

fn run(binary: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
        command.env_remove(name);
    }
    command.args(args).envs(env.iter().copied()).output().unwrap()
}

#[test]
fn a_production_build_knows_no_kill_switch_no_fault_point_and_no_laboratory() {
    let binary = production();
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();

    let version = run(&binary, &["version", "-o", "json"], &[]);
    let version: serde_json::Value = serde_json::from_slice(&version.stdout).unwrap();
    assert_eq!(version["features"], serde_json::json!([]));

    let switches = [
        (
            "payment-resource",
            "payment.fencing.enabled",
            "DLOCK_PAYMENT_FENCING_ENABLED",
            "false",
        ),
        (
            "rail-proxy",
            "rail.fencing.enabled",
            "DLOCK_RAIL_FENCING_ENABLED",
            "false",
        ),
        (
            "payout-executor",
            "executor.ignore-lock-lost",
            "DLOCK_EXECUTOR_IGNORE_LOCK_LOST",
            "true",
        ),
        (
            "payout-executor",
            "executor.lock-delay",
            "DLOCK_EXECUTOR_LOCK_DELAY",
            "4s",
        ),
        ("lock-server", "debug.control", "DLOCK_DEBUG_CONTROL", "true"),
        (
            "rail-proxy",
            "debug.fault-points",
            "DLOCK_DEBUG_FAULT_POINTS",
            "rail_proxy.after_intent=kill",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (component, name, variable, value) in switches {
        // Even the safe value is unknown: there is nothing to be set.
        for value in [value, "true"] {
            let flag = run(
                &binary,
                &[component, "--print-config", "--set", &format!("{name}={value}")],
                &[],
            );
            assert_eq!(flag.status.code(), Some(64), "{name} as a flag: {}", said(&flag));
            assert!(said(&flag).contains("unknown setting"), "{}", said(&flag));
            let env = run(&binary, &[component, "--print-config"], &[(variable, value)]);
            assert_eq!(env.status.code(), Some(64), "{variable}: {}", said(&env));
            assert!(said(&env).contains("unknown setting"), "{}", said(&env));
            let file = dir.path().join("dlock.toml");
            std::fs::write(&file, format!("\"{name}\" = \"{value}\"\n")).unwrap();
            let file = run(
                &binary,
                &[component, "--print-config", "--config", file.to_str().unwrap()],
                &[],
            );
            assert_eq!(file.status.code(), Some(64), "{name} in a file: {}", said(&file));
        }
        let printed = run(&binary, &[component, "--print-config"], &[]);
        assert_eq!(printed.status.code(), Some(0), "{}", said(&printed));
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        let (head, rest) = name.split_once('.').unwrap();
        let section = printed.split(&format!("[{head}]\n")).nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        assert!(
            !section.contains(&format!("{rest}\"")) && !section.contains(&format!("{rest} =")),
            "{name} in\n{printed}"
        );
    }

    // Nor is the route there that makes an actor panic: its text is not in the binary.
    let image = std::fs::read(&binary).unwrap();
    let contains = |text: &[u8]| image.windows(text.len()).any(|window| window == text);
    assert!(contains(b"/debug/actors/{path}/pause"), "the search finds nothing");
    assert!(!contains(b"/debug/actors/{path}/panic"));

    let help = String::from_utf8(run(&binary, &["--help"], &[]).stdout).unwrap();
    for verb in ["rail-stub", "up", "demo", "scenario", "bench"] {
        assert_eq!(run(&binary, &[verb], &[]).status.code(), Some(64), "{verb}");
        assert!(
            !help
                .lines()
                .any(|line| line.trim_start().starts_with(&format!("{verb} "))),
            "{verb} in\n{help}"
        );
    }
    for verb in [
        "lock-server",
        "payment-resource",
        "rail-proxy",
        "payout-executor",
        "lock",
        "exec",
        "payout",
    ] {
        assert_eq!(run(&binary, &[verb, "--help"], &[]).status.code(), Some(0), "{verb}");
    }
}
