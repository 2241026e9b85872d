//! What every listener has in common, asked of real processes: HEAD and OPTIONS (case L43), foreign names, foreign pages and
//! other content types (case S7), callers who take nothing of what they asked for (S2) or all that there is (S6).

#![cfg(feature = "lab")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests wait for real processes"
)]

mod common;

use common::{LONG, Process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The head of an answer, and what follows of its body where its length is known.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// A connection from one of the addresses of this machine: each is another caller.
fn connect(from: Ipv4Addr, addr: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let stream = socket.connect(addr.parse::<SocketAddr>().unwrap()).await.unwrap();
        stream.into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        text += &format!("content-length: {}\r\n", body.len());
    }
    text + "\r\n" + body
}

/// Reads a head, and the body of an announced length where there is one.
fn read(stream: &mut TcpStream, with_body: bool) -> Answer {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(
            stream.read(&mut byte).unwrap(),
            1,
            "cut off: {:?}",
            String::from_utf8_lossy(&head)
        );
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut answer = Answer {
        status,
        headers,
        body: String::new(),
    };
    let length = answer
        .header("content-length")
        .map_or(0, |length| length.parse().unwrap());
    if with_body && length > 0 {
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        answer.body = String::from_utf8(body).unwrap();
    }
    answer
}

fn ask(addr: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = connect(Ipv4Addr::LOCALHOST, addr);
    stream
        .write_all(request(method, path, headers, body).as_bytes())
        .unwrap();
    read(&mut stream, true)
}

/// One of each kind of listener.
struct Listeners {
    all: Vec<Process>,
    _dir: tempfile::TempDir,
}

impl Listeners {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("sqlite:{}", dir.path().join(name).display());
        let any = "127.0.0.1:0";
        let lock = Process::start(&["lock-server", "--listen", any, "--store", &at("lock.db")]);
        let stub = Process::start(&["rail-stub", "--listen", any]);
        let payments = Process::start(&["payment-resource", "--listen", any, "--store", &at("pay")]);
        let rail = ["--store", &at("pay"), "--rail", &stub.url()];
        let proxy = Process::start(&[&["rail-proxy", "--listen", any][..], &rail].concat());
        let (locks, pays, rails) = (lock.url(), payments.url(), proxy.url());
        let upstreams = ["--lock-server", &locks, "--payments", &pays, "--rail-proxy", &rails];
        let work = ["payout-executor", "--listen", any, "--owner", "w"];
        let executor = Process::start(&[&work[..], &upstreams].concat());
        let console = Process::start(&[&["console", "--listen", any][..], &upstreams].concat());
        // Its first line with `listening` tells the operators' address.
        let fence = ["fence-proxy", "--listen", any, "--admin", any, "--upstream", &pays];
        let marks = at("fence.db");
        let fence = Process::start(&[&fence[..], &["--store", &marks, "--key-prefix-segments", "1"]].concat());
        Self {
            all: vec![lock, stub, payments, proxy, executor, console, fence],
            _dir: dir,
        }
    }
}

/// Every route of a component with its methods, out of its own document; the stub has none.
fn routes(component: &Process) -> Vec<(String, BTreeSet<String>)> {
    if component.name == "rail-stub" {
        return [
            ("/submit", "POST"),
            ("/submissions", "GET"),
            ("/faults", "GET PUT DELETE"),
            ("/stats", "GET"),
            ("/livez", "GET"),
            ("/readyz", "GET"),
            ("/startupz", "GET"),
        ]
        .map(|(path, methods)| (path.to_owned(), methods.split(' ').map(str::to_owned).collect()))
        .to_vec();
    }
    let document = ask(&component.addr, "GET", "/openapi.json", &[("host", "localhost")], "").json();
    let paths = document["paths"].as_object().unwrap();
    let methods = |item: &Value| {
        item.as_object()
            .unwrap()
            .keys()
            .map(|method| method.to_ascii_uppercase())
            .collect()
    };
    paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()
}

/// A path of a template: something lawful in each place.
fn filled(template: &str) -> String {
    let parts = template
        .split('/')
        .map(|part| if part.starts_with('{') { "x" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// What an answer says of itself, without what is different each time or depends on the moment.
fn said(answer: &Answer, path: &str) -> Vec<(String, String)> {
    let moment = ["date", "x-request-id"];
    // Numbers grow between two answers; all else is of the same length.
    let grows = ["/metrics", "/debug", "/live", "/readyz"]
        .iter()
        .any(|grows| path.starts_with(grows));
    let mut said: Vec<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| !moment.contains(&name.as_str()))
        .filter(|(name, _)| !grows || name != "content-length")
        .cloned()
        .collect();
    said.sort();
    said
}

#[test]
fn case_l43_head_answers_every_get_route_as_get_does_and_options_says_what_is_allowed() {
    let listeners = Listeners::start();
    for component in &listeners.all {
        let (name, addr) = (&component.name, &component.addr);
        let host = ("host", addr.as_str());
        let routes = routes(component);
        assert!(routes.len() > 5, "{name}: {routes:?}");
        for (template, methods) in routes {
            let path = filled(&template);
            if methods.contains("GET") {
                let mut stream = connect(Ipv4Addr::LOCALHOST, addr);
                stream.write_all(request("GET", &path, &[host], "").as_bytes()).unwrap();
                // A stream never ends: its head is all that is compared.
                let get = read(&mut stream, false);
                let mut stream = connect(Ipv4Addr::LOCALHOST, addr);
                let head_then_close = request("HEAD", &path, &[host, ("connection", "close")], "");
                stream.write_all(head_then_close.as_bytes()).unwrap();
                let head = read(&mut stream, false);
                let mut rest = String::new();
                stream.read_to_string(&mut rest).unwrap();
                assert_eq!(rest, "", "{name}: HEAD {path} has a body");
                assert_eq!(head.status, get.status, "{name}: {path}");
                let keeps = |mut said: Vec<(String, String)>| {
                    said.retain(|(name, _)| name != "connection");
                    said
                };
                assert_eq!(keeps(said(&head, &path)), keeps(said(&get, &path)), "{name}: {path}");
            }
            let options = ask(addr, "OPTIONS", &path, &[host], "");
            assert_eq!(options.status, 204, "{name}: {path}: {options:?}");
            let allowed: BTreeSet<String> = options
                .header("allow")
                .unwrap()
                .split(", ")
                .map(str::to_owned)
                .collect();
            let mut expected = methods.clone();
            expected.insert("OPTIONS".to_owned());
            if methods.contains("GET") {
                expected.insert("HEAD".to_owned());
            }
            assert_eq!(allowed, expected, "{name}: {path}");
        }
        let nothing = ask(addr, "OPTIONS", "/v1/no-such-route", &[host], "");
        assert_eq!(nothing.status, 404, "{name}: {nothing:?}");
    }
}

#[test]
fn case_s7_a_foreign_name_a_foreign_page_and_another_content_type_are_refused_by_every_listener() {
    let listeners = Listeners::start();
    for component in &listeners.all {
        let (name, addr) = (&component.name, component.addr.as_str());
        for (template, methods) in routes(component) {
            let path = filled(&template);
            for method in &methods {
                for foreign in ["evil.example", "evil.example:7400"] {
                    let answer = ask(addr, method, &path, &[("host", foreign)], "");
                    assert_eq!(answer.status, 421, "{name}: {method} {path}: {answer:?}");
                }
                if method == "GET" {
                    continue;
                }
                let own = ("host", addr);
                let json = ("content-type", "application/json");
                for page in [
                    ("origin", "http://evil.example"),
                    ("origin", "null"),
                    ("sec-fetch-site", "cross-site"),
                ] {
                    let answer = ask(addr, method, &path, &[own, json, page], "{}");
                    assert_eq!(answer.status, 403, "{name}: {method} {path}: {answer:?}");
                }
                let answer = ask(addr, method, &path, &[own, ("content-type", "text/plain")], "{}");
                assert_eq!(answer.status, 415, "{name}: {method} {path}: {answer:?}");
            }
        }
        let port = addr.rsplit(':').next().unwrap();
        for own in [
            addr.to_owned(),
            format!("localhost:{port}"),
            "[::1]".to_owned(),
            "lock-server-1".to_owned(),
        ] {
            let answer = ask(addr, "GET", "/livez", &[("host", &own)], "");
            assert_eq!(answer.status, 200, "{name}: {own}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("lock.db").display());
    let named = [
        "--listen",
        "127.0.0.1:0",
        "--store",
        &store,
        "--set",
        "http.hosts=locks.example, *.svc.example",
    ];
    let named = Process::start(&[&["lock-server"][..], &named].concat());
    for (host, status) in [
        ("locks.example", 200),
        ("a.svc.example", 200),
        ("svc.example", 421),
        ("evil.example", 421),
    ] {
        assert_eq!(
            ask(&named.addr, "GET", "/livez", &[("host", host)], "").status,
            status,
            "{host}"
        );
    }
}

/// A lock server with a session of its own, whose heartbeat anybody can look at.
fn lock_server(settings: &[&str]) -> (Process, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("lock.db").display());
    let mut args = vec!["lock-server", "--listen", "127.0.0.1:0", "--store", &store];
    args.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
    (Process::start(&args), dir)
}

const JSON: (&str, &str) = ("content-type", "application/json");
const HOST: (&str, &str) = ("host", "localhost");

/// Opens a session over a connection that is kept.
fn open_session(stream: &mut TcpStream, metadata: &str) -> String {
    let body = json!({"owner": "w", "ttl_ms": 300_000, "metadata": metadata}).to_string();
    stream
        .write_all(request("POST", "/v1/sessions", &[HOST, JSON], &body).as_bytes())
        .unwrap();
    let answer = read(stream, true);
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["session_id"].as_str().unwrap().to_owned()
}

/// The most memory that a process has had, in MiB.
fn most_memory_mib(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

#[test]
fn case_s2_three_hundred_readers_who_read_nothing_cost_neither_memory_nor_a_lease() {
    let (server, _dir) = lock_server(&[]);
    let mut stream = connect(Ipv4Addr::LOCALHOST, &server.addr);
    let metadata = "m".repeat(4_000);
    for _ in 0..1_000 {
        open_session(&mut stream, &metadata);
    }
    let holder = open_session(&mut stream, "");
    let body = json!({"session_id": holder}).to_string();
    stream
        .write_all(request("POST", "/v1/locks/k/acquire", &[HOST, JSON], &body).as_bytes())
        .unwrap();
    let token = read(&mut stream, true).json()["token"].clone();
    assert!(token.is_u64());

    let list = request("GET", "/v1/sessions?limit=1000", &[HOST], "");
    let mut hungry = Vec::new();
    for _ in 0..300 {
        let mut reader = connect(Ipv4Addr::LOCALHOST, &server.addr);
        reader.write_all(list.as_bytes()).unwrap();
        hungry.push(reader);
    }
    // The client beside them, at the very address that they come from.
    let beat = request("POST", &format!("/v1/sessions/{holder}/heartbeat"), &[HOST], "");
    let mut took = Vec::new();
    for _ in 0..200 {
        let asked = Instant::now();
        stream.write_all(beat.as_bytes()).unwrap();
        let answer = read(&mut stream, true);
        took.push(asked.elapsed());
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["held"][0]["token"], token, "the lease was lost");
    }
    took.sort();
    println!("heartbeats beside them: p50 {:?}, p99 {:?}", took[100], took[198]);
    // Every one of them has been answered: a page, or that it is too much. Then nothing is to come any more.
    for reader in &mut hungry {
        let mut first = [0; 12];
        reader.read_exact(&mut first).unwrap();
        let first = String::from_utf8_lossy(&first).into_owned();
        assert!(first == "HTTP/1.1 200" || first == "HTTP/1.1 503", "{first}");
    }
    assert_eq!(ask(&server.addr, "GET", "/readyz", &[HOST], "").status, 200);
    let most = most_memory_mib(&server);
    assert!(most < 256, "{most} MiB");
    println!("most memory: {most} MiB");
}

#[test]
fn case_s2_a_page_has_a_bound_of_bytes_and_its_cursor_leads_to_every_item() {
    let (server, _dir) = lock_server(&[]);
    let mut stream = connect(Ipv4Addr::LOCALHOST, &server.addr);
    let metadata = "m".repeat(4_000);
    let opened: BTreeSet<String> = (0..300).map(|_| open_session(&mut stream, &metadata)).collect();
    let (mut found, mut pages, mut cursor) = (BTreeSet::new(), 0, String::new());
    loop {
        let path = format!("/v1/sessions?limit=1000{cursor}");
        stream.write_all(request("GET", &path, &[HOST], "").as_bytes()).unwrap();
        let answer = read(&mut stream, true);
        assert!(answer.body.len() < 600 * 1_024, "a page of {} bytes", answer.body.len());
        let page = answer.json();
        let items = page["items"].as_array().unwrap();
        found.extend(items.iter().map(|item| item["session_id"].as_str().unwrap().to_owned()));
        pages += 1;
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, opened);
    assert!(pages > 1);
}

#[test]
fn case_s2_a_reader_who_takes_nothing_is_cut() {
    let (server, _dir) = lock_server(&["http.write-timeout=1s"]);
    let mut stream = connect(Ipv4Addr::LOCALHOST, &server.addr);
    let metadata = "m".repeat(4_000);
    for _ in 0..200 {
        open_session(&mut stream, &metadata);
    }
    let mut reader = connect(Ipv4Addr::LOCALHOST, &server.addr);
    reader.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let list = request("GET", "/v1/sessions?limit=1000", &[HOST], "");
    let since = Instant::now();
    // It goes on asking and reads nothing: once the kernel's buffers are full, the server's writes make no progress.
    loop {
        assert!(since.elapsed() < LONG, "it was never cut");
        match reader.write(list.as_bytes()) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
                    "{error}"
                );
                break;
            }
        }
    }
    // What it held is free again.
    assert_eq!(
        ask(&server.addr, "GET", "/v1/sessions?limit=1000", &[HOST], "").status,
        200
    );
}

/// Opens streams of server-sent events until one is refused; how many there were, and the refusal.
fn streams(from: Ipv4Addr, addr: &str, path: &str, kept: &mut Vec<TcpStream>) -> (usize, Option<Answer>) {
    for count in 0..2_000 {
        let mut stream = connect(from, addr);
        stream.write_all(request("GET", path, &[HOST], "").as_bytes()).unwrap();
        let answer = read(&mut stream, true);
        if answer.status != 200 {
            return (count, Some(answer));
        }
        kept.push(stream);
        if count >= 20 && from != Ipv4Addr::LOCALHOST {
            return (count, None);
        }
    }
    panic!("{addr} refuses no stream");
}

const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

#[test]
fn case_s6_watches_waiters_and_streams_of_one_caller_leave_room_for_the_next() {
    let (server, _dir) = lock_server(&["lock.acquire.waiters-max=4"]);
    let mut kept = Vec::new();
    let (watches, refused) = streams(Ipv4Addr::LOCALHOST, &server.addr, "/v1/locks/k/watch", &mut kept);
    let refused = refused.unwrap();
    assert_eq!((watches, refused.status), (500, 503), "{refused:?}");
    let problem = refused.json();
    assert_eq!(problem["code"], "OVERLOADED");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("watches") && detail.contains("one caller") && detail.contains("500"),
        "{detail}"
    );
    assert!(refused.header("retry-after").is_some());
    let (_, refused) = streams(OTHER, &server.addr, "/v1/locks/k/watch", &mut kept);
    assert!(refused.is_none(), "another caller is refused: {refused:?}");
    drop(kept);

    // One caller has half of a key's queue.
    let mut stream = connect(Ipv4Addr::LOCALHOST, &server.addr);
    let holder = open_session(&mut stream, "");
    let acquire = |from: Ipv4Addr, session: &str, wait_ms: u64| {
        let mut stream = connect(from, &server.addr);
        let body = json!({"session_id": session, "wait_ms": wait_ms}).to_string();
        stream
            .write_all(request("POST", "/v1/locks/q/acquire", &[HOST, JSON], &body).as_bytes())
            .unwrap();
        stream
    };
    let grant = read(&mut acquire(Ipv4Addr::LOCALHOST, &holder, 0), true);
    assert_eq!(grant.status, 200, "{grant:?}");
    let sessions: Vec<String> = (0..4).map(|_| open_session(&mut stream, "")).collect();
    let waiting = |count: u64| {
        common::until("they wait", || {
            ask(&server.addr, "GET", "/v1/locks/q", &[HOST], "").json()["waiters"] == count
        });
    };
    let _one = acquire(Ipv4Addr::LOCALHOST, &sessions[0], 30_000);
    let _two = acquire(Ipv4Addr::LOCALHOST, &sessions[1], 30_000);
    waiting(2);
    let refused = read(&mut acquire(Ipv4Addr::LOCALHOST, &sessions[2], 30_000), true);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("lock.acquire.waiters-max"), "{refused:?}");
    let _other = acquire(OTHER, &sessions[3], 30_000);
    waiting(3);
}

#[test]
fn case_s6_sixty_four_streams_of_one_caller_leave_the_console_to_the_next() {
    let (locks, _dir) = lock_server(&[]);
    let nobody = "http://127.0.0.1:1";
    let console = [
        "--lock-server",
        &locks.url(),
        "--payments",
        nobody,
        "--rail-proxy",
        nobody,
    ];
    let console = Process::start(&[&["console", "--listen", "127.0.0.1:0"][..], &console].concat());
    let mut kept = Vec::new();
    let (streamed, refused) = streams(Ipv4Addr::LOCALHOST, &console.addr, "/live/locks", &mut kept);
    let refused = refused.unwrap();
    assert_eq!((streamed, refused.status), (32, 503), "{refused:?}");
    assert!(refused.body.contains("console.viewers-max"), "{refused:?}");
    // Pages are loaded by no viewer, and another caller looks on.
    assert_eq!(ask(&console.addr, "GET", "/locks", &[HOST], "").status, 200);
    let (_, refused) = streams(OTHER, &console.addr, "/live/locks", &mut kept);
    assert!(refused.is_none(), "{refused:?}");
}
