//! What the forwarder writes: `forwarded_at` before it opens a connection, the outcome after it closed it (C1.2).

use super::At;
use super::rows::{settled, submissions, submissions_of};
use super::writes::Writes;
use crate::decide::{forward, take};
use crate::{Evidence, ForwardClaim, Source, Submission};
use pg_kit::{Param, Stopped, Transaction};
use tokio_postgres::types::Type;

/// All submissions of the payout of the submission `$1`, to be changed.
pub(super) const BESIDE: &str = submissions!(
    "WHERE payout_id = (SELECT payout_id FROM rail_submission WHERE submission_id = $1) ORDER BY seq FOR UPDATE"
);

/// Sets `forwarded_at`, once, over an intent without outcome alone.
pub(super) async fn claim(tx: Transaction, at: At, submission_id: &str) -> Result<ForwardClaim, Stopped> {
    let id: [Param<'_>; 1] = [(&submission_id, Type::TEXT)];
    let (tx, answers) = tx.flight(&[(BESIDE, &id)]).await?;
    let claim = forward::decide(submission_id, &submissions_of(&answers, 0)?, at.fencing);
    let mut writes = Writes::default();
    let ForwardClaim::Forward { .. } = claim else {
        writes.end(tx).await?;
        return Ok(claim);
    };
    let place = writes.forwarded(submission_id, at.now);
    // The row is locked, so that it cannot have changed; were it to have changed all the same, it is not sent.
    Ok(if writes.commit(tx).await?.is_done(place)? {
        claim
    } else {
        ForwardClaim::Refused { duplicate: false }
    })
}

/// Records what the forwarder learned, and answers what is recorded afterwards.
pub(super) async fn record(
    tx: Transaction,
    at: At,
    submission_id: &str,
    evidence: &Evidence,
) -> Result<Option<Submission>, Stopped> {
    let id: [Param<'_>; 1] = [(&submission_id, Type::TEXT)];
    let (tx, answers) = tx
        .flight(&[
            (
                "SELECT rail_payout_state((SELECT payout_id FROM rail_submission WHERE submission_id = $1))",
                &id,
            ),
            (submissions!("WHERE submission_id = $1 FOR UPDATE"), &id),
            (
                "SELECT state, rail_reference FROM payout
                  WHERE payout_id = (SELECT payout_id FROM rail_submission WHERE submission_id = $1)",
                &id,
            ),
        ])
        .await?;
    let payout = settled(&answers, 2)?;
    let mut submission = submissions_of(&answers, 1)?.pop();
    let mut writes = Writes::default();
    if let Some(submission) = &mut submission {
        let taken = take(submission, evidence, Source::Answer, &payout, at.now);
        if taken.changed {
            writes.outcome(submission);
        }
        if let Some(raise) = &taken.exception {
            writes.raise(&submission.payout_id, raise, at.now);
        }
    }
    writes.end(tx).await?;
    Ok(submission)
}
