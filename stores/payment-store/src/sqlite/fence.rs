//! What a presented token T is to the account's mark m (C1.6): the predicates that the fenced statements share.
//!
//! T < m is stale. T > m may advance. T = m belongs to the one payout that is recorded under T, as a replay; for any
//! other it is spent; where nothing is recorded under T a barrier stands there, and it is stale.

use super::Tx;
use super::rows::{signed, unsigned};
use crate::{FenceReason, Payout, Refusal, Step};
use lock_api::FencingToken;
use rusqlite::{OptionalExtension, params};

/// The mark of an account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// The highest token that has written.
    pub(super) fence: u64,
    /// The highest token that was shut out by hand.
    pub(super) barrier: u64,
}

impl Mark {
    pub(super) fn out(self, reason: FenceReason, presented: FencingToken) -> Refusal {
        Refusal::FencedOut {
            reason,
            presented,
            highest: self.fence,
        }
    }
}

/// Advances the mark to T where it is lower. This statement takes the account's row lock; true when it advanced.
pub(super) fn advance(tx: &Tx<'_>, account_id: &str, token: FencingToken) -> rusqlite::Result<bool> {
    let changed = tx
        .db
        .prepare_cached("UPDATE account SET fence = ?2 WHERE account_id = ?1 AND fence < ?2")?
        .execute(params![account_id, signed(token.get())])?;
    Ok(changed == 1)
}

/// Reads the mark. On a database with row locks this is the statement that locks the account for a step that does not
/// advance it.
pub(super) fn mark(tx: &Tx<'_>, account_id: &str) -> rusqlite::Result<Mark> {
    tx.db
        .prepare_cached("SELECT fence, barrier FROM account WHERE account_id = ?1")?
        .query_row([account_id], |row| {
            Ok(Mark {
                fence: unsigned(row.get(0)?),
                barrier: unsigned(row.get(1)?),
            })
        })
}

/// Whether this very token did this very step to this payout.
pub(super) fn did(tx: &Tx<'_>, payout_id: &str, step: Step, token: FencingToken) -> rusqlite::Result<bool> {
    tx.db
        .prepare_cached("SELECT 1 FROM payout_transition WHERE token = ?1 AND payout_id = ?2 AND step = ?3")?
        .exists(params![signed(token.get()), payout_id, step.as_str()])
}

/// Why T = m does not give the step. A token of another account may be the same number (C1.7), hence the join.
pub(super) fn spent(tx: &Tx<'_>, account_id: &str, mark: Mark, token: FencingToken) -> rusqlite::Result<FenceReason> {
    if mark.barrier >= token.get() {
        return Ok(FenceReason::Stale);
    }
    let used = tx
        .db
        .prepare_cached(
            "SELECT 1 FROM payout_transition t JOIN payout p ON p.payout_id = t.payout_id
              WHERE t.token = ?1 AND p.account_id = ?2 LIMIT 1",
        )?
        .query_row(params![signed(token.get()), account_id], |_| Ok(()))
        .optional()?;
    Ok(if used.is_some() {
        FenceReason::TokenSpent
    } else {
        FenceReason::Stale
    })
}

/// Judges a step that advances the mark, when the mark did not advance: T ≤ m.
pub(super) fn not_advanced(tx: &Tx<'_>, account_id: &str, token: FencingToken) -> rusqlite::Result<Refusal> {
    let mark = mark(tx, account_id)?;
    let reason = if token.get() < mark.fence {
        FenceReason::Stale
    } else {
        spent(tx, account_id, mark, token)?
    };
    Ok(mark.out(reason, token))
}

/// Judges a step that needs `account.fence = T`, `payout.claim_token = T` and the state CLAIMED: post, fail, ambiguous.
pub(super) fn standing(
    tx: &Tx<'_>,
    mark: Mark,
    payout: &Payout,
    step: Step,
    token: FencingToken,
) -> rusqlite::Result<Option<Refusal>> {
    if token.get() < mark.fence {
        return Ok(Some(mark.out(FenceReason::Stale, token)));
    }
    if token.get() > mark.fence {
        return Ok(Some(mark.out(FenceReason::NotClaimed, token)));
    }
    if mark.barrier >= token.get() {
        return Ok(Some(mark.out(FenceReason::Stale, token)));
    }
    // Recorded under T by whatever step: T's own payout, and only its state can stand against the step.
    let own = payout.claim_token == Some(token.get()) || settled_by(tx, payout, token)?;
    if !own {
        let reason = spent(tx, &payout.account_id, mark, token)?;
        return Ok(Some(mark.out(reason, token)));
    }
    if crate::transition(step, Some(payout.state)).is_none() {
        return Ok(Some(Refusal::IllegalTransition {
            from: payout.state,
            to: step.to(),
        }));
    }
    Ok((payout.claim_token != Some(token.get())).then(|| mark.out(FenceReason::Stale, token)))
}

fn settled_by(tx: &Tx<'_>, payout: &Payout, token: FencingToken) -> rusqlite::Result<bool> {
    tx.db
        .prepare_cached("SELECT 1 FROM payout_transition WHERE token = ?1 AND payout_id = ?2")?
        .exists(params![signed(token.get()), payout.payout_id])
}
