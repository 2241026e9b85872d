//! Scenarios on real servers: PostgreSQL for both databases, etcd for the lock store, each in containers of the run's own.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use serde_json::Value;
use std::process::{Command, Output};

/// Whether containers can be started. With `CI=true` a machine without Docker is a failure.
fn docker() -> bool {
    let answers = Command::new("docker").arg("version").output();
    if answers.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "no Docker for this test: the scenarios on PostgreSQL and etcd start containers"
    );
    eprintln!("\n*** SKIPPED: no Docker for this test: the scenarios on PostgreSQL and etcd start containers ***\n");
    false
}

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_") && !name.ends_with("_IMAGE")) {
        command.env_remove(variable);
    }
    command.args(args).output().unwrap()
}

/// Runs a use case, demands that everything came out as it must, and answers the report.
fn scenario(case: &str, store: &str) -> Value {
    let output = run(&["scenario", case, "--store", store, "--seed", "7", "-o", "json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{case}: {error}: {said}"));
    let wrong: Vec<_> = report["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|check| check["expected"] != check["measured"])
        .collect();
    let violated: Vec<_> = report["verdicts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|verdict| verdict["facts"] == 0 || verdict["violations"] != Value::Array(Vec::new()))
        .collect();
    assert_eq!(output.status.code(), Some(0), "{case}: {wrong:?} {violated:?}\n{said}");
    report
}

#[test]
fn payouts_are_paid_once_on_postgresql() {
    if docker() {
        scenario("UC-01", "pg");
        scenario("UC-06", "pg");
    }
}

#[test]
#[cfg(feature = "etcd")]
fn payouts_are_paid_once_on_etcd() {
    if docker() {
        scenario("UC-01", "etcd");
        scenario("UC-06", "etcd");
    }
}

#[test]
fn a_standby_takes_over_and_no_grant_is_lost() {
    if docker() {
        let report = scenario("UC-07", "pg");
        assert_eq!(report["measured"].as_array().unwrap().len(), 1);
    }
}

#[test]
#[cfg(feature = "etcd")]
fn another_member_leads_and_no_grant_is_lost() {
    if docker() {
        let report = scenario("UC-07", "etcd");
        assert_eq!(report["measured"].as_array().unwrap().len(), 3);
    }
}
