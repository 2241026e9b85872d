//! Rows as values. What the schema's checks do not admit is damage.

use crate::{Account, Payout, PayoutState, once};
use lock_api::StoreError;
use tokio_postgres::Row;

/// A number that the schema keeps non-negative.
pub(super) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Tokens, versions and sequence numbers stay below 2^53.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Rows that a statement must have answered, whatever is stored.
pub(super) fn odd(what: &str) -> StoreError {
    StoreError::Corrupt {
        detail: format!("{what}: the database answered something else than was asked"),
    }
}

pub(super) fn damaged(detail: String) -> StoreError {
    StoreError::Corrupt { detail }
}

/// The columns of an account `a`, in the order of [`account`].
pub(super) const ACCOUNT_COLUMNS: &str = "a.account_id, a.currency, a.opening_balance_minor, a.balance_minor, a.fence,
    (SELECT coalesce(sum(p.amount_minor), 0)::bigint FROM payout p
      WHERE p.account_id = a.account_id AND p.state IN ('CLAIMED', 'RAIL_AMBIGUOUS'))";

pub(super) fn account(row: &Row) -> Account {
    Account {
        account_id: row.get(0),
        currency: row.get(1),
        opening_balance_minor: row.get(2),
        balance_minor: row.get(3),
        fence: unsigned(row.get(4)),
        held_minor: row.get(5),
    }
}

/// The columns of a payout, in the order of [`payout`].
pub(super) const PAYOUT_COLUMNS: &str =
    "seq, payout_id, account_id, amount_minor, currency, creditor, reference, state,
    claim_token, rail_reference, failure_reason, created_at, updated_at, ambiguous_since, escalated_at, version";

pub(super) fn payout(row: &Row) -> Result<Payout, StoreError> {
    let (payout_id, creditor): (String, String) = (row.get(1), row.get(5));
    Ok(Payout {
        seq: unsigned(row.get(0)),
        account_id: row.get(2),
        amount_minor: row.get(3),
        currency: row.get(4),
        creditor: once::creditor(&creditor)
            .map_err(|error| damaged(format!("the creditor of payout {payout_id}: {error}")))?,
        reference: row.get(6),
        state: state(row.get(7))?,
        claim_token: row.get::<_, Option<i64>>(8).map(unsigned),
        rail_reference: row.get(9),
        failure_reason: row.get(10),
        created_at_ms: row.get(11),
        updated_at_ms: row.get(12),
        ambiguous_since_ms: row.get(13),
        escalated_at_ms: row.get(14),
        version: unsigned(row.get(15)),
        payout_id,
    })
}

pub(super) fn state(text: &str) -> Result<PayoutState, StoreError> {
    PayoutState::parse(text).ok_or_else(|| damaged(format!("{text:?} is no state")))
}
