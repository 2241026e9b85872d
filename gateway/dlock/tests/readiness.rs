//! What the readiness of the real processes says while their files are not what they were, and that it ends by itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::{Process, code, dlock, stderr, until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// The status and the body of a GET.
fn get(addr: &str, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    // A chunked body has its lengths around it.
    let json = body
        .find('{')
        .zip(body.rfind('}'))
        .map_or("", |(from, to)| &body[from..=to]);
    (status, serde_json::from_str(json).unwrap_or(Value::Null))
}

/// What the check of the store says; empty while it is ready.
fn said(process: &Process) -> String {
    let (status, body) = get(&process.addr, "/readyz");
    let said = body["failed"]["store"].as_str().unwrap_or_default().to_owned();
    assert_eq!(status == 200, said.is_empty(), "{status} {body}");
    said
}

fn lock_server(directory: &Path) -> Vec<String> {
    let store = format!("sqlite:{}", directory.join("lock.db").display());
    ["lock-server", "--listen", "127.0.0.1:0", "--store", &store]
        .map(str::to_owned)
        .to_vec()
}

fn start(args: &[String]) -> Process {
    Process::start(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Whether a command runs under a lock of this server.
fn grants(process: &Process) -> bool {
    let exec = dlock()
        .args(["exec", "--lock-server", &process.url(), "a key", "--", "true"])
        .output()
        .unwrap();
    code(&exec) == 0
}

#[test]
fn case_l41_a_server_whose_files_were_replaced_grants_nothing_and_says_why() {
    let whole = tempfile::tempdir().unwrap();
    let directory = whole.path().join("data");
    let first = start(&lock_server(&directory));
    assert!(grants(&first));
    assert_eq!(said(&first), "");
    std::fs::rename(&directory, whole.path().join("away")).unwrap();
    assert!(!grants(&first), "granted from a file that nobody else would find");
    assert!(said(&first).starts_with("replaced: "), "{}", said(&first));
    if cfg!(target_os = "linux") {
        let second = dlock().args(lock_server(&directory)).output().unwrap();
        assert_ne!(code(&second), 0);
        assert!(
            stderr(&second).contains("in use by another process"),
            "{}",
            stderr(&second)
        );
    }
    first.terminate();
    let second = start(&lock_server(&directory));
    assert!(grants(&second));
    second.terminate();
}

/// A real file system without room: a small tmpfs, where this process may mount one.
#[test]
fn case_l36_a_full_disk_is_told_by_readyz() {
    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            drop(
                std::process::Command::new("umount")
                    .arg("-l")
                    .arg(self.0.path())
                    .status(),
            );
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(directory.path())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("not run: this process may not mount a file system");
        return;
    }
    let directory = Mounted(directory);
    let path = directory.0.path();
    let paydb = format!("sqlite:{}", path.join("pay").display());
    let on_paydb = |component: &str, more: &[&str]| {
        let args = [component, "--listen", "127.0.0.1:0", "--store", &paydb];
        start(&args.iter().chain(more).map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    };
    let components = [
        start(&lock_server(path)),
        on_paydb("payment-resource", &[]),
        on_paydb("rail-proxy", &["--rail", "http://127.0.0.1:1"]),
    ];
    for component in &components {
        until("it is ready", || said(component).is_empty());
    }
    let ballast = path.join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    drop(file);
    for component in &components {
        until("it says that the disk is full", || {
            said(component).starts_with("full: ")
        });
    }
    std::fs::remove_file(&ballast).unwrap();
    for component in &components {
        until("it is ready again", || said(component).is_empty());
    }
    for component in components {
        component.terminate();
    }
}
