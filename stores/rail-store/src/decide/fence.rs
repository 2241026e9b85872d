//! R6: what a barrier finds, and the row that forbids a payout for ever (C1.6, case D14).

use crate::payout::Payout;
use crate::{FenceRequest, Outcome, Submission};
use lock_api::UnixMillis;

/// The final NOT_SENT that a forbidding fence inserts where there is no submission.
pub(crate) fn forbidden(request: &FenceRequest, payout: &Payout, now: UnixMillis) -> Submission {
    Submission {
        seq: 0,
        submission_id: request.submission_id.clone(),
        payout_id: request.payout_id.clone(),
        account_id: payout.account_id.clone(),
        token: request.token,
        idempotency_key: request.payout_id.clone(),
        client_reference: request.payout_id.clone(),
        amount_minor: payout.amount_minor,
        currency: payout.currency.clone(),
        body_hash: None,
        intent_at: now,
        forwarded_at: None,
        outcome: Some(Outcome::NotSent),
        actor: request.actor.clone(),
        cause: Some("forbidden".to_owned()),
        rail_reference: None,
        decline_reason: None,
        outcome_at: Some(now),
        fencing_enforced: true,
    }
}
