//! Components at the limits of their machine: few descriptors, many connections, a log that nobody reads.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests run outside any runtime and wait for real processes"
)]

mod common;

use common::{LONG, dlock, until, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// A lock server whose log is read only when the test reads it.
struct Server {
    child: Child,
    log: BufReader<ChildStdout>,
    addr: String,
    bounds: Value,
    _dir: TempDir,
}

/// The command, under these limits of open files (soft, hard).
fn limited(soft: u64, hard: u64, args: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    let limits = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
    shell.arg("-c").arg(limits).arg(common::binary()).args(args);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
        shell.env_remove(name);
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped());
    shell
}

impl Server {
    fn start(soft: u64, hard: u64, further: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", dir.path().join("lock.db").display());
        let mut args = vec!["lock-server", "--listen", "127.0.0.1:0", "--store", &store];
        args.extend(further);
        let mut child = limited(soft, hard, &args).spawn().unwrap();
        let mut log = BufReader::new(child.stdout.take().unwrap());
        let bounds = next(&mut log, "bounds_derived");
        let addr = next(&mut log, "listening")["addr"].as_str().unwrap().to_owned();
        Self {
            child,
            log,
            addr,
            bounds,
            _dir: dir,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.addr).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    /// A connection that has had an answer and is idle now.
    fn idle(&self) -> TcpStream {
        let mut stream = self.connect();
        let (status, _) = call(&mut stream, "GET", "/livez", &Value::Null);
        assert_eq!(status, 200);
        stream
    }

    /// A call of somebody who was not here before.
    fn new_caller(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        call(&mut self.connect(), method, path, body)
    }

    fn session(&self) -> String {
        let (status, opened) = self.new_caller("POST", "/v1/sessions", &json!({ "owner": "w", "ttl_ms": 60_000 }));
        assert!(status < 300, "{status} {opened}");
        opened["session_id"].as_str().unwrap().to_owned()
    }

    /// Whoever comes new is served: probes and a heartbeat.
    fn serves(&self, session: &str) {
        for path in ["/livez", "/readyz"] {
            assert_eq!(self.new_caller("GET", path, &Value::Null).0, 200, "{path}");
        }
        let path = format!("/v1/sessions/{session}/heartbeat");
        let (status, answer) = self.new_caller("POST", &path, &json!({}));
        assert_eq!(status, 200, "{answer}");
    }

    fn metric(&self, name: &str) -> f64 {
        let mut stream = self.connect();
        write!(stream, "GET /metrics HTTP/1.0\r\nhost: {}\r\n\r\n", self.addr).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    fn terminate(&self) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGTERM).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The next line of this event.
fn next(log: &mut impl BufRead, event: &str) -> Value {
    let mut line = String::new();
    while log.read_line(&mut line).unwrap() > 0 {
        let json: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
        if json["event"] == event {
            return json;
        }
        line.clear();
    }
    panic!("the log ended before {event}");
}

/// One call over this connection, which is kept.
fn call(stream: &mut TcpStream, method: &str, path: &str, body: &Value) -> (u16, Value) {
    send(stream, method, path, body);
    answer(stream)
}

fn send(stream: &mut TcpStream, method: &str, path: &str, body: &Value) {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let host = stream.peer_addr().unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
}

fn answer(stream: &mut TcpStream) -> (u16, Value) {
    let mut reader = BufReader::new(stream);
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "closed before the head's end");
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().unwrap();
        } else if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Enough sockets for the callers of these tests.
fn many_sockets() {
    assert!(
        gateway_kit::Descriptors::raise().unwrap().limit > 4_096,
        "these tests need a hard limit above 4,096"
    );
}

#[test]
fn case_s5_more_idle_connections_than_there_are_descriptors() {
    many_sockets();
    let server = Server::start(1_024, 1_024, &[]);
    assert!(
        server.bounds["connections_hard"].as_u64().unwrap() < 1_024,
        "{}",
        server.bounds
    );
    let session = server.session();
    let mut first = server.idle();
    let mut idle: Vec<_> = (0..1_200).map(|_| server.idle()).collect();
    server.serves(&session);
    // The longest idle one went, the newest one is there still.
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the longest idle connection was kept");
    assert_eq!(call(idle.last_mut().unwrap(), "GET", "/livez", &Value::Null).0, 200);
    // One descriptor each: those that are open have room for all that the bound admits.
    let bound = server.bounds["connections_hard"].as_f64().unwrap();
    assert!(server.metric("http_connections ") <= bound);
    assert!(server.metric("http_idle_connections_closed_total ") >= 1.0);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.child.id()))
        .unwrap()
        .count();
    assert!(descriptors < 1_024 - 128, "{descriptors} descriptors are open");
}

/// A connection that the server was about to close is spared when a request has arrived on it.
#[test]
fn case_s5_no_connection_is_closed_while_it_is_busy() {
    many_sockets();
    let server = Server::start(256, 256, &[]);
    let session = server.session();
    let holder = json!({ "session_id": session, "wait_ms": 0 });
    assert_eq!(server.new_caller("POST", "/v1/locks/k/acquire", &holder).0, 200);
    let other = server.session();
    let mut waiter = server.connect();
    send(
        &mut waiter,
        "POST",
        "/v1/locks/k/acquire",
        &json!({ "session_id": other, "wait_ms": 30_000 }),
    );
    until("it waits", || {
        server.new_caller("GET", "/v1/locks/k", &Value::Null).1["waiters"] == 1
    });
    let idle: Vec<_> = (0..300).map(|_| server.idle()).collect();
    assert_eq!(server.new_caller("GET", "/v1/locks/k", &Value::Null).1["waiters"], 1);
    let (_, held) = server.new_caller("GET", "/v1/locks/k", &Value::Null);
    let path = "/v1/locks/k/revoke";
    let mut operator = server.connect();
    let body = json!({ "revoke_token": held["token"], "reason": "the waiter is to have it" }).to_string();
    write!(
        operator,
        "POST {path} HTTP/1.1\r\nhost: {}\r\nx-operator: me\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.addr,
        body.len()
    )
    .unwrap();
    assert_eq!(answer(&mut operator).0, 200);
    let (status, granted) = answer(&mut waiter);
    assert_eq!(status, 200, "{granted}");
    drop(idle);
}

#[test]
fn case_l40_idle_connections_and_waiters_leave_room_for_a_new_caller() {
    many_sockets();
    let server = Server::start(1_024, 20_000, &[]);
    assert_eq!(
        (&server.bounds["descriptors"], &server.bounds["descriptors_before"]),
        (&json!(20_000), &json!(1_024))
    );
    let session = server.session();
    let held = json!({ "session_id": session, "wait_ms": 0 });
    assert_eq!(server.new_caller("POST", "/v1/locks/k/acquire", &held).0, 200);
    let idle: Vec<_> = (0..2_000).map(|_| server.idle()).collect();
    let other = server.session();
    let waiters: Vec<_> = (0..500)
        .map(|n| {
            let mut stream = server.connect();
            let body = json!({ "session_id": other, "request_id": format!("r{n}"), "wait_ms": 30_000 });
            send(&mut stream, "POST", "/v1/locks/k/acquire", &body);
            stream
        })
        .collect();
    server.serves(&session);
    drop((idle, waiters));
}

/// Callers who wait on purpose never take the last connections of those who are answered at once.
#[test]
fn case_l40_waiters_have_a_bound_of_their_own() {
    let server = Server::start(1_024, 4_096, &["--set", "http.connections-max=16"]);
    let (holder, other) = (server.session(), server.session());
    let held = json!({ "session_id": holder, "wait_ms": 0 });
    assert_eq!(server.new_caller("POST", "/v1/locks/k/acquire", &held).0, 200);
    let waiting = server.bounds["waiting"].as_u64().unwrap();
    let mut waiters = Vec::new();
    for n in 1..=waiting {
        let mut stream = server.connect();
        let body = json!({ "session_id": other, "request_id": format!("r{n}"), "wait_ms": 30_000 });
        send(&mut stream, "POST", "/v1/locks/k/acquire", &body);
        waiters.push(stream);
        until("it waits", || {
            server.new_caller("GET", "/v1/locks/k", &Value::Null).1["waiters"] == n
        });
    }
    let one_more = json!({ "session_id": other, "request_id": "r", "wait_ms": 30_000 });
    let (status, answer) = server.new_caller("POST", "/v1/locks/k/acquire", &one_more);
    assert_eq!((status, &answer["code"]), (503, &json!("OVERLOADED")), "{answer}");
    server.serves(&holder);
    // A place that was given back can be had.
    drop(waiters.pop());
    until("a waiter has gone", || {
        server.new_caller("GET", "/v1/locks/k", &Value::Null).1["waiters"] == waiting - 1
    });
    let mut stream = server.connect();
    send(&mut stream, "POST", "/v1/locks/k/acquire", &one_more);
    until("another waits", || {
        server.new_caller("GET", "/v1/locks/k", &Value::Null).1["waiters"] == waiting
    });
}

#[test]
fn too_few_descriptors_are_said_and_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("lock.db").display());
    for (limit, args) in [
        (10, &["lock-server", "--listen", "127.0.0.1:0", "--store", &store][..]),
        (40, &["lock-server", "--listen", "127.0.0.1:0", "--store", &store][..]),
        (10, &["lock", "list", "--lock-server", "http://127.0.0.1:1"][..]),
    ] {
        let output = limited(limit, limit, args).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains(&format!("the limit of open files is {limit}")), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn case_l34_a_log_that_nobody_reads_holds_nothing_up() {
    let mut server = Server::start(1_024, 4_096, &["--set", "log.filter=debug"]);
    let session = server.session();
    let path = format!("/v1/sessions/{session}/heartbeat");
    let mut stream = server.connect();
    for n in 0..10_000 {
        let (method, path) = if n % 10 == 0 {
            ("GET", "/readyz")
        } else {
            ("POST", path.as_str())
        };
        let body = if n % 10 == 0 { Value::Null } else { json!({}) };
        let (status, answer) = call(&mut stream, method, path, &body);
        assert_eq!(status, 200, "request {n}: {answer}");
    }
    assert!(
        server.metric("log_lines_dropped_total ") > 0.0,
        "10,000 requests left the queue with room"
    );
    // Lines move again: they say what is missing, and at the end nothing is.
    let missing = next(&mut server.log, "log_lines_dropped");
    assert!(missing["lines"].as_u64().unwrap() > 0, "{missing}");
    server.terminate();
    next(&mut server.log, "stopped");
    assert_eq!(wait(&mut server.child).code(), Some(0));
}

#[test]
fn case_l34_nobody_reads_the_log_and_sigterm_ends_the_server() {
    let mut server = Server::start(1_024, 4_096, &["--set", "log.filter=debug"]);
    let mut stream = server.connect();
    // More than a pipe holds.
    for _ in 0..1_000 {
        assert_eq!(call(&mut stream, "GET", "/readyz", &Value::Null).0, 200);
    }
    server.terminate();
    assert_eq!(wait(&mut server.child).code(), Some(0));
}

/// What is said before a process ends is there, also what a failure says.
#[test]
fn the_last_lines_of_a_process_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("sqlite:{}", dir.path().join("lock.db").display());
    let listen = taken.local_addr().unwrap().to_string();
    let output = dlock()
        .args(["lock-server", "--listen", &listen, "--store", &store])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(69));
    let log = String::from_utf8(output.stdout).unwrap();
    let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "component_failed", "{log}");
}
