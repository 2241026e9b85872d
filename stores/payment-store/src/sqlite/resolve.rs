//! P8, the resolution: what was ambiguous becomes POSTED or FAILED, by the evidence or by hand.

use super::rows::{exactly_one, signed};
use super::seen::{advance, seen};
use super::{Tx, done, ledger, refuse};
use crate::decide::{self, Verdict};
use crate::{ByHand, Command, Refusal, Resolution, StepOutcome};
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
    let Some(seen) = seen(tx, &command.payout_id, step, token)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    match decide::resolve(&seen, tx.fencing, token, outcome, rail_reference, by_hand) {
        Verdict::Do => {}
        Verdict::Replay => return Ok(Decision::Rollback(StepOutcome::Replayed(Box::new(seen.payout)))),
        Verdict::Refuse(refusal) => return refuse(refusal),
    }
    let statement = match tx.fencing {
        crate::Fencing::Enforced => {
            advance(tx, &seen.payout.account_id, token)?;
            FENCED
        }
        #[cfg(feature = "lab")]
        crate::Fencing::Off => UNFENCED,
    };
    let (reference, failure) = decide::resolution(&seen.evidence, outcome, rail_reference, by_hand);
    let changed = tx.db.prepare_cached(statement)?.execute(params![
        seen.payout.payout_id,
        signed(token.get()),
        tx.now_ms,
        step.to().as_str(),
        reference,
        failure
    ])?;
    exactly_one(changed)?;
    if outcome == Resolution::Posted {
        ledger::pay(tx, &seen.payout, token)?;
    }
    done(tx, command, &seen)
}
