//! A gateway as a process of its own: what it logs, and how it ends on a signal.
//!
//! The process is this very test binary, started again with [`CHILD`] set and told to run the test [`child`] alone.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, outside of the functions that clippy knows as tests"
)]

use actix_web::web;
use actor_kit::Kit;
use gateway_kit::testing::{Sent, Socket, Target};
use gateway_kit::{ApiError, Gateway, LogFormat, Settings, flush_logs, init_logging};
use host_kit::Host;
use http_contract::Code;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prometheus::Registry;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const CHILD: &str = "GATEWAY_KIT_TEST_CHILD";

#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    init_logging("notes", LogFormat::Auto);
    actix_web::rt::System::new().block_on(async {
        let (host, registry) = (Host::system(), Registry::new());
        let kit = Kit::new("notes", &host, &registry);
        Gateway::new("notes", &host, Settings::defaults(), registry, kit)
            .serve("127.0.0.1:0", |config| {
                config
                    .route("/held", web::get().to(|| async { refused(Code::HeldByOther) }))
                    .route("/broken", web::get().to(|| async { refused(Code::Internal) }))
                    .route("/crash", web::get().to(|| async { crash() }))
                    .route("/slow", web::get().to(slow));
            })
            .await
            .expect("served");
    });
    flush_logs();
}

fn refused(code: Code) -> Result<String, ApiError> {
    Err(ApiError::new(code, "asked for"))
}

fn crash() -> String {
    panic!("the cause")
}

async fn slow() -> String {
    tracing::info!(event = "slow_began");
    tokio::time::sleep(Duration::from_millis(300)).await;
    "slow but done".to_owned()
}

struct Process {
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    socket: Socket,
}

impl Process {
    async fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, "1")
            .env_remove("DLOCK_LOG")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self {
            child,
            lines,
            socket: Socket("127.0.0.1:1".parse().unwrap()),
        };
        let listening = process.logged("listening").await;
        process.socket = Socket(listening["addr"].as_str().unwrap().parse().unwrap());
        process
    }

    /// The next line of this event. What the test runner prints is no log line.
    async fn logged(&mut self, event: &str) -> Value {
        let found = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if let Some(at) = line.find('{') {
                    let line: Value =
                        serde_json::from_str(&line[at..]).unwrap_or_else(|error| panic!("{error}: {line}"));
                    assert_eq!(line["component"], "notes", "{line}");
                    if line["event"] == event {
                        return line;
                    }
                }
            }
            panic!("the process ended without logging {event}");
        };
        tokio::time::timeout(Duration::from_secs(20), found)
            .await
            .unwrap_or_else(|_| panic!("no {event} was logged"))
    }

    async fn get(&self, target: &str) -> u16 {
        let traceparent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_vec();
        let headers = vec![
            ("traceparent".to_owned(), traceparent),
            ("Authorization".to_owned(), b"Bearer hunter2".to_vec()),
        ];
        let request = Sent {
            method: "GET".into(),
            target: target.into(),
            headers,
            ..Sent::default()
        };
        self.socket.send(&request).await.unwrap().status
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()), signal).unwrap();
    }

    async fn ended(&mut self) -> Option<i32> {
        tokio::time::timeout(Duration::from_secs(20), self.child.wait())
            .await
            .expect("it ends")
            .unwrap()
            .code()
    }
}

#[actix_web::test]
async fn an_outcome_is_logged_at_info_and_a_defect_louder() {
    let mut process = Process::start().await;
    for (target, status, level, outcome) in [
        ("/held", 409, "info", "HELD_BY_OTHER"),
        ("/nothing", 404, "info", "NOT_FOUND"),
        ("/version", 200, "info", "ok"),
        ("/broken", 500, "warn", "INTERNAL"),
    ] {
        assert_eq!(process.get(target).await, status);
        let line = process.logged("request_answered").await;
        assert_eq!(
            (&line["level"], &line["outcome"], &line["path"]),
            (&level.into(), &outcome.into(), &target.into())
        );
        assert_eq!(
            (&line["status"], &line["trace_id"]),
            (&status.into(), &"4bf92f3577b34da6a3ce929d0e0e4736".into())
        );
        assert!(line["request_id"].is_string() && line["duration_us"].is_u64(), "{line}");
        assert!(!line.to_string().contains("hunter2"));
    }
    assert_eq!(process.get("/crash").await, 500);
    let panic = process.logged("panicked").await;
    assert_eq!(
        (&panic["level"], &panic["detail"]),
        (&"error".into(), &"the cause".into())
    );
    assert_eq!(panic["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    // Probes would drown the rest.
    process.logged("request_answered").await;
    assert_eq!((process.get("/livez").await, process.get("/version").await), (200, 200));
    assert_eq!(process.logged("request_answered").await["path"], "/version");
}

#[actix_web::test]
async fn a_signal_drains_and_the_process_ends_with_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut process = Process::start().await;
        let socket = process.socket;
        let flight = actix_web::rt::spawn(async move {
            socket
                .send(&Sent {
                    method: "GET".into(),
                    target: "/slow".into(),
                    ..Sent::default()
                })
                .await
        });
        process.logged("slow_began").await;
        process.signal(signal);
        assert_eq!(process.logged("draining").await["reason"], signal.as_str());
        assert_eq!(flight.await.unwrap().unwrap().body, b"slow but done");
        process.logged("stopped").await;
        assert_eq!(process.ended().await, Some(0));
    }
}
