//! The proxy as a process of its own: the test's binary, started again.

use super::{BOUND, Proxy, World, settings, submit_body};
use host_kit::Host;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Where a child finds what it is to be: `directory`, `rail`, `faults`, `flags`.
const CHILD: &str = "RAIL_PROXY_TEST_CHILD";

/// Runs the proxy, where this process was started to be it.
pub fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let told: Value = serde_json::from_str(&told).unwrap();
    let text = |name: &str| told[name].as_str().unwrap().to_owned();
    let flags: Vec<(String, String)> = serde_json::from_value(told["flags"].clone()).unwrap();
    let flags: Vec<_> = flags
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let settings = settings(text("directory").as_ref(), &text("rail"), &flags);
    #[cfg_attr(not(feature = "lab"), allow(unused_mut, reason = "faults are of the lab"))]
    let mut host = Host::system();
    #[cfg(feature = "lab")]
    {
        host.faults = host_kit::Faults::parse(&text("faults")).unwrap();
    }
    gateway_kit::init_logging("rail-proxy", gateway_kit::LogFormat::Auto);
    actix_rt::System::new()
        .block_on(rail_proxy::run(settings, "127.0.0.1:0".to_owned(), host))
        .unwrap();
}

/// A proxy as a process of its own. Killed when dropped.
pub struct Process {
    pub child: Child,
    pub proxy: Proxy,
}

impl Process {
    pub async fn start(world: &World, faults: &str, flags: &[(&str, &str)]) -> Self {
        Self::start_with(world, faults, flags, &[]).await
    }

    /// As [`Self::start`], with further variables.
    pub async fn start_with(world: &World, faults: &str, flags: &[(&str, &str)], variables: &[(&str, &str)]) -> Self {
        let program = Command::new(std::env::current_exe().unwrap());
        Self::start_as(program, world, faults, flags, variables).await
    }

    /// One that may have this many files open.
    pub async fn start_within(world: &World, descriptors: u64) -> Self {
        let mut program = Command::new("sh");
        let limited = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
        program.arg("-c").arg(limited).arg(std::env::current_exe().unwrap());
        Self::start_as(program, world, "", &[], &[]).await
    }

    async fn start_as(
        mut program: Command,
        world: &World,
        faults: &str,
        flags: &[(&str, &str)],
        variables: &[(&str, &str)],
    ) -> Self {
        let told = json!({
            "directory": world.directory.path(), "rail": world.rail.base, "faults": faults, "flags": flags,
        });
        let mut child = program
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, told.to_string())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, told) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut tell = Some(tell);
            for line in output.lines().map_while(Result::ok) {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                if event["event"] == "listening"
                    && let Some(tell) = tell.take()
                {
                    let _ = tell.send(event["addr"].as_str().unwrap().to_owned());
                }
            }
        });
        let address = tokio::time::timeout(BOUND, told).await.unwrap().unwrap();
        Self {
            child,
            proxy: Proxy::at(format!("http://{address}")),
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until the process has this state in its kernel's eyes (`T` stopped, `Z` dead).
    pub async fn await_state(&self, state: char) {
        let path = format!("/proc/{}/stat", self.child.id());
        let wanted = format!(") {state} ");
        tokio::time::timeout(BOUND, async {
            while !std::fs::read_to_string(&path).unwrap().contains(&wanted) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("the process never was {state}"));
    }

    /// Sends R1 and does not wait for its answer.
    pub async fn begin_submit(&self, payout: &str, account: &str, token: u64) -> TcpStream {
        let body = submit_body(payout, account).to_string();
        let request = format!(
            "POST /v1/rail/submissions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             x-fencing-token: {token}\r\nx-idempotency-key: {payout}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let address = self.proxy.base.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
