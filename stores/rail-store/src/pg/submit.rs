//! R1: the fenced transaction that commits an intent (C1.6, FR-16, FR-18, FR-19).

use super::At;
use super::epoch::{EPOCH, Epoch};
use super::high_water::{MARK, RISE_TO_SUBMIT, TOKEN_USED, mark};
use super::rows::{OF_PAYOUT, OF_TOKEN, PAYOUT, get, known, nth, one, signed, telling};
use super::writes::Writes;
use crate::decide::mark::Advance;
use crate::decide::submit::{Facts, FencedFacts, decide};
use crate::{SubmitOutcome, SubmitRequest};
use lock_api::StoreError;
use pg_kit::{Param, Statement, Stopped, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The mark's row lock, then all that is decided by, in one flight; the intent and COMMIT in a second one. Whatever is
/// not an intent is rolled back, the advanced mark included. None: the database was restored, and the new epoch is to be
/// recorded first.
pub(super) async fn submit(tx: Transaction, at: At, request: &SubmitRequest) -> Result<Option<SubmitOutcome>, Stopped> {
    let (token, now) = (signed(request.token.get()), at.now.0);
    let rise: [Param<'_>; 4] = [
        (&request.account_id, Type::TEXT),
        (&token, Type::INT8),
        (&now, Type::INT8),
        (&request.payout_id, Type::TEXT),
    ];
    let account: [Param<'_>; 1] = [(&request.account_id, Type::TEXT)];
    let account_token: [Param<'_>; 2] = [(&request.account_id, Type::TEXT), (&token, Type::INT8)];
    let payout: [Param<'_>; 1] = [(&request.payout_id, Type::TEXT)];
    let payout_token: [Param<'_>; 2] = [(&request.payout_id, Type::TEXT), (&token, Type::INT8)];

    let fenced: [Statement<'_>; 6] = [
        (RISE_TO_SUBMIT, &rise),
        (MARK, &account),
        (TOKEN_USED, &account_token),
        (OF_PAYOUT, &payout),
        (PAYOUT, &payout),
        (EPOCH, &payout),
    ];
    let either: [Statement<'_>; 1] = [(OF_TOKEN, &payout_token)];
    let is_fenced = at.fencing.is_enforced();
    let statements = if is_fenced {
        [fenced.as_slice(), &either].concat()
    } else {
        either.to_vec()
    };
    let (tx, answers) = tx.flight(&statements).await?;
    let first = statements.len() - either.len();
    let (fenced, stands) = if is_fenced {
        let (facts, stands) = fenced_facts(&answers)?;
        (Some(facts), stands)
    } else {
        (None, true)
    };
    if !stands {
        tx.rollback().await;
        return Ok(None);
    }
    let facts = Facts {
        own: telling(&answers, first)?,
        fenced,
    };
    let mut outcome = decide(request, facts, at.fencing, at.now).map_err(StoreError::from)?;
    let SubmitOutcome::Intent(intent) = &mut outcome else {
        tx.rollback().await;
        return Ok(Some(outcome));
    };
    let mut writes = Writes::default();
    let place = writes.insert(intent);
    intent.seq = writes.commit(tx).await?.seq(place)?;
    Ok(Some(outcome))
}

fn fenced_facts(answers: &[Vec<Row>]) -> Result<(FencedFacts, bool), StoreError> {
    let epoch = Epoch::of(answers, 5)?;
    let facts = FencedFacts {
        mark: Advance {
            rose: !nth(answers, 0)?.is_empty(),
            highest_token: mark(answers, 1)?.highest_token,
            token_used: get(one(answers, 2)?, 0)?,
        },
        existing: telling(answers, 3)?,
        payout: known(answers, 4)?,
        rail_unasked: epoch.rail_unasked,
    };
    Ok((facts, epoch.stands))
}
