//! Use cases as scenarios: each a function over a running stack and a seed.
//!
//! Owns: the list of scenarios, and what they share: synthetic accounts and payouts, awaiting states over HTTP, steps
//! and checks as they are taken, the probes that every run ends with, and the way from a run to its report.
//! Does not own: how a stack is made or hurt; how the verdicts are reached.
//! On failure: [`RunError`] when the run could not be made; a wrong outcome is a failed check or verdict in the report.

pub mod crash_points;
pub mod fence_kit;
pub mod hold;
pub mod jepsen;
pub mod random;
pub mod uc01;
pub mod uc02;
pub mod uc03;
pub mod uc04;
pub mod uc05;
pub mod uc06;
pub mod uc07;
pub mod uc08;

use crate::evidence::{Apis, beancount, collect};
use crate::history::Recorder;
use crate::invariant::{Verdict, check_all};
use crate::model::{Evidence, lock_key};
use crate::report::{Check, LEDGER, Refusals, ScenarioReport, StepTaken};
use crate::servers::Backends;
use crate::stack::containers::ContainerStack;
use crate::stack::processes::Lab;
use crate::stack::{RunError, Stack, StackSpec, ask_to_end, eventually};
use crate::traces;
use host_kit::{Host, Random};
use http_client::CallError;
use http_contract::lock::{AcquireBody, OpenSessionRequest};
use http_contract::payment::{
    ClaimBody, CreatePayoutBody, Creditor, OpenAccountBody, PayoutAnswer, PayoutState, PostBody,
};
use http_contract::rail::SubmitBody;
use lock_api::LockKey;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// The harness's own name in histories and sessions.
const HARNESS: &str = "harness";
/// The currency of all synthetic money.
pub const CURRENCY: &str = "EUR";
/// How long a payout may take to be settled once nothing is in its way. Generous: the machine may be busy.
pub const SETTLE_WITHIN: Duration = Duration::from_secs(30);
/// How long an idempotent call of the harness is made again until its answer is known: longer than any fault is held.
const ANSWERED_WITHIN: Duration = Duration::from_secs(300);

/// The use cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UseCase {
    /// Happy-path payout.
    Uc01,
    /// Contended acquire with bounded wait.
    Uc02,
    /// Paused worker: the negative control.
    Uc03,
    /// Worker crash at every step of a payout.
    Uc04,
    /// Ambiguous rail outcome and its reconciliation.
    Uc05,
    /// Operator force-revoke of a live holder.
    Uc06,
    /// Backend failover.
    Uc07,
    /// Lock service unavailable, then back.
    Uc08,
}

impl UseCase {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Uc01,
        Self::Uc02,
        Self::Uc03,
        Self::Uc04,
        Self::Uc05,
        Self::Uc06,
        Self::Uc07,
        Self::Uc08,
    ];

    /// Its id.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Uc01 => "UC-01",
            Self::Uc02 => "UC-02",
            Self::Uc03 => "UC-03",
            Self::Uc04 => "UC-04",
            Self::Uc05 => "UC-05",
            Self::Uc06 => "UC-06",
            Self::Uc07 => "UC-07",
            Self::Uc08 => "UC-08",
        }
    }

    /// The use case of this id (`UC-03`, `uc03`, `uc-03`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |text: &str| text.to_ascii_lowercase().replace('-', "");
        Self::ALL.into_iter().find(|case| plain(case.id()) == plain(text))
    }
}

/// Where progress is told while a run goes on.
pub type Say = Rc<dyn Fn(&str)>;

/// A progress that tells nobody.
#[must_use]
pub fn silent() -> Say {
    Rc::new(|_| {})
}

/// One run of a scenario on a stack.
pub struct Cx<'a> {
    /// The stack.
    pub stack: &'a dyn Stack,
    /// The harness's clients of it.
    pub apis: Apis,
    /// The choices of this run.
    pub random: Random,
    seed: u64,
    began: Duration,
    began_us: u64,
    steps: RefCell<Vec<StepTaken>>,
    checks: RefCell<Vec<Check>>,
    recorder: Recorder,
    payouts_made: Cell<u64>,
    burnt: Cell<u64>,
    say: Say,
    name: String,
    held: Option<hold::Held>,
}

impl std::fmt::Debug for Cx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cx").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl<'a> Cx<'a> {
    /// A run on this stack that began at `began` (the stack's start belongs to it).
    ///
    /// # Errors
    /// When the harness's own history cannot be written.
    pub fn new(stack: &'a dyn Stack, name: &str, seed: u64, began: Duration, say: Say) -> Result<Self, RunError> {
        let host = stack.host();
        let path = stack.dir().join("harness.history.jsonl");
        let so_far = host.clock.mono().saturating_sub(began);
        let began_us = host.clock.boot().saturating_sub(so_far).as_micros();
        Ok(Self {
            stack,
            apis: Apis::new(&stack.links(), host),
            random: Random::seeded(seed),
            seed,
            began,
            began_us: u64::try_from(began_us).unwrap_or(u64::MAX),
            steps: RefCell::default(),
            checks: RefCell::default(),
            recorder: Recorder::create(&path, HARNESS, &host.clock)
                .map_err(RunError::io(format!("making {}", path.display())))?,
            payouts_made: Cell::new(0),
            burnt: Cell::new(0),
            say,
            name: name.to_owned(),
            held: None,
        })
    }

    /// Writes what the run has come to so far beside its data, for whoever looks at it.
    fn tell_status(&self, state: &str) {
        let status = hold::Status {
            name: &self.name,
            seed: self.seed,
            state,
            began_us: self.began_us,
            steps: &self.steps.borrow(),
            nodes: &self.stack.node_events(),
        };
        status.write(self.stack.dir());
    }

    /// The harness's handles.
    #[must_use]
    pub fn host(&self) -> &Host {
        self.stack.host()
    }

    fn elapsed_ms(&self) -> u64 {
        let elapsed = self.host().clock.mono().saturating_sub(self.began);
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Something happened.
    pub fn step(&self, text: impl Into<String>) {
        let text = text.into();
        (self.say)(&text);
        self.steps.borrow_mut().push(StepTaken {
            at_ms: self.elapsed_ms(),
            text,
        });
        self.tell_status("runs");
    }

    /// Something was expected and measured.
    pub fn check(&self, what: impl Into<String>, expected: impl Display, measured: impl Display) {
        self.checks.borrow_mut().push(Check {
            what: what.into(),
            expected: expected.to_string(),
            measured: measured.to_string(),
        });
    }

    /// Takes and gives back a key of the harness's own, so that there is a token which is below every token of the run
    /// and was never anybody's on an account: the one that the probe presents as stale.
    ///
    /// # Errors
    /// When the lock server refuses or does not answer.
    pub async fn burn_a_token(&self) -> Result<(), RunError> {
        let (locks, trace) = (&self.apis.locks, self.apis.trace());
        let key = LockKey::new("harness:probe").map_err(|error| RunError::Other(error.to_string()))?;
        let open = OpenSessionRequest {
            owner: HARNESS.to_owned(),
            ttl_ms: None,
            metadata: None,
        };
        let clock = &self.host().clock;
        let opening = clock.boot();
        let opened = locks
            .open_session(&open, &trace)
            .await
            .map_err(RunError::call("opening a session"))?;
        let session_until = opening + Duration::from_millis(opened.expires_in_ms);
        let session = opened.session_id;
        let body = AcquireBody {
            session_id: session.clone(),
            request_id: None,
            ttl_ms: None,
            wait_ms: None,
            witness_token: None,
            lock_delay_ms: None,
            metadata: None,
        };
        let seen = self.recorder.invoke("acquire", Some(key.as_str()), None, None);
        let asking = clock.boot();
        let grant = locks
            .acquire(&key, &body, &trace)
            .await
            .map_err(RunError::call("acquiring the harness's own key"))?;
        seen.ok(Some(grant.token));
        let until = asking + Duration::from_millis(grant.waited_ms + grant.expires_in_ms);
        self.recorder
            .lease(key.as_str(), grant.token, asking, until.min(session_until));
        let token = http_contract::token(grant.token).map_err(|error| RunError::Other(error.to_string()))?;
        let seen = self
            .recorder
            .invoke("release", Some(key.as_str()), Some(grant.token), None);
        let released = locks.release(&key, &session, token, &trace).await;
        record(seen, released.map(drop));
        locks
            .close_session(&session, &trace)
            .await
            .map_err(RunError::call("closing the harness's session"))?;
        self.burnt.set(grant.token);
        Ok(())
    }

    /// Opens a synthetic account.
    ///
    /// # Errors
    /// When the payment resource refuses or does not answer.
    pub async fn account(&self, account_id: &str, opening_balance_minor: i64) -> Result<(), RunError> {
        let body = OpenAccountBody {
            account_id: account_id.to_owned(),
            currency: CURRENCY.to_owned(),
            opening_balance_minor,
        };
        let what = format!("opening account {account_id}");
        self.until_answered(&what, async || {
            self.apis
                .payments
                .open_account(&body, &self.apis.trace())
                .await
                .map(drop)
        })
        .await
    }

    /// Asks for a payout under an id of the harness's own, so that faults can be planted for it beforehand.
    ///
    /// # Errors
    /// When the payment resource refuses or does not answer.
    pub async fn payout(&self, payout_id: &str, account_id: &str, amount_minor: i64) -> Result<(), RunError> {
        let number = self.payouts_made.get() + 1;
        self.payouts_made.set(number);
        let body = CreatePayoutBody {
            payout_id: Some(payout_id.to_owned()),
            account_id: account_id.to_owned(),
            amount_minor,
            currency: CURRENCY.to_owned(),
            creditor: creditor(number),
            reference: Some(format!("Synthetic payout {number}")),
        };
        let what = format!("asking for payout {payout_id}");
        self.until_answered(&what, async || {
            let asked = self
                .apis
                .payments
                .create_payout(payout_id, &body, &self.apis.trace())
                .await;
            asked.map(drop)
        })
        .await
    }

    /// Makes an idempotent call until its answer is known: a store that is slow for a moment makes no run impossible.
    async fn until_answered(
        &self,
        what: &str,
        mut call: impl AsyncFnMut() -> Result<(), CallError>,
    ) -> Result<(), RunError> {
        eventually(self.host(), what, ANSWERED_WITHIN, async || match call().await {
            Ok(()) => Ok(Some(())),
            Err(error) if error.problem().is_none_or(|problem| problem.retryable) => {
                tracing::debug!(event = "asked_again", what, %error);
                Ok(None)
            }
            Err(error) => Err(RunError::call(what)(error)),
        })
        .await
    }

    /// The payout as it is now.
    ///
    /// # Errors
    /// When the payment resource does not answer.
    pub async fn look(&self, payout_id: &str) -> Result<PayoutAnswer, RunError> {
        self.apis
            .payments
            .payout(payout_id, &self.apis.trace())
            .await
            .map_err(RunError::call(format!("reading payout {payout_id}")))
    }

    /// Awaits that the payout is as demanded.
    ///
    /// # Errors
    /// [`RunError::NeverCame`] after [`SETTLE_WITHIN`].
    pub async fn await_payout(
        &self,
        payout_id: &str,
        what: &str,
        is: impl Fn(&PayoutAnswer) -> bool,
    ) -> Result<PayoutAnswer, RunError> {
        eventually(
            self.host(),
            &format!("payout {payout_id} {what}"),
            SETTLE_WITHIN,
            async || Ok(Some(self.look(payout_id).await?).filter(|payout| is(payout))),
        )
        .await
    }

    /// Awaits that the payout reaches a state.
    ///
    /// # Errors
    /// [`RunError::NeverCame`] after [`SETTLE_WITHIN`].
    pub async fn await_state(&self, payout_id: &str, state: PayoutState) -> Result<PayoutAnswer, RunError> {
        self.await_payout(payout_id, state.as_str(), |payout| payout.state == state)
            .await
    }

    /// The rail's count of executions for a payout, as it is now.
    ///
    /// # Errors
    /// When the rail does not answer.
    pub async fn executions(&self, payout_id: &str) -> Result<usize, RunError> {
        self.apis
            .stub
            .book(payout_id, &self.apis.trace())
            .await
            .map(|book| book.executions.len())
            .map_err(RunError::call(format!("the rail's book on {payout_id}")))
    }

    /// Awaits that a node logged an event that fits.
    ///
    /// # Errors
    /// [`RunError::NeverCame`] after [`SETTLE_WITHIN`].
    pub async fn await_log(
        &self,
        node: &str,
        what: &str,
        fits: impl Fn(&serde_json::Value) -> bool,
    ) -> Result<(), RunError> {
        eventually(self.host(), &format!("{node} logs {what}"), SETTLE_WITHIN, async || {
            Ok(self.stack.log(node)?.iter().any(&fits).then_some(()))
        })
        .await
    }

    /// The lock key of an account.
    ///
    /// # Errors
    /// Never for an account id within its bounds.
    pub fn key(&self, account_id: &str) -> Result<LockKey, RunError> {
        LockKey::new(lock_key(account_id)).map_err(|error| RunError::Other(error.to_string()))
    }

    /// Ends a run: lets the workers drain, ends the rail's faults, probes both fences, collects the evidence, judges it.
    ///
    /// # Errors
    /// When the evidence cannot be had.
    pub async fn finish(self, id: &str, title: &str) -> Result<(ScenarioReport, Evidence), RunError> {
        if let Some(held) = &self.held {
            self.tell_status("is over and held to be looked at");
            (held.hold.until)(&self.name, &held.console).await;
        }
        self.tell_status("is being judged");
        // A ring goes with its process.
        traces::collect(self.stack, "before-the-end").await;
        // What is collected must be at rest, and a rail that was told to lie about lookups must show its book.
        self.end_workers().await?;
        self.apis
            .stub
            .clear_faults(&self.apis.trace())
            .await
            .map_err(RunError::call("ending the rail's faults"))?;
        if self.stack.spec().payment_fencing && self.stack.spec().rail_fencing {
            self.probe().await?;
        }
        let mut evidence = collect(self.stack, &self.apis).await?;
        evidence.began_us = self.began_us;
        let ledger = beancount(&self.apis, &evidence.accounts).await?;
        let path = self.stack.dir().join(LEDGER);
        std::fs::write(&path, ledger).map_err(RunError::io(format!("writing {}", path.display())))?;
        keep(self.stack.dir(), "evidence.json", &evidence)?;
        let refusals = refusals(&evidence);
        let verdicts: Vec<Verdict> = check_all(&evidence);
        let report = ScenarioReport {
            took_ms: self.elapsed_ms(),
            steps: self.steps.into_inner(),
            checks: self.checks.into_inner(),
            verdicts,
            refusals,
            dir: self.stack.dir().display().to_string(),
            began_us: self.began_us,
            ..ScenarioReport::new(id, title, self.seed)
        };
        keep(self.stack.dir(), "report.json", &report)?;
        traces::collect(self.stack, "at-the-end").await;
        Ok((report, evidence))
    }

    async fn end_workers(&self) -> Result<(), RunError> {
        ask_to_end(self.stack, &self.stack.workers(), SETTLE_WITHIN).await
    }

    /// Presents a stale token, and no token at all, at each fenced verb of a settled payout. Both must be refused, and
    /// the evidence collected afterwards shows whether anything changed.
    async fn probe(&self) -> Result<(), RunError> {
        let apis = &self.apis;
        let page = apis
            .payments
            .payouts(&http_client::PayoutFilter::default(), 1000, None, &apis.trace())
            .await
            .map_err(RunError::call("listing payouts"))?;
        let stale = self.burnt.get();
        let Some(payout) = page
            .items
            .iter()
            .find(|payout| payout.claim_token.is_some_and(|token| token > stale))
        else {
            return Ok(());
        };
        let id = payout.payout_id.as_str();
        let token = http_contract::token(stale).map_err(|error| RunError::Other(error.to_string()))?;
        let (trace, me) = (apis.trace(), Some("probe"));
        let submit = SubmitBody {
            payout_id: id.to_owned(),
            account_id: payout.account_id.clone(),
            amount_minor: payout.amount_minor,
            currency: payout.currency.clone(),
            creditor: payout.creditor.clone(),
        };
        let post = PostBody {
            rail_reference: "probe".to_owned(),
        };
        let seen = self.recorder.invoke("claim", None, Some(stale), Some(id));
        let claimed = record(
            seen,
            apis.payments
                .claim(id, token, me, &ClaimBody::default(), &trace)
                .await
                .map(drop),
        );
        let seen = self.recorder.invoke("submit", None, Some(stale), Some(id));
        let submitted = record(
            seen,
            apis.rail
                .submit(token, me, &submit, SETTLE_WITHIN, &trace)
                .await
                .map(drop),
        );
        let seen = self.recorder.invoke("post", None, Some(stale), Some(id));
        let posted = record(seen, apis.payments.post(id, token, me, &post, &trace).await.map(drop));
        self.check(
            "a stale claim, submit, post",
            "FENCED_OUT, FENCED_OUT, FENCED_OUT",
            [claimed, submitted, posted].join(", "),
        );

        let naked = async |verb: &str, caller: &http_client::Caller, path: String, body: serde_json::Value| {
            let seen = self.recorder.invoke(verb, None, None, Some(id));
            record(
                seen,
                caller
                    .post_json::<_, serde_json::Value>(&path, &body, &trace)
                    .await
                    .map(drop),
            )
        };
        let claimed = naked(
            "claim",
            apis.payments.caller(),
            format!("/v1/payouts/{id}/claim"),
            serde_json::json!({}),
        )
        .await;
        let submit = serde_json::to_value(submit).map_err(|error| RunError::Other(error.to_string()))?;
        let submitted = naked("submit", apis.rail.caller(), "/v1/rail/submissions".to_owned(), submit).await;
        self.check(
            "a claim and a submit without a token",
            "FENCING_TOKEN_REQUIRED, FENCING_TOKEN_REQUIRED",
            [claimed, submitted].join(", "),
        );
        Ok(())
    }
}

/// Writes the outcome of a call into the history and answers it in a word.
pub fn record(seen: crate::history::Invocation<'_>, result: Result<(), CallError>) -> String {
    match result {
        Ok(()) => {
            seen.ok(None);
            "accepted".to_owned()
        }
        Err(CallError::Problem(problem)) => {
            seen.refused(problem.code.as_str(), problem.text("reason"));
            problem.code.to_string()
        }
        Err(CallError::NotSent(how)) => {
            seen.refused("NOT_SENT", Some(&how));
            "not sent".to_owned()
        }
        Err(error) => {
            seen.unknown(&error.to_string());
            "unknown".to_owned()
        }
    }
}

/// Synthetic creditor number `n`.
fn creditor(n: u64) -> Creditor {
    Creditor {
        name: format!("Creditor {n}"),
        account: format!("XX00TEST{n:012}"),
    }
}

fn keep(dir: &Path, name: &str, value: &impl serde::Serialize) -> Result<(), RunError> {
    let path = dir.join(name);
    let text = serde_json::to_vec_pretty(value).map_err(|error| RunError::Other(error.to_string()))?;
    std::fs::write(&path, text).map_err(RunError::io(format!("writing {}", path.display())))
}

/// How often each fence point turned a worker's stale write away. The harness's own probes prove the fence too, but they
/// are not counted as workers that would have done harm.
fn refusals(evidence: &Evidence) -> Refusals {
    let mut refusals = Refusals::default();
    for call in evidence
        .calls
        .iter()
        .filter(|call| call.fenced_out() && call.client != HARNESS)
    {
        match call.verb.as_str() {
            "submit" | "fence" => refusals.rail += 1,
            _ => refusals.payment += 1,
        }
    }
    refusals
}

/// What a stack is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackKind {
    /// Child processes on the loopback interface.
    #[default]
    Processes,
    /// Containers on networks of their own.
    Containers,
}

/// What a scenario runs with.
#[derive(Clone)]
pub struct Setup {
    /// Makes the stacks.
    pub lab: Lab,
    /// Where each run has its own directory.
    pub root: std::path::PathBuf,
    /// The choices of the run.
    pub seed: u64,
    /// What its stacks are made of.
    pub stack: StackKind,
    /// Where the stores of its stacks are.
    pub backends: Rc<Backends>,
    /// Where progress is told.
    pub say: Say,
    /// Each stack is held at its end, with a console beside it.
    pub hold: Option<hold::Hold>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl Setup {
    /// Starts a stack in its own directory and runs `scenario` on it.
    ///
    /// # Errors
    /// When the run cannot be made.
    pub async fn run<T>(
        &self,
        name: &str,
        spec: StackSpec,
        scenario: impl AsyncFnOnce(Cx<'_>) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let began = self.lab.host().clock.mono();
        let dir = self.root.join(name);
        let spec = StackSpec {
            stores: self.backends.fresh().await?,
            ..spec
        };
        let (stack, console) = match self.stack {
            StackKind::Processes => {
                let stack = self.lab.stack(&dir, spec, None).await?;
                let console = match &self.hold {
                    Some(_) => Some(stack.console(None, &[], Some(&stack.dir().join(hold::STATUS))).await?),
                    None => None,
                };
                let stack: Box<dyn Stack> = Box::new(stack);
                (stack, console)
            }
            StackKind::Containers => {
                let stack = ContainerStack::start(&self.lab, &self.backends, &dir, spec).await?;
                let stack: Box<dyn Stack> = Box::new(stack);
                (stack, None)
            }
        };
        let named = {
            let (say, name) = (Rc::clone(&self.say), name.to_owned());
            Rc::new(move |text: &str| say(&format!("{name}: {text}")))
        };
        let mut cx = Cx::new(stack.as_ref(), name, self.seed, began, named)?;
        cx.held = self.hold.clone().zip(console).map(|(hold, console)| {
            (hold.began)(name, &console);
            hold::Held { hold, console }
        });
        cx.tell_status("begins");
        cx.burn_a_token().await?;
        let ran = scenario(cx).await;
        if ran.is_err() {
            traces::collect(stack.as_ref(), "when-it-failed").await;
        }
        ran
        // The stack is killed here, not drained: whatever a verdict needed was collected over HTTP.
    }
}

/// Runs one use case on stacks of its own; UC-03 is the matrix in [`uc03`], UC-07 has servers of its own in [`uc07`].
///
/// # Errors
/// When it cannot be run, or is not available.
pub async fn run(setup: &Setup, case: UseCase) -> Result<ScenarioReport, RunError> {
    let name = case.id().to_ascii_lowercase();
    match case {
        UseCase::Uc01 => setup.run(&name, uc01::spec(), uc01::run).await,
        UseCase::Uc02 => setup.run(&name, uc02::spec(), uc02::run).await,
        UseCase::Uc04 => uc04::run(setup).await,
        UseCase::Uc05 => setup.run(&name, uc05::spec(), uc05::run).await,
        UseCase::Uc06 => setup.run(&name, uc06::spec(), uc06::run).await,
        UseCase::Uc08 => setup.run(&name, uc08::spec(), uc08::run).await,
        UseCase::Uc03 => Err(RunError::Other("UC-03 is a matrix of cells, not one run".to_owned())),
        UseCase::Uc07 => Err(RunError::Other("UC-07 starts servers of its own: see uc07".to_owned())),
    }
}
