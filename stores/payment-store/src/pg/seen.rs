//! The first flight of a fenced verb: the account's row lock, the payout's, and then, in later statements, whatever must
//! see what the previous holder did (C1.6).

use super::rows::{PAYOUT_COLUMNS, odd, payout, signed, unsigned};
use crate::decide::{Mark, Recorded, Seen};
use crate::{Evidence, RailOutcome, Step, Submission};
use lock_api::FencingToken;
use pg_kit::{Param, Stopped, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Locks the account until the end of the transaction. The payout's account never changes, so it may be read before.
const LOCK_ACCOUNT: &str = "SELECT fence, barrier, balance_minor FROM account
  WHERE account_id = (SELECT account_id FROM payout WHERE payout_id = $1) FOR NO KEY UPDATE";

/// What the history says of a token, the holds of the account, and the instant that everything is recorded with.
const FACTS: &str = "SELECT
    EXISTS (SELECT 1 FROM payout_transition WHERE token = $2 AND payout_id = $1 AND step = $3),
    EXISTS (SELECT 1 FROM payout_transition WHERE token = $2 AND payout_id = $1),
    EXISTS (SELECT 1 FROM payout_transition t JOIN payout q ON q.payout_id = t.payout_id
             WHERE t.token = $2 AND q.account_id = p.account_id),
    (SELECT coalesce(sum(q.amount_minor), 0)::bigint FROM payout q
      WHERE q.account_id = p.account_id AND q.state IN ('CLAIMED', 'RAIL_AMBIGUOUS')),
    pay_now_ms()
  FROM payout p WHERE p.payout_id = $1";

/// The rail proxy's rows, which this role can only read.
const EVIDENCE: &str = "SELECT outcome, rail_reference, decline_reason FROM rail_submission
  WHERE payout_id = $1 ORDER BY submission_id";

/// What was seen, and when, by the database's clock.
pub(super) struct SeenAt {
    pub(super) seen: Seen,
    pub(super) now_ms: i64,
}

/// Sends it; none where there is no such payout.
pub(super) async fn seen(
    transaction: Transaction,
    payout_id: &str,
    step: Step,
    token: FencingToken,
) -> Result<(Transaction, Option<SeenAt>), Stopped> {
    let (step, token) = (step.as_str(), signed(token.get()));
    let id: [Param<'_>; 1] = [(&payout_id, Type::TEXT)];
    let (transaction, answers) = transaction
        .flight(&[
            (LOCK_ACCOUNT, &id),
            (
                &format!("SELECT {PAYOUT_COLUMNS} FROM payout WHERE payout_id = $1 FOR NO KEY UPDATE"),
                &id,
            ),
            (
                FACTS,
                &[(&payout_id, Type::TEXT), (&token, Type::INT8), (&step, Type::TEXT)],
            ),
            (EVIDENCE, &id),
        ])
        .await?;
    let [account, found, facts, evidence] = answers.as_slice() else {
        return Err(odd("a payout").into());
    };
    let (Some(account), Some(found)) = (account.first(), found.first()) else {
        return Ok((transaction, None));
    };
    let facts = facts.first().ok_or_else(|| odd("a payout's history"))?;
    let (balance_minor, held_minor): (i64, i64) = (account.get(2), facts.get(3));
    let seen = Seen {
        mark: Mark {
            fence: unsigned(account.get(0)),
            barrier: unsigned(account.get(1)),
        },
        payout: payout(found)?,
        recorded: Recorded {
            step: facts.get(0),
            payout: facts.get(1),
            account: facts.get(2),
        },
        available_minor: balance_minor.saturating_sub(held_minor),
        evidence: Evidence(evidence.iter().map(submission).collect()),
    };
    let now_ms = facts.get(4);
    Ok((transaction, Some(SeenAt { seen, now_ms })))
}

fn submission(row: &Row) -> Submission {
    Submission {
        // A word that this version does not know proves nothing: it reads like an intent without outcome.
        outcome: row.get::<_, Option<&str>>(0).and_then(RailOutcome::parse),
        rail_reference: row.get(1),
        decline_reason: row.get(2),
    }
}
