//! SIGHUP reads the configuration again.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests have threads of their own"
)]

mod common;

use common::{dlock, until, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

#[test]
fn a_hangup_changes_the_filter_names_the_rest_and_a_bad_file_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lock-server.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("");
    let mut child = dlock()
        .args(["lock-server", "--listen", "127.0.0.1:0", "--store"])
        .arg(format!("sqlite:{}", dir.path().join("lock.db").display()))
        .arg("--config")
        .arg(&file)
        .env_remove("DLOCK_LOG")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = Arc::new(Mutex::new(Vec::<Value>::new()));
    let (lines, to) = (BufReader::new(child.stdout.take().unwrap()), said.clone());
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            to.lock().unwrap().push(serde_json::from_str(&line).unwrap());
        }
    });
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let events = |name: &str| -> Vec<Value> {
        let said = said.lock().unwrap();
        said.iter().filter(|line| line["event"] == name).cloned().collect()
    };
    let hangup = |name: &str| -> Value {
        let before = events(name).len();
        kill(pid, Signal::SIGHUP).unwrap();
        until(name, || events(name).len() > before);
        events(name).pop().unwrap()
    };
    until("it listens", || !events("listening").is_empty());
    let addr = events("listening")[0]["addr"].as_str().unwrap().to_owned();
    // Probes are logged at debug.
    let probed = || {
        let before = events("request_answered").len();
        let probe = dlock()
            .args(["healthcheck", &format!("http://{addr}")])
            .status()
            .unwrap();
        assert!(probe.success());
        before
    };
    assert_eq!(probed(), 0);
    assert!(events("request_answered").is_empty());

    write("[log]\nfilter = \"debug\"\n[lock]\n\"acquire.waiters-max\" = 7\n");
    assert_eq!(hangup("restart_needed")["detail"], "lock.acquire.waiters-max");
    assert_eq!(events("configuration_reloaded").pop().unwrap()["changed"], "log.filter");
    let before = probed();
    until("a probe is logged", || events("request_answered").len() > before);

    for (text, named) in [
        ("[log]\nfilter = \"gateway_kit=loud\"\n", "log.filter"),
        ("[log]\nfiltre = \"info\"\n", "log.filtre"),
    ] {
        write(text);
        let refused = hangup("reload_refused");
        assert!(refused["error"].as_str().unwrap().contains(named), "{refused}");
    }
    let before = probed();
    until("a probe is still logged", || events("request_answered").len() > before);

    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut child).code(), Some(0));
}
