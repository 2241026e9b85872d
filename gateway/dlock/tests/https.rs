//! Addresses that want TLS: refused where nobody would speak it, by whoever starts and by whoever only prints the configuration; taken
//! for the rail, with its files read.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Process, code, dlock, stderr, until};

const TLS: &str = "https://h:1";
const NEVER: &str = "must begin with http://";

/// Runs it twice, started and with `--print-config`: both refuse it as a mistake in usage, and say the same.
fn refused_both_ways(args: &[&str], parts: &[&str]) {
    for more in [&[][..], &["--print-config"]] {
        let ran = dlock().args(args).args(more).output().unwrap();
        let said = stderr(&ran);
        assert_eq!(code(&ran), 64, "{args:?} {more:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args:?} {more:?}: no {part} in {said}");
        }
    }
}

#[test]
fn a_component_that_is_told_an_https_address_names_the_setting() {
    for (component, flag, setting) in [
        ("payout-executor", "--lock-server", "executor.lock-servers"),
        ("payout-executor", "--payments", "executor.payments"),
        ("payout-executor", "--rail-proxy", "executor.rail-proxy"),
        ("console", "--lock-server", "console.lock-servers"),
        ("console", "--payments", "console.payments"),
        ("console", "--rail-proxy", "console.rail-proxy"),
        ("console", "--executor", "console.executors"),
        ("console", "--scenario", "console.scenario"),
    ] {
        refused_both_ways(&[component, flag, TLS], &[setting, NEVER]);
    }
    let fence_proxy = [
        "fence-proxy",
        "--listen",
        "127.0.0.1:0",
        "--store",
        "sqlite:/x",
        "--key",
        "k",
    ];
    refused_both_ways(
        &[&fence_proxy[..], &["--upstream", TLS]].concat(),
        &["--upstream", NEVER],
    );
}

#[test]
fn an_operators_verb_that_is_told_an_https_address_names_the_flag() {
    for args in [
        &["lock", "list", "--lock-server", TLS][..],
        &["session", "list", "--lock-server", TLS],
        &["exec", "--lock-server", TLS, "k", "--", "true"],
        &["payout", "show", "P", "--payments", TLS],
        &["doctor", "--lock-server", TLS],
        &["bench", "--lock-server", TLS],
        &["healthcheck", TLS],
        &["actors", TLS],
        &["rail-stub", "--ack-url", TLS],
    ] {
        let ran = dlock().args(args).output().unwrap();
        let said = stderr(&ran);
        assert_eq!(code(&ran), 64, "{args:?}: {said}");
        let flag = args.iter().find(|arg| arg.starts_with("--") && arg.len() > 2);
        assert!(
            said.contains(NEVER) && said.contains(flag.unwrap_or(&"URL")),
            "{args:?}: {said}"
        );
    }
}

#[test]
fn what_is_wrong_with_tls_to_the_rail_is_told_with_the_settings_name() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.pem").display().to_string();
    std::fs::write(&text, "no PEM\n").unwrap();
    let store = format!("sqlite:{}", dir.path().display());
    let tried = |url: &str, settings: &[&str], parts: &[&str]| {
        let mut args = vec![
            "rail-proxy",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &store,
            "--rail",
            url,
        ];
        for setting in settings {
            args.extend(["--set", *setting]);
        }
        refused_both_ways(&args, parts);
    };
    let rail = "https://rail.example.com";
    tried(
        rail,
        &["rail.tls.ca-file=/not/there"],
        &["rail.tls.ca-file", "/not/there"],
    );
    let in_text = format!("rail.tls.ca-file={text}");
    tried(
        rail,
        &[&in_text],
        &["rail.tls.ca-file", "there is no certificate in it"],
    );
    tried(
        rail,
        &["rail.tls.key-file=/k"],
        &["rail.tls.cert-file", "rail.tls.key-file", "both or neither"],
    );
    tried(
        "http://rail",
        &[&in_text],
        &["rail.tls.ca-file", "rail.url", "in the clear"],
    );
}

/// With an https address and this machine's authorities it starts, and is ready: whether the rail is there is asked by a submission alone.
#[test]
fn a_rail_proxy_with_an_https_rail_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem").display().to_string();
    std::fs::write(&ca, test_servers::Authority::new("the rail's").pem()).unwrap();
    let store = format!("sqlite:{}", dir.path().display());
    let proxy = Process::start(&[
        "rail-proxy",
        "--listen",
        "127.0.0.1:0",
        "--store",
        &store,
        "--rail",
        "https://rail.example.com",
        "--set",
        &format!("rail.tls.ca-file={ca}"),
    ]);
    until("ready", || {
        let asked = dlock().args(["healthcheck", &proxy.url()]).output().unwrap();
        code(&asked) == 0
    });
    proxy.terminate();
}
