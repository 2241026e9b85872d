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
fn closing_a_session_that_is_not_there_is_not_done() {
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
        assert_eq!(code(&again), 1, "{unknown}: {}", stderr(&again));
        assert!(
            stderr(&again).contains("SESSION_NOT_FOUND") && stdout(&again).is_empty(),
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

/// Long enough for a whole watch to be told again.
fn lines_of(child: &mut std::process::Child) -> impl FnMut() -> serde_json::Value + use<> {
    use std::io::BufRead;
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    move || serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
}

#[test]
fn case_l44_a_watch_goes_on_over_a_restart_and_over_two_servers() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", dir.path().join("lock.db").display());
    let addresses = [test_servers::reserved(), test_servers::reserved()];
    let listen = addresses.each_ref().map(|address| address.address().to_string());
    let urls = listen.each_ref().map(|listen| format!("http://{listen}"));
    let start = |at: usize| Process::start(&["lock-server", "--listen", &listen[at], "--store", &store]);
    let take_and_give_back = |at: usize| {
        let run = |args: &[&str]| {
            let ran = dlock().args(args).env("DLOCK_LOCK_SERVER", &urls[at]).output().unwrap();
            assert_eq!(code(&ran), 0, "{args:?}: {}", stderr(&ran));
            stdout(&ran)
        };
        let grant = run(&["lock", "acquire", "k", "--ttl", "5m", "-o", "json"]);
        let grant: serde_json::Value = serde_json::from_str(&grant).unwrap();
        let (session, token) = (grant["session_id"].as_str().unwrap(), grant["token"].to_string());
        run(&["lock", "release", "k", "--session", session, "--token", &token]);
        run(&["session", "close", session]);
    };
    let first = start(0);
    let mut watch = dlock()
        .args(["lock", "watch", "k", "--events", "7", "-o", "json"])
        .env("DLOCK_LOCK_SERVER", urls.join(","))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut next = lines_of(&mut watch);
    let mut seen = vec![next()];
    assert_eq!(seen[0]["event"], "snapshot");
    take_and_give_back(0);
    seen.extend([next(), next()]);
    // The same address again, with something that happened before the watch came back, or after.
    first.terminate();
    let again = start(0);
    take_and_give_back(0);
    seen.extend([next(), next()]);
    // The other address, after a time in which nobody answers.
    again.terminate();
    let other = start(1);
    take_and_give_back(1);
    seen.extend([next(), next()]);
    assert_eq!(common::wait(&mut watch).code(), Some(0));
    let kinds: Vec<_> = seen.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "snapshot", "GRANTED", "RELEASED", "GRANTED", "RELEASED", "GRANTED", "RELEASED"
        ]
    );
    let ids: Vec<u64> = seen
        .iter()
        .map(|line| line["id"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(
        ids.is_sorted() && ids.windows(2).all(|pair| pair[0] < pair[1]),
        "{ids:?}"
    );
    drop(other);
}

#[test]
fn case_l42_what_a_platform_sets_for_a_service_called_dlock_is_passed_over() {
    let platform = [
        ("DLOCK_PORT", "tcp://10.0.0.1:7400"),
        ("DLOCK_PORT_7400_TCP_ADDR", "10.0.0.1"),
        ("DLOCK_SERVICE_HOST", "10.0.0.1"),
        ("DLOCK_SERVICE_PORT_HTTP", "7400"),
    ];
    let lab = Lab::new();
    let pay = format!("sqlite:{}", lab.dir.path().join("pay").display());
    for args in [
        &["lock-server", "--print-config"][..],
        &["payment-resource", "--print-config"],
        &["rail-proxy", "--rail", "http://127.0.0.1:1", "--print-config"],
        &["payout-executor", "--print-config"],
        &["console", "--print-config"],
        &["migrate", "--payment-store", &pay],
        &["exec", "k", "--", "true"],
    ] {
        let ran = lab.dlock().args(args).envs(platform).output().unwrap();
        let said = stderr(&ran);
        assert_eq!(code(&ran), 0, "{args:?}: {said}");
        assert_eq!(said.matches("passed over").count(), 1, "{args:?}: {said}");
        assert!(platform.iter().all(|(name, _)| said.contains(name)), "{args:?}: {said}");
        let misspelt = lab
            .dlock()
            .args(args)
            .envs(platform)
            .env("DLOCK_PORTS", "7400")
            .output()
            .unwrap();
        assert_eq!(code(&misspelt), 64, "{args:?}: {}", stderr(&misspelt));
    }
    // A verb that reads no setting has nothing to say.
    let shown = lab.dlock().args(["lock", "show", "k"]).envs(platform).output().unwrap();
    assert_eq!((code(&shown), stderr(&shown).as_str()), (0, ""));
}

#[test]
fn case_l45_a_key_that_looks_like_a_flag_is_locked_shown_and_given_back() {
    let lab = Lab::new();
    for key in ["-x", "--", "--help"] {
        let named = format!("--key={key}");
        let grant = lab.json(&["lock", "acquire", &named, "--ttl", "5m"]);
        assert_eq!(grant["key"], key);
        let (session, token) = (grant["session_id"].as_str().unwrap(), grant["token"].to_string());
        assert_eq!(lab.json(&["lock", "list", "--prefix", key])["items"][0]["key"], key);
        let behind = lab.run(&["lock", "show", "-o", "json", "--", key]);
        assert!(stdout(&behind).contains("HELD"), "{key}: {}", stderr(&behind));
        lab.json(&["lock", "release", &named, "--session", session, "--token", &token]);
        let ran = lab.run(&["exec", &named, "--", "sh", "-c", "printf %s \"$DLOCK_KEY\""]);
        assert_eq!((code(&ran), stdout(&ran).as_str()), (0, key), "{}", stderr(&ran));
    }
    let help = stdout(&lab.run(&["lock", "show", "--help"]));
    assert!(help.contains("--key=KEY"), "{help}");
}

#[test]
fn case_s9_names_show_and_other_text_is_shown_escaped() {
    let lab = Lab::new();
    for hidden in ['\u{202e}', '\u{200b}', '\u{2066}', '\u{2028}', '\u{e0041}'] {
        let name = format!("al{hidden}ice");
        let refused = lab.run(&["lock", "acquire", "k", "--owner", &name]);
        assert_eq!(code(&refused), 64, "{hidden:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("owner"), "{}", stderr(&refused));
        let by = ["--operator", &name, "--reason", "after the restore"];
        let refused = lab.run(&[&["lineage", "floor", "7"][..], &by].concat());
        assert_eq!(code(&refused), 64, "{hidden:?}: {}", stderr(&refused));

        let key = format!("orders/{hidden}x");
        let grant = lab.json(&["lock", "acquire", &key, "--ttl", "5m"]);
        assert_eq!(grant["key"], key.as_str(), "kept as it is");
        let token = grant["token"].to_string();
        let by = ["--operator", "olga", "--reason", &format!("because{hidden} of it")];
        lab.json(&[&["lock", "revoke", &key, "--token", &token][..], &by].concat());
        let escaped = format!("\\u{{{:x}}}", u32::from(hidden));
        for args in [
            &["lock", "list"][..],
            &["lock", "history", &key],
            &["lock", "show", &key],
        ] {
            for more in [&[][..], &["-o", "json"]] {
                let said = stdout(&lab.run(&[args, more].concat()));
                assert!(!said.contains(hidden), "{args:?} {more:?}: {said}");
            }
            let said = stdout(&lab.run(args));
            assert!(said.contains(&escaped), "{args:?}: {said}");
        }
        let trail = stdout(&lab.run(&["lock", "audit"]));
        assert!(!trail.contains(hidden) && trail.contains("because"), "{trail}");
    }
}

#[test]
fn case_s12_seals_never_go_through_a_link() {
    let lab = Lab::with(&["lock.audit.seal-interval=100ms"]);
    lab.json(&["lock", "acquire", "k", "--ttl", "5m"]);
    let (precious, link) = (lab.dir.path().join("precious"), lab.dir.path().join("seals"));
    std::fs::write(&precious, "stays").unwrap();
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    let ran = lab.run(&["lock", "audit", "--seals-to", link.to_str().unwrap()]);
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "stays");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
    let mut names: Vec<_> = std::fs::read_dir(lab.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("lock.db"))
        .collect();
    names.sort();
    assert_eq!(names, ["precious", "seals"]);
}

#[test]
fn case_s12_a_password_in_the_arguments_is_warned_of_and_not_repeated() {
    let url = "postgres://dlock:hunter2@127.0.0.1:9/dlock";
    let rail = "http://dlock:hunter2@127.0.0.1:9";
    for (args, variable, value) in [
        (&["lock-server", "--store"][..], "DLOCK_LOCK_STORE_URL", url),
        (&["payment-resource", "--store"], "DLOCK_PAYMENT_STORE_URL", url),
        (&["rail-proxy", "--store"], "DLOCK_RAIL_STORE_URL", url),
        (&["rail-proxy", "--rail"], "DLOCK_RAIL_URL", rail),
    ] {
        let ran = dlock().args(args).args([value, "--print-config"]).output().unwrap();
        let said = stderr(&ran);
        assert_eq!(code(&ran), 0, "{args:?}: {said}");
        assert!(
            said.contains(variable) && said.contains("read by others"),
            "{args:?}: {said}"
        );
        assert!(
            !format!("{said}{}", stdout(&ran)).contains("hunter2"),
            "{args:?}: {said}"
        );
        // In the environment it is where it belongs.
        let ran = dlock()
            .args([args[0], "--print-config"])
            .env(variable, value)
            .output()
            .unwrap();
        assert_eq!((code(&ran), stderr(&ran).as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn a_component_with_a_wrong_configuration_ends_with_64() {
    let dir = tempfile::tempdir().unwrap();
    let pay = format!("sqlite:{}", dir.path().join("pay").display());
    let lock = format!("sqlite:{}", dir.path().join("lock.db").display());
    for address in ["nonsense", "127.0.0.1", "127.0.0.1:99999", ""] {
        for args in [
            &["lock-server", "--store", &lock][..],
            &["payment-resource", "--store", &pay],
            &["rail-proxy", "--store", &pay, "--rail", "http://127.0.0.1:1"],
            &["console"],
        ] {
            let ran = dlock().args(args).args(["--listen", address]).output().unwrap();
            assert_eq!(code(&ran), 64, "{args:?} {address:?}: {}", stderr(&ran));
        }
    }
    let etcd = [
        "--store",
        "etcd://127.0.0.1:9",
        "--set",
        "lock.store.ca-file=/nonexistent.pem",
    ];
    for (component, args) in [
        ("lock-server", &["--store", "postgres://dlock@127.0.0.1:port/dlock"][..]),
        (
            "payment-resource",
            &["--store", "postgres://dlock@127.0.0.1:port/dlock"],
        ),
        ("lock-server", &etcd),
    ] {
        let listen = ["--listen", "127.0.0.1:0"];
        let ran = dlock().arg(component).args(listen).args(args).output().unwrap();
        assert_eq!(code(&ran), 64, "{component} {args:?}: {}", stderr(&ran));
    }
    // What pg-kit reads of an address is no mistake: nobody is there, that is all.
    let url = "postgres://dlock@127.0.0.1:9/dlock?sslmode=verify-full&sslrootcert=system";
    let ran = dlock()
        .args(["payment-resource", "--listen", "127.0.0.1:0", "--store", url])
        .output()
        .unwrap();
    assert_eq!(code(&ran), 69, "{}", stderr(&ran));
}
