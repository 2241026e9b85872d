//! What is looked at from time to time rather than at each step.

use super::At;
use super::rows::{get, natural, nth, one};
use super::writes::Writes;
use crate::Gauges;
use crate::decide::{Raise, late_ack, late_decline};
use lock_api::{StoreError, UnixMillis};
use pg_kit::{Stopped, Transaction, Transactions};
use std::time::Duration;

/// Payouts that are FAILED although a submission of theirs is ACKED, and for which nobody has been called yet. The share
/// lock under which evidence is recorded leaves no moment in which both can happen unseen; a hand in the database does.
/// Of the youngest FAILED payouts alone: this is looked at every few seconds, and FAILED ones grow for ever.
pub(super) const SETTLED_AGAINST_THE_RAIL: &str = "SELECT s.payout_id, s.rail_reference
       FROM (SELECT payout_id FROM payout WHERE state = 'FAILED' ORDER BY seq DESC LIMIT 5000) AS p
       JOIN rail_submission AS s ON s.payout_id = p.payout_id AND s.outcome = 'ACKED'
      WHERE NOT EXISTS (SELECT 1 FROM rail_exception AS e
                         WHERE e.payout_id = s.payout_id AND e.kind = 'LATE_ACK_AFTER_FAILED')
      LIMIT 100";

/// Payouts that are POSTED although their submission was declined, likewise.
pub(super) const POSTED_AGAINST_THE_RAIL: &str = "SELECT s.payout_id, s.outcome
       FROM (SELECT payout_id, outcome FROM rail_submission WHERE outcome = 'DECLINED'
              ORDER BY outcome DESC, seq DESC LIMIT 5000) AS s
       JOIN payout AS p ON p.payout_id = s.payout_id AND p.state = 'POSTED'
      WHERE NOT EXISTS (SELECT 1 FROM rail_submission AS o WHERE o.payout_id = s.payout_id AND o.outcome = 'ACKED')
        AND NOT EXISTS (SELECT 1 FROM rail_exception AS e
                         WHERE e.payout_id = s.payout_id AND e.kind = 'LATE_DECLINE_AFTER_POSTED')
      LIMIT 100";

/// Since when the oldest submission without a known outcome has been so. A payout that a human settled leaves its
/// submission as it was: it is nobody's worry any more.
pub(super) const AMBIGUOUS_SINCE: &str = "SELECT min(at) FROM (
         SELECT payout_id, intent_at AS at FROM rail_submission WHERE outcome IS NULL
         UNION ALL
         SELECT payout_id, outcome_at FROM rail_submission WHERE outcome = 'TIMEOUT') AS s
      WHERE NOT EXISTS (SELECT 1 FROM payout AS p
                         WHERE p.payout_id = s.payout_id AND p.state IN ('POSTED', 'FAILED'))";

pub(super) const EXCEPTIONS_OPEN: &str = "SELECT count(*) FROM rail_exception WHERE closed_by IS NULL";

/// The ids of payouts settled against the rail with what is to be said of each, and what the metrics show.
pub(super) async fn look(
    transactions: &Transactions,
    within: Duration,
) -> Result<(Vec<(String, Raise)>, Gauges), StoreError> {
    let answers = transactions
        .read(
            within,
            &[
                (SETTLED_AGAINST_THE_RAIL, &[]),
                (AMBIGUOUS_SINCE, &[]),
                (EXCEPTIONS_OPEN, &[]),
                (POSTED_AGAINST_THE_RAIL, &[]),
            ],
        )
        .await?;
    let failed = nth(&answers, 0)?
        .iter()
        .map(|row| Ok((get(row, 0)?, late_ack(&get::<String>(row, 1)?))));
    let posted = nth(&answers, 3)?
        .iter()
        .map(|row| Ok((get(row, 0)?, late_decline(&get::<String>(row, 1)?))));
    let found = failed.chain(posted).collect::<Result<_, StoreError>>()?;
    let gauges = Gauges {
        ambiguous_since: get::<Option<i64>>(one(&answers, 1)?, 0)?.map(UnixMillis),
        exceptions_open: natural(one(&answers, 2)?, 0)?,
    };
    Ok((found, gauges))
}

pub(super) async fn raise(tx: Transaction, at: At, found: &[(String, Raise)]) -> Result<(), Stopped> {
    let mut writes = Writes::default();
    for (payout_id, raise) in found {
        writes.raise(payout_id, raise, at.now);
    }
    writes.commit(tx).await.map(drop)
}
