//! R3: what may be concluded from what the rail says when asked (C1.2 Evidence).

use super::{Tx, rows};
use crate::{
    Evidence, ExceptionKind, Execution, LookupOutcome, LookupRecord, Outcome, Sighting, Source, Submission, Verdict,
};
use lock_api::UnixMillis;
use rusqlite::params;

pub(super) fn record(tx: &Tx<'_>, lookup: &LookupRecord) -> rusqlite::Result<Option<LookupOutcome>> {
    let submissions = rows::all_of_payout(tx.db, &lookup.payout_id)?;
    if submissions.is_empty() {
        return Ok(None);
    }
    let mut seen = Seen::default();
    if let Sighting::Book {
        executions,
        declined,
        is_final,
    } = &lookup.sighting
    {
        seen = judge(tx, lookup, &submissions, executions, declined, *is_final)?;
    }
    let Some(now) = rows::of_payout(tx.db, &lookup.payout_id)? else {
        return Ok(None);
    };
    let verdict = Verdict::of(now.outcome);
    let executions = match &lookup.sighting {
        Sighting::Book { executions, .. } => executions.len() as u64,
        Sighting::Failed => u64::from(now.outcome == Some(Outcome::Acked)),
    };
    tx.db
        .prepare_cached(
            "INSERT INTO rail_lookup (lookup_id, payout_id, at, verdict, executions, rail_reference, saw_nothing)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            lookup.lookup_id,
            lookup.payout_id,
            lookup.asked_at.0,
            verdict.as_str(),
            rows::signed(executions),
            now.rail_reference,
            seen.nothing,
        ])?;
    Ok(Some(LookupOutcome {
        verdict,
        executions,
        submission: now,
        double_found: seen.double_found,
    }))
}

#[derive(Default)]
struct Seen {
    /// The rail knew nothing, and was asked late enough for that to count.
    nothing: bool,
    /// More than one execution, for the first time.
    double_found: bool,
}

fn judge(
    tx: &Tx<'_>,
    lookup: &LookupRecord,
    submissions: &[Submission],
    executions: &[Execution],
    declined: &[String],
    is_final: bool,
) -> rusqlite::Result<Seen> {
    let mut seen = Seen::default();
    let references: Vec<_> = executions
        .iter()
        .map(|execution| execution.rail_reference.as_str())
        .collect();
    if executions.len() > 1 {
        let detail = format!(
            "the rail reports {} executions: {}",
            executions.len(),
            references.join(", ")
        );
        seen.double_found = rows::raise(tx, &lookup.payout_id, ExceptionKind::DoublePaymentSuspected, &detail)?;
    }
    // An execution is evidence for the submission that already names it, else for the oldest that names none. With the
    // fence on there is one submission, and at most one execution to find.
    let mut unnamed: Vec<_> = executions
        .iter()
        .filter(|execution| {
            !submissions
                .iter()
                .any(|s| s.rail_reference.as_deref() == Some(execution.rail_reference.as_str()))
        })
        .collect();
    unnamed.reverse();
    for submission in submissions {
        if submission.outcome == Some(Outcome::Acked) {
            // The next execution that nobody names belongs to a submission that is still open, where there is one.
            if submissions.len() == 1
                && executions.len() == 1
                && let Some(execution) = unnamed.pop()
            {
                take(tx, submission, execution)?;
            }
        } else if let Some(execution) = unnamed.pop() {
            take(tx, submission, execution)?;
        } else if let (Some(reason), true) = (declined.first(), executions.is_empty()) {
            let reason = Some(reason.clone());
            rows::settle(tx, submission, &Evidence::Declined { reason }, Source::Lookup)?;
        } else if executions.is_empty() && declined.is_empty() {
            seen.nothing |= silence(tx, lookup, submission, is_final)?;
        }
    }
    Ok(seen)
}

/// An execution becomes the outcome, unless the rail speaks of other money.
fn take(tx: &Tx<'_>, submission: &Submission, execution: &Execution) -> rusqlite::Result<()> {
    if (execution.amount_minor, execution.currency.as_str()) != (submission.amount_minor, submission.currency.as_str())
    {
        let detail = format!(
            "the rail executed {} {} as {}, submitted were {} {}",
            execution.amount_minor,
            execution.currency,
            execution.rail_reference,
            submission.amount_minor,
            submission.currency
        );
        rows::raise(tx, &submission.payout_id, ExceptionKind::AmountMismatch, &detail)?;
        return Ok(());
    }
    let evidence = Evidence::Acked {
        rail_reference: execution.rail_reference.clone(),
    };
    rows::settle(tx, submission, &evidence, Source::Lookup).map(drop)
}

/// The rail knows nothing. Writes NOT_RECEIVED where that may be concluded: over a TIMEOUT that the forwarder wrote, or
/// over an intent that was never forwarded (which also stops a forwarder that was paused before sending, case D01); and
/// only when this is the second such lookup after the visibility horizon, or the rail promises that nothing will come.
/// An intent that was forwarded and has no outcome stays as it is, for a human. Answers whether the silence counts.
fn silence(tx: &Tx<'_>, lookup: &LookupRecord, submission: &Submission, is_final: bool) -> rusqlite::Result<bool> {
    let since = match (submission.outcome, submission.forwarded_at) {
        (Some(Outcome::Timeout), _) => submission.outcome_at.unwrap_or(submission.intent_at),
        (None, None) => submission.intent_at,
        _ => return Ok(false),
    };
    let horizon = i64::try_from(lookup.visibility_horizon_ms).unwrap_or(i64::MAX);
    let after = UnixMillis(since.0.saturating_add(horizon));
    let counts = lookup.clock_trusted && lookup.asked_at > after;
    let second = counts
        && tx
            .db
            .prepare_cached("SELECT 1 FROM rail_lookup WHERE payout_id = ?1 AND saw_nothing AND at > ?2")?
            .exists(params![lookup.payout_id, after.0])?;
    if second || is_final {
        let cause = if second {
            "two lookups found nothing"
        } else {
            "the rail promises that nothing will come"
        };
        tx.db
            .prepare_cached(
                "UPDATE rail_submission SET outcome = 'NOT_RECEIVED', cause = ?2, outcome_at = ?3
                  WHERE submission_id = ?1
                    AND (outcome = 'TIMEOUT' OR (outcome IS NULL AND forwarded_at IS NULL))",
            )?
            .execute(params![submission.submission_id, cause, tx.now.0])?;
    }
    Ok(counts)
}
