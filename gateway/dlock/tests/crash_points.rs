//! Every component killed at every one of its fault points, on the embedded stores.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use harness::scenario::crash_points::{CrashReport, points};
use harness::scenario::uc04;
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn every_component_dies_at_every_step_and_every_payout_is_settled_once() {
    let dir = tempfile::tempdir().unwrap();
    let keep = dir.path().join("run");
    let seed = "11";
    println!("seed {seed}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
        command.env_remove(variable);
    }
    let output = command
        .args(["scenario", "crash-points", "--seed", seed, "-o", "json", "--keep"])
        .arg(&keep)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report: CrashReport = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let wrong: Vec<_> = report.rows.iter().filter(|row| !row.ok()).collect();
    let complaints = report.report.complaints();
    assert!(wrong.is_empty() && complaints.is_empty(), "{wrong:#?}\n{complaints:#?}");
    assert_eq!(output.status.code(), Some(0), "{said}");

    let listed = points::KILLS.iter().map(|crash| crash.point);
    let expected: BTreeSet<&str> = listed.chain(uc04::CRASHES.iter().map(|crash| crash.point)).collect();
    let killed = report.rows.iter().filter(|row| row.action == "kill");
    let killed: BTreeSet<&str> = killed.map(|row| row.point.as_str()).collect();
    assert_eq!(killed, expected);
    let stopped = report.rows.iter().filter(|row| row.action == "stop").count();
    assert_eq!(stopped, points::STOPS.len());
    // The table for the documents is made by the same run.
    let table = std::fs::read_to_string(keep.join("crash-points.md")).unwrap();
    let lines = table.lines().filter(|line| line.contains("| kill |")).count();
    assert_eq!(lines, points::KILLS.len() + uc04::CRASHES.len());
}
