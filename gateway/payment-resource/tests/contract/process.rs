//! The process: readiness, metrics, the kill switch, kill -9, SIGTERM, and two processes on one paydb. The children are
//! this very test binary.

use crate::support::{Api, settings};
use host_kit::{Faults, Host};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

const CHILD_DIR: &str = "DLOCK_TEST_CHILD_DIR";
const CHILD_FAULTS: &str = "DLOCK_TEST_CHILD_FAULTS";

struct Process {
    child: Child,
    api: Api,
    /// Kept open: the child still writes to it when it ends.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already ended, or not wanted any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(dir: &Path, faults: &str) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::the_child", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_FAULTS, faults)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address: SocketAddr = lines
        .by_ref()
        .find_map(|line| {
            line.unwrap()
                .strip_prefix("listening ")
                .map(|address| address.parse().unwrap())
        })
        .expect("the child tells its address");
    Process {
        child,
        api: Api::at(address, dir),
        _output: lines,
    }
}

impl Process {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }
}

#[actix_web::test]
#[ignore = "the child of the tests below"]
async fn the_child() {
    let dir = std::env::var(CHILD_DIR).expect("only as a child");
    #[cfg(feature = "lab")]
    let faults = Faults::parse(&std::env::var(CHILD_FAULTS).unwrap()).unwrap();
    #[cfg(not(feature = "lab"))]
    let faults = Faults::none();
    let host = Host {
        faults,
        ..Host::system()
    };
    payment_resource::run_and_tell(settings(dir.as_ref(), &[]), "127.0.0.1:0".into(), host, |address, _| {
        println!("\nlistening {address}");
    })
    .await
    .unwrap();
}

#[actix_web::test]
async fn a_kill_after_an_answer_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = start(dir.path(), "");
    first.api.account("A", 1_000).await;
    first.api.pay("P", "A", 400, 5).await;
    first.api.payout("Q", "A", 100).await;
    assert_eq!(first.api.step("Q", "claim", 6, json!({})).await.status, 200);
    first.signal(Signal::SIGKILL);
    first.child.wait().unwrap();
    let second = start(dir.path(), "");
    assert_eq!(second.api.get("/v1/payouts/P").await.json()["state"], "POSTED");
    let account = second.api.get("/v1/accounts/A").await.json();
    assert_eq!(
        (
            account["fence"].as_u64(),
            account["balance_minor"].as_i64(),
            account["held_minor"].as_i64()
        ),
        (Some(6), Some(600), Some(100))
    );
    // What was answered replays.
    let again = second.api.step("Q", "claim", 6, json!({})).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    second.api.verified().await;
}

#[actix_web::test]
async fn sigterm_drains_and_exits_with_zero() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = start(dir.path(), "");
    process.api.account("A", 1_000).await;
    process.signal(Signal::SIGTERM);
    assert!(process.child.wait().unwrap().success());
}

#[actix_web::test]
async fn two_processes_serve_one_paydb() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (start(dir.path(), ""), start(dir.path(), ""));
    first.api.account("A", 1_000).await;
    for n in 0..20u64 {
        first.api.payout(&format!("P{n}"), "A", 50).await;
    }
    let calls = (0..20u64).map(|n| {
        let api = if n % 2 == 0 { &first.api } else { &second.api };
        async move { api.step(&format!("P{n}"), "claim", n + 1, json!({})).await.status }
    });
    let statuses = futures_util::future::join_all(calls).await;
    assert!(
        statuses.iter().all(|status| matches!(status, 200 | 409)),
        "{statuses:?}"
    );
    let account = second.api.get("/v1/accounts/A").await.json();
    let claimed = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(account["held_minor"].as_u64(), Some(50 * claimed as u64));
    second.api.verified().await;
}

/// Every step's durable point: killed before the commit nothing has happened, killed after it everything has.
#[cfg(feature = "lab")]
#[actix_web::test]
async fn a_crash_at_each_durable_point_leaves_all_or_nothing() {
    for (point, verb, body, before, after) in [
        ("claim", "claim", json!({}), "PENDING", "CLAIMED"),
        ("post", "post", json!({"rail_reference": "r"}), "CLAIMED", "POSTED"),
        ("fail", "fail", json!({"reason": "x"}), "CLAIMED", "FAILED"),
        (
            "ambiguous",
            "ambiguous",
            json!({"reason": "x"}),
            "CLAIMED",
            "RAIL_AMBIGUOUS",
        ),
        (
            "resolve",
            "resolve",
            json!({"outcome": "POSTED"}),
            "RAIL_AMBIGUOUS",
            "POSTED",
        ),
    ] {
        for (place, expected) in [("before", before), ("after", after)] {
            let dir = tempfile::tempdir().unwrap();
            let mut process = start(dir.path(), &format!("payment_resource.{place}_{point}_commit=kill"));
            let api = &process.api;
            api.account("A", 1_000).await;
            api.payout("P", "A", 400).await;
            if before != "PENDING" {
                assert_eq!(api.step("P", "claim", 5, json!({})).await.status, 200);
            }
            if before == "RAIL_AMBIGUOUS" {
                api.rail("P", Some("TIMEOUT"), None);
                assert_eq!(api.step("P", "ambiguous", 5, json!({"reason": "x"})).await.status, 200);
            }
            let outcome = match verb {
                "fail" => "DECLINED",
                "ambiguous" => "TIMEOUT",
                _ => "ACKED",
            };
            api.rail("P", Some(outcome), Some("r"));
            let token = if matches!(verb, "resolve") { "6" } else { "5" };
            let sent = gateway_kit::testing::Sent {
                method: "POST".into(),
                target: format!("/v1/payouts/P/{verb}"),
                headers: vec![
                    ("X-Fencing-Token".into(), token.into()),
                    ("Content-Type".into(), "application/json".into()),
                ],
                body: Some(body.to_string().into_bytes()),
                chunked: false,
            };
            let lost = gateway_kit::testing::Target::send(&api.socket, &sent).await;
            assert!(
                lost.as_ref().is_err() || lost.as_ref().is_ok_and(|answer| answer.status == 0),
                "{point}: {lost:?}"
            );
            process.child.wait().unwrap();
            let second = start(dir.path(), "");
            let state = second.api.get("/v1/payouts/P").await.json()["state"].clone();
            assert_eq!(state, expected, "{place} {point}");
            // The same request again: done now, or replayed.
            let again = second.api.step("P", verb, token.parse().unwrap(), body.clone()).await;
            assert_eq!(again.status, 200, "{place} {point}");
            assert_eq!(
                again.header("idempotent-replayed").is_some(),
                place == "after",
                "{place} {point}"
            );
            second.api.verified().await;
        }
    }
}

#[actix_web::test]
async fn readiness_and_metrics_tell_the_state_of_the_row() {
    let api = Api::start().await;
    api.account("A", 1_000).await;
    api.payout("P", "A", 1).await;
    assert_eq!(api.get("/readyz").await.status, 200);
    api.step("P", "claim", 5, json!({})).await;
    api.step("P", "claim", 4, json!({})).await;
    let text = String::from_utf8(api.get("/metrics").await.body).unwrap();
    for wanted in [
        "fencing_enabled{point=\"payment\"} 1",
        "lock_fenced_out_total{point=\"payment\"} 1",
        "payout_steps_total{outcome=\"done\",step=\"claim\"} 1",
        "payout_backlog_age_seconds",
        "payout_state{state=\"PENDING\"}",
        "rail_ambiguous_age_seconds 0",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    for leak in ["\"P\"", "\"A\"", "w1"] {
        assert!(!text.contains(leak), "NFR-09: {leak} in the metrics");
    }
}

#[cfg(feature = "lab")]
#[actix_web::test]
async fn a_fence_that_is_off_is_shouted() {
    let api = Api::with(&[("payment.fencing.enabled", "false")]).await;
    let ready = api.get("/readyz").await;
    let text = String::from_utf8_lossy(&ready.body).into_owned();
    assert_eq!(ready.status, 200, "{text}");
    assert!(text.contains("FENCE POINT (a) IS OFF"), "{text}");
    let metrics = String::from_utf8(api.get("/metrics").await.body).unwrap();
    assert!(metrics.contains("fencing_enabled{point=\"payment\"} 0"));
    // And it is off: a lower token claims.
    api.account("A", 1_000).await;
    api.payout("P", "A", 1).await;
    assert_eq!(api.step("P", "claim", 5, json!({})).await.status, 200);
    assert_eq!(api.step("P", "claim", 4, json!({})).await.status, 200);
    assert_eq!(api.get("/v1/accounts/A").await.json()["fence"], 0);
}

#[cfg(not(feature = "lab"))]
#[test]
fn a_build_without_the_lab_does_not_know_the_switch() {
    let flags = [("payment.fencing.enabled".to_owned(), "false".to_owned())];
    let refused = gateway_kit::Settings::load(None, [], &flags).unwrap_err();
    assert!(refused.to_string().contains("payment.fencing.enabled"), "{refused}");
}

#[actix_web::test]
async fn a_store_that_cannot_be_is_refused_by_name_and_without_its_password() {
    let dir = tempfile::tempdir().unwrap();
    // Nobody listens at port 1.
    let url = ("payment.store.url", "postgres://user:secret@127.0.0.1:1/db");
    for (more, words) in [
        (None, "paydb cannot be opened"),
        (
            Some(("payment.store.schema", "pay; DROP TABLE account")),
            "payment.store.schema",
        ),
    ] {
        let extra: Vec<_> = std::iter::once(url).chain(more).collect();
        let refused = payment_resource::run(settings(dir.path(), &extra), "127.0.0.1:0".into(), Host::system())
            .await
            .unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(words) && !text.contains("secret"), "{text}");
    }
}
