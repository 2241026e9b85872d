//! P6, the failure: the hold is freed, once.

use super::rows::{Done, exactly_one, named, payout, payout_again, record, signed};
use super::{Tx, fence, rail_view, refuse, rows};
use crate::{Command, Refusal, Step, StepOutcome};
use lock_api::FencingToken;
use rusqlite::params;
use sql_kit::Decision;

/// The fenced write.
const FENCED: &str = "UPDATE payout SET state = 'FAILED', failure_reason = ?4, version = version + 1, updated_at = ?3
  WHERE payout_id = ?1 AND state = 'CLAIMED' AND claim_token = ?2
    AND EXISTS (SELECT 1 FROM account a WHERE a.account_id = payout.account_id AND a.fence = ?2 AND a.barrier < ?2)";

/// The write of a service that trusts its caller.
#[cfg(feature = "lab")]
const UNFENCED: &str = "UPDATE payout SET state = 'FAILED', failure_reason = ?4, version = version + 1, updated_at = ?3
  WHERE payout_id = ?1 AND ?2 > 0";

pub(super) fn fail(
    tx: &Tx<'_>,
    command: &Command,
    token: FencingToken,
    reason: &str,
) -> rusqlite::Result<Decision<StepOutcome>> {
    let Some(account_id) = rows::account_of(tx, &command.payout_id)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    let mark = fence::mark(tx, &account_id)?;
    let Some(now) = payout(tx.db, &command.payout_id)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    if fence::did(tx, &now.payout_id, Step::Fail, token)? {
        return Ok(Decision::Rollback(StepOutcome::Replayed(Box::new(now))));
    }
    if tx.fencing.is_enforced()
        && let Some(refusal) = fence::standing(tx, mark, &now, Step::Fail, token)?
    {
        return refuse(refusal);
    }
    let evidence = rail_view::evidence(tx.db, &now.payout_id)?;
    if !evidence.supports_fail() {
        return refuse(Refusal::EvidenceMissing {
            needed: "DECLINED, NOT_RECEIVED or NOT_SENT",
            found: evidence.summary(),
        });
    }
    let statement = match tx.fencing {
        crate::Fencing::Enforced => FENCED,
        #[cfg(feature = "lab")]
        crate::Fencing::Off => UNFENCED,
    };
    let changed =
        tx.db
            .prepare_cached(statement)?
            .execute(params![now.payout_id, signed(token.get()), tx.now_ms, reason])?;
    exactly_one(changed)?;
    record(
        tx,
        &Done {
            step: Step::Fail,
            payout_id: &now.payout_id,
            account_id: &now.account_id,
            from: Some(now.state),
            token: Some(token.get()),
            actor: named(command.actor.as_deref()),
            detail: Some(serde_json::json!({ "reason": reason, "evidence": evidence.summary() }).to_string()),
        },
    )?;
    Ok(Decision::Commit(StepOutcome::Done(Box::new(payout_again(
        tx,
        &now.payout_id,
    )?))))
}
