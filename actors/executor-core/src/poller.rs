//! Looks for work and hands it to the workers of this process.
//!
//! | owns | does not own | on failure | messages |
//! |---|---|---|---|
//! | which payouts wait, which are in hand here, which rest for a while | who else works on them (the lock tells) | a restart forgets the list; workers ask again, the next poll fills it | `Next`, `Finished`, `PollDue`, `Polled`, `Drain` |
//!
//! CLAIMED comes before PENDING (C1.8): a claim whose claimer died holds money. Within each, accounts come in random order,
//! so that many executors do not all begin with the same one; payouts of one account stay in the order of the list.
//!
//! An account that cannot pay now, or whose lock is with somebody else, rests until the next poll, and with it all that
//! waits on it; what rests is read past at once. So the time until an account has its turn does not depend on how many
//! payouts of others rest (case P22).

use crate::flow::{Ending, Job, work};
use crate::ports::{Payments, PortError};
use actor_kit::{Ask, Behaviour, Cx, Outcome, Receive, Reply, TimerHandle, TraceContext, WORK};
use host_kit::Random;
use http_contract::payment::{PayoutAnswer, PayoutState};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// How many polls a payout is passed over after it could not be paid or was left: it rests lawfully (C1.8), and must not
/// keep others from their turn.
const REST_POLLS: u32 = 8;

/// How many pages of a list one poll reads at most; the next poll goes on there.
const PAGES_MAX: u32 = 4;

/// From a worker: give me a payout. Answered when there is one; with none when draining. Whatever this slot had in hand
/// before is over.
pub(crate) struct Next {
    pub slot: usize,
}

/// From a worker: this one is put down.
pub(crate) struct Finished {
    pub slot: usize,
    pub payout_id: String,
    pub ending: Ending,
}

/// To oneself: look for work.
pub(crate) struct PollDue;

/// From a future: what was found.
struct Polled(Found);

/// From the process: hand out no more work. Answered when nothing is in hand any more.
pub(crate) struct Drain;

impl Ask for Next {
    type Answer = Option<Job>;
    const NAME: &'static str = "Next";
}
impl Ask for Finished {
    type Answer = ();
    const NAME: &'static str = "Finished";
}
impl Ask for PollDue {
    type Answer = ();
    const NAME: &'static str = "PollDue";
}
impl Ask for Polled {
    type Answer = ();
    const NAME: &'static str = "Polled";
}
impl Ask for Drain {
    type Answer = ();
    const NAME: &'static str = "Drain";
}

/// Where the next poll goes on in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Head,
    Page(String),
    /// It was read to its end; it begins anew when the next poll is due.
    End,
}

/// Where the next poll goes on in each list.
#[derive(Clone, Debug, Default)]
struct Cursors {
    claimed: At,
    pending: At,
}

impl Cursors {
    fn are_at_end(&self) -> bool {
        [&self.claimed, &self.pending].into_iter().all(|at| *at == At::End)
    }

    /// What was read to its end begins anew.
    fn begin_anew(&mut self) {
        for at in [&mut self.claimed, &mut self.pending] {
            if *at == At::End {
                *at = At::Head;
            }
        }
    }
}

struct Found {
    claimed: Result<Vec<PayoutAnswer>, PortError>,
    pending: Result<Vec<PayoutAnswer>, PortError>,
    cursors: Cursors,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    payout_id: String,
    account_id: String,
    claimed: bool,
}

pub(crate) struct Poller {
    payments: Rc<dyn Payments>,
    interval: Duration,
    batch: u32,
    queue: VecDeque<Candidate>,
    in_hand: BTreeMap<usize, Candidate>,
    waiting: VecDeque<(usize, Reply<Option<Job>>)>,
    /// Payouts that rest, until this point of monotonic time. Bounded: those whose time has passed go at each poll, and
    /// no more can be added in a poll than workers finish meanwhile.
    resting: BTreeMap<String, Duration>,
    /// Accounts that rest, until this point of monotonic time. Bounded as `resting`.
    resting_accounts: BTreeMap<String, Duration>,
    cursors: Cursors,
    /// The poll that is under way was due: what it finds replaces the queue. Others add to it.
    renews: bool,
    timer: Option<TimerHandle>,
    polling: bool,
    /// The last poll did not see the end of a list: there is more than the queue holds.
    more: bool,
    draining: bool,
    /// Who waits until nothing is in hand any more.
    drained: Vec<Reply<()>>,
    polls: u64,
    failed_polls: u64,
}

impl Poller {
    pub(crate) fn new(payments: Rc<dyn Payments>, interval: Duration, batch: u32) -> Self {
        Self {
            payments,
            interval,
            batch,
            queue: VecDeque::new(),
            in_hand: BTreeMap::new(),
            waiting: VecDeque::new(),
            resting: BTreeMap::new(),
            resting_accounts: BTreeMap::new(),
            cursors: Cursors::default(),
            renews: true,
            timer: None,
            polling: false,
            more: false,
            draining: false,
            drained: Vec::new(),
            polls: 0,
            failed_polls: 0,
        }
    }

    /// Hands out what can be handed out now.
    fn dispatch(&mut self, cx: &mut Cx<'_, Self>) {
        if self.draining {
            self.waiting.drain(..).for_each(|(_, reply)| reply.send(None));
            if self.in_hand.is_empty() {
                self.drained.drain(..).for_each(|reply| reply.send(()));
            }
            return;
        }
        while let Some((slot, reply)) = self.waiting.pop_front() {
            if reply.is_abandoned() {
                continue;
            }
            let Some(candidate) = self.take() else {
                self.waiting.push_front((slot, reply));
                break;
            };
            let job = Job {
                payout_id: candidate.payout_id.clone(),
                account_id: candidate.account_id.clone(),
                // While fresh work waits behind it, a claim that somebody holds is not worth five attempts.
                patient: !candidate.claimed || self.queue.iter().all(|waiting| waiting.claimed),
                trace: TraceContext::root(&cx.host().random),
            };
            self.in_hand.insert(slot, candidate);
            reply.send(Some(job));
        }
        // A worker is idle, and nothing that is known here can be given to it: all of it belongs to accounts in hand.
        if self.more && !self.waiting.is_empty() && !self.polling {
            self.poll(cx);
        }
    }

    /// The first in the queue whose account is not in hand here: a second worker could only wait for the first.
    fn take(&mut self) -> Option<Candidate> {
        let busy: BTreeSet<&str> = self.in_hand.values().map(|held| held.account_id.as_str()).collect();
        let at = self
            .queue
            .iter()
            .position(|candidate| !busy.contains(candidate.account_id.as_str()))?;
        self.queue.remove(at)
    }

    fn poll(&mut self, cx: &mut Cx<'_, Self>) {
        if self.polling || self.draining {
            return;
        }
        if let Some(timer) = self.timer.take() {
            timer.cancel();
        }
        self.polling = true;
        let (payments, batch, cursors) = (self.payments.clone(), self.batch, self.cursors.clone());
        let trace = TraceContext::root(&cx.host().random);
        let record = cx.kit().record_of(trace, None, &work(cx.kit()), WORK, "payouts.poll");
        cx.pipe(
            async move {
                // CLAIMED first, as C1.8 says; the order of the two reads also means that a payout claimed in between
                // is seen twice rather than not at all.
                let (claimed, at_claimed) =
                    pages(&*payments, PayoutState::Claimed, batch, cursors.claimed, trace).await;
                let (pending, at_pending) =
                    pages(&*payments, PayoutState::Pending, batch, cursors.pending, trace).await;
                if let Some(record) = record {
                    let failed = claimed.is_err() || pending.is_err();
                    record.end(if failed { Outcome::Failed } else { Outcome::Done }, None);
                }
                Found {
                    claimed,
                    pending,
                    cursors: Cursors {
                        claimed: at_claimed,
                        pending: at_pending,
                    },
                }
            },
            Polled,
        );
    }

    /// Passes the payout over for a while.
    fn rest(&mut self, payout_id: String, cx: &Cx<'_, Self>) {
        self.resting
            .insert(payout_id, cx.clock().mono() + self.interval * REST_POLLS);
    }

    fn is_wanted(&self, payout: &PayoutAnswer) -> bool {
        !self.resting.contains_key(&payout.payout_id)
            && !self.resting_accounts.contains_key(&payout.account_id)
            && !self.in_hand.values().any(|held| held.payout_id == payout.payout_id)
    }
}

/// Reads pages from the cursor on, at most `batch` payouts, and says where to go on.
async fn pages(
    payments: &dyn Payments,
    state: PayoutState,
    batch: u32,
    at: At,
    trace: TraceContext,
) -> (Result<Vec<PayoutAnswer>, PortError>, At) {
    let mut cursor = match at {
        At::End => return (Ok(Vec::new()), At::End),
        At::Head => None,
        At::Page(cursor) => Some(cursor),
    };
    let mut found = Vec::new();
    let per_page = batch.div_ceil(PAGES_MAX).max(1);
    for _ in 0..PAGES_MAX {
        match payments.list(state, per_page, cursor.clone(), trace).await {
            Ok(page) => {
                found.extend(page.items);
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            // What was read is worked on; the next poll begins anew.
            Err(error) if found.is_empty() => return (Err(error), At::End),
            Err(_) => return (Ok(found), At::End),
        }
    }
    (Ok(found), cursor.map_or(At::End, At::Page))
}

/// Accounts in random order, the payouts of each in the order of the list.
fn shuffled(payouts: Vec<PayoutAnswer>, claimed: bool, random: &Random) -> Vec<Candidate> {
    let mut keys: BTreeMap<String, u64> = BTreeMap::new();
    let mut keyed: Vec<(u64, Candidate)> = payouts
        .into_iter()
        .map(|payout| {
            let key = *keys.entry(payout.account_id.clone()).or_insert_with(|| random.u64());
            let candidate = Candidate {
                payout_id: payout.payout_id,
                account_id: payout.account_id,
                claimed,
            };
            (key, candidate)
        })
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, candidate)| candidate).collect()
}

impl Behaviour for Poller {
    const KIND: &'static str = "poller";

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        self.poll(cx);
    }

    fn observe(&self) -> serde_json::Value {
        json!({
            "queue": self.queue.len(),
            "in_hand": self.in_hand.values().map(|held| &held.payout_id).collect::<Vec<_>>(),
            "idle_workers": self.waiting.len(),
            "resting": self.resting.len(),
            "resting_accounts": self.resting_accounts.len(),
            "polls": self.polls,
            "failed_polls": self.failed_polls,
            "draining": self.draining,
        })
    }
}

impl Receive<Next> for Poller {
    fn receive(&mut self, Next { slot }: Next, reply: Reply<Option<Job>>, cx: &mut Cx<'_, Self>) {
        // A worker that restarted after a panic says so by asking: what it had in hand fails in a way that nobody foresaw.
        if let Some(unfinished) = self.in_hand.remove(&slot) {
            self.rest(unfinished.payout_id, cx);
        }
        self.waiting.retain(|(waiting, _)| *waiting != slot);
        self.waiting.push_back((slot, reply));
        self.dispatch(cx);
    }
}

impl Receive<Finished> for Poller {
    fn receive(&mut self, finished: Finished, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let held = self.in_hand.remove(&finished.slot);
        // Without a lock service a longer list is of no use: the next poll is soon enough.
        self.more &= finished.ending != Ending::NoGrant;
        if matches!(finished.ending, Ending::Unfunded | Ending::Left) {
            self.rest(finished.payout_id, cx);
        }
        if let (Ending::Unfunded | Ending::Contended, Some(held)) = (finished.ending, held) {
            self.queue.retain(|waiting| waiting.account_id != held.account_id);
            self.resting_accounts
                .insert(held.account_id, cx.clock().mono() + self.interval);
        }
        self.dispatch(cx);
    }
}

impl Receive<PollDue> for Poller {
    fn receive(&mut self, _: PollDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.cursors.begin_anew();
        self.renews |= !self.polling;
        self.poll(cx);
    }
}

impl Receive<Polled> for Poller {
    fn receive(&mut self, Polled(found): Polled, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.polling = false;
        self.polls += 1;
        let now = cx.clock().mono();
        self.resting.retain(|_, until| *until > now);
        self.resting_accounts.retain(|_, until| *until > now);
        self.more = !found.cursors.are_at_end();
        self.cursors = found.cursors;
        let mut known = std::mem::take(&mut self.queue);
        if std::mem::take(&mut self.renews) {
            known.clear();
        }
        let mut failed = 0;
        let mut new = |list: Result<Vec<PayoutAnswer>, PortError>, claimed: bool| match list {
            Ok(mut payouts) => {
                payouts.retain(|payout| {
                    self.is_wanted(payout) && known.iter().all(|waiting| waiting.account_id != payout.account_id)
                });
                shuffled(payouts, claimed, &cx.host().random)
            }
            Err(error) => {
                failed += 1;
                tracing::warn!(event = "poll_failed", claimed, %error, trace_id = cx.trace().trace_id_hex());
                Vec::new()
            }
        };
        let (claimed, pending) = (new(found.claimed, true), new(found.pending, false));
        self.failed_polls += failed;
        self.queue = claimed.into_iter().chain(known).chain(pending).collect();
        self.timer = Some(cx.notify_later(PollDue, self.interval));
        self.dispatch(cx);
    }
}

impl Receive<Drain> for Poller {
    fn receive(&mut self, _: Drain, reply: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.queue.clear();
        self.draining = true;
        self.drained.push(reply);
        self.dispatch(cx);
    }
}
