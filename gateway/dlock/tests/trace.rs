//! Traces as an operator gets them: from running components, from a run of the lab, from a process that panicked.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::{Lab, Process, code, dlock, stderr, stdout, until};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Output;
use trace_kit::{Dump, Record, check, draw, merge};

const ALL: [&str; 4] = ["payout-executor", "lock-server", "payment-resource", "rail-proxy"];

fn run(args: &[&str]) -> Output {
    dlock().args(args).output().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    files.sort();
    files
}

/// The record of the same trace that caused this one.
fn cause<'d>(dump: &'d Dump, record: &Record) -> Option<&'d Record> {
    dump.records
        .iter()
        .find(|other| other.trace_id == record.trace_id && other.span_id == record.parent_span_id)
}

#[test]
fn the_arrow_of_a_payout_passes_all_four_components() {
    let dir = tempfile::tempdir().unwrap();
    let (keep, report) = (dir.path().join("run"), dir.path().join("report"));
    let (kept, reported) = (keep.to_str().unwrap(), report.to_str().unwrap());
    let output = run(&[
        "scenario", "UC-01", "--seed", "11", "--keep", kept, "--report", reported,
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("drawn for ui.perfetto.dev in"),
        "{}",
        stderr(&output)
    );

    // What lies beside the run, and in the report, is well formed, and three payouts cross it.
    for place in [&report, &keep, &keep.join("uc-01")] {
        let checked = check(&read(&place.join("trace.perfetto.json"))).unwrap();
        assert!(checked.ok(), "{:?}", checked.findings);
        let crossed: Vec<_> = checked.crossing(&ALL).into_iter().collect();
        assert_eq!(crossed, ["uc01-declined", "uc01-first", "uc01-second"]);
        assert_eq!(checked.processes.len(), 4, "{:?}", checked.processes);
    }
    let drawing = report.join("trace.perfetto.json");
    let demanded = ["trace", "check", drawing.to_str().unwrap(), "--crosses", &ALL.join(",")];
    let output = run(&demanded);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let output = run(&[&demanded[..4], &["rail-stub"]].concat());
    assert_eq!(
        (code(&output), stderr(&output).contains("no payout's arrow passes")),
        (1, true)
    );

    // Each of a payout's calls is the cause of a request at the right component, and carries what it is about.
    let jsonl = report.join("trace.jsonl");
    let dump = Dump::parse(&read(&jsonl)).unwrap();
    for (call, component) in [
        ("acquire", "lock-server"),
        ("payout", "payment-resource"),
        ("claim", "payment-resource"),
        ("submit", "rail-proxy"),
        ("post", "payment-resource"),
        ("release", "lock-server"),
    ] {
        let request = dump.records.iter().find(|record| {
            let cause = cause(&dump, record).filter(|cause| cause.kind == "call" && cause.message == call);
            record.kind == "request" && record.component == component && cause.is_some()
        });
        let request = request.unwrap_or_else(|| panic!("no request at {component} was caused by a call {call}"));
        let about = if component == "lock-server" {
            request.key.as_deref().map(|key| key.starts_with("payout:"))
        } else {
            request.payout.as_deref().map(|payout| payout.starts_with("uc01-"))
        };
        assert_eq!(about, Some(true), "{request:?}");
        assert_eq!(request.token.is_some(), call != "payout", "{request:?}");
        // A call belongs to the turn of the worker, or of its lock client, that made it.
        assert!(cause(&dump, cause(&dump, request).unwrap()).is_some(), "{call}");
    }

    // All of it stands below one record of the payout, from when a worker took it until it was put down.
    let settled = dump.records.iter().find(|record| {
        (record.kind.as_str(), record.message.as_str()) == ("work", "payout.settle")
            && (record.payout.as_deref(), record.code.as_deref()) == (Some("uc01-first"), Some("posted"))
    });
    let settled = settled.expect("the payout has a record of its own");
    assert_eq!(
        (settled.actor.as_str(), settled.outcome.as_str()),
        ("payout-executor/work", "done")
    );
    assert_eq!(settled.parent_span_id, "0".repeat(16));
    let of_its_trace = |record: &&Record| record.trace_id == settled.trace_id && record.span_id != settled.span_id;
    for record in dump.records.iter().filter(of_its_trace) {
        assert!(cause(&dump, record).is_some(), "nothing caused {record:?}");
    }

    // The same by hand: the dumps of the processes, one payout, drawn.
    let mut merging = vec!["trace", "merge", "--payout", "uc01-first", "--format", "perfetto"];
    let dumps = files(&keep.join("uc-01/traces"));
    assert!(dumps.len() >= 4, "{dumps:?}");
    merging.extend(dumps.iter().map(|path| path.to_str().unwrap()));
    let output = run(&merging);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("the clocks may agree"), "{}", stderr(&output));
    let checked = check(&stdout(&output)).unwrap();
    assert!(checked.ok(), "{:?}", checked.findings);
    let payouts: Vec<_> = checked.payouts.iter().map(|way| way.payout.as_str()).collect();
    assert!(
        !payouts.is_empty() && payouts.iter().all(|payout| *payout == "uc01-first"),
        "{payouts:?}"
    );

    // A drawing that was cut off is no drawing.
    let cut = dir.path().join("cut.json");
    std::fs::write(&cut, &read(&drawing)[..1_000]).unwrap();
    assert_eq!(code(&run(&["trace", "check", cut.to_str().unwrap()])), 1);
}

#[test]
fn a_running_component_gives_its_trace_and_its_actors() {
    let lab = Lab::new();
    let url = lab.server.url();
    let taken = lab.json(&["lock", "acquire", "report/daily", "--ttl", "300s"]);
    let token = taken["token"].as_u64().unwrap();

    let output = run(&["trace", "dump", &url]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let dump = Dump::parse(&stdout(&output)).unwrap();
    let process = dump.processes.values().next().unwrap();
    assert_eq!((process.component.as_str(), process.dropped), ("lock-server", 0));
    assert!(process.anchor.is_some());
    let acquired = dump
        .records
        .iter()
        .find(|record| record.message == "POST /v1/locks/{key}/acquire")
        .unwrap();
    assert_eq!(
        (
            acquired.kind.as_str(),
            acquired.key.as_deref(),
            acquired.token,
            acquired.outcome.as_str()
        ),
        ("request", Some("report/daily"), Some(token), "answered")
    );
    assert!(
        dump.records
            .iter()
            .any(|record| cause(&dump, record).is_some_and(|cause| cause.span_id == acquired.span_id))
    );
    // Probes and whoever reads the trace are not in it.
    assert!(
        dump.records
            .iter()
            .all(|record| !record.message.contains("/debug/") && !record.message.contains("/readyz"))
    );

    let file = lab.dir.path().join("one.json");
    let by_key = [
        "trace",
        "dump",
        &url,
        "--key",
        "report/daily",
        "--format",
        "perfetto",
        "--out",
        file.to_str().unwrap(),
    ];
    let output = run(&by_key);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(check(&read(&file)).unwrap().ok());
    let output = run(&[
        "trace",
        "dump",
        &url,
        "--key",
        "nobody's",
        "--actor",
        "lock-server/requests",
    ]);
    assert!(Dump::parse(&stdout(&output)).unwrap().records.is_empty());

    // What is there already ends the wait for it.
    let output = run(&[
        "trace",
        "tail",
        &url,
        "--count",
        "2",
        "--lines",
        "50",
        "--actor",
        "lock-server/requests",
        "-o",
        "json",
    ]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 2, "{}", stdout(&output));

    let output = run(&["actors", &url]);
    let tree = stdout(&output);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        tree.contains("lock-server/lease-clock") && tree.contains("\n   lease/report%2Fdaily"),
        "{tree}"
    );
    let output = run(&["actors", &url, "-o", "json"]);
    let answers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lease = answers[0]["actors"]
        .as_array()
        .unwrap()
        .iter()
        .find(|actor| actor["kind"] == "lease")
        .unwrap();
    assert_eq!(
        (&lease["parent"], &lease["paused"], &lease["oldest_waiting"]),
        (
            &"lock-server/lease-clock".into(),
            &false.into(),
            &serde_json::Value::Null
        )
    );

    // One that does not answer is named; the others are written all the same.
    let output = run(&["trace", "dump", &url, "http://127.0.0.1:1"]);
    assert_eq!(code(&output), 69);
    assert!(
        stderr(&output).contains("http://127.0.0.1:1: not sent"),
        "{}",
        stderr(&output)
    );
    assert!(!Dump::parse(&stdout(&output)).unwrap().records.is_empty());
    assert_eq!(code(&run(&["actors", "http://127.0.0.1:1"])), 69);
    assert_eq!(code(&run(&["trace", "dump", &url, "--trace-id", "x"])), 64);
}

#[test]
fn a_component_without_debug_routes_says_which_setting_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("lock.db").display());
    let server = Process::start(&[
        "lock-server",
        "--listen",
        "127.0.0.1:0",
        "--store",
        &store,
        "--set",
        "debug.endpoints=false",
    ]);
    let output = run(&["trace", "dump", &server.url()]);
    assert_eq!(
        (code(&output), stderr(&output).contains("is debug.endpoints on there?")),
        (69, true)
    );
}

/// A lock server whose dumps go to `dumps` in `dir`.
fn recorded(dir: &Path, more: &[&str]) -> Process {
    let store = format!("sqlite:{}", dir.join("lock.db").display());
    let dumps = format!("debug.dump-dir={}", dir.join("dumps").display());
    let mut args = vec![
        "lock-server",
        "--listen",
        "127.0.0.1:0",
        "--store",
        &store,
        "--set",
        &dumps,
    ];
    args.extend_from_slice(more);
    Process::start(&args)
}

#[test]
fn sigquit_writes_the_trace_and_the_process_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let dumps = dir.path().join("dumps");
    let server = recorded(dir.path(), &["--set", "debug.dump-files=2"]);
    let taken = run(&["lock", "acquire", "a", "--lock-server", &server.url()]);
    assert_eq!(code(&taken), 0, "{}", stderr(&taken));
    for n in 1..=3 {
        server.signal(Signal::SIGQUIT);
        let name = format!("-{n:04}-quit.jsonl");
        until("the trace is written", || {
            files(&dumps).iter().any(|path| path.to_str().unwrap().ends_with(&name))
        });
    }
    until("the oldest has gone", || files(&dumps).len() == 2);
    let dump = Dump::parse(&read(&files(&dumps)[0])).unwrap();
    assert!(dump.records.iter().any(|record| record.key.as_deref() == Some("a")));
    let answered = run(&["healthcheck", &server.url()]);
    assert_eq!(code(&answered), 0, "{}", stderr(&answered));
    server.terminate();
    assert_eq!(
        files(&dumps).len(),
        2,
        "an orderly end writes nothing unless it is told to"
    );
}

#[test]
fn a_panic_of_an_actor_and_an_orderly_end_write_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let dumps = dir.path().join("dumps");
    let server = recorded(
        dir.path(),
        &["--set", "debug.control=true", "--set", "debug.dump-on-exit=true"],
    );
    let panic = format!("{}/debug/actors/lock-server%2Flease-clock/panic", server.url());
    actix_rt::System::new().block_on(async {
        let answer = awc::Client::default().post(&panic).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    });
    let written = |why: &str| {
        let dumps = files(&dumps);
        dumps
            .into_iter()
            .find(|path| path.to_str().unwrap().ends_with(&format!("-{why}.jsonl")))
    };
    until("the panic has a file", || written("panic").is_some());
    let dump = Dump::parse(&read(&written("panic").unwrap())).unwrap();
    assert_eq!(dump.processes.len(), 1);
    server.terminate();
    let end = written("exit").expect("an orderly end writes the trace where it is told to");
    // Two dumps of one process are one.
    let (all, _) = merge([dump, Dump::parse(&read(&end)).unwrap()], false);
    assert_eq!(all.processes.len(), 1);
    assert!(check(&draw(&all).json).unwrap().ok());
}
