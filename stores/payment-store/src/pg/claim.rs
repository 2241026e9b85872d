//! P4, the claim: the mark goes to T and the payout to CLAIMED, or nothing happens.

use super::record::{self, Writes};
use super::rows::{PAYOUT_COLUMNS, signed};
use super::seen::seen;
use super::{At, refuse, replay};
use crate::decide::{self, Verdict};
use crate::{Command, Fencing, Refusal, Step, StepOutcome};
use host_kit::fault_point;
use lock_api::FencingToken;
use pg_kit::{Stopped, Transaction};
use tokio_postgres::types::Type;

/// The fenced write. Everything that was decided stands in its predicate once more (FR-14).
const FENCED: &str = "UPDATE payout SET state = 'CLAIMED', claim_token = $2, version = version + 1, updated_at = $3
  WHERE payout_id = $1 AND version = $4
    AND (state = 'PENDING' OR (state = 'CLAIMED' AND (claim_token IS NULL OR claim_token < $2)))
    AND EXISTS (SELECT 1 FROM account a WHERE a.account_id = payout.account_id AND a.fence = $2)";

/// The write of a service that trusts its caller.
#[cfg(feature = "lab")]
const UNFENCED: &str = "UPDATE payout SET state = 'CLAIMED', claim_token = $2, version = version + 1, updated_at = $3
  WHERE payout_id = $1 AND $4 > 0";

pub(super) async fn claim(
    transaction: Transaction,
    at: At<'_>,
    command: &Command,
    token: FencingToken,
    expected_version: Option<u64>,
) -> Result<StepOutcome, Stopped> {
    let (transaction, found) = seen(transaction, &command.payout_id, Step::Claim, token).await?;
    let Some(found) = found else {
        return refuse(transaction, Refusal::PayoutNotFound).await;
    };
    match decide::claim(&found.seen, at.fencing, token, expected_version) {
        Verdict::Do => {}
        Verdict::Replay => return replay(transaction, found.seen.payout).await,
        Verdict::Refuse(refusal) => return refuse(transaction, refusal).await,
    }
    let statement = match at.fencing {
        Fencing::Enforced => FENCED,
        #[cfg(feature = "lab")]
        Fencing::Off => UNFENCED,
    };
    fault_point!(at.faults, "payment_resource.before_claim_commit");
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
                    (&signed(found.seen.payout.version), Type::INT8),
                ],
            ),
            then: &[],
        },
    )
    .await
}
