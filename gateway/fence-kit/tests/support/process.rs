//! The proxy as a process of its own: the test's binary, started again.

use super::{Answer, LONG, get, send, wire};
use fence_kit::{KeeperOptions, KeySource, ProxyOptions, RuleKind};
use gateway_kit::Settings;
use host_kit::Host;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where a child finds what it is to be.
const CHILD: &str = "FENCE_PROXY_TEST_CHILD";

/// Runs the proxy, where this process was started to be it.
pub fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let told: Value = serde_json::from_str(&told).unwrap();
    let text = |name: &str| told[name].as_str().unwrap().to_owned();
    let key = match told["segments"].as_u64() {
        Some(count) => KeySource::PrefixSegments(usize::try_from(count).unwrap()),
        None => KeySource::Header("x-fence-key".parse().unwrap()),
    };
    let millis = |name: &str| told[name].as_u64().map(Duration::from_millis);
    let mut options = ProxyOptions::new(text("listen"), text("admin"), text("upstream"), text("store"), key);
    options.keeper = KeeperOptions {
        rule: if told["once"] == true {
            RuleKind::OncePerToken
        } else {
            RuleKind::SameOrNewer
        },
        settled_after: millis("settled_after_ms"),
        ..KeeperOptions::default()
    };
    options.timeout = millis("timeout_ms").unwrap_or(Duration::from_secs(20));
    options.fence_reads = told["fence_reads"] == true;
    options.body_bytes_max = told["body_limit"].as_u64().unwrap_or(16 << 20);
    gateway_kit::init_logging("fence-proxy", gateway_kit::LogFormat::Auto);
    // The tests' requests name the service, also where they go to its operators.
    let named = [("http.hosts".to_owned(), "shop.example".to_owned())];
    let settings = Settings::load(None, [], &named).unwrap();
    let ended = actix_rt::System::new().block_on(fence_kit::serve(options, settings, Host::system(), |at| {
        println!(
            "{}",
            json!({ "event": "serving", "listen": at.listen.to_string(), "admin": at.admin.to_string() })
        );
    }));
    if let Err(error) = ended {
        println!("{}", json!({ "event": "refused", "error": error.to_string() }));
        std::process::exit(3);
    }
}

/// A proxy as a process of its own. Killed when dropped.
pub struct Process {
    pub child: Child,
    pub listen: String,
    pub admin: String,
}

impl Process {
    /// Starts one in front of a service; `more` are options as [`child`] reads them.
    pub async fn start(directory: &Path, upstream: &str, more: Value) -> Self {
        Self::try_start(directory, upstream, more)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Process::start`]; why it refused to start.
    pub async fn try_start(directory: &Path, upstream: &str, more: Value) -> Result<Self, String> {
        let mut told = json!({
            "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "upstream": upstream,
            "store": directory.join("fence.db").display().to_string(), "segments": 2,
        });
        for (name, value) in more.as_object().unwrap() {
            told[name] = value.clone();
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, told.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, told) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut tell = Some(tell);
            for line in output.lines().map_while(Result::ok) {
                let Some(at) = line.find('{') else { continue };
                let event: Value = serde_json::from_str(&line[at..]).unwrap_or_default();
                if (event["event"] == "serving" || event["event"] == "refused")
                    && let Some(tell) = tell.take()
                {
                    let _ = tell.send(event);
                }
            }
        });
        let event = tokio::time::timeout(LONG, told).await.unwrap().unwrap();
        if event["event"] == "refused" {
            child.wait().unwrap();
            return Err(event["error"].as_str().unwrap().to_owned());
        }
        let text = |name: &str| event[name].as_str().unwrap().to_owned();
        Ok(Self {
            child,
            listen: text("listen"),
            admin: text("admin"),
        })
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// kill -9, and gone.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }

    pub async fn open(&self) -> Vec<Value> {
        let answer = get(&self.admin, "/v1/fence/open?limit=1000").await;
        answer.json()["items"].as_array().unwrap().clone()
    }

    pub async fn clear(&self, body: &Value) -> Answer {
        let headers = [("x-operator", "ada"), ("content-type", "application/json")];
        let request = wire("POST", "/v1/fence/clear", &headers, Some(body.to_string().as_bytes()));
        send(&self.admin, &request).await.unwrap()
    }

    pub async fn metric(&self, line: &str) -> f64 {
        let text = get(&self.admin, "/metrics").await.text();
        let found = text.lines().find_map(|one| one.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no {line} in {text}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
