//! P4, the claim: the mark goes to T and the payout to CLAIMED, or nothing happens.

use super::rows::{Done, exactly_one, named, payout, payout_again, record, signed};
use super::{Tx, fence, refuse, rows};
use crate::{Command, Payout, PayoutState, Refusal, Step, StepOutcome};
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
  WHERE payout_id = ?1";

pub(super) fn claim(
    tx: &Tx<'_>,
    command: &Command,
    token: FencingToken,
    expected_version: Option<u64>,
) -> rusqlite::Result<Decision<StepOutcome>> {
    let Some(account_id) = rows::account_of(tx, &command.payout_id)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    #[cfg(feature = "lab")]
    if !tx.fencing.is_enforced() {
        return trusting(tx, command, token);
    }
    // First the account's row lock; what follows sees all that the previous holder did.
    let advanced = fence::advance(tx, &account_id, token)?;
    let Some(now) = payout(tx.db, &command.payout_id)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    if !advanced {
        let mark = fence::mark(tx, &account_id)?;
        let own = mark.fence == token.get() && mark.barrier < token.get();
        return if own && fence::did(tx, &now.payout_id, Step::Claim, token)? {
            Ok(Decision::Rollback(StepOutcome::Replayed(Box::new(now))))
        } else {
            refuse(fence::not_advanced(tx, &account_id, token)?)
        };
    }
    if let Some(refusal) = against(tx, &now, token, expected_version)? {
        return refuse(refusal);
    }
    let changed = tx.db.prepare_cached(FENCED)?.execute(params![
        now.payout_id,
        signed(token.get()),
        tx.now_ms,
        signed(now.version)
    ])?;
    exactly_one(changed)?;
    done(tx, command, &now, token)
}

/// What stands against the claim, the token being above the mark.
fn against(
    tx: &Tx<'_>,
    now: &Payout,
    token: FencingToken,
    expected_version: Option<u64>,
) -> rusqlite::Result<Option<Refusal>> {
    if crate::transition(Step::Claim, Some(now.state)).is_none() {
        return Ok(Some(Refusal::IllegalTransition {
            from: now.state,
            to: PayoutState::Claimed,
        }));
    }
    // A claim above the mark is possible only where the fence was off for a while.
    if let Some(claimed) = now.claim_token.filter(|claimed| *claimed >= token.get()) {
        return Ok(Some(Refusal::FencedOut {
            reason: crate::FenceReason::Stale,
            presented: token,
            highest: claimed,
        }));
    }
    if let Some(expected) = expected_version.filter(|expected| *expected != now.version) {
        return Ok(Some(Refusal::VersionConflict {
            expected,
            actual: now.version,
        }));
    }
    // A claim taken over has its hold already.
    if now.state == PayoutState::Pending {
        let available_minor = available(tx, &now.account_id)?;
        if available_minor < now.amount_minor {
            return Ok(Some(Refusal::InsufficientFunds {
                available_minor,
                amount_minor: now.amount_minor,
            }));
        }
    }
    Ok(None)
}

/// Balance less all holds.
fn available(tx: &Tx<'_>, account_id: &str) -> rusqlite::Result<i64> {
    tx.db
        .prepare_cached(
            "SELECT a.balance_minor - (SELECT coalesce(sum(p.amount_minor), 0) FROM payout p
                WHERE p.account_id = a.account_id AND p.state IN ('CLAIMED', 'RAIL_AMBIGUOUS'))
               FROM account a WHERE a.account_id = ?1",
        )?
        .query_row([account_id], |row| row.get(0))
}

#[cfg(feature = "lab")]
fn trusting(tx: &Tx<'_>, command: &Command, token: FencingToken) -> rusqlite::Result<Decision<StepOutcome>> {
    let Some(now) = payout(tx.db, &command.payout_id)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    if now.state == PayoutState::Claimed && now.claim_token == Some(token.get()) {
        return Ok(Decision::Rollback(StepOutcome::Replayed(Box::new(now))));
    }
    let changed = tx
        .db
        .prepare_cached(UNFENCED)?
        .execute(params![now.payout_id, signed(token.get()), tx.now_ms])?;
    exactly_one(changed)?;
    done(tx, command, &now, token)
}

fn done(
    tx: &Tx<'_>,
    command: &Command,
    before: &Payout,
    token: FencingToken,
) -> rusqlite::Result<Decision<StepOutcome>> {
    record(
        tx,
        &Done {
            step: Step::Claim,
            payout_id: &before.payout_id,
            account_id: &before.account_id,
            from: Some(before.state),
            token: Some(token.get()),
            actor: named(command.actor.as_deref()),
            detail: None,
        },
    )?;
    Ok(Decision::Commit(StepOutcome::Done(Box::new(payout_again(
        tx,
        &before.payout_id,
    )?))))
}
