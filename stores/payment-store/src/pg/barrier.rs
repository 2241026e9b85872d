//! P10, the account fence: the mark goes to T − 1 and a barrier stands there, so that a revoked holder is refused from
//! now on although nobody has acquired yet (FR-08), even where his own token is exactly T − 1 and had claimed something.

use super::record::{EVENT, TURNSTILE};
use super::rows::{odd, signed, unsigned};
use super::{At, undone};
use crate::decide::{self, Mark, named};
use crate::{FenceOutcome, RaiseFence};
use host_kit::fault_point;
use pg_kit::{Stopped, Transaction};
use tokio_postgres::types::Type;

const RAISE: &str = "UPDATE account SET fence = greatest(fence, $2 - 1), barrier = greatest(barrier, $2 - 1)
  WHERE account_id = $1 AND fence < $2 AND barrier < $2 - 1";

pub(super) async fn raise(transaction: Transaction, at: At<'_>, request: &RaiseFence) -> Result<FenceOutcome, Stopped> {
    let token = signed(request.token.get());
    let account_id = &request.account_id;
    let (transaction, answers) = transaction
        .flight(&[
            (
                "SELECT fence, barrier FROM account WHERE account_id = $1 FOR NO KEY UPDATE",
                &[(account_id, Type::TEXT)],
            ),
            (
                "SELECT EXISTS (SELECT 1 FROM payout_transition t JOIN payout p ON p.payout_id = t.payout_id
                                 WHERE t.token = $2 AND p.account_id = $1), pay_now_ms()",
                &[(account_id, Type::TEXT), (&token, Type::INT8)],
            ),
        ])
        .await?;
    let [account, facts] = answers.as_slice() else {
        return Err(odd("an account's fence").into());
    };
    let Some(account) = account.first() else {
        return undone(transaction, FenceOutcome::AccountNotFound).await;
    };
    let facts = facts.first().ok_or_else(|| odd("an account's history"))?;
    let mark = Mark {
        fence: unsigned(account.get(0)),
        barrier: unsigned(account.get(1)),
    };
    // Switched off, the point has no mark to raise: it answers what stands there.
    if !at.fencing.is_enforced() {
        return undone(transaction, FenceOutcome::Raised { fence: mark.fence }).await;
    }
    if let Some(out) = decide::raise(mark, facts.get(0), request.token) {
        return undone(transaction, out).await;
    }
    let below = request.token.get() - 1;
    let raised = FenceOutcome::Raised {
        fence: mark.fence.max(below),
    };
    if mark.barrier >= below {
        return undone(transaction, raised).await;
    }
    fault_point!(at.faults, "payment_resource.before_fence_commit");
    transaction
        .commit(&[
            TURNSTILE,
            (RAISE, &[(account_id, Type::TEXT), (&token, Type::INT8)]),
            (
                EVENT,
                &[
                    (&facts.get::<_, i64>(1), Type::INT8),
                    (&"FENCE_RAISED", Type::TEXT),
                    (account_id, Type::TEXT),
                    (&None::<&str>, Type::TEXT),
                    (&token, Type::INT8),
                    (&named(request.actor.as_deref()), Type::TEXT),
                    (&None::<&str>, Type::TEXT),
                ],
            ),
        ])
        .await?;
    Ok(raised)
}
