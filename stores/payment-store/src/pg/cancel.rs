//! P9, the cancellation: unfenced by design, because it carries no holder's decision. A payout that anybody has claimed
//! cannot be cancelled; the predicate on PENDING, under the payout's row lock, is the guard.

use super::record::{self, Writes};
use super::rows::{PAYOUT_COLUMNS, odd, payout};
use super::seen::SeenAt;
use super::{At, refuse};
use crate::decide::{Mark, Recorded, Seen};
use crate::{Command, Evidence, PayoutState, Refusal, Step, StepOutcome};
use host_kit::fault_point;
use pg_kit::{Stopped, Transaction};
use tokio_postgres::types::Type;

const CANCEL: &str =
    "UPDATE payout SET state = 'FAILED', failure_reason = 'CANCELLED', version = version + 1, updated_at = $2
  WHERE payout_id = $1 AND state = 'PENDING'";

pub(super) async fn cancel(transaction: Transaction, at: At<'_>, command: &Command) -> Result<StepOutcome, Stopped> {
    let (transaction, answers) = transaction
        .flight(&[
            (
                &format!("SELECT {PAYOUT_COLUMNS} FROM payout WHERE payout_id = $1 FOR NO KEY UPDATE"),
                &[(&command.payout_id, Type::TEXT)],
            ),
            ("SELECT pay_now_ms()", &[]),
        ])
        .await?;
    let [found, now] = answers.as_slice() else {
        return Err(odd("a payout").into());
    };
    let Some(found) = found.first() else {
        return refuse(transaction, Refusal::PayoutNotFound).await;
    };
    let found = payout(found)?;
    let now_ms: i64 = now.first().ok_or_else(|| odd("the time"))?.get(0);
    if found.state != PayoutState::Pending {
        return refuse(
            transaction,
            Refusal::IllegalTransition {
                from: found.state,
                to: Step::Cancel.to(),
            },
        )
        .await;
    }
    fault_point!(at.faults, "payment_resource.before_cancel_commit");
    // No token, so nothing of the account was looked at.
    let seen = Seen {
        mark: Mark { fence: 0, barrier: 0 },
        payout: found,
        recorded: Recorded {
            step: false,
            payout: false,
            account: false,
        },
        available_minor: 0,
        evidence: Evidence::default(),
    };
    record::step(
        transaction,
        command,
        &SeenAt { seen, now_ms },
        Writes {
            advances: false,
            payout: (
                &format!("{CANCEL} RETURNING {PAYOUT_COLUMNS}"),
                &[(&command.payout_id, Type::TEXT), (&now_ms, Type::INT8)],
            ),
            then: &[],
        },
    )
    .await
}
