//! A lock server on a real socket with a real store file, and a small client.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use gateway_kit::{Drain, Settings};
use host_kit::Host;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// Longer than anything that works takes.
pub const LONG: Duration = Duration::from_secs(30);

/// A running server.
pub struct Server {
    pub addr: SocketAddr,
    pub drain: Drain,
    task: actix_web::rt::task::JoinHandle<Result<(), lock_server::RunError>>,
    pub dir: tempfile::TempDir,
    client: awc::Client,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    pub async fn with(settings: &[(&str, &str)]) -> Self {
        Self::in_dir(tempfile::tempdir().unwrap(), settings).await
    }

    pub async fn in_dir(dir: tempfile::TempDir, settings: &[(&str, &str)]) -> Self {
        let url = format!("sqlite:{}", store(dir.path()).display());
        let mut flags: Vec<(String, String)> = [
            ("lock.store.url", url.as_str()),
            // A disk that stands still for a while fails no test.
            ("lock.store.timeout", "20s"),
            ("http.request-timeout", "25s"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        flags.extend(
            settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let settings = Settings::load(None, Vec::new(), &flags).unwrap();
        let (to, from) = oneshot::channel();
        let task = actix_web::rt::spawn(lock_server::run_and_tell(
            settings,
            "127.0.0.1:0".to_owned(),
            Host::system(),
            move |addr, drain| {
                let _ = to.send((addr, drain));
            },
        ));
        let (addr, drain) = match from.await {
            Ok(found) => found,
            Err(_) => panic!("the server did not start: {:?}", task.await),
        };
        Self {
            addr,
            drain,
            task,
            dir,
            client: awc::Client::builder().timeout(LONG).finish(),
        }
    }

    /// Drains the server and waits for its end; the store's directory is kept for the next one.
    pub async fn stop(self) -> tempfile::TempDir {
        self.drain.begin();
        tokio::time::timeout(LONG, self.task).await.unwrap().unwrap().unwrap();
        self.dir
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// A call with raw body text.
    pub async fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Answer {
        let mut request = self
            .client
            .request(method.parse().unwrap(), self.url(path))
            .no_decompress();
        for (name, value) in headers {
            request = request.append_header((*name, *value));
        }
        let mut response = match body {
            Some(body) => request
                .insert_header(("content-type", "application/json"))
                .send_body(body.to_owned())
                .await
                .unwrap(),
            None => request.send().await.unwrap(),
        };
        let bytes = response.body().await.unwrap();
        Answer {
            status: response.status().as_u16(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            text: String::from_utf8_lossy(&bytes).into_owned(),
            retry_after: response.headers().get("retry-after").is_some(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.raw("GET", path, &[], None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.raw("POST", path, &[], Some(&body.to_string())).await
    }

    pub async fn session(&self) -> String {
        self.session_of(json!({"owner": "w1"})).await
    }

    pub async fn session_of(&self, body: Value) -> String {
        let answer = self.post("/v1/sessions", body).await.is(201);
        answer["session_id"].as_str().unwrap().to_owned()
    }

    pub async fn acquire(&self, key: &str, body: Value) -> Answer {
        self.post(&format!("/v1/locks/{}/acquire", encode(key)), body).await
    }

    pub async fn release(&self, key: &str, session: &str, token: u64) -> Answer {
        let path = format!("/v1/locks/{}?session_id={session}", encode(key));
        self.raw("DELETE", &path, &[("X-Fencing-Token", &token.to_string())], None)
            .await
    }

    pub async fn lock(&self, key: &str) -> Value {
        self.get(&format!("/v1/locks/{}", encode(key))).await.is(200)
    }

    pub async fn metric(&self, line: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text;
        text.lines()
            .find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
    }

    /// Waits until this many wait for a key.
    pub async fn waiters(&self, key: &str, count: u64) {
        self.until(&format!("{count} waiters of {key}"), || async {
            self.lock(key).await["waiters"] == count
        })
        .await;
    }

    /// Waits until something holds, with a generous bound.
    pub async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        let ask = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(LONG, ask).await.is_ok(), "never: {what}");
    }
}

pub fn store(dir: &Path) -> PathBuf {
    dir.join("lock.db")
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    pub text: String,
    pub retry_after: bool,
}

impl Answer {
    /// The body, when the status is this.
    #[track_caller]
    pub fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.body
    }

    /// The problem, when it is of this status and code.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Value {
        assert_eq!(
            (self.status, self.body["code"].as_str()),
            (status, Some(code)),
            "{}",
            self.text
        );
        assert!(self.body["trace_id"].as_str().is_some_and(|id| id.len() == 32));
        self.body
    }

    /// The reason, when it is a 400 that names this field.
    #[track_caller]
    pub fn names(self, field: &str) -> String {
        assert_eq!(
            (self.status, self.body["field"].as_str()),
            (400, Some(field)),
            "{}",
            self.text
        );
        self.body["reason"].as_str().unwrap().to_owned()
    }
}

pub fn encode(key: &str) -> String {
    key.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'~') {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

pub fn token(grant: &Value) -> u64 {
    grant["token"].as_u64().unwrap()
}
