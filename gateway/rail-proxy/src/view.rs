//! Rows of the store as they travel.

use http_contract::rail::{ExceptionRow, HighWaterAnswer, LookupRow, Outcome, SubmissionRow, Verdict};
use lock_api::UnixMillis;
use rail_store as store;

pub(crate) fn rfc3339(at: UnixMillis) -> String {
    gateway_kit::rfc3339(at.0)
}

pub(crate) const fn outcome(outcome: store::Outcome) -> Outcome {
    match outcome {
        store::Outcome::Acked => Outcome::Acked,
        store::Outcome::Declined => Outcome::Declined,
        store::Outcome::Timeout => Outcome::Timeout,
        store::Outcome::NotReceived => Outcome::NotReceived,
        store::Outcome::NotSent => Outcome::NotSent,
    }
}

pub(crate) const fn verdict(verdict: store::Verdict) -> Verdict {
    match verdict {
        store::Verdict::Executed => Verdict::Executed,
        store::Verdict::Declined => Verdict::Declined,
        store::Verdict::NotReceived => Verdict::NotReceived,
        store::Verdict::Inconclusive => Verdict::Inconclusive,
    }
}

pub(crate) fn submission(row: store::Submission) -> SubmissionRow {
    SubmissionRow {
        submission_id: row.submission_id,
        payout_id: row.payout_id,
        account_id: row.account_id,
        token: row.token.get(),
        amount_minor: row.amount_minor,
        currency: row.currency,
        client_reference: row.client_reference,
        intent_at: rfc3339(row.intent_at),
        forwarded_at: row.forwarded_at.map(rfc3339),
        outcome: row.outcome.map(outcome),
        actor: row.actor,
        cause: row.cause,
        rail_reference: row.rail_reference,
        decline_reason: row.decline_reason,
        outcome_at: row.outcome_at.map(rfc3339),
        fencing_enforced: row.fencing_enforced,
    }
}

pub(crate) fn high_water(account_id: String, mark: store::HighWater) -> HighWaterAnswer {
    HighWaterAnswer {
        account_id,
        highest_token: mark.highest_token,
        updated_at: mark.updated_at.map(rfc3339),
    }
}

pub(crate) fn lookup(row: store::Lookup) -> LookupRow {
    LookupRow {
        at: rfc3339(row.at),
        verdict: row.verdict,
        executions: row.executions,
        rail_reference: row.rail_reference,
    }
}

pub(crate) fn exception(row: store::Exception) -> ExceptionRow {
    ExceptionRow {
        exception_id: row.seq,
        payout_id: row.payout_id,
        at: rfc3339(row.at),
        kind: row.kind,
        detail: row.detail,
        closed_by: row.closed_by,
        closed_at: row.closed_at.map(rfc3339),
        closed_reason: row.closed_reason,
    }
}
