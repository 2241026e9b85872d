//! A rail, a paydb and proxies over real sockets, all on one thread of the test but for the servers' own workers.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking, and a thread reads a child's output"
)]

pub mod pg;
pub mod process;
pub mod tls;

use gateway_kit::Settings;
use host_kit::Host;
use rail_proxy::{Assembled, assemble, configure};
use rail_stub::Stub;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Long enough on a busy machine.
pub const BOUND: Duration = Duration::from_secs(60);

/// What chance hangs on in these tests.
pub const SEED: u64 = 20_260_101;

/// How long a proxy of these tests waits for the rail: longer than a busy machine lets an answer lie.
const READ_TIMEOUT: &str = "6s";
/// How long one waits that is to give up.
pub const IMPATIENT_MS: u64 = 400;
pub const HORIZON_MS: u64 = 300;

/// Runs a test with a world of its own.
pub fn with_world<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    println!("seed {SEED}");
    actix_rt::System::new().block_on(async move { test(World::new().await).await });
}

pub struct World {
    pub directory: TempDir,
    pub rail: Rail,
    pub proxies: Vec<Proxy>,
}

/// paydb's payment half as another process would write it: the columns of C1.2.
pub struct Payments(rusqlite::Connection);

pub struct Rail {
    pub base: String,
}

#[derive(Clone)]
pub struct Proxy {
    pub base: String,
}

/// An answer over HTTP.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub replayed: bool,
    pub content_type: String,
    pub body: Value,
}

impl Answer {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    pub fn outcome(&self) -> &str {
        self.body["outcome"].as_str().unwrap_or("")
    }
}

pub fn client() -> awc::Client {
    awc::Client::builder().timeout(BOUND).disable_redirects().finish()
}

pub async fn send(request: awc::ClientRequest, body: Option<&Value>) -> Answer {
    let sent = match body {
        Some(body) => request.send_json(body).await,
        None => request.send().await,
    };
    let mut answer = sent.unwrap();
    let bytes = answer.body().limit(16 << 20).await.unwrap();
    let header = |name: &str| {
        let value = answer
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned());
        value.unwrap_or_default()
    };
    Answer {
        status: answer.status().as_u16(),
        replayed: header("idempotent-replayed") == "true",
        content_type: header("content-type"),
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with_acks_to(None).await
    }

    /// A world whose rail acks to this URL.
    pub async fn with_acks_to(ack_url: Option<String>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Payments::create(directory.path());
        Self {
            rail: Rail::start(ack_url).await,
            directory,
            proxies: Vec::new(),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    pub fn payments(&self) -> Payments {
        Payments::open(self.directory.path())
    }

    pub fn settings(&self, further: &[(&str, &str)]) -> Settings {
        settings(self.directory.path(), &self.rail.base, further)
    }

    /// Starts a proxy on this paydb and this rail.
    pub async fn proxy(&self) -> Proxy {
        self.proxy_with(&[], Host::system()).await
    }

    /// Starts one that gives the rail up soon, for submissions that are to end in doubt; it finds out nothing for sure.
    pub async fn impatient(&self) -> Proxy {
        let read_timeout = format!("{IMPATIENT_MS}ms");
        self.proxy_with(&[("rail.read-timeout", &read_timeout)], Host::system())
            .await
    }

    pub async fn proxy_with(&self, further: &[(&str, &str)], host: Host) -> Proxy {
        Proxy::start(&self.settings(further), host).await
    }

    /// Raw SQL over the rail's own file, for what no route shows.
    pub fn rail_db(&self) -> rusqlite::Connection {
        let db = rusqlite::Connection::open(self.directory.path().join("rail.db")).unwrap();
        db.busy_timeout(BOUND).unwrap();
        db
    }

    pub fn count(&self, sql: &str) -> i64 {
        self.rail_db().query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

pub fn settings(directory: &Path, rail: &str, further: &[(&str, &str)]) -> Settings {
    let mut flags = vec![
        ("rail.url".to_owned(), rail.to_owned()),
        ("rail.store.url".to_owned(), format!("sqlite:{}", directory.display())),
        ("rail.read-timeout".to_owned(), READ_TIMEOUT.to_owned()),
        ("rail.store.timeout".to_owned(), "20s".to_owned()),
        ("http.request-timeout".to_owned(), "25s".to_owned()),
        ("rail.visibility-horizon".to_owned(), format!("{HORIZON_MS}ms")),
        ("http.workers".to_owned(), "1".to_owned()),
    ];
    flags.extend(
        further
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    Settings::load(None, [], &flags).unwrap()
}

impl Payments {
    pub fn create(directory: &Path) {
        let payments = Self::open(directory);
        payments
            .0
            .execute_batch(
                "PRAGMA journal_mode = WAL;
                 CREATE TABLE payout (payout_id TEXT PRIMARY KEY, account_id TEXT, amount_minor INTEGER, currency TEXT,
                     creditor TEXT, reference TEXT, state TEXT, claim_token INTEGER, rail_reference TEXT,
                     failure_reason TEXT, created_at INTEGER, updated_at INTEGER, ambiguous_since INTEGER,
                     escalated_at INTEGER, version INTEGER);",
            )
            .unwrap();
    }

    pub fn open(directory: &Path) -> Self {
        let db = rusqlite::Connection::open(directory.join("payment.db")).unwrap();
        db.busy_timeout(BOUND).unwrap();
        Self(db)
    }

    /// A payout of 12.50 EUR from `account`, claimed under `token`.
    pub fn claimed(&self, payout: &str, account: &str, token: u64) -> &Self {
        self.add(payout, account, "CLAIMED", Some(token))
    }

    pub fn add(&self, payout: &str, account: &str, state: &str, token: Option<u64>) -> &Self {
        let token = token.map(|token| i64::try_from(token).unwrap());
        self.0
            .execute(
                "INSERT INTO payout (payout_id, account_id, amount_minor, currency, creditor, state, claim_token, version)
                 VALUES (?1, ?2, 1250, 'EUR', ?3, ?4, ?5, 1)",
                rusqlite::params![payout, account, creditor().to_string(), state, token],
            )
            .unwrap();
        self
    }

    pub fn set(&self, payout: &str, state: &str, token: u64) -> &Self {
        let changed = self
            .0
            .execute(
                "UPDATE payout SET state = ?2, claim_token = ?3 WHERE payout_id = ?1",
                rusqlite::params![payout, state, i64::try_from(token).unwrap()],
            )
            .unwrap();
        assert_eq!(changed, 1, "there is no payout {payout}");
        self
    }

    pub fn set_creditor(&self, payout: &str, creditor: &Value) -> &Self {
        self.0
            .execute(
                "UPDATE payout SET creditor = ?2 WHERE payout_id = ?1",
                rusqlite::params![payout, creditor.to_string()],
            )
            .unwrap();
        self
    }
}

pub fn creditor() -> Value {
    json!({ "name": "Ada", "account": "DE02" })
}

pub fn submit_body(payout: &str, account: &str) -> Value {
    json!({
        "payout_id": payout, "account_id": account, "amount_minor": 1250, "currency": "EUR", "creditor": creditor(),
    })
}

impl Rail {
    pub async fn start(ack_url: Option<String>) -> Self {
        let stub = Stub::bind("127.0.0.1:0", ack_url, SEED).await.unwrap();
        let base = format!("http://{}", stub.addr().unwrap());
        tokio::task::spawn_local(stub.serve(std::future::pending()));
        Self { base }
    }

    pub async fn rules(&self, rules: Value) {
        let answer = send(
            client().put(format!("{}/faults", self.base)),
            Some(&json!({ "rules": rules })),
        )
        .await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// One fault for one reference, as often as it is met.
    pub async fn rule(&self, reference: &str, fault: &str, latency_ms: u64) {
        let rule = json!({ "client_reference": reference, "fault": fault, "latency_ms": latency_ms });
        self.rules(json!([rule])).await;
    }

    pub async fn book(&self, reference: &str) -> Value {
        let url = format!("{}/submissions?client_reference={reference}", self.base);
        send(client().get(url), None).await.body
    }

    /// How many submissions of this reference the rail read, in its own count.
    pub async fn bodies_read(&self, reference: &str) -> u64 {
        self.book(reference).await["bodies_read"].as_u64().unwrap()
    }

    pub async fn executions(&self, reference: &str) -> usize {
        self.book(reference).await["executions"].as_array().unwrap().len()
    }
}

impl Proxy {
    pub async fn start(settings: &Settings, host: Host) -> Self {
        let Assembled { gateway, state } = assemble(settings, &host).await.unwrap();
        let (told, address) = tokio::sync::oneshot::channel();
        tokio::task::spawn_local(async move {
            gateway
                .serve_and_tell(
                    "127.0.0.1:0",
                    move |config| configure(config, state.clone()),
                    |address| told.send(address).unwrap(),
                )
                .await
                .unwrap();
        });
        let address = tokio::time::timeout(BOUND, address).await.unwrap().unwrap();
        Self {
            base: format!("http://{address}"),
        }
    }

    pub fn at(base: impl Into<String>) -> Self {
        Self { base: base.into() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(client().get(format!("{}{path}", self.base)), None).await
    }

    pub async fn post(&self, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> Answer {
        let mut request = client().post(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.insert_header((*name, *value));
        }
        send(request, body).await
    }

    /// R1 for a payout of 12.50 EUR.
    pub async fn submit(&self, payout: &str, account: &str, token: u64) -> Answer {
        self.submit_body(payout, token, &submit_body(payout, account)).await
    }

    pub async fn submit_body(&self, key: &str, token: u64, body: &Value) -> Answer {
        let token = token.to_string();
        let headers = [
            ("X-Fencing-Token", token.as_str()),
            ("X-Idempotency-Key", key),
            ("X-Actor", "worker-1"),
        ];
        self.post("/v1/rail/submissions", &headers, Some(body)).await
    }

    pub async fn submission(&self, payout: &str) -> Answer {
        self.get(&format!("/v1/rail/submissions/{payout}")).await
    }

    pub async fn look_up(&self, payout: &str) -> Answer {
        self.post(&format!("/v1/rail/submissions/{payout}/lookup"), &[], None)
            .await
    }

    pub async fn fence(&self, payout: &str, token: u64, forbid: bool) -> Answer {
        let token = token.to_string();
        let path = format!("/v1/rail/submissions/{payout}/fence");
        self.post(
            &path,
            &[("X-Fencing-Token", &token)],
            Some(&json!({ "forbid": forbid })),
        )
        .await
    }

    pub async fn fence_account(&self, account: &str, token: u64) -> Answer {
        let token = token.to_string();
        let path = format!("/v1/rail/accounts/{account}/fence");
        self.post(&path, &[("X-Fencing-Token", &token)], None).await
    }

    pub async fn ack(&self, body: &Value) -> Answer {
        self.post("/v1/rail/acks", &[], Some(body)).await
    }

    pub async fn exceptions(&self) -> Vec<Value> {
        self.get("/v1/rail/exceptions").await.body["items"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// Waits until a payout's submission has this outcome.
    pub async fn await_outcome(&self, payout: &str, outcome: &str) -> Value {
        tokio::time::timeout(BOUND, async {
            loop {
                let row = self.submission(payout).await;
                if row.outcome() == outcome {
                    return row.body;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{payout} never became {outcome}"))
    }

    /// One sample of the metrics, by the line's beginning.
    pub async fn metric(&self, line: &str) -> f64 {
        let mut answer = client().get(format!("{}/metrics", self.base)).send().await.unwrap();
        let body = answer.body().limit(1 << 20).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let value = text
            .lines()
            .find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{line} is not among the metrics:\n{text}"))
    }
}

impl Proxy {
    /// Waits until a metric shows this.
    pub async fn await_metric(&self, line: &str, wanted: f64) {
        tokio::time::timeout(BOUND, async {
            while self.metric(line).await != wanted {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{line} was never {wanted}"));
    }
}

/// Looks a payout up until the verdict is this one.
pub async fn await_verdict(proxy: &Proxy, payout: &str, verdict: &str) -> Value {
    tokio::time::timeout(BOUND, async {
        loop {
            let answer = proxy.look_up(payout).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            if answer.body["verdict"] == verdict {
                return answer.body;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{payout} was never {verdict}"))
}
