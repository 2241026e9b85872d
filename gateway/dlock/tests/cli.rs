//! The operator's verbs against a lock server as a process.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Lab, Process, code, dlock, stderr, stdout, until};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn a_lock_is_taken_seen_and_given_back() {
    let lab = Lab::new();
    let grant = lab.json(&["lock", "acquire", "orders/a b", "--ttl", "30s"]);
    let (token, session) = (
        grant["token"].to_string(),
        grant["session_id"].as_str().unwrap().to_owned(),
    );
    assert_eq!(grant["ttl_ms"], 30_000);

    let view = lab.json(&["lock", "show", "orders/a b"]);
    assert_eq!(
        (&view["state"], &view["holder"]["owner"]),
        (&"HELD".into(), &"tester".into())
    );
    let check = |token: u64| {
        let token = token.to_string();
        let args = ["lock", "check", "orders/a b", "--token", &token, "-o", "json"];
        let output = lab.dlock().args(args).output().unwrap();
        let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
        (code(&output), answer["verdict"].clone())
    };
    let held = view["token"].as_u64().unwrap();
    assert_eq!(check(held), (0, "CURRENT".into()));
    assert_eq!(check(held + 1), (1, "UNKNOWN".into()));
    assert_eq!(
        lab.json(&["lock", "list", "--prefix", "orders/"])["items"][0]["key"],
        "orders/a b"
    );
    assert_eq!(
        lab.json(&["lock", "list", "--prefix", "other/"])["items"],
        Value::Array(vec![])
    );
    assert_eq!(
        lab.json(&["session", "list"])["items"][0]["session_id"],
        session.as_str()
    );
    assert_eq!(lab.json(&["session", "show", &session])["held"][0]["key"], "orders/a b");

    let refused = lab.run(&["lock", "acquire", "orders/a b"]);
    assert_eq!(code(&refused), 75, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("HELD_BY_OTHER") && stderr(&refused).contains("tester"));

    let wrong = lab.run(&["lock", "release", "orders/a b", "--session", &session, "--token", "99"]);
    assert_eq!(code(&wrong), 1, "{}", stderr(&wrong));
    assert!(stderr(&wrong).contains("NOT_HOLDER"));

    let released = lab.json(&[
        "lock",
        "release",
        "orders/a b",
        "--session",
        &session,
        "--token",
        &token,
    ]);
    assert_eq!(released["released"], true);
    assert_eq!(lab.state("orders/a b"), "FREE");
    let kinds: Vec<_> = lab.json(&["lock", "history", "orders/a b"])["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["GRANTED", "RELEASED"]);
    assert!(
        lab.json(&["session", "close", &session])["released"]
            .as_array()
            .unwrap()
            .is_empty()
    );

    let table = stdout(&lab.run(&["lock", "list"]));
    assert!(table.lines().next().unwrap().trim_start().starts_with("KEY"), "{table}");
    assert!(table.contains("orders/a b"));
}

#[test]
fn case_l30_a_revoke_shows_what_it_breaks_and_needs_its_token() {
    let lab = Lab::new();
    let grant = lab.json(&["lock", "acquire", "k", "--ttl", "60s"]);
    let token = grant["token"].to_string();
    let revoke = [
        "lock",
        "revoke",
        "k",
        "--operator",
        "olga",
        "--reason",
        "stuck for an hour",
    ];

    let shown = lab.run(&revoke);
    assert_eq!(code(&shown), 64);
    assert!(
        stderr(&shown).contains("tester") && stderr(&shown).contains(&format!("--token {token}")),
        "{}",
        stderr(&shown)
    );
    assert_eq!(lab.state("k"), "HELD");

    let moved = lab.run(&[&revoke[..], &["--token", "77"]].concat());
    assert_eq!(code(&moved), 1);
    assert!(stderr(&moved).contains("NOT_HOLDER"), "{}", stderr(&moved));

    let short = lab.run(&[
        "lock",
        "revoke",
        "k",
        "--operator",
        "olga",
        "--reason",
        "short",
        "--token",
        &token,
    ]);
    assert_eq!(code(&short), 64);
    assert!(stderr(&short).contains("reason"), "{}", stderr(&short));

    let revoked = lab.json(&[&revoke[..], &["--token", &token]].concat());
    assert!(revoked["token"].as_u64().unwrap() > grant["token"].as_u64().unwrap());
    assert_eq!(revoked["revoked_owner"], "tester");
    let again = lab.run(&[&revoke[..], &["--token", &token]].concat());
    assert_eq!(code(&again), 1);
    assert!(stderr(&again).contains("NOT_HELD"), "{}", stderr(&again));
    let free = lab.run(&revoke);
    assert_eq!(code(&free), 1);
    let history = lab.json(&["lock", "history", "k"]);
    let row = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["kind"] == "REVOKED")
        .unwrap();
    assert_eq!(
        (&row["actor"], &row["reason"]),
        (&"olga".into(), &"stuck for an hour".into())
    );
}

#[test]
fn a_watch_shows_each_change_as_it_happens() {
    let lab = Lab::new();
    let mut watch = lab
        .dlock()
        .args(["lock", "watch", "k", "--events", "4", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let snapshot = next();
    assert_eq!(
        (&snapshot["event"], &snapshot["data"]["state"]),
        (&"snapshot".into(), &"FREE".into())
    );
    let grant = lab.json(&["lock", "acquire", "k", "--ttl", "30s"]);
    assert_eq!(next()["data"]["token"], grant["token"]);
    lab.json(&[
        "lock",
        "release",
        "k",
        "--session",
        grant["session_id"].as_str().unwrap(),
        "--token",
        &grant["token"].to_string(),
    ]);
    let released = next();
    assert_eq!(
        (&released["event"], &released["data"]["kind"]),
        (&"RELEASED".into(), &"RELEASED".into())
    );
    lab.json(&["lock", "acquire", "k", "--ttl", "30s"]);
    assert_eq!(next()["event"], "GRANTED");
    assert_eq!(common::wait(&mut watch).code(), Some(0));
}

#[test]
fn the_lineage_is_shown_and_its_floor_raised() {
    let lab = Lab::new();
    assert_eq!(lab.json(&["lineage"])["state"], "OK");
    let by = ["--operator", "olga", "--reason", "after the restore"];
    let raised = lab.json(&[&["lineage", "floor", "1000"][..], &by].concat());
    assert_eq!(raised["token_floor"], 1000);
    assert!(lab.json(&["lock", "acquire", "k"])["token"].as_u64().unwrap() > 1000);
    let absurd = lab.run(&[&["lineage", "floor", "9007199254740991"][..], &by].concat());
    assert_eq!(code(&absurd), 64, "{}", stderr(&absurd));
}

#[test]
fn what_cannot_be_reached_is_unavailable() {
    for args in [
        &["lock", "show", "k"][..],
        &["session", "list"],
        &["exec", "k", "--", "true"],
        &["lineage"],
    ] {
        let output = dlock()
            .args(args)
            .env("DLOCK_LOCK_SERVER", "http://127.0.0.1:9")
            .output()
            .unwrap();
        assert_eq!(code(&output), 69, "{args:?}: {}", stderr(&output));
    }
    // The first server is dead, the second one answers.
    let lab = Lab::new();
    let urls = format!("http://127.0.0.1:9,{}", lab.server.url());
    let output = dlock()
        .args(["lock", "show", "k", "--lock-server", &urls])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn mistakes_in_usage_are_64_and_help_is_everywhere() {
    for args in [
        &["nonsense"][..],
        &["lock"],
        &["lock", "acquire"],
        &["exec", "k"],
        &["exec", "k", "--ttl", "soon", "--", "true"],
        &["lock", "show", "k", "--lock-server", "ftp://h"],
        &["lock-server", "--set", "lock.sesion.ttl=20s"],
        &["lock-server", "--set", "lock.session.ttl"],
        &["lock-server", "--set", "lock.session.ttl=soon"],
        &["lock-server", "--config", "/nonexistent.toml"],
        &["lock", "acquire", ""],
        &["exec", "", "--", "true"],
        // Shorter than twice the margin that somebody chose: refused, no panic (case L13).
        &[
            "exec",
            "k",
            "--ttl",
            "1s",
            "--set",
            "lock.client.safety-margin=1s",
            "--",
            "true",
        ],
        &["exec", "k", "--ttl", "1ms", "--", "true"],
        &["exec", "k", "--ttl", "0s", "--", "true"],
    ] {
        let output = dlock()
            .args(args)
            .env("DLOCK_LOCK_SERVER", "http://127.0.0.1:9")
            .output()
            .unwrap();
        assert_eq!(code(&output), 64, "{args:?}: {}", stderr(&output));
        assert!(!stderr(&output).is_empty(), "{args:?} says nothing");
        assert!(!stderr(&output).contains("panicked"), "{args:?}");
    }
    let top = stdout(&dlock().arg("--help").output().unwrap());
    for verb in [
        "lock-server",
        "payment-resource",
        "rail-proxy",
        "payout-executor",
        "lock",
        "session",
        "exec",
        "payout",
        "lineage",
        "migrate",
        "healthcheck",
        "version",
    ] {
        assert!(
            top.lines().any(|line| line.trim_start().starts_with(verb)),
            "{verb} is not in the help:\n{top}"
        );
        let help = dlock().args([verb, "--help"]).output().unwrap();
        assert_eq!(code(&help), 0, "{verb}");
        assert!(stdout(&help).contains("Usage:"), "{verb}");
    }
}

#[test]
fn a_misspelt_setting_is_named_with_what_was_meant() {
    let flag = dlock()
        .args(["lock-server", "--set", "lock.sesion.ttl=20s"])
        .output()
        .unwrap();
    assert!(
        stderr(&flag).contains("lock.sesion.ttl") && stderr(&flag).contains("lock.session.ttl"),
        "{}",
        stderr(&flag)
    );
    let env = dlock()
        .arg("lock-server")
        .env("DLOCK_LOCK_SESION_TTL", "20s")
        .output()
        .unwrap();
    assert_eq!(code(&env), 64);
    // Set by `dlock exec` for its command, and no configuration.
    let exec = dlock()
        .args(["lock-server", "--print-config"])
        .envs([("DLOCK_TOKEN", "7"), ("DLOCK_KEY", "k")])
        .output()
        .unwrap();
    assert_eq!(code(&exec), 0, "{}", stderr(&exec));
}

#[test]
fn the_effective_configuration_is_printed_and_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dlock.toml");
    std::fs::write(&file, "[lock.session]\nttl = \"20s\"\n[http]\nworkers = 2\n").unwrap();
    let print = |file: &std::path::Path| {
        let output = dlock()
            .args([
                "lock-server",
                "--print-config",
                "--listen",
                "127.0.0.1:5",
                "--set",
                "http.workers=3",
            ])
            .arg("--config")
            .arg(file)
            .env("DLOCK_LOCK_ACQUIRE_MAX_ATTEMPTS", "7")
            .output()
            .unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    let printed = print(&file);
    for line in [
        "\"session.ttl\" = \"20s\"",
        "workers = 3",
        "listen = \"127.0.0.1:5\"",
        "\"acquire.max-attempts\" = 7",
    ] {
        assert!(printed.contains(line), "{line} is not in\n{printed}");
    }
    let again = dir.path().join("again.toml");
    std::fs::write(&again, &printed).unwrap();
    let values = |text: &str| -> Vec<String> {
        text.lines()
            .map(|l| l.split("  #").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(values(&print(&again)), values(&printed));
}

#[test]
fn components_are_asked_for_their_health() {
    let lab = Lab::new();
    let ready = dlock().args(["healthcheck", &lab.server.url()]).output().unwrap();
    assert_eq!(code(&ready), 0, "{}", stderr(&ready));
    assert_eq!(
        code(&dlock().args(["healthcheck", "http://127.0.0.1:9"]).output().unwrap()),
        1
    );
    let Lab { server, .. } = lab;
    server.terminate();
}

#[test]
fn the_binary_says_what_it_is() {
    let output = dlock().args(["version", "-o", "json"]).output().unwrap();
    let version: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(version["commit"].is_string() && version["features"].is_array());
    assert!(stdout(&dlock().arg("--version").output().unwrap()).contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_second_process_on_one_store_is_refused_with_a_clear_message() {
    let lab = Lab::new();
    let store = format!("sqlite:{}", lab.dir.path().join("lock.db").display());
    let second = dlock().args(["lock-server", "--store", &store]).output().unwrap();
    assert_ne!(code(&second), 0);
    assert!(stderr(&second).contains("lock.db"), "{}", stderr(&second));
    assert_eq!(lab.state("k"), "FREE", "the first one is not disturbed");
}

#[test]
#[cfg(feature = "lab")]
fn every_component_starts_listens_and_drains() {
    let dir = tempfile::tempdir().unwrap();
    let lock = format!("sqlite:{}", dir.path().join("lock.db").display());
    let pay = format!("sqlite:{}", dir.path().join("pay").display());
    let any = "127.0.0.1:0";
    let lock = Process::start(&["lock-server", "--listen", any, "--store", &lock]);
    let stub = Process::start(&["rail-stub", "--listen", any]);
    let payments = Process::start(&["payment-resource", "--listen", any, "--store", &pay]);
    let proxy = Process::start(&["rail-proxy", "--listen", any, "--store", &pay, "--rail", &stub.url()]);
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
        "w1",
        "--role",
        "both",
    ]);
    for process in [executor, proxy, payments, stub, lock] {
        until(&format!("{} is ready", process.name), || {
            dlock()
                .args(["healthcheck", &process.url()])
                .output()
                .unwrap()
                .status
                .success()
        });
        process.terminate();
    }
}
