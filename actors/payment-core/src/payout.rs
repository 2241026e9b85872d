//! One payout at work.
//!
//! Owns: the order of the steps that this process was asked for; nothing else, and nothing durable.
//! Does not own: the payout. What it shows of it is what the last step answered, for the observer alone: every decision
//! is taken by the store from what is recorded.
//! On failure: the store's error goes to the asker as it is. After a panic the queue's askers are told
//! [`actor_kit::AskError::Restarting`].
//! Messages: [`Apply`]; to itself `Finished`, `IdleDue`.

use crate::metrics::{Came, Metrics, STEP};
use crate::service::ANSWER_GRACE;
use actor_kit::{Ask, AskError, Behaviour, Cx, Receive, Reply, TimerHandle, TraceContext};
use lock_api::StoreError;
use payment_store::{Command, PaymentStore, Refusal, StepOutcome};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Why a step has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Too many steps of this payout, or payouts, are waiting: certainly not done.
    #[error("too much is waiting; nothing was done")]
    Overloaded,
    /// The store did not answer as it should.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The actor did not answer.
    #[error(transparent)]
    Actor(#[from] AskError),
}

/// Do this.
#[derive(Clone, Debug)]
pub struct Apply(pub Command);

impl Ask for Apply {
    type Answer = Result<StepOutcome, StepError>;
    const NAME: &'static str = "Apply";

    fn token(&self) -> Option<u64> {
        self.0.token().map(lock_api::FencingToken::get)
    }
}

struct Finished(Result<StepOutcome, StoreError>);

impl Ask for Finished {
    type Answer = ();
    const NAME: &'static str = "Finished";
}

struct IdleDue {
    /// How many steps had been taken when the timer was set.
    at: u64,
}

impl Ask for IdleDue {
    type Answer = ();
    const NAME: &'static str = "IdleDue";
}

/// How long a payout's actor stays after its last step: long enough for the claim, the submission and the post of one
/// payout to meet the same actor, short enough that memory follows the work in hand.
pub(crate) const IDLE_AFTER: Duration = Duration::from_secs(20);

/// How many steps of one payout may wait (NFR-11): above what any caller needs (case P07 sends 50 at once).
const QUEUE_MAX: usize = 256;

/// The longest a step may wait for the store where its asker set no bound.
const STEP_MAX: Duration = Duration::from_secs(60);

/// A step that waits for the one under way, and the trace it came in.
type Waiting = (Command, Reply<Result<StepOutcome, StepError>>, TraceContext);

/// The actor.
pub struct PayoutActor {
    /// For the log and the observer.
    payout_id: Arc<str>,
    /// Decides and remembers.
    store: Arc<dyn PaymentStore>,
    metrics: Metrics,
    /// In the order they came.
    queue: VecDeque<Waiting>,
    /// The step under way, at most one.
    current: Option<(Command, Reply<Result<StepOutcome, StepError>>)>,
    /// How many steps were taken: tells an idle timer that it is out of date.
    taken: u64,
    idle: Option<TimerHandle>,
    /// What the last step answered, for the observer.
    seen: Option<(&'static str, u64)>,
}

impl std::fmt::Debug for PayoutActor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayoutActor")
            .field("payout_id", &self.payout_id)
            .field("waiting", &self.queue.len())
            .finish_non_exhaustive()
    }
}

impl PayoutActor {
    pub(crate) fn new(payout_id: Arc<str>, store: Arc<dyn PaymentStore>, metrics: Metrics) -> Self {
        Self {
            payout_id,
            store,
            metrics,
            queue: VecDeque::new(),
            current: None,
            taken: 0,
            idle: None,
            seen: None,
        }
    }

    fn next(&mut self, cx: &mut Cx<'_, Self>) {
        while let Some((command, reply, trace)) = self.queue.pop_front() {
            let within = reply.remaining(cx.clock()).saturating_sub(ANSWER_GRACE).min(STEP_MAX);
            // Not begun and nobody waits for it any more: certainly not done, and nothing to record.
            if reply.is_abandoned() {
                continue;
            }
            if within.is_zero() {
                let detail = "the step before took all the time".to_owned();
                reply.send(Err(StepError::Store(StoreError::Unavailable { detail })));
                continue;
            }
            let store = self.store.clone();
            let job = command.clone();
            self.current = Some((command, reply));
            cx.in_trace(trace, |cx| {
                cx.pipe(async move { store.apply(job, within).await }, Finished)
            });
            return;
        }
        let at = self.taken;
        self.idle = Some(cx.notify_later(IdleDue { at }, IDLE_AFTER));
    }

    fn account_for(&mut self, command: &Command, outcome: &Result<StepOutcome, StoreError>, cx: &Cx<'_, Self>) {
        let trace_id = cx.trace().trace_id_hex();
        let (step, token) = (
            command.step().as_str(),
            command.token().map(lock_api::FencingToken::get),
        );
        let came = match outcome {
            Ok(StepOutcome::Done(payout)) => {
                if payout.state.is_final() {
                    self.metrics.ended(payout.updated_at_ms - payout.created_at_ms);
                }
                self.seen = Some((payout.state.as_str(), payout.version));
                tracing::info!(
                    event = "payout_step_done",
                    trace_id,
                    payout_id = &*self.payout_id,
                    account_id = payout.account_id,
                    step,
                    state = payout.state.as_str(),
                    token,
                    actor = command.actor,
                );
                Came::Done
            }
            Ok(StepOutcome::Replayed(payout)) => {
                self.seen = Some((payout.state.as_str(), payout.version));
                tracing::info!(
                    event = "payout_step_replayed",
                    trace_id,
                    payout_id = &*self.payout_id,
                    step,
                    token
                );
                Came::Replayed
            }
            // An answer of a healthy system (C3.2); the gateway says who was refused, and against which mark.
            Ok(StepOutcome::Refused(Refusal::FencedOut { .. })) => {
                self.metrics.fenced_out();
                Came::Refused
            }
            Ok(StepOutcome::Refused(refusal)) => {
                tracing::info!(
                    event = "payout_step_refused",
                    trace_id,
                    payout_id = &*self.payout_id,
                    step,
                    token,
                    reason = ?refusal
                );
                Came::Refused
            }
            Err(error) => {
                self.metrics.store_failed(STEP);
                tracing::warn!(event = "payout_step_failed", trace_id, payout_id = &*self.payout_id, step, token, %error);
                Came::Failed
            }
        };
        self.metrics.step(command.step(), came);
    }
}

impl Behaviour for PayoutActor {
    const KIND: &'static str = "payout";
    const MAILBOX_CAPACITY: usize = QUEUE_MAX;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        self.idle = Some(cx.notify_later(IdleDue { at: 0 }, IDLE_AFTER));
    }

    fn observe(&self) -> serde_json::Value {
        serde_json::json!({
            "payout_id": &*self.payout_id,
            "at_work": self.current.as_ref().map(|(command, _)| command.step().as_str()),
            "waiting": self.queue.len(),
            "taken": self.taken,
            "last_seen": self.seen.map(|(state, version)| serde_json::json!({ "state": state, "version": version })),
        })
    }
}

impl Receive<Apply> for PayoutActor {
    fn receive(&mut self, Apply(command): Apply, reply: Reply<Result<StepOutcome, StepError>>, cx: &mut Cx<'_, Self>) {
        if self.queue.len() >= QUEUE_MAX {
            reply.send(Err(StepError::Overloaded));
            return;
        }
        self.taken += 1;
        if let Some(idle) = self.idle.take() {
            idle.cancel();
        }
        self.queue.push_back((command, reply, *cx.trace()));
        if self.current.is_none() {
            self.next(cx);
        }
    }
}

impl Receive<Finished> for PayoutActor {
    fn receive(&mut self, Finished(outcome): Finished, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if let Some((command, reply)) = self.current.take() {
            self.account_for(&command, &outcome, cx);
            reply.send(outcome.map_err(StepError::Store));
        }
        self.next(cx);
    }
}

impl Receive<IdleDue> for PayoutActor {
    fn receive(&mut self, due: IdleDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let idle = due.at == self.taken && self.current.is_none() && self.queue.is_empty();
        if idle && cx.mailbox_depth() == 0 {
            cx.stop();
        }
    }
}
