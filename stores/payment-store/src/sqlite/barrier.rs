//! P10, the account fence: the mark goes to T − 1 and a barrier stands there, so that a revoked holder is refused from
//! now on although nobody has acquired yet (FR-08), even where his own token is exactly T − 1 and had claimed something.

use super::Tx;
use super::rows::{Event, event, signed};
use super::seen::{mark, recorded_on_account};
use crate::decide::{self, named};
use crate::{FenceOutcome, RaiseFence};
use rusqlite::{OptionalExtension, params};
use sql_kit::Decision;

pub(super) fn raise(tx: &Tx<'_>, request: &RaiseFence) -> rusqlite::Result<Decision<FenceOutcome>> {
    let token = signed(request.token.get());
    let known: Option<i64> = tx
        .db
        .prepare_cached("SELECT fence FROM account WHERE account_id = ?1")?
        .query_row([&request.account_id], |row| row.get(0))
        .optional()?;
    if known.is_none() {
        return Ok(Decision::Rollback(FenceOutcome::AccountNotFound));
    }
    // Switched off, the point has no mark to raise: it answers what stands there.
    let changed = if tx.fencing.is_enforced() {
        tx.db
            .prepare_cached(
                "UPDATE account SET fence = max(fence, ?2 - 1), barrier = max(barrier, ?2 - 1)
                  WHERE account_id = ?1 AND fence < ?2 AND barrier < ?2 - 1",
            )?
            .execute(params![request.account_id, token])?
    } else {
        0
    };
    let mark = mark(tx, &request.account_id)?;
    if tx.fencing.is_enforced() {
        let recorded = recorded_on_account(tx, &request.account_id, token)?;
        if let Some(out) = decide::raise(mark, recorded, request.token) {
            return Ok(Decision::Rollback(out));
        }
    }
    let raised = FenceOutcome::Raised { fence: mark.fence };
    if changed == 0 {
        return Ok(Decision::Rollback(raised));
    }
    event(
        tx,
        &Event {
            kind: "FENCE_RAISED",
            account_id: Some(&request.account_id),
            payout_id: None,
            token: Some(token),
            actor: named(request.actor.as_deref()),
            reason: None,
        },
    )?;
    Ok(Decision::Commit(raised))
}
