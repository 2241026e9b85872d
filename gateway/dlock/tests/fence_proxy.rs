//! `dlock fence-proxy` and `dlock fence`, as somebody types them.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{code, dlock, stderr, stdout, until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A service that answers everything with `done`, or, at `/lost`, not at all.
fn service() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    #[allow(clippy::disallowed_methods, reason = "a test runs outside any runtime")]
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let request = head(&mut stream);
            counted.fetch_add(1, Ordering::SeqCst);
            if !request.contains("/lost") {
                drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone"));
            }
        }
    });
    (url, served)
}

/// What comes up to the end of a head, in however many pieces.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

struct Proxy {
    child: Child,
    listen: String,
    admin: String,
}

impl Proxy {
    fn start(args: &[&str]) -> Self {
        let mut child = dlock()
            .args(["fence-proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut listen, mut admin) = (None, None);
        for line in BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
        {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            let addr = || event["addr"].as_str().unwrap().to_owned();
            match event["event"].as_str() {
                Some("proxying") => listen = Some(addr()),
                Some("listening") => {
                    admin = Some(addr());
                    break;
                }
                _ => {}
            }
        }
        Self {
            child,
            listen: listen.unwrap(),
            admin: format!("http://{}", admin.unwrap()),
        }
    }

    fn post(&self, path: &str, token: &str) -> String {
        let mut stream = TcpStream::connect(&self.listen).unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-fencing-token: {token}\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn the_proxy_fences_and_its_operator_clears_while_it_runs_and_when_it_does_not() {
    let (url, served) = service();
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("fence.db").display());
    let args = [
        "--upstream",
        &url,
        "--store",
        &store,
        "--key-prefix-segments",
        "2",
        "--timeout",
        "5s",
    ];
    let mut proxy = Proxy::start(&args);
    assert!(proxy.post("/accounts/A", "5").ends_with("done"));
    assert!(proxy.post("/accounts/A", "4").contains("\"code\":\"FENCED_OUT\""));
    assert!(proxy.post("/accounts/A/lost", "6").contains("\"reason\":\"no_answer\""));
    assert!(
        proxy
            .post("/accounts/A", "7")
            .contains("\"reason\":\"older_request_open\"")
    );
    assert_eq!(served.load(Ordering::SeqCst), 2);

    let fence = |args: &[&str]| dlock().arg("fence").args(args).output().unwrap();
    let shown = fence(&["open", "accounts/A", "--admin", &proxy.admin, "-o", "json"]);
    assert!(
        stdout(&shown).contains("POST /accounts/A/lost"),
        "{}{}",
        stdout(&shown),
        stderr(&shown)
    );
    let id = serde_json::from_str::<Value>(&stdout(&shown)).unwrap()["items"][0]["id"].clone();
    let table = stdout(&fence(&["open", "accounts/A", "--admin", &proxy.admin]));
    for column in [
        "accounts/A",
        "POST /accounts/A/lost",
        id.as_str().unwrap(),
        "IN_FLIGHT",
        "without an answer",
    ] {
        assert!(table.contains(column), "{column} in {table}");
    }
    let mark = fence(&["mark", "accounts/A", "--admin", &proxy.admin, "-o", "json"]);
    let mark: Value = serde_json::from_str(&stdout(&mark)).unwrap();
    assert_eq!(
        (mark["mark"].as_u64(), mark["announced"].as_u64(), mark["open"].as_u64()),
        (Some(6), Some(7), Some(1))
    );
    let short = fence(&["clear", "accounts/A", "--reason", "short", "--admin", &proxy.admin]);
    assert_eq!(code(&short), 64, "{}", stderr(&short));
    let owned = fence(&["clear", "accounts/A", "--reason", "the book says so", "--store", &store]);
    assert_eq!(
        code(&owned),
        69,
        "the proxy that runs owns its store: {}",
        stdout(&owned)
    );
    let cleared = fence(&[
        "clear",
        "accounts/A",
        "--reason",
        "the book says so",
        "--admin",
        &proxy.admin,
    ]);
    assert_eq!(code(&cleared), 0, "{}", stderr(&cleared));
    assert!(proxy.post("/accounts/A", "7").ends_with("done"));

    // In doubt again; the proxy dies, and its operator works on the file.
    assert!(proxy.post("/accounts/A/lost", "7").contains("no_answer"));
    proxy.child.kill().unwrap();
    proxy.child.wait().unwrap();
    let shown = fence(&["open", "accounts/A", "--store", &store, "-o", "json"]);
    assert!(
        stdout(&shown).contains("POST /accounts/A/lost"),
        "{}{}",
        stdout(&shown),
        stderr(&shown)
    );
    let other = fence(&["open", "accounts/B", "--store", &store, "-o", "json"]);
    assert!(!stdout(&other).contains("/lost"), "{}", stdout(&other));
    let cleared = fence(&["clear", "accounts/A", "--reason", "the book says so", "--store", &store]);
    assert_eq!(
        (code(&cleared), stdout(&cleared).trim()),
        (0, "cleared 1"),
        "{}",
        stderr(&cleared)
    );
    let none = fence(&["clear", "accounts/A", "--reason", "the book says so", "--store", &store]);
    assert_eq!(
        (code(&none), stdout(&none).trim()),
        (1, "cleared 0"),
        "{}",
        stderr(&none)
    );
    assert!(stderr(&none).contains("not found"), "{}", stderr(&none));
    let proxy = Proxy::start(&args);
    let none = fence(&[
        "clear",
        "accounts/A",
        "--reason",
        "the book says so",
        "--admin",
        &proxy.admin,
    ]);
    assert_eq!(code(&none), 1, "{}", stderr(&none));
    assert!(stderr(&none).contains("not found"), "{}", stderr(&none));
    assert!(proxy.post("/accounts/A", "8").ends_with("done"));
    let ready = dlock().args(["healthcheck", &proxy.admin]).output().unwrap();
    assert_eq!(code(&ready), 0, "{}", stderr(&ready));
    let mut proxy = proxy;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(proxy.child.id()).unwrap()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    until("it has ended", || proxy.child.try_wait().unwrap().is_some());
    assert_eq!(proxy.child.wait().unwrap().code(), Some(0));
}

/// Its body has no end: it used to wait for the whole time-out.
#[test]
fn an_upgrade_is_refused_before_the_service_is_asked() {
    let (url, served) = service();
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("fence.db").display());
    // Longer than any test may wait.
    let proxy = Proxy::start(&["--upstream", &url, "--store", &store, "--key", "k", "--timeout", "1h"]);
    for method in ["GET", "POST"] {
        let mut stream = TcpStream::connect(&proxy.listen).unwrap();
        let request = format!(
            "{method} /chat HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: WebSocket\r\nsec-websocket-version: 13\r\nx-fencing-token: 5\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let answer = head(&mut stream);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(served.load(Ordering::SeqCst), 0);
    assert!(proxy.post("/chat", "5").ends_with("done"));
}

#[test]
fn what_it_cannot_serve_it_says_at_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("fence.db").display());
    let run = |args: &[&str]| {
        dlock()
            .args(["fence-proxy", "--listen", "127.0.0.1:0"])
            .args(args)
            .output()
            .unwrap()
    };
    let service = ["--upstream", "http://127.0.0.1:1", "--store", &store];
    for (wrong, expected) in [
        (vec![], 64),
        (vec!["--key", "k", "--key-header", "x"], 64),
        (vec!["--key-header", "X-Fencing-Token"], 64),
        (vec!["--key-prefix-segments", "0"], 64),
    ] {
        let ran = run(&[&service[..], &wrong].concat());
        assert_eq!(code(&ran), expected, "{wrong:?}: {}", stderr(&ran));
    }
    let ran = run(&[
        "--upstream",
        "http://127.0.0.1:1",
        "--store",
        "postgres://x",
        "--key",
        "k",
    ]);
    assert_eq!(code(&ran), 64, "{}", stderr(&ran));
    // Told by whoever only prints the configuration, too.
    for more in [&[][..], &["--print-config"]] {
        let tls = ["--upstream", "https://127.0.0.1:1", "--store", &store, "--key", "k"];
        let ran = run(&[&tls[..], more].concat());
        assert_eq!(code(&ran), 64, "{more:?}");
        assert!(
            stderr(&ran).contains("--upstream must begin with http://"),
            "{}",
            stderr(&ran)
        );
    }
}

#[test]
fn the_migration_is_printed_as_the_kit_has_it() {
    let printed = dlock().args(["fence", "sql"]).output().unwrap();
    assert_eq!(code(&printed), 0);
    assert!(stdout(&printed).contains("CREATE FUNCTION dlock_fence(key text, token bigint"));
    let printed = dlock().args(["fence", "sql", "--uninstall"]).output().unwrap();
    assert!(stdout(&printed).contains("DROP TABLE dlock_fence_mark"));
}

#[test]
fn a_bound_that_nothing_can_keep_is_refused() {
    for (flag, value, least) in [
        ("--timeout", "0s", "at least 100ms"),
        ("--timeout", "99ms", "at least 100ms"),
        ("--settled-after", "0s", "at least 1s"),
        ("--settled-after", "999ms", "at least 1s"),
    ] {
        let args = [
            "fence-proxy",
            "--listen",
            "127.0.0.1:0",
            "--upstream",
            "http://127.0.0.1:1",
        ];
        let store = ["--store", "sqlite:/nowhere/fence.db", "--key", "k", flag, value];
        let refused = dlock().args(args).args(store).output().unwrap();
        assert_eq!(code(&refused), 64, "{flag} {value}: {}", stderr(&refused));
        assert!(
            stderr(&refused).contains(flag) && stderr(&refused).contains(least),
            "{}",
            stderr(&refused)
        );
    }
}
