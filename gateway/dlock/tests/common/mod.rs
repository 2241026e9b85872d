//! Components as child processes, and the binary's answers.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests run outside any runtime and wait for real processes"
)]

pub mod scenario;
pub mod whole;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than anything that works takes.
pub const LONG: Duration = Duration::from_secs(60);

pub fn binary() -> std::path::PathBuf {
    assert_cmd::cargo::cargo_bin!("dlock").to_path_buf()
}

/// Cargo, as a shell would run it: what it told this test about its package and where that was built makes build scripts
/// run again, and with them half of everything would be compiled anew, here and by whoever builds next.
pub fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    let of_this_test = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
        "CARGO_PRIMARY_",
        "OUT_DIR",
    ];
    for (name, _) in std::env::vars() {
        if of_this_test.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// The binary without anything of the caller's environment that could change its answers.
pub fn dlock() -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
        command.env_remove(name);
    }
    command.env("USER", "tester").stdin(Stdio::null());
    command
}

/// A component that runs until it is dropped.
pub struct Process {
    pub child: Child,
    pub addr: String,
    pub name: String,
}

impl Process {
    /// Starts it and waits until it listens.
    pub fn start(args: &[&str]) -> Self {
        let mut child = dlock()
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (to, from) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let json: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
                if json["event"] == "listening" {
                    drop(to.send(json["addr"].as_str().unwrap().to_owned()));
                }
            }
        });
        let addr = from.recv_timeout(LONG).unwrap_or_else(|_| {
            drop(child.kill());
            let mut said = String::new();
            drop(child.stderr.take().unwrap().read_to_string(&mut said));
            panic!("{args:?} does not listen: {said}");
        });
        let name = args[0].to_owned();
        Self { child, addr, name }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// SIGTERM drains and exits 0 (C5.1).
    pub fn terminate(mut self) {
        self.signal(Signal::SIGTERM);
        let status = wait(&mut self.child);
        assert_eq!(status.code(), Some(0), "{}", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn wait(child: &mut Child) -> std::process::ExitStatus {
    let from = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(from.elapsed() < LONG, "still running after {LONG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let from = Instant::now();
    while !holds() {
        assert!(from.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A lock server over a store of its own, and the binary pointed at it.
pub struct Lab {
    pub server: Process,
    pub dir: TempDir,
}

/// Has clients send their heartbeats often, so that they soon learn of what happened to their locks.
pub const OFTEN: &str = "lock.heartbeat.interval=300ms";

impl Lab {
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// With other settings of the server.
    pub fn with(settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", dir.path().join("lock.db").display());
        let mut args = vec!["lock-server", "--listen", "127.0.0.1:0", "--store", &store];
        args.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
        let server = Process::start(&args);
        Self { server, dir }
    }

    pub fn dlock(&self) -> Command {
        let mut command = dlock();
        command.env("DLOCK_LOCK_SERVER", self.server.url());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.dlock().args(args).output().unwrap()
    }

    /// Runs a verb that must succeed, and reads its JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.dlock().args(args).args(["-o", "json"]).output().unwrap();
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Breaks the grant of this token of the key `k`.
    pub fn revoke(&self, token: &str) {
        let by = ["--operator", "olga", "--reason", "stuck for an hour"];
        self.json(&[&["lock", "revoke", "k", "--token", token][..], &by].concat());
    }

    pub fn state(&self, key: &str) -> String {
        self.json(&["lock", "show", key])["state"].as_str().unwrap().to_owned()
    }
}

pub fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A way to a server that can be cut: connections stay, nothing gets through any more.
pub struct Relay {
    pub addr: String,
    cut: Arc<AtomicBool>,
}

impl Relay {
    pub fn to(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let cut = Arc::new(AtomicBool::new(false));
        let (upstream, is_cut) = (upstream.to_owned(), cut.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&upstream) else {
                    continue;
                };
                for (from, to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    let is_cut = is_cut.clone();
                    std::thread::spawn(move || copy(from, to, &is_cut));
                }
            }
        });
        Self { addr, cut }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// `dlock exec k` on the other side, with three seconds from its SIGKILL to the end of its lease, in which a machine may
    /// stand still.
    pub fn exec(&self, script: &str) -> Command {
        let times = ["--ttl", "13s", "--set", "lock.client.safety-margin=6s"];
        let mut command = dlock();
        command.args(["exec", "k", "--lock-server", &self.url()]);
        command.args(times).args(["--", "sh", "-c", script]);
        command
    }

    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut buffer = [0; 8192];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || (!cut.load(Ordering::SeqCst) && to.write_all(&buffer[..read]).is_err()) {
            break;
        }
    }
    drop(to.shutdown(std::net::Shutdown::Write));
}
