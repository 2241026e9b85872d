//! Both boundaries of the executor in memory, on the paused clock: a lock server behind the SDK's transport, and the two
//! ports. They answer as the contract says they do when nothing is wrong; a test says what goes wrong. Whether the real
//! components answer so is the business of their own tests and of the harness.
#![allow(dead_code, reason = "each test file uses its part")]

use actor_kit::{Kit, TraceContext};
use executor_core::{Executor, ExecutorConfig, ExecutorMetrics, History, Payments, PortError, PortFuture, Rail, Roles};
use host_kit::Host;
use http_contract::lock::{
    AcquireBody, AuditRow, GrantAnswer, HeartbeatAnswer, HeartbeatRequest, Held, KeyStatus, LockView,
    OpenSessionAnswer, OpenSessionRequest, ReleaseAnswer, RenewBody,
};
use http_contract::payment::{Creditor, PayoutAnswer, PayoutState, Resolution, ResolveBody};
use http_contract::rail::{
    LookupAnswer, Outcome, SubmissionFenceAnswer, SubmissionRow, SubmitAnswer, SubmitBody, Verdict,
};
use http_contract::{Code, Page, Problem};
use lock_api::{FencingToken, LockKey, Owner, SessionId};
use lock_client::{
    Call, CallFailure, CallFuture, ClientOptions, LockClient, LockMetrics, Placement, Servers, Transport,
};
use prometheus::Registry;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

pub const SECOND: Duration = Duration::from_secs(1);

/// Runs a test on the paused clock in an actix system.
pub fn paused<F: Future>(test: F) -> F::Output {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    actix_rt::System::with_tokio_rt(runtime).block_on(test)
}

pub fn problem(code: Code) -> Problem {
    Problem::new(code, "planted", "00")
}

/// What goes wrong with the next call of a verb.
pub enum Fault {
    /// Refused: nothing is done.
    Refuse(Code),
    /// It never leaves.
    NotSent,
    /// It is done, and the answer is lost.
    DoneButLost,
    /// The caller panics: a defect in it.
    Panic,
    /// Something happens to the world before it is done.
    First(Box<dyn FnOnce(&mut World)>),
    /// It takes this long.
    Slow(Duration),
}

#[derive(Default)]
pub struct World {
    pub payouts: BTreeMap<String, PayoutAnswer>,
    pub submissions: BTreeMap<String, SubmissionRow>,
    pub faults: BTreeMap<&'static str, VecDeque<Fault>>,
    pub verdicts: VecDeque<(Verdict, u64)>,
    /// Every call but lists, as `verb payout token`.
    pub calls: Vec<String>,
    pub tokens: u64,
    pub held: BTreeMap<String, (String, u64)>,
    pub held_elsewhere: BTreeSet<String>,
    /// Accounts that can pay nothing.
    pub unfunded: BTreeSet<String>,
    pub lock_server_down: bool,
    pub lists: u64,
    pub in_hand: BTreeMap<String, usize>,
    pub in_hand_max: usize,
}

#[derive(Clone, Default)]
pub struct Shared(pub Rc<RefCell<World>>);

impl World {
    pub fn payout(&mut self, id: &str, account: &str, state: PayoutState) {
        let payout = PayoutAnswer {
            payout_id: id.into(),
            account_id: account.into(),
            amount_minor: 1000,
            currency: "EUR".into(),
            creditor: Creditor {
                name: "N".into(),
                account: "X".into(),
            },
            reference: None,
            state,
            claim_token: None,
            rail_reference: None,
            failure_reason: None,
            created_at: "2026-01-01T00:00:00Z".into(),
            updated_at: "2026-01-01T00:00:00Z".into(),
            ambiguous_since: None,
            escalated_at: None,
            version: 1,
        };
        self.payouts.insert(id.into(), payout);
    }

    pub fn submission(&mut self, id: &str, outcome: Option<Outcome>) {
        let row = SubmissionRow {
            submission_id: format!("s-{id}"),
            payout_id: id.into(),
            account_id: "A".into(),
            token: 1,
            amount_minor: 1000,
            currency: "EUR".into(),
            client_reference: id.into(),
            intent_at: "2026-01-01T00:00:00Z".into(),
            forwarded_at: None,
            outcome,
            actor: None,
            cause: None,
            rail_reference: (outcome == Some(Outcome::Acked)).then(|| format!("R-{id}")),
            decline_reason: None,
            outcome_at: None,
            fencing_enforced: true,
        };
        self.submissions.insert(id.into(), row);
    }

    pub fn fault(&mut self, verb: &'static str, fault: Fault) {
        self.faults.entry(verb).or_default().push_back(fault);
    }

    /// The calls since the last look, without their payout where it is `P`.
    pub fn seen(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls)
    }

    pub fn state(&self, id: &str) -> PayoutState {
        self.payouts[id].state
    }
}

impl Shared {
    pub fn with<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.0.borrow_mut())
    }

    fn call<T: 'static>(
        &self,
        verb: &'static str,
        said: String,
        work: impl FnOnce(&mut World) -> Result<T, PortError> + 'static,
    ) -> PortFuture<T> {
        let world = self.clone();
        Box::pin(async move {
            // A turn of the scheduler, as a call over a wire has.
            tokio::task::yield_now().await;
            let fault = world.with(|w| {
                w.calls.push(said);
                w.faults.get_mut(verb).and_then(VecDeque::pop_front)
            });
            match fault {
                None => world.with(work),
                Some(Fault::Refuse(code)) => Err(PortError::Problem(Box::new(problem(code)))),
                Some(Fault::NotSent) => Err(PortError::NotSent("planted".into())),
                Some(Fault::DoneButLost) => {
                    let _ = world.with(work);
                    Err(PortError::Ambiguous("planted".into()))
                }
                Some(Fault::Panic) => panic!("planted"),
                Some(Fault::First(first)) => {
                    world.with(first);
                    // Long enough for a heartbeat to tell the client what happened.
                    tokio::time::sleep(10 * SECOND).await;
                    world.with(work)
                }
                Some(Fault::Slow(duration)) => {
                    tokio::time::sleep(duration).await;
                    world.with(work)
                }
            }
        })
    }

    fn step(
        &self,
        verb: &'static str,
        id: String,
        token: FencingToken,
        set: impl FnOnce(&mut PayoutAnswer, u64) + 'static,
    ) -> PortFuture<PayoutAnswer> {
        let (said, number) = (format!("{verb} {id} {token}"), token.get());
        self.call(verb, said, move |w| {
            let payout = w.payouts.get_mut(&id).unwrap();
            set(payout, number);
            payout.version += 1;
            Ok(payout.clone())
        })
    }
}

impl Payments for Shared {
    fn list(
        &self,
        state: PayoutState,
        limit: u32,
        cursor: Option<String>,
        _: TraceContext,
    ) -> PortFuture<Page<PayoutAnswer>> {
        let world = self.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            world.with(|w| {
                w.lists += 1;
                let mut items: Vec<_> = w
                    .payouts
                    .values()
                    .filter(|payout| {
                        payout.state == state && cursor.as_ref().is_none_or(|after| payout.payout_id > *after)
                    })
                    .cloned()
                    .collect();
                let more = items.len() > limit as usize;
                items.truncate(limit as usize);
                let next_cursor = items.last().filter(|_| more).map(|last| last.payout_id.clone());
                Ok(Page { items, next_cursor })
            })
        })
    }

    fn payout(&self, id: String, _: TraceContext) -> PortFuture<PayoutAnswer> {
        self.call("reread", format!("reread {id}"), move |w| Ok(w.payouts[&id].clone()))
    }

    fn claim(&self, id: String, token: FencingToken, version: u64, _: TraceContext) -> PortFuture<PayoutAnswer> {
        let (said, number) = (format!("claim {id} {token}"), token.get());
        self.call("claim", said, move |w| {
            let payout = w.payouts.get_mut(&id).unwrap();
            if w.unfunded.contains(&payout.account_id) {
                return Err(PortError::Problem(Box::new(problem(Code::InsufficientFunds))));
            }
            if payout.version != version {
                return Err(PortError::Problem(Box::new(problem(Code::VersionConflict))));
            }
            payout.state = PayoutState::Claimed;
            payout.claim_token = Some(number);
            payout.version += 1;
            Ok(payout.clone())
        })
    }

    fn post(&self, id: String, token: FencingToken, reference: String, _: TraceContext) -> PortFuture<PayoutAnswer> {
        self.step("post", id, token, move |payout, _| {
            payout.state = PayoutState::Posted;
            payout.rail_reference = Some(reference);
        })
    }

    fn fail(&self, id: String, token: FencingToken, reason: String, _: TraceContext) -> PortFuture<PayoutAnswer> {
        self.step("fail", id, token, move |payout, _| {
            payout.state = PayoutState::Failed;
            payout.failure_reason = Some(reason);
        })
    }

    fn ambiguous(&self, id: String, token: FencingToken, _: String, _: TraceContext) -> PortFuture<PayoutAnswer> {
        self.step("ambiguous", id, token, |payout, _| {
            payout.state = PayoutState::RailAmbiguous
        })
    }

    fn resolve(&self, id: String, token: FencingToken, body: ResolveBody, _: TraceContext) -> PortFuture<PayoutAnswer> {
        self.step("resolve", id, token, move |payout, _| {
            payout.state = match body.outcome {
                Resolution::Posted => PayoutState::Posted,
                Resolution::Failed => PayoutState::Failed,
            };
            payout.rail_reference = body.rail_reference;
        })
    }
}

impl Rail for Shared {
    fn submit(&self, token: FencingToken, body: SubmitBody, _: Duration, _: TraceContext) -> PortFuture<SubmitAnswer> {
        let id = body.payout_id;
        self.call("submit", format!("submit {id} {token}"), move |w| {
            w.submission(&id, Some(Outcome::Acked));
            let row = &w.submissions[&id];
            Ok(SubmitAnswer {
                submission_id: row.submission_id.clone(),
                outcome: Outcome::Acked,
                rail_reference: row.rail_reference.clone(),
                decline_reason: None,
            })
        })
    }

    fn submission(&self, id: String, _: TraceContext) -> PortFuture<SubmissionRow> {
        self.call("readback", format!("readback {id}"), move |w| {
            w.submissions
                .get(&id)
                .cloned()
                .ok_or_else(|| PortError::Problem(Box::new(problem(Code::SubmissionNotFound))))
        })
    }

    fn lookup(&self, id: String, _: Duration, _: TraceContext) -> PortFuture<LookupAnswer> {
        self.call("lookup", format!("lookup {id}"), move |w| {
            let (verdict, executions) = w.verdicts.pop_front().unwrap_or((Verdict::Inconclusive, 0));
            if verdict == Verdict::Executed {
                w.submission(&id, Some(Outcome::Acked));
            }
            Ok(LookupAnswer {
                verdict,
                executions,
                submission: w.submissions.get(&id).cloned(),
            })
        })
    }

    fn fence(
        &self,
        id: String,
        token: FencingToken,
        forbid: bool,
        _: TraceContext,
    ) -> PortFuture<SubmissionFenceAnswer> {
        let verb = if forbid { "forbid" } else { "fence" };
        let (said, highest) = (format!("{verb} {id} {token}"), token.get() - 1);
        self.call(verb, said, move |w| {
            if forbid && !w.submissions.contains_key(&id) {
                w.submission(&id, Some(Outcome::NotSent));
            }
            Ok(SubmissionFenceAnswer {
                submission: w.submissions.get(&id).cloned(),
                highest_token: highest,
            })
        })
    }
}

const TTL_MS: u64 = 15_000;

/// A lock server in memory: tokens rise, a key is held once, a session lives as long as the test.
struct LockServer {
    world: Shared,
    sessions: Cell<u64>,
}

impl LockServer {
    fn call<T: 'static>(&self, work: impl FnOnce(&mut World) -> Result<T, CallFailure> + 'static) -> CallFuture<T> {
        let world = self.world.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            world.with(|w| {
                if w.lock_server_down {
                    return Err(CallFailure::NotSent("planted".into()));
                }
                work(w)
            })
        })
    }
}

fn refused<T>(code: Code) -> Result<T, CallFailure> {
    let mut problem = problem(code);
    if code == Code::HeldByOther {
        let holder = serde_json::json!({"owner": "W9", "since": "2026-01-01T00:00:00Z", "token": 1});
        problem.fields.insert("holder".into(), holder);
        problem.fields.insert("expires_in_ms".into(), 1000.into());
        problem.fields.insert("retry_after_ms".into(), 100.into());
        problem.fields.insert("waiters".into(), 0.into());
    }
    Err(CallFailure::Problem(Box::new(problem)))
}

impl Transport for LockServer {
    fn open_session(&self, request: OpenSessionRequest, _: Call) -> CallFuture<OpenSessionAnswer> {
        self.sessions.set(self.sessions.get() + 1);
        let session_id = format!("s{}", self.sessions.get());
        self.call(move |_| {
            Ok(OpenSessionAnswer {
                session_id,
                owner: request.owner,
                ttl_ms: TTL_MS,
                heartbeat_interval_ms: TTL_MS / 3,
                expires_in_ms: TTL_MS,
            })
        })
    }

    fn heartbeat(&self, session: SessionId, _: HeartbeatRequest, _: Call) -> CallFuture<HeartbeatAnswer> {
        self.call(move |w| {
            let held = w
                .held
                .iter()
                .filter(|(_, (holder, _))| *holder == session.as_str())
                .map(|(key, (_, token))| Held {
                    key: key.clone(),
                    token: *token,
                    expires_in_ms: TTL_MS,
                    yield_requested: None,
                })
                .collect();
            Ok(HeartbeatAnswer {
                session_id: session.as_str().to_owned(),
                expires_in_ms: TTL_MS,
                held,
            })
        })
    }

    fn close_session(&self, session: SessionId, _: Call) -> CallFuture<()> {
        self.call(move |w| {
            w.held.retain(|_, (holder, _)| *holder != session.as_str());
            Ok(())
        })
    }

    fn acquire(&self, key: LockKey, body: AcquireBody, _: Call) -> CallFuture<GrantAnswer> {
        self.call(move |w| {
            if w.held_elsewhere.contains(key.as_str()) || w.held.contains_key(key.as_str()) {
                return refused(Code::HeldByOther);
            }
            w.tokens += 1;
            w.calls.push(format!("acquire {key}"));
            w.held
                .insert(key.as_str().to_owned(), (body.session_id.clone(), w.tokens));
            Ok(GrantAnswer {
                key: key.as_str().to_owned(),
                token: w.tokens,
                session_id: body.session_id,
                ttl_ms: TTL_MS,
                expires_in_ms: TTL_MS,
                waited_ms: 0,
                lock_delay_ms: 0,
                yield_requested: None,
            })
        })
    }

    fn renew(&self, key: LockKey, token: FencingToken, body: RenewBody, _: Call) -> CallFuture<GrantAnswer> {
        self.call(move |w| {
            if w.held.get(key.as_str()) != Some(&(body.session_id.clone(), token.get())) {
                return refused(Code::NotHolder);
            }
            Ok(GrantAnswer {
                key: key.as_str().to_owned(),
                token: token.get(),
                session_id: body.session_id,
                ttl_ms: TTL_MS,
                expires_in_ms: TTL_MS,
                waited_ms: 0,
                lock_delay_ms: 0,
                yield_requested: None,
            })
        })
    }

    fn release(&self, key: LockKey, token: FencingToken, session: SessionId, _: Call) -> CallFuture<ReleaseAnswer> {
        self.call(move |w| {
            if w.held.get(key.as_str()) != Some(&(session.as_str().to_owned(), token.get())) {
                return refused(Code::NotHolder);
            }
            w.calls.push(format!("release {token}"));
            w.held.remove(key.as_str());
            Ok(ReleaseAnswer {
                key: key.as_str().to_owned(),
                token: token.get(),
                released: true,
            })
        })
    }

    fn inspect(&self, key: LockKey, _: Call) -> CallFuture<LockView> {
        self.call(move |w| {
            Ok(LockView {
                key: key.as_str().to_owned(),
                state: KeyStatus::Free,
                token: Some(w.tokens),
                holder: None,
                expires_in_ms: None,
                lock_delay_ms: None,
                yield_requested: None,
                closed_for_ms: None,
                waiters: 0,
            })
        })
    }

    fn history(&self, _: LockKey, _: Call) -> CallFuture<Vec<AuditRow>> {
        self.call(|_| Ok(Vec::new()))
    }
}

thread_local! {
    static WORLD: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

/// An executor over both boundaries.
pub struct Bench {
    pub world: Shared,
    pub kit: Kit,
    pub registry: Registry,
    pub executor: Executor,
    pub locks: LockClient,
}

pub fn config(roles: Roles, concurrency: usize) -> ExecutorConfig {
    ExecutorConfig {
        roles,
        concurrency,
        poll_interval: SECOND,
        poll_batch: 100,
        reconcile_interval: 30 * SECOND,
        rail_timeout: 10 * SECOND,
        rail_read_timeout: 8 * SECOND,
        #[cfg(feature = "lab")]
        ignore_lock_lost: false,
    }
}

impl Bench {
    pub async fn start(world: &Shared, config: ExecutorConfig) -> Self {
        Self::start_with(world, config, History::off()).await
    }

    pub async fn start_with(world: &Shared, config: ExecutorConfig, history: History) -> Self {
        Self::start_on(&Host::simulated(11), world, config, history).await
    }

    pub async fn start_on(host: &Host, world: &Shared, config: ExecutorConfig, history: History) -> Self {
        let registry = Registry::new();
        let kit = Kit::new("payout-executor", host, &registry);
        // The connector may cross to another thread, so it carries nothing; here it stays on this one.
        WORLD.set(Some(world.clone()));
        let connect = Box::new(|| {
            let server: Rc<dyn Transport> = Rc::new(LockServer {
                world: WORLD.take().expect("set just before"),
                sessions: Cell::new(0),
            });
            Servers {
                work: vec![server.clone()],
                heartbeat: vec![server],
            }
        });
        let options = ClientOptions::new(Owner::new("W1").unwrap());
        let metrics = LockMetrics::new(&registry).unwrap();
        let locks = LockClient::start(options, &kit, &metrics, Placement::Here, connect)
            .await
            .unwrap();
        let metrics = ExecutorMetrics::new(&registry).unwrap();
        let ports = Rc::new(world.clone());
        let executor = Executor::start(&config, &kit, ports.clone(), ports, locks.clone(), history, metrics);
        Self {
            world: world.clone(),
            kit,
            registry,
            executor,
            locks,
        }
    }

    /// Waits, in virtual time, until the world is as it should be.
    pub async fn until(&self, what: &str, fits: impl Fn(&World) -> bool) {
        for _ in 0..36_000 {
            if self.world.with(|w| fits(w)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!(
            "it never came to this within an hour: {what}; calls {:?}",
            self.world.with(|w| w.seen())
        );
    }

    pub async fn until_settled(&self, id: &str, state: PayoutState) {
        self.until(&format!("{id} {state} and free"), |w| {
            w.state(id) == state && w.held.is_empty()
        })
        .await;
    }

    pub fn ended(&self, outcome: &str) -> u64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == "executor_payout_duration_seconds")
            .unwrap();
        let metric = family
            .get_metric()
            .iter()
            .find(|m| m.get_label()[0].value() == outcome)
            .unwrap();
        metric.get_histogram().get_sample_count()
    }
}
