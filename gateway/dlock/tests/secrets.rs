//! Secrets are in nothing that a component says: not in its logs, whatever the level, not in its answers, not in its
//! configuration as it prints it (NFR-12).
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::whole::{Component, Whole};
use common::{dlock, stderr, stdout};
use host_kit::Reserved;
use http_contract::payment::PayoutState;
use std::io::Write;

/// Each stands in one place alone, so that a leak names its place.
const IN_URL: &str = "hunter2-in-a-url";
const IN_QUERY: &str = "hunter2-in-a-query";
const IN_FILE: &str = "hunter2-in-a-file";
const IN_ENVIRONMENT: &str = "hunter2-in-the-environment";
const IN_HEADER: &str = "hunter2-in-a-header";
const ALONE: &str = "hunter2-alone-before-an-at";

fn clean(what: &str, text: &str) {
    for secret in [IN_URL, IN_QUERY, IN_FILE, IN_ENVIRONMENT, IN_HEADER, ALONE] {
        let line = text.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "{what} shows {secret}: {line:?}");
    }
}

fn password_file() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{IN_FILE}").unwrap();
    file
}

/// A database that is not there.
fn database(nobody: &Reserved) -> String {
    let address = nobody.address();
    format!("postgres://dlock:{IN_URL}@{address}/dlock?connect_timeout=1&password={IN_QUERY}")
}

#[test]
fn a_component_that_cannot_reach_its_database_says_so_without_the_password() {
    let nobody = test_servers::reserved();
    let (url, file) = (database(&nobody), password_file());
    let path = file.path().display().to_string();
    for (component, store, more) in [
        (
            "lock-server",
            "lock.store",
            vec!["--set", "lock.store.connect-timeout=1s"],
        ),
        ("payment-resource", "payment.store", vec![]),
        ("rail-proxy", "rail.store", vec!["--rail", "http://127.0.0.1:1"]),
    ] {
        for with_file in [false, true] {
            let mut command = dlock();
            command
                .args([component, "--listen", "127.0.0.1:0", "--store", &url])
                .args(&more)
                .env("DLOCK_LOG", "trace")
                .env("PGPASSWORD", IN_ENVIRONMENT);
            if with_file {
                command.args(["--set", &format!("{store}.password-file={path}")]);
            }
            let said = command.output().unwrap();
            assert_ne!(said.status.code(), Some(0), "{component} has found a database");
            let text = format!("{}{}", stdout(&said), stderr(&said));
            assert!(text.contains("component_failed"), "{component}: {text}");
            clean(component, &text);

            let printed = command.arg("--print-config").output().unwrap();
            let text = format!("{}{}", stdout(&printed), stderr(&printed));
            assert!(text.contains("dlock:***@127.0.0.1"), "{text}");
            clean(&format!("{component} --print-config"), &text);
        }
    }
}

#[test]
fn a_value_that_is_refused_is_not_repeated() {
    for (args, name) in [
        (
            vec!["lock-server", "--store", "mysql://dlock:hunter2-in-a-url@host/db"],
            "lock.store.url",
        ),
        (
            vec!["rail-proxy", "--rail", "ftp://dlock:hunter2-in-a-url@host"],
            "rail.url",
        ),
        (
            vec![
                "payout-executor",
                "--owner",
                "W",
                "--payments",
                "http://127.0.0.1:1",
                "--rail-proxy",
                "http://127.0.0.1:1",
                "--set",
                "executor.lock-servers=ftp://dlock:hunter2-in-a-url@host",
            ],
            "executor.lock-servers",
        ),
    ] {
        let said = dlock().args(&args).env("DLOCK_LOG", "trace").output().unwrap();
        let text = format!("{}{}", stdout(&said), stderr(&said));
        assert_ne!(said.status.code(), Some(0), "{args:?}");
        assert!(text.contains(name), "{args:?}: {text}");
        clean(&args.join(" "), &text);
    }
}

#[test]
fn nothing_that_a_working_system_says_holds_a_secret() {
    let mut whole = Whole::new(&[("DLOCK_LOG", "trace"), ("PGPASSWORD", IN_ENVIRONMENT)]);
    // A rail, a lock server and a payment resource behind addresses with passwords.
    let with = |address: &str| format!("http://dlock:{IN_URL}@{address}");
    let pay = format!("sqlite:{}", whole.dir.path().join("pay").display());
    let (rail, log) = (
        with(&whole.stub.addr),
        [("DLOCK_LOG", "trace"), ("PGPASSWORD", IN_ENVIRONMENT)],
    );
    whole.proxy = Component::start(
        &[
            "rail-proxy",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &pay,
            "--rail",
            &rail,
        ],
        &log,
    );
    let (lock, payments, proxy) = (
        with(&whole.lock.addr),
        with(&whole.payments.addr),
        with(&whole.proxy.addr),
    );
    let worker = [
        "payout-executor",
        "--listen",
        "127.0.0.1:0",
        "--owner",
        "W1",
        "--lock-server",
        &lock,
        "--payments",
        &payments,
        "--rail-proxy",
        &proxy,
        "--set",
        "executor.poll.interval=50ms",
    ];
    whole.workers.push(Component::start(&worker, &log));
    whole.payout("A", "P1");
    whole.await_state("P1", PayoutState::Posted);

    // What a client may put into a request.
    for component in [&whole.lock, &whole.payments, &whole.proxy, &whole.workers[0]] {
        ask_with_secrets(component);
    }
    let all = [
        &whole.lock,
        &whole.payments,
        &whole.proxy,
        &whole.workers[0],
        &whole.stub,
    ];
    for (n, component) in all.into_iter().enumerate() {
        clean(&format!("the log of component {n}"), &component.said());
    }
    for component in [&whole.lock, &whole.payments, &whole.proxy, &whole.workers[0]] {
        for path in [
            "/debug/actors",
            "/debug/trace?format=jsonl",
            "/debug/trace?format=perfetto",
            "/metrics",
            "/readyz",
            "/version",
            "/v1/refusals",
        ] {
            clean(path, &whole.get(component, path));
        }
    }
    let printed = dlock().args(worker).arg("--print-config").output().unwrap();
    clean("--print-config", &format!("{}{}", stdout(&printed), stderr(&printed)));
    assert!(stdout(&printed).contains("dlock:***@"), "{}", stdout(&printed));
    let alone = dlock()
        .args([
            "rail-proxy",
            "--rail",
            &format!("http://{ALONE}@rail?api_key={IN_QUERY}"),
            "--print-config",
        ])
        .output()
        .unwrap();
    clean("--print-config", &format!("{}{}", stdout(&alone), stderr(&alone)));
    assert!(
        stdout(&alone).contains("http://***@rail?api_key=***"),
        "{}",
        stdout(&alone)
    );
}

/// A request with secrets where clients put them: in a header, and in a query that is no parameter of the route.
fn ask_with_secrets(component: &Component) {
    use std::io::Read;
    let mut socket = std::net::TcpStream::connect(&component.addr).unwrap();
    let request = format!(
        "GET /v1/payouts?access_token={IN_QUERY} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {IN_HEADER}\r\n\
         Cookie: session={IN_HEADER}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
}
