//! A payout from its lock to its last step: Flow A in order, and recovery (C1.8).
//!
//! Each side effect is preceded by a look at the lock, which answers the token to present; each durable step and each
//! send stands between two fault points. The functions read top down as the steps happen.

use crate::decide::{self, AfterFinal, AfterSubmit, Evidence, Final, Reread};
use crate::history::History;
use crate::lock_key_text;
use crate::metrics::ExecutorMetrics;
use crate::ports::{Payments, PortError, Rail};
use actor_kit::{About, Kit, OpenRecord, TraceContext, WORK};
use host_kit::{Host, fault_point};
use http_contract::Code;
use http_contract::payment::{PayoutAnswer, PayoutState};
use http_contract::rail::{LookupAnswer, Outcome, SubmissionRow, SubmitBody};
use lock_api::{FencingToken, LockError, LockKey};
use lock_client::{HeldLock, LockClient};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How often a last step is asked for under one grant: a replay each time (C1.6).
const LAST_STEP_ATTEMPTS_MAX: u32 = 4;

/// The bounds of the pauses between two reads of R2.
const READ_BACK_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// How a worker puts a payout down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both ledger legs are written.
    Posted,
    /// It failed; the hold is freed.
    Failed,
    /// It waits for reconciliation (Flow D).
    Ambiguous,
    /// Somebody else had done the work before the lock was had.
    NothingToDo,
    /// The lock stayed with others (FR-28): the payout is untouched.
    Contended,
    /// There was no grant for another reason (FR-27): the payout is untouched.
    NoGrant,
    /// The account cannot pay it now: it rests PENDING.
    Unfunded,
    /// A newer holder has been at a fence point.
    FencedOut,
    /// The lock was lost before the next side effect.
    LockLost,
    /// The payout changed since it was re-read.
    Moved,
    /// Something is not certain, or does not answer: it is left as it stands, and the next holder decides.
    Left,
}

impl Ending {
    /// All labels, in the order of the variants.
    pub const LABELS: [&'static str; 11] = [
        "posted",
        "failed",
        "ambiguous",
        "nothing_to_do",
        "contended",
        "no_grant",
        "unfunded",
        "fenced_out",
        "lock_lost",
        "moved",
        "left",
    ];

    /// The ending as a label of metrics and logs.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::Failed => "failed",
            Self::Ambiguous => "ambiguous",
            Self::NothingToDo => "nothing_to_do",
            Self::Contended => "contended",
            Self::NoGrant => "no_grant",
            Self::Unfunded => "unfunded",
            Self::FencedOut => "fenced_out",
            Self::LockLost => "lock_lost",
            Self::Moved => "moved",
            Self::Left => "left",
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// A payout to be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub payout_id: String,
    pub account_id: String,
    /// Whether to spend all attempts of FR-28 on the lock, or a single one because other work waits. A CLAIMED payout is
    /// mostly held by whoever claimed it, and that is told by the lock alone (C1.8).
    pub patient: bool,
    pub trace: TraceContext,
}

/// Everything a worker works with.
pub(crate) struct Desk {
    pub payments: Rc<dyn Payments>,
    pub rail: Rc<dyn Rail>,
    pub locks: LockClient,
    pub history: History,
    pub metrics: ExecutorMetrics,
    pub host: Host,
    pub kit: Kit,
    /// Where its work stands in the trace.
    pub work: Arc<str>,
    pub rail_timeout: Duration,
    pub rail_read_timeout: Duration,
    #[cfg(feature = "lab")]
    pub ignore_lock_lost: bool,
}

/// A step's result, or how the payout is put down instead.
type Step<T> = Result<T, Ending>;

/// Where a job stands, for whoever looks at its worker.
pub(crate) type Progress = Rc<Cell<&'static str>>;

/// Where the work of this process that is no message stands in its trace.
pub(crate) fn work(kit: &Kit) -> Arc<str> {
    format!("{}/work", kit.component()).into()
}

impl Desk {
    /// The first record of a payout's trace, which everything that is done for it stands below.
    pub(crate) fn payout_record(&self, job: &Job, name: &'static str) -> Option<OpenRecord> {
        let mut record = self.kit.record_of(job.trace, None, &self.work, WORK, name)?;
        record.about(About::Payout(job.payout_id.as_str().into()));
        Some(record)
    }

    /// One grant settles one payout and is released.
    pub(crate) async fn settle(&self, job: &Job, at: &Progress) -> Ending {
        at.set("acquire");
        let held = match self.acquire(job).await {
            Ok(held) => held,
            Err(ending) => return ending,
        };
        let ending = self.under_lock(job, &held, at).await.unwrap_or_else(|ending| ending);
        at.set("release");
        self.release(held, &job.payout_id).await;
        ending
    }

    /// Takes the account's lock. Whatever goes wrong, nothing is held and nothing was touched.
    pub(crate) async fn acquire(&self, job: &Job) -> Step<HeldLock> {
        let text = lock_key_text(&job.account_id);
        let key = match LockKey::new(text.as_str()) {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(
                    event = "lock_key_refused",
                    payout_id = job.payout_id,
                    %error,
                    trace_id = job.trace.trace_id_hex()
                );
                return Err(Ending::NoGrant);
            }
        };
        fault_point!(self.host.faults, "executor.before_acquire");
        let seen = self.history.invoke("acquire", Some(&text), None, &job.payout_id);
        let request = self
            .locks
            .lock(&key)
            .trace(job.trace)
            .metadata(serde_json::json!({ "payout_id": job.payout_id }));
        let answer = if job.patient {
            request.acquire().await
        } else {
            request.try_acquire().await
        };
        match answer {
            Ok(held) => {
                seen.ok(Some(held.token()));
                fault_point!(self.host.faults, "executor.after_acquire");
                Ok(held)
            }
            Err(error) => {
                let (ending, code) = match &error {
                    LockError::HeldByOther(_) => (Ending::Contended, Some("HELD_BY_OTHER")),
                    LockError::ContentionExceeded { .. } => (Ending::Contended, Some("CONTENTION_EXCEEDED")),
                    LockError::Delayed { .. } => (Ending::Contended, Some("LOCK_DELAYED")),
                    LockError::TokenRegression { .. } => (Ending::NoGrant, Some("TOKEN_REGRESSION")),
                    LockError::Invalid { .. } => (Ending::NoGrant, Some("INVALID_REQUEST")),
                    _ => (Ending::NoGrant, None),
                };
                match code {
                    Some(code) => seen.refused(code),
                    None => seen.unknown(error.to_string()),
                }
                let (payout_id, trace_id) = (job.payout_id.as_str(), job.trace.trace_id_hex());
                if ending == Ending::Contended {
                    tracing::info!(event = "lock_contended", code, payout_id, key = text, %error, trace_id);
                } else {
                    tracing::info!(event = "lock_not_granted", code, payout_id, key = text, %error, trace_id);
                }
                Err(ending)
            }
        }
    }

    /// Gives the lock back. A lock that was lost is none any more, and that is no error here.
    pub(crate) async fn release(&self, held: HeldLock, payout_id: &str) {
        fault_point!(self.host.faults, "executor.before_release");
        let (key, token) = (held.key().as_str().to_owned(), held.token());
        let seen = self.history.invoke("release", Some(&key), Some(token), payout_id);
        match held.release().await {
            Ok(()) => seen.ok(None),
            Err(LockError::Lost(lost)) => seen.refused(format!("LOCK_LOST {}", lost.reason.as_str())),
            Err(error) => seen.unknown(error.to_string()),
        }
        fault_point!(self.host.faults, "executor.after_release");
    }

    /// The look at the lock before a side effect, and the token to present with it.
    pub(crate) fn still_held(&self, held: &HeldLock, job: &Job) -> Step<FencingToken> {
        #[cfg(feature = "lab")]
        if self.ignore_lock_lost {
            return Ok(held.token());
        }
        held.check_still_held().map_err(|lost| {
            tracing::warn!(
                event = "side_effect_withheld",
                payout_id = job.payout_id,
                key = held.key().as_str(),
                token = lost.token.get(),
                reason = lost.reason.as_str(),
                trace_id = job.trace.trace_id_hex()
            );
            Ending::LockLost
        })
    }

    async fn under_lock(&self, job: &Job, held: &HeldLock, at: &Progress) -> Step<Ending> {
        at.set("reread");
        let seen = self.reread(job).await?;
        match decide::after_reread(seen.state) {
            Reread::Leave => Ok(Ending::NothingToDo),
            Reread::Claim => {
                at.set("claim");
                let claimed = self.claim(&seen, held, job).await?;
                self.submit_and_settle(&claimed, held, job, at, false).await
            }
            Reread::Recover => {
                at.set("fence");
                let found = self.fence(job, held, false).await?;
                at.set("claim");
                let claimed = self.claim(&seen, held, job).await?;
                tracing::info!(
                    event = "recovery_begun",
                    payout_id = job.payout_id,
                    token = held.token().get(),
                    outcome = found.as_ref().and_then(|row| row.outcome).map(Outcome::as_str),
                    submitted = found.is_some(),
                    trace_id = job.trace.trace_id_hex(),
                );
                match decide::evidence(found.as_ref()) {
                    Evidence::Nothing => self.submit_and_settle(&claimed, held, job, at, true).await,
                    recorded => self.follow(Some(recorded), held, job, at).await,
                }
            }
        }
    }

    /// FR-14: what is decided from here on is decided from what is seen under the lock.
    async fn reread(&self, job: &Job) -> Step<PayoutAnswer> {
        let seen = self.history.invoke("reread", None, None, &job.payout_id);
        let answer = self.payments.payout(job.payout_id.clone(), job.trace).await;
        seen.ended(&answer);
        answer.map_err(|error| self.put_down(job, "reread", &error))
    }

    /// R6: from here on no older worker's late submit can slip in, and the submission that is read is the last one.
    async fn fence(&self, job: &Job, held: &HeldLock, forbid: bool) -> Step<Option<SubmissionRow>> {
        let token = self.still_held(held, job)?;
        fault_point!(self.host.faults, "executor.before_fence");
        let seen = self.history.invoke("fence", None, Some(token), &job.payout_id);
        let answer = self.rail.fence(job.payout_id.clone(), token, forbid, job.trace).await;
        seen.ended(&answer);
        fault_point!(self.host.faults, "executor.after_fence");
        answer
            .map(|answer| answer.submission)
            .map_err(|error| self.put_down(job, "fence", &error))
    }

    /// P4, with the version that was re-read. What is submitted is what this answers, never an earlier list.
    async fn claim(&self, reread: &PayoutAnswer, held: &HeldLock, job: &Job) -> Step<PayoutAnswer> {
        let token = self.still_held(held, job)?;
        fault_point!(self.host.faults, "executor.before_claim");
        let seen = self.history.invoke("claim", None, Some(token), &job.payout_id);
        let answer = self
            .payments
            .claim(job.payout_id.clone(), token, reread.version, job.trace)
            .await;
        seen.ended(&answer);
        fault_point!(self.host.faults, "executor.after_claim");
        let claimed = answer.map_err(|error| self.put_down(job, "claim", &error))?;
        if claimed.state == PayoutState::Claimed && claimed.claim_token == Some(token.get()) {
            Ok(claimed)
        } else {
            Err(self.left(job, "a claim that was answered with another state or token"))
        }
    }

    /// R1, once, and the step that its answer asks for.
    async fn submit_and_settle(
        &self,
        claimed: &PayoutAnswer,
        held: &HeldLock,
        job: &Job,
        at: &Progress,
        recovering: bool,
    ) -> Step<Ending> {
        at.set("submit");
        let token = self.still_held(held, job)?;
        let body = SubmitBody {
            payout_id: claimed.payout_id.clone(),
            account_id: claimed.account_id.clone(),
            amount_minor: claimed.amount_minor,
            currency: claimed.currency.clone(),
            creditor: claimed.creditor.clone(),
        };
        fault_point!(self.host.faults, "executor.before_submit");
        let seen = self.history.invoke("submit", None, Some(token), &job.payout_id);
        let answer = self.rail.submit(token, body, self.rail_timeout, job.trace).await;
        seen.ended(&answer);
        fault_point!(self.host.faults, "executor.after_submit");
        if let Err(error) = &answer {
            tracing::info!(
                event = "submit_not_acknowledged",
                payout_id = job.payout_id,
                token = token.get(),
                %error,
                trace_id = job.trace.trace_id_hex()
            );
        }
        match decide::after_submit(&answer) {
            AfterSubmit::Settle(last) => self.finish(last, held, job, at).await,
            AfterSubmit::Superseded => Err(Ending::FencedOut),
            AfterSubmit::ReadBack => {
                at.set("read back");
                let recorded = self.read_back(job).await;
                self.follow(recorded, held, job, at).await
            }
            AfterSubmit::Refused => {
                at.set("read back");
                let mut recorded = self.read_back(job).await;
                // Case D14: a payout that the proxy refuses for ever. The first worker leaves it CLAIMED, in case the
                // refusal was the fault of one proxy; whoever recovers it and is refused again forbids it and fails it.
                if recovering && recorded == Some(Evidence::Nothing) {
                    at.set("forbid");
                    recorded = Some(decide::evidence(self.fence(job, held, true).await?.as_ref()));
                }
                self.follow(recorded, held, job, at).await
            }
            AfterSubmit::AskRail => {
                at.set("lookup");
                let verdict = self
                    .lookup(&job.payout_id, &job.trace)
                    .await
                    .map(|answer| answer.verdict);
                tracing::warn!(
                    event = "submission_in_doubt",
                    payout_id = job.payout_id,
                    verdict = verdict.as_ref().map(|verdict| verdict.as_str()).ok(),
                    trace_id = job.trace.trace_id_hex()
                );
                Err(self.left(job, "the rail had to be asked first"))
            }
        }
    }

    /// Does what the submission's record supports; none means that the record did not answer.
    async fn follow(&self, recorded: Option<Evidence>, held: &HeldLock, job: &Job, at: &Progress) -> Step<Ending> {
        match recorded {
            Some(Evidence::Settles(last)) => self.finish(last, held, job, at).await,
            Some(Evidence::InFlight) => self.finish(in_flight(), held, job, at).await,
            // The next holder's R6 decides (C1.8).
            Some(Evidence::Nothing) => Err(self.left(job, "no submission is on record")),
            Some(Evidence::Unreadable) => Err(self.left(job, "an acknowledgement without a reference")),
            None => Err(self.left(job, "the submission's record does not answer")),
        }
    }

    /// R2 until there is an outcome, no row, or the rail's read time-out has passed.
    async fn read_back(&self, job: &Job) -> Option<Evidence> {
        let clock = &self.host.clock;
        let until = clock.mono() + self.rail_read_timeout;
        let pause = (self.rail_read_timeout / 20).clamp(READ_BACK_PAUSE.0, READ_BACK_PAUSE.1);
        let mut last = None;
        loop {
            let seen = self.history.invoke("readback", None, None, &job.payout_id);
            let answer = self.rail.submission(job.payout_id.clone(), job.trace).await;
            seen.ended(&answer);
            match answer {
                Ok(row) if row.outcome.is_some() => return Some(decide::evidence(Some(&row))),
                Ok(_) => last = Some(Evidence::InFlight),
                Err(error) if error.code() == Some(Code::SubmissionNotFound) => return Some(Evidence::Nothing),
                Err(error) => {
                    let trace_id = job.trace.trace_id_hex();
                    tracing::warn!(event = "read_back_failed", payout_id = job.payout_id, %error, trace_id);
                }
            }
            if clock.mono() >= until {
                return last;
            }
            clock.sleep(pause).await;
        }
    }

    /// P5, P6 or P7. May be asked again: a final step that this token completed is replayed (C1.6).
    async fn finish(&self, mut last: Final, held: &HeldLock, job: &Job, at: &Progress) -> Step<Ending> {
        for attempt in 1..=LAST_STEP_ATTEMPTS_MAX {
            let (name, done) = match last {
                Final::Post { .. } => ("post", Ending::Posted),
                Final::Fail { .. } => ("fail", Ending::Failed),
                Final::Ambiguous { .. } => ("ambiguous", Ending::Ambiguous),
            };
            at.set(name);
            let answer = self.last_step(&last, held, job).await?;
            match (decide::after_final(&answer), answer) {
                (AfterFinal::Done, _) => return Ok(done),
                (AfterFinal::Leave, Err(error)) => return Err(self.put_down(job, name, &error)),
                (AfterFinal::Follow, _) => match self.read_back(job).await {
                    Some(Evidence::Settles(other)) => last = other,
                    Some(Evidence::InFlight) => last = in_flight(),
                    _ => return Err(self.left(job, "no outcome is on record")),
                },
                (_, answer) => {
                    let error = answer.err().map(|error| error.to_string());
                    tracing::warn!(
                        event = "last_step_unanswered",
                        step = name,
                        payout_id = job.payout_id,
                        attempt,
                        error,
                        trace_id = job.trace.trace_id_hex()
                    );
                    let longest = Duration::from_millis(50) * 2_u32.pow(attempt);
                    self.host.clock.sleep(self.host.random.up_to(longest)).await;
                }
            }
        }
        Err(self.left(job, "the last step did not come through"))
    }

    async fn last_step(&self, last: &Final, held: &HeldLock, job: &Job) -> Step<Result<PayoutAnswer, PortError>> {
        let token = self.still_held(held, job)?;
        let (payout, trace) = (job.payout_id.clone(), job.trace);
        let invoke = |verb| self.history.invoke(verb, None, Some(token), &job.payout_id);
        Ok(match last.clone() {
            Final::Post { rail_reference } => {
                fault_point!(self.host.faults, "executor.before_post");
                let seen = invoke("post");
                let answer = self.payments.post(payout, token, rail_reference, trace).await;
                seen.ended(&answer);
                fault_point!(self.host.faults, "executor.after_post");
                answer
            }
            Final::Fail { reason } => {
                fault_point!(self.host.faults, "executor.before_fail");
                let seen = invoke("fail");
                let answer = self.payments.fail(payout, token, reason, trace).await;
                seen.ended(&answer);
                fault_point!(self.host.faults, "executor.after_fail");
                answer
            }
            Final::Ambiguous { reason } => {
                fault_point!(self.host.faults, "executor.before_ambiguous");
                let seen = invoke("ambiguous");
                let answer = self.payments.ambiguous(payout, token, reason, trace).await;
                seen.ended(&answer);
                fault_point!(self.host.faults, "executor.after_ambiguous");
                answer
            }
        })
    }

    /// R3: asks the rail, read-only, without a grant.
    pub(crate) async fn lookup(&self, payout_id: &str, trace: &TraceContext) -> Result<LookupAnswer, PortError> {
        fault_point!(self.host.faults, "executor.before_lookup");
        let seen = self.history.invoke("lookup", None, None, payout_id);
        let answer = self.rail.lookup(payout_id.to_owned(), self.rail_timeout, *trace).await;
        seen.ended(&answer);
        fault_point!(self.host.faults, "executor.after_lookup");
        answer
    }

    /// What a refusal or a silence before the submission means for the payout: it stands as it did.
    pub(crate) fn put_down(&self, job: &Job, step: &'static str, error: &PortError) -> Ending {
        let ending = match error.code() {
            Some(Code::FencedOut) => Ending::FencedOut,
            Some(Code::VersionConflict | Code::IllegalTransition | Code::PayoutNotFound) => Ending::Moved,
            Some(Code::InsufficientFunds) => Ending::Unfunded,
            _ => Ending::Left,
        };
        // Outcomes of a healthy system are information (C3.2); what is left is worth a look.
        if ending == Ending::Left {
            tracing::warn!(event = "step_failed", step, payout_id = job.payout_id, %error, trace_id = job.trace.trace_id_hex());
        } else {
            let code = error.code().map(Code::as_str);
            let reason = match error {
                PortError::Problem(problem) => problem.text("reason"),
                _ => None,
            };
            tracing::info!(
                event = "step_refused",
                step,
                payout_id = job.payout_id,
                code,
                reason,
                trace_id = job.trace.trace_id_hex()
            );
        }
        ending
    }

    fn left(&self, job: &Job, why: &'static str) -> Ending {
        tracing::warn!(
            event = "payout_left",
            reason = why,
            payout_id = job.payout_id,
            trace_id = job.trace.trace_id_hex()
        );
        Ending::Left
    }
}

fn in_flight() -> Final {
    Final::Ambiguous {
        reason: "an intent without an outcome".to_owned(),
    }
}
