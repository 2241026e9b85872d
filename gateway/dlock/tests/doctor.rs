//! `dlock doctor`: a sound deployment is said to be sound, and each thing that can be wrong is found.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use common::whole::{Component, Whole};
use common::{Lab, code, dlock, stderr, stdout};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use tokio_postgres::{Client, NoTls};

/// Runs it; answers the exit code and the checks.
fn doctor(args: &[&str]) -> (i32, Vec<Value>) {
    let ran = dlock()
        .arg("doctor")
        .args(args)
        .args(["-o", "json"])
        .env("PGPASSWORD", PASSWORD)
        .output()
        .unwrap();
    let said: Value =
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", stdout(&ran), stderr(&ran)));
    (code(&ran), said["checks"].as_array().unwrap().clone())
}

/// What was found by the checks of this name at this level.
fn found(checks: &[Value], level: &str, check: &str) -> Vec<String> {
    checks
        .iter()
        .filter(|one| one["level"] == level && one["check"] == check)
        .map(|one| one["found"].as_str().unwrap().to_owned())
        .collect()
}

/// The one thing that is wrong, with something to do about it.
fn only_wrong(checks: &[Value], check: &str) -> String {
    let wrong: Vec<&Value> = checks.iter().filter(|one| one["level"] == "wrong").collect();
    assert!(
        !wrong.is_empty() && wrong.iter().all(|one| one["check"] == check),
        "{wrong:#?}"
    );
    assert!(!wrong[0]["next"].as_str().unwrap().is_empty());
    wrong[0]["found"].as_str().unwrap().to_owned()
}

#[test]
fn a_sound_lab_has_nothing_wrong_and_is_said_to_be_a_lab() {
    let mut whole = Whole::new(&[]);
    let worker = whole.worker("w", &[], &[]);
    let (lock, pay, proxy, executor) = (
        whole.lock.url(),
        whole.payments.url(),
        whole.proxy.url(),
        whole.workers[worker].url(),
    );
    let args = [
        "--lock-server",
        &lock,
        "--payments",
        &pay,
        "--rail-proxy",
        &proxy,
        "--executor",
        &executor,
    ];
    let (code, checks) = doctor(&args);
    let wrong: Vec<&Value> = checks.iter().filter(|one| one["level"] == "wrong").collect();
    assert!(code == 0 && wrong.is_empty(), "{wrong:#?}");
    assert_eq!(found(&checks, "warning", "build").len(), 4, "each is a lab build");
    for (check, times) in [
        ("ready", 4),
        ("debug.control", 4),
        ("fence", 2),
        ("lineage", 1),
        ("heartbeats", 1),
        ("probe", 1),
        ("ledger", 1),
        ("ambiguous", 1),
        ("exceptions", 1),
        ("versions", 1),
        ("clocks", 1),
    ] {
        assert_eq!(found(&checks, "ok", check).len(), times, "{check}: {checks:#?}");
    }
    // The probe left nothing behind, and without it no lock was taken.
    let held = whole.run(&["lock", "list", "--prefix", "dlock/doctor/", "-o", "json"]);
    let held: Value = serde_json::from_slice(&held.stdout).unwrap();
    let keys = held["items"].as_array().unwrap();
    assert!(keys.len() == 1 && keys[0]["state"] == "FREE", "{keys:?}");
    let (_, checks) = doctor(&["--lock-server", &lock, "--no-probe"]);
    assert_eq!(found(&checks, "not_checked", "probe"), ["--no-probe"]);
    // For people: a line each, and what to do below it.
    let ran = dlock().arg("doctor").args(args).output().unwrap();
    let said = stdout(&ran);
    assert!(
        said.contains("lock-server http://") && said.contains("warning") && said.contains("-> in production"),
        "{said}"
    );
    assert!(said.contains(" 0 wrong, "), "{said}");
}

#[test]
fn a_fence_that_is_off_and_a_debug_control_that_is_on_are_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let pay = format!("sqlite:{}", dir.path().join("pay").display());
    let start = |more: &[&str]| {
        let mut args = vec!["payment-resource", "--listen", "127.0.0.1:0", "--store", &pay];
        args.extend(more);
        Component::start(&args, &[])
    };
    {
        let open = start(&["--set", "payment.fencing.enabled=false"]);
        let (code, checks) = doctor(&["--payments", &open.url()]);
        assert!(code == 1 && only_wrong(&checks, "fence").starts_with("OFF"));
    }
    {
        let open = start(&["--set", "debug.control=true"]);
        let (code, checks) = doctor(&["--payments", &open.url()]);
        assert!(code == 1 && only_wrong(&checks, "debug.control").starts_with("on"));
    }
    let sound = start(&[]);
    assert_eq!(doctor(&["--payments", &sound.url()]).0, 0);
    // A ledger that does not hold together.
    let account = r#"{"account_id":"A","currency":"EUR","opening_balance_minor":5}"#;
    let opened = std::process::Command::new("curl")
        .args([
            "--silent",
            "--fail",
            "--header",
            "content-type: application/json",
            "--data",
            account,
        ])
        .arg(format!("{}/v1/accounts", sound.url()))
        .output()
        .unwrap();
    assert!(opened.status.success());
    let file = dir.path().join("pay/payment.db");
    let python = "import sqlite3, sys\nwith sqlite3.connect(sys.argv[1]) as db:\n db.execute('UPDATE account SET balance_minor = 6')";
    let edited = std::process::Command::new("python3")
        .args(["-c", python])
        .arg(&file)
        .output()
        .unwrap();
    assert!(edited.status.success(), "{}", stderr(&edited));
    let (code, checks) = doctor(&["--payments", &sound.url()]);
    assert!(code == 1 && only_wrong(&checks, "ledger").contains("stored balance of 0.06 EUR"));
}

#[test]
fn what_cannot_be_reached_says_which_step_failed() {
    let nobody = test_servers::reserved();
    let (code, checks) = doctor(&["--lock-server", &format!("http://{}", nobody.address())]);
    assert!(code == 1 && only_wrong(&checks, "connect").contains("refused"));
    let (code, checks) = doctor(&["--lock-server", "http://no-such-host.invalid:1"]);
    assert!(code == 1 && only_wrong(&checks, "name").contains("no-such-host.invalid"));
    // Something listens and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, checks) = doctor(&["--lock-server", &format!("http://{}", mute.local_addr().unwrap())]);
    assert!(code == 1 && only_wrong(&checks, "http").contains("no answer"));
    // A component, but another one.
    let lab = Lab::new();
    let (code, checks) = doctor(&["--payments", &lab.server.url()]);
    assert!(code == 1 && only_wrong(&checks, "http").contains("this is a lock-server"));
    let ran = dlock().arg("doctor").output().unwrap();
    assert_eq!(common::code(&ran), 64, "{}", stderr(&ran));
}

#[test]
fn two_stores_behind_one_list_and_a_doubt_are_found() {
    let (one, two) = (Lab::new(), Lab::new());
    let both = format!("{},{}", one.server.url(), two.server.url());
    let (code, checks) = doctor(&["--lock-server", &both]);
    assert_eq!(code, 1);
    assert!(
        found(&checks, "wrong", "one store")[0].contains("they grant the same key twice"),
        "{checks:#?}"
    );
    assert!(
        found(&checks, "wrong", "probe")
            .iter()
            .all(|said| said.contains("another store"))
    );
    // A client that has seen a higher token than was ever minted: the store may have been rewound.
    let session = one.json(&["lock", "acquire", "k"])["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let body = format!(r#"{{"session_id":"{session}","witness_token":1000}}"#);
    std::process::Command::new("curl")
        .args([
            "--silent",
            "--header",
            "content-type: application/json",
            "--data",
            &body,
        ])
        .arg(format!("{}/v1/locks/x/acquire", one.server.url()))
        .output()
        .unwrap();
    let (code, checks) = doctor(&["--lock-server", &one.server.url()]);
    assert_eq!(code, 1);
    assert!(
        found(&checks, "wrong", "lineage")[0].contains("REGRESSED"),
        "{checks:#?}"
    );
    assert!(found(&checks, "wrong", "ready")[0].contains("lineage"));
    assert!(found(&checks, "wrong", "probe")[0].contains("no grant"));
}

/// Something that answers as a lock server of another version would, with a clock of long ago.
fn of_another_time() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map_while(Result::ok);
                while let Some(first) = lines.next() {
                    let _head = lines.by_ref().take_while(|line| !line.is_empty()).count();
                    let (status, body) = if first.contains(" /version ") {
                        ("200 OK", r#"{"component":"lock-server","version":"9.9.9","lab":false}"#)
                    } else {
                        ("404 Not Found", "{}")
                    };
                    let date = "Thu, 01 Jan 2026 00:00:00 GMT";
                    let answer = format!(
                        "HTTP/1.1 {status}\r\ndate: {date}\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

#[test]
fn another_version_and_another_clock_are_found() {
    let lab = Lab::new();
    let both = format!("{},{}", lab.server.url(), of_another_time());
    let (code, checks) = doctor(&["--lock-server", &both, "--no-probe"]);
    assert_eq!(code, 1);
    assert!(found(&checks, "wrong", "versions")[0].contains("9.9.9"), "{checks:#?}");
    let apart = &found(&checks, "warning", "clocks")[0];
    assert!(
        apart.contains("and this machine at least") && apart.matches("at least").count() == 2,
        "{apart}"
    );
}

const PASSWORD: &str = "secret";

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[actix_web::test]
async fn a_store_on_postgresql_is_judged_by_its_settings_roles_and_rights() {
    let url = test_servers::postgres_or_skip().await;
    let (_, place) = url.split_once('@').unwrap();
    let schema = test_servers::fresh_schema();
    let (owner, payment, rail) = (format!("{schema}_o"), format!("{schema}_p"), format!("{schema}_r"));
    let admin = connect(&url).await;
    let database: String = admin
        .query_one("SELECT current_database()::text", &[])
        .await
        .unwrap()
        .get(0);
    let rights = format!(
        "CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD '{PASSWORD}'; GRANT CREATE ON DATABASE {database} TO {owner}"
    );
    test_servers::change_database(&admin, &rights).await;
    let pay = format!("postgres://{owner}@{place}");
    let named = [
        "--pay-schema",
        &schema,
        "--payment-role",
        &payment,
        "--rail-role",
        &rail,
    ];
    let look = |more: &[&str]| {
        let args: Vec<&str> = [&["--pay-store", &pay], named.as_slice(), more].concat();
        doctor(&args)
    };
    // Nothing is there yet.
    let (code, checks) = look(&[]);
    assert!(code == 1 && only_wrong(&checks, "schema").contains("missing"));
    let migrated = dlock()
        .args(["migrate", "--create-roles", "--store", &pay, "--schema", &schema])
        .args(["--payment-role", &payment, "--rail-role", &rail])
        .env("PGPASSWORD", PASSWORD)
        .output()
        .unwrap();
    assert_eq!(common::code(&migrated), 0, "{}", stderr(&migrated));
    let (code, checks) = look(&[]);
    assert_eq!(code, 0, "{checks:#?}");
    for check in [
        "connect",
        "writable",
        "fsync",
        "full_page_writes",
        "clock",
        "schema",
        "guards",
        "lineage",
        "roles",
        "rights",
    ] {
        assert_eq!(found(&checks, "ok", check).len(), 1, "{check}: {checks:#?}");
    }
    // Each thing that can be taken from it, and put back.
    for (broken, mended, check, what) in [
        (
            format!("GRANT UPDATE ON {schema}.ledger_entry TO {payment}"),
            format!("REVOKE UPDATE ON {schema}.ledger_entry FROM {payment}"),
            "rights",
            "ledger_entry",
        ),
        (
            format!("GRANT SELECT ON {schema}.account TO {rail}"),
            format!("REVOKE SELECT ON {schema}.account FROM {rail}"),
            "rights",
            "account",
        ),
        (
            format!("REVOKE INSERT ON {schema}.rail_lookup FROM {rail}"),
            format!("GRANT INSERT ON {schema}.rail_lookup TO {rail}"),
            "rights",
            "rail_lookup",
        ),
        (
            format!("CREATE TABLE {schema}.mine (a int); GRANT DELETE ON {schema}.mine TO {rail}"),
            format!("DROP TABLE {schema}.mine"),
            "rights",
            "about which nobody decided",
        ),
        (
            format!("ALTER TABLE {schema}.ledger_entry DISABLE TRIGGER USER"),
            format!("ALTER TABLE {schema}.ledger_entry ENABLE TRIGGER USER"),
            "guards",
            "switched off",
        ),
        (
            format!("GRANT {rail} TO {payment}"),
            format!("REVOKE {rail} FROM {payment}"),
            "roles",
            "a member of the other",
        ),
        (
            format!("INSERT INTO {schema}.pay_schema VALUES (99, now())"),
            format!("DELETE FROM {schema}.pay_schema WHERE version = 99"),
            "schema",
            "newer than this build's",
        ),
    ] {
        admin.batch_execute(&broken).await.unwrap();
        let (code, checks) = look(&[]);
        let said = found(&checks, "wrong", check);
        assert!(
            code == 1 && said.iter().any(|said| said.contains(what)),
            "{broken}: {checks:#?}"
        );
        admin.batch_execute(&mended).await.unwrap();
        assert_eq!(look(&[]).0, 0, "after {mended}");
    }
    admin
        .batch_execute(&format!(
            "ALTER TABLE {schema}.pay_lineage DISABLE TRIGGER USER; UPDATE {schema}.pay_lineage SET origin = 'moved';
            ALTER TABLE {schema}.pay_lineage ENABLE TRIGGER USER"
        ))
        .await
        .unwrap();
    assert!(found(&look(&[]).1, "warning", "lineage")[0].contains("restored or moved"));

    // The lock store on the same server: a warning. A commit that is not waited for: wrong.
    let lock_schema = format!("{schema}_l");
    let lock = format!("postgres://{owner}@{place}");
    let migrated = dlock()
        .args([
            "migrate",
            "--lock-store",
            &lock,
            "--set",
            &format!("lock.store.schema={lock_schema}"),
        ])
        .env("PGPASSWORD", PASSWORD)
        .output()
        .unwrap();
    assert_eq!(common::code(&migrated), 0, "{}", stderr(&migrated));
    let (code, checks) = look(&["--lock-store", &lock, "--lock-schema", &lock_schema]);
    assert_eq!(code, 0, "{checks:#?}");
    assert!(
        found(&checks, "warning", "two servers")[0].contains("one database"),
        "{checks:#?}"
    );
    let lazy = format!("{lock}?options=-c%20synchronous_commit%3Doff");
    let (code, checks) = doctor(&["--lock-store", &lazy, "--lock-schema", &lock_schema]);
    assert!(code == 1 && only_wrong(&checks, "synchronous_commit").starts_with("off"));
    // What is no PostgreSQL is not looked at, and a wrong password is.
    let (code, checks) = doctor(&["--lock-store", "sqlite:/nowhere/lock.db"]);
    assert!(
        code == 0 && found(&checks, "not_checked", "store").len() == 1,
        "{checks:#?}"
    );
    let (code, checks) = doctor(&["--pay-store", &format!("postgres://nobody_{schema}@{place}")]);
    assert!(code == 1 && !only_wrong(&checks, "connect").contains(PASSWORD));
}
