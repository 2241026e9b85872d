//! `dlock exec` against a lock server as a process.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests wait for real processes"
)]

mod common;

use common::{Lab, OFTEN, Relay, code, dlock, stderr, stdout, until, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

fn exec(lab: &Lab, args: &[&str]) -> std::process::Output {
    lab.run(&[&["exec"], args].concat())
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// The process group that a command wrote down.
fn group_in(file: &Path) -> Pid {
    let mut group = 0;
    until("the command has started", || {
        group = std::fs::read_to_string(file)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        group > 0
    });
    Pid::from_raw(group)
}

/// Whether nobody of the group runs any more. Ended processes that nobody reaped do not run.
fn is_gone(group: Pid) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().all(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields.get(2).is_none_or(|member| *member != group.to_string()) || fields[0] == "Z"
    })
}

#[test]
fn the_command_gets_key_and_token_and_its_code_is_passed_through() {
    let lab = Lab::new();
    let ran = exec(
        &lab,
        &["jobs/nightly", "--", "sh", "-c", "echo $DLOCK_KEY $DLOCK_TOKEN; exit 7"],
    );
    assert_eq!(
        (code(&ran), stdout(&ran).as_str()),
        (7, "jobs/nightly 1\n"),
        "{}",
        stderr(&ran)
    );
    assert_eq!(lab.state("jobs/nightly"), "FREE");
    let again = exec(&lab, &["jobs/nightly", "--", "printenv", "DLOCK_TOKEN"]);
    assert_eq!((code(&again), stdout(&again).as_str()), (0, "2\n"), "tokens rise");
    assert!(
        lab.json(&["session", "list"])["items"].as_array().unwrap().is_empty(),
        "sessions are closed"
    );
    // Arguments reach the command as they are: no shell reads them.
    let args = exec(&lab, &["k", "--", "printf", "%s|", "a b", "$HOME", "*", "--ttl"]);
    assert_eq!(stdout(&args), "a b|$HOME|*|--ttl|");
}

#[test]
fn standard_input_passes_through() {
    let lab = Lab::new();
    let mut child = lab
        .dlock()
        .args(["exec", "k", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"over the wall\0\xff").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"over the wall\0\xff");
}

#[test]
fn what_cannot_be_started_or_was_killed_has_a_code_of_its_own() {
    let lab = Lab::new();
    for (command, expected) in [
        (&["/nonexistent/command"][..], 127),
        (&["no-such-command-anywhere"], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "kill -9 $$"], 128 + 9),
        (&["sh", "-c", "kill -15 $$"], 128 + 15),
        (&["sh", "-c", "exit 255"], 255),
    ] {
        let ran = exec(&lab, &[&["k", "--"], command].concat());
        assert_eq!(code(&ran), expected, "{command:?}: {}", stderr(&ran));
        assert_eq!(lab.state("k"), "FREE", "{command:?}");
    }
}

#[test]
fn a_held_lock_is_75_at_once_and_after_waiting() {
    let lab = Lab::new();
    lab.json(&["lock", "acquire", "k", "--ttl", "60s"]);
    let refused = exec(&lab, &["k", "--", "echo", "must not run"]);
    assert_eq!(
        (code(&refused), stdout(&refused).as_str()),
        (75, ""),
        "{}",
        stderr(&refused)
    );
    assert!(stderr(&refused).contains("tester"), "{}", stderr(&refused));
    // A machine that stands still while the answer is due makes it 69, "no answer": then it is asked again.
    let waited = (0..10)
        .map(|_| exec(&lab, &["k", "--wait", "300ms", "--", "echo", "must not run"]))
        .find(|waited| code(waited) != 69)
        .unwrap();
    assert_eq!(
        (code(&waited), stdout(&waited).as_str()),
        (75, ""),
        "{}",
        stderr(&waited)
    );
    // Held for one second only: waiting long enough gets it.
    lab.json(&["lock", "acquire", "short", "--ttl", "1s"]);
    let granted = exec(&lab, &["short", "--wait", "30s", "--", "echo", "ran"]);
    assert_eq!(
        (code(&granted), stdout(&granted).as_str()),
        (0, "ran\n"),
        "{}",
        stderr(&granted)
    );
}

/// A server that keeps silent does not make the wait longer than it was asked to be.
#[test]
fn a_wait_is_over_when_it_is_over_although_the_server_is_stopped() {
    let lab = Lab::new();
    lab.server.signal(Signal::SIGSTOP);
    let from = std::time::Instant::now();
    let ran = exec(&lab, &["k", "--wait", "2s", "--", "echo", "must not run"]);
    let took = from.elapsed();
    lab.server.signal(Signal::SIGCONT);
    assert_eq!((code(&ran), stdout(&ran).as_str()), (69, ""), "{}", stderr(&ran));
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// The wait goes on when the session has ended in an outage that was longer than its TTL.
#[test]
fn a_wait_outlasts_an_outage_longer_than_the_ttl() {
    let lab = Lab::new();
    lab.json(&["lock", "acquire", "k", "--ttl", "60s"]);
    let child = lab
        .dlock()
        .args(["exec", "k", "--ttl", "4s", "--wait", "40s", "--", "echo", "ran"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("it waits", || lab.json(&["lock", "show", "k"])["waiters"] == 1);
    lab.server.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(6));
    lab.server.signal(Signal::SIGCONT);
    lab.revoke("1");
    let ran = child.wait_with_output().unwrap();
    assert_eq!((code(&ran), stdout(&ran).as_str()), (0, "ran\n"), "{}", stderr(&ran));
}

#[test]
fn what_cannot_be_meant_is_a_mistake_in_usage() {
    let lab = Lab::new();
    for signal in ["KILL", "STOP", "sigkill", "NOSUCH"] {
        let ran = exec(&lab, &["k", "--on-yield", signal, "--", "echo", "must not run"]);
        assert_eq!((code(&ran), stdout(&ran).as_str()), (64, ""), "{signal}");
        assert!(stderr(&ran).contains("--on-yield"), "{}", stderr(&ran));
    }
    let ran = exec(&lab, &["k", "--", "", "argument"]);
    assert_eq!(code(&ran), 64, "{}", stderr(&ran));
    assert!(stderr(&ran).contains("COMMAND is empty"), "{}", stderr(&ran));
}

#[test]
fn two_at_once_never_overlap() {
    let lab = Lab::new();
    let log = lab.dir.path().join("log");
    let script = format!("echo in >> {0}; sleep 0.1; echo out >> {0}", log.display());
    let mut children: Vec<_> = (0..4)
        .map(|_| {
            lab.dlock()
                .args(["exec", "k", "--wait", "60s", "--", "sh", "-c", &script])
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut children {
        assert_eq!(wait(child).code(), Some(0));
    }
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.lines().collect::<Vec<_>>(), ["in", "out"].repeat(4));
}

#[test]
fn signals_are_forwarded_to_the_command() {
    let lab = Lab::new();
    for (name, signal) in [
        ("TERM", Signal::SIGTERM),
        ("INT", Signal::SIGINT),
        ("HUP", Signal::SIGHUP),
        ("USR1", Signal::SIGUSR1),
    ] {
        let file = lab.dir.path().join(name);
        let script = format!(
            "trap 'exit 42' {name}; echo $$ > {}; while :; do sleep 0.02; done",
            file.display()
        );
        let mut child = lab
            .dlock()
            .args(["exec", "k", "--", "sh", "-c", &script])
            .spawn()
            .unwrap();
        group_in(&file);
        kill(pid(&child), signal).unwrap();
        assert_eq!(wait(&mut child).code(), Some(42), "{name}");
        assert_eq!(lab.state("k"), "FREE", "{name}");
    }
}

#[test]
fn a_signal_while_waiting_for_the_lock_ends_the_wait() {
    let lab = Lab::new();
    lab.json(&["lock", "acquire", "k", "--ttl", "60s"]);
    let mut child = lab
        .dlock()
        .args(["exec", "k", "--wait", "60s", "--", "true"])
        .spawn()
        .unwrap();
    until("it waits", || lab.json(&["lock", "show", "k"])["waiters"] == 1);
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut child).code(), Some(128 + 15));
    until("it has left the queue", || {
        lab.json(&["lock", "show", "k"])["waiters"] == 0
    });
}

/// The command starts a process that ignores SIGHUP and SIGTERM and writes down what it does; the way to the server is
/// cut. When the next one gets the lock, nothing of the old group may be left.
#[test]
fn case_l01_the_whole_group_is_gone_before_another_can_have_the_key() {
    let lab = Lab::new();
    let relay = Relay::to(&lab.server.addr);
    let (group_file, beat) = (lab.dir.path().join("group"), lab.dir.path().join("beat"));
    let script = format!(
        "trap '' HUP TERM; sh -c \"trap '' HUP TERM; while :; do echo beat >> {}; sleep 0.02; done\" & echo $$ > {}; wait",
        beat.display(),
        group_file.display()
    );
    let mut child = relay.exec(&script).stderr(Stdio::piped()).spawn().unwrap();
    let group = group_in(&group_file);
    until("the grandchild works", || {
        std::fs::metadata(&beat).is_ok_and(|beat| beat.len() > 20)
    });
    relay.cut();
    // The next holder looks for the old group at the very moment it has the lock.
    let look = format!(
        // Through cat: a process that ends in this moment ends an awk that reads its file itself.
        "cat /proc/[0-9]*/stat 2>/dev/null | awk '$5 == {group} && $3 != \"Z\" {{ n++ }} END {{ print n + 0 }}'; wc -c < {}",
        beat.display()
    );
    let next = lab
        .dlock()
        .args(["exec", "k", "--wait", "60s", "--", "sh", "-c", &look])
        .output()
        .unwrap();
    assert_eq!(code(&next), 0, "{}", stderr(&next));
    let seen = stdout(&next);
    let (running, written) = seen.trim().split_once('\n').unwrap();
    assert_eq!(
        running.trim(),
        "0",
        "the old group still ran when the next one had the lock"
    );
    assert!(is_gone(group));
    let at_the_end = std::fs::metadata(&beat).unwrap().len();
    assert_eq!(
        written.trim().parse::<u64>().unwrap(),
        at_the_end,
        "nobody writes any more"
    );
    assert_eq!(wait(&mut child).code(), Some(76));
}

#[test]
fn a_revoke_ends_the_command_with_76() {
    let lab = Lab::with(&[OFTEN]);
    let file = lab.dir.path().join("group");
    let script = format!("echo $$ > {}; while :; do sleep 0.02; done", file.display());
    let mut child = lab
        .dlock()
        .args(["exec", "k", "--ttl", "30s", "--", "sh", "-c", &script])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let group = group_in(&file);
    let token = lab.json(&["lock", "show", "k"])["token"].to_string();
    lab.revoke(&token);
    assert_eq!(wait(&mut child).code(), Some(76));
    assert!(is_gone(group));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("revoked"), "{said}");
}

#[test]
fn a_stopped_command_is_ended_too() {
    let lab = Lab::new();
    let relay = Relay::to(&lab.server.addr);
    let file = lab.dir.path().join("group");
    let script = format!("echo $$ > {}; kill -STOP $$", file.display());
    let mut child = dlock()
        .args([
            "exec",
            "k",
            "--ttl",
            "2s",
            "--lock-server",
            &relay.url(),
            "--",
            "sh",
            "-c",
            &script,
        ])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let group = group_in(&file);
    relay.cut();
    assert_eq!(wait(&mut child).code(), Some(76));
    assert!(is_gone(group));
}

#[test]
fn what_the_command_leaves_behind_is_ended_before_the_lock_is_given_back() {
    let lab = Lab::new();
    let file = lab.dir.path().join("group");
    let script = format!(
        "echo $$ > {}; sh -c \"trap '' HUP TERM; while :; do sleep 0.02; done\" & exit 5",
        file.display()
    );
    let ran = exec(&lab, &["k", "--", "sh", "-c", &script]);
    assert_eq!(code(&ran), 5, "{}", stderr(&ran));
    assert!(is_gone(group_in(&file)));
    assert!(stderr(&ran).contains("left processes behind"), "{}", stderr(&ran));
    assert_eq!(lab.state("k"), "FREE");
}

#[test]
fn a_command_longer_than_the_ttl_keeps_its_lock() {
    let lab = Lab::new();
    let enough = lab.dir.path().join("enough");
    let script = format!("while ! test -e {}; do sleep 0.02; done", enough.display());
    let mut child = lab
        .dlock()
        .args(["exec", "k", "--ttl", "8s", "--", "sh", "-c", &script])
        .spawn()
        .unwrap();
    until("it holds", || lab.state("k") == "HELD");
    let from = std::time::Instant::now();
    while from.elapsed() < Duration::from_secs(12) {
        assert_eq!(lab.state("k"), "HELD");
        std::thread::sleep(Duration::from_millis(300));
    }
    std::fs::write(enough, "").unwrap();
    assert_eq!(wait(&mut child).code(), Some(0));
    assert_eq!(lab.state("k"), "FREE");
}

/// A command that had been stopped saw no signal, and its lock was renewed for ever.
#[test]
fn a_signal_that_ends_reaches_a_stopped_command() {
    let lab = Lab::new();
    let mut child = lab
        .dlock()
        .args(["exec", "k", "--", "sh", "-c", "kill -STOP $$; sleep 600"])
        .spawn()
        .unwrap();
    until("the command is stopped", || {
        let stat = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        children.split_whitespace().any(|pid| stat(pid).contains(") T "))
    });
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut child).code(), Some(128 + 15));
    assert_eq!(lab.state("k"), "FREE");
}

#[test]
fn a_terminal_is_lent_to_the_command() {
    let lab = Lab::new();
    // `script` gives a terminal; the command reads a line from it, and so does the shell afterwards.
    let inner = format!(
        "{} exec k -- sh -c 'read line; echo command got $line'; read line; echo shell got $line",
        common::binary().display()
    );
    let mut child = std::process::Command::new("script")
        .args(["--quiet", "--return", "--command", &inner, "/dev/null"])
        .env("DLOCK_LOCK_SERVER", lab.server.url())
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\ntwo\n").unwrap();
    wait(&mut child);
    drop(stdin);
    let said = stdout(&child.wait_with_output().unwrap());
    assert!(
        said.contains("command got one") && said.contains("shell got two"),
        "{said}"
    );
}
