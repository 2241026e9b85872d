//! The supervisor: finds or starts the actor of a payout and hands the question on.
//!
//! Owns: which payouts have an actor here, and how many may (NFR-11).
//! Does not own: a step's outcome; the asker's right to an answer travels on to the child.
//! On failure: a child that has stopped meanwhile gives the question back, and a new one takes it.
//! Messages: [`Apply`]; to itself `SweepDue`.

use crate::metrics::Metrics;
use crate::payout::{Apply, IDLE_AFTER, PayoutActor, StepError};
use actor_kit::{About, Ask, AskError, Behaviour, Cx, Handle, Receive, Reply};
use payment_store::{PaymentStore, StepOutcome};
use std::collections::BTreeMap;
use std::sync::Arc;

struct SweepDue;

impl Ask for SweepDue {
    type Answer = ();
    const NAME: &'static str = "SweepDue";
}

/// How many payouts may have an actor at once: a minute of the peak load of A-01 is 34.
const PAYOUTS_MAX: usize = 10_000;

/// The supervisor.
pub struct Payouts {
    store: Arc<dyn PaymentStore>,
    metrics: Metrics,
    /// By payout id, in an order that a dump can be compared by.
    at_work: BTreeMap<Arc<str>, Handle<PayoutActor>>,
    started: u64,
}

impl std::fmt::Debug for Payouts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Payouts")
            .field("at_work", &self.at_work.len())
            .finish_non_exhaustive()
    }
}

impl Payouts {
    pub(crate) fn new(store: Arc<dyn PaymentStore>, metrics: Metrics) -> Self {
        Self {
            store,
            metrics,
            at_work: BTreeMap::new(),
            started: 0,
        }
    }

    /// The actor of a payout, started where there is none.
    fn child(&mut self, payout_id: &str, cx: &mut Cx<'_, Self>) -> Option<Handle<PayoutActor>> {
        if let Some(child) = self.at_work.get(payout_id).filter(|child| child.is_alive()) {
            return Some(child.clone());
        }
        if self.at_work.len() >= PAYOUTS_MAX {
            self.forget_stopped();
            if self.at_work.len() >= PAYOUTS_MAX {
                return None;
            }
        }
        let payout_id: Arc<str> = payout_id.into();
        let (name, store, metrics) = (payout_id.clone(), self.store.clone(), self.metrics.clone());
        let about = About::Payout(payout_id.clone());
        let child = cx.spawn_child_about(&payout_id, about, move || {
            PayoutActor::new(name.clone(), store.clone(), metrics.clone())
        });
        self.started += 1;
        self.at_work.insert(payout_id, child.clone());
        Some(child)
    }

    fn forget_stopped(&mut self) {
        self.at_work.retain(|_, child| child.is_alive());
    }
}

impl Behaviour for Payouts {
    const KIND: &'static str = "payouts";
    const MAILBOX_CAPACITY: usize = 4_096;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        cx.notify_later(SweepDue, IDLE_AFTER);
    }

    fn observe(&self) -> serde_json::Value {
        serde_json::json!({ "at_work": self.at_work.len(), "started": self.started })
    }
}

impl Receive<Apply> for Payouts {
    fn receive(&mut self, apply: Apply, reply: Reply<Result<StepOutcome, StepError>>, cx: &mut Cx<'_, Self>) {
        let (mut message, mut reply) = (apply, reply);
        // Twice at most: a child can stop between two messages, a fresh one cannot.
        for _ in 0..2 {
            let Some(child) = self.child(&message.0.payout_id, cx) else {
                return reply.send(Err(StepError::Overloaded));
            };
            let trace = *cx.trace();
            match child.send_with(message, reply, &trace) {
                Ok(()) => return,
                Err(unsent) if unsent.why == AskError::Stopped => {
                    self.at_work.remove(unsent.message.0.payout_id.as_str());
                    (message, reply) = (unsent.message, unsent.reply);
                }
                Err(unsent) => return unsent.reply.send(Err(StepError::Overloaded)),
            }
        }
        reply.send(Err(StepError::Actor(AskError::Stopped)));
    }
}

impl Receive<SweepDue> for Payouts {
    fn receive(&mut self, _: SweepDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.forget_stopped();
        cx.notify_later(SweepDue, IDLE_AFTER);
    }
}
