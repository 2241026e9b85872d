//! Random faults under load, on each backend and on containers, bounded so that they belong to the suite.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::scenario::{dlock, docker, judged};
use serde_json::Value;

/// The bounded part: half a minute of faults, and the negative control.
fn random(more: &[&str]) -> Value {
    let mut args = vec![
        "scenario",
        "random",
        "--for",
        "25s",
        "--payouts",
        "60",
        "--workers",
        "8",
        "--accounts",
        "8",
    ];
    args.extend_from_slice(more);
    judged(&args)
}

#[test]
fn random_faults_on_the_embedded_store_by_a_seed_that_stays() {
    let report = random(&["--seed", "7"]);
    assert!(!report["faults"].as_array().unwrap().is_empty());
}

#[test]
fn random_faults_on_the_embedded_store_by_a_fresh_seed() {
    // The run prints its seed first, and a failure shows what it printed.
    random(&[]);
}

#[test]
fn random_faults_on_postgresql() {
    if docker() {
        random(&["--seed", "8", "--store", "pg", "--no-control"]);
    }
}

#[test]
#[cfg(feature = "etcd")]
fn random_faults_on_etcd() {
    if docker() {
        random(&["--seed", "9", "--store", "etcd", "--no-control"]);
    }
}

#[test]
fn a_paused_worker_and_a_cut_network_between_containers() {
    if !docker() {
        return;
    }
    judged(&["scenario", "UC-06", "--stack", "containers", "--seed", "7"]);
    let kinds = ["network.worker_disconnected", "network.lock_server_disconnected"];
    let mut args = vec!["--stack", "containers", "--seed", "7", "--no-control", "--every-kind"];
    args.extend(kinds.iter().flat_map(|kind| ["--fault", kind]));
    let report = random(&args);
    for kind in kinds {
        let injected = report["faults"]
            .as_array()
            .unwrap()
            .iter()
            .any(|fault| fault["kind"] == kind);
        assert!(injected, "{kind}");
    }
}

#[test]
fn the_catalogue_is_listed_with_what_each_kind_does_and_how_it_is_undone() {
    let output = dlock(&["scenario", "faults", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let kinds: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(kinds.len() >= 40, "{}", kinds.len());
    for kind in kinds {
        for field in ["kind", "what", "undone_by"] {
            assert!(kind[field].as_str().is_some_and(|text| !text.is_empty()), "{kind}");
        }
    }
}

#[test]
fn a_kind_that_is_not_there_or_not_on_this_backend_is_named_and_nothing_is_run() {
    for (kind, says) in [
        ("x.y", "no such kind"),
        ("network.worker_disconnected", "not available on sqlite"),
    ] {
        let output = dlock(&["scenario", "random", "--fault", kind]);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(kind) && said.contains(says), "{said}");
    }
}
