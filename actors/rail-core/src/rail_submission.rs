//! The rail submission actor: one request to submit, from its intent to its recorded outcome.
//!
//! Owns: one submission, and the right to forward it once. It outlives its caller (C3.7).
//! Does not own: the decision whether it may be made (the store, in one transaction); other submissions.
//! On failure: a panic or the end of the process leaves what is committed: an intent without outcome is ambiguous. A new
//! behaviour after a panic does nothing and ends; nothing is ever forwarded again (FR-20). A store that cannot record an
//! outcome is asked again until it can; the rail is not.
//! Messages: `Submit` → `LinePrepared` → `IntentDecided` → `ForwardClaimed` → `RailAnswered` → `OutcomeRecorded`.

use crate::metrics::RailMetrics;
use crate::rail::{Line, Rail, RailCall, RailReply, Unprepared, classify};
use actor_kit::{About, Ask, Behaviour, CALL, Cx, Outcome, Receive, Reply};
use host_kit::fault_point;
use lock_api::StoreError;
use rail_store::{Evidence, ForwardClaim, RailStore, Submission, SubmitOutcome, SubmitRequest};
use serde_json::json;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The first pause before the store is asked again to record an outcome; it doubles up to [`RECORD_AGAIN_MAX`].
const RECORD_AGAIN: Duration = Duration::from_millis(50);

/// The longest such pause.
const RECORD_AGAIN_MAX: Duration = Duration::from_secs(5);

/// How long the steps of a submission may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionLimits {
    /// One call to the store.
    pub store: Duration,
}

/// R1: submit a claimed payout.
#[derive(Clone, Debug)]
pub struct Submit(pub SubmitRequest);

/// R1: what became of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Submitted {
    /// Nothing was done, for this reason; never an intent.
    Refused(SubmitOutcome),
    /// As it is recorded now. Without outcome: under way, or given up before it was sent.
    Recorded {
        /// The submission.
        submission: Box<Submission>,
        /// It was this token's before.
        replayed: bool,
    },
    /// An intent may have been committed, or may not: to be read, never to be sent anew.
    InDoubt,
    /// Nothing was done: the store did not take it.
    StoreFailed(StoreError),
    /// Nothing was done: too many submissions are under way.
    Overloaded,
    /// Nothing was done: what sending needs is not to be had.
    Unprepared(Unprepared),
}

impl Ask for Submit {
    type Answer = Submitted;
    const NAME: &'static str = "Submit";

    fn token(&self) -> Option<u64> {
        Some(self.0.token.get())
    }
}

/// What sending needs is in hand, or not to be had.
pub(crate) struct LinePrepared(Result<Box<dyn Line>, Unprepared>);
/// The store has judged the request.
pub(crate) struct IntentDecided(Result<SubmitOutcome, StoreError>);
/// The store has answered whether it may be forwarded.
pub(crate) struct ForwardClaimed(Result<ForwardClaim, StoreError>);
/// The rail has answered, or not; its socket is closed.
pub(crate) struct RailAnswered(RailReply);
/// The store has answered what is recorded now.
pub(crate) struct OutcomeRecorded(Result<Option<Submission>, StoreError>);
/// It is time to ask the store again to record the outcome.
pub(crate) struct RecordAgain;

macro_rules! self_messages {
    ($($name:ident),*) => {
        $(impl Ask for $name {
            type Answer = ();
            const NAME: &'static str = stringify!($name);
        })*
    };
}
self_messages!(
    LinePrepared,
    IntentDecided,
    ForwardClaimed,
    RailAnswered,
    OutcomeRecorded,
    RecordAgain
);

/// Where a submission stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Preparing,
    Deciding,
    Intent,
    Forwarded,
    Answered,
    Ended,
}

/// What a submission needs of its surroundings.
#[derive(Clone)]
pub(crate) struct Means {
    pub store: Arc<dyn RailStore>,
    pub rail: Arc<dyn Rail>,
    pub metrics: RailMetrics,
    pub limits: SubmissionLimits,
}

/// Counts a submission as under way while it lives.
pub(crate) struct UnderWay(Rc<Cell<usize>>);

impl UnderWay {
    pub fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// One submission.
pub struct RailSubmission {
    means: Means,
    phase: Phase,
    /// What it was asked for; none in a behaviour made after a panic, which ends at once.
    request: Option<SubmitRequest>,
    /// What sending needs, from before the intent until it is sent.
    line: Option<Box<dyn Line>>,
    /// Who waits, if anybody still does.
    reply: Option<Reply<Submitted>>,
    /// The intent, once it is committed.
    submission: Option<Submission>,
    /// What was learned, once the rail's socket is closed.
    evidence: Option<Evidence>,
    /// The next pause before the store is asked again.
    again: Duration,
    /// Whether this is the first behaviour of the actor.
    first: bool,
    _under_way: UnderWay,
}

impl RailSubmission {
    pub(crate) fn new(means: Means, first: bool, under_way: UnderWay) -> Self {
        Self {
            means,
            phase: Phase::New,
            request: None,
            line: None,
            reply: None,
            submission: None,
            evidence: None,
            again: RECORD_AGAIN,
            first,
            _under_way: under_way,
        }
    }

    fn end(&mut self, answer: Submitted, cx: &mut Cx<'_, Self>) {
        self.phase = Phase::Ended;
        if let Some(reply) = self.reply.take() {
            reply.send(answer);
        }
        cx.stop();
    }

    /// What can be said when the store did not.
    fn as_far_as_known(&self) -> Submitted {
        self.submission
            .as_ref()
            .map_or(Submitted::InDoubt, |submission| Submitted::Recorded {
                submission: Box::new(submission.clone()),
                replayed: false,
            })
    }

    fn record(&mut self, cx: &mut Cx<'_, Self>) {
        let (Some(submission), Some(evidence)) = (&self.submission, &self.evidence) else {
            return;
        };
        let (store, within) = (self.means.store.clone(), self.means.limits.store);
        let (id, evidence) = (submission.submission_id.clone(), evidence.clone());
        cx.pipe(
            async move { store.record_answer(id, evidence, within).await },
            OutcomeRecorded,
        );
    }
}

impl Behaviour for RailSubmission {
    const KIND: &'static str = "rail_submission";
    const MAILBOX_CAPACITY: usize = 4;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.first {
            tracing::error!(
                event = "submission_abandoned",
                actor = cx.path(),
                trace_id = cx.trace().trace_id_hex()
            );
            cx.stop();
        }
    }

    fn observe(&self) -> serde_json::Value {
        json!({
            "phase": format!("{:?}", self.phase),
            "submission_id": self.submission.as_ref().map(|submission| &submission.submission_id),
            "token": self.request.as_ref().map(|request| request.token.get()),
            "caller_waits": self.reply.as_ref().is_some_and(|reply| !reply.is_abandoned()),
        })
    }
}

impl Receive<Submit> for RailSubmission {
    fn receive(&mut self, Submit(request): Submit, reply: Reply<Submitted>, cx: &mut Cx<'_, Self>) {
        self.phase = Phase::Preparing;
        self.reply = Some(reply);
        self.request = Some(request);
        cx.pipe(self.means.rail.prepare(), LinePrepared);
    }
}

impl Receive<LinePrepared> for RailSubmission {
    fn receive(&mut self, LinePrepared(prepared): LinePrepared, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let Some(request) = self.request.clone() else {
            return;
        };
        match prepared {
            Ok(line) => self.line = Some(line),
            Err(missing) => {
                let (payout_id, trace_id) = (request.payout_id.as_str(), cx.trace().trace_id_hex());
                tracing::warn!(event = "submission_unprepared", payout_id, detail = ?missing, trace_id);
                return self.end(Submitted::Unprepared(missing), cx);
            }
        }
        self.phase = Phase::Deciding;
        fault_point!(cx.host().faults, "rail_proxy.before_intent");
        let (store, within) = (self.means.store.clone(), self.means.limits.store);
        cx.pipe(async move { store.submit(request, within).await }, IntentDecided);
    }
}

impl Receive<IntentDecided> for RailSubmission {
    fn receive(&mut self, IntentDecided(decided): IntentDecided, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        match decided {
            Ok(SubmitOutcome::Intent(submission)) => {
                fault_point!(cx.host().faults, "rail_proxy.after_intent");
                self.phase = Phase::Intent;
                let id = submission.submission_id.clone();
                self.submission = Some(*submission);
                fault_point!(cx.host().faults, "rail_proxy.before_forwarded_at");
                let (store, within) = (self.means.store.clone(), self.means.limits.store);
                cx.pipe(async move { store.claim_forward(id, within).await }, ForwardClaimed);
            }
            Ok(SubmitOutcome::Replay(submission)) => {
                let replayed = true;
                self.end(Submitted::Recorded { submission, replayed }, cx);
            }
            Ok(refused) => {
                if matches!(refused, SubmitOutcome::FencedOut(_)) {
                    self.means.metrics.fenced_out();
                }
                self.end(Submitted::Refused(refused), cx);
            }
            // The intent may stand. It is not forwarded: whoever reads it finds it ambiguous.
            Err(error) if error.is_ambiguous() => {
                self.means.metrics.store_failed("intent");
                tracing::error!(event = "intent_in_doubt", actor = cx.path(), %error, trace_id = cx.trace().trace_id_hex());
                self.end(Submitted::InDoubt, cx);
            }
            Err(error) => {
                self.means.metrics.store_failed("intent");
                self.end(Submitted::StoreFailed(error), cx);
            }
        }
    }
}

impl Receive<ForwardClaimed> for RailSubmission {
    fn receive(&mut self, ForwardClaimed(claimed): ForwardClaimed, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let (Some(submission), Some(request), Some(line)) = (&self.submission, &self.request, self.line.take()) else {
            return;
        };
        match claimed {
            Ok(ForwardClaim::Forward { duplicate }) => {
                fault_point!(cx.host().faults, "rail_proxy.after_forwarded_at");
                self.phase = Phase::Forwarded;
                let call = RailCall {
                    client_reference: submission.client_reference.clone(),
                    amount_minor: submission.amount_minor,
                    currency: submission.currency.clone(),
                    creditor_name: request.creditor_name.clone(),
                    creditor_account: request.creditor_account.clone(),
                };
                fault_point!(cx.host().faults, "rail_proxy.before_send");
                if duplicate {
                    let (payout_id, trace_id) = (submission.payout_id.as_str(), cx.trace().trace_id_hex());
                    tracing::error!(event = "duplicate_attempted", payout_id, trace_id);
                    self.means.metrics.duplicate();
                }
                let to: Arc<str> = format!("{}/calls/rail", cx.kit().component()).into();
                let mut record = cx.kit().record_below(cx.trace(), &to, CALL, "rail.submit");
                if let Some(record) = &mut record {
                    record.about(About::Payout(submission.payout_id.as_str().into()));
                    record.token(request.token.get());
                }
                cx.pipe(
                    async move {
                        let reply = line.submit(call).await;
                        if let Some(record) = record {
                            match &reply {
                                RailReply::Answer { status: ..400, .. } => record.end(Outcome::Answered, None),
                                RailReply::Answer { status: 400..500, .. } => record.end(Outcome::Refused, None),
                                RailReply::Answer { .. } => record.end(Outcome::Failed, None),
                                RailReply::Nothing(_) => record.end(Outcome::Failed, Some("NO_ANSWER")),
                            }
                        }
                        reply
                    },
                    RailAnswered,
                );
            }
            Ok(ForwardClaim::Refused { duplicate }) => {
                let (payout_id, trace_id) = (submission.payout_id.as_str(), cx.trace().trace_id_hex());
                if duplicate {
                    tracing::error!(event = "duplicate_refused", payout_id, trace_id);
                    self.means.metrics.duplicate();
                }
                tracing::warn!(event = "not_forwarded", payout_id, trace_id);
                let (store, within, payout) = (
                    self.means.store.clone(),
                    self.means.limits.store,
                    submission.payout_id.clone(),
                );
                cx.pipe(async move { store.submission(payout, within).await }, OutcomeRecorded);
            }
            // No answer is no permission to send.
            Err(error) => {
                self.means.metrics.store_failed("forward");
                let (payout_id, trace_id) = (submission.payout_id.as_str(), cx.trace().trace_id_hex());
                tracing::error!(event = "not_forwarded", payout_id, %error, trace_id);
                let answer = self.as_far_as_known();
                self.end(answer, cx);
            }
        }
    }
}

impl Receive<RailAnswered> for RailSubmission {
    fn receive(&mut self, RailAnswered(reply): RailAnswered, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        fault_point!(cx.host().faults, "rail_proxy.after_send");
        let (Some(submission), Some(request)) = (&self.submission, &self.request) else {
            return;
        };
        let call = RailCall {
            client_reference: submission.client_reference.clone(),
            amount_minor: submission.amount_minor,
            currency: submission.currency.clone(),
            creditor_name: request.creditor_name.clone(),
            creditor_account: request.creditor_account.clone(),
        };
        let evidence = classify(&call, &reply);
        tracing::info!(
            event = "rail_answered",
            payout_id = submission.payout_id,
            token = request.token.get(),
            ?evidence,
            trace_id = cx.trace().trace_id_hex()
        );
        self.phase = Phase::Answered;
        self.evidence = Some(evidence);
        fault_point!(cx.host().faults, "rail_proxy.before_outcome");
        self.record(cx);
    }
}

impl Receive<RecordAgain> for RailSubmission {
    fn receive(&mut self, _: RecordAgain, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        self.record(cx);
    }
}

impl Receive<OutcomeRecorded> for RailSubmission {
    fn receive(&mut self, OutcomeRecorded(recorded): OutcomeRecorded, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if recorded.is_err() {
            self.means.metrics.store_failed("outcome");
        }
        match recorded {
            Ok(Some(submission)) => {
                fault_point!(cx.host().faults, "rail_proxy.after_outcome");
                if let Some(outcome) = submission.outcome {
                    self.means.metrics.submitted(outcome);
                }
                let (submission, replayed) = (Box::new(submission), false);
                self.end(Submitted::Recorded { submission, replayed }, cx);
            }
            // An outcome that the rail gave is never given up: recording it again with the same evidence is harmless.
            Err(error) if self.evidence.is_some() => {
                tracing::error!(event = "outcome_not_recorded", actor = cx.path(), %error, trace_id = cx.trace().trace_id_hex());
                let _ = cx.notify_later(RecordAgain, self.again);
                self.again = (self.again * 2).min(RECORD_AGAIN_MAX);
            }
            Ok(None) | Err(_) => {
                let answer = self.as_far_as_known();
                self.end(answer, cx);
            }
        }
    }
}
