//! P1 and P2: accounts, credits, payouts. Unfenced by design: they carry no holder's decision. Credits and payouts are
//! made once per idempotency key.

use super::Tx;
use super::ledger;
use super::rows::{Done, Event, account, damaged, event, payout, payout_again, record};
use crate::decide::named;
use crate::once::{self, json};
use crate::{AMOUNT_MAX_MINOR, Account, CreateOutcome, NewAccount, NewCredit, NewPayout, Payout, Step};
use rusqlite::{OptionalExtension, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sql_kit::Decision;

pub(super) fn open_account(tx: &Tx<'_>, new: &NewAccount) -> rusqlite::Result<Decision<CreateOutcome<Account>>> {
    let made = tx
        .db
        .prepare_cached(
            "INSERT INTO account (account_id, currency, opening_balance_minor, balance_minor, opened_at)
             VALUES (?1, ?2, ?3, ?3, ?4) ON CONFLICT (account_id) DO NOTHING",
        )?
        .execute(params![
            new.account_id,
            new.currency,
            new.opening_balance_minor,
            tx.now_ms
        ])?;
    let Some(stands) = account(tx.db, &new.account_id)? else {
        return Err(rusqlite::Error::QueryReturnedNoRows);
    };
    if made == 0 {
        let same = stands.currency == new.currency && stands.opening_balance_minor == new.opening_balance_minor;
        return Ok(Decision::Rollback(if same {
            CreateOutcome::Existing(stands)
        } else {
            CreateOutcome::Conflict {
                detail: format!("account {} was opened with other contents", new.account_id),
            }
        }));
    }
    event(
        tx,
        &Event {
            kind: "ACCOUNT_OPENED",
            account_id: Some(&new.account_id),
            payout_id: None,
            token: None,
            actor: named(new.actor.as_deref()),
            reason: None,
        },
    )?;
    Ok(Decision::Commit(CreateOutcome::Created(stands)))
}

pub(super) fn credit(tx: &Tx<'_>, new: &NewCredit) -> rusqlite::Result<Decision<CreateOutcome<Account>>> {
    let hash = once::credit_hash(new);
    if let Some(before) = replayed(tx, once::CREDIT, &new.idempotency_key, &hash)? {
        return Ok(Decision::Rollback(before));
    }
    let Some(before) = account(tx.db, &new.account_id)? else {
        return Ok(Decision::Rollback(CreateOutcome::AccountNotFound));
    };
    if before.balance_minor.saturating_add(new.amount_minor) > AMOUNT_MAX_MINOR {
        return Ok(Decision::Rollback(CreateOutcome::BalanceTooLarge));
    }
    let credit_id = event(
        tx,
        &Event {
            kind: "CREDITED",
            account_id: Some(&new.account_id),
            payout_id: None,
            token: None,
            actor: named(new.actor.as_deref()),
            reason: Some(&new.reference),
        },
    )?;
    ledger::receive(tx, &before, credit_id, new.amount_minor)?;
    let Some(after) = account(tx.db, &new.account_id)? else {
        return Err(rusqlite::Error::QueryReturnedNoRows);
    };
    remember(tx, once::CREDIT, &new.idempotency_key, &hash, &after)?;
    Ok(Decision::Commit(CreateOutcome::Created(after)))
}

pub(super) fn create_payout(tx: &Tx<'_>, new: &NewPayout) -> rusqlite::Result<Decision<CreateOutcome<Payout>>> {
    let hash = once::payout_hash(new);
    if let Some(before) = replayed(tx, once::PAYOUT, &new.idempotency_key, &hash)? {
        return Ok(Decision::Rollback(before));
    }
    let Some(from) = account(tx.db, &new.account_id)? else {
        return Ok(Decision::Rollback(CreateOutcome::AccountNotFound));
    };
    if from.currency != new.currency {
        return Ok(Decision::Rollback(CreateOutcome::CurrencyMismatch {
            currency: from.currency,
        }));
    }
    let payout_id = new.chosen_id.as_ref().unwrap_or(&new.fresh_id);
    if payout(tx.db, payout_id)?.is_some() {
        return Ok(Decision::Rollback(CreateOutcome::Conflict {
            detail: format!("payout {payout_id} was asked for before, under another idempotency key"),
        }));
    }
    tx.db
        .prepare_cached(
            "INSERT INTO payout (payout_id, account_id, amount_minor, currency, creditor, reference, state,
                                 created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'PENDING', ?7, ?7)",
        )?
        .execute(params![
            payout_id,
            new.account_id,
            new.amount_minor,
            new.currency,
            json(&new.creditor),
            new.reference,
            tx.now_ms
        ])?;
    record(
        tx,
        &Done {
            step: Step::Create,
            payout_id,
            account_id: &new.account_id,
            from: None,
            token: None,
            actor: named(new.actor.as_deref()),
            detail: None,
        },
    )?;
    let made = payout_again(tx, payout_id)?;
    remember(tx, once::PAYOUT, &new.idempotency_key, &hash, &made)?;
    Ok(Decision::Commit(CreateOutcome::Created(made)))
}

/// What the idempotency key says: nothing yet, the same request before, or another one.
fn replayed<T: DeserializeOwned>(
    tx: &Tx<'_>,
    route: &str,
    key: &str,
    hash: &str,
) -> rusqlite::Result<Option<CreateOutcome<T>>> {
    let known: Option<(String, String)> = tx
        .db
        .prepare_cached("SELECT body_hash, answer FROM idempotency WHERE route = ?1 AND key = ?2")?
        .query_row([route, key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    known
        .map(|(before, answer)| once::replayed(&before, &answer, hash))
        .transpose()
        .map_err(|error| damaged(1, error))
}

fn remember(tx: &Tx<'_>, route: &str, key: &str, hash: &str, answer: &impl Serialize) -> rusqlite::Result<()> {
    tx.db
        .prepare_cached("INSERT INTO idempotency (route, key, body_hash, answer, at) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![route, key, hash, json(answer), tx.now_ms])?;
    Ok(())
}
