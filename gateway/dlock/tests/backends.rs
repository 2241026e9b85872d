//! Scenarios on real servers: PostgreSQL for both databases, etcd for the lock store, each in containers of the run's own.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::scenario::{docker, judged};
use serde_json::Value;

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
