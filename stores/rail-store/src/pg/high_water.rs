//! The account's mark at the rail: the fenced statement of point (c) (C1.5, FR-16). Written where an intent is inserted
//! and where a fence is raised, nowhere else.

use super::rows::{get, natural, nth};
use crate::HighWater;
use lock_api::{StoreError, UnixMillis};
use pg_kit::{Param, Transactions};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Raises the mark of the account `$1` to `$2` at the instant `$3` where it is lower; answers a row where it rose. Takes
/// the mark's row lock whether it rises or not: whatever must see the previous holder's work is a later statement.
pub(super) const RISE: &str =
    "INSERT INTO rail_high_water AS mark (account_id, highest_token, updated_at) VALUES ($1, $2, $3)
     ON CONFLICT (account_id) DO UPDATE SET highest_token = excluded.highest_token, updated_at = excluded.updated_at
      WHERE mark.highest_token < excluded.highest_token
     RETURNING highest_token";

/// The same for a submission of the payout `$4`, unless this token's is there already: it stays there, so that a replay is
/// one whatever the mark says, and repeats of one call do not queue for the lock.
pub(super) const RISE_TO_SUBMIT: &str =
    "INSERT INTO rail_high_water AS mark (account_id, highest_token, updated_at) SELECT $1, $2, $3
      WHERE NOT EXISTS (SELECT 1 FROM rail_submission WHERE payout_id = $4 AND token = $2)
     ON CONFLICT (account_id) DO UPDATE SET highest_token = excluded.highest_token, updated_at = excluded.updated_at
      WHERE mark.highest_token < excluded.highest_token
     RETURNING highest_token";

/// The same for the account of the payout `$1`, which never changes; nothing where nobody knows the payout.
pub(super) const RISE_OF_PAYOUT: &str = "INSERT INTO rail_high_water AS mark (account_id, highest_token, updated_at)
     SELECT account_id, $2, $3 FROM (
         SELECT coalesce((SELECT account_id FROM rail_submission WHERE payout_id = $1 ORDER BY seq LIMIT 1),
                         (SELECT account_id FROM payout WHERE payout_id = $1)) AS account_id) AS known
      WHERE account_id IS NOT NULL AND $2 > 0
     ON CONFLICT (account_id) DO UPDATE SET highest_token = excluded.highest_token, updated_at = excluded.updated_at
      WHERE mark.highest_token < excluded.highest_token
     RETURNING highest_token";

/// The mark of the account `$1`.
pub(super) const MARK: &str = "SELECT highest_token, updated_at FROM rail_high_water WHERE account_id = $1";

/// The mark of the account of the payout `$1`.
pub(super) const MARK_OF_PAYOUT: &str = "SELECT highest_token, updated_at FROM rail_high_water
     WHERE account_id = coalesce((SELECT account_id FROM rail_submission WHERE payout_id = $1 ORDER BY seq LIMIT 1),
                                 (SELECT account_id FROM payout WHERE payout_id = $1))";

/// Whether a submission from the account `$1` under the token `$2` is recorded.
pub(super) const TOKEN_USED: &str =
    "SELECT EXISTS (SELECT 1 FROM rail_submission WHERE account_id = $1 AND token = $2)";

/// The mark that the `n`th statement of a flight answered.
pub(super) fn mark(answers: &[Vec<Row>], n: usize) -> Result<HighWater, StoreError> {
    let Some(row) = nth(answers, n)?.first() else {
        return Ok(HighWater {
            highest_token: 0,
            updated_at: None,
        });
    };
    Ok(HighWater {
        highest_token: natural(row, 0)?,
        updated_at: Some(UnixMillis(get(row, 1)?)),
    })
}

pub(super) async fn read(
    transactions: &Transactions,
    account_id: &str,
    within: Duration,
) -> Result<HighWater, StoreError> {
    let params: [Param<'_>; 1] = [(&account_id, Type::TEXT)];
    mark(&transactions.read(within, &[(MARK, &params)]).await?, 0)
}
