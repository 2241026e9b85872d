//! The lab as a user runs it: the demo, single scenarios, `up` and the benchmark as processes of the built binary.

#![cfg(feature = "lab")]
#![allow(clippy::disallowed_methods, reason = "a test of processes waits in real time")]
#![allow(clippy::unwrap_used, reason = "tests")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Generous: the demo takes less than a minute on an idle machine.
const WITHIN: Duration = Duration::from_secs(300);

fn dlock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    command.args(args).stdin(Stdio::null());
    command
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// Runs to the end, or kills it after [`WITHIN`].
fn run(args: &[&str]) -> Output {
    let mut child = dlock(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (ended, has_ended) = std::sync::mpsc::channel::<()>();
    let doomed = pid(&child);
    let watchdog = std::thread::spawn(move || {
        if has_ended.recv_timeout(WITHIN).is_err() {
            // Its children go with it: the reaper sees to that.
            kill(doomed, Signal::SIGKILL).unwrap();
        }
    });
    let mut err = child.stderr.take().unwrap();
    let errors = std::thread::spawn(move || std::io::read_to_string(&mut err).unwrap());
    let out = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    let status = child.wait().unwrap();
    // The watchdog may have gone already: it has killed the child then.
    let _ = ended.send(());
    watchdog.join().unwrap();
    Output {
        status,
        stdout: out.into_bytes(),
        stderr: errors.join().unwrap().into_bytes(),
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The processes that work in `dir`.
fn processes_in(dir: &Path) -> Vec<i32> {
    let dir = dir.canonicalize().unwrap();
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let cwd = std::fs::read_link(entry.path().join("cwd")).ok()?;
            cwd.starts_with(&dir).then_some(pid)
        })
        .collect()
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}: never");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_demo_pays_once_with_fences_on_and_loses_money_with_them_off() {
    let output = run(&["demo", "--seed", "7", "-o", "json"]);
    let report = json(&output);
    // The whole report is too long to be read where a test has failed.
    assert_eq!(output.status.code(), Some(0), "{:#}", report["wrong"]);
    assert_eq!(report["ok"], true);
    let scenarios: Vec<_> = report["scenarios"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["id"])
        .collect();
    assert_eq!(scenarios, ["UC-01", "UC-02", "UC-04", "UC-05", "UC-06", "UC-08"]);
    let cells = report["matrix"].as_array().unwrap();
    assert_eq!(cells.len(), 12);
    for cell in cells {
        assert_eq!(cell["measured"], cell["expected"], "{}", cell["report"]["id"]);
    }
    let fenced = |cell: &&Value| cell["payment_fencing"] == true && cell["rail_fencing"] == true;
    let executions = |cell: &Value| cell["measured"]["executions"].as_u64().unwrap();
    assert!(cells.iter().filter(fenced).all(|cell| executions(cell) == 1));
    assert!(cells.iter().any(|cell| executions(cell) == 2), "nothing was lost");
    for verdict in report["verdicts"].as_array().unwrap() {
        assert!(verdict["facts"].as_u64().unwrap() > 0, "{verdict}");
    }
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(
        progress.contains("seed 7") && progress.contains("[18/18]"),
        "{progress}"
    );
}

#[test]
fn a_scenario_keeps_what_it_was_judged_by() {
    let dir = tempfile::tempdir().unwrap();
    let keep = dir.path().join("run");
    let output = run(&["scenario", "UC-01", "--seed", "3", "--keep", keep.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("UC-01: as it must be"), "{text}");
    for file in [
        "scenario.json",
        "uc-01/evidence.json",
        "uc-01/W1.history.jsonl",
        "uc-01/lock.db",
    ] {
        assert!(keep.join(file).exists(), "{file}");
    }
    // A second run would be mixed with the first: it is not made.
    let again = run(&["scenario", "UC-01", "--keep", keep.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(2));
}

#[test]
fn the_report_of_a_scenario_is_written_where_it_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("deep/report");
    let output = run(&["scenario", "UC-06", "--seed", "5", "--report", report.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(
        told.contains(&format!("report: {}", report.join("report.html").display())),
        "{told}"
    );
    let text =
        |name: &str| std::fs::read_to_string(report.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let json: Value = serde_json::from_str(&text("report.json")).unwrap();
    assert_eq!((json["ok"].as_bool(), json["seed"].as_u64()), (Some(true), Some(5)));
    assert_eq!(json["replay"], "dlock scenario UC-06 --seed 5");
    assert!(json["control"].is_null());
    let refused = json["scenarios"][0]["stacks"][0]["refused"].as_array().unwrap();
    // The live holder was revoked and its write refused before anybody else had a grant.
    let by_revoke = |one: &Value| {
        one["superseded_by_holder"]
            .as_str()
            .is_some_and(|who| who.contains("revoked by"))
    };
    assert!(refused.iter().any(by_revoke), "{refused:?}");
    let html = text("report.html");
    assert!(html.contains("HELD: all 10 verdicts held") && html.contains("dlock scenario UC-06 --seed 5"));
    assert!(text("junit.xml").contains("INV-08"));
    let events: Vec<Value> = text("history.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for kind in ["call", "process", "step"] {
        assert!(events.iter().any(|event| event["event"] == kind), "{kind}");
    }
    assert!(text("ledger.beancount").contains("9999-12-31 balance Assets:Clients:"));
    let written = std::fs::read_dir(&report).unwrap().count();
    assert!(trace_kit::check(&text("trace.perfetto.json")).unwrap().ok());
    assert_eq!(written, 7, "those files, trace.jsonl and no data of the run");
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for what in [&["demo"][..], &["scenario", "UC-01"]] {
        let output = run(&[what, &["--report", file.to_str().unwrap()]].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(
            told.contains(file.to_str().unwrap()) && !told.contains("seed"),
            "{told}"
        );
    }
}

#[test]
fn a_scenario_that_cannot_be_run_here_says_so() {
    let output = run(&["scenario", "UC-07"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("fail over"));
}

/// Seven ports in a row that were free a moment ago. Below the range from which the kernel takes a client's own.
fn base_port() -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    (20_000..32_000_u16)
        .step_by(7)
        .cycle()
        .skip(usize::try_from(std::process::id()).unwrap() % 1_700)
        .find(|base| (*base..base + 7).all(free))
        .unwrap()
}

struct Up {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

fn up(dir: &Path, base: u16) -> Up {
    let mut child = dlock(&["up", "--dir", dir.to_str().unwrap(), "--base-port", &base.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    Up { child, lines }
}

impl Up {
    fn await_line(&self, wanted: &str) {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            if line
                .unwrap_or_else(|_| panic!("{wanted} was never printed"))
                .contains(wanted)
            {
                return;
            }
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Three components, the rail, two workers and the console.
const UP_RUNS: usize = 7;

/// How many payouts are POSTED, by the operator's own verb.
fn posted(base: u16) -> usize {
    let payments = format!("http://127.0.0.1:{}", base + 1);
    let output = run(&[
        "payout",
        "list",
        "--payments",
        &payments,
        "--state",
        "POSTED",
        "--limit",
        "1000",
        "-o",
        "json",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    json(&output)["items"].as_array().map_or(0, Vec::len)
}

#[test]
fn up_pays_what_trickles_in_stops_cleanly_and_starts_again_on_the_same_directory() {
    let dir = tempfile::tempdir().unwrap();
    let base = base_port();
    let mut before = 0;
    for _ in 0..2 {
        let mut running = up(dir.path(), base);
        running.await_line("Ctrl-C ends everything");
        assert!(posted(base) >= before, "what was paid is forgotten");
        eventually("payouts are paid", || posted(base) > before);
        assert_eq!(processes_in(dir.path()).len(), UP_RUNS);
        before = posted(base);
        kill(pid(&running.child), Signal::SIGINT).unwrap();
        running.await_line("stopped");
        assert_eq!(running.child.wait().unwrap().code(), Some(0));
        assert_eq!(processes_in(dir.path()), [0; 0]);
    }
}

#[test]
fn up_names_the_port_that_is_in_use_and_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let base = base_port();
    let taken = TcpListener::bind(("127.0.0.1", base + 1)).unwrap();
    let output = run(&[
        "up",
        "--dir",
        dir.path().to_str().unwrap(),
        "--base-port",
        &base.to_string(),
    ]);
    drop(taken);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&format!("port {} for payment-resource", base + 1)) && said.contains("--base-port"),
        "{said}"
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "something was started"
    );
}

#[test]
fn up_says_which_child_ended_how_and_where_its_log_is() {
    let dir = tempfile::tempdir().unwrap();
    let base = base_port().to_string();
    let said = dir.path().join("stderr");
    let mut running = dlock(&["up", "--dir", dir.path().to_str().unwrap(), "--base-port", &base])
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    eventually("all run", || processes_in(dir.path()).len() == UP_RUNS);
    let worker = processes_in(dir.path()).into_iter().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("worker-2")
    });
    kill(Pid::from_raw(worker.unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(2));
    let said = std::fs::read_to_string(said).unwrap();
    let log = dir.path().join("worker-2.log");
    assert!(
        said.contains("worker-2 was killed by signal 9") && said.contains(log.to_str().unwrap()),
        "{said}"
    );
    assert_eq!(processes_in(dir.path()), [0; 0]);
}

#[test]
fn children_do_not_outlive_an_up_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let running = up(dir.path(), base_port());
    running.await_line("Ctrl-C ends everything");
    assert_eq!(processes_in(dir.path()).len(), UP_RUNS);
    kill(pid(&running.child), Signal::SIGKILL).unwrap();
    eventually("the children are gone", || processes_in(dir.path()).is_empty());
}

#[test]
fn the_benchmark_measures_without_an_error() {
    let output = run(&[
        "bench",
        "--for",
        "1s",
        "--warm-up",
        "200ms",
        "--rate",
        "50",
        "--heartbeat-rate",
        "20",
        "--clients",
        "1,8",
        "-o",
        "json",
    ]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let open = &report["open_loop"];
    assert_eq!(open["pair"]["count"], 50, "{report:#}");
    assert_eq!(open["heartbeat"]["count"], 20, "{report:#}");
    for run in report["closed_loop"].as_array().unwrap() {
        assert!(run["pairs_per_s"].as_f64().unwrap() > 0.0, "{report:#}");
        assert!(!run["batches"].as_array().unwrap().is_empty(), "{report:#}");
    }
}

#[test]
fn many_live_keys_are_held_and_their_memory_is_told() {
    let output = run(&[
        "bench",
        "--live-keys",
        "50",
        "--sessions",
        "25",
        "--heartbeat",
        "3s",
        "--for",
        "9s",
        "-o",
        "json",
    ]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let live = &report["live_keys"];
    assert_eq!(live["held_at_end"], 50, "{report:#}");
    assert!(live["heartbeats"].as_u64().unwrap() >= 50, "{report:#}");
    assert!(live["rss_live_kib"].as_u64().unwrap() > 0, "{report:#}");
}
