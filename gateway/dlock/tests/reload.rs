//! SIGHUP reads the configuration again.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests have threads of their own"
)]

mod common;

use common::whole::Component;
use common::{dlock, until};
use nix::sys::signal::Signal;
use serde_json::Value;

#[test]
fn a_hangup_changes_the_filter_names_the_rest_and_a_bad_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lock-server.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("");
    let store = format!("sqlite:{}", dir.path().join("lock.db").display());
    let config = file.to_str().unwrap();
    let mut server = Component::start(
        &[
            "lock-server",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &store,
            "--config",
            config,
        ],
        &[],
    );
    let events = |server: &Component, name: &str| -> Vec<Value> {
        let lines = server.lines().into_iter();
        lines.filter(|line| line["event"] == name).collect()
    };
    let hangup = |server: &Component, name: &str| -> Value {
        let before = events(server, name).len();
        server.signal(Signal::SIGHUP);
        until(name, || events(server, name).len() > before);
        events(server, name).pop().unwrap()
    };
    // Probes are logged at debug.
    let probed = |server: &Component| {
        let before = events(server, "request_answered").len();
        let probe = dlock().args(["healthcheck", &server.url()]).status().unwrap();
        assert!(probe.success());
        before
    };
    assert_eq!(probed(&server), 0);
    assert!(events(&server, "request_answered").is_empty());

    write("[log]\nfilter = \"debug\"\n[lock]\n\"acquire.waiters-max\" = 7\n");
    assert_eq!(hangup(&server, "restart_needed")["detail"], "lock.acquire.waiters-max");
    assert_eq!(
        events(&server, "configuration_reloaded").pop().unwrap()["changed"],
        "log.filter"
    );
    let before = probed(&server);
    until("a probe is logged", || {
        events(&server, "request_answered").len() > before
    });

    for (text, named) in [
        ("[log]\nfilter = \"gateway_kit=loud\"\n", "log.filter"),
        ("[log]\nfiltre = \"info\"\n", "log.filtre"),
    ] {
        write(text);
        let refused = hangup(&server, "reload_refused");
        assert!(refused["error"].as_str().unwrap().contains(named), "{refused}");
    }
    let before = probed(&server);
    until("a probe is still logged", || {
        events(&server, "request_answered").len() > before
    });

    assert_eq!(server.terminate(), Some(0));
}
