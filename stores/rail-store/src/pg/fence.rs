//! R6 and R7: barriers raised by a new holder or an operator (C1.6).

use super::At;
use super::epoch::{EPOCH, Epoch};
use super::high_water::{MARK, MARK_OF_PAYOUT, RISE, RISE_OF_PAYOUT, mark};
use super::rows::{OF_PAYOUT, PAYOUT, known, signed, telling};
use super::writes::Writes;
use crate::decide::fence::forbidden;
use crate::decide::mark::barrier;
use crate::payout::Known;
use crate::{AccountFence, FenceOutcome, FenceRequest};
use lock_api::FencingToken;
use pg_kit::{Param, Stopped, Transaction};
use tokio_postgres::types::Type;

/// Raises the account's mark to one below the token, then reads the payout's submission in a later statement of the same
/// transaction: from then on no older holder's late submit can slip in. None: the database was restored, and the new epoch
/// is to be recorded first.
pub(super) async fn submission(
    tx: Transaction,
    at: At,
    request: &FenceRequest,
) -> Result<Option<FenceOutcome>, Stopped> {
    let (below, now) = (signed(request.token.get() - 1), at.now.0);
    let rise: [Param<'_>; 3] = [
        (&request.payout_id, Type::TEXT),
        (&below, Type::INT8),
        (&now, Type::INT8),
    ];
    let payout: [Param<'_>; 1] = [(&request.payout_id, Type::TEXT)];
    if !at.fencing.is_enforced() {
        // Only reads, and takes no look at the payout: the account is known from the submission alone.
        let (tx, answers) = tx.flight(&[(OF_PAYOUT, &payout), (MARK_OF_PAYOUT, &payout)]).await?;
        let submission = telling(&answers, 0)?.map(Box::new);
        let highest_token = submission
            .as_ref()
            .map_or(Ok(0), |_| mark(&answers, 1).map(|m| m.highest_token))?;
        tx.rollback().await;
        return Ok(Some(FenceOutcome::Fenced {
            submission,
            highest_token,
        }));
    }
    let (tx, answers) = tx
        .flight(&[
            (RISE_OF_PAYOUT, &rise),
            (MARK_OF_PAYOUT, &payout),
            (OF_PAYOUT, &payout),
            (PAYOUT, &payout),
            (EPOCH, &payout),
        ])
        .await?;
    let existing = telling(&answers, 2)?;
    let payout = known(&answers, 3)?;
    if existing.is_none() && !matches!(payout, Known::Payout(_)) {
        tx.rollback().await;
        return Ok(Some(FenceOutcome::PayoutNotFound));
    }
    let mark = match barrier(mark(&answers, 1)?, request.token) {
        Ok(mark) => mark,
        Err(refused) => {
            tx.rollback().await;
            return Ok(Some(FenceOutcome::FencedOut(refused)));
        }
    };
    let mut submission = existing;
    let mut writes = Writes::default();
    let mut inserted = None;
    if let (None, true, Known::Payout(payout)) = (&submission, request.forbid, &payout) {
        let epoch = Epoch::of(&answers, 4)?;
        if !epoch.stands {
            tx.rollback().await;
            return Ok(None);
        }
        // What may have been paid is not forbidden before the rail was asked about it (case D13).
        if !epoch.rail_unasked {
            let row = forbidden(request, payout, at.now);
            inserted = Some(writes.insert(&row));
            submission = Some(row);
        }
    }
    let written = writes.commit(tx).await?;
    if let (Some(place), Some(row)) = (inserted, &mut submission) {
        row.seq = written.seq(place)?;
    }
    Ok(Some(FenceOutcome::Fenced {
        submission: submission.map(Box::new),
        highest_token: mark.highest_token,
    }))
}

/// Raises an account's mark to one below the token. Whether the account exists is not for this point to know.
pub(super) async fn account(
    tx: Transaction,
    at: At,
    account_id: &str,
    token: FencingToken,
) -> Result<AccountFence, Stopped> {
    let (below, now) = (signed(token.get() - 1), at.now.0);
    let rise: [Param<'_>; 3] = [(&account_id, Type::TEXT), (&below, Type::INT8), (&now, Type::INT8)];
    let account: [Param<'_>; 1] = [(&account_id, Type::TEXT)];
    let (answers, n) = if below > 0 {
        (tx.commit(&[(RISE, &rise), (MARK, &account)]).await?, 1)
    } else {
        (tx.commit(&[(MARK, &account)]).await?, 0)
    };
    Ok(match barrier(mark(&answers, n)?, token) {
        Ok(mark) => AccountFence::Fenced(mark),
        Err(refused) => AccountFence::FencedOut(refused),
    })
}
