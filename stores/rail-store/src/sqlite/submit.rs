//! R1: the fenced transaction that commits an intent (C1.6, FR-16, FR-18, FR-19).

use super::payout_view::payout;
use super::{Tx, epoch, high_water, malformed, rows};
use crate::decide::submit::{Facts, FencedFacts, decide};
use crate::{SubmitOutcome, SubmitRequest};

/// Whatever is not an intent is rolled back by the caller, the advanced mark included.
pub(super) fn submit(tx: &Tx<'_>, request: &SubmitRequest) -> rusqlite::Result<SubmitOutcome> {
    let own = rows::of_token(tx.db, &request.payout_id, request.token)?;
    let fenced = if tx.fencing.is_enforced() {
        Some(FencedFacts {
            mark: high_water::advance(tx.db, &request.account_id, request.token, tx.now)?,
            existing: rows::of_payout(tx.db, &request.payout_id)?,
            payout: payout(tx.db, &request.payout_id)?,
            rail_unasked: epoch::unasked(tx.db, &request.payout_id)?.is_some(),
        })
    } else {
        None
    };
    let facts = Facts { own, fenced };
    let mut outcome = decide(request, facts, tx.fencing, tx.now).map_err(malformed)?;
    if let SubmitOutcome::Intent(intent) = &mut outcome {
        intent.seq = rows::insert(tx.db, intent)?;
    }
    Ok(outcome)
}
