//! P5, the post: both ledger legs, the balance and the state, or nothing.

use super::record::{self, Writes};
use super::rows::{PAYOUT_COLUMNS, signed};
use super::seen::seen;
use super::{At, ledger, refuse, replay};
use crate::decide::{self, Verdict};
use crate::{Command, Fencing, Refusal, Step, StepOutcome};
use host_kit::fault_point;
use lock_api::FencingToken;
use pg_kit::{Stopped, Transaction};
use tokio_postgres::types::Type;

/// The fenced write.
const FENCED: &str = "UPDATE payout SET state = 'POSTED', rail_reference = $4, version = version + 1, updated_at = $3
  WHERE payout_id = $1 AND state = 'CLAIMED' AND claim_token = $2
    AND EXISTS (SELECT 1 FROM account a WHERE a.account_id = payout.account_id AND a.fence = $2 AND a.barrier < $2)";

/// The write of a service that trusts its caller.
#[cfg(feature = "lab")]
const UNFENCED: &str = "UPDATE payout SET state = 'POSTED', rail_reference = $4, version = version + 1, updated_at = $3
  WHERE payout_id = $1 AND $2 > 0";

pub(super) async fn post(
    transaction: Transaction,
    at: At<'_>,
    command: &Command,
    token: FencingToken,
    rail_reference: &str,
) -> Result<StepOutcome, Stopped> {
    let (transaction, found) = seen(transaction, &command.payout_id, Step::Post, token).await?;
    let Some(found) = found else {
        return refuse(transaction, Refusal::PayoutNotFound).await;
    };
    match decide::post(&found.seen, at.fencing, token, rail_reference) {
        Verdict::Do => {}
        Verdict::Replay => return replay(transaction, found.seen.payout).await,
        Verdict::Refuse(refusal) => return refuse(transaction, refusal).await,
    }
    let statement = match at.fencing {
        Fencing::Enforced => FENCED,
        #[cfg(feature = "lab")]
        Fencing::Off => UNFENCED,
    };
    let payment = ledger::Payment::new(&found.seen.payout, token, found.now_ms);
    let paid = payment.paid();
    fault_point!(at.faults, "payment_resource.before_post_commit");
    record::step(
        transaction,
        command,
        &found,
        Writes {
            advances: false,
            payout: (
                &format!("{statement} RETURNING {PAYOUT_COLUMNS}"),
                &[
                    (&command.payout_id, Type::TEXT),
                    (&signed(token.get()), Type::INT8),
                    (&found.now_ms, Type::INT8),
                    (&rail_reference, Type::TEXT),
                ],
            ),
            then: &paid.statements(),
        },
    )
    .await
}
