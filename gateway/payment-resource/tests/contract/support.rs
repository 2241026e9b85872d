//! A payment resource on a socket, with a rail file beside it that says what the test wants.

use gateway_kit::testing::{Answer, Sent, Socket, Target};
use gateway_kit::{Drain, Settings};
use host_kit::Host;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub struct Api {
    pub socket: Socket,
    pub dir: PathBuf,
    drain: Option<Drain>,
    _keep: Option<tempfile::TempDir>,
}

impl Drop for Api {
    fn drop(&mut self) {
        if let Some(drain) = &self.drain {
            drain.begin();
        }
    }
}

pub fn settings(dir: &Path, extra: &[(&str, &str)]) -> Settings {
    let mut flags = vec![
        ("payment.store.url".to_owned(), format!("sqlite:{}", dir.display())),
        ("payment.store.timeout".to_owned(), "20s".to_owned()),
        ("http.request-timeout".to_owned(), "25s".to_owned()),
        ("http.workers".to_owned(), "1".to_owned()),
    ];
    flags.extend(
        extra
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    Settings::load(None, [], &flags).unwrap()
}

impl Api {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    pub async fn with(extra: &[(&str, &str)]) -> Self {
        let keep = tempfile::tempdir().unwrap();
        let dir = keep.path().to_owned();
        let settings = settings(&dir, extra);
        let (tell, told) = tokio::sync::oneshot::channel();
        actix_rt::spawn(async move {
            let ended =
                payment_resource::run_and_tell(settings, "127.0.0.1:0".into(), Host::system(), |address, drain| {
                    let _ = tell.send((address, drain));
                });
            ended.await.unwrap();
        });
        let (address, drain) = told.await.unwrap();
        Self {
            socket: Socket(address),
            dir,
            drain: Some(drain),
            _keep: Some(keep),
        }
    }

    /// One that runs elsewhere.
    pub fn at(address: SocketAddr, dir: &Path) -> Self {
        Self {
            socket: Socket(address),
            dir: dir.to_owned(),
            drain: None,
            _keep: None,
        }
    }

    pub async fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], body: Option<String>) -> Answer {
        let mut headers: Vec<(String, Vec<u8>)> = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
            .collect();
        if body.is_some() {
            headers.push(("Content-Type".to_owned(), b"application/json".to_vec()));
        }
        let request = Sent {
            method: method.to_owned(),
            target: target.to_owned(),
            headers,
            body: body.map(String::into_bytes),
            chunked: false,
        };
        self.socket
            .send(&request)
            .await
            .unwrap_or_else(|error| panic!("{request}: {error}"))
    }

    pub async fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &[], None).await
    }

    pub async fn post(&self, target: &str, headers: &[(&str, &str)], body: Value) -> Answer {
        self.send("POST", target, headers, Some(body.to_string())).await
    }

    /// A step under a token, as the executor sends it.
    pub async fn step(&self, payout_id: &str, verb: &str, token: u64, body: Value) -> Answer {
        let token = token.to_string();
        self.post(
            &format!("/v1/payouts/{payout_id}/{verb}"),
            &[("X-Fencing-Token", &token), ("X-Actor", "w1")],
            body,
        )
        .await
    }

    pub async fn account(&self, account_id: &str, opening_balance_minor: i64) {
        let body = json!({"account_id": account_id, "currency": "EUR", "opening_balance_minor": opening_balance_minor});
        assert_eq!(self.post("/v1/accounts", &[], body).await.status, 201);
    }

    pub async fn payout(&self, payout_id: &str, account_id: &str, amount_minor: i64) {
        let answer = self
            .post(
                "/v1/payouts",
                &[("X-Idempotency-Key", payout_id)],
                new_payout(payout_id, account_id, amount_minor),
            )
            .await;
        assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
    }

    /// What the rail proxy's file (contract C1.2) says about a payout.
    pub fn rail(&self, payout_id: &str, outcome: Option<&str>, rail_reference: Option<&str>) {
        let db = rusqlite::Connection::open(self.dir.join("rail.db")).unwrap();
        db.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE IF NOT EXISTS rail_submission (submission_id TEXT PRIMARY KEY, payout_id TEXT, outcome TEXT,
               rail_reference TEXT, decline_reason TEXT);",
        )
        .unwrap();
        db.execute(
            "INSERT OR REPLACE INTO rail_submission VALUES (?1, ?1, ?2, ?3, NULL)",
            rusqlite::params![payout_id, outcome, rail_reference],
        )
        .unwrap();
    }

    /// The whole way of a paid payout.
    pub async fn pay(&self, payout_id: &str, account_id: &str, amount_minor: i64, token: u64) {
        self.payout(payout_id, account_id, amount_minor).await;
        assert_eq!(self.step(payout_id, "claim", token, json!({})).await.status, 200);
        let reference = format!("r-{payout_id}");
        self.rail(payout_id, Some("ACKED"), Some(&reference));
        let posted = self
            .step(payout_id, "post", token, json!({"rail_reference": reference}))
            .await;
        assert_eq!(posted.status, 200, "{}", String::from_utf8_lossy(&posted.body));
    }

    pub async fn verified(&self) {
        let answer = self.get("/v1/ledger/verify").await;
        assert_eq!(answer.json(), json!({"ok": true, "violations": []}));
    }
}

pub fn new_payout(payout_id: &str, account_id: &str, amount_minor: i64) -> Value {
    json!({
        "payout_id": payout_id, "account_id": account_id, "amount_minor": amount_minor, "currency": "EUR",
        "creditor": {"name": "A. Payee", "account": "XX00"}, "reference": "invoice 7",
    })
}

/// Status, code and one field of a problem.
#[track_caller]
pub fn problem(answer: &Answer, status: u16, code: &str) -> Value {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.status, status, "{text}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json"),
        "{text}"
    );
    let problem = answer.json();
    assert_eq!(problem["code"], code, "{text}");
    problem
}
