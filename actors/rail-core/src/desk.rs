//! The desk: takes requests to submit and gives each an actor of its own.
//!
//! Owns: how many submissions are under way. Does not own: any of them.
//! On failure: it decides nothing that could fail; were it to panic, submissions below it would end where they are.
//! Messages: `Submit`.

use crate::metrics::RailMetrics;
use crate::rail::Rail;
use crate::rail_submission::{Means, RailSubmission, SubmissionLimits, Submit, Submitted, UnderWay};
use actor_kit::{About, Ask, Behaviour, Cx, Receive, Reply};
use rail_store::RailStore;
use serde_json::json;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The most submissions under way at once (NFR-11).
pub const SUBMISSIONS_MAX: usize = 1024;

/// How often the desk looks whether the last submission has ended, once it was asked to tell.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Takes requests to submit.
pub struct RailDesk {
    means: Means,
    under_way: Rc<Cell<usize>>,
    /// Those who wait until nothing is under way.
    waiting: Vec<Reply<()>>,
}

impl RailDesk {
    /// A desk over this store and this rail.
    #[must_use]
    pub fn new(store: Arc<dyn RailStore>, rail: Arc<dyn Rail>, metrics: RailMetrics, limits: SubmissionLimits) -> Self {
        Self {
            means: Means {
                store,
                rail,
                metrics,
                limits,
            },
            under_way: Rc::new(Cell::new(0)),
            waiting: Vec::new(),
        }
    }
}

impl Behaviour for RailDesk {
    const KIND: &'static str = "rail_desk";

    fn observe(&self) -> serde_json::Value {
        json!({ "under_way": self.under_way.get(), "under_way_max": SUBMISSIONS_MAX })
    }
}

impl Receive<Submit> for RailDesk {
    fn receive(&mut self, submit: Submit, reply: Reply<Submitted>, cx: &mut Cx<'_, Self>) {
        if self.under_way.get() >= SUBMISSIONS_MAX {
            return reply.send(Submitted::Overloaded);
        }
        let (means, count) = (self.means.clone(), self.under_way.clone());
        let mut first = true;
        let payout = submit.0.payout_id.clone();
        let child = cx.spawn_child_about(&payout, About::Payout(payout.as_str().into()), move || {
            let behaviour = RailSubmission::new(means.clone(), first, UnderWay::new(&count));
            first = false;
            behaviour
        });
        // A new mailbox is neither full nor closed; were it, the reply that is dropped here says that nothing is known.
        let _ = child.send_with(submit, reply, cx.trace());
    }
}

/// Answered once no submission is under way: what an orderly end waits for.
#[derive(Clone, Copy, Debug)]
pub struct AwaitQuiet;

impl Ask for AwaitQuiet {
    type Answer = ();
    const NAME: &'static str = "AwaitQuiet";
}

pub(crate) struct LookAgain;

impl Ask for LookAgain {
    type Answer = ();
    const NAME: &'static str = "LookAgain";
}

impl Receive<AwaitQuiet> for RailDesk {
    fn receive(&mut self, _: AwaitQuiet, reply: Reply<()>, cx: &mut Cx<'_, Self>) {
        if self.under_way.get() == 0 {
            return reply.send(());
        }
        if self.waiting.is_empty() {
            let _ = cx.notify_later(LookAgain, LOOK_AGAIN);
        }
        self.waiting.push(reply);
    }
}

impl Receive<LookAgain> for RailDesk {
    fn receive(&mut self, _: LookAgain, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if self.under_way.get() == 0 {
            for reply in self.waiting.drain(..) {
                reply.send(());
            }
        } else {
            let _ = cx.notify_later(LookAgain, LOOK_AGAIN);
        }
    }
}
