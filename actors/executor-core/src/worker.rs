//! One worker slot: takes one payout at a time from the poller and settles it.
//!
//! | owns | does not own | on failure | messages |
//! |---|---|---|---|
//! | the payout in hand | which payout comes next | a panic drops the lock it holds; the payout stays as it is recorded, and the next holder recovers it | `AskNext`, `Given`, `Settle`, `Settled` |

use crate::flow::{Desk, Ending, Job, Progress};
use crate::poller::{Finished, Next, Poller};
use actor_kit::{About, Ask, AskError, Behaviour, Cx, Handle, OpenRecord, Outcome, Receive, Reply, TraceContext};
use serde_json::json;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How long a worker waits for work before it asks again. Work comes at once; this only bounds what a lost question costs.
const ASK_WITHIN: Duration = Duration::from_secs(60);

/// How long to wait after the poller did not answer: it is restarting.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// To oneself: ask the poller for work.
struct AskNext;

/// From the poller, through a future: its answer.
struct Given(Result<Option<Job>, AskError>);

/// To oneself, in the payout's own trace: settle it. With the record of the whole of that, which ends with it.
struct Settle(Job, Option<OpenRecord>);

/// From the flow: how it ended.
struct Settled(Job, Ending, Duration);

macro_rules! told {
    ($($message:ident),*) => {$(
        impl Ask for $message {
            type Answer = ();
            const NAME: &'static str = stringify!($message);
        }
    )*};
}
told!(AskNext, Given, Settled);

impl Ask for Settle {
    type Answer = ();
    const NAME: &'static str = "Settle";

    fn about(&self) -> About {
        // Once a payout.
        About::Payout(self.0.payout_id.as_str().into())
    }
}

pub(crate) struct Worker {
    slot: usize,
    desk: Rc<Desk>,
    poller: Handle<Poller>,
    /// What it works on, since when, for `observe`.
    in_hand: Option<(String, Duration)>,
    step: Progress,
    settled: u64,
    last_ending: Option<&'static str>,
}

impl Worker {
    pub(crate) fn new(slot: usize, desk: Rc<Desk>, poller: Handle<Poller>) -> Self {
        Self {
            slot,
            desk,
            poller,
            in_hand: None,
            step: Rc::new(Cell::new("idle")),
            settled: 0,
            last_ending: None,
        }
    }
}

impl Behaviour for Worker {
    const KIND: &'static str = "worker";
    /// Only its own messages: one at a time.
    const MAILBOX_CAPACITY: usize = 16;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        cx.notify(AskNext);
    }

    fn observe(&self) -> serde_json::Value {
        json!({
            "slot": self.slot,
            "payout": self.in_hand.as_ref().map(|(payout, _)| payout),
            "step": self.step.get(),
            "settled": self.settled,
            "last_ending": self.last_ending,
        })
    }
}

impl Receive<AskNext> for Worker {
    fn receive(&mut self, _: AskNext, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let (poller, slot, trace) = (self.poller.clone(), self.slot, *cx.trace());
        cx.pipe(
            async move { poller.ask(Next { slot }, ASK_WITHIN, &trace).await },
            Given,
        );
    }
}

impl Receive<Given> for Worker {
    fn receive(&mut self, Given(answer): Given, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        match answer {
            Ok(Some(job)) => {
                let trace = job.trace;
                let record = self.desk.payout_record(&job, "payout.settle");
                cx.notify_in(Settle(job, record), trace);
            }
            // Draining: no more work.
            Ok(None) | Err(AskError::Stopped) => self.step.set("drained"),
            Err(AskError::Deadline) => cx.notify(AskNext),
            Err(AskError::Overloaded | AskError::Restarting) => {
                drop(cx.notify_later(AskNext, ASK_AGAIN));
            }
        }
    }
}

impl Receive<Settle> for Worker {
    fn receive(&mut self, Settle(mut job, record): Settle, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        // Whatever is called for this payout is called by this turn.
        job.trace = *cx.trace();
        let began = cx.clock().mono();
        self.in_hand = Some((job.payout_id.clone(), began));
        let (desk, step) = (self.desk.clone(), self.step.clone());
        let clock = cx.clock().clone();
        cx.pipe(
            async move {
                let ending = desk.settle(&job, &step).await;
                if let Some(record) = record {
                    record.end(Outcome::Done, Some(ending.label()));
                }
                (job, ending, clock.mono().saturating_sub(began))
            },
            |(job, ending, took)| Settled(job, ending, took),
        );
    }
}

impl Receive<Settled> for Worker {
    fn receive(&mut self, Settled(job, ending, took): Settled, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.desk.metrics.ended(&ending, took);
        tracing::info!(
            event = "payout_put_down",
            payout_id = job.payout_id,
            outcome = ending.label(),
            took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            trace_id = job.trace.trace_id_hex(),
        );
        self.settled += 1;
        self.last_ending = Some(ending.label());
        self.in_hand = None;
        self.step.set("idle");
        let finished = Finished {
            slot: self.slot,
            payout_id: job.payout_id,
            ending,
        };
        self.poller.tell_surely(finished, cx.trace());
        let fresh = TraceContext::root(&cx.host().random);
        cx.notify_in(AskNext, fresh);
    }
}
