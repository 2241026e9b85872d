//! Every way out of `dlock exec`: nothing is left at the server, and the command never begins after a signal. And waits that
//! outlast an outage at their start and a server's own bound.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests wait for real processes"
)]

mod common;

use common::{Lab, code, dlock, stderr, stdout, until, wait};
use host_kit::Random;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// One call of the lock server: quicker than a verb of the command line.
fn call(lab: &Lab, method: &str, path: &str, token: &str, body: &Value) -> Value {
    let mut stream = TcpStream::connect(&lab.server.addr).unwrap();
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let token = if token.is_empty() {
        String::new()
    } else {
        format!("x-fencing-token: {token}\r\n")
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n{token}content-length: {}\r\n\r\n",
        lab.server.addr,
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    // A chunked body has its one chunk between two lines.
    let begin = body.find('{').unwrap_or_else(|| panic!("{path}: {answer}"));
    let end = body.rfind('}').unwrap();
    serde_json::from_str(&body[begin..=end]).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
}

/// Somebody whose session lives as long as the test.
struct Holder<'a> {
    lab: &'a Lab,
    session: String,
}

impl<'a> Holder<'a> {
    fn in_lab(lab: &'a Lab) -> Self {
        let opened = call(
            lab,
            "POST",
            "/v1/sessions",
            "",
            &json!({"owner": "holder", "ttl_ms": 300_000}),
        );
        let session = opened["session_id"].as_str().unwrap().to_owned();
        Self { lab, session }
    }

    fn takes(&self, key: &str) -> String {
        let body = json!({"session_id": self.session, "ttl_ms": 300_000});
        let granted = call(self.lab, "POST", &format!("/v1/locks/{key}/acquire"), "", &body);
        assert!(granted["token"].is_u64(), "{key} is not free: {granted}");
        granted["token"].to_string()
    }

    fn gives_back(&self, key: &str, token: &str) {
        let path = format!("/v1/locks/{key}?session_id={}", self.session);
        call(self.lab, "DELETE", &path, token, &Value::Null);
    }

    fn is_alone(&self) -> bool {
        self.others() == 0
    }

    /// How many sessions there are beside this one.
    fn others(&self) -> usize {
        let listed = call(self.lab, "GET", "/v1/sessions?limit=1000", "", &Value::Null);
        listed["items"].as_array().unwrap().len() - 1
    }
}

fn show(lab: &Lab, key: &str) -> Value {
    call(lab, "GET", &format!("/v1/locks/{key}"), "", &Value::Null)
}

/// How often a race is run.
fn rounds(default: u32) -> u32 {
    let said = std::env::var("DLOCK_TEST_INTERRUPTS").ok();
    said.map_or(default, |said| said.parse().expect("DLOCK_TEST_INTERRUPTS is a number"))
}

/// The key is given back and, between 0 and 3 ms later, the one that waits for it is interrupted.
#[test]
fn case_l32_an_exec_that_is_interrupted_around_its_grant_leaves_no_key_and_no_session() {
    let lab = Lab::new();
    let holder = Holder::in_lab(&lab);
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let random = Random::seeded(seed);
    for round in 0..rounds(60) {
        let token = holder.takes("k");
        let mut child = lab
            .dlock()
            .args(["exec", "k", "--wait", "120s", "--ttl", "5m", "--", "true"])
            .spawn()
            .unwrap();
        until("it waits", || show(&lab, "k")["waiters"] == 1);
        let (after, signal) = (
            random.up_to(Duration::from_millis(3)),
            if round % 2 == 0 {
                Signal::SIGTERM
            } else {
                Signal::SIGINT
            },
        );
        holder.gives_back("k", &token);
        std::thread::sleep(after);
        // It may have ended by now; nobody else has its number before it is waited for.
        kill(pid(&child), signal).unwrap();
        let ended = wait(&mut child).code().unwrap();
        assert!(
            ended == 0 || ended == 128 + signal as i32,
            "round {round}, {signal} after {after:?}: {ended}"
        );
        assert_eq!(
            show(&lab, "k")["state"],
            "FREE",
            "round {round}, {signal} after {after:?}: {ended}"
        );
        assert!(holder.is_alone(), "round {round}, {signal} after {after:?}: {ended}");
    }
}

/// It is stopped while the server grants it the key; then comes the signal, and only then it goes on.
#[test]
fn case_l32_a_command_never_runs_after_a_signal() {
    let lab = Lab::new();
    let holder = Holder::in_lab(&lab);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        for _ in 0..3 {
            let token = holder.takes("k");
            let child = lab
                .dlock()
                .args([
                    "exec",
                    "k",
                    "--wait",
                    "120s",
                    "--ttl",
                    "5m",
                    "--",
                    "echo",
                    "must not run",
                ])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            until("it waits", || show(&lab, "k")["waiters"] == 1);
            kill(pid(&child), Signal::SIGSTOP).unwrap();
            holder.gives_back("k", &token);
            until("it is granted the key", || {
                let shown = show(&lab, "k");
                shown["state"] == "HELD" && shown["holder"]["owner"] != "holder"
            });
            kill(pid(&child), signal).unwrap();
            kill(pid(&child), Signal::SIGCONT).unwrap();
            let ran = child.wait_with_output().unwrap();
            assert_eq!(
                (code(&ran), stdout(&ran).as_str()),
                (128 + signal as i32, ""),
                "{signal}"
            );
            assert_eq!(show(&lab, "k")["state"], "FREE", "{signal}");
            assert!(holder.is_alone(), "{signal}");
        }
    }
}

#[test]
fn case_l33_no_session_is_left_by_refused_and_by_interrupted_ones() {
    let lab = Lab::new();
    let holder = Holder::in_lab(&lab);
    holder.takes("k");
    let each = rounds(40).min(40) as usize / 4;
    let spawn = |wait: &[&str]| {
        let args = [&["exec", "k", "--ttl", "5m"], wait, &["--", "echo", "must not run"]].concat();
        let mut command = lab.dlock();
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut unheard = 0;
    for wait in [&[][..], &["--wait", "100ms"]] {
        let refused: Vec<_> = (0..each).map(|_| spawn(wait)).collect();
        for child in refused {
            let ran = child.wait_with_output().unwrap();
            // 69: a machine that stood still while the answer was due.
            assert!([75, 69].contains(&code(&ran)), "{}: {}", code(&ran), stderr(&ran));
            assert_eq!(stdout(&ran), "");
            unheard += usize::from(code(&ran) == 69);
        }
    }
    assert!(
        holder.others() <= unheard,
        "the refused left {} sessions",
        holder.others()
    );
    let before = holder.others();
    // Before it has a session, while it opens one, and while it waits.
    let random = Random::seeded(33);
    for n in 0..each * 2 {
        let mut child = spawn(&["--wait", "120s"]);
        if n % 2 == 0 {
            until("it waits", || show(&lab, "k")["waiters"] == 1);
        } else {
            std::thread::sleep(random.up_to(Duration::from_millis(60)));
        }
        kill(pid(&child), Signal::SIGTERM).unwrap();
        // One that had not begun to listen for signals is ended by the signal itself.
        let status = wait(&mut child);
        assert!(status.code().is_none_or(|code| code == 128 + 15), "{status}");
        assert_eq!(holder.others(), before, "{n}");
        assert_eq!(show(&lab, "k")["waiters"], 0, "{n}");
    }
}

/// Standard error is a pipe that is full and that nobody reads: it ends when its command has ended.
#[test]
fn case_l34_a_standard_error_that_nobody_reads_holds_up_no_end() {
    let lab = Lab::new();
    // As much as the pipe holds, and then something that dlock itself has to say.
    let script = "head -c 65536 /dev/zero >&2; sleep 600 & exit 5";
    let mut child = lab
        .dlock()
        .args(["exec", "k", "--", "sh", "-c", script])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(wait(&mut child).code(), Some(5));
    assert_eq!(lab.state("k"), "FREE");
    // The same where it is refused.
    let token = Holder::in_lab(&lab).takes("k");
    assert!(!token.is_empty());
    let mut full = child.stderr.take().unwrap();
    let mut refused = lab
        .dlock()
        .args(["exec", "k", "--", "true"])
        .stderr(full_pipe())
        .spawn()
        .unwrap();
    assert_eq!(wait(&mut refused).code(), Some(75));
    let mut said = Vec::new();
    full.read_to_end(&mut said).unwrap();
    assert!(said.len() >= 65_536);
}

/// The writing end of a pipe that is full. Its reading end lives as long as the test.
fn full_pipe() -> std::io::PipeWriter {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[0; 65_536]).unwrap();
    std::mem::forget(reader);
    writer
}

/// No lock server answers at first: more often than `lock.acquire.max-attempts`, each connection is closed at once.
#[test]
fn case_l39_an_outage_at_the_start_of_a_wait_counts_for_the_wait() {
    let lab = Lab::new();
    for (verb, ran) in [
        (&["exec", "k", "--wait", "120s", "--", "echo", "ran"][..], "ran\n"),
        (&["lock", "acquire", "m", "--wait", "120s", "--ttl", "5m"], ""),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let child = dlock()
            .args(verb)
            .env("DLOCK_LOCK_SERVER", &url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let upstream = lab.server.addr.clone();
        std::thread::spawn(move || {
            for (n, near) in listener.incoming().map_while(Result::ok).enumerate() {
                if n < 10 {
                    drop(near);
                    continue;
                }
                let Ok(far) = TcpStream::connect(&upstream) else {
                    continue;
                };
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    std::thread::spawn(move || {
                        drop(std::io::copy(&mut from, &mut to));
                        drop(to.shutdown(std::net::Shutdown::Write));
                    });
                }
            }
        });
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 0, "{verb:?}: {}", stderr(&output));
        assert!(stdout(&output).contains(ran), "{verb:?}: {}", stdout(&output));
    }
}

/// The servers let nobody wait for longer than 3 s: who is to wait for longer asks again.
#[test]
fn case_l37_a_wait_goes_on_past_the_servers_own_bound() {
    let lab = Lab::with(&["lock.acquire.wait-max=3s"]);
    for key in ["k", "m"] {
        lab.json(&["lock", "acquire", key, "--ttl", "8s"]);
    }
    let waits = lab
        .dlock()
        .args(["exec", "k", "--wait", "120s", "--", "echo", "ran"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let taken = lab.json(&["lock", "acquire", "m", "--wait", "120s", "--ttl", "4s"]);
    assert!(taken["token"].as_u64() > Some(2), "{taken}");
    let ran = waits.wait_with_output().unwrap();
    assert_eq!((code(&ran), stdout(&ran).as_str()), (0, "ran\n"), "{}", stderr(&ran));
    // A bound of no wait at all makes it ask again and again.
    let lab = Lab::with(&["lock.acquire.wait-max=0ms"]);
    lab.json(&["lock", "acquire", "k", "--ttl", "2s"]);
    let ran = lab.run(&["exec", "k", "--wait", "120s", "--", "echo", "ran"]);
    assert_eq!((code(&ran), stdout(&ran).as_str()), (0, "ran\n"), "{}", stderr(&ran));
}

/// A proxy that cuts its connections when it is told to.
struct Cutting {
    url: String,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cutting {
    fn before(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let (upstream, opened) = (upstream.to_owned(), streams.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&upstream) else {
                    continue;
                };
                opened.lock().unwrap().push(near.try_clone().unwrap());
                opened.lock().unwrap().push(far.try_clone().unwrap());
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    std::thread::spawn(move || {
                        drop(std::io::copy(&mut from, &mut to));
                        drop(to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        Self { url, streams }
    }

    fn cut(&self) {
        for stream in std::mem::take(&mut *self.streams.lock().unwrap()) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// A proxy cuts the first one's connection again and again; the second one has waited since before the first cut.
#[test]
fn case_l38_a_waiter_whose_connections_are_cut_is_before_who_came_later() {
    let lab = Lab::new();
    let holder = Holder::in_lab(&lab);
    let token = holder.takes("k");
    let proxy = Cutting::before(&lab.server.addr);
    let log = lab.dir.path().join("log");
    let waits = |url: &str, name: &str| {
        let script = format!("echo {name} >> {}", log.display());
        let args = ["exec", "k", "--wait", "300s", "--ttl", "60s", "--owner", name];
        let mut command = dlock();
        command
            .args(args)
            .args(["--lock-server", url, "--", "sh", "-c", &script]);
        command.spawn().unwrap()
    };
    let mut first = waits(&proxy.url, "first");
    until("the first one waits", || show(&lab, "k")["waiters"] == 1);
    let mut second = waits(&lab.server.url(), "second");
    until("both wait", || show(&lab, "k")["waiters"] == 2);
    for cut in 0..5 {
        proxy.cut();
        until("the server notices", || {
            proxy.streams.lock().unwrap().len() >= 2 || show(&lab, "k")["waiters"] == 1
        });
        until(&format!("it is back after cut {cut}"), || {
            show(&lab, "k")["waiters"] == 2
        });
    }
    holder.gives_back("k", &token);
    assert_eq!(wait(&mut first).code(), Some(0));
    assert_eq!(wait(&mut second).code(), Some(0));
    assert_eq!(std::fs::read_to_string(log).unwrap(), "first\nsecond\n");
    assert!(holder.is_alone());
}

/// A verb that is interrupted while it waits leaves no session behind.
#[test]
fn case_l33_an_interrupted_lock_acquire_leaves_no_session() {
    let lab = Lab::new();
    let holder = Holder::in_lab(&lab);
    holder.takes("k");
    let mut child = lab
        .dlock()
        .args(["lock", "acquire", "k", "--wait", "120s", "--ttl", "5m"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("it waits", || show(&lab, "k")["waiters"] == 1);
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut child).code(), Some(128 + 15));
    assert!(holder.is_alone());
}
