//! Labels are closed sets (C4.2, NFR-09): whatever names come from outside, none of them is ever in a metric, and none of
//! them adds a series. Names, types and labels against their document: `scripts/check-prometheus`.

#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Process, dlock, stdout, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

/// In every name that this test makes up, and in no name of ours.
const MARK: &str = "zq7319";
/// A token that no store here mints.
const TOKEN: &str = "7319731973197";
/// How many different names each place is given.
const NAMES: usize = 25;
/// Names of messages, kinds of actors, outcomes; what there is today is half of it.
const NAMES_IN_THE_CODE_MAX: usize = 64;

/// One request as it stands on the wire; its status, and its body where that is JSON.
fn send(addr: &str, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> (u16, Value) {
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!(
        "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(common::LONG)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    // Chunked bodies begin with their length; what is asked for here is found behind it.
    let json = body.find('{').and_then(|at| {
        let mut values = serde_json::Deserializer::from_str(&body[at..]).into_iter();
        values.next()?.ok()
    });
    (status, json.unwrap_or(Value::Null))
}

/// Every series of a component with its labels: `name{a="b"}`.
fn series(addr: &str) -> BTreeSet<String> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(common::LONG)).unwrap();
    // Without chunks, so that lines are whole.
    let request = format!("GET /metrics HTTP/1.0\r\nhost: {addr}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let found: BTreeSet<String> = answer
        .split_once("\r\n\r\n")
        .unwrap()
        .1
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()))
        .collect();
    assert!(found.len() > 50, "{answer}");
    found
}

/// The values that each label has. Values of ours hold no quotation mark.
fn values(series: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for labels in series.iter().filter_map(|one| one.split_once('{')) {
        let mut parts = labels.1.trim_end_matches('}').split('"');
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            let name = name.trim_start_matches(',').trim_end_matches('=');
            found.entry(name.to_owned()).or_default().insert(value.to_owned());
        }
    }
    found
}

/// The whole system, with names of its own that no metric may carry.
struct System {
    lock: Process,
    payments: Process,
    proxy: Process,
    executor: Process,
    _stub: Process,
    _dir: tempfile::TempDir,
}

impl System {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("sqlite:{}", dir.path().join(name).display());
        let any = "127.0.0.1:0";
        let lock = Process::start(&["lock-server", "--listen", any, "--store", &at("lock.db")]);
        let stub = Process::start(&["rail-stub", "--listen", any]);
        let payments = Process::start(&["payment-resource", "--listen", any, "--store", &at("pay")]);
        let proxy = Process::start(&[
            "rail-proxy",
            "--listen",
            any,
            "--store",
            &at("pay"),
            "--rail",
            &stub.url(),
        ]);
        let executor = Process::start(&[
            "payout-executor",
            "--listen",
            any,
            "--lock-server",
            &lock.url(),
            "--payments",
            &payments.url(),
            "--rail-proxy",
            &proxy.url(),
            "--owner",
            &format!("{MARK}-worker"),
        ]);
        Self {
            lock,
            payments,
            proxy,
            executor,
            _stub: stub,
            _dir: dir,
        }
    }

    fn addresses(&self) -> [(&str, &str); 4] {
        [&self.lock, &self.payments, &self.proxy, &self.executor].map(|one| (one.name.as_str(), one.addr.as_str()))
    }

    /// Gives every place that takes a name from outside this one.
    fn tell(&self, n: usize) {
        let name = format!("{MARK}-{n}");
        let name = name.as_str();
        for (_, addr) in self.addresses() {
            Self::odd_requests(addr, name);
        }
        self.locks(name);
        self.payouts(name);
        self.rail(name);
    }

    /// Paths, methods and headers that nobody serves.
    fn odd_requests(addr: &str, name: &str) {
        let get = |path: &str| {
            send(
                addr,
                "GET",
                path,
                &[("X-Request-Id", name), ("traceparent", name)],
                None,
            )
            .0
        };
        assert_eq!(get(&format!("/{name}/{name}?{name}={name}")), 404);
        assert_eq!(get(&format!("/v1/{name}")), 404);
        assert_eq!(get(&format!("/docs/errors/{name}")), 404);
        assert_eq!(send(addr, &name.to_uppercase(), "/readyz", &[], None).0, 405);
        assert_eq!(send(addr, &name.to_uppercase(), &format!("/{name}"), &[], None).0, 404);
    }

    fn locks(&self, name: &str) {
        let addr = &self.lock.addr;
        let body = json!({"owner": name, "metadata": {name: name}});
        let (status, session) = send(addr, "POST", "/v1/sessions", &[], Some(&body));
        assert_eq!(status, 201, "{session}");
        let session = session["session_id"].as_str().unwrap();
        let key = format!("{name}%2F{name}%20{name}");
        let body = json!({"session_id": session, "request_id": name, "metadata": {name: name}});
        let (status, grant) = send(addr, "POST", &format!("/v1/locks/{key}/acquire"), &[], Some(&body));
        assert_eq!(status, 200, "{grant}");
        let other = json!({"session_id": name});
        assert_eq!(
            send(addr, "POST", &format!("/v1/locks/{key}/acquire"), &[], Some(&other)).0,
            404
        );
        for path in [format!("/v1/locks/{key}"), format!("/v1/locks/{key}/history")] {
            assert_eq!(send(addr, "GET", &path, &[], None).0, 200);
        }
        assert_eq!(send(addr, "GET", &format!("/v1/sessions/{name}"), &[], None).0, 404);
        assert_eq!(
            send(
                addr,
                "POST",
                &format!("/v1/sessions/{name}/heartbeat"),
                &[],
                Some(&json!({}))
            )
            .0,
            404
        );
        let release = format!("/v1/locks/{key}?session_id={session}");
        assert_eq!(
            send(addr, "DELETE", &release, &[("X-Fencing-Token", TOKEN)], None).0,
            409
        );
        let revoke = json!({"revoke_token": grant["token"], "reason": format!("{name} is in the way")});
        let path = format!("/v1/locks/{key}/revoke");
        assert_eq!(send(addr, "POST", &path, &[("X-Operator", name)], Some(&revoke)).0, 200);
    }

    /// One payout that the executor settles, and one that was claimed from here.
    fn payouts(&self, name: &str) {
        let addr = &self.payments.addr;
        for (account, payout) in [("paid", "P"), ("claimed", "C")] {
            let (account, payout) = (format!("{name}-{account}"), format!("{name}-{payout}"));
            let body = json!({"account_id": account, "currency": "EUR", "opening_balance_minor": 1_000});
            assert_eq!(send(addr, "POST", "/v1/accounts", &[], Some(&body)).0, 201);
            if account.ends_with("claimed") {
                let fence = format!("/v1/accounts/{account}/fence");
                assert_eq!(send(addr, "POST", &fence, &[("X-Fencing-Token", TOKEN)], None).0, 200);
            }
            let body = json!({
                "payout_id": payout, "account_id": account, "amount_minor": 100, "currency": "EUR",
                "creditor": {"name": name, "account": name}, "reference": name,
            });
            let headers = [("X-Idempotency-Key", payout.as_str())];
            let (status, made) = send(addr, "POST", "/v1/payouts", &headers, Some(&body));
            assert_eq!(status, 201, "{made}");
        }
        let claim = format!("/v1/payouts/{name}-C/claim");
        let stale = [("X-Fencing-Token", "1"), ("X-Actor", name)];
        assert_eq!(send(addr, "POST", &claim, &stale, Some(&json!({}))).0, 409);
        let claimed = [("X-Fencing-Token", TOKEN), ("X-Actor", name)];
        assert_eq!(send(addr, "POST", &claim, &claimed, Some(&json!({}))).0, 200);
        assert_eq!(send(addr, "GET", &format!("/v1/payouts/{name}"), &[], None).0, 404);
    }

    /// The payout that was claimed from here is sent; what is stale, or nobody knows, is refused.
    fn rail(&self, name: &str) {
        let addr = &self.proxy.addr;
        let body = json!({
            "payout_id": format!("{name}-C"), "account_id": format!("{name}-claimed"), "amount_minor": 100,
            "currency": "EUR", "creditor": {"name": name, "account": name},
        });
        let path = "/v1/rail/submissions";
        let key = format!("{name}-C");
        let headers = [
            ("X-Fencing-Token", TOKEN),
            ("X-Idempotency-Key", key.as_str()),
            ("X-Actor", name),
        ];
        let (status, sent) = send(addr, "POST", path, &headers, Some(&body));
        assert_eq!(status, 200, "{sent}");
        let fence = format!("/v1/rail/accounts/{name}-claimed/fence");
        assert_eq!(send(addr, "POST", &fence, &[("X-Fencing-Token", "1")], None).0, 409);
        assert_eq!(send(addr, "GET", &format!("{path}/{name}"), &[], None).0, 404);
        assert_eq!(
            send(addr, "GET", &format!("/v1/rail/high-water/{name}"), &[], None).0,
            200
        );
        let ack = json!({
            "client_reference": name, "outcome": "ACKED", "rail_reference": name, "amount_minor": 1, "currency": "EUR",
        });
        assert_eq!(send(addr, "POST", "/v1/rail/acks", &[], Some(&ack)).0, 404);
    }

    /// Waits until the executor has paid this many.
    fn paid(&self, wanted: usize) {
        until("the executor has paid", || {
            let query = "/v1/payouts?state=POSTED&limit=1000";
            let (_, list) = send(&self.payments.addr, "GET", query, &[], None);
            list["items"].as_array().is_some_and(|items| items.len() >= wanted)
        });
    }
}

#[test]
fn names_from_outside_are_in_no_metric_and_add_no_series() {
    let system = System::start();
    system.tell(0);
    system.paid(1);
    // Twice: a scrape is a request, and counted after its answer.
    let scrape = || system.addresses().map(|(_, addr)| values(&series(addr)));
    let (_, before) = (scrape(), scrape());
    for n in 1..=NAMES {
        system.tell(n);
    }
    system.paid(1 + NAMES);
    for ((component, addr), before) in system.addresses().into_iter().zip(before) {
        let all = series(addr);
        let told = |one: &&String| one.to_lowercase().contains(MARK) || one.contains(TOKEN);
        let leaked: Vec<&String> = all.iter().filter(told).collect();
        assert!(leaked.is_empty(), "{component} tells names from outside: {leaked:?}");
        for (label, now) in values(&all) {
            if ["message", "actor", "outcome"].contains(&label.as_str()) {
                // What came for the first time (a message by a timer, a refusal by a race) is none that was made up.
                let ours = |value: &String| value.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
                assert!(
                    now.len() <= NAMES_IN_THE_CODE_MAX && now.iter().all(ours),
                    "{component} {label}: {now:?}"
                );
            } else {
                assert_eq!(before.get(&label), Some(&now), "{component}: {label} has grown");
            }
        }
    }
}

/// What a scrape tells of a component and what its binary tells of itself are one thing, so that a rollout can be followed by either.
#[test]
fn a_component_and_its_binary_name_the_same_commit() {
    let said = dlock().args(["version", "-o", "json"]).output().unwrap();
    let version: Value = serde_json::from_str(&stdout(&said)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("lock.db").display());
    let server = Process::start(&["lock-server", "--listen", "127.0.0.1:0", "--store", &store]);
    let all = series(&server.addr);
    let build: Vec<&String> = all.iter().filter(|one| one.starts_with("build_info{")).collect();
    let commit = format!("commit=\"{}\"", version["commit"].as_str().unwrap());
    assert!(
        build.len() == 1 && build[0].contains(&commit),
        "{build:?} and not {commit}"
    );
}
