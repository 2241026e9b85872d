//! The lock server as a process on etcd, used by the command line.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Lab, Process};

/// Acquire, refusal, release and what is shown, over a restart of the lock server; and a second server on the same store.
#[test]
fn the_lock_server_works_on_etcd() {
    let at = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test_servers::etcd_or_skip());
    let (store, prefix) = (format!("etcd://{at}"), test_servers::fresh_schema());
    let setting = format!("lock.store.prefix={prefix}");
    let server = || {
        Process::start(&[
            "lock-server",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &store,
            "--set",
            &setting,
        ])
    };
    let dir = tempfile::tempdir().unwrap();
    let mut lab = Lab { server: server(), dir };
    let grant = lab.json(&["lock", "acquire", "orders/a b", "--ttl", "60s"]);
    let token = grant["token"].as_u64().unwrap();
    assert_eq!(lab.state("orders/a b"), "HELD");
    assert_eq!(
        common::code(&lab.run(&["lock", "acquire", "orders/a b"])),
        75,
        "held by another"
    );

    let other = Lab {
        server: server(),
        dir: tempfile::tempdir().unwrap(),
    };
    assert_eq!(
        other.json(&["lock", "show", "orders/a b"])["token"].as_u64(),
        Some(token)
    );
    let before = std::mem::replace(&mut lab.server, server());
    before.terminate();
    assert_eq!(lab.json(&["lock", "show", "orders/a b"])["token"].as_u64(), Some(token));

    let session = grant["session_id"].as_str().unwrap();
    let released = lab.run(&[
        "lock",
        "release",
        "orders/a b",
        "--session",
        session,
        "--token",
        &token.to_string(),
    ]);
    assert_eq!(common::code(&released), 0, "{}", common::stderr(&released));
    assert_eq!(other.state("orders/a b"), "FREE");
    let next = other.json(&["lock", "acquire", "orders/a b", "--ttl", "60s"]);
    assert!(next["token"].as_u64().unwrap() > token);
}
