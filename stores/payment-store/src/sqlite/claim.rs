//! P4, the claim: the mark goes to T and the payout to CLAIMED, or nothing happens.

use super::rows::{exactly_one, signed};
use super::seen::{advance, seen};
use super::{Tx, done, refuse};
use crate::decide::{self, Verdict};
use crate::{Command, Refusal, Step, StepOutcome};
use lock_api::FencingToken;
use rusqlite::params;
use sql_kit::Decision;

/// The fenced write. Everything that was decided stands in its predicate once more (FR-14).
const FENCED: &str = "UPDATE payout SET state = 'CLAIMED', claim_token = ?2, version = version + 1, updated_at = ?3
  WHERE payout_id = ?1 AND version = ?4
    AND (state = 'PENDING' OR (state = 'CLAIMED' AND (claim_token IS NULL OR claim_token < ?2)))
    AND EXISTS (SELECT 1 FROM account a WHERE a.account_id = payout.account_id AND a.fence = ?2)";

/// The write of a service that trusts its caller.
#[cfg(feature = "lab")]
const UNFENCED: &str = "UPDATE payout SET state = 'CLAIMED', claim_token = ?2, version = version + 1, updated_at = ?3
  WHERE payout_id = ?1 AND ?4 > 0";

pub(super) fn claim(
    tx: &Tx<'_>,
    command: &Command,
    token: FencingToken,
    expected_version: Option<u64>,
) -> rusqlite::Result<Decision<StepOutcome>> {
    let Some(seen) = seen(tx, &command.payout_id, Step::Claim, token)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    match decide::claim(&seen, tx.fencing, token, expected_version) {
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
    let changed = tx.db.prepare_cached(statement)?.execute(params![
        seen.payout.payout_id,
        signed(token.get()),
        tx.now_ms,
        signed(seen.payout.version)
    ])?;
    exactly_one(changed)?;
    done(tx, command, &seen)
}
