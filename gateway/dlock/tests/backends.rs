//! Scenarios on real servers: PostgreSQL for both databases, etcd for the lock store, each in containers of the run's own.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::scenario::{docker, judged};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Runs a use case, demands that everything came out as it must, and answers the report.
fn scenario(case: &str, store: &str) -> Value {
    judged(&["scenario", case, "--store", store, "--seed", "7"])
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

/// A server whose store is not there was silent for a minute.
#[cfg(feature = "etcd")]
#[test]
fn a_server_says_which_store_it_waits_for() {
    // Port 1 of this machine belongs to nobody.
    let mut server = common::dlock()
        .args([
            "lock-server",
            "--listen",
            "127.0.0.1:0",
            "--store",
            "etcd://127.0.0.1:1",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let said = lines
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
        .find(|line| line["event"] == "lock_store_awaited");
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(said.expect("it waits in silence")["url"], "etcd://127.0.0.1:1");
}
