//! R4: asynchronous acks of the rail (C3.5, C3.7).

use super::At;
use super::rows::{OF_PAYOUT_LOCKED, PAYOUT_STATE_LOCKED, SETTLED, settled, submissions_of};
use super::writes::Writes;
use crate::decide::ack::decide;
use crate::{Ack, AckOutcome};
use pg_kit::{Param, Stopped, Transaction};
use tokio_postgres::types::Type;

pub(super) async fn record(tx: Transaction, at: At, ack: &Ack) -> Result<AckOutcome, Stopped> {
    // The rail's reference for us is the payout's id (C1.2).
    let payout: [Param<'_>; 1] = [(&ack.client_reference, Type::TEXT)];
    let (tx, answers) = tx
        .flight(&[
            (PAYOUT_STATE_LOCKED, &payout),
            (OF_PAYOUT_LOCKED, &payout),
            (SETTLED, &payout),
        ])
        .await?;
    let done = decide(ack, &submissions_of(&answers, 1)?, &settled(&answers, 2)?, at.now);
    let mut writes = Writes::default();
    if let Some(changed) = &done.changed {
        writes.outcome(changed);
    }
    if let Some(raise) = &done.exception {
        writes.raise(&ack.client_reference, raise, at.now);
    }
    writes.end(tx).await?;
    Ok(done.outcome)
}
