//! R1: the fenced transaction that commits an intent (C1.6, FR-16, FR-18, FR-19).

use super::payout_view::{Known, Payout, payout};
use super::{Tx, high_water, rows};
use crate::{Submission, SubmitOutcome, SubmitRequest};
use sha2::{Digest, Sha256};

/// Judges in the contract's order: shape, replay, mark, existing submission, payout. Whatever is not an intent is rolled
/// back by the caller, the advanced mark included.
pub(super) fn submit(tx: &Tx<'_>, request: &SubmitRequest) -> rusqlite::Result<SubmitOutcome> {
    let body_hash = body_hash(request);

    // Replay: what this very token did with this payout is answered even after the mark has moved on.
    if let Some(own) = rows::of_token(tx.db, &request.payout_id, request.token)? {
        let same = own.body_hash.as_ref().is_none_or(|recorded| *recorded == body_hash);
        return Ok(if same && request.idempotency_key == own.idempotency_key {
            SubmitOutcome::Replay(Box::new(own))
        } else {
            SubmitOutcome::KeyReused
        });
    }
    if request.idempotency_key != request.payout_id {
        let used = tx
            .db
            .prepare_cached("SELECT 1 FROM rail_submission WHERE idempotency_key = ?1")?
            .exists([&request.idempotency_key])?;
        return Ok(if used {
            SubmitOutcome::KeyReused
        } else {
            SubmitOutcome::KeyIsNotThePayout
        });
    }

    if tx.fencing.is_enforced() {
        if let Some(refused) = high_water::advance(tx.db, &request.account_id, request.token, tx.now)? {
            return Ok(SubmitOutcome::FencedOut(refused));
        }
        if let Some(existing) = rows::of_payout(tx.db, &request.payout_id)? {
            return Ok(SubmitOutcome::AlreadySubmitted(Box::new(existing)));
        }
        match payout(tx.db, &request.payout_id)? {
            Known::Nothing => return Ok(SubmitOutcome::PayoutsUnknown),
            Known::Missing => return Ok(SubmitOutcome::PayoutNotFound),
            Known::Payout(payout) => {
                if let Some(field) = mismatch(request, &payout) {
                    return Ok(SubmitOutcome::Mismatch { field });
                }
                if payout.state != "CLAIMED" || payout.claim_token != Some(request.token.get()) {
                    return Ok(SubmitOutcome::NotClaimed {
                        state: payout.state,
                        claim_token: payout.claim_token,
                    });
                }
            }
        }
    }

    let mut intent = Submission {
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
        intent_at: tx.now,
        forwarded_at: None,
        outcome: None,
        actor: request.actor.clone(),
        cause: None,
        rail_reference: None,
        decline_reason: None,
        outcome_at: None,
        fencing_enforced: tx.fencing.is_enforced(),
    };
    intent.seq = rows::insert(tx.db, &intent)?;
    Ok(SubmitOutcome::Intent(Box::new(intent)))
}

/// The first field in which the request does not agree with the payout. Text is compared byte for byte: what was stored
/// is what is submitted (case P12).
fn mismatch(request: &SubmitRequest, payout: &Payout) -> Option<&'static str> {
    [
        ("account_id", request.account_id == payout.account_id),
        ("amount_minor", request.amount_minor == payout.amount_minor),
        ("currency", request.currency == payout.currency),
        ("creditor.name", request.creditor_name == payout.creditor.name),
        ("creditor.account", request.creditor_account == payout.creditor.account),
    ]
    .into_iter()
    .find_map(|(field, agrees)| (!agrees).then_some(field))
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
