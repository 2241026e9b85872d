//! P6, the failure: the hold is freed, once.

use super::rows::{exactly_one, signed};
use super::seen::seen;
use super::{Tx, done, refuse};
use crate::decide::{self, Verdict};
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
    let Some(seen) = seen(tx, &command.payout_id, Step::Fail, token)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    match decide::fail(&seen, tx.fencing, token) {
        Verdict::Do => {}
        Verdict::Replay => return Ok(Decision::Rollback(StepOutcome::Replayed(Box::new(seen.payout)))),
        Verdict::Refuse(refusal) => return refuse(refusal),
    }
    let statement = match tx.fencing {
        crate::Fencing::Enforced => FENCED,
        #[cfg(feature = "lab")]
        crate::Fencing::Off => UNFENCED,
    };
    let changed = tx.db.prepare_cached(statement)?.execute(params![
        seen.payout.payout_id,
        signed(token.get()),
        tx.now_ms,
        reason
    ])?;
    exactly_one(changed)?;
    done(tx, command, &seen)
}
