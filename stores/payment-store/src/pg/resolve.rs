//! P8, the resolution: what was ambiguous becomes POSTED or FAILED, by the evidence or by hand.

use super::record::{self, Writes};
use super::rows::{PAYOUT_COLUMNS, signed};
use super::seen::seen;
use super::{At, ledger, refuse, replay};
use crate::decide::{self, Verdict};
use crate::{ByHand, Command, Fencing, Refusal, Resolution, StepOutcome};
use host_kit::fault_point;
use lock_api::FencingToken;
use pg_kit::{Statement, Stopped, Transaction};
use tokio_postgres::types::Type;

/// The fenced write.
const FENCED: &str = "UPDATE payout SET state = $4, rail_reference = coalesce($5, rail_reference), failure_reason = $6,
    version = version + 1, updated_at = $3
  WHERE payout_id = $1 AND state = 'RAIL_AMBIGUOUS'
    AND EXISTS (SELECT 1 FROM account a WHERE a.account_id = payout.account_id AND a.fence = $2)";

/// The write of a service that trusts its caller.
#[cfg(feature = "lab")]
const UNFENCED: &str =
    "UPDATE payout SET state = $4, rail_reference = coalesce($5, rail_reference), failure_reason = $6,
    version = version + 1, updated_at = $3
  WHERE payout_id = $1 AND $2 > 0";

pub(super) async fn resolve(
    transaction: Transaction,
    at: At<'_>,
    command: &Command,
    token: FencingToken,
    outcome: Resolution,
    rail_reference: Option<&str>,
    by_hand: Option<&ByHand>,
) -> Result<StepOutcome, Stopped> {
    let step = command.step();
    let (transaction, found) = seen(transaction, &command.payout_id, step, token).await?;
    let Some(found) = found else {
        return refuse(transaction, Refusal::PayoutNotFound).await;
    };
    match decide::resolve(&found.seen, at.fencing, token, outcome, rail_reference, by_hand) {
        Verdict::Do => {}
        Verdict::Replay => return replay(transaction, found.seen.payout).await,
        Verdict::Refuse(refusal) => return refuse(transaction, refusal).await,
    }
    let statement = match at.fencing {
        Fencing::Enforced => FENCED,
        #[cfg(feature = "lab")]
        Fencing::Off => UNFENCED,
    };
    let (reference, failure) = decide::resolution(&found.seen.evidence, outcome, rail_reference, by_hand);
    let payment = ledger::Payment::new(&found.seen.payout, token, found.now_ms);
    let paid = payment.paid();
    let paid = paid.statements();
    let then: &[Statement<'_>] = match outcome {
        Resolution::Posted => &paid,
        Resolution::Failed => &[],
    };
    fault_point!(at.faults, "payment_resource.before_resolve_commit");
    record::step(
        transaction,
        command,
        &found,
        Writes {
            advances: at.fencing.is_enforced(),
            payout: (
                &format!("{statement} RETURNING {PAYOUT_COLUMNS}"),
                &[
                    (&command.payout_id, Type::TEXT),
                    (&signed(token.get()), Type::INT8),
                    (&found.now_ms, Type::INT8),
                    (&step.to().as_str(), Type::TEXT),
                    (&reference, Type::TEXT),
                    (&failure, Type::TEXT),
                ],
            ),
            then,
        },
    )
    .await
}
