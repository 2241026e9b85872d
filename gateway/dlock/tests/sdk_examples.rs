//! The examples of the SDK, as processes of their own, with a holder that is stopped while it holds: what it protects
//! refuses it, whatever it believes when it wakes up.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod common;

use common::{LONG, Lab, binary, cargo, code, dlock, stdout, until, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;

/// An example of the package `lock-client`, built with the features this test was built with: then it is there already.
fn example(name: &str) -> PathBuf {
    let features: Vec<_> = [
        ("dlock/etcd", cfg!(feature = "etcd")),
        ("dlock/otel", cfg!(feature = "otel")),
    ]
    .into_iter()
    .filter_map(|(name, on)| on.then_some(name))
    .collect();
    let built = cargo()
        .args([
            "build",
            "--quiet",
            "--offline",
            "--workspace",
            "--example",
            name,
            "--features",
        ])
        .arg(features.join(","))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .status()
        .unwrap();
    assert!(built.success());
    binary().parent().unwrap().join("examples").join(name)
}

/// A program that is talked with.
struct Program {
    child: Child,
    says: Receiver<String>,
    hears: Option<ChildStdin>,
    /// What it has said that was asked for or passed over.
    said: Vec<String>,
}

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, says) = std::sync::mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(to.send(line))));
        Self {
            hears: child.stdin.take(),
            child,
            says,
            said: Vec::new(),
        }
    }

    /// Waits until it says a line that begins so.
    fn says(&mut self, begins: &str) -> String {
        loop {
            // An interpreter on a busy machine takes its time to begin.
            let Ok(line) = self.says.recv_timeout(3 * LONG) else {
                panic!("it never said {begins:?}, but {:?}", self.said);
            };
            self.said.push(line.clone());
            if line.starts_with(begins) {
                return line;
            }
        }
    }

    fn hear(&mut self, line: &str) {
        writeln!(self.hears.as_mut().unwrap(), "{line}").unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Lets it end; everything it said.
    fn ends(mut self) -> Vec<String> {
        drop(self.hears.take());
        assert_eq!(wait(&mut self.child).code(), Some(0), "{:?}", self.said);
        self.said.extend(self.says.iter());
        std::mem::take(&mut self.said)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn command(lab: &Lab, name: &str) -> Command {
    let mut command = Command::new(example(name));
    command.env("DLOCK_LOCK_SERVER", lab.server.url());
    command
}

fn any(said: &[String], begins: &str) -> bool {
    said.iter().any(|line| line.starts_with(begins))
}

#[test]
fn the_sdk_example_sends_each_invoice_under_its_token() {
    let lab = Lab::new();
    let said = Program::start(&mut command(&lab, "sdk")).ends();
    assert_eq!(
        said,
        [
            "sent INV-1 under token 1",
            "sent INV-2 under token 1",
            "sent INV-3 under token 1",
            "sent INV-4 under token 2",
            "and 1 more"
        ]
    );
    assert_eq!(lab.state("invoices/2026-11"), "FREE");
}

#[test]
fn the_cron_job_runs_once_and_a_machine_that_slept_reports_nothing() {
    let lab = Lab::new();
    let (inbox, shelf) = (lab.dir.path().join("inbox"), lab.dir.path().join("shelf"));
    std::fs::create_dir(&inbox).unwrap();
    let machine = |day: &str| {
        let mut command = command(&lab, "cron_job");
        command.args([inbox.to_str().unwrap(), shelf.to_str().unwrap(), day]);
        command
    };
    let arrive = |day: &str, figures: &str| std::fs::write(inbox.join(format!("{day}.csv")), figures).unwrap();
    let report = |day: &str| std::fs::read_to_string(shelf.join(format!("{day}.report"))).unwrap();

    // Two at once: one does it.
    arrive("monday", "1\n2\n");
    let both = [
        Program::start(&mut machine("monday")),
        Program::start(&mut machine("monday")),
    ];
    let said: Vec<String> = both.into_iter().flat_map(Program::ends).collect();
    let reported = said
        .iter()
        .filter(|line| line.starts_with("reported 3 under token"))
        .count();
    assert_eq!(reported, 1, "{said:?}");

    // One is stopped while it works, and another does the work.
    let mut slept = Program::start(&mut machine("tuesday"));
    slept.says("working under token");
    slept.signal(Signal::SIGSTOP);
    until("the lease of the one that sleeps ends", || {
        lab.state("jobs/report/tuesday") == "FREE"
    });
    arrive("tuesday", "10\n");
    let said = Program::start(&mut machine("tuesday")).ends();
    assert!(any(&said, "reported 10 under token"), "{said:?}");
    let written = report("tuesday");
    // The same day again, with what the sleeper must not report.
    arrive("tuesday", "11\n");
    slept.signal(Signal::SIGCONT);
    let status = wait(&mut slept.child);
    assert_eq!(status.code(), Some(1), "the shelf refused it: {:?}", slept.said);
    assert!(!any(&slept.says.iter().collect::<Vec<_>>(), "reported"));
    assert_eq!(report("tuesday"), written);
}

#[test]
fn a_leader_that_slept_is_refused_by_the_plan() {
    let lab = Lab::new();
    let plan = lab.dir.path().join("plan");
    let node = |name: &str| {
        let mut command = command(&lab, "leader_election");
        command.args([name, plan.to_str().unwrap()]);
        Program::start(&mut command)
    };
    let mut first = node("node-1");
    first.says("node-1 leads, term 1");
    let mut second = node("node-2");
    second.says("node-2 stands");
    first.says("node-1 decides");

    // The first leader is on its way into the plan when it is stopped: whoever holds the file's lock keeps it there.
    let held = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&plan)
        .unwrap();
    held.lock().unwrap();
    let written = std::fs::read_to_string(&plan).unwrap();
    let n: u64 = written.split(' ').nth(2).map_or(0, |n| n.parse().unwrap());
    first.says(&format!("node-1 decides {} in term 1", n + 1));
    first.signal(Signal::SIGSTOP);
    second.says("node-2 leads, term ");
    held.unlock().unwrap();
    let decided = second.says("node-2 decides 2 in term");
    first.signal(Signal::SIGCONT);
    assert_eq!(first.says("node-1 is refused"), "node-1 is refused, term 1 is over");
    first.says("node-1 stands");
    let written = std::fs::read_to_string(&plan).unwrap();
    assert!(written.contains("of node-2"), "{decided}, and then {written}");

    // And the other way round, by a leader that ends.
    second.signal(Signal::SIGKILL);
    let leads = first.says("node-1 leads, term ");
    let term: u64 = leads.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(term > 2, "{leads}");
    first.says("node-1 decides 2");
    assert!(std::fs::read_to_string(&plan).unwrap().starts_with(&format!("{term} ")));
}

/// A holder that writes once, is stopped, and is told to write again when another has written: what it says then.
/// `holder` starts one, `begins` is how it begins to say that it has written.
fn a_holder_sleeps(
    lab: &Lab,
    key: &str,
    begins: &str,
    next_hears: &str,
    holder: impl Fn() -> Program,
) -> (Vec<String>, Vec<String>) {
    let mut slept = holder();
    slept.hear("10");
    slept.says(begins);
    slept.signal(Signal::SIGSTOP);
    slept.hear("20");
    until("the lease of the one that sleeps ends", || lab.state(key) == "FREE");
    let mut next = holder();
    next.hear(next_hears);
    next.says(begins);
    let next = next.ends();
    slept.signal(Signal::SIGCONT);
    (slept.ends(), next)
}

#[test]
fn a_stale_till_is_refused_by_the_table() {
    let lab = Lab::new();
    let install = dlock().args(["fence", "sql"]).output().unwrap();
    assert_eq!(code(&install), 0);
    let schema = test_servers::fresh_schema();
    let system = actix_rt::System::new();
    let url = system.block_on(async {
        let url = test_servers::postgres_or_skip().await;
        let joint = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{joint}options=-csearch_path%3D{schema}");
        sql(&url, &format!("CREATE SCHEMA {schema}")).await;
        sql(&url, &stdout(&install)).await;
        sql(
            &url,
            "CREATE TABLE account (id text PRIMARY KEY, balance bigint NOT NULL);
             INSERT INTO account VALUES ('A', 100);
             SELECT dlock_fence_table('account', 'account:', 'id')",
        )
        .await;
        url
    });
    let (slept, next) = a_holder_sleeps(&lab, "account:A", "withdrew ", "5", || {
        Program::start(command(&lab, "sql_table").arg("A").env("DATABASE_URL", &url))
    });
    assert!(any(&slept, "withdrew 10 under token 1, 90 left"), "{slept:?}");
    assert!(any(&next, "withdrew 5 under token 2, 85 left"), "{next:?}");
    assert!(
        any(&slept, "refused by the table: LK001: fenced out of account:A"),
        "{slept:?}"
    );
    assert!(any(&slept, "lost: "), "{slept:?}");
    let balance = system.block_on(sql(&url, "SELECT balance::text FROM account"));
    assert_eq!(balance.as_deref(), Some("85"));
    // What the table is worth: without a token nobody writes it.
    let unguarded = system.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        actix_rt::spawn(connection);
        client.batch_execute("UPDATE account SET balance = 0").await
    });
    assert_eq!(unguarded.unwrap_err().code().unwrap().code(), "LK003");
    system.block_on(sql(&url, &format!("DROP SCHEMA {schema} CASCADE")));
}

/// Runs statements; the first value of the last row.
async fn sql(url: &str, statements: &str) -> Option<String> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    actix_rt::spawn(connection);
    let answers = client.simple_query(statements).await.unwrap();
    answers.iter().rev().find_map(|answer| match answer {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

#[test]
fn a_stale_till_is_refused_by_the_proxy_and_the_service_never_hears_of_it() {
    let lab = Lab::new();
    let mut service = Program::start(Command::new(example("http_resource")).args(["serve", "127.0.0.1:0"]));
    let url = service.says("serving at ");
    let store = format!("sqlite:{}", lab.dir.path().join("fence.db").display());
    let mut proxy = Program::start(dlock().args([
        "fence-proxy",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--upstream",
        url.trim_start_matches("serving at "),
        "--store",
        &store,
        "--key-prefix-segments",
        "2",
    ]));
    let listen = loop {
        let line = proxy.says("{");
        let said: Value = serde_json::from_str(&line).unwrap();
        if said["event"] == "proxying" {
            break said["addr"].as_str().unwrap().to_owned();
        }
    };
    let (slept, next) = a_holder_sleeps(&lab, "accounts/A", "booked ", "5", || {
        Program::start(command(&lab, "http_resource").args(["book", &format!("http://{listen}"), "A"]))
    });
    assert!(any(&slept, "booked 10 under token 1"), "{slept:?}");
    assert!(any(&next, "booked 5 under token 2"), "{next:?}");
    assert!(
        slept
            .iter()
            .any(|line| line.starts_with("refused by the proxy") && line.contains("FENCED_OUT")),
        "{slept:?}"
    );
    drop(proxy);
    service.signal(Signal::SIGTERM);
    let booked: Vec<String> = service
        .ends()
        .into_iter()
        .filter(|line| line.starts_with("booked"))
        .collect();
    assert_eq!(booked, ["booked 10 on A", "booked 5 on A"]);
}

/// A server that speaks S3: moto's, whose conditional puts are tried here before they are relied on.
fn s3() -> (Program, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let made = Command::new("bash")
        .arg(root.join("scripts/python-env"))
        .args(["moto", "moto[s3]==5.2.5", "flask==3.1.2", "flask-cors==6.0.1"])
        .env("CARGO_TARGET_DIR", binary().parent().unwrap().parent().unwrap())
        .output()
        .unwrap();
    assert_eq!(code(&made), 0, "{}", common::stderr(&made));
    let venv = PathBuf::from(stdout(&made).trim());
    // The port is the system's choice: moto prints none, so it is started by hand.
    let start = "from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server('127.0.0.1', 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(f'listening http://127.0.0.1:{server.port}', flush=True)
server.serve_forever()
";
    let mut server = Program::start(Command::new(venv.join("bin/python")).args(["-c", start]));
    let url = server.says("listening ").trim_start_matches("listening ").to_owned();
    (server, url)
}

#[test]
fn a_stale_writer_is_refused_by_the_object_store() {
    let lab = Lab::new();
    let (_server, url) = s3();
    let bucket = format!("{url}/bucket");
    let object = format!("{bucket}/greeting");
    // As the example sends it: the server looks at no signature.
    let unsigned = "Authorization: AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, Signature=none";
    let curl = |args: &[&str]| {
        let done = Command::new("curl")
            .args(["-sS", "-m", "60", "-w", "\n%{http_code}", "-H", unsigned])
            .args(args)
            .output()
            .unwrap();
        assert_eq!(code(&done), 0, "{}", common::stderr(&done));
        stdout(&done)
    };
    assert!(curl(&["-X", "PUT", &bucket]).ends_with("\n200"));
    // The server is one that compares.
    let other = format!("{bucket}/other");
    assert!(curl(&["-X", "PUT", "-d", "1", "-H", "If-None-Match: *", &other]).ends_with("\n200"));
    assert!(curl(&["-X", "PUT", "-d", "2", "-H", "If-None-Match: *", &other]).ends_with("\n412"));
    assert!(curl(&["-X", "PUT", "-d", "2", "-H", "If-Match: \"0\"", &other]).ends_with("\n412"));

    // The next one writes the very same: an ETag without the token in it would not change.
    let (slept, next) = a_holder_sleeps(&lab, &object, "wrote ", "10", || {
        Program::start(command(&lab, "object_store").arg(&object))
    });
    assert!(any(&slept, "wrote 10 under token 1"), "{slept:?}");
    assert!(any(&next, "read under token 2, last written under 1"), "{next:?}");
    assert!(any(&next, "wrote 10 under token 2"), "{next:?}");
    // It put over what it had read before it slept: the store refused, and it found out why.
    assert!(any(&slept, "refused by the store"), "{slept:?}");
    assert!(any(&slept, "given up: token 2 has written, 1 is stale"), "{slept:?}");
    assert_eq!(curl(&[&object]), "2\n10\n\n200");
}
