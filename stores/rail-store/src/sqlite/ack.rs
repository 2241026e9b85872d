//! R4: asynchronous acks of the rail (C3.5, C3.7).

use super::{Tx, payout_view, rows};
use crate::decide::ack::decide;
use crate::{Ack, AckOutcome};

pub(super) fn record(tx: &Tx<'_>, ack: &Ack) -> rusqlite::Result<AckOutcome> {
    // The rail's reference for us is the payout's id (C1.2).
    let payout = payout_view::settled(tx.db, &ack.client_reference)?;
    let submissions = rows::all_of_payout(tx.db, &ack.client_reference)?;
    let done = decide(ack, &submissions, &payout, tx.now);
    if let Some(changed) = &done.changed {
        rows::write_outcome(tx.db, changed)?;
    }
    if let Some(raise) = &done.exception {
        rows::raise(tx, &ack.client_reference, raise)?;
    }
    Ok(done.outcome)
}
