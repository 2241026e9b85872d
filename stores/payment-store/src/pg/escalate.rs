//! Escalation: a flag on payouts that have been ambiguous for longer than the SLA. It changes no state; look-ups
//! go on, and only P8 ends the ambiguity. Several replicas do it at once: each takes what no other has in hand.

use super::record::TURNSTILE;
use super::rows::odd;
use super::{At, undone};
use host_kit::fault_point;
use pg_kit::{Stopped, Transaction};
use tokio_postgres::types::Type;

const DUE: &str = "SELECT payout_id, account_id FROM payout
  WHERE state = 'RAIL_AMBIGUOUS' AND escalated_at IS NULL AND ambiguous_since <= $1
  ORDER BY ambiguous_since LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED";

/// Recorded while the database's clock was ahead (case P31). A second of it is no news.
const PUT_RIGHT: &str = "WITH now AS MATERIALIZED (SELECT pay_now_ms() AS ms)
  UPDATE payout SET ambiguous_since = least(ambiguous_since, now.ms),
         escalated_at = CASE WHEN escalated_at > now.ms THEN now.ms ELSE escalated_at END
    FROM now
   WHERE payout_id IN (SELECT payout_id FROM payout, now
                        WHERE state = 'RAIL_AMBIGUOUS' AND (ambiguous_since > now.ms + 1000 OR escalated_at > now.ms + 1000)
                          FOR NO KEY UPDATE OF payout SKIP LOCKED)
  RETURNING payout_id";

const FLAG: &str = "UPDATE payout SET escalated_at = $2 WHERE payout_id = ANY ($1) AND state = 'RAIL_AMBIGUOUS'";

const EVENTS: &str = "INSERT INTO payment_event (at, kind, account_id, payout_id, token, actor, reason)
  SELECT $3, 'ESCALATED', d.account_id, d.payout_id, NULL, 'payment-resource',
         'ambiguous for longer than executor.ambiguous-sla'
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS d (payout_id, account_id, n) ORDER BY d.n";

pub(super) async fn escalate(
    transaction: Transaction,
    at: At<'_>,
    since_max_ms: i64,
    limit: u32,
) -> Result<Vec<String>, Stopped> {
    let (transaction, answers) = transaction
        .flight(&[
            (PUT_RIGHT, &[]),
            (DUE, &[(&since_max_ms, Type::INT8), (&i64::from(limit), Type::INT8)]),
            ("SELECT pay_now_ms()", &[]),
        ])
        .await?;
    let [put_right, due, now] = answers.as_slice() else {
        return Err(odd("what is due").into());
    };
    let now_ms: i64 = now.first().ok_or_else(|| odd("the time"))?.get(0);
    let (payouts, accounts): (Vec<String>, Vec<String>) = due.iter().map(|row| (row.get(0), row.get(1))).unzip();
    if payouts.is_empty() {
        if put_right.is_empty() {
            return undone(transaction, payouts).await;
        }
        transaction.commit(&[]).await?;
        return Ok(payouts);
    }
    fault_point!(at.faults, "payment_resource.before_escalate_commit");
    transaction
        .commit(&[
            TURNSTILE,
            (FLAG, &[(&payouts, Type::TEXT_ARRAY), (&now_ms, Type::INT8)]),
            (
                EVENTS,
                &[
                    (&payouts, Type::TEXT_ARRAY),
                    (&accounts, Type::TEXT_ARRAY),
                    (&now_ms, Type::INT8),
                ],
            ),
        ])
        .await?;
    Ok(payouts)
}
