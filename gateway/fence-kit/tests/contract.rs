//! The admin listener of the fencing proxy: every operation of its document, and what nobody should send to it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

mod support;

use gateway_kit::testing::{Fuzz, Socket, assert_every_operation_is_tested};
use serde_json::json;
use support::process::Process;
use support::service::Service;
use support::{get, send, wire, write};

/// Not a test: the proxy as a process of its own, when this binary is started again as one.
#[test]
fn child() {
    support::process::child();
}

#[test]
fn every_operation_has_a_contract_test() {
    assert_every_operation_is_tested(&fence_kit::proxy::openapi(), env!("CARGO_MANIFEST_DIR"));
}

// operation: list_open_requests, get_mark, clear_key
#[tokio::test]
async fn what_is_open_is_shown_and_cleared_by_name_and_reason() {
    let (directory, service) = (tempfile::tempdir().unwrap(), Service::start().await);
    let proxy = Process::start(directory.path(), &service.url(), json!({})).await;
    for (key, token) in [("A", 5), ("A", 5), ("B", 9)] {
        let path = format!("/accounts/{key}/x?do=close");
        assert_eq!(write(&proxy.listen, &path, token).await.reason(), "no_answer");
    }
    let open = proxy.open().await;
    assert_eq!(open.len(), 3);
    let of_a = get(&proxy.admin, "/v1/fence/open?key=accounts%2FA").await.json();
    assert_eq!(of_a["items"].as_array().unwrap().len(), 2);
    let first = &open[0];
    assert_eq!(
        (
            first["key"].as_str(),
            first["token"].as_u64(),
            first["what"].as_str(),
            first["in_flight"].as_bool()
        ),
        (Some("accounts/A"), Some(5), Some("POST /accounts/A/x"), Some(false))
    );
    assert!(
        first["cause"].is_string() && first["begun_at"].as_str().unwrap().ends_with('Z'),
        "{first}"
    );
    assert_eq!(
        get(&proxy.admin, "/v1/fence/open?limit=1").await.json()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let mark = async || {
        let mark = get(&proxy.admin, "/v1/fence/mark?key=accounts%2FA").await.json();
        (mark["mark"].as_u64(), mark["announced"].as_u64(), mark["open"].as_u64())
    };
    assert_eq!(mark().await, (Some(5), Some(5), Some(2)));
    for bad in [
        "/v1/fence/open?limit=0",
        "/v1/fence/open?limit=1001",
        "/v1/fence/open?key=",
        "/v1/fence/mark",
        "/v1/fence/mark?key=",
    ] {
        assert_eq!(get(&proxy.admin, bad).await.code(), "INVALID_REQUEST", "{bad}");
    }
    let one = json!({ "key": "accounts/A", "reason": "seen in its book", "ids": [first["id"]] });
    let nameless = wire(
        "POST",
        "/v1/fence/clear",
        &[("content-type", "application/json")],
        Some(one.to_string().as_bytes()),
    );
    assert_eq!(send(&proxy.admin, &nameless).await.unwrap().code(), "INVALID_REQUEST");
    let short = proxy.clear(&json!({ "key": "accounts/A", "reason": "short" })).await;
    assert_eq!((short.status, short.json()["field"].as_str()), (400, Some("reason")));
    assert_eq!(proxy.clear(&one).await.json()["cleared"][0]["id"], first["id"]);
    assert_eq!(mark().await.2, Some(1));
    let rest = proxy
        .clear(&json!({ "key": "accounts/A", "reason": "and the other one" }))
        .await;
    assert_eq!(
        (rest.status, rest.json()["cleared"].as_array().unwrap().len()),
        (200, 1)
    );
    let none = proxy
        .clear(&json!({ "key": "accounts/A", "reason": "nothing is left" }))
        .await;
    assert_eq!(
        (none.status, none.json()["cleared"].as_array().unwrap().len()),
        (200, 0)
    );
    assert_eq!((mark().await.2, proxy.open().await.len()), (Some(0), 1));
}

#[actix_rt::test]
async fn no_request_is_answered_with_a_server_error() {
    let (directory, service) = (tempfile::tempdir().unwrap(), Service::start().await);
    let proxy = Process::start(directory.path(), &service.url(), json!({})).await;
    let report = Fuzz::new(&fence_kit::proxy::openapi())
        .header("X-Operator", "ada")
        .query("get_mark", "key", "accounts/A")
        .query("list_open_requests", "key", "accounts/A")
        .body(
            "clear_key",
            json!({ "key": "accounts/A", "reason": "fuzzed by a test", "ids": ["x"] }),
        )
        .run(&Socket(proxy.admin.parse().unwrap()))
        .await;
    println!("{report:?}");
    assert!(report.operations == 3 && report.requests > 30, "{report:?}");
}
