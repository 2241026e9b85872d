//! The operator's verbs for payouts, against all components as processes.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use actor_kit::TraceContext;
use common::{Process, code, dlock, stderr, stdout};
use host_kit::Host;
use http_client::{CallError, Caller, ClientOptions, PaymentApi, RailProxyApi, client};
use http_contract::Code;
use http_contract::payment::{
    ClaimBody, CreatePayoutBody, Creditor, OpenAccountBody, PayoutAnswer, PayoutState, PostBody, ReasonBody,
};
use http_contract::rail::SubmitBody;
use lock_api::FencingToken;
use serde_json::Value;
use std::time::Duration;
use tempfile::TempDir;

struct Stack {
    lock: Process,
    payments: Process,
    proxy: Process,
    stub: Process,
    _dir: TempDir,
}

impl Stack {
    fn new(proxy_settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lock_store = format!("sqlite:{}", dir.path().join("lock.db").display());
        let pay = format!("sqlite:{}", dir.path().join("pay").display());
        let any = "127.0.0.1:0";
        let stub = Process::start(&["rail-stub", "--listen", any]);
        let proxy = ["rail-proxy", "--listen", any, "--store", &pay, "--rail", &stub.url()].map(str::to_owned);
        let proxy: Vec<String> = proxy
            .into_iter()
            .chain(proxy_settings.iter().map(|s| (*s).to_owned()))
            .collect();
        Self {
            lock: Process::start(&["lock-server", "--listen", any, "--store", &lock_store]),
            payments: Process::start(&["payment-resource", "--listen", any, "--store", &pay]),
            proxy: Process::start(&proxy.iter().map(String::as_str).collect::<Vec<_>>()),
            stub,
            _dir: dir,
        }
    }

    fn run(&self, args: &[&str]) -> std::process::Output {
        dlock()
            .args(args)
            .env("DLOCK_LOCK_SERVER", self.lock.url())
            .env("DLOCK_EXECUTOR_PAYMENTS", self.payments.url())
            .env("DLOCK_EXECUTOR_RAIL_PROXY", self.proxy.url())
            .output()
            .unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["-o", "json"]].concat());
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// A worker that does as it likes: it checks no lock.
struct Worker {
    payments: PaymentApi,
    rail: RailProxyApi,
    trace: TraceContext,
}

const PATIENCE: Duration = Duration::from_secs(30);

impl Worker {
    fn new(stack: &Stack) -> Self {
        let client = client(&ClientOptions::default());
        let caller = |url: String| Caller::new(client.clone(), url, PATIENCE);
        Self {
            payments: PaymentApi::new(caller(stack.payments.url())),
            rail: RailProxyApi::new(caller(stack.proxy.url())),
            trace: TraceContext::root(&Host::system().random),
        }
    }

    async fn account(&self, account: &str) {
        let body = OpenAccountBody {
            account_id: account.into(),
            currency: "EUR".into(),
            opening_balance_minor: 10_000,
        };
        self.payments.open_account(&body, &self.trace).await.unwrap();
    }

    async fn payout(&self, payout: &str, account: &str) -> PayoutAnswer {
        let creditor = Creditor {
            name: "Ada".into(),
            account: "DE02".into(),
        };
        let body = CreatePayoutBody {
            payout_id: Some(payout.into()),
            account_id: account.into(),
            amount_minor: 1_000,
            currency: "EUR".into(),
            creditor,
            reference: None,
        };
        self.payments
            .create_payout(payout, &body, &self.trace)
            .await
            .unwrap()
            .body
    }

    async fn claim(&self, payout: &str, token: FencingToken) -> Result<PayoutAnswer, CallError> {
        let body = ClaimBody { expected_version: None };
        self.payments
            .claim(payout, token, Some("w1"), &body, &self.trace)
            .await
            .map(|answer| answer.body)
    }

    async fn submit(&self, payout: &PayoutAnswer, token: FencingToken) -> Result<(), CallError> {
        let body = SubmitBody {
            payout_id: payout.payout_id.clone(),
            account_id: payout.account_id.clone(),
            amount_minor: payout.amount_minor,
            currency: payout.currency.clone(),
            creditor: payout.creditor.clone(),
        };
        self.rail
            .submit(token, Some("w1"), &body, PATIENCE, &self.trace)
            .await
            .map(drop)
    }

    async fn post(&self, payout: &str, token: FencingToken) -> Result<(), CallError> {
        let body = PostBody {
            rail_reference: "made-up".into(),
        };
        self.payments
            .post(payout, token, Some("w1"), &body, &self.trace)
            .await
            .map(drop)
    }
}

fn token(value: &Value) -> FencingToken {
    value["token"].to_string().parse().unwrap()
}

fn fenced_out<T: std::fmt::Debug>(what: &str, result: Result<T, CallError>) {
    match result {
        Err(CallError::Problem(problem)) => {
            assert_eq!(
                (problem.code, problem.text("reason")),
                (Code::FencedOut, Some("stale")),
                "{what}: {problem:?}"
            );
        }
        other => panic!("{what} went through: {other:?}"),
    }
}

#[test]
fn case_d07_a_revoked_holder_is_refused_at_both_points_although_nobody_acquired() {
    let stack = Stack::new(&[]);
    // One payout that the holder has not touched when it is revoked, one that it has claimed.
    let (fresh, claimed) = actix_rt::System::new().block_on(async {
        let worker = Worker::new(&stack);
        worker.account("A").await;
        (worker.payout("fresh", "A").await, worker.payout("claimed", "A").await)
    });
    let grant = stack.json(&["lock", "acquire", "payout:A", "--ttl", "60s"]);
    let old = token(&grant);
    actix_rt::System::new().block_on(async { Worker::new(&stack).claim("claimed", old).await.unwrap() });

    let shown = old.to_string();
    let revoke = stack.run(&[
        "lock",
        "revoke",
        "payout:A",
        "--token",
        &shown,
        "--operator",
        "olga",
        "--reason",
        "stuck for an hour",
        "-o",
        "json",
    ]);
    assert_eq!(code(&revoke), 0, "{}", stderr(&revoke));
    assert!(stderr(&revoke).contains("dlock payout fence A"), "{}", stderr(&revoke));
    let revoked: Value = serde_json::from_slice(&revoke.stdout).unwrap();
    let fenced = stack.json(&["payout", "fence", "A"]);
    assert_eq!(
        fenced["token"], revoked["token"],
        "the revoke's token, without being told"
    );
    assert!(fenced["payment_resource"]["fence"].as_u64().unwrap() >= old.get());
    assert!(fenced["rail_proxy"]["highest_token"].as_u64().unwrap() >= old.get());
    // An older token's goal is reached already: that is no failure.
    let again = stack.run(&["payout", "fence", "A", "--token", &shown, "-o", "json"]);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
    let told: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert!(
        told["payment_resource"]["already"] == true && told["rail_proxy"]["already"] == true,
        "{told}"
    );
    assert!(stderr(&again).contains("already"), "{}", stderr(&again));
    let same = stack.run(&["payout", "fence", "A"]);
    assert_eq!(code(&same), 0, "{}", stderr(&same));

    actix_rt::System::new().block_on(async {
        let worker = Worker::new(&stack);
        fenced_out("claim of a fresh payout", worker.claim("fresh", old).await);
        fenced_out("submit of a fresh payout", worker.submit(&fresh, old).await);
        fenced_out("post of a fresh payout", worker.post("fresh", old).await);
        fenced_out("claim again", worker.claim("claimed", old).await);
        fenced_out("submit of the claimed payout", worker.submit(&claimed, old).await);
        fenced_out("post of the claimed payout", worker.post("claimed", old).await);
    });
    let stats = actix_rt::System::new().block_on(async {
        let caller = Caller::new(client(&ClientOptions::default()), stack.stub.url(), PATIENCE);
        let trace = TraceContext::root(&Host::system().random);
        caller.get_json::<Value>("/stats", &trace).await.unwrap()
    });
    assert_eq!(stats["bodies_read"], 0, "the rail has read nothing");

    // The next holder works as ever.
    let next = stack.json(&["lock", "acquire", "payout:A", "--ttl", "60s"]);
    actix_rt::System::new().block_on(async {
        let worker = Worker::new(&stack);
        let payout = worker.claim("fresh", token(&next)).await.unwrap();
        assert_eq!(payout.state, PayoutState::Claimed);
        worker.submit(&payout, token(&next)).await.unwrap();
    });
    // An account that was never locked has nobody to be fenced off.
    let nobody = stack.run(&["payout", "fence", "B"]);
    assert_eq!(code(&nobody), 1, "{}", stderr(&nobody));
}

#[test]
fn payouts_are_listed_shown_and_settled_by_hand() {
    // The rail answers nothing: what is submitted stays ambiguous.
    let stack = Stack::new(&["--set", "rail.read-timeout=300ms"]);
    let (account, payout) = ("A", "p1");
    actix_rt::System::new().block_on(async {
        let caller = Caller::new(client(&ClientOptions::default()), stack.stub.url(), PATIENCE);
        let rule = serde_json::json!({ "rules": [{ "client_reference": payout, "fault": "timeout_not_executed" }] });
        put(&caller, &rule).await;
        let worker = Worker::new(&stack);
        worker.account(account).await;
        worker.payout(payout, account).await;
        worker.payout("p2", account).await;
    });
    let held = stack.json(&["lock", "acquire", "payout:A", "--ttl", "60s"]);
    actix_rt::System::new().block_on(async {
        let worker = Worker::new(&stack);
        let claimed = worker.claim(payout, token(&held)).await.unwrap();
        let submitted = worker.submit(&claimed, token(&held)).await;
        assert_eq!(submitted.unwrap_err().code(), Some(Code::RailAmbiguous));
        let body = ReasonBody {
            reason: "no answer".into(),
        };
        worker
            .payments
            .ambiguous(payout, token(&held), Some("w1"), &body, &worker.trace)
            .await
            .unwrap();
    });

    let list = stack.json(&["payout", "list", "--account", account]);
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    let ambiguous = stack.json(&["payout", "list", "--state", "rail_ambiguous"]);
    assert_eq!(ambiguous["items"][0]["payout_id"], payout);
    let shown = stack.json(&["payout", "show", payout]);
    assert_eq!(
        (&shown["payout"]["state"], &shown["submission"]["outcome"]),
        (&"RAIL_AMBIGUOUS".into(), &"TIMEOUT".into())
    );
    assert_eq!(stack.json(&["payout", "show", "p2"])["submission"], Value::Null);
    let missing = stack.run(&["payout", "show", "nobody"]);
    assert_eq!(code(&missing), 1);
    assert!(stderr(&missing).contains("PAYOUT_NOT_FOUND"), "{}", stderr(&missing));

    let resolve = [
        "payout",
        "resolve",
        payout,
        "--outcome",
        "failed",
        "--operator",
        "olga",
        "--reason",
        "the bank says no",
    ];
    // Somebody holds the account's lock: an operator does not act beside a worker.
    let busy = stack.run(&[&resolve[..], &["--wait", "200ms"]].concat());
    assert_eq!(code(&busy), 75, "{}", stderr(&busy));
    let session = held["session_id"].as_str().unwrap();
    stack.json(&[
        "lock",
        "release",
        "payout:A",
        "--session",
        session,
        "--token",
        &held["token"].to_string(),
    ]);
    let resolved = stack.json(&resolve);
    assert_eq!(resolved["state"], "FAILED");
    let history = stack.json(&["payout", "history", payout]);
    let last = history["items"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["to_state"], &last["actor"]),
        (&"FAILED".into(), &"olga".into()),
        "{history}"
    );
    assert_eq!(
        stack.json(&["lock", "show", "payout:A"])["state"],
        "FREE",
        "the operator gave the lock back"
    );
}

/// The tables say amounts in the currency's own decimals; JSON keeps minor units. Odd ids that are accepted are found.
#[test]
fn case_p24_and_p27_tables_say_amounts_of_their_currency_for_every_accepted_id() {
    let stack = Stack::new(&[]);
    let cases = [
        ("...", "JPY", "1000 JPY"),
        ("a:b", "KWD", "1.000 KWD"),
        ("-x", "EUR", "10.00 EUR"),
        ("a..b", "CHF", "10.00 CHF"),
    ];
    actix_rt::System::new().block_on(async {
        let worker = Worker::new(&stack);
        for (id, currency, _) in cases {
            let body = OpenAccountBody {
                account_id: id.into(),
                currency: currency.into(),
                opening_balance_minor: 1_000,
            };
            worker.payments.open_account(&body, &worker.trace).await.unwrap();
            let body = CreatePayoutBody {
                payout_id: Some(id.into()),
                account_id: id.into(),
                amount_minor: 1_000,
                currency: currency.into(),
                creditor: Creditor {
                    name: "Ada".into(),
                    account: "DE02".into(),
                },
                reference: None,
            };
            worker.payments.create_payout(id, &body, &worker.trace).await.unwrap();
        }
    });
    let table = stdout(&stack.run(&["payout", "list"]));
    assert!(table.contains("AMOUNT") && !table.contains("MINOR"), "{table}");
    for (id, currency, amount) in cases {
        let row = table.lines().find(|line| line.split_whitespace().next() == Some(id));
        assert!(row.is_some_and(|row| row.contains(amount)), "{id}: {table}");
        let account = format!("--account={id}");
        let listed = stack.json(&["payout", "list", &account]);
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{id}: {listed}");
        assert_eq!(listed["items"][0]["amount_minor"], 1_000);
        let shown = stack.run(&["payout", "show", "--", id]);
        let shown = stdout(&shown);
        let row = shown
            .lines()
            .find(|line| line.trim_start().starts_with("payout.amount "));
        assert!(row.is_some_and(|row| row.trim_end().ends_with(amount)), "{id}: {shown}");
        assert!(shown.contains("payout.currency") && shown.contains(currency), "{shown}");
        let history = stdout(&stack.run(&["payout", "history", "--", id]));
        assert!(history.contains("PENDING"), "{id}: {history}");
    }
}

/// `PUT /faults` of the stub.
async fn put(caller: &Caller, faults: &Value) {
    let sent = client(&ClientOptions::default())
        .put(format!("{}/faults", caller.base()))
        .send_json(faults)
        .await
        .unwrap();
    assert!(sent.status().is_success());
}

/// A payout POSTED by hand that the rail declines later stays POSTED; the exception is closed by hand, once, and until then
/// doctor says so.
#[test]
fn case_p23_an_exception_is_listed_and_closed_from_the_command_line_and_doctor_goes_quiet() {
    let stack = Stack::new(&["--set", "rail.read-timeout=300ms"]);
    let held = stack.json(&["lock", "acquire", "payout:A", "--ttl", "60s"]);
    actix_rt::System::new().block_on(async {
        let (worker, one) = (Worker::new(&stack), token(&held));
        worker.account("A").await;
        worker.payout("P", "A").await;
        let stub = awc::Client::default();
        let rules = serde_json::json!({ "rules": [{ "client_reference": "P", "fault": "timeout_not_executed" }] });
        let set = stub
            .put(format!("{}/faults", stack.stub.url()))
            .send_json(&rules)
            .await
            .unwrap();
        assert_eq!(set.status().as_u16(), 200);
        let claimed = worker.claim("P", one).await.unwrap();
        let lost = worker.submit(&claimed, one).await.unwrap_err();
        assert_eq!(lost.code(), Some(Code::RailAmbiguous));
        let reason = ReasonBody {
            reason: "no answer of the rail".into(),
        };
        worker
            .payments
            .ambiguous("P", one, Some("w1"), &reason, &worker.trace)
            .await
            .unwrap();
    });
    let released = stack.run(&[
        "lock",
        "release",
        "payout:A",
        "--session",
        held["session_id"].as_str().unwrap(),
        "--token",
        &held["token"].to_string(),
    ]);
    assert_eq!(code(&released), 0, "{}", stderr(&released));
    let by = ["--operator", "ada", "--reason", "the rail's desk said so by phone"];
    stack.json(&[&["payout", "resolve", "P", "--outcome", "posted"], &by[..]].concat());
    let doctor = || {
        let ran = stack.run(&["doctor", "--rail-proxy", &stack.proxy.url(), "-o", "json"]);
        String::from_utf8(ran.stdout).unwrap()
    };
    assert!(doctor().contains("none open"), "{}", doctor());
    actix_rt::System::new().block_on(async {
        let ack = serde_json::json!({ "client_reference": "P", "outcome": "DECLINED", "decline_reason": "closed",
                                      "amount_minor": 1_000, "currency": "EUR" });
        let mut answer = awc::Client::default()
            .post(format!("{}/v1/rail/acks", stack.proxy.url()))
            .send_json(&ack)
            .await
            .unwrap();
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["recorded"], "anomaly");
    });
    let shown = stack.json(&["payout", "show", "P"]);
    assert_eq!(
        shown["payout"]["state"],
        PayoutState::Posted.as_str(),
        "the payout stays as it is"
    );
    let listed = stack.json(&["payout", "exception", "list"]);
    let row = &listed["items"][0];
    assert_eq!(row["kind"], "LATE_DECLINE_AFTER_POSTED");
    assert!(row["detail"].as_str().unwrap().contains("closed"), "{row}");
    assert!(doctor().contains("LATE_DECLINE_AFTER_POSTED P"), "{}", doctor());

    let id = row["exception_id"].to_string();
    let close = ["payout", "exception", "close", &id];
    let no_reason = stack.run(&close);
    assert_eq!(code(&no_reason), 64, "{}", stderr(&no_reason));
    let closed = stack.json(&[&close[..], &by].concat());
    assert_eq!(
        (&closed["closed_by"], &closed["closed_reason"]),
        (&"ada".into(), &"the rail's desk said so by phone".into())
    );
    stack.json(&[&close[..], &by].concat());
    let second = stack.run(&[&close[..], &["--operator", "bob", "--reason", "another story of it"]].concat());
    assert!(
        code(&second) != 0 && stderr(&second).contains("ada closed this exception at"),
        "{}",
        stderr(&second)
    );
    assert_eq!(
        stack.json(&["payout", "exception", "list"])["items"],
        serde_json::json!([])
    );
    let all = stack.json(&["payout", "exception", "list", "--all"]);
    assert_eq!(all["items"][0]["closed_by"], "ada");
    assert!(doctor().contains("none open"), "{}", doctor());
    let trace = stack.run(&["payout", "trace", "P", "-o", "json"]);
    let trace = String::from_utf8(trace.stdout).unwrap();
    assert!(trace.contains("closed: the rail's desk said so by phone"), "{trace}");
}
