//! The whole path with the real components on the embedded store, each on a socket of its own, in one process.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use actor_kit::TraceContext;
use executor_core::Line;
use gateway_kit::{Drain, Settings};
use host_kit::{Clock, Host};
use http_client::{Caller, LockServerApi, PaymentApi, PayoutFilter, RailProxyApi, RailStubApi};
use http_contract::lock::{AcquireBody, OpenSessionRequest};
use http_contract::payment::{
    ClaimBody, CreatePayoutBody, CreditBody, Creditor, OpenAccountBody, PayoutAnswer, PayoutState,
};
use http_contract::rail::{FaultPlan, FaultRule, SubmitBody};
use lock_api::LockKey;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Everything a settling payout can need here, a loaded machine included.
const BOUND: Duration = Duration::from_secs(60);

struct Stack {
    dir: TempDir,
    host: Host,
    clock: Clock,
    settings: Vec<(String, String)>,
    locks: LockServerApi,
    payments: PaymentApi,
    proxy: RailProxyApi,
    rail: RailStubApi,
    drains: RefCell<Vec<Drain>>,
}

fn settings(pairs: &[(String, String)], more: &[(&str, &str)]) -> Settings {
    let mut flags = pairs.to_vec();
    flags.extend(
        more.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    Settings::load(None, [], &flags).unwrap()
}

fn caller(url: &str) -> Caller {
    Caller::new(
        http_client::client(&http_client::ClientOptions::default()),
        url,
        Duration::from_secs(10),
    )
}

impl Stack {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (host, at) = (Host::system(), dir.path().display().to_string());
        let paydb = format!("sqlite:{at}/paydb");
        let lockdb = format!("sqlite:{at}/lock.db");
        let base: Vec<(String, String)> = [
            ("lock.store.url", lockdb.as_str()),
            ("payment.store.url", &paydb),
            ("rail.store.url", &paydb),
            ("http.workers", "1"),
            // A machine that stands still for a few seconds loses no lease and no answer.
            ("lock.session.ttl", "10s"),
            ("lock.heartbeat.interval", "400ms"),
            ("lock.client.safety-margin", "300ms"),
            ("lock.store.timeout", "20s"),
            ("payment.store.timeout", "20s"),
            ("rail.store.timeout", "20s"),
            ("http.request-timeout", "25s"),
            ("rail.read-timeout", "3s"),
            ("executor.rail-timeout", "5s"),
            ("rail.visibility-horizon", "500ms"),
            ("executor.poll.interval", "50ms"),
            ("executor.reconcile.interval", "100ms"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();

        let stub = rail_stub::Stub::bind("127.0.0.1:0", None, 7).await.unwrap();
        let rail_url = format!("http://{}", stub.addr().unwrap());
        actix_rt::spawn(stub.serve(std::future::pending()));

        let drains = RefCell::new(Vec::new());
        let listen = "127.0.0.1:0".to_owned();
        let (tell, told) = oneshot::channel();
        actix_rt::spawn({
            let running = lock_server::run_and_tell(settings(&base, &[]), listen.clone(), host.clone(), |at, drain| {
                let _ = tell.send((at, drain));
            });
            async move { running.await.unwrap() }
        });
        let (lock_at, drain) = told.await.unwrap();
        drains.borrow_mut().push(drain);
        let (tell, told) = oneshot::channel();
        actix_rt::spawn({
            let running =
                payment_resource::run_and_tell(settings(&base, &[]), listen.clone(), host.clone(), |at, drain| {
                    let _ = tell.send((at, drain));
                });
            async move { running.await.unwrap() }
        });
        let (payments_at, drain) = told.await.unwrap();
        drains.borrow_mut().push(drain);
        let (tell, told) = oneshot::channel();
        let assembled = rail_proxy::assemble(&settings(&base, &[("rail.url", &rail_url)]), &host)
            .await
            .unwrap();
        drains.borrow_mut().push(assembled.gateway.drain());
        actix_rt::spawn(async move {
            let state = assembled.state;
            let configure =
                move |config: &mut actix_web::web::ServiceConfig| rail_proxy::configure(config, state.clone());
            let tell = |at| tell.send(at).expect("the test waits for it");
            assembled
                .gateway
                .serve_and_tell(&listen, configure, tell)
                .await
                .unwrap();
        });
        let proxy_at = told.await.unwrap();
        let url = |at| format!("http://{at}");
        let links = [url(lock_at), url(payments_at), url(proxy_at)];
        let mut all = base;
        for (name, link) in ["executor.lock-servers", "executor.payments", "executor.rail-proxy"]
            .iter()
            .zip(&links)
        {
            all.push(((*name).to_owned(), link.clone()));
        }
        Self {
            dir,
            clock: host.clock.clone(),
            host,
            settings: all,
            locks: LockServerApi::new(caller(&links[0])),
            payments: PaymentApi::new(caller(&links[1])),
            proxy: RailProxyApi::new(caller(&links[2])),
            rail: RailStubApi::new(caller(&rail_url)),
            drains,
        }
    }

    fn trace(&self) -> TraceContext {
        TraceContext::root(&self.host.random)
    }

    /// Starts an executor; what it returns tells how it ended.
    async fn executor(&self, owner: &str, role: &str) -> Running {
        let history = self.dir.path().join(format!("{owner}.jsonl")).display().to_string();
        let mut more = vec![("executor.owner", owner), ("executor.role", role)];
        if cfg!(feature = "lab") {
            more.push(("debug.history-file", history.as_str()));
        }
        let settings = settings(&self.settings, &more);
        let assembled = payout_executor::assemble(&settings, &self.host, lock_client::Placement::Here)
            .await
            .unwrap();
        let drain = assembled.gateway.drain();
        let (tell, told) = oneshot::channel();
        let ended = actix_rt::spawn(async move {
            let tell = |at| tell.send(at).expect("the test waits for it");
            assembled.gateway.serve_and_tell("127.0.0.1:0", |_| {}, tell).await
        });
        let at = told.await.unwrap();
        self.drains.borrow_mut().push(drain.clone());
        Running {
            ended,
            drain,
            caller: caller(&format!("http://{at}")),
        }
    }

    async fn account(&self, id: &str, opening_balance_minor: i64) {
        let body = OpenAccountBody {
            account_id: id.into(),
            currency: "EUR".into(),
            opening_balance_minor,
        };
        self.payments.open_account(&body, &self.trace()).await.unwrap();
    }

    async fn payout(&self, id: &str, account: &str, amount_minor: i64) {
        let body = CreatePayoutBody {
            payout_id: Some(id.into()),
            account_id: account.into(),
            amount_minor,
            currency: "EUR".into(),
            creditor: Creditor {
                name: "Ada".into(),
                account: "DE00".into(),
            },
            reference: None,
        };
        self.payments.create_payout(id, &body, &self.trace()).await.unwrap();
    }

    async fn fault(&self, payout: &str, fault: &str) {
        let plan = FaultPlan {
            rules: vec![FaultRule {
                client_reference: payout.into(),
                fault: fault.into(),
                times: None,
                latency_ms: None,
                reason: None,
            }],
            ..FaultPlan::default()
        };
        self.rail.set_faults(&plan, &self.trace()).await.unwrap();
    }

    async fn until(&self, id: &str, state: PayoutState) -> PayoutAnswer {
        let until = self.clock.mono() + BOUND;
        loop {
            let payout = self.payments.payout(id, &self.trace()).await.unwrap();
            if payout.state == state {
                return payout;
            }
            assert!(self.clock.mono() < until, "{id} is {} and not {state}", payout.state);
            self.clock.sleep(Duration::from_millis(20)).await;
        }
    }

    async fn executions(&self, id: &str) -> usize {
        self.rail.book(id, &self.trace()).await.unwrap().executions.len()
    }

    async fn legs(&self, account: &str, id: &str) -> usize {
        let ledger = self.payments.ledger(account, 1000, None, &self.trace()).await.unwrap();
        let house = self
            .payments
            .ledger("house:payouts:EUR", 1000, None, &self.trace())
            .await
            .map_or(0, |page| {
                page.items
                    .iter()
                    .filter(|row| row.payout_id.as_deref() == Some(id))
                    .count()
            });
        ledger
            .items
            .iter()
            .filter(|row| row.payout_id.as_deref() == Some(id))
            .count()
            + house
    }

    fn history(&self, owner: &str) -> Vec<Line> {
        let text = std::fs::read_to_string(self.dir.path().join(format!("{owner}.jsonl"))).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

struct Running {
    ended: actix_rt::task::JoinHandle<std::io::Result<()>>,
    drain: Drain,
    caller: Caller,
}

impl Running {
    async fn end(self) {
        self.drain.begin();
        tokio::time::timeout(BOUND, self.ended)
            .await
            .expect("it drains")
            .unwrap()
            .unwrap();
    }
}

fn whole<F: Future<Output = ()>>(test: impl FnOnce(Rc<Stack>) -> F) {
    actix_rt::System::new().block_on(async {
        let stack = Rc::new(Stack::start().await);
        test(stack.clone()).await;
        assert!(
            stack.payments.verify(&stack.trace()).await.unwrap().ok,
            "the ledger holds together"
        );
        for drain in stack.drains.borrow().iter() {
            drain.begin();
        }
    });
}

#[test]
fn a_payout_is_paid_once_and_its_worker_drains() {
    whole(|stack| async move {
        stack.account("A", 10_000).await;
        stack.payout("P1", "A", 1_000).await;
        let worker = stack.executor("W1", "pay").await;
        let posted = stack.until("P1", PayoutState::Posted).await;
        assert!(posted.rail_reference.is_some());
        assert_eq!((stack.executions("P1").await, stack.legs("A", "P1").await), (1, 2));
        let history = stack.payments.payout_history("P1", &stack.trace()).await.unwrap().items;
        let steps: Vec<_> = history
            .iter()
            .map(|row| (row.to_state, row.actor.as_deref(), row.token))
            .collect();
        assert_eq!(
            steps[1..],
            [
                (PayoutState::Claimed, Some("W1"), posted.claim_token),
                (PayoutState::Posted, Some("W1"), posted.claim_token),
            ]
        );
        let submission = stack.proxy.submission("P1", &stack.trace()).await.unwrap();
        assert_eq!(
            (submission.actor.as_deref(), Some(submission.token)),
            (Some("W1"), posted.claim_token)
        );

        let trace = stack.trace();
        for path in ["/livez", "/readyz", "/startupz", "/openapi.json", "/version"] {
            worker
                .caller
                .probe(path, &trace)
                .await
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        // It is counted once the lock was given back.
        let counted = "executor_payout_duration_seconds_count{outcome=\"posted\"} 1";
        let until = stack.clock.mono() + BOUND;
        let metrics = loop {
            let metrics = worker.caller.text("/metrics", &trace).await.unwrap();
            if metrics.contains(counted) {
                break metrics;
            }
            assert!(stack.clock.mono() < until, "{counted}\n{metrics}");
            stack.clock.sleep(Duration::from_millis(20)).await;
        };
        for name in [
            "lock_lost_total{reason=\"session_lost\"} 0",
            "lock_heartbeat_failures_total 0",
            "actor_mailbox_depth",
        ] {
            assert!(metrics.contains(name), "{name}\n{metrics}");
        }
        assert!(!metrics.contains("P1"), "no metric carries a payout (NFR-09)");
        worker.end().await;
        let view = stack
            .locks
            .lock(&LockKey::new("payout:A").unwrap(), &stack.trace())
            .await
            .unwrap();
        assert_eq!(view.state, http_contract::lock::KeyStatus::Free);
        assert_eq!(view.token, posted.claim_token);
        if cfg!(feature = "lab") {
            let verbs: Vec<_> = stack
                .history("W1")
                .into_iter()
                .filter(|line| line.event == "ok")
                .map(|line| line.verb)
                .collect();
            assert_eq!(verbs, ["acquire", "reread", "claim", "submit", "post", "release"]);
        }
    });
}

#[test]
fn a_decline_frees_the_hold_and_a_time_out_is_reconciled_without_a_second_submit() {
    whole(|stack| async move {
        stack.account("A", 10_000).await;
        stack.fault("P1", "decline").await;
        stack.payout("P1", "A", 1_000).await;
        let worker = stack.executor("W1", "pay").await;
        stack.until("P1", PayoutState::Failed).await;
        let account = stack.payments.account("A", &stack.trace()).await.unwrap();
        assert_eq!((account.balance_minor, account.held_minor), (10_000, 0));
        assert_eq!((stack.executions("P1").await, stack.legs("A", "P1").await), (0, 0));

        stack.fault("P2", "timeout_executed").await;
        stack.payout("P2", "A", 2_000).await;
        stack.until("P2", PayoutState::RailAmbiguous).await;
        let account = stack.payments.account("A", &stack.trace()).await.unwrap();
        assert_eq!(account.held_minor, 2_000, "while ambiguous the money stays held");
        let reconciler = stack.executor("R1", "reconcile").await;
        let posted = stack.until("P2", PayoutState::Posted).await;
        assert_eq!((stack.executions("P2").await, stack.legs("A", "P2").await), (1, 2));
        assert_eq!(stack.rail.book("P2", &stack.trace()).await.unwrap().bodies_read, 1);
        assert!(posted.rail_reference.is_some());

        stack.fault("P3", "timeout_not_executed").await;
        stack.payout("P3", "A", 3_000).await;
        stack.until("P3", PayoutState::Failed).await;
        assert_eq!((stack.executions("P3").await, stack.legs("A", "P3").await), (0, 0));
        worker.end().await;
        reconciler.end().await;
    });
}

#[test]
fn case_d06_a_claim_of_a_dead_worker_is_recovered_without_a_second_funds_check() {
    whole(|stack| async move {
        // The whole balance is in the claim: a second funds check would refuse it.
        stack.account("A", 1_000).await;
        stack.payout("P1", "A", 1_000).await;
        let trace = stack.trace();
        let session = OpenSessionRequest {
            owner: "dead".into(),
            ttl_ms: None,
            metadata: None,
        };
        let session = stack.locks.open_session(&session, &trace).await.unwrap().session_id;
        let acquire = AcquireBody {
            session_id: session,
            request_id: None,
            ttl_ms: None,
            wait_ms: None,
            witness_token: None,
            lock_delay_ms: None,
            metadata: None,
        };
        let key = LockKey::new("payout:A").unwrap();
        let token = stack.locks.acquire(&key, &acquire, &trace).await.unwrap().token;
        let token: lock_api::FencingToken = token.to_string().parse().unwrap();
        stack
            .payments
            .claim("P1", token, Some("dead"), &ClaimBody::default(), &trace)
            .await
            .unwrap();
        // From here on nothing is heard of it: no heartbeat, no release.
        let worker = stack.executor("W1", "pay").await;
        let posted = stack.until("P1", PayoutState::Posted).await;
        assert!(posted.claim_token > Some(token.get()));
        assert_eq!((stack.executions("P1").await, stack.legs("A", "P1").await), (1, 2));
        // It wakes up: refused at both points.
        let claim = stack
            .payments
            .claim("P1", token, Some("dead"), &ClaimBody::default(), &trace)
            .await
            .unwrap_err();
        assert_eq!(claim.code(), Some(http_contract::Code::FencedOut));
        let body = SubmitBody {
            payout_id: "P1".into(),
            account_id: "A".into(),
            amount_minor: 1_000,
            currency: "EUR".into(),
            creditor: posted.creditor.clone(),
        };
        let submit = stack
            .proxy
            .submit(token, Some("dead"), &body, BOUND, &trace)
            .await
            .unwrap_err();
        assert_eq!(submit.code(), Some(http_contract::Code::FencedOut));
        assert_eq!(stack.executions("P1").await, 1);
        worker.end().await;
    });
}

#[test]
fn a_payout_without_funds_rests_pending_until_the_account_is_topped_up() {
    whole(|stack| async move {
        stack.account("A", 500).await;
        stack.account("B", 5_000).await;
        stack.payout("P1", "A", 1_000).await;
        stack.payout("P2", "B", 1_000).await;
        let worker = stack.executor("W1", "both").await;
        stack.until("P2", PayoutState::Posted).await;
        assert_eq!(
            stack.payments.payout("P1", &stack.trace()).await.unwrap().state,
            PayoutState::Pending
        );
        let credit = CreditBody {
            amount_minor: 500,
            reference: "top up".into(),
        };
        stack.payments.credit("A", "c1", &credit, &stack.trace()).await.unwrap();
        stack.until("P1", PayoutState::Posted).await;
        worker.end().await;
    });
}

#[test]
fn two_executors_share_the_work_and_every_payout_is_paid_once() {
    whole(|stack| async move {
        for account in ["A", "B", "C"] {
            stack.account(account, 1_000_000).await;
        }
        for n in 0..24 {
            stack.payout(&format!("P{n:02}"), ["A", "B", "C"][n % 3], 100).await;
        }
        let (one, two) = (stack.executor("W1", "both").await, stack.executor("W2", "both").await);
        for n in 0..24 {
            let id = format!("P{n:02}");
            stack.until(&id, PayoutState::Posted).await;
            assert_eq!(
                (
                    stack.executions(&id).await,
                    stack.legs(["A", "B", "C"][n % 3], &id).await
                ),
                (1, 2),
                "{id}"
            );
        }
        let left = PayoutFilter {
            state: Some(PayoutState::Claimed),
            account_id: None,
        };
        assert!(
            stack
                .payments
                .payouts(&left, 10, None, &stack.trace())
                .await
                .unwrap()
                .items
                .is_empty()
        );
        one.end().await;
        two.end().await;
    });
}
