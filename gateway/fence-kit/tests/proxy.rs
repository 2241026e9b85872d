//! The fencing proxy as a process, before a service that knows nothing of dlock.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

mod support;

use nix::sys::signal::Signal;
use serde_json::json;
use std::time::Duration;
use support::process::Process;
use support::service::Service;
use support::{get, send, until, wire, write};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Not a test: the proxy as a process of its own, when this binary is started again as one.
#[test]
fn child() {
    support::process::child();
}

async fn world(more: serde_json::Value) -> (TempDir, Service, Process) {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start().await;
    let proxy = Process::start(directory.path(), &service.url(), more).await;
    (directory, service, proxy)
}

/// Sends a write and does not wait for its answer.
async fn begin(proxy: &Process, path: &str, token: u64) -> TcpStream {
    let mut stream = TcpStream::connect(&proxy.listen).await.unwrap();
    let request = wire("POST", path, &[("x-fencing-token", &token.to_string())], Some(b"x"));
    stream.write_all(&request).await.unwrap();
    stream
}

#[tokio::test]
async fn the_headers_are_read_by_the_products_rules_and_a_stale_token_goes_no_further() {
    let (_directory, service, proxy) = world(json!({})).await;
    let post = async |headers: &[(&str, &str)]| {
        let request = wire("POST", "/accounts/A/x", headers, Some(b"x"));
        let answer = send(&proxy.listen, &request).await.unwrap();
        assert!(
            answer.head.contains("content-type: application/problem+json"),
            "{answer:?}"
        );
        (answer.status, answer.code())
    };
    assert_eq!(post(&[]).await, (400, "FENCING_TOKEN_REQUIRED".to_owned()));
    let invalid = (400, "FENCING_TOKEN_INVALID".to_owned());
    for bad in ["", "0", "05", "+5", "-5", "5.0", "5,6", "x", "9007199254740992"] {
        assert_eq!(post(&[("x-fencing-token", bad)]).await, invalid, "{bad:?}");
    }
    assert_eq!(
        post(&[("x-fencing-token", "5"), ("X-Fencing-Token", "5")]).await,
        invalid
    );
    let path = wire("POST", "/accounts//A", &[("x-fencing-token", "5")], Some(b"x"));
    assert_eq!(send(&proxy.listen, &path).await.unwrap().code(), "INVALID_REQUEST");
    assert!(service.seen().is_empty());

    let passed = write(&proxy.listen, "/accounts/A/x?a=%20b", 5).await;
    assert_eq!((passed.status, passed.text().as_str()), (200, "done 1"));
    let stale = write(&proxy.listen, "/accounts/A/y", 4).await;
    let problem = stale.json();
    assert_eq!(
        (stale.status, stale.code(), stale.reason()),
        (409, "FENCED_OUT".to_owned(), "stale".to_owned())
    );
    assert_eq!(
        (problem["presented_token"].as_u64(), problem["highest_token"].as_u64()),
        (Some(4), Some(5))
    );
    assert_eq!(problem["trace_id"].as_str().unwrap().len(), 32);
    // The same holder goes on; another key has its own mark.
    assert_eq!(write(&proxy.listen, "/accounts/A/z", 5).await.status, 200);
    assert_eq!(write(&proxy.listen, "/accounts/B/z", 1).await.status, 200);
    let seen: Vec<_> = service.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(seen, ["/accounts/A/x?a=%20b", "/accounts/A/z", "/accounts/B/z"]);
    // Reads pass without a token, unless they might be something else.
    assert_eq!(get(&proxy.listen, "/anything").await.status, 200);
    let disguised = wire("GET", "/accounts/A", &[("x-http-method-override", "DELETE")], None);
    assert_eq!(
        send(&proxy.listen, &disguised).await.unwrap().code(),
        "FENCING_TOKEN_REQUIRED"
    );
    assert_eq!(proxy.metric("fence_requests_total{outcome=\"fenced_out\"}").await, 1.0);
    assert_eq!(proxy.metric("fence_requests_total{outcome=\"answered\"}").await, 3.0);
    for probe in [
        "/livez",
        "/readyz",
        "/version",
        "/openapi.json",
        "/docs/errors/IN_DOUBT",
    ] {
        assert_eq!(get(&proxy.admin, probe).await.status, 200, "{probe}");
    }
}

#[tokio::test]
async fn a_key_may_come_from_a_header_and_reads_may_be_fenced() {
    let (_directory, service, proxy) = world(json!({ "segments": null, "fence_reads": true })).await;
    let ask = async |headers: &[(&str, &str)]| {
        let answer = send(&proxy.listen, &wire("GET", "/x", headers, None)).await.unwrap();
        (
            answer.status,
            if answer.status == 200 {
                String::new()
            } else {
                answer.code()
            },
        )
    };
    assert_eq!(
        ask(&[("x-fencing-token", "5")]).await,
        (400, "INVALID_REQUEST".to_owned())
    );
    assert_eq!(
        ask(&[("x-fence-key", "k")]).await,
        (400, "FENCING_TOKEN_REQUIRED".to_owned())
    );
    assert_eq!(ask(&[("x-fence-key", "k"), ("x-fencing-token", "5")]).await.0, 200);
    assert_eq!(
        ask(&[("x-fence-key", "k"), ("x-fencing-token", "4")]).await,
        (409, "FENCED_OUT".to_owned())
    );
    assert!(service.seen()[0].head.contains("x-fence-key: k"));
}

#[tokio::test]
async fn case_s11_no_header_leads_the_service_to_another_path_than_the_keys() {
    let (_directory, service, proxy) = world(json!({})).await;
    let headers = [
        ("x-fencing-token", "7"),
        ("X-Original-URL", "/accounts/B"),
        ("X-Rewrite-URL", "/accounts/B"),
        ("X_Original_URL", "/accounts/B"),
        ("X-Forwarded-Uri", "/accounts/B"),
        ("Destination", "/accounts/B"),
        ("cookie", "a=1"),
    ];
    for method in ["PUT", "GET"] {
        let answer = send(&proxy.listen, &wire(method, "/accounts/A", &headers, None))
            .await
            .unwrap();
        assert_eq!(answer.status, 200, "{method}: {answer:?}");
        let seen = service.seen().pop().unwrap();
        assert!(
            !seen.head.contains("/accounts/B") && seen.head.contains("cookie: a=1"),
            "{}",
            seen.head
        );
    }
    // A read that says in a header that it is none needs a token, however the name is written.
    let disguised = wire("GET", "/accounts/A", &[("X_HTTP_Method_Override", "PUT")], None);
    let answer = send(&proxy.listen, &disguised).await.unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (400, "FENCING_TOKEN_REQUIRED"));
}

#[tokio::test]
async fn what_travels_on_is_what_was_asked_and_answered_and_nothing_of_one_connection() {
    let (_directory, service, proxy) = world(json!({ "body_limit": 3 << 20 })).await;
    let large = vec![b'y'; 1 << 20];
    let headers = [
        ("x-fencing-token", "7"),
        ("x_fencing_token", "9"),
        ("te", "trailers"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=1"),
        ("cookie", "a=1"),
        ("x-forwarded-for", "10.0.0.1"),
    ];
    let mut request = wire("PUT", "/accounts/A", &headers, Some(&large));
    let text = String::from_utf8(std::mem::take(&mut request)).unwrap();
    let request = text.replacen("connection: close", "connection: close, x-hop, x-fencing-token", 1);
    let answer = send(&proxy.listen, request.as_bytes()).await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "done 1048576"));
    assert!(
        answer.head.contains("x-of-the-service: yes") && !answer.head.contains("x-hop"),
        "{}",
        answer.head
    );
    let seen = service.seen().pop().unwrap();
    assert_eq!((seen.method.as_str(), seen.body.len()), ("PUT", 1 << 20));
    for expected in [
        "x-fencing-token: 7",
        "cookie: a=1",
        "x-forwarded-for: 10.0.0.1, 127.0.0.1",
        "x-forwarded-host: shop.example",
        "via: 1.1 dlock-fence",
        "content-length: 1048576",
    ] {
        assert_eq!(seen.head.matches(expected).count(), 1, "{expected} in {}", seen.head);
    }
    for dropped in ["x_fencing_token", "x-hop", "keep-alive", "\nte: ", "user-agent"] {
        assert!(!seen.head.contains(dropped), "{dropped} in {}", seen.head);
    }
    // Without a length, in pieces; an answer in pieces.
    let mut chunked = wire(
        "POST",
        "/accounts/A?do=big",
        &[("x-fencing-token", "7"), ("transfer-encoding", "chunked")],
        None,
    );
    for _ in 0..8 {
        chunked.extend_from_slice(b"8000\r\n");
        chunked.extend_from_slice(&[b'c'; 0x8000]);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let answer = send(&proxy.listen, &chunked).await.unwrap();
    assert!(answer.text() == "z".repeat(64 * 0x4000), "an answer in pieces");
    assert_eq!(service.seen().pop().unwrap().body.len(), 8 * 0x8000);
    // A HEAD has the length of what it does not have.
    let head = send(&proxy.listen, &wire("HEAD", "/accounts/A", &[], None))
        .await
        .unwrap();
    assert!(
        head.head.contains("content-length: 6") && head.raw.is_empty(),
        "{head:?}"
    );
    // Too large: known at once, and nothing is sent.
    let before = service.seen().len();
    let over = wire(
        "POST",
        "/accounts/A",
        &[("x-fencing-token", "7")],
        Some(&vec![b'y'; (3 << 20) + 1]),
    );
    assert_eq!(
        send(&proxy.listen, &over).await.map_or(413, |answer| answer.status),
        413
    );
    assert_eq!(service.seen().len(), before);
    assert!(proxy.open().await.is_empty());
}

#[tokio::test]
async fn a_newer_token_waits_until_the_older_request_is_answered_although_its_caller_has_gone() {
    let (_directory, service, proxy) = world(json!({})).await;
    let caller = begin(&proxy, "/accounts/A/slow?gate", 5).await;
    until("it arrived", async || service.count("/accounts/A/slow") == 1).await;
    drop(caller);
    let refused = write(&proxy.listen, "/accounts/A/new", 6).await;
    let problem = refused.json();
    assert_eq!((refused.status, refused.code()), (409, "IN_DOUBT".to_owned()));
    assert_eq!(
        (
            refused.reason().as_str(),
            problem["in_flight"].as_bool(),
            problem["open_token"].as_u64()
        ),
        ("older_request_open", Some(true), Some(5))
    );
    // The older holder was replaced: it begins nothing any more.
    let old = write(&proxy.listen, "/accounts/A/more", 5).await;
    assert_eq!(
        (old.code().as_str(), old.json()["highest_token"].as_u64()),
        ("FENCED_OUT", Some(6))
    );
    // Nobody clears what is on its way.
    let cleared = proxy
        .clear(&json!({ "key": "accounts/A", "reason": "I feel like it" }))
        .await;
    assert_eq!((cleared.status, cleared.code()), (409, "CONFLICT".to_owned()));
    assert_eq!(proxy.metric("fence_requests_in_flight").await, 1.0);
    service.open_gate();
    // Its end is waited for though its caller has gone; nobody else has to do anything.
    until("the newer one passes", async || {
        write(&proxy.listen, "/accounts/A/new", 6).await.status == 200
    })
    .await;
    let effects: Vec<_> = service.effects().into_iter().map(|(_, token)| token).collect();
    assert_eq!(effects, [5, 6]);
    assert!(proxy.open().await.is_empty());
}

#[tokio::test]
async fn killed_with_a_request_on_its_way_the_proxy_knows_and_an_operator_clears() {
    let (directory, service, mut proxy) = world(json!({})).await;
    let _caller = begin(&proxy, "/accounts/A/slow?gate", 5).await;
    until("it arrived", async || service.count("/accounts/A/slow") == 1).await;
    proxy.kill();
    let proxy = Process::start(directory.path(), &service.url(), json!({})).await;
    let second = Process::try_start(directory.path(), &service.url(), json!({})).await;
    assert!(second.is_err_and(|error| error.contains("in use by another process")));
    let refused = write(&proxy.listen, "/accounts/A/new", 6).await;
    assert_eq!(
        (refused.code().as_str(), refused.json()["in_flight"].as_bool()),
        ("IN_DOUBT", Some(false))
    );
    let open = proxy.open().await;
    assert_eq!(open.len(), 1);
    assert_eq!(
        (
            open[0]["key"].as_str(),
            open[0]["token"].as_u64(),
            open[0]["what"].as_str(),
            open[0]["cause"].as_str()
        ),
        (Some("accounts/A"), Some(5), Some("POST /accounts/A/slow"), None)
    );
    let mark = get(&proxy.admin, "/v1/fence/mark?key=accounts%2FA").await.json();
    assert_eq!(
        (mark["mark"].as_u64(), mark["announced"].as_u64(), mark["open"].as_u64()),
        (Some(5), Some(6), Some(1))
    );
    let unknown = get(&proxy.admin, "/v1/fence/mark?key=nobody").await.json();
    assert!(unknown["mark"].is_null() && unknown["open"] == 0);
    assert_eq!(get(&proxy.admin, "/v1/fence/mark?key=").await.code(), "INVALID_REQUEST");
    assert_eq!(
        get(&proxy.admin, "/v1/fence/open?limit=0").await.code(),
        "INVALID_REQUEST"
    );
    assert_eq!(proxy.metric("fence_requests_in_doubt").await, 1.0);
    // The service gets to it after all; then, and not before, an operator may say so.
    service.open_gate();
    assert!(service.settled().await);
    let short = proxy.clear(&json!({ "key": "accounts/A", "reason": "short" })).await;
    assert_eq!((short.status, short.code()), (400, "INVALID_REQUEST".to_owned()));
    let request = wire(
        "POST",
        "/v1/fence/clear",
        &[("content-type", "application/json")],
        Some(b"{}"),
    );
    assert_eq!(
        send(&proxy.admin, &request).await.unwrap().status,
        400,
        "without a name"
    );
    let other = proxy
        .clear(&json!({ "key": "accounts/A", "reason": "another one", "ids": ["no such"] }))
        .await;
    assert_eq!(other.json()["cleared"].as_array().unwrap().len(), 0);
    let cleared = proxy
        .clear(&json!({ "key": "accounts/A", "reason": "seen in its book", "ids": [open[0]["id"]] }))
        .await;
    assert_eq!(cleared.json()["cleared"][0]["id"], open[0]["id"]);
    assert_eq!(write(&proxy.listen, "/accounts/A/new", 6).await.status, 200);
    assert_eq!(proxy.metric("fence_requests_in_doubt").await, 0.0);
    assert_eq!(service.stale(), 0);
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_in_doubt_and_nothing_is_sent_twice() {
    let (_directory, service, proxy) = world(json!({ "timeout_ms": 3_000 })).await;
    for (how, key) in [("do=close", "close"), ("do=interim", "interim"), ("hold=20000", "slow")] {
        let path = format!("/accounts/{key}/x?{how}");
        let answer = write(&proxy.listen, &path, 5).await;
        assert_eq!(
            (answer.status, answer.code(), answer.reason()),
            (409, "IN_DOUBT".to_owned(), "no_answer".to_owned()),
            "{how}"
        );
        assert_eq!(answer.json()["retryable"], false);
        assert_eq!(
            write(&proxy.listen, &format!("/accounts/{key}/y"), 6).await.reason(),
            "older_request_open",
            "{how}"
        );
    }
    // Where the head has gone already, the caller finds the body cut off.
    let cut = write(&proxy.listen, "/accounts/cut/x?do=truncated", 5).await;
    assert!(cut.status == 200 && cut.raw.len() < 100, "{cut:?}");
    assert_eq!(
        write(&proxy.listen, "/accounts/cut/y", 6).await.reason(),
        "older_request_open"
    );
    let open = proxy.open().await;
    assert_eq!(open.len(), 4);
    assert!(
        open.iter()
            .all(|open| open["cause"].is_string() && open["in_flight"] == false),
        "{open:?}"
    );
    // Any final answer is an answer: a redirect goes to the caller, an error too.
    let moved = write(&proxy.listen, "/accounts/moved/x?do=redirect", 5).await;
    assert!(
        moved.status == 307 && moved.head.contains("location: /accounts/elsewhere"),
        "{moved:?}"
    );
    assert_eq!(write(&proxy.listen, "/accounts/moved/x?do=error", 6).await.status, 500);
    assert_eq!(write(&proxy.listen, "/accounts/moved/y", 7).await.status, 200);
    for key in ["close", "interim", "slow", "cut"] {
        assert_eq!(service.count(&format!("/accounts/{key}/x")), 1, "{key}");
        assert_eq!(service.count(&format!("/accounts/{key}/y")), 0, "{key}");
    }
    assert_eq!(service.count("/accounts/elsewhere"), 0);
    // A read that is not answered may be repeated.
    let read = get(&proxy.listen, "/accounts/A?do=close").await;
    assert_eq!((read.status, read.code()), (503, "BACKEND_UNAVAILABLE".to_owned()));
}

/// A chunked answer that was cut off was given to its caller with an end of the proxy's own, and the key went on.
#[tokio::test]
async fn a_chunked_answer_without_its_last_chunk_is_no_answer() {
    let (_directory, service, proxy) = world(json!({ "timeout_ms": 10_000 })).await;
    for how in ["unchunked", "half-chunk", "half-end", "no-chunk"] {
        let cut = write(&proxy.listen, &format!("/accounts/{how}/x?do={how}"), 5).await;
        assert!(!cut.raw.ends_with(b"0\r\n\r\n"), "{how}: {cut:?}");
        assert_eq!(
            write(&proxy.listen, &format!("/accounts/{how}/y"), 6).await.reason(),
            "older_request_open",
            "{how}"
        );
        assert_eq!(service.count(&format!("/accounts/{how}/y")), 0, "{how}");
    }
    for round in 0..20 {
        let whole = write(&proxy.listen, &format!("/accounts/whole/{round}?do=chunked"), 5 + round).await;
        assert_eq!((whole.status, whole.text().as_str()), (200, "abc"));
    }
}

/// An HTTP/1.1 answer whose body ends with its connection was given to its caller without the body.
#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_passed_on() {
    let (_directory, service, proxy) = world(json!({ "timeout_ms": 10_000 })).await;
    for how in [
        "until-close",
        "until-close-1.0",
        "until-close-identity",
        "until-close-upgrade",
    ] {
        let path = format!("/accounts/{how}/x?do={how}");
        for answer in [write(&proxy.listen, &path, 5).await, get(&proxy.listen, &path).await] {
            assert_eq!(answer.text(), "hello body\n", "{how}: {answer:?}");
        }
        assert_eq!(
            write(&proxy.listen, &format!("/accounts/{how}/y"), 6).await.status,
            200,
            "{how}"
        );
        assert_eq!(service.count(&format!("/accounts/{how}/x")), 2, "{how}");
        // Nothing is read of what a HEAD cannot have.
        let head = send(&proxy.listen, &wire("HEAD", &path, &[], None)).await.unwrap();
        assert!(head.raw.is_empty(), "{how}: {head:?}");
    }
    let nothing = write(&proxy.listen, "/accounts/nothing/x?do=nothing", 5).await;
    assert!(nothing.status == 200 && nothing.raw.is_empty(), "{nothing:?}");
}

/// The first head was taken for the answer.
#[tokio::test]
async fn interim_answers_are_passed_over() {
    let (_directory, _service, proxy) = world(json!({ "timeout_ms": 10_000 })).await;
    for how in ["interims", "trickle"] {
        let path = format!("/accounts/{how}/x?do={how}");
        for answer in [write(&proxy.listen, &path, 5).await, get(&proxy.listen, &path).await] {
            assert_eq!(answer.status, 201, "{how}: {answer:?}");
            assert!(!answer.head.contains("link"), "{how}: {answer:?}");
            assert_eq!(answer.text(), "hello body\n", "{how}: {answer:?}");
        }
        assert_eq!(
            write(&proxy.listen, &format!("/accounts/{how}/y"), 6).await.status,
            200,
            "{how}"
        );
    }
    // What was not asked for is no answer.
    let switched = write(&proxy.listen, "/accounts/switch/x?do=switch", 5).await;
    assert_eq!((switched.status, switched.reason()), (409, "no_answer".to_owned()));
}

/// Bytes behind a head that can have no body reached the caller, who took them for its next answer.
#[tokio::test]
async fn an_answer_that_can_have_no_body_has_none() {
    let (_directory, _service, proxy) = world(json!({ "timeout_ms": 10_000 })).await;
    for (how, status) in [
        ("no-content", "204"),
        ("no-content-chunked", "204"),
        ("not-modified", "304"),
        ("not-modified-body", "304"),
    ] {
        for method in ["POST", "GET", "HEAD"] {
            let mut stream = TcpStream::connect(&proxy.listen).await.unwrap();
            let path = format!("/accounts/{how}/x?do={how}");
            let body = (method == "POST").then_some(b"x".as_slice());
            let first = wire(method, &path, &[("x-fencing-token", "5")], body);
            let first = String::from_utf8(first).unwrap().replace("connection: close\r\n", "");
            stream.write_all(first.as_bytes()).await.unwrap();
            // The second waits until what does not belong there would have arrived.
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream.write_all(&wire("GET", "/accounts/A", &[], None)).await.unwrap();
            let mut raw = Vec::new();
            stream.read_to_end(&mut raw).await.unwrap();
            let text = String::from_utf8_lossy(&raw).to_ascii_lowercase();
            let (one, two) = text
                .split_once("\r\n\r\n")
                .unwrap_or_else(|| panic!("{how} {method}: {text:?}"));
            assert!(
                one.starts_with(&format!("http/1.1 {status} ")),
                "{how} {method}: {text}"
            );
            assert!(!one.contains("transfer-encoding"), "{how} {method}: {text}");
            assert_eq!(
                one.contains("content-length"),
                status == "304",
                "{how} {method}: {text}"
            );
            assert!(
                two.starts_with("http/1.1 200 ok\r\n") && two.ends_with("\r\n\r\ndone 0"),
                "{how} {method}: {text}"
            );
            assert!(!text.contains("forged"), "{how} {method}: {text}");
        }
        assert_eq!(
            write(&proxy.listen, &format!("/accounts/{how}/y"), 6).await.status,
            200,
            "{how}"
        );
    }
}

/// The head was lost with the body that broke off behind it: the caller found its connection closed without a word.
#[tokio::test]
async fn a_read_whose_answer_breaks_off_finds_its_head_and_no_end() {
    let (_directory, _service, proxy) = world(json!({ "timeout_ms": 10_000 })).await;
    for how in ["truncated", "unchunked", "half-chunk", "half-end", "no-chunk"] {
        for _ in 0..5 {
            let cut = get(&proxy.listen, &format!("/accounts/A?do={how}")).await;
            assert_eq!(cut.status, 200, "{how}: {cut:?}");
            assert!(
                !cut.raw.ends_with(b"0\r\n\r\n") && cut.raw.len() < 100,
                "{how}: {cut:?}"
            );
        }
    }
}

#[tokio::test]
async fn what_certainly_never_left_uses_no_token_up() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = test_servers::reserved();
    let upstream = format!("http://{}", nobody.address());
    let proxy = Process::start(directory.path(), &upstream, json!({ "once": true })).await;
    for _ in 0..2 {
        let answer = write(&proxy.listen, "/accounts/A/x", 5).await;
        assert_eq!((answer.status, answer.code()), (503, "BACKEND_UNAVAILABLE".to_owned()));
    }
    assert!(proxy.open().await.is_empty());
    assert_eq!(
        write(&proxy.listen, "/accounts/A/x", 4).await.code(),
        "FENCED_OUT",
        "its mark stands all the same"
    );
}

#[tokio::test]
async fn under_the_strict_rule_a_token_is_spent_by_its_first_request() {
    let (directory, service, mut proxy) = world(json!({ "once": true })).await;
    assert_eq!(write(&proxy.listen, "/accounts/A/x", 5).await.status, 200);
    let spent = async |proxy: &Process| {
        let answer = write(&proxy.listen, "/accounts/A/x", 5).await;
        (answer.code(), answer.reason())
    };
    let expected = ("FENCED_OUT".to_owned(), "token_spent".to_owned());
    assert_eq!(spent(&proxy).await, expected);
    proxy.kill();
    let proxy = Process::start(directory.path(), &service.url(), json!({ "once": true })).await;
    assert_eq!(spent(&proxy).await, expected);
    assert_eq!(write(&proxy.listen, "/accounts/A/x", 6).await.status, 200);
    assert_eq!(service.seen().len(), 2);
}

#[tokio::test]
async fn the_services_own_bound_ends_a_doubt_and_counts_anew_after_a_crash() {
    let bound = json!({ "settled_after_ms": 3_000 });
    let (directory, service, mut proxy) = world(bound.clone()).await;
    assert_eq!(
        write(&proxy.listen, "/accounts/A/x?do=close", 5).await.reason(),
        "no_answer"
    );
    proxy.kill();
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    let proxy = Process::start(directory.path(), &service.url(), bound).await;
    assert_eq!(
        write(&proxy.listen, "/accounts/A/y", 6).await.reason(),
        "older_request_open"
    );
    until("the bound has passed", async || {
        write(&proxy.listen, "/accounts/A/y", 6).await.status == 200
    })
    .await;
    assert!(proxy.open().await.is_empty());
    // What is on its way in this process is none of the bound's.
    let _caller = begin(&proxy, "/accounts/A/slow?gate", 7).await;
    until("it arrived", async || service.count("/accounts/A/slow") == 1).await;
    tokio::time::sleep(Duration::from_millis(3_300)).await;
    assert_eq!(
        write(&proxy.listen, "/accounts/A/z", 8).await.reason(),
        "older_request_open"
    );
}

#[tokio::test]
async fn a_drain_waits_for_what_is_on_its_way() {
    let (_directory, service, mut proxy) = world(json!({})).await;
    let (listen, path) = (proxy.listen.clone(), "/accounts/A/slow?hold=500");
    let answer = tokio::spawn(async move { write(&listen, path, 5).await });
    until("it arrived", async || service.count("/accounts/A/slow") == 1).await;
    proxy.signal(Signal::SIGTERM);
    assert_eq!(answer.await.unwrap().text(), "done 1");
    until("it has ended", async || proxy.child.try_wait().unwrap().is_some()).await;
    assert_eq!(proxy.child.wait().unwrap().code(), Some(0));
}
