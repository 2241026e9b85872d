//! The whole system as processes, with everything they say kept.

use super::{LONG, dlock, until};
use actor_kit::TraceContext;
use host_kit::Host;
use http_client::{Caller, ClientOptions, PaymentApi, client};
use http_contract::payment::{CreatePayoutBody, Creditor, OpenAccountBody, PayoutState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Output, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A component that runs until it is dropped.
pub struct Component {
    pub child: Child,
    pub addr: String,
    said: Arc<Mutex<String>>,
}

fn keep(from: impl Read + Send + 'static, said: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut said = said.lock().unwrap();
            said.push_str(&line);
            said.push('\n');
        }
    });
}

impl Component {
    /// Starts it and waits until it listens.
    pub fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = dlock()
            .args(args)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        keep(child.stdout.take().unwrap(), said.clone());
        keep(child.stderr.take().unwrap(), said.clone());
        let mut started = Self {
            child,
            addr: String::new(),
            said,
        };
        let from = std::time::Instant::now();
        while started.addr.is_empty() {
            assert!(from.elapsed() < LONG, "{args:?} does not listen: {}", started.said());
            if let Some(status) = started.child.try_wait().unwrap() {
                panic!("{args:?} ended with {status}: {}", started.said());
            }
            let listening = started.lines().into_iter().find(|line| line["event"] == "listening");
            started.addr = listening.map_or_else(String::new, |line| line["addr"].as_str().unwrap().to_owned());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        started
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// All it said, on standard output and standard error.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Its log lines.
    pub fn lines(&self) -> Vec<Value> {
        self.said()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// SIGTERM; answers the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        super::wait(&mut self.child).code()
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A lock server, both fence points, a rail and one worker.
pub struct Whole {
    pub lock: Component,
    pub payments: Component,
    pub proxy: Component,
    pub stub: Component,
    pub workers: Vec<Component>,
    pub dir: TempDir,
}

const ANY: &str = "127.0.0.1:0";

impl Whole {
    /// Without a worker. `env` is set for each component.
    pub fn new(env: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lock_store = format!("sqlite:{}", dir.path().join("lock.db").display());
        let pay = format!("sqlite:{}", dir.path().join("pay").display());
        let stub = Component::start(&["rail-stub", "--listen", ANY], &[]);
        let rail = stub.url();
        let proxy = ["rail-proxy", "--listen", ANY, "--store", &pay, "--rail", &rail];
        Self {
            lock: Component::start(&["lock-server", "--listen", ANY, "--store", &lock_store], env),
            payments: Component::start(&["payment-resource", "--listen", ANY, "--store", &pay], env),
            proxy: Component::start(&proxy, env),
            stub,
            workers: Vec::new(),
            dir,
        }
    }

    /// Adds a worker with settings of its own; answers its place.
    pub fn worker(&mut self, owner: &str, settings: &[&str], env: &[(&str, &str)]) -> usize {
        let (lock, payments, proxy) = (self.lock.url(), self.payments.url(), self.proxy.url());
        let mut args = vec![
            "payout-executor",
            "--listen",
            ANY,
            "--owner",
            owner,
            "--lock-server",
            &lock,
            "--payments",
            &payments,
            "--rail-proxy",
            &proxy,
            "--set",
            "executor.poll.interval=50ms",
        ];
        for setting in settings {
            args.extend(["--set", setting]);
        }
        self.workers.push(Component::start(&args, env));
        self.workers.len() - 1
    }

    fn payments_api(&self) -> (PaymentApi, TraceContext) {
        let caller = Caller::new(client(&ClientOptions::default()), self.payments.url(), LONG);
        (PaymentApi::new(caller), TraceContext::root(&Host::system().random))
    }

    /// Opens an account and makes one payout of it.
    pub fn payout(&self, account: &str, payout: &str) {
        actix_rt::System::new().block_on(async {
            let (api, trace) = self.payments_api();
            let opened = OpenAccountBody {
                account_id: account.into(),
                currency: "EUR".into(),
                opening_balance_minor: 10_000,
            };
            api.open_account(&opened, &trace).await.unwrap();
            let body = CreatePayoutBody {
                payout_id: Some(payout.into()),
                account_id: account.into(),
                amount_minor: 1_000,
                currency: "EUR".into(),
                creditor: Creditor {
                    name: "Ada".into(),
                    account: "DE02".into(),
                },
                reference: None,
            };
            api.create_payout(payout, &body, &trace).await.unwrap();
        });
    }

    pub fn state(&self, payout: &str) -> PayoutState {
        actix_rt::System::new().block_on(async {
            let (api, trace) = self.payments_api();
            api.payout(payout, &trace).await.unwrap().state
        })
    }

    pub fn await_state(&self, payout: &str, state: PayoutState) {
        until(&format!("{payout} is {state:?}"), || self.state(payout) == state);
    }

    /// `GET path` of a component as text.
    pub fn get(&self, of: &Component, path: &str) -> String {
        actix_rt::System::new().block_on(async {
            let caller = Caller::new(client(&ClientOptions::default()), of.url(), LONG);
            let trace = TraceContext::root(&Host::system().random);
            caller.text(path, &trace).await.unwrap()
        })
    }

    /// An operator's verb against this system.
    pub fn run(&self, args: &[&str]) -> Output {
        dlock()
            .args(args)
            .env("DLOCK_LOCK_SERVER", self.lock.url())
            .env("DLOCK_EXECUTOR_PAYMENTS", self.payments.url())
            .env("DLOCK_EXECUTOR_RAIL_PROXY", self.proxy.url())
            .output()
            .unwrap()
    }
}
