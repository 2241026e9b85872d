//! R1: whether a request becomes an intent (C1.6, FR-16, FR-18, FR-19).

use super::mark::Advance;
use crate::payout::{Known, Malformed, Payout};
use crate::{Fencing, Submission, SubmitOutcome, SubmitRequest};
use lock_api::UnixMillis;
use sha2::{Digest, Sha256};

/// What was read, the mark's row lock first.
pub(crate) struct Facts {
    /// This token's submission of this payout.
    pub own: Option<Submission>,
    /// What follows is looked at with the fence on alone.
    pub fenced: Option<FencedFacts>,
}

/// What the fence looks at.
pub(crate) struct FencedFacts {
    pub mark: Advance,
    /// The payout's submission.
    pub existing: Option<Submission>,
    pub payout: Known,
    /// paydb was restored, and the rail has not been asked about this payout since.
    pub rail_unasked: bool,
}

/// Judges in the contract's order: shape, replay, mark, existing submission, payout. Whatever is not an intent is to be
/// rolled back, the advanced mark included. An intent is to be inserted as it is answered; its `seq` is the database's.
pub(crate) fn decide(
    request: &SubmitRequest,
    facts: Facts,
    fencing: Fencing,
    now: UnixMillis,
) -> Result<SubmitOutcome, Malformed> {
    let body_hash = body_hash(request);
    // Replay: what this very token did with this payout is answered even after the mark has moved on.
    if let Some(own) = facts.own
        && request.idempotency_key == own.idempotency_key
    {
        let same = own.body_hash.as_ref().is_none_or(|recorded| *recorded == body_hash);
        return Ok(if same {
            SubmitOutcome::Replay(Box::new(own))
        } else {
            SubmitOutcome::KeyReused
        });
    }
    // The key of a submission is its payout's id: any other belongs to another payout (case P37).
    if request.idempotency_key != request.payout_id {
        return Ok(SubmitOutcome::KeyReused);
    }
    if let Some(fenced) = facts.fenced
        && let Some(refused) = refused(request, fenced)?
    {
        return Ok(refused);
    }
    Ok(SubmitOutcome::Intent(Box::new(Submission {
        seq: 0,
        submission_id: request.submission_id.clone(),
        payout_id: request.payout_id.clone(),
        account_id: request.account_id.clone(),
        token: request.token,
        idempotency_key: request.idempotency_key.clone(),
        client_reference: request.payout_id.clone(),
        amount_minor: request.amount_minor,
        currency: request.currency.clone(),
        body_hash: Some(body_hash),
        intent_at: now,
        forwarded_at: None,
        outcome: None,
        actor: request.actor.clone(),
        cause: None,
        rail_reference: None,
        decline_reason: None,
        outcome_at: None,
        fencing_enforced: fencing.is_enforced(),
    })))
}

fn refused(request: &SubmitRequest, facts: FencedFacts) -> Result<Option<SubmitOutcome>, Malformed> {
    if let Some(refused) = facts.mark.refused(request.token) {
        return Ok(Some(SubmitOutcome::FencedOut(refused)));
    }
    if let Some(existing) = facts.existing {
        return Ok(Some(SubmitOutcome::AlreadySubmitted(Box::new(existing))));
    }
    let payout = match facts.payout {
        Known::Nothing => return Ok(Some(SubmitOutcome::PayoutsUnknown)),
        Known::Missing => return Ok(Some(SubmitOutcome::PayoutNotFound)),
        Known::Payout(payout) => payout,
    };
    // Before the payout is looked at: who is told that it can never be submitted would forbid it (case D14).
    if facts.rail_unasked {
        return Ok(Some(SubmitOutcome::RailUnasked));
    }
    if let Some(field) = mismatch(request, &payout)? {
        return Ok(Some(SubmitOutcome::Mismatch { field }));
    }
    let claimed = payout.state == "CLAIMED" && payout.claim_token == Some(request.token.get());
    Ok((!claimed).then_some(SubmitOutcome::NotClaimed {
        state: payout.state,
        claim_token: payout.claim_token,
    }))
}

/// The first field in which the request does not agree with the payout. Text is compared byte for byte: what was stored
/// is what is submitted (case P12).
fn mismatch(request: &SubmitRequest, payout: &Payout) -> Result<Option<&'static str>, Malformed> {
    let creditor = payout.creditor()?;
    Ok([
        ("account_id", request.account_id == payout.account_id),
        ("amount_minor", request.amount_minor == payout.amount_minor),
        ("currency", request.currency == payout.currency),
        ("creditor.name", request.creditor_name == creditor.name),
        ("creditor.account", request.creditor_account == creditor.account),
    ]
    .into_iter()
    .find_map(|(field, agrees)| (!agrees).then_some(field)))
}

/// A digest of the request's body. Each part goes in with its length, so that no two bodies read the same.
fn body_hash(request: &SubmitRequest) -> String {
    let mut digest = Sha256::new();
    for part in [
        request.payout_id.as_str(),
        &request.account_id,
        &request.amount_minor.to_string(),
        &request.currency,
        &request.creditor_name,
        &request.creditor_account,
    ] {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(part.as_bytes());
    }
    hex::encode(digest.finalize())
}
