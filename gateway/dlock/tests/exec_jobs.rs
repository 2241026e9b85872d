//! `dlock exec` as a job of an interactive shell on a real terminal: stopped, continued, ended.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests wait for real processes"
)]

mod common;

use common::{Lab, dlock, until, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

/// An interactive bash on a pseudo-terminal, and somebody who types.
struct Shell {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
    asked: usize,
}

impl Shell {
    fn on(lab: &Lab) -> Self {
        let mut child = Command::new("script")
            .args([
                "--quiet",
                "--return",
                "--command",
                "bash --norc --noprofile -i",
                "/dev/null",
            ])
            .envs([("TERM", "dumb"), ("PS1", "ready> "), ("HISTFILE", "/dev/null")])
            .env("DLOCK_LOCK_SERVER", lab.server.url())
            .env("SHELL", "/bin/sh")
            .current_dir(lab.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = out.read(&mut buffer) {
                shown.lock().unwrap().extend_from_slice(&buffer[..read]);
            }
        });
        let shell = Self {
            child,
            keys,
            screen,
            asked: 0,
        };
        shell.sees("ready> ");
        shell
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    fn sees(&self, text: &str) {
        until(&format!("{text:?} on the screen"), || self.screen().contains(text));
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Runs a line in the shell; what it prints shows that the shell had the terminal. The answer is computed, so that the
    /// echo of what was typed is no answer.
    fn answers(&mut self) {
        self.asked += 1;
        self.types(&format!("echo prompt-$((100 + {}))\n", self.asked));
        self.sees(&format!("prompt-{}", 100 + self.asked));
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("on the screen:\n{}", self.screen());
        }
        // The terminal goes away, and with it whoever is on it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A command that counts, in a file, as long as it runs.
struct Counter {
    script: PathBuf,
    file: PathBuf,
}

impl Counter {
    fn in_lab(lab: &Lab, begin: &str) -> Self {
        let (script, file) = (lab.dir.path().join("count.sh"), lab.dir.path().join("counter"));
        // In a subshell: a shell that starts `sleep` by vfork cannot be stopped as long as its child, stopped in that moment,
        // has not become `sleep`.
        let text = format!("{begin}\nwhile :; do printf x >> counter; (sleep 0.01); done\n");
        std::fs::write(&script, text).unwrap();
        Self { script, file }
    }

    fn now(&self) -> u64 {
        std::fs::metadata(&self.file).map_or(0, |file| file.len())
    }

    fn counts_on(&self) {
        let from = self.now();
        until("the command counts", || self.now() > from + 3);
    }
}

/// The processes that run the script, and their states.
fn states(counter: &Counter) -> Vec<String> {
    let script = counter.script.file_name().unwrap().to_str().unwrap();
    let mut states = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let cmdline = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let cwd = std::fs::read_link(process.path().join("cwd")).unwrap_or_default();
        let is_ours = cwd == counter.script.parent().unwrap();
        if is_ours
            && cmdline.split(|byte| *byte == 0).any(|arg| arg == script.as_bytes())
            && !cmdline.starts_with(b"bash")
        {
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            states.extend(
                stat.rsplit(')')
                    .next()
                    .unwrap()
                    .split_whitespace()
                    .next()
                    .map(str::to_owned),
            );
        }
    }
    states
}

fn line(args: &str) -> String {
    format!(
        "{} exec k {args} -- sh count.sh; echo code-$?\n",
        common::binary().display()
    )
}

/// Both `dlock exec` and its command are stopped.
fn until_stopped(counter: &Counter) {
    until("dlock and the command are stopped", || {
        let states = states(counter);
        states.len() >= 2 && states.iter().all(|state| state == "T")
    });
}

#[test]
fn stopped_by_the_terminal_and_continued_in_the_foreground() {
    let lab = Lab::new();
    let counter = Counter::in_lab(&lab, "");
    let mut shell = Shell::on(&lab);
    shell.types(&line("--ttl 60s"));
    counter.counts_on();
    for _ in 0..2 {
        shell.types("\x1a");
        until_stopped(&counter);
        shell.answers();
        assert_eq!(lab.state("k"), "HELD", "stopped for less than its TTL");
        shell.types("fg\n");
        counter.counts_on();
    }
    // It has the terminal: ^C reaches it.
    shell.types("\x03");
    until("nobody holds the lock", || lab.state("k") == "FREE");
    shell.answers();
    assert!(states(&counter).is_empty());
    shell.sees("nobody renews k meanwhile");
}

#[test]
fn continued_in_the_background_and_taken_to_the_foreground() {
    let lab = Lab::new();
    let counter = Counter::in_lab(&lab, "");
    let mut shell = Shell::on(&lab);
    shell.types(&line("--ttl 60s"));
    counter.counts_on();
    shell.types("\x1a");
    until_stopped(&counter);
    shell.types("bg\n");
    counter.counts_on();
    shell.answers();
    assert_eq!(lab.state("k"), "HELD");
    shell.types("fg\n");
    shell.sees("fg");
    counter.counts_on();
    shell.types("\x1a");
    until_stopped(&counter);
    shell.types("bg\n");
    counter.counts_on();
    // Ended in the background: the shell keeps the terminal.
    shell.types("kill %1\n");
    until("nobody holds the lock", || lab.state("k") == "FREE");
    shell.answers();
    assert!(states(&counter).is_empty());
}

#[test]
fn a_command_that_reads_in_the_background_stops_until_it_has_the_terminal() {
    let lab = Lab::new();
    let counter = Counter::in_lab(&lab, "printf s > started; read line; printf '%s' \"$line\" > line");
    let mut shell = Shell::on(&lab);
    let in_background = format!("{} exec k --ttl 60s -- sh count.sh &\n", common::binary().display());
    shell.types(&in_background);
    until_stopped(&counter);
    shell.answers();
    shell.types("fg\n");
    until("dlock goes on", || states(&counter).iter().any(|state| state != "T"));
    shell.types("something to read\n");
    counter.counts_on();
    let line = std::fs::read_to_string(lab.dir.path().join("line")).unwrap();
    assert_eq!(line, "something to read");
    shell.types("\x03");
    until("nobody holds the lock", || lab.state("k") == "FREE");
    shell.answers();
}

/// The lock is lost while the job is stopped: the command never runs another instruction, not even its trap.
#[test]
fn a_job_whose_lock_was_lost_while_it_was_stopped_is_killed_where_it_stands() {
    for continued_by in ["fg\n", "bg\n"] {
        let lab = Lab::new();
        let counter = Counter::in_lab(&lab, "trap 'printf x >> counter' TERM HUP CONT");
        let mut shell = Shell::on(&lab);
        shell.types(&line("--ttl 6s"));
        counter.counts_on();
        shell.types("\x1a");
        until_stopped(&counter);
        let counted = counter.now();
        // Another one has the lock, and gives it back.
        let other = lab.run(&["exec", "k", "--wait", "60s", "--", "true"]);
        assert_eq!(common::code(&other), 0, "{}", common::stderr(&other));
        shell.types(continued_by);
        until("the job is gone", || states(&counter).is_empty());
        shell.answers();
        shell.sees("the command is ended");
        assert_eq!(
            counter.now(),
            counted,
            "{continued_by:?}: it ran after its lock was lost"
        );
    }
}

/// Revoked while it was stopped, long before its deadline: the server is asked before the command goes on.
#[test]
fn a_job_whose_lock_was_revoked_while_it_was_stopped_is_killed_where_it_stands() {
    let lab = Lab::new();
    let counter = Counter::in_lab(&lab, "trap 'printf x >> counter' TERM HUP CONT");
    let mut shell = Shell::on(&lab);
    let exec = format!("{} exec k --ttl 120s -- sh count.sh\n", common::binary().display());
    shell.types(&exec);
    counter.counts_on();
    shell.types("\x1a");
    until_stopped(&counter);
    let counted = counter.now();
    let token = lab.json(&["lock", "show", "k"])["token"].to_string();
    let why = ["--operator", "olga", "--reason", "stopped for too long"];
    lab.json(&[&["lock", "revoke", "k", "--token", &token], &why[..]].concat());
    shell.types("fg; echo code-$((70 + $? - 70))\n");
    until("the job is gone", || states(&counter).is_empty());
    shell.sees("revoked");
    shell.sees("code-76");
    assert_eq!(counter.now(), counted, "it ran after its lock was lost");
}

/// Nobody could continue it: a container's first process, a job of no shell.
#[test]
fn where_there_is_no_shell_nobody_is_stopped() {
    let lab = Lab::new();
    let counter = Counter::in_lab(&lab, "");
    let inner = format!("exec {} exec k --ttl 60s -- sh count.sh", common::binary().display());
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &inner, "/dev/null"])
        .env("DLOCK_LOCK_SERVER", lab.server.url())
        .env("SHELL", "/bin/sh")
        .current_dir(lab.dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    counter.counts_on();
    for _ in 0..3 {
        keys.write_all(b"\x1a").unwrap();
        counter.counts_on();
    }
    keys.write_all(b"\x03").unwrap();
    assert_eq!(wait(&mut child).code(), Some(128 + 2));
    assert_eq!(lab.state("k"), "FREE");
}

/// Stopped from outside dlock cannot end its command in time; when it goes on, the command has no time left to comply.
#[test]
fn after_a_stop_of_dlock_alone_the_command_is_killed_at_once() {
    let lab = Lab::new();
    let counter = Counter::in_lab(&lab, "trap 'printf t > complied' TERM");
    let mut child = dlock()
        .args(["exec", "k", "--ttl", "6s", "--", "sh", "count.sh"])
        .env("DLOCK_LOCK_SERVER", lab.server.url())
        .current_dir(lab.dir.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    counter.counts_on();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let other = lab.run(&["exec", "k", "--wait", "60s", "--", "true"]);
    assert_eq!(common::code(&other), 0, "{}", common::stderr(&other));
    kill(pid, Signal::SIGCONT).unwrap();
    assert_eq!(wait(&mut child).code(), Some(76));
    assert!(
        !lab.dir.path().join("complied").exists(),
        "it was given time it did not have"
    );
    assert!(states(&counter).is_empty());
}
