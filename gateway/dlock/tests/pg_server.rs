//! `dlock lock-server` as a process on PostgreSQL, alone and as one of several replicas.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests read the clock")]

mod common;

use common::{Process, code, dlock, stderr, until};
use futures_util::future::join_all;
use lock_client::lock_api::{LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
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
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", database.port);
    let password = format!("lock.store.password-file={}", password.display());
    let settings = [
        password.as_str(),
        "lock.store.schema=locks_of_ours",
        "lock.store.pool-max=3",
        "lock.store.connect-timeout=2s",
        "lock.store.timeout=1s",
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
        ("lock.store.timeout=1s", "cannot be opened"),
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

/// Lock servers on one schema, each at an address that stays its own.
struct Replicas {
    url: String,
    schema: String,
    processes: RefCell<Vec<Process>>,
    addresses: Vec<String>,
}

impl Replicas {
    fn start(url: &str, count: usize) -> Self {
        let (url, schema) = (url.to_owned(), test_servers::fresh_schema());
        let processes: Vec<_> = (0..count).map(|_| Self::one(&url, &schema, "127.0.0.1:0")).collect();
        let addresses = processes.iter().map(|process| process.addr.clone()).collect();
        Self {
            url,
            schema,
            processes: RefCell::new(processes),
            addresses,
        }
    }

    fn one(url: &str, schema: &str, listen: &str) -> Process {
        let schema = format!("lock.store.schema={schema}");
        Process::start(&["lock-server", "--listen", listen, "--store", url, "--set", &schema])
    }

    fn urls(&self) -> Vec<String> {
        self.addresses
            .iter()
            .map(|address| format!("http://{address}"))
            .collect()
    }

    fn kill(&self, n: usize) {
        self.processes.borrow()[n].signal(Signal::SIGKILL);
    }

    fn start_again(&self, n: usize) {
        let process = Self::one(&self.url, &self.schema, &self.addresses[n]);
        self.processes.borrow_mut()[n] = process;
    }
}

/// NFR-06: clients that know all replicas use any of them; one is killed under load. What is held stays held, nobody is
/// granted what another holds, tokens rise, and no caller sees an error.
async fn one_of_several_is_killed(url: String, count: usize) {
    let replicas = Replicas::start(&url, count);
    let urls = replicas.urls();
    let client = async |name: &str| {
        let options = ClientOptions::new(Owner::new(name).unwrap()).grant_ttl(Duration::from_secs(30));
        LockClient::connect(&urls, options).await.unwrap()
    };
    let keeper = client("keeper").await;
    let kept = keeper.acquire(&LockKey::new("kept").unwrap()).await.unwrap();
    let (holders, grants, over) = (RefCell::new(BTreeMap::new()), Cell::new(0_u32), Cell::new(false));
    let highest = RefCell::new(BTreeMap::new());
    let work = join_all((0..4_usize).map(|n| {
        let (holders, highest, grants, over) = (&holders, &highest, &grants, &over);
        async move {
            let me = client(&format!("worker {n}")).await;
            let name = format!("hot/{}", n % 2);
            let key = LockKey::new(name.clone()).unwrap();
            while !over.get() {
                let held = me.acquire_within(&key, LONG).await.unwrap();
                let token = held.check_still_held().unwrap();
                assert_eq!(holders.borrow_mut().insert(name.clone(), n), None, "{name} twice");
                let last = highest.borrow_mut().insert(name.clone(), token);
                assert!(last < Some(token), "{token:?} after {last:?}");
                tokio::time::sleep(Duration::from_millis(2)).await;
                held.check_still_held().unwrap();
                holders.borrow_mut().remove(&name);
                held.release().await.unwrap();
                grants.set(grants.get() + 1);
            }
            me.close().await.unwrap();
        }
    }));
    let progress = async |more: u32| {
        let wanted = grants.get() + more;
        while grants.get() < wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let faults = async {
        for victim in 0..count.min(2) {
            progress(20).await;
            replicas.kill(victim);
            progress(20).await;
            replicas.start_again(victim);
        }
        progress(20).await;
        over.set(true);
    };
    tokio::time::timeout(LONG * 2, async { tokio::join!(work, faults) })
        .await
        .expect("the workers go on");
    let token = kept.check_still_held().unwrap();
    assert_eq!(token, kept.token());
    kept.release().await.unwrap();
    keeper.close().await.unwrap();
}

#[test]
fn one_of_two_replicas_is_killed_under_load() {
    block_on(async {
        let url = test_servers::postgres_or_skip().await;
        one_of_several_is_killed(url, 2).await;
    });
}

#[test]
fn one_of_three_replicas_is_killed_under_load() {
    block_on(async {
        let url = test_servers::postgres_or_skip().await;
        one_of_several_is_killed(url, 3).await;
    });
}
