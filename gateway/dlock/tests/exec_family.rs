//! `dlock exec` and what its command starts: whatever leaves the command's group is found and ended too.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests wait for real processes"
)]

mod common;

use common::scenario::docker;
use common::{Lab, OFTEN, Relay, binary, code, stderr, stdout, until, wait};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Writes the time, in nanoseconds, again and again, and ends by no signal that can be ignored.
const DAEMON: &str = "trap '' HUP INT TERM; echo $$ > pid; while :; do date +%s%N >> beats; sleep 0.01; done";

/// The kinds of descendants a command can have.
const KINDS: [(&str, &str); 5] = [
    ("the command itself", "exec sh daemon.sh"),
    ("a child", "sh daemon.sh & wait"),
    ("a child in a session of its own", "setsid sh daemon.sh & sleep 600"),
    ("a double fork", "(setsid sh daemon.sh &) ; sleep 600"),
    (
        "a double fork that ends its parent twice",
        "setsid sh -c 'setsid sh daemon.sh & exit 0' & sleep 600",
    ),
];

fn beats(dir: &Path) -> Vec<u128> {
    let text = std::fs::read_to_string(dir.join("beats")).unwrap_or_default();
    // The last line may be half written by whoever was killed.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.parse().unwrap()).collect()
}

/// Ends the one whose id is in `pid`.
fn kill(dir: &Path) {
    let pid = std::fs::read_to_string(dir.join("pid"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}

fn runs(dir: &Path) -> bool {
    let pid = std::fs::read_to_string(dir.join("pid")).unwrap_or_default();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

/// The way to the server is cut while a descendant that ignores SIGTERM writes the time. The next holder writes the time it
/// has the lock: nothing of the old command may have written later.
#[test]
fn case_l01_no_descendant_overlaps_with_the_next_holder() {
    std::thread::scope(|scope| {
        for (kind, script) in KINDS {
            scope.spawn(move || no_descendant_overlaps(kind, script));
        }
    });
}

fn no_descendant_overlaps(kind: &str, script: &str) {
    let lab = Lab::new();
    let dir = lab.dir.path();
    std::fs::write(dir.join("daemon.sh"), DAEMON).unwrap();
    let relay = Relay::to(&lab.server.addr);
    let mut child = relay
        .exec(script)
        .current_dir(dir)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the descendant works", || beats(dir).len() > 5);
    relay.cut();
    let next = lab
        .dlock()
        .args(["exec", "k", "--wait", "60s", "--", "date", "+%s%N"])
        .output()
        .unwrap();
    assert_eq!(code(&next), 0, "{kind}: {}", stderr(&next));
    let granted: u128 = stdout(&next).trim().parse().unwrap();
    assert_eq!(wait(&mut child).code(), Some(76), "{kind}");
    assert!(!runs(dir), "{kind}: it still runs");
    let last = beats(dir).into_iter().max().unwrap();
    let overlap = last.saturating_sub(granted);
    assert_eq!(overlap, 0, "{kind}: it worked for {overlap} ns beside the next holder");
    println!(
        "{kind}: ended {} ms before the next grant",
        (granted - last) / 1_000_000
    );
}

#[test]
fn a_daemon_that_the_command_leaves_is_ended_before_the_lock_is_given_back() {
    let lab = Lab::new();
    let dir = lab.dir.path();
    std::fs::write(dir.join("daemon.sh"), DAEMON).unwrap();
    let script = "(setsid sh daemon.sh >daemon.log 2>&1 &); while ! test -s beats; do :; done; exit 5";
    let ran = lab
        .dlock()
        .args(["exec", "k", "--", "sh", "-c", script])
        .current_dir(dir)
        .output()
        .unwrap();
    assert_eq!(code(&ran), 5, "{}", stderr(&ran));
    let pid = std::fs::read_to_string(dir.join("pid")).unwrap();
    let said = stderr(&ran);
    assert!(
        said.contains("left processes behind") && said.contains(pid.trim()),
        "{said}"
    );
    assert!(!runs(dir));
    assert_eq!(lab.state("k"), "FREE");
}

/// A shell that becomes `dlock exec` leaves it children that are none of the command's.
#[test]
fn a_child_from_before_is_left_alone() {
    let lab = Lab::new();
    let dir = lab.dir.path();
    let script = format!(
        "sleep 600 & echo $! > pid; exec {} exec k --lock-server {} -- true",
        binary().display(),
        lab.server.url()
    );
    let mut ran = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir)
        .spawn()
        .unwrap();
    assert_eq!(wait(&mut ran).code(), Some(0));
    assert!(runs(dir), "it was ended");
    kill(dir);
}

/// Every signal that can be handed on reaches the command, and an end by a signal has its code.
#[test]
fn every_signal_is_passed_on() {
    use nix::sys::signal::Signal::*;
    let lab = Lab::new();
    let dir = lab.dir.path();
    let mut script = String::new();
    let signals = [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM, SIGTERM];
    for signal in signals {
        let name = signal.as_str().trim_start_matches("SIG");
        script.push_str(&format!("trap 'echo {name} >> seen' {name}\n"));
    }
    script.push_str("trap 'echo TERM >> seen; exit 42' TERM\necho > ready; while :; do sleep 0.01; done");
    let mut child = lab
        .dlock()
        .args(["exec", "k", "--", "sh", "-c", &script])
        .current_dir(dir)
        .spawn()
        .unwrap();
    until("it is ready", || dir.join("ready").exists());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    for (sent, signal) in signals.into_iter().enumerate() {
        nix::sys::signal::kill(pid, signal).unwrap();
        until("it is seen", || {
            std::fs::read_to_string(dir.join("seen"))
                .unwrap_or_default()
                .lines()
                .count()
                == sent + 1
        });
    }
    let seen = std::fs::read_to_string(dir.join("seen")).unwrap();
    assert_eq!(seen, "HUP\nINT\nQUIT\nUSR1\nUSR2\nWINCH\nALRM\nTERM\n");
    assert_eq!(wait(&mut child).code(), Some(42));
}

/// `dlock exec` as the first process of a container, where nobody else reaps.
fn in_container(lab: &Lab, command: &[&str]) -> Output {
    let image = std::env::var("DLOCK_DEBIAN_IMAGE").unwrap_or_else(|_| "dlock-offline/debian:12".into());
    let mut docker = Command::new("docker");
    docker.args(["run", "--rm", "--network", "host", "--label", "dlock.test=exec"]);
    let mount = format!("{}:/usr/local/bin/dlock:ro", binary().display());
    docker.args([
        "--volume",
        &mount,
        "--env",
        &format!("DLOCK_LOCK_SERVER={}", lab.server.url()),
    ]);
    docker
        .args(["--entrypoint", "dlock", &image, "exec", "k", "--"])
        .args(command);
    docker.output().unwrap()
}

#[test]
fn as_the_first_process_of_a_container_no_zombie_is_left() {
    if !docker() {
        return;
    }
    let lab = Lab::new();
    // A hundred orphans end; one that is never reaped stays a zombie.
    let script = "[ $PPID -eq 1 ] || exit 9
        for n in $(seq 100); do (sh -c 'echo >> /tmp/ended' &); done
        while [ $(wc -l < /tmp/ended) -lt 100 ]; do :; done
        for n in $(seq 3000); do
            cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z ' || { echo clean; exit 3; }
        done; exit 1";
    let ran = in_container(&lab, &["sh", "-c", script]);
    assert_eq!((code(&ran), stdout(&ran).as_str()), (3, "clean\n"), "{}", stderr(&ran));
    assert_eq!(lab.state("k"), "FREE");
    let killed = in_container(&lab, &["sh", "-c", "kill -KILL $$"]);
    assert_eq!(code(&killed), 128 + 9, "{}", stderr(&killed));
    let daemon = in_container(&lab, &["sh", "-c", "(setsid sleep 600 &); exit 4"]);
    assert_eq!(code(&daemon), 4, "{}", stderr(&daemon));
    assert_eq!(lab.state("k"), "FREE");
}

/// Each link lives for as many milliseconds as the first argument says, starts the next one and ends: no list of processes
/// has all of them. It writes the time, in nanoseconds, and the token.
const CHAIN: &str = "
import os, signal, sys, time
if 'ignores' in sys.argv:
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
end = time.time() + 30
while time.time() < end:
    time.sleep(int(sys.argv[1]) / 1000)
    if os.fork():
        os._exit(0)
    if 'session' in sys.argv:
        os.setsid()
    with open('chain', 'a') as file:
        file.write('%d %s\\n' % (time.time_ns(), os.environ['DLOCK_TOKEN']))
";

/// How long a link lives, and what it ignores.
const CHAINS: [&str; 6] = [
    "2",
    "5",
    "50 session",
    "2 ignores",
    "50 ignores session",
    "200 ignores session",
];

/// The command ends when the chain has begun.
const STARTED: &str = "while ! test -s chain; do sleep 0.05; done; sleep 0.5";

/// Times and tokens, as the chain and the next holder wrote them.
fn links(dir: &Path) -> Vec<(u128, u64)> {
    let text = std::fs::read_to_string(dir.join("chain")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(time, token)| (time.parse().unwrap(), token.parse().unwrap()))
        .collect()
}

/// Nothing of the old token is written any more, and the next holder comes after all of it.
fn nothing_comes_after(lab: &Lab, chain: &str) {
    let dir = lab.dir.path();
    let returned = links(dir).len();
    assert!(returned > 0, "{chain}: it never ran");
    let next = lab
        .dlock()
        .args(["exec", "k", "--wait", "30s", "--", "date", "+%s%N"])
        .output()
        .unwrap();
    assert_eq!(code(&next), 0, "{chain}: {}", stderr(&next));
    let granted: u128 = stdout(&next).trim().parse().unwrap();
    std::thread::sleep(Duration::from_millis(600));
    let all = links(dir);
    assert_eq!(
        all.len(),
        returned,
        "{chain}: it writes on after the lock was given back"
    );
    assert!(all.iter().all(|(time, _)| *time < granted), "{chain}");
}

#[test]
fn a_chain_of_short_lived_processes_is_ended_before_the_lock_is_given_back() {
    for chain in CHAINS {
        let lab = Lab::new();
        let dir = lab.dir.path();
        std::fs::write(dir.join("chain.py"), CHAIN).unwrap();
        let script = format!("python3 chain.py {chain} >/dev/null 2>&1 & {STARTED}; exit 5");
        let ran = lab
            .dlock()
            .args(["exec", "k", "--ttl", "20s", "--", "sh", "-c", &script])
            .current_dir(dir)
            .output()
            .unwrap();
        assert_eq!(code(&ran), 5, "{chain}: {}", stderr(&ran));
        let said = stderr(&ran);
        assert!(
            said.contains("left processes behind") && !said.contains("()") && !said.contains("could not"),
            "{chain}: {said}"
        );
        nothing_comes_after(&lab, chain);
    }
}

#[test]
fn a_chain_of_short_lived_processes_is_ended_by_a_revoke() {
    for chain in CHAINS {
        let lab = Lab::with(&[OFTEN]);
        let dir = lab.dir.path();
        std::fs::write(dir.join("chain.py"), CHAIN).unwrap();
        let script = format!("python3 chain.py {chain} >/dev/null 2>&1 & sleep 600");
        let mut child = lab
            .dlock()
            .args(["exec", "k", "--ttl", "20s", "--", "sh", "-c", &script])
            .current_dir(dir)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the chain works", || links(dir).len() > 2);
        lab.revoke("1");
        assert_eq!(wait(&mut child).code(), Some(76), "{chain}");
        nothing_comes_after(&lab, chain);
    }
}

/// A child from before does not keep the chain's end from being seen.
#[test]
fn a_chain_is_ended_beside_a_child_from_before() {
    let lab = Lab::new();
    let dir = lab.dir.path();
    std::fs::write(dir.join("chain.py"), CHAIN).unwrap();
    let script = format!(
        "sleep 600 & echo $! > pid; exec {} exec k --ttl 20s --lock-server {} -- sh -c 'python3 chain.py 5 >/dev/null 2>&1 & {STARTED}'",
        binary().display(),
        lab.server.url()
    );
    let mut ran = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(wait(&mut ran).code(), Some(0));
    assert!(runs(dir), "it was ended");
    nothing_comes_after(&lab, "5");
    kill(dir);
}

/// As `nohup` does it: what was ignored when `dlock exec` began stays ignored, by it and by its command; the rest is handed on.
#[test]
fn signals_that_were_ignored_stay_ignored() {
    use nix::sys::signal::Signal::*;
    let lab = Lab::new();
    let dir = lab.dir.path();
    let command = "trap 'exit 43' HUP INT QUIT; trap 'exit 42' TERM; grep SigIgn /proc/self/status > ignored
        echo > ready; while :; do sleep 0.01; done";
    std::fs::write(dir.join("command.sh"), command).unwrap();
    let script = format!(
        "trap '' HUP INT QUIT; exec {} exec k --lock-server {} -- sh command.sh",
        binary().display(),
        lab.server.url()
    );
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir)
        .spawn()
        .unwrap();
    until("it is ready", || dir.join("ready").exists());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    for signal in [SIGHUP, SIGINT, SIGQUIT] {
        nix::sys::signal::kill(pid, signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        child.try_wait().unwrap(),
        None,
        "it was ended by a signal that was ignored"
    );
    nix::sys::signal::kill(pid, SIGTERM).unwrap();
    assert_eq!(wait(&mut child).code(), Some(42));
    let ignored = std::fs::read_to_string(dir.join("ignored")).unwrap();
    let mask = ignored.trim().strip_prefix("SigIgn:").unwrap().trim();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    for (signal, expected) in [(SIGHUP, 1), (SIGINT, 1), (SIGQUIT, 1), (SIGTERM, 0)] {
        assert_eq!((mask >> (signal as u32 - 1)) & 1, expected, "{signal}: {mask:x}");
    }
}
