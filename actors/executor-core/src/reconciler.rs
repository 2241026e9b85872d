//! Resolves ambiguous payouts through the rail's read-only lookup (FR-26).
//!
//! | owns | does not own | on failure | messages |
//! |---|---|---|---|
//! | the rounds of lookups | the verdict (the proxy draws it and records it), the escalation flag (payment-resource sets it) | a round that fails is followed by the next one, for ever: only an outcome or an operator ends an ambiguous payout | `RoundDue`, `RoundDone`, `Drain` |
//!
//! A lookup needs no grant, because it decides nothing; to resolve takes the account's lock and its token (C1.8).

use crate::flow::{Desk, Ending, Job};
use actor_kit::{Ask, Behaviour, Cx, Outcome, Receive, Reply, TraceContext, WORK};
use futures_util::{StreamExt, stream};
use host_kit::fault_point;
use http_contract::payment::{PayoutAnswer, PayoutState, Resolution, ResolveBody};
use http_contract::rail::Verdict;
use serde_json::json;
use std::rc::Rc;
use std::time::Duration;

/// How many lookups are under way at once: a rail that keeps silent costs a read time-out each.
const LOOKUPS_AT_ONCE: usize = 8;

/// The most ambiguous payouts that one round looks at; the next one goes on there.
const ROUND_MAX: u32 = 500;

pub(crate) struct RoundDue;
struct RoundDone(Round);
/// Begin no further round. Answered when the one under way has ended.
pub(crate) struct DrainRounds;

impl Ask for RoundDue {
    type Answer = ();
    const NAME: &'static str = "RoundDue";
}
impl Ask for RoundDone {
    type Answer = ();
    const NAME: &'static str = "RoundDone";
}
impl Ask for DrainRounds {
    type Answer = ();
    const NAME: &'static str = "Drain";
}

/// What a round found.
#[derive(Debug, Default)]
struct Round {
    looked_at: usize,
    resolved: usize,
    escalated: usize,
    cursor: Option<String>,
}

pub(crate) struct Reconciler {
    desk: Rc<Desk>,
    interval: Duration,
    cursor: Option<String>,
    running: bool,
    draining: Vec<Reply<()>>,
    rounds: u64,
    resolved: u64,
    open: usize,
    escalated: usize,
}

impl Reconciler {
    pub(crate) fn new(desk: Rc<Desk>, interval: Duration) -> Self {
        Self {
            desk,
            interval,
            cursor: None,
            running: false,
            draining: Vec::new(),
            rounds: 0,
            resolved: 0,
            open: 0,
            escalated: 0,
        }
    }

    fn end(&mut self, cx: &mut Cx<'_, Self>) {
        self.draining.drain(..).for_each(|reply| reply.send(()));
        cx.stop();
    }
}

impl Behaviour for Reconciler {
    const KIND: &'static str = "reconciler";

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        cx.notify(RoundDue);
    }

    fn observe(&self) -> serde_json::Value {
        json!({
            "rounds": self.rounds,
            "running": self.running,
            "resolved": self.resolved,
            "open": self.open,
            "escalated": self.escalated,
        })
    }
}

impl Receive<RoundDue> for Reconciler {
    fn receive(&mut self, _: RoundDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if self.running {
            return;
        }
        self.running = true;
        let (desk, cursor) = (self.desk.clone(), self.cursor.clone());
        let trace = TraceContext::root(&cx.host().random);
        cx.pipe(
            async move {
                let record = desk.kit.record_of(trace, None, &desk.work, WORK, "payouts.reconcile");
                let round = round(&desk, cursor, trace).await;
                if let Some(record) = record {
                    record.end(Outcome::Done, None);
                }
                round
            },
            RoundDone,
        );
    }
}

impl Receive<RoundDone> for Reconciler {
    fn receive(&mut self, RoundDone(round): RoundDone, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.running = false;
        self.rounds += 1;
        self.resolved += round.resolved as u64;
        self.open = round.looked_at - round.resolved;
        if round.escalated != self.escalated {
            // Said when it changes, not in every round: these wait for a human.
            tracing::warn!(event = "escalations_open", count = round.escalated);
        }
        self.escalated = round.escalated;
        self.cursor = round.cursor;
        if self.draining.is_empty() {
            let _ = cx.notify_later(RoundDue, self.interval);
        } else {
            self.end(cx);
        }
    }
}

impl Receive<DrainRounds> for Reconciler {
    fn receive(&mut self, _: DrainRounds, reply: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.draining.push(reply);
        if !self.running {
            self.end(cx);
        }
    }
}

async fn round(desk: &Desk, cursor: Option<String>, trace: TraceContext) -> Round {
    let page = match desk
        .payments
        .list(PayoutState::RailAmbiguous, ROUND_MAX, cursor, trace)
        .await
    {
        Ok(page) => page,
        Err(error) => {
            tracing::warn!(event = "reconcile_failed", %error, trace_id = trace.trace_id_hex());
            return Round::default();
        }
    };
    let mut round = Round {
        looked_at: page.items.len(),
        escalated: page.items.iter().filter(|payout| payout.escalated_at.is_some()).count(),
        cursor: page.next_cursor,
        ..Round::default()
    };
    let mut endings = stream::iter(page.items)
        .map(|payout| reconcile(desk, payout))
        .buffer_unordered(LOOKUPS_AT_ONCE);
    while let Some(resolved) = endings.next().await {
        round.resolved += usize::from(resolved);
    }
    round
}

/// How a verdict resolves a payout; none leaves it ambiguous.
fn resolution(verdict: Verdict, rail_reference: Option<String>) -> Option<ResolveBody> {
    let body = |outcome, rail_reference| ResolveBody {
        outcome,
        rail_reference,
        reason: None,
    };
    match (verdict, rail_reference) {
        (Verdict::Executed, Some(reference)) => Some(body(Resolution::Posted, Some(reference))),
        (Verdict::Declined | Verdict::NotReceived, _) => Some(body(Resolution::Failed, None)),
        (Verdict::Executed, None) | (Verdict::Inconclusive, _) => None,
    }
}

/// Asks the rail about one payout and resolves it if it said something. True when it is resolved.
async fn reconcile(desk: &Desk, payout: PayoutAnswer) -> bool {
    let job = Job {
        payout_id: payout.payout_id.clone(),
        account_id: payout.account_id,
        patient: true,
        trace: TraceContext::root(&desk.host.random),
    };
    let record = desk.payout_record(&job, "payout.reconcile");
    let resolved = ask_and_resolve(desk, &job).await;
    if let Some(record) = record {
        record.end(Outcome::Done, Some(if resolved { "resolved" } else { "open" }));
    }
    resolved
}

async fn ask_and_resolve(desk: &Desk, job: &Job) -> bool {
    let answer = match desk.lookup(&job.payout_id, &job.trace).await {
        Ok(answer) => answer,
        Err(error) => {
            desk.metrics.looked_up("unanswered");
            tracing::warn!(event = "lookup_failed", payout_id = job.payout_id, %error, trace_id = job.trace.trace_id_hex());
            return false;
        }
    };
    desk.metrics.looked_up(match answer.verdict {
        Verdict::Executed => "executed",
        Verdict::Declined => "declined",
        Verdict::NotReceived => "not_received",
        Verdict::Inconclusive => "inconclusive",
    });
    if answer.executions > 1 {
        // The proxy counts it; here it is said beside the payout's id, for whoever has to act (C4.4).
        tracing::error!(
            event = "double_payment_suspected",
            payout_id = job.payout_id,
            executions = answer.executions,
            trace_id = job.trace.trace_id_hex()
        );
    }
    let mut reference = answer.submission.and_then(|row| row.rail_reference);
    if answer.verdict == Verdict::Executed && reference.is_none() {
        reference = match desk.rail.submission(job.payout_id.clone(), job.trace).await {
            Ok(row) => row.rail_reference,
            Err(_) => None,
        };
    }
    let Some(body) = resolution(answer.verdict, reference) else {
        return false;
    };
    let held = match desk.acquire(job).await {
        Ok(held) => held,
        Err(_) => return false,
    };
    let ending = resolve(desk, job, &held, body).await.unwrap_or_else(|ending| ending);
    desk.release(held, &job.payout_id).await;
    tracing::info!(
        event = "payout_reconciled",
        payout_id = job.payout_id,
        verdict = answer.verdict.as_str(),
        outcome = ending.label(),
        trace_id = job.trace.trace_id_hex(),
    );
    matches!(ending, Ending::Posted | Ending::Failed)
}

async fn resolve(desk: &Desk, job: &Job, held: &lock_client::HeldLock, body: ResolveBody) -> Result<Ending, Ending> {
    let seen = desk.history.invoke("reread", None, None, &job.payout_id);
    let answer = desk.payments.payout(job.payout_id.clone(), job.trace).await;
    seen.ended(&answer);
    let seen = answer.map_err(|error| desk.put_down(job, "reread", &error))?;
    if seen.state != PayoutState::RailAmbiguous {
        return Ok(Ending::NothingToDo);
    }
    let done = match body.outcome {
        Resolution::Posted => Ending::Posted,
        Resolution::Failed => Ending::Failed,
    };
    let token = desk.still_held(held, job)?;
    fault_point!(desk.host.faults, "executor.before_resolve");
    let seen = desk.history.invoke("resolve", None, Some(token), &job.payout_id);
    let answer = desk
        .payments
        .resolve(job.payout_id.clone(), token, body, job.trace)
        .await;
    seen.ended(&answer);
    fault_point!(desk.host.faults, "executor.after_resolve");
    answer
        .map(|_| done)
        .map_err(|error| desk.put_down(job, "resolve", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_verdict_resolves_and_posted_needs_a_reference() {
        for verdict in [
            Verdict::Executed,
            Verdict::Declined,
            Verdict::NotReceived,
            Verdict::Inconclusive,
        ] {
            for reference in [None, Some("R1".to_owned())] {
                let outcome = resolution(verdict, reference.clone()).map(|body| (body.outcome, body.rail_reference));
                let expected = match (verdict, &reference) {
                    (Verdict::Executed, Some(_)) => Some((Resolution::Posted, reference.clone())),
                    (Verdict::Declined | Verdict::NotReceived, _) => Some((Resolution::Failed, None)),
                    _ => None,
                };
                assert_eq!(outcome, expected, "{verdict:?} {reference:?}");
            }
        }
    }
}
