//! `dlock payout trace`: a worker that slept through its lease, from its payout's id alone.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::whole::Whole;
use common::{code, stderr, stdout, until};
use http_contract::payment::PayoutState;
use nix::sys::signal::Signal;
use serde_json::Value;

const SHORT: &[&str] = &[
    "lock.session.ttl=4s",
    "lock.heartbeat.interval=300ms",
    "lock.client.safety-margin=100ms",
];

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
}

/// W1 is stopped before its submit, W2 takes over and pays, W1 wakes up and is refused.
fn slept_through_its_lease() -> Whole {
    let mut whole = Whole::new(&[]);
    let stopping = [SHORT, &["debug.fault-points=executor.before_submit=stop"]].concat();
    let w1 = whole.worker("W1", &stopping, &[]);
    whole.payout("A", "P1");
    until("W1 stands still before its submit", || {
        is_stopped(whole.workers[w1].child.id())
    });
    whole.worker("W2", &[], &[]);
    whole.await_state("P1", PayoutState::Posted);
    whole.workers[w1].signal(Signal::SIGCONT);
    until("W1 was refused", || {
        whole
            .proxy
            .lines()
            .iter()
            .any(|line| line["event"] == "fenced_out" && line["actor"] == "W1")
    });
    whole
}

fn trace(whole: &Whole, more: &[&str]) -> (i32, Value, String) {
    let executors = [whole.workers[0].url(), whole.workers[1].url()].join(",");
    let args = [&["payout", "trace", "P1", "--executor", &executors, "-o", "json"], more].concat();
    let output = whole.run(&args);
    let told = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (code(&output), told, stderr(&output))
}

fn lines<'t>(told: &'t Value, source: &str) -> Vec<&'t Value> {
    told["lines"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["source"] == source)
        .collect()
}

fn whats(lines: &[&Value]) -> Vec<String> {
    lines
        .iter()
        .map(|line| line["what"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn everything_of_a_payout_is_told_in_order_and_what_cannot_be_asked_is_named() {
    let mut whole = slept_through_its_lease();
    // Another payout of the account, later, under a grant of its own.
    whole.payout("A", "P2");
    whole.await_state("P2", PayoutState::Posted);
    let log = whole.dir.path().join("proxy.log");
    std::fs::write(&log, whole.proxy.said()).unwrap();
    let (exit, told, said) = trace(&whole, &["--log", log.to_str().unwrap()]);
    assert_eq!(exit, 0, "{said}");
    assert_eq!(told["account_id"], "A");

    let all = told["lines"].as_array().unwrap();
    let after: Vec<i64> = all.iter().map(|line| line["after_us"].as_i64().unwrap()).collect();
    assert!(after.is_sorted() && after[0] == 0, "{after:?}");
    assert!(all.iter().all(|line| line["at"].as_str().unwrap().ends_with('Z')));

    let steps = lines(&told, "transition");
    let whose: Vec<_> = steps.iter().map(|line| line["actor"].as_str()).collect();
    assert!(whose.contains(&Some("W1")) && whose.contains(&Some("W2")), "{steps:#?}");
    assert!(
        whats(&steps).last().unwrap().starts_with("CLAIMED → POSTED"),
        "{steps:#?}"
    );
    let old = steps.iter().find(|line| line["actor"] == "W1").unwrap()["token"]
        .as_u64()
        .unwrap();
    let new = steps.last().unwrap()["token"].as_u64().unwrap();
    assert!(old < new);
    let history = whole.run(&["payout", "history", "P2", "-o", "json"]);
    let history: Value = serde_json::from_slice(&history.stdout).unwrap();
    let later = history["items"].as_array().unwrap().last().unwrap()["token"]
        .as_u64()
        .unwrap();
    assert!(new < later);
    assert!(
        lines(&told, "lock").iter().all(|line| line["token"] != later),
        "a later grant has nothing to do with this payout: {told:#}"
    );

    let grants = lines(&told, "lock");
    let granted = |kind: &str, token: u64| {
        grants
            .iter()
            .any(|line| line["what"].as_str().unwrap().starts_with(kind) && line["token"] == token)
    };
    assert!(
        granted("GRANTED payout:A", old) && granted("EXPIRED payout:A", old),
        "{grants:#?}"
    );
    assert!(
        granted("GRANTED payout:A", new) && granted("RELEASED payout:A", new),
        "{grants:#?}"
    );

    let refusals = lines(&told, "refusal");
    let refused = refusals.iter().find(|line| line["component"] == "rail-proxy").unwrap();
    assert_eq!((&refused["actor"], &refused["token"]), (&"W1".into(), &old.into()));
    let what = refused["what"].as_str().unwrap();
    assert!(
        what.contains(&format!("W1 showed token {old}, refused because {new} is higher")),
        "{what}"
    );

    let submission = lines(&told, "submission");
    assert_eq!(submission.len(), 3, "{submission:#?}");
    assert!(
        submission
            .iter()
            .all(|line| line["actor"] == "W2" && line["token"] == new)
    );
    assert!(whats(&submission)[2].contains("ACKED"), "{submission:#?}");

    let spans = lines(&told, "span");
    for component in ["lock-server", "payment-resource", "rail-proxy", "payout-executor"] {
        assert!(
            spans.iter().any(|line| line["component"] == component),
            "no message of {component}: {spans:#?}"
        );
    }
    let logged = lines(&told, "log");
    assert!(
        logged
            .iter()
            .any(|line| line["what"].as_str().unwrap().starts_with("fenced_out")),
        "{logged:#?}"
    );

    // For people, the same.
    let table = whole.run(&["payout", "trace", "P1"]);
    assert_eq!(code(&table), 0, "{}", stderr(&table));
    let table = stdout(&table);
    assert!(
        table.contains("AFTER") && table.contains("FENCED_OUT: W1 showed token"),
        "{table}"
    );
    let unknown = whole.run(&["payout", "trace", "P9"]);
    assert_eq!(code(&unknown), 1, "{}", stderr(&unknown));
    assert!(stderr(&unknown).contains("PAYOUT_NOT_FOUND"));

    // The rail proxy is gone: what it knows is missing and named, the rest is there.
    let proxy = whole.proxy.addr.clone();
    assert_eq!(whole.proxy.terminate(), Some(0));
    let (exit, told, said) = trace(&whole, &[]);
    assert_eq!(exit, 69);
    assert!(said.contains(&format!("submission of http://{proxy}")), "{said}");
    assert!(lines(&told, "submission").is_empty() && !lines(&told, "transition").is_empty());
    assert!(!lines(&told, "lock").is_empty() && !lines(&told, "span").is_empty());
}

#[test]
fn a_lookup_of_an_ambiguous_payout_is_told() {
    let mut whole = Whole::new(&[]);
    let rules =
        serde_json::json!({ "rates": {}, "rules": [{ "client_reference": "P1", "fault": "timeout_executed" }] });
    actix_rt::System::new().block_on(async {
        let client = http_client::client(&http_client::ClientOptions::default());
        let url = format!("{}/faults", whole.stub.url());
        assert!(client.put(url).send_json(&rules).await.unwrap().status().is_success());
    });
    whole.proxy = {
        let pay = format!("sqlite:{}", whole.dir.path().join("pay").display());
        let rail = whole.stub.url();
        let args = [
            "rail-proxy",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &pay,
            "--rail",
            &rail,
            "--set",
            "rail.read-timeout=300ms",
        ];
        common::whole::Component::start(&args, &[])
    };
    let quick = ["rail.read-timeout=300ms", "executor.reconcile.interval=100ms"];
    whole.worker("W1", &quick, &[]);
    whole.payout("A", "P1");
    whole.await_state("P1", PayoutState::Posted);
    let told = whole.run(&["payout", "trace", "P1", "-o", "json"]);
    assert_eq!(code(&told), 0, "{}", stderr(&told));
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    let lookups = whats(&lines(&told, "lookup"));
    assert!(
        lookups.last().unwrap().contains("EXECUTED, 1 executions"),
        "{lookups:?}"
    );
    let steps = whats(&lines(&told, "transition"));
    assert!(steps.iter().any(|what| what.contains("RAIL_AMBIGUOUS")), "{steps:?}");
}
