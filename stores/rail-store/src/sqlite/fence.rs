//! R6 and R7: barriers raised by a new holder or an operator (C1.6).

use super::payout_view::payout;
use super::{Tx, epoch, high_water, rows};
use crate::decide::fence as decide;
use crate::payout::Known;
use crate::{AccountFence, FenceOutcome, FenceRequest};
use lock_api::FencingToken;

/// Raises the account's mark to one below the token, then reads the payout's submission in the same transaction: from
/// then on no older holder's late submit can slip in.
pub(super) fn submission(tx: &Tx<'_>, request: &FenceRequest) -> rusqlite::Result<FenceOutcome> {
    let existing = rows::of_payout(tx.db, &request.payout_id)?;
    if !tx.fencing.is_enforced() {
        // Only reads, and takes no look at the payout: the account is known from the submission alone.
        let highest_token = match &existing {
            Some(existing) => high_water::read(tx.db, &existing.account_id)?.highest_token,
            None => 0,
        };
        return Ok(FenceOutcome::Fenced {
            submission: existing.map(Box::new),
            highest_token,
        });
    }
    let payout = match (&existing, payout(tx.db, &request.payout_id)?) {
        (_, Known::Payout(payout)) => Some(payout),
        (Some(_), _) => None,
        (None, Known::Missing) => return Ok(FenceOutcome::PayoutNotFound),
        (None, Known::Nothing) => return Ok(FenceOutcome::PayoutsUnknown),
    };
    let account_id = match (&existing, &payout) {
        (Some(existing), _) => existing.account_id.clone(),
        (None, Some(payout)) => payout.account_id.clone(),
        (None, None) => return Ok(FenceOutcome::PayoutNotFound),
    };
    let mark = match high_water::raise_below(tx.db, &account_id, request.token, tx.now)? {
        Ok(mark) => mark,
        Err(refused) => return Ok(FenceOutcome::FencedOut(refused)),
    };
    // Read after the mark's lock was taken, so that it sees what the previous holder committed.
    let mut submission = rows::of_payout(tx.db, &request.payout_id)?;
    // What may have been paid is not forbidden before the rail was asked about it (case P35).
    if let (None, true, Some(payout)) = (&submission, request.forbid, payout)
        && epoch::unasked(tx.db, &request.payout_id)?.is_none()
    {
        let mut forbidden = decide::forbidden(request, &payout, tx.now);
        forbidden.seq = rows::insert(tx.db, &forbidden)?;
        submission = Some(forbidden);
    }
    Ok(FenceOutcome::Fenced {
        submission: submission.map(Box::new),
        highest_token: mark.highest_token,
    })
}

/// Raises an account's mark to one below the token. Whether the account exists is not for this point to know.
pub(super) fn account(tx: &Tx<'_>, account_id: &str, token: FencingToken) -> rusqlite::Result<AccountFence> {
    if !tx.fencing.is_enforced() {
        return high_water::read(tx.db, account_id).map(AccountFence::Fenced);
    }
    Ok(match high_water::raise_below(tx.db, account_id, token, tx.now)? {
        Ok(mark) => AccountFence::Fenced(mark),
        Err(refused) => AccountFence::FencedOut(refused),
    })
}
