//! `dlock lock-server` as a process on PostgreSQL.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests read the clock")]

mod common;

use common::{Process, code, dlock, stderr, until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Output;
use std::time::Duration;
use test_servers::{OwnOptions, OwnPostgres, PASSWORD};

const LONG: Duration = Duration::from_secs(60);

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// The status of `/readyz`.
fn readiness(server: &Process) -> u16 {
    let mut stream = TcpStream::connect(&server.addr).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn run(server: &Process, args: &[&str]) -> Output {
    let mut command = dlock();
    command.env("DLOCK_LOCK_SERVER", server.url());
    command.args(args).output().unwrap()
}

fn json(server: &Process, args: &[&str]) -> Value {
    let output = run(server, &[args, &["-o", "json"]].concat());
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every setting of the store in use; a lock is taken, given back, broken and found in the records; while the database
/// stands still the server is not ready and grants nothing; afterwards it goes on by itself.
#[test]
fn a_lock_server_on_postgres_from_its_start_to_its_end() {
    let database = block_on(OwnPostgres::start(&OwnOptions::default()));
    let dir = tempfile::tempdir().unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    std::fs::set_permissions(&password, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", database.port());
    let password = format!("lock.store.password-file={}", password.display());
    let settings = [
        password.as_str(),
        "lock.store.schema=locks_of_ours",
        "lock.store.pool-max=3",
        "lock.store.connect-timeout=2s",
        "lock.store.timeout=5s",
    ];
    let mut args = vec!["lock-server", "--listen", "127.0.0.1:0", "--store", &url];
    for setting in &settings {
        args.extend(["--set", setting]);
    }
    let server = Process::start(&args);
    until("ready", || readiness(&server) == 200);

    let grant = json(&server, &["lock", "acquire", "orders/a b", "--ttl", "60s"]);
    let (token, session) = (
        grant["token"].to_string(),
        grant["session_id"].as_str().unwrap().to_owned(),
    );
    let release = [
        "lock",
        "release",
        "orders/a b",
        "--session",
        &session,
        "--token",
        &token,
    ];
    assert_eq!(json(&server, &release)["released"], true);
    let again = json(&server, &["lock", "acquire", "orders/a b", "--ttl", "60s"]);
    assert!(again["token"].as_u64() > grant["token"].as_u64());
    let revoke = [
        "lock",
        "revoke",
        "orders/a b",
        "--operator",
        "olga",
        "--reason",
        "stuck for an hour",
    ];
    let revoked = json(
        &server,
        &[&revoke[..], &["--token", &again["token"].to_string()]].concat(),
    );
    assert!(revoked["token"].as_u64() > again["token"].as_u64());
    let kinds: Vec<_> = json(&server, &["lock", "history", "orders/a b"])["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["GRANTED", "RELEASED", "GRANTED", "REVOKED"]);
    let lineage = json(&server, &["lineage", "show"]);
    assert_eq!(lineage["state"], "OK");

    block_on(database.pause());
    until("not ready while the database stands still", || {
        readiness(&server) == 503
    });
    let refused = run(&server, &["lock", "acquire", "meanwhile", "--ttl", "60s"]);
    assert_ne!(code(&refused), 0);
    block_on(database.unpause());
    until("ready again", || readiness(&server) == 200);
    let after = json(&server, &["lock", "acquire", "afterwards", "--ttl", "60s"]);
    assert!(after["token"].as_u64() > revoked["token"].as_u64());

    let schemas = database.shell(
        "psql -U postgres -h /var/run/postgresql -Atc \"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dlock'\"",
        "",
    );
    // Three that call, one that listens.
    assert!(schemas.trim().parse::<u32>().unwrap() <= 4, "{schemas}");
    server.terminate();
}

/// What cannot be is said at the start, by the setting's name and without the password.
#[test]
fn a_store_that_cannot_be_opened_is_explained() {
    for (set, part) in [
        ("lock.store.schema=No", "lock.store.schema"),
        ("lock.store.pool-max=0", "lock.store.pool-max"),
        ("lock.store.connect-timeout=1ms", "lock.store.connect-timeout"),
        ("lock.store.timeout=5s", "cannot be opened"),
    ] {
        let store = "postgres://u:hunter2@127.0.0.1:9/d";
        let args = ["lock-server", "--listen", "127.0.0.1:0", "--store", store, "--set", set];
        let output = dlock().args(args).output().unwrap();
        let said = stderr(&output);
        assert!(code(&output) != 0 && said.contains(part), "{set}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let args = [
        "lock-server",
        "--store",
        "sqlite:x.db",
        "--set",
        "lock.store.pooler=true",
    ];
    let output = dlock().args(args).output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("lock.store.pooler") && said.contains("sqlite"), "{said}");
}
