//! P8, the resolution: what was ambiguous becomes POSTED or FAILED, by the evidence or by hand.

use super::rows::{Done, exactly_one, named, payout, payout_again, record, signed};
use super::{Tx, fence, ledger, rail_view, refuse, rows};
use crate::{ByHand, Command, Evidence, Refusal, Resolution, StepOutcome};
use lock_api::FencingToken;
use rusqlite::params;
use sql_kit::Decision;

/// The fenced write.
const FENCED: &str = "UPDATE payout SET state = ?4, rail_reference = coalesce(?5, rail_reference), failure_reason = ?6,
    version = version + 1, updated_at = ?3
  WHERE payout_id = ?1 AND state = 'RAIL_AMBIGUOUS'
    AND EXISTS (SELECT 1 FROM account a WHERE a.account_id = payout.account_id AND a.fence = ?2)";

/// The write of a service that trusts its caller.
#[cfg(feature = "lab")]
const UNFENCED: &str =
    "UPDATE payout SET state = ?4, rail_reference = coalesce(?5, rail_reference), failure_reason = ?6,
    version = version + 1, updated_at = ?3
  WHERE payout_id = ?1 AND ?2 > 0";

pub(super) fn resolve(
    tx: &Tx<'_>,
    command: &Command,
    token: FencingToken,
    outcome: Resolution,
    rail_reference: Option<&str>,
    by_hand: Option<&ByHand>,
) -> rusqlite::Result<Decision<StepOutcome>> {
    let step = command.step();
    let Some(account_id) = rows::account_of(tx, &command.payout_id)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    // First the account's row lock; what follows sees all that the previous holder did.
    let advanced = tx.fencing.is_enforced() && fence::advance(tx, &account_id, token)?;
    let Some(now) = payout(tx.db, &command.payout_id)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    if fence::did(tx, &now.payout_id, step, token)? {
        return Ok(Decision::Rollback(StepOutcome::Replayed(Box::new(now))));
    }
    if tx.fencing.is_enforced() {
        if !advanced {
            return refuse(fence::not_advanced(tx, &account_id, token)?);
        }
        if crate::transition(step, Some(now.state)).is_none() {
            return refuse(Refusal::IllegalTransition {
                from: now.state,
                to: step.to(),
            });
        }
    }
    let evidence = rail_view::evidence(tx.db, &now.payout_id)?;
    if let Some(refusal) = against(&evidence, outcome, rail_reference, by_hand) {
        return refuse(refusal);
    }
    let (reference, failure) = match outcome {
        Resolution::Posted => (
            rail_reference.or_else(|| evidence.acked_reference(None).flatten()),
            None,
        ),
        Resolution::Failed => (None, Some(failure_reason(&evidence, by_hand))),
    };
    let statement = match tx.fencing {
        crate::Fencing::Enforced => FENCED,
        #[cfg(feature = "lab")]
        crate::Fencing::Off => UNFENCED,
    };
    let changed = tx.db.prepare_cached(statement)?.execute(params![
        now.payout_id,
        signed(token.get()),
        tx.now_ms,
        step.to().as_str(),
        reference,
        failure
    ])?;
    exactly_one(changed)?;
    if outcome == Resolution::Posted {
        ledger::pay(tx, &now, token)?;
    }
    let mut detail = serde_json::json!({ "evidence": evidence.summary() });
    if let Some(reference) = reference {
        detail["rail_reference"] = reference.into();
    }
    if let Some(hand) = by_hand {
        detail["by_hand"] = true.into();
        detail["reason"] = hand.reason.as_str().into();
    }
    record(
        tx,
        &Done {
            step,
            payout_id: &now.payout_id,
            account_id: &now.account_id,
            from: Some(now.state),
            token: Some(token.get()),
            actor: by_hand.map_or_else(|| named(command.actor.as_deref()), |hand| &hand.operator),
            detail: Some(detail.to_string()),
        },
    )?;
    Ok(Decision::Commit(StepOutcome::Done(Box::new(payout_again(
        tx,
        &now.payout_id,
    )?))))
}

/// What the evidence says against it: the reconciler needs it on his side, a human only not against him.
fn against(
    evidence: &Evidence,
    outcome: Resolution,
    rail_reference: Option<&str>,
    by_hand: Option<&ByHand>,
) -> Option<Refusal> {
    let (allowed, needed) = match (by_hand, outcome) {
        (None, Resolution::Posted) => (evidence.supports_resolution(outcome, rail_reference), "ACKED"),
        (None, Resolution::Failed) => (
            evidence.supports_resolution(outcome, rail_reference),
            "DECLINED or NOT_RECEIVED",
        ),
        (Some(_), _) => (
            !evidence.contradicts(outcome, rail_reference),
            "nothing that contradicts what the operator says",
        ),
    };
    (!allowed).then(|| Refusal::EvidenceMissing {
        needed,
        found: evidence.summary(),
    })
}

fn failure_reason(evidence: &Evidence, by_hand: Option<&ByHand>) -> String {
    by_hand
        .map(|hand| hand.reason.as_str())
        .or_else(|| evidence.failure_reason())
        .unwrap_or("NOT_RECEIVED")
        .to_owned()
}
