//! Random faults under load, on each backend and on containers, bounded so that they belong to the suite.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::scenario::{dlock, docker, judged};
use serde_json::Value;

/// The kinds of the bounded part: those whose effect shows at once, also on a machine that is busy with other tests. All
/// kinds are `make chaos` and `make fault-table`.
const KINDS: [&str; 20] = [
    "process.worker_pause",
    "process.worker_kill",
    "process.worker_terminate",
    "process.lock_server_pause",
    "process.lock_server_kill",
    "process.lock_server_terminate",
    "process.payments_pause",
    "process.payments_kill",
    "process.rail_proxy_pause",
    "process.rail_proxy_kill",
    "process.rail_pause",
    "process.rail_kill",
    "link.cut",
    "link.reset",
    "link.swallow",
    "link.delay",
    "link.drop_answer",
    "link.partition_worker",
    "link.rail_cut",
    "actor.lease_clock_panic",
];

/// Half a minute of these faults, under load.
fn random(kinds: &[&str], more: &[&str]) -> Value {
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
    args.extend(kinds.iter().flat_map(|kind| ["--fault", kind]));
    args.extend_from_slice(more);
    judged(&args)
}

#[test]
fn random_faults_on_the_embedded_store_by_a_seed_that_stays() {
    let report = random(&KINDS, &["--seed", "7"]);
    assert!(!report["faults"].as_array().unwrap().is_empty());
    assert!(report["control"]["lost_minor"].as_i64().unwrap() > 0);
}

#[test]
fn random_faults_on_the_embedded_store_by_a_fresh_seed() {
    // The run prints its seed first, and a failure shows what it printed.
    random(&KINDS, &["--no-control"]);
}

#[test]
fn random_faults_on_postgresql() {
    if docker() {
        random(&KINDS, &["--seed", "8", "--store", "pg", "--no-control"]);
    }
}

#[test]
fn a_paused_worker_and_a_cut_network_between_containers() {
    if !docker() {
        return;
    }
    judged(&["scenario", "UC-06", "--stack", "containers", "--seed", "7"]);
    let kinds = [
        "network.worker_disconnected",
        "network.lock_server_disconnected",
        "network.grants_lost",
        "network.rail_answers_lost",
    ];
    let report = random(
        &kinds,
        &["--stack", "containers", "--seed", "7", "--no-control", "--every-kind"],
    );
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
