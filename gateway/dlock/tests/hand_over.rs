//! A key's way from one holder to the next, on real processes and real stores: the delay after an unclean loss, measured on
//! the audit trail's own times, and the request to yield.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests wait for real processes"
)]

mod common;

use common::{Lab, OFTEN, Process, code, stderr, until, wait};
use lock_api::{LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const TTL: Duration = Duration::from_secs(6);
/// Of a lock that is never lost by its end.
const LONG_TTL: Duration = Duration::from_secs(20);
const DELAY: Duration = Duration::from_secs(3);
/// What the clock that counts and the one that dates the trail may differ by, read a moment apart.
const CLOCKS: Duration = Duration::from_millis(50);
const BY: [&str; 4] = ["--operator", "ann", "--reason", "this node is drained"];

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}

/// A lock server over PostgreSQL, in a schema of its own.
fn on_postgres() -> Lab {
    let url = block_on(test_servers::postgres_or_skip());
    on(&url, &format!("lock.store.schema={}", test_servers::fresh_schema()))
}

#[cfg(feature = "etcd")]
fn on_etcd() -> Lab {
    let at = block_on(test_servers::etcd_or_skip());
    let prefix = format!("lock.store.prefix={}", test_servers::fresh_schema());
    on(&format!("etcd://{at}"), &prefix)
}

fn on(store: &str, setting: &str) -> Lab {
    let args = [
        "lock-server",
        "--listen",
        "127.0.0.1:0",
        "--store",
        store,
        "--set",
        setting,
        "--set",
        OFTEN,
    ];
    Lab {
        server: Process::start(&args),
        dir: tempfile::tempdir().unwrap(),
    }
}

/// `dlock exec` around a command that says its process group and then what it does.
struct Holder {
    child: Child,
    group: Pid,
    said: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(lab: &Lab, ttl: Duration, options: &[&str], script: &str) -> Self {
        let script = format!("echo $$; {script}");
        let ttl = format!("{}s", ttl.as_secs());
        let args = [&["exec", "k", "--ttl", &ttl], options, &["--", "sh", "-c", &script]].concat();
        let mut child = lab
            .dlock()
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let group = line.trim().parse().map(Pid::from_raw);
        let group = group.unwrap_or_else(|_| panic!("{line:?}: {}", rest(&mut child)));
        Self { child, group, said }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Whatever a killed holder left behind, which nobody else ends.
        let _ = nix::sys::signal::killpg(self.group, Signal::SIGKILL);
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn rest(child: &mut Child) -> String {
    let mut said = String::new();
    drop(child.stderr.take().unwrap().read_to_string(&mut said));
    said
}

/// What waits for the key, and is granted it sooner or later.
fn waits(lab: &Lab) -> Child {
    let args = [
        "lock", "acquire", "k", "--wait", "30s", "--ttl", "60s", "--owner", "next", "-o", "json",
    ];
    let waiting = lab.dlock().args(args).stdout(Stdio::piped()).spawn().unwrap();
    until("it waits", || lab.json(&["lock", "show", "k"])["waiters"] == 1);
    waiting
}

fn granted(waiting: Child) -> u64 {
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(code(&output), 0);
    let grant: Value = serde_json::from_slice(&output.stdout).unwrap();
    grant["token"].as_u64().unwrap()
}

/// When this happened to the key under this token, by the clock of the store.
fn at(lab: &Lab, kind: &str, token: u64) -> OffsetDateTime {
    let history = lab.json(&["lock", "history", "k", "--limit", "1000"]);
    let rows = history["items"].as_array().unwrap();
    let row = rows.iter().find(|row| row["kind"] == kind && row["token"] == token);
    let row = row.unwrap_or_else(|| panic!("no {kind} of {token} in {rows:#?}"));
    OffsetDateTime::parse(row["at"].as_str().unwrap(), &Rfc3339).unwrap()
}

fn token(lab: &Lab) -> u64 {
    lab.json(&["lock", "show", "k"])["token"].as_u64().unwrap()
}

/// The holder is killed with its lock: nobody is granted it before its TTL and its delay are over. A clean end leaves no
/// delay.
fn a_killed_holder_leaves_its_delay_and_a_clean_end_none(lab: &Lab) {
    let clean = lab.run(&["exec", "k", "--ttl", "10s", "--lock-delay", "60s", "--", "true"]);
    assert_eq!(code(&clean), 0, "{}", stderr(&clean));
    let mut holder = Holder::start(lab, TTL, &["--lock-delay", "3s"], "exec sleep 600");
    let lost = token(lab);
    let shown = lab.json(&["lock", "show", "k"]);
    assert_eq!(
        (&shown["lock_delay_ms"], shown.get("closed_for_ms")),
        (&3_000.into(), None)
    );
    let waiting = waits(lab);
    kill(
        Pid::from_raw(i32::try_from(holder.child.id()).unwrap()),
        Signal::SIGKILL,
    )
    .unwrap();
    wait(&mut holder.child);
    let next = granted(waiting);
    assert!(next > lost);
    let (begun, granted) = (at(lab, "GRANTED", lost), at(lab, "GRANTED", next));
    let waited = granted - begun;
    assert!(
        waited + CLOCKS >= TTL + DELAY,
        "granted {waited} after the grant of the killed one"
    );
    let expired = at(lab, "EXPIRED", lost);
    assert!(
        granted - expired + CLOCKS >= DELAY,
        "granted {} after the loss",
        granted - expired
    );
}

#[test]
fn a_killed_holder_leaves_its_delay_on_sqlite() {
    a_killed_holder_leaves_its_delay_and_a_clean_end_none(&Lab::with(&[OFTEN]));
}

#[test]
fn a_killed_holder_leaves_its_delay_on_postgresql() {
    a_killed_holder_leaves_its_delay_and_a_clean_end_none(&on_postgres());
}

#[test]
#[cfg(feature = "etcd")]
fn a_killed_holder_leaves_its_delay_on_etcd() {
    a_killed_holder_leaves_its_delay_and_a_clean_end_none(&on_etcd());
}

/// A restart of the server in the middle of a delay does not shorten it.
#[test]
fn a_delay_outlives_the_lock_server() {
    let mut lab = Lab::new();
    lab.json(&["lock", "acquire", "k", "--ttl", "60s", "--lock-delay", "3s"]);
    let lost = token(&lab).to_string();
    lab.json(&[&["lock", "revoke", "k", "--token", &lost], &BY[..]].concat());
    let store = format!("sqlite:{}", lab.dir.path().join("lock.db").display());
    lab.server.child.kill().unwrap();
    lab.server.child.wait().unwrap();
    lab.server = Process::start(&["lock-server", "--listen", "127.0.0.1:0", "--store", &store]);
    let args = ["lock", "acquire", "k", "--wait", "30s", "--ttl", "60s", "-o", "json"];
    let next = granted(lab.dlock().args(args).stdout(Stdio::piped()).spawn().unwrap());
    let held_back = at(&lab, "GRANTED", next) - at(&lab, "REVOKED", lost.parse().unwrap());
    assert!(held_back + CLOCKS >= DELAY, "granted {held_back} after the revoke");
}

/// A holder with the SDK reads of the request, comes to its end and releases: the one that waits is granted at once, although
/// the grant would have left a delay of a minute.
fn a_holder_that_is_asked_gives_its_lock_to_the_next_one(lab: &Lab) {
    let url = lab.server.url();
    let (to, held) = std::sync::mpsc::channel();
    let holder = std::thread::spawn(move || {
        block_on(async move {
            let options = ClientOptions::new(Owner::new("holder").unwrap())
                .session_ttl(Duration::from_secs(10))
                .lock_delay(Duration::from_secs(60));
            let client = LockClient::connect(&[url], options).await.unwrap();
            let held = client.acquire(&LockKey::new("k").unwrap()).await.unwrap();
            let (tell, told) = tokio::sync::oneshot::channel();
            held.on_yield_requested(move |asked| drop(tell.send(asked)));
            to.send(held.token().get()).unwrap();
            let asked = told.await.unwrap();
            held.release().await.unwrap();
            client.close().await.unwrap();
            asked.by.as_str().to_owned()
        })
    });
    let lost = held.recv().unwrap();
    let waiting = waits(lab);
    let asked = lab.json(&[&["lock", "yield", "k", "--token", &lost.to_string()], &BY[..]].concat());
    assert_eq!(
        (&asked["owner"], &asked["yield_requested"]["by"]),
        (&"holder".into(), &"ann".into())
    );
    let next = granted(waiting);
    assert!(next > lost);
    assert_eq!(holder.join().unwrap(), "ann");
    let (requested, released) = (at(lab, "YIELD_REQUESTED", lost), at(lab, "RELEASED", lost));
    assert!(requested <= released && released <= at(lab, "GRANTED", next));
    let again = lab.run(&[&["lock", "yield", "k", "--token", &lost.to_string()], &BY[..]].concat());
    assert_eq!(code(&again), 1);
    assert!(stderr(&again).contains("NOT_HOLDER"), "{}", stderr(&again));
}

#[test]
fn a_holder_that_is_asked_gives_its_lock_up_on_sqlite() {
    a_holder_that_is_asked_gives_its_lock_to_the_next_one(&Lab::new());
}

#[test]
fn a_holder_that_is_asked_gives_its_lock_up_on_postgresql() {
    a_holder_that_is_asked_gives_its_lock_to_the_next_one(&on_postgres());
}

#[test]
#[cfg(feature = "etcd")]
fn a_holder_that_is_asked_gives_its_lock_up_on_etcd() {
    a_holder_that_is_asked_gives_its_lock_to_the_next_one(&on_etcd());
}

/// `--on-yield TERM` tells the command, which ends by itself; its code is passed through, and no delay is left. Without it
/// the command goes on, and a line says so.
#[test]
fn exec_tells_its_command_to_finish_when_it_is_asked() {
    let lab = Lab::with(&[OFTEN]);
    let script = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut holder = Holder::start(&lab, LONG_TTL, &["--lock-delay", "60s", "--on-yield", "term"], script);
    let mut line = String::new();
    holder.said.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let held = token(&lab).to_string();
    // Without --token it only says whom it would ask.
    let shown = lab.run(&[&["lock", "yield", "k"], &BY[..]].concat());
    assert_eq!(code(&shown), 64);
    assert!(
        stderr(&shown).contains(&format!("--token {held}")),
        "{}",
        stderr(&shown)
    );
    let yielded = lab.json(
        &[
            &["lock", "revoke", "k", "--token", &held, "--yield-first", "60s"],
            &BY[..],
        ]
        .concat(),
    );
    assert_eq!(
        (&yielded["yielded"], &yielded["token"].to_string()),
        (&true.into(), &held)
    );
    assert_eq!(wait(&mut holder.child).code(), Some(3));
    line.clear();
    holder.said.read_line(&mut line).unwrap();
    assert_eq!(line, "told\n");
    let said = rest(&mut holder.child);
    assert!(
        said.contains("ann asks for the lock (this node is drained); the command is sent SIGTERM"),
        "{said}"
    );
    let free = lab.json(&["lock", "show", "k"]);
    assert_eq!((&free["state"], free.get("closed_for_ms")), (&"FREE".into(), None));

    let mut stubborn = Holder::start(&lab, LONG_TTL, &["--lock-delay", "1s"], "exec sleep 600");
    let held = token(&lab).to_string();
    let broken = lab.json(
        &[
            &["lock", "revoke", "k", "--token", &held, "--yield-first", "2s"],
            &BY[..],
        ]
        .concat(),
    );
    assert_eq!(broken["revoked_token"].to_string(), held);
    assert_eq!(wait(&mut stubborn.child).code(), Some(76));
    let said = rest(&mut stubborn.child);
    assert!(said.contains("the command goes on (--on-yield)"), "{said}");
    let rows = lab.json(&["lock", "history", "k"]);
    let kinds: Vec<_> = rows["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["kind"].as_str().unwrap())
        .collect();
    let expected = [
        "GRANTED",
        "YIELD_REQUESTED",
        "RELEASED",
        "GRANTED",
        "YIELD_REQUESTED",
        "REVOKED",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn exec_refuses_a_signal_that_is_none_and_a_delay_that_is_too_long() {
    let lab = Lab::new();
    for options in [["--on-yield", "please"], ["--lock-delay", "61s"]] {
        let refused = lab.run(&[&["exec", "k"], &options[..], &["--", "true"]].concat());
        assert_eq!(code(&refused), 64, "{options:?}: {}", stderr(&refused));
    }
    let refused = lab.run(&["lock", "acquire", "k", "--lock-delay", "61s"]);
    assert_eq!(code(&refused), 64, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("lock_delay_ms"), "{}", stderr(&refused));
}
