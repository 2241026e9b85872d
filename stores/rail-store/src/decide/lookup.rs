//! R3: what may be concluded from what the rail says when asked (C1.2 Evidence).

use super::{Raise, most_telling, take};
use crate::{
    Evidence, ExceptionKind, Execution, LookupRecord, Outcome, Settled, Sighting, Source, Submission, Verdict,
};
use lock_api::UnixMillis;

/// What a lookup led to.
pub(crate) struct Judged {
    /// The submissions that it changed, as they are to be written.
    pub changed: Vec<Submission>,
    /// More than one execution. If this exception is a new one, it is counted.
    pub double: Option<Raise>,
    pub exceptions: Vec<Raise>,
    /// The rail knew nothing, and was asked late enough for that to count.
    pub saw_nothing: bool,
    /// How many executions are known of.
    pub executions: u64,
    pub verdict: Verdict,
    /// The payout's submission as it is now; none only where a lookup without one recorded none.
    pub submission: Option<Submission>,
}

/// Judges a lookup by all submissions of the payout, in the order of their intents. `silent_at`: when the rail was asked
/// last and knew nothing, of the lookups that counted. None where there is no submission.
pub(crate) fn decide(
    lookup: &LookupRecord,
    mut submissions: Vec<Submission>,
    silent_at: Option<UnixMillis>,
    payout: &Settled,
    now: UnixMillis,
) -> Option<Judged> {
    most_telling(&submissions)?;
    let mut work = Work {
        lookup,
        silent_at,
        payout,
        now,
        changed: Vec::new(),
        exceptions: Vec::new(),
        saw_nothing: false,
        contradicted: false,
    };
    let mut double = None;
    if let Sighting::Book {
        executions,
        declined,
        is_final,
    } = &lookup.sighting
    {
        double = more_than_one(executions);
        work.judge(&mut submissions, executions, declined, *is_final);
    }
    let now = most_telling(&submissions)?.clone();
    let executions = match &lookup.sighting {
        Sighting::Book { executions, .. } => executions.len() as u64,
        Sighting::Failed => u64::from(now.outcome == Some(Outcome::Acked)),
    };
    Some(Judged {
        changed: work.changed,
        double,
        exceptions: work.exceptions,
        saw_nothing: work.saw_nothing,
        executions,
        verdict: verdict(&lookup.sighting, &now, work.contradicted),
        submission: Some(now),
    })
}

/// What can be concluded. The rail's own book comes first, since a settled payout may keep its submission from becoming
/// what the rail says; what contradicts what is recorded concludes nothing (cases P21, P29).
fn verdict(sighting: &Sighting, now: &Submission, contradicted: bool) -> Verdict {
    let Sighting::Book {
        executions, declined, ..
    } = sighting
    else {
        return Verdict::of(now.outcome);
    };
    match (executions.is_empty(), declined.is_empty(), now.outcome) {
        _ if contradicted => Verdict::Inconclusive,
        (false, _, Some(Outcome::Declined | Outcome::NotSent)) => Verdict::Inconclusive,
        (false, ..) => Verdict::Executed,
        (true, false, Some(Outcome::Acked | Outcome::NotSent)) => Verdict::Inconclusive,
        (true, false, _) if now.rail_reference.is_some() => Verdict::Inconclusive,
        (true, false, _) => Verdict::Declined,
        (true, true, outcome) => Verdict::of(outcome),
    }
}

/// What is said of more than one execution.
pub(super) fn more_than_one(executions: &[Execution]) -> Option<Raise> {
    let references: Vec<_> = executions
        .iter()
        .map(|execution| execution.rail_reference.as_str())
        .collect();
    (executions.len() > 1).then(|| Raise {
        kind: ExceptionKind::DoublePaymentSuspected,
        detail: format!(
            "the rail reports {} executions: {}",
            executions.len(),
            references.join(", ")
        ),
    })
}

/// What is said where the rail speaks of other money.
pub(super) fn other_money(execution: &Execution, amount_minor: i64, currency: &str) -> Option<Raise> {
    ((execution.amount_minor, execution.currency.as_str()) != (amount_minor, currency)).then(|| Raise {
        kind: ExceptionKind::AmountMismatch,
        detail: format!(
            "the rail executed {} as {}, submitted were {}",
            money_kit::amount(execution.amount_minor, &execution.currency),
            execution.rail_reference,
            money_kit::amount(amount_minor, currency)
        ),
    })
}

/// Whether a lookup in which the rail knew nothing counts, and whether it is the second one that does; both after the
/// visibility horizon from `since`.
pub(super) fn silence(lookup: &LookupRecord, since: UnixMillis, silent_at: Option<UnixMillis>) -> (bool, bool) {
    let horizon = i64::try_from(lookup.visibility_horizon_ms).unwrap_or(i64::MAX);
    let after = UnixMillis(since.0.saturating_add(horizon));
    let counts = lookup.clock_trusted && lookup.asked_at > after;
    (counts, counts && silent_at.is_some_and(|at| at > after))
}

struct Work<'a> {
    lookup: &'a LookupRecord,
    silent_at: Option<UnixMillis>,
    payout: &'a Settled,
    now: UnixMillis,
    changed: Vec<Submission>,
    exceptions: Vec<Raise>,
    saw_nothing: bool,
    /// The rail speaks of other money, or does not know of what counts as paid.
    contradicted: bool,
}

impl Work<'_> {
    fn judge(&mut self, submissions: &mut [Submission], executions: &[Execution], declined: &[String], is_final: bool) {
        // The reference that is recorded, and other money.
        for execution in executions {
            let named = submissions
                .iter()
                .find(|s| s.rail_reference.as_deref() == Some(execution.rail_reference.as_str()));
            if let Some(other) = named.and_then(|s| other_money(execution, s.amount_minor, &s.currency)) {
                self.contradicted = true;
                self.exceptions.push(other);
            }
        }
        // An execution is evidence for the submission that already names it, else for the oldest that names none. With
        // the fence on there is one submission, and at most one execution to find.
        let mut unnamed: Vec<_> = executions
            .iter()
            .filter(|execution| {
                !submissions
                    .iter()
                    .any(|s| s.rail_reference.as_deref() == Some(execution.rail_reference.as_str()))
            })
            .collect();
        unnamed.reverse();
        let alone = submissions.len() == 1;
        for submission in submissions {
            if submission.outcome == Some(Outcome::Acked) && !executions.is_empty() {
                // The next execution that nobody names belongs to a submission that is still open, where there is one.
                if alone
                    && executions.len() == 1
                    && let Some(execution) = unnamed.pop()
                {
                    self.execution(submission, execution);
                }
            } else if let Some(execution) = unnamed.pop() {
                self.execution(submission, execution);
            } else if let (Some(reason), true) = (declined.first(), executions.is_empty()) {
                let reason = Some(reason.clone());
                self.evidence(submission, &Evidence::Declined { reason });
            } else if executions.is_empty() && declined.is_empty() {
                self.nothing(submission, is_final);
            }
        }
    }

    /// An execution becomes the outcome, unless the rail speaks of other money.
    fn execution(&mut self, submission: &mut Submission, execution: &Execution) {
        if let Some(other) = other_money(execution, submission.amount_minor, &submission.currency) {
            self.contradicted = true;
            self.exceptions.push(other);
            return;
        }
        let evidence = Evidence::Acked {
            rail_reference: execution.rail_reference.clone(),
        };
        self.evidence(submission, &evidence);
    }

    fn evidence(&mut self, submission: &mut Submission, evidence: &Evidence) {
        let taken = take(submission, evidence, Source::Lookup, self.payout, self.now);
        if taken.changed {
            self.changed.push(submission.clone());
        }
        self.exceptions.extend(taken.exception);
    }

    /// The rail knows nothing. NOT_RECEIVED where that may be concluded: over a TIMEOUT that the forwarder wrote, or over
    /// an intent that was never forwarded (which also stops a forwarder that was paused before sending, case D01); and
    /// only when this is the second such lookup after the visibility horizon, or the rail promises that nothing will
    /// come. An intent that was forwarded and has no outcome stays as it is, for a human.
    fn nothing(&mut self, submission: &mut Submission, is_final: bool) {
        self.missed(submission, is_final);
        let since = match (submission.outcome, submission.forwarded_at) {
            // The rail said once that it executed it: its silence concludes nothing.
            _ if submission.rail_reference.is_some() => return,
            (Some(Outcome::Timeout), _) => submission.outcome_at.unwrap_or(submission.intent_at),
            (None, None) => submission.intent_at,
            _ => return,
        };
        let (counts, second) = silence(self.lookup, since, self.silent_at);
        self.saw_nothing |= counts;
        if second || is_final {
            submission.outcome = Some(Outcome::NotReceived);
            submission.cause = Some(not_received_by(second).to_owned());
            submission.outcome_at = Some(self.now);
            self.changed.push(submission.clone());
        }
    }

    /// The rail knows nothing of what counts as paid. One such answer after the visibility horizon is enough for a human
    /// to look at, and none of them is answered as executed (cases P21, P29).
    fn missed(&mut self, submission: &Submission, is_final: bool) {
        let executed = submission.rail_reference.as_deref();
        let said = match (executed, self.payout) {
            (Some(reference), _) => format!("the rail executed it as {reference}"),
            (None, Settled::Posted { rail_reference: None }) => "the payout is POSTED".to_owned(),
            (
                None,
                Settled::Posted {
                    rail_reference: Some(reference),
                },
            ) => format!("the payout is POSTED as {reference}"),
            (None, _) => return,
        };
        let since = submission
            .outcome_at
            .or(submission.forwarded_at)
            .unwrap_or(submission.intent_at);
        let (late, _) = silence(self.lookup, since, None);
        // Asked within the horizon the rail may not show it yet; a clock that cannot be trusted does not say which.
        self.contradicted |= executed.is_some() && (late || is_final || !self.lookup.clock_trusted);
        if late || is_final {
            self.exceptions.push(Raise {
                kind: ExceptionKind::NotFoundAtRail,
                detail: format!("{said} and, asked after the visibility horizon, the rail knows of no execution"),
            });
        }
    }
}

const fn not_received_by(second: bool) -> &'static str {
    if second {
        "two lookups found nothing"
    } else {
        "the rail promises that nothing will come"
    }
}
