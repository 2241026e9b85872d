//! P9, the cancellation: unfenced by design, because it carries no holder's decision. A payout that anybody has claimed
//! cannot be cancelled; the predicate on PENDING, under the payout's row lock, is the guard.

use super::rows::{Done, exactly_one, payout, payout_again, record};
use super::{Tx, refuse};
use crate::decide;
use crate::{Command, Refusal, Step, StepOutcome};
use rusqlite::params;
use sql_kit::Decision;

pub(super) fn cancel(tx: &Tx<'_>, command: &Command) -> rusqlite::Result<Decision<StepOutcome>> {
    let changed = tx
        .db
        .prepare_cached(
            "UPDATE payout SET state = 'FAILED', failure_reason = 'CANCELLED', version = version + 1, updated_at = ?2
              WHERE payout_id = ?1 AND state = 'PENDING'",
        )?
        .execute(params![command.payout_id, tx.now_ms])?;
    let Some(now) = payout(tx.db, &command.payout_id)? else {
        return refuse(Refusal::PayoutNotFound);
    };
    if changed == 0 {
        return refuse(Refusal::IllegalTransition {
            from: now.state,
            to: Step::Cancel.to(),
        });
    }
    exactly_one(changed)?;
    record(
        tx,
        &Done {
            step: Step::Cancel,
            payout_id: &now.payout_id,
            account_id: &now.account_id,
            from: Some(crate::PayoutState::Pending),
            token: None,
            actor: decide::actor(command),
            detail: decide::detail(command, &crate::Evidence::default()),
        },
    )?;
    Ok(Decision::Commit(StepOutcome::Done(Box::new(payout_again(
        tx,
        &now.payout_id,
    )?))))
}
