//! What somebody meets who uses the operator's verbs for the first time: messages that say the next step.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Lab, Process, code, dlock, stderr, stdout};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Where nobody listens.
const NOBODY: &str = "http://127.0.0.1:9";

fn get(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn without_a_server_the_address_and_the_next_step_are_named() {
    for (args, flag, variable) in [
        (&["payout", "list"][..], "--payments", "DLOCK_EXECUTOR_PAYMENTS"),
        (&["payout", "show", "P"], "--payments", "DLOCK_EXECUTOR_PAYMENTS"),
        (&["payout", "history", "P"], "--payments", "DLOCK_EXECUTOR_PAYMENTS"),
        (
            &["payout", "fence", "A", "--token", "7"],
            "--payments",
            "DLOCK_EXECUTOR_PAYMENTS",
        ),
        (&["payout", "fence", "A"], "--lock-server", "DLOCK_LOCK_SERVER"),
        (&["lock", "show", "k"], "--lock-server", "DLOCK_LOCK_SERVER"),
        (&["session", "list"], "--lock-server", "DLOCK_LOCK_SERVER"),
        (&["lineage"], "--lock-server", "DLOCK_LOCK_SERVER"),
        (&["exec", "k", "--", "true"], "--lock-server", "DLOCK_LOCK_SERVER"),
    ] {
        let ran = dlock()
            .args(args)
            .env("DLOCK_LOCK_SERVER", NOBODY)
            .env("DLOCK_EXECUTOR_PAYMENTS", NOBODY)
            .env("DLOCK_EXECUTOR_RAIL_PROXY", NOBODY)
            .output()
            .unwrap();
        let said = stderr(&ran);
        assert_eq!(code(&ran), 69, "{args:?}: {said}");
        for part in ["127.0.0.1:9", flag, variable] {
            assert!(said.contains(part), "{args:?} does not name {part}: {said}");
        }
    }
    let fence = dlock().args(["fence", "open", "--admin", NOBODY]).output().unwrap();
    assert_eq!(code(&fence), 69);
    let said = stderr(&fence);
    assert!(
        said.contains(NOBODY) && said.contains("--admin") && said.contains("--store"),
        "{said}"
    );
}

#[test]
fn a_verb_at_the_wrong_component_says_who_answers_there() {
    let lab = Lab::new();
    let payments = format!("sqlite:{}", lab.dir.path().join("paydb").display());
    let payments = Process::start(&["payment-resource", "--listen", "127.0.0.1:0", "--store", &payments]);
    for (args, answers, needed) in [
        (
            ["lock", "show", "k", "--lock-server", &payments.url()],
            "payment-resource",
            "lock-server",
        ),
        (
            ["payout", "show", "P", "--payments", &lab.server.url()],
            "lock-server",
            "payment-resource",
        ),
    ] {
        let ran = dlock().args(args).output().unwrap();
        let said = stderr(&ran);
        assert_eq!(code(&ran), 64, "{args:?}: {said}");
        assert!(
            said.contains(&format!("a {answers} answers at http://127.0.0.1")),
            "{said}"
        );
        assert!(said.contains(&format!("needs a {needed}")), "{said}");
    }
    // It used to say that there is nothing here, and not where.
    let args = ["exec", "k", "--lock-server", &payments.url(), "--", "true"];
    let ran = dlock().args(args).output().unwrap();
    assert_eq!(code(&ran), 64, "{}", stderr(&ran));
    assert!(stderr(&ran).contains("no lock server"), "{}", stderr(&ran));
    payments.terminate();
}

#[test]
fn with_json_an_error_is_one_object_on_standard_error() {
    let lab = Lab::new();
    lab.json(&["lock", "acquire", "k", "--ttl", "60s"]);
    let reason = "nobody knows whose it is";
    for (args, expected, problem) in [
        (&["lock", "acquire", "k"][..], 75, Some("HELD_BY_OTHER")),
        (&["session", "show", "nobody"], 1, Some("SESSION_NOT_FOUND")),
        (&["lock", "revoke", "k", "--reason", reason], 64, None),
        (&["lock", "show", ""], 64, None),
        (&["lock", "show", "k", "--lock-server", NOBODY], 69, None),
        (&["payout", "list", "--payments", NOBODY], 69, None),
        (&["fence", "mark", "k", "--admin", NOBODY], 69, None),
        (&["lock", "show", "k", "--nonsense"], 64, None),
        (&["lock", "acquire", "k", "--ttl", "soon"], 64, None),
    ] {
        let ran = lab.run(&[args, &["-o", "json"]].concat());
        let said = stderr(&ran);
        assert_eq!((code(&ran), stdout(&ran).as_str()), (expected, ""), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        let error: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{args:?}: {error}: {said}"));
        assert_eq!(error["exit_code"], expected, "{args:?}");
        assert!(!error["message"].as_str().unwrap().is_empty(), "{args:?}");
        assert_eq!(error["problem"]["code"].as_str(), problem, "{args:?}: {said}");
    }
}

#[test]
fn an_acquire_that_is_refused_leaves_no_session_behind() {
    let lab = Lab::new();
    lab.json(&["lock", "acquire", "k", "--ttl", "60s"]);
    for args in [
        &["lock", "acquire", "k"][..],
        &["lock", "acquire", "k", "--ttl", "5m", "--wait", "10ms"],
    ] {
        assert_eq!(code(&lab.run(args)), 75, "{args:?}");
    }
    let sessions = lab.json(&["session", "list"])["items"].clone();
    assert_eq!(sessions.as_array().unwrap().len(), 1, "the holder's: {sessions}");
}

#[test]
fn closing_a_session_that_is_not_there_says_so() {
    let lab = Lab::new();
    let session = lab.json(&["lock", "acquire", "k", "--ttl", "60s"])["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let first = lab.run(&["session", "close", &session]);
    assert_eq!((code(&first), stderr(&first).as_str()), (0, ""));
    assert!(stdout(&first).contains("k#"), "{}", stdout(&first));
    for unknown in [session.as_str(), "nobody"] {
        let again = lab.run(&["session", "close", unknown]);
        assert_eq!(code(&again), 0, "{unknown}: {}", stderr(&again));
        assert!(
            stderr(&again).contains("there was no such session"),
            "{unknown}: {}",
            stderr(&again)
        );
    }
}

/// All arguments are looked at before any server is asked.
#[test]
fn a_reason_that_is_too_short_is_told_before_anything_is_asked() {
    for args in [
        &["lock", "revoke", "k"][..],
        &["lock", "revoke", "k", "--token", "7"],
        &["payout", "resolve", "P", "--outcome", "posted"],
        &["fence", "clear", "k"],
        &["lineage", "floor", "7"],
    ] {
        for (operator, reason) in [
            ("olga", "short"),
            ("olga", "a\u{7}control character"),
            ("", "long enough"),
        ] {
            let ran = dlock()
                .args(args)
                .args(["--operator", operator, "--reason", reason])
                .env("DLOCK_LOCK_SERVER", NOBODY)
                .output()
                .unwrap();
            let said = stderr(&ran);
            assert_eq!(code(&ran), 64, "{args:?} {reason:?}: {said}");
            assert!(said.contains("must be"), "{args:?} {reason:?}: {said}");
        }
    }
}

/// A wrong configuration is a mistake in usage, whichever component it is for, and whether the table of settings or the
/// component itself finds it.
#[test]
fn a_wrong_configuration_is_64_for_every_component() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("unknown.toml"), "[lock]\nsesion = 1\n").unwrap();
    std::fs::write(path("broken.toml"), "[lock\n").unwrap();
    let lock = format!("sqlite:{}", path("lock.db"));
    let paydb = format!("sqlite:{}", path("paydb"));
    let fence = format!("sqlite:{}", path("fence.db"));
    let components = [
        vec!["lock-server", "--store", &lock],
        vec!["payment-resource", "--store", &paydb],
        vec!["rail-proxy", "--store", &paydb, "--rail", "http://127.0.0.1:9"],
        vec![
            "payout-executor",
            "--lock-server",
            NOBODY,
            "--payments",
            NOBODY,
            "--rail-proxy",
            NOBODY,
            "--owner",
            "w",
        ],
        vec![
            "console",
            "--lock-server",
            NOBODY,
            "--payments",
            NOBODY,
            "--rail-proxy",
            NOBODY,
        ],
        vec![
            "fence-proxy",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &fence,
            "--key",
            "k",
            "--upstream",
            NOBODY,
        ],
    ];
    let (unknown, broken, missing) = (path("unknown.toml"), path("broken.toml"), path("missing.toml"));
    for component in &components {
        for wrong in [
            &["--set", "http.workers=many"][..],
            &["--set", "no.such.setting=1"],
            &["--config", &unknown],
            &["--config", &broken],
            &["--config", &missing],
            &["--set", "http.listen=nonsense"],
        ] {
            let ran = dlock().args(component).args(wrong).output().unwrap();
            assert_eq!(code(&ran), 64, "{} {wrong:?}: {}", component[0], stderr(&ran));
        }
    }
    let nowhere = path("no-such-password");
    for (component, more) in [
        (0, vec!["--set", "lock.store.url=nonsense:"]),
        (1, vec!["--set", "payment.store.url=nonsense:"]),
        (2, vec!["--set", "rail.store.url=nonsense:"]),
        (3, vec!["--set", "executor.role=sleep"]),
        (5, vec!["--upstream", "https://127.0.0.1:9"]),
    ] {
        // The last of two settings or flags of one name is the one that counts, or the two are refused: both are usage.
        let words = components[component].iter().copied();
        let words: Vec<&str> = match component {
            0..=2 => words.take(1).chain(more.iter().copied()).collect(),
            _ => words.chain(more.iter().copied()).collect(),
        };
        let rail = if component == 2 {
            vec!["--rail", "http://127.0.0.1:9"]
        } else {
            vec![]
        };
        let ran = dlock().args(&words).args(rail).output().unwrap();
        assert_eq!(code(&ran), 64, "{words:?}: {}", stderr(&ran));
    }
    let secret = format!("lock.store.password-file={nowhere}");
    let ran = dlock()
        .args([
            "lock-server",
            "--store",
            "postgres://dlock@127.0.0.1:9/dlock",
            "--set",
            &secret,
        ])
        .output()
        .unwrap();
    assert_eq!(code(&ran), 64, "{}", stderr(&ran));
    assert!(stderr(&ran).contains(&nowhere), "{}", stderr(&ran));
}

#[test]
fn a_file_that_is_no_store_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notes.txt");
    std::fs::write(&file, "this is no database, and somebody needs it\n").unwrap();
    for store in [file.display().to_string(), dir.path().display().to_string()] {
        let ran = dlock()
            .args([
                "lock-server",
                "--listen",
                "127.0.0.1:0",
                "--store",
                &format!("sqlite:{store}"),
            ])
            .output()
            .unwrap();
        assert_eq!(code(&ran), 69, "{store}: {}", stderr(&ran));
        assert!(stderr(&ran).contains(&store), "{}", stderr(&ran));
    }
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["notes.txt"]);
    assert!(!std::path::Path::new(&format!("{}.lock", dir.path().display())).exists());
}

#[test]
fn the_pages_of_the_problem_codes_have_an_index() {
    let lab = Lab::new();
    for path in ["/docs/errors", "/docs/errors/"] {
        let page = get(&lab.server.addr, path);
        assert!(page.starts_with("HTTP/1.1 200"), "{path}: {page}");
        for code in http_contract::Code::ALL {
            assert!(page.contains(&format!("/docs/errors/{code}")), "{path}: {code}");
        }
    }
}

#[cfg(feature = "lab")]
#[test]
fn the_rail_stub_says_where_its_contract_is() {
    let stub = Process::start(&["rail-stub", "--listen", "127.0.0.1:0"]);
    let answer = get(&stub.addr, "/docs");
    assert!(
        answer.starts_with("HTTP/1.1 404") && answer.contains("docs/04-contracts.md"),
        "{answer}"
    );
}
