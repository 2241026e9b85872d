//! Escalation: a flag on payouts that have been ambiguous for longer than the SLA. It changes no state; look-ups
//! go on, and only P8 ends the ambiguity. Several replicas do it at once: each takes what no other has in hand.

use super::record::TURNSTILE;
use super::rows::odd;
use super::{At, undone};
use host_kit::fault_point;
use pg_kit::{Stopped, Transaction};
use std::time::Duration;
use tokio_postgres::types::Type;

/// The time is asked for once, so that the rest goes along the index.
const DUE: &str = "SELECT payout_id, account_id FROM payout
  WHERE state = 'RAIL_AMBIGUOUS' AND escalated_at IS NULL AND ambiguous_since <= (SELECT pay_now_ms()) - $1
  ORDER BY ambiguous_since LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED";

const FLAG: &str = "UPDATE payout SET escalated_at = $2 WHERE payout_id = ANY ($1) AND state = 'RAIL_AMBIGUOUS'";

const EVENTS: &str = "INSERT INTO payment_event (at, kind, account_id, payout_id, token, actor, reason)
  SELECT $3, 'ESCALATED', d.account_id, d.payout_id, NULL, 'payment-resource',
         'ambiguous for longer than executor.ambiguous-sla'
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS d (payout_id, account_id, n) ORDER BY d.n";

pub(super) async fn escalate(
    transaction: Transaction,
    at: At<'_>,
    sla: Duration,
    limit: u32,
) -> Result<Vec<String>, Stopped> {
    let sla_ms = i64::try_from(sla.as_millis()).unwrap_or(i64::MAX / 2).min(i64::MAX / 2);
    let (transaction, answers) = transaction
        .flight(&[
            (DUE, &[(&sla_ms, Type::INT8), (&i64::from(limit), Type::INT8)]),
            ("SELECT pay_now_ms()", &[]),
        ])
        .await?;
    let [due, now] = answers.as_slice() else {
        return Err(odd("what is due").into());
    };
    let now_ms: i64 = now.first().ok_or_else(|| odd("the time"))?.get(0);
    let (payouts, accounts): (Vec<String>, Vec<String>) = due.iter().map(|row| (row.get(0), row.get(1))).unzip();
    if payouts.is_empty() {
        return undone(transaction, payouts).await;
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
