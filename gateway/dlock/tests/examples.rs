//! Every example is run as its words say; those of the SDK in `sdk_examples.rs`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Lab, Process, binary, code, stderr, stdout, wait};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

fn examples() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
}

/// A lock server and a payment resource, and what tells an example where they are.
fn fenced(lab: &Lab) -> (Process, [(&'static str, String); 2]) {
    let store = format!("sqlite:{}", lab.dir.path().join("pay").display());
    let payments = Process::start(&["payment-resource", "--listen", "127.0.0.1:0", "--store", &store]);
    let env = [
        ("DLOCK_LOCK_SERVER", lab.server.url()),
        ("DLOCK_EXECUTOR_PAYMENTS", payments.url()),
    ];
    (payments, env)
}

/// A shell that finds the binary under test first.
fn shell(lab: &Lab, script: &str) -> Command {
    let path = format!(
        "{}:{}",
        binary().parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let mut command = Command::new("sh");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
        command.env_remove(name);
    }
    command
        .arg(examples().join(script))
        .env("PATH", path)
        .env("DLOCK_LOCK_SERVER", lab.server.url())
        .env("USER", "tester")
        .stdin(Stdio::null());
    command
}

#[test]
fn no_example_is_without_a_test() {
    let found: BTreeSet<_> = std::fs::read_dir(examples())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let tested = [
        "README.md",
        "cron-job.sh",
        "cron_job.rs",
        "curl-walk-through.sh",
        "http_resource.rs",
        "leader_election.rs",
        "object_store.rs",
        "python",
        "quick-start.sh",
        "sdk.rs",
        "sql_table.rs",
    ];
    assert_eq!(found, tested.map(str::to_owned).into());
}

#[test]
fn the_cron_job_runs_on_one_machine_at_a_time() {
    let lab = Lab::new();
    let reports = lab.dir.path().join("reports");
    let mut machines: Vec<_> = (0..4)
        .map(|_| {
            shell(&lab, "cron-job.sh")
                .env("REPORT_DIR", &reports)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let (mut done, mut passed) = (0, 0);
    for machine in &mut machines {
        assert_eq!(wait(machine).code(), Some(0));
        let mut said = String::new();
        std::io::Read::read_to_string(&mut machine.stdout.take().unwrap(), &mut said).unwrap();
        done += u32::from(said.contains("is done"));
        passed += u32::from(said.contains("another machine is at it"));
    }
    assert!(done >= 1 && done + passed == 4, "{done} done, {passed} passed");
    let written = std::fs::read_dir(&reports).unwrap().count();
    assert_eq!(written, usize::try_from(done).unwrap(), "one report under each token");
    // Held elsewhere: nothing is written, and cron sends no mail about an error.
    lab.json(&["lock", "acquire", "jobs/nightly-report", "--ttl", "60s"]);
    let refused = shell(&lab, "cron-job.sh").env("REPORT_DIR", &reports).output().unwrap();
    assert_eq!(code(&refused), 0, "{}", stderr(&refused));
    assert!(stdout(&refused).contains("another machine is at it"));
    assert_eq!(std::fs::read_dir(&reports).unwrap().count(), written);
}

#[test]
fn the_quick_start_says_what_happens() {
    let lab = Lab::new();
    let ran = shell(&lab, "quick-start.sh").output().unwrap();
    assert_eq!(code(&ran), 0, "{}{}", stdout(&ran), stderr(&ran));
    let said = stdout(&ran);
    for line in [
        "held under token 1",
        "somebody else is answered HELD_BY_OTHER",
        "renewed",
        "the next one holds it under token 2",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    assert!(lab.json(&["session", "list"])["items"].as_array().unwrap().is_empty());
}

#[test]
fn another_language_gets_by_with_curl() {
    let lab = Lab::new();
    let (_payments, env) = fenced(&lab);
    let ran = Command::new("bash")
        .arg(examples().join("curl-walk-through.sh"))
        .envs(env)
        .output()
        .unwrap();
    assert_eq!(code(&ran), 0, "{}{}", stdout(&ran), stderr(&ran));
    let said = stdout(&ran);
    for line in [
        "HELD_BY_OTHER",
        "CLAIMED",
        "FENCED_OUT: stale",
        "FENCING_TOKEN_REQUIRED",
        "done",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
}

/// Python without a `__pycache__` beside the example.
fn python(args: &[&str], env: &[(&'static str, String)]) -> Command {
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .args(args)
        .current_dir(examples().join("python"))
        .envs(env.iter().cloned())
        .stdin(Stdio::null());
    command
}

#[test]
fn the_python_worker_that_slept_is_refused_by_the_ledger() {
    let lab = Lab::new();
    let (_payments, env) = fenced(&lab);
    let ran = python(&["stale_worker.py"], &env).output().unwrap();
    assert_eq!(code(&ran), 0, "{}{}", stdout(&ran), stderr(&ran));
    let said = stdout(&ran);
    for line in [
        "W2 is refused: HELD_BY_OTHER, held by W1",
        "W1 wakes, and its own deadline says: its deadline has passed",
        "the ledger answers FENCED_OUT, stale",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
}

/// A program with the Python client that is talked with, a line at a time.
struct Talk {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Talk {
    fn with(program: &str, lab: &Lab) -> Self {
        let mut child = python(&["-c", program, &lab.server.url()], &[])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn the_python_client_keeps_its_lock_and_loses_it_by_its_deadline() {
    let mut lab = Lab::new();
    let keeps = "import sys, time
from dlock import LockLost, Session
session = Session(sys.argv[1], 'keeper', ttl_ms=9000)
lock = session.acquire('kept')
for _ in range(120):
    time.sleep(0.1)
    lock.check_still_held()
print('kept for longer than its TTL', flush=True)
sys.stdin.read(1)
while True:
    try:
        lock.check_still_held()
        time.sleep(0.01)
    except LockLost as lost:
        print(lost)
        break
";
    let mut talk = Talk::with(keeps, &lab);
    assert_eq!(talk.line(), "kept for longer than its TTL\n");
    assert_eq!(lab.state("kept"), "HELD");
    // The server is gone: within its TTL the holder knows, though nobody told it.
    lab.server.child.kill().unwrap();
    talk.child.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(wait(&mut talk.child).code(), Some(0));
    let line = talk.line();
    assert!(line.contains("its deadline has passed"), "{line}");
}

#[test]
fn the_python_client_gives_its_lock_up_when_it_is_asked() {
    let lab = Lab::new();
    let yields = "import sys, time
from dlock import Session
with Session(sys.argv[1], 'yielder', ttl_ms=9000) as session:
    lock = session.acquire('asked', lock_delay_ms=60000)
    print(lock.token, flush=True)
    while lock.yield_requested is None:
        lock.check_still_held()
        time.sleep(0.01)
    print('asked by', lock.yield_requested['by'], 'released', lock.release(), flush=True)
";
    let mut talk = Talk::with(yields, &lab);
    let token = talk.line();
    let reason = ["--operator", "ann", "--reason", "this node is drained"];
    let asked = lab.json(&[&["lock", "yield", "asked", "--token", token.trim()], &reason[..]].concat());
    assert_eq!(asked["owner"], "yielder");
    assert_eq!(wait(&mut talk.child).code(), Some(0));
    assert_eq!(talk.line(), "asked by ann released True\n");
    assert!(
        lab.json(&["lock", "show", "asked"]).get("closed_for_ms").is_none(),
        "a release leaves no delay"
    );
}

/// The server lets nobody wait for longer than 1 s: the client learns that from it and asks again.
#[test]
fn case_l37_the_python_client_waits_past_the_servers_own_bound() {
    let lab = Lab::with(&["lock.acquire.wait-max=1s"]);
    lab.json(&["lock", "acquire", "k", "--ttl", "3s"]);
    let waits = "import sys
from dlock import Session
with Session(sys.argv[1], 'patient') as session:
    print('granted', session.acquire('k', wait_ms=120000).token)
";
    let mut talk = Talk::with(waits, &lab);
    let line = talk.line();
    assert!(line.starts_with("granted "), "{line}");
    assert_eq!(wait(&mut talk.child).code(), Some(0));
}
