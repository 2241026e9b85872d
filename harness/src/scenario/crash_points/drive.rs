//! What takes a component to a fault point: a payout, or a verb that no payout reaches.
//!
//! Owns: asking each verb until its answer is known, across the crash; what must have come of it afterwards.
//! Does not own: arming the point, and what is seen of the component. On failure: [`RunError`] when an answer that is known
//! is the wrong one, or none comes.

use crate::model::lock_key;
use crate::scenario::{CURRENCY, Cx};
use crate::stack::{RunError, eventually};
use host_kit::Random;
use http_client::CallError;
use http_contract::Code;
use http_contract::lock::{
    AcquireBody, FloorBody, HeartbeatRequest, KeyStatus, OpenSessionRequest, RenewBody, RevokeBody, YieldBody,
};
use http_contract::payment::{CancelBody, CreditBody, PayoutState};
use http_contract::rail::{AckAnswer, AckBody, AckOutcome, FaultPlan, FaultRule, SubmissionFenceBody};
use lock_api::{FencingToken, LockKey};
use std::time::Duration;

/// What takes a component to a point. Each of them ends with a payout that the workers settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// A payout that the rail executes.
    Pay,
    /// A payout that the rail declines.
    Decline,
    /// A payout that the rail executes without an answer: ambiguous, looked up, resolved.
    TimeOut,
    /// The same, with a rail that answers no lookup until the payout was escalated.
    Escalate,
    /// A payout of which nobody can tell whether the rail has it: escalated, until a human has asked the rail and the rail
    /// has said in an ack of its own (R4) that it declined.
    Human,
    /// A payout whose rail acks twice more, asynchronously.
    Ack,
    /// An account that gets the money for its payout from outside.
    Credit,
    /// A payout that the account cannot pay, cancelled by an operator.
    Cancel,
    /// The marks raised at both fence points (P10, R6, R7) under a grant, before anybody pays.
    Fence,
    /// A session of the harness's own: opened, kept alive, a key acquired, renewed, looked at, released; closed.
    Lock,
    /// A grant of the harness's own, broken by an operator.
    Revoke,
    /// A grant of the harness's own, whose holder is asked to give it up, and does.
    Yield,
    /// A session and a grant that nobody keeps alive.
    Expire,
    /// The token floor, raised by an operator.
    Floor,
    /// A doubt dismissed by an operator although there is none.
    Dismiss,
}

/// How long a call, and whatever is awaited between two, may take across a crash. Generous: the machine may be busy.
const WITHIN: Duration = Duration::from_secs(60);
/// What accounts open with.
const OPENING: i64 = 1_000_000;
/// The operator's name in audit trails.
const OPERATOR: &str = "operator.synthetic";
const REASON: &str = "a crash is rehearsed";
/// A TTL that outlives every crash.
const LONG_MS: u64 = 60_000;
/// A TTL that passes soon; the shortest that can be asked for.
const SHORT_MS: u64 = 1_000;

/// One drive on its way: the payout and account it is about.
pub(super) struct Driver<'a> {
    pub cx: &'a Cx<'a>,
    pub drive: Drive,
    pub account: String,
    pub payout: String,
    pub amount: i64,
}

impl<'a> Driver<'a> {
    pub fn new(cx: &'a Cx<'a>, drive: Drive, name: &str, random: &Random) -> Self {
        Self {
            cx,
            drive,
            account: format!("account-{name}"),
            payout: format!("crash-{name}"),
            amount: 1_000 + i64::try_from(random.below(50_000)).unwrap_or(0),
        }
    }

    /// Goes to the point and past it: returns once everything that was asked has its answer.
    pub async fn run(&self) -> Result<(), RunError> {
        let cx = self.cx;
        self.plant().await?;
        match self.drive {
            Drive::Pay | Drive::Decline | Drive::TimeOut | Drive::Ack => self.pay(OPENING).await,
            Drive::Escalate => {
                self.pay(OPENING).await?;
                self.await_payout("escalated", |payout| payout.escalated_at.is_some())
                    .await?;
                self.told("ending the rail's faults", &[], async || {
                    cx.apis.stub.clear_faults(&cx.apis.trace()).await
                })
                .await
            }
            Drive::Human => {
                self.pay(OPENING).await?;
                self.await_payout("escalated", |payout| payout.escalated_at.is_some())
                    .await?;
                self.declined_by_ack().await
            }
            Drive::Credit => self.credit().await,
            Drive::Cancel => self.cancel().await,
            Drive::Fence => self.fence().await,
            Drive::Lock => {
                self.pay(OPENING).await?;
                self.lock().await
            }
            Drive::Revoke => self.revoke().await,
            Drive::Yield => self.yielded().await,
            Drive::Expire => self.expire().await,
            Drive::Floor => self.floor(false).await,
            Drive::Dismiss => self.floor(true).await,
        }
    }

    /// Awaits that the payout is settled, however.
    pub async fn settled_somehow(&self) -> Result<PayoutState, RunError> {
        let payout = self
            .await_payout("settled", |payout| {
                matches!(payout.state, PayoutState::Posted | PayoutState::Failed)
            })
            .await?;
        Ok(payout.state)
    }

    /// What the payout must come to.
    pub async fn settled(&self, fails: bool) -> Result<PayoutState, RunError> {
        let state = self.settled_somehow().await?;
        let expected = if fails {
            PayoutState::Failed
        } else {
            PayoutState::Posted
        };
        self.cx.check(format!("{} settled", self.payout), expected, state);
        if self.drive == Drive::Credit {
            let seen = self
                .cx
                .apis
                .payments
                .account(&self.account, &self.cx.apis.trace())
                .await;
            let seen = seen.map_err(RunError::call("reading an account"))?;
            self.cx.check(
                format!("{}: credited once", self.account),
                money_kit::amount(OPENING, &seen.currency),
                money_kit::amount(seen.balance_minor + self.amount, &seen.currency),
            );
        }
        Ok(state)
    }

    async fn plant(&self) -> Result<(), RunError> {
        let faults: &[&str] = match self.drive {
            Drive::Decline => &["decline"],
            Drive::TimeOut => &["timeout_executed"],
            Drive::Escalate => &["timeout_executed", "lookup_error"],
            Drive::Ack => &["duplicate_ack"],
            _ => return Ok(()),
        };
        let rules = faults.iter().map(|fault| FaultRule {
            client_reference: self.payout.clone(),
            fault: (*fault).to_owned(),
            times: None,
            latency_ms: None,
            reason: None,
        });
        let plan = FaultPlan {
            rules: rules.collect(),
            ..FaultPlan::default()
        };
        self.told("planting the rail's faults", &[], async || {
            self.cx.apis.stub.set_faults(&plan, &self.cx.apis.trace()).await
        })
        .await
    }

    /// Asks until the answer is known. A refusal with one of these codes is an answer as well: the crash hid the first.
    async fn told<T>(
        &self,
        what: &str,
        done: &[Code],
        mut call: impl AsyncFnMut() -> Result<T, CallError>,
    ) -> Result<(), RunError> {
        self.answered(what, async || match call().await {
            Ok(_) => Ok(()),
            Err(error) if error.code().is_some_and(|code| done.contains(&code)) => Ok(()),
            Err(error) => Err(error),
        })
        .await
    }

    async fn answered<T>(
        &self,
        what: &str,
        mut call: impl AsyncFnMut() -> Result<T, CallError>,
    ) -> Result<T, RunError> {
        let what = format!("{what} ({})", self.payout);
        eventually(self.cx.host(), &what, WITHIN, async || match call().await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.problem().is_none_or(|problem| problem.retryable) => Ok(None),
            Err(error) => Err(RunError::call(what.as_str())(error)),
        })
        .await
    }

    /// As [`Cx::await_payout`], across a crash of the payment resource.
    async fn await_payout(
        &self,
        what: &str,
        is: impl Fn(&http_contract::payment::PayoutAnswer) -> bool,
    ) -> Result<http_contract::payment::PayoutAnswer, RunError> {
        let (cx, id) = (self.cx, self.payout.as_str());
        eventually(cx.host(), &format!("payout {id} {what}"), WITHIN, async || {
            let seen = cx.apis.payments.payout(id, &cx.apis.trace()).await;
            Ok(seen.ok().filter(|payout| is(payout)))
        })
        .await
    }

    async fn pay(&self, opening: i64) -> Result<(), RunError> {
        self.cx.account(&self.account, opening).await?;
        self.cx.payout(&self.payout, &self.account, self.amount).await
    }

    async fn declined_by_ack(&self) -> Result<(), RunError> {
        let ack = AckBody {
            client_reference: self.payout.clone(),
            outcome: AckOutcome::Declined,
            rail_reference: None,
            decline_reason: Some("never received, says the rail".to_owned()),
            amount_minor: self.amount,
            currency: CURRENCY.to_owned(),
        };
        let rail = self.cx.apis.rail.caller();
        self.told("the rail's own word", &[], async || {
            rail.post_json::<_, AckAnswer>("/v1/rail/acks", &ack, &self.cx.apis.trace())
                .await
        })
        .await
    }

    async fn credit(&self) -> Result<(), RunError> {
        let cx = self.cx;
        cx.account(&self.account, 0).await?;
        let body = CreditBody {
            amount_minor: OPENING,
            reference: "Synthetic credit".to_owned(),
        };
        let key = format!("credit-{}", self.payout);
        self.told("crediting", &[], async || {
            cx.apis
                .payments
                .credit(&self.account, &key, &body, &cx.apis.trace())
                .await
        })
        .await?;
        cx.payout(&self.payout, &self.account, self.amount).await
    }

    async fn cancel(&self) -> Result<(), RunError> {
        let cx = self.cx;
        // It can never be claimed, so it is still PENDING when the operator comes.
        self.pay(self.amount - 1).await?;
        let body = CancelBody {
            reason: Some(REASON.to_owned()),
        };
        self.told("cancelling", &[Code::IllegalTransition], async || {
            cx.apis
                .payments
                .cancel(&self.payout, OPERATOR, &body, &cx.apis.trace())
                .await
        })
        .await
    }

    async fn fence(&self) -> Result<(), RunError> {
        let cx = self.cx;
        // The key is taken before there is a payout that a worker could take it for.
        let held = self.hold(&lock_key(&self.account), LONG_MS).await?;
        self.pay(OPENING).await?;
        self.told("fencing the payment resource", &[], async || {
            cx.apis
                .payments
                .fence(&self.account, held.token, &cx.apis.trace())
                .await
        })
        .await?;
        self.told("fencing the account at the rail", &[], async || {
            cx.apis
                .rail
                .fence_account(&self.account, held.token, &cx.apis.trace())
                .await
        })
        .await?;
        let body = SubmissionFenceBody::default();
        self.told("fencing the payout at the rail", &[], async || {
            cx.apis
                .rail
                .fence_submission(&self.payout, held.token, &body, &cx.apis.trace())
                .await
        })
        .await?;
        self.release(&held).await
    }

    async fn lock(&self) -> Result<(), RunError> {
        let cx = self.cx;
        let held = self.hold(&format!("harness:{}", self.payout), LONG_MS).await?;
        let renew = RenewBody {
            session_id: held.session.clone(),
            ttl_ms: None,
        };
        self.told("renewing", &[], async || {
            cx.apis
                .locks
                .renew(&held.key, held.token, &renew, &cx.apis.trace())
                .await
        })
        .await?;
        self.told("looking at a key", &[], async || {
            cx.apis.locks.lock(&held.key, &cx.apis.trace()).await
        })
        .await?;
        self.release(&held).await
    }

    async fn revoke(&self) -> Result<(), RunError> {
        let cx = self.cx;
        let held = self.hold(&format!("harness:{}", self.payout), LONG_MS).await?;
        let body = RevokeBody {
            revoke_token: held.token.get(),
            reason: REASON.to_owned(),
        };
        self.told("revoking", &[Code::NotHeld, Code::NotHolder], async || {
            cx.apis.locks.revoke(&held.key, OPERATOR, &body, &cx.apis.trace()).await
        })
        .await?;
        self.await_free(&held.key).await?;
        self.pay(OPENING).await
    }

    async fn yielded(&self) -> Result<(), RunError> {
        let cx = self.cx;
        let held = self.hold(&format!("harness:{}", self.payout), LONG_MS).await?;
        let body = YieldBody {
            token: held.token.get(),
            reason: REASON.to_owned(),
        };
        let asked = self
            .answered("asking to yield", async || {
                cx.apis
                    .locks
                    .ask_to_yield(&held.key, OPERATOR, &body, &cx.apis.trace())
                    .await
            })
            .await?;
        cx.check(
            format!("{} was asked to yield", self.payout),
            OPERATOR,
            asked.yield_requested.by,
        );
        self.release(&held).await?;
        self.pay(OPENING).await
    }

    async fn expire(&self) -> Result<(), RunError> {
        let key = loop {
            // The crash may give the session time to die before its key is taken: then there is another one.
            match self.hold(&format!("harness:{}", self.payout), SHORT_MS).await {
                Ok(held) => break held.key,
                Err(RunError::Call { error, .. }) if error.code() == Some(Code::SessionNotFound) => {}
                Err(error) => return Err(error),
            }
        };
        self.await_free(&key).await?;
        self.pay(OPENING).await
    }

    async fn floor(&self, dismiss: bool) -> Result<(), RunError> {
        let cx = self.cx;
        let stands = self
            .answered("the lineage", async || cx.apis.locks.lineage(&cx.apis.trace()).await)
            .await?;
        let floor = stands.token_floor.max(stands.last_token) + 10;
        let body = FloorBody {
            floor: (!dismiss).then_some(floor),
            dismiss: dismiss.then_some(true),
            reason: REASON.to_owned(),
        };
        // Raised once already, or without a doubt to be dismissed.
        let done = [Code::Conflict, Code::InvalidRequest];
        self.told("the lineage's operator", &done, async || {
            cx.apis.locks.floor(OPERATOR, &body, &cx.apis.trace()).await
        })
        .await?;
        let now = self
            .answered("the lineage", async || cx.apis.locks.lineage(&cx.apis.trace()).await)
            .await?;
        let expected = if dismiss { stands.token_floor } else { floor };
        cx.check(format!("{}: the floor", self.payout), expected, now.token_floor);
        cx.check(format!("{}: the lineage", self.payout), "OK", now.state);
        self.pay(OPENING).await
    }

    /// Opens a session and takes a key, whatever happens meanwhile.
    async fn hold(&self, key: &str, ttl_ms: u64) -> Result<Held, RunError> {
        let cx = self.cx;
        let key = LockKey::new(key).map_err(|error| RunError::Other(error.to_string()))?;
        let open = OpenSessionRequest {
            // Not the harness by name: that one records its acquires, and these are in no history.
            owner: "crash-driver".to_owned(),
            ttl_ms: Some(ttl_ms),
            metadata: None,
        };
        let session = self
            .answered("opening a session", async || {
                cx.apis.locks.open_session(&open, &cx.apis.trace()).await
            })
            .await?
            .session_id;
        if ttl_ms == LONG_MS {
            self.told("a heartbeat", &[], async || {
                cx.apis
                    .locks
                    .heartbeat(&session, &HeartbeatRequest::default(), &cx.apis.trace())
                    .await
            })
            .await?;
        }
        let body = AcquireBody {
            session_id: session.clone(),
            request_id: Some(format!("request-{}", self.payout)),
            ttl_ms: Some(ttl_ms),
            wait_ms: None,
            witness_token: None,
            lock_delay_ms: None,
            metadata: None,
        };
        let grant = self
            .answered("acquiring", async || {
                cx.apis.locks.acquire(&key, &body, &cx.apis.trace()).await
            })
            .await?;
        let token = http_contract::token(grant.token).map_err(|error| RunError::Other(error.to_string()))?;
        Ok(Held { key, session, token })
    }

    async fn release(&self, held: &Held) -> Result<(), RunError> {
        let cx = self.cx;
        self.told("releasing", &[], async || {
            cx.apis
                .locks
                .release(&held.key, &held.session, held.token, &cx.apis.trace())
                .await
        })
        .await?;
        self.told("closing the session", &[], async || {
            cx.apis.locks.close_session(&held.session, &cx.apis.trace()).await
        })
        .await
    }

    async fn await_free(&self, key: &LockKey) -> Result<(), RunError> {
        let cx = self.cx;
        eventually(cx.host(), &format!("{key} free"), WITHIN, async || {
            let seen = cx.apis.locks.lock(key, &cx.apis.trace()).await;
            Ok(seen.ok().filter(|view| view.state == KeyStatus::Free).map(drop))
        })
        .await
    }
}

struct Held {
    key: LockKey,
    session: String,
    token: FencingToken,
}
