//! P1 and P2: accounts, credits, payouts. Unfenced by design: they carry no holder's decision. Credits and payouts are
//! made once per idempotency key; two that are made at once meet its unique key, and the one that lost looks again.

use super::record::{EVENT, TURNSTILE};
use super::rows::{ACCOUNT_COLUMNS, account, damaged, odd, unsigned};
use super::{At, undone};
use crate::decide::named;
use crate::once::{self, json};
use crate::{AMOUNT_MAX_MINOR, Account, CreateOutcome, NewAccount, NewCredit, NewPayout, Payout, PayoutState, Step};
use host_kit::fault_point;
use lock_api::StoreError;
use pg_kit::{Param, Stopped, Transaction};
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

const KNOWN_KEY: &str = "SELECT body_hash, answer FROM idempotency WHERE route = $1 AND key = $2";

const REMEMBER: &str = "INSERT INTO idempotency (route, key, body_hash, answer, at) VALUES ($1, $2, $3, $4, $5)";

pub(super) async fn open_account(
    transaction: Transaction,
    at: At<'_>,
    new: &NewAccount,
) -> Result<CreateOutcome<Account>, Stopped> {
    let find = format!("SELECT {ACCOUNT_COLUMNS} FROM account a WHERE a.account_id = $1");
    let (transaction, answers) = transaction
        .flight(&[(&find, &[(&new.account_id, Type::TEXT)]), ("SELECT pay_now_ms()", &[])])
        .await?;
    let [found, now] = answers.as_slice() else {
        return Err(odd("an account").into());
    };
    if let Some(stands) = found.first().map(account) {
        let same = stands.currency == new.currency && stands.opening_balance_minor == new.opening_balance_minor;
        let outcome = if same {
            CreateOutcome::Existing(stands)
        } else {
            CreateOutcome::Conflict {
                detail: format!("account {} was opened with other contents", new.account_id),
            }
        };
        return undone(transaction, outcome).await;
    }
    let now_ms = time(now)?;
    fault_point!(at.faults, "payment_resource.before_account_commit");
    transaction
        .commit(&[
            TURNSTILE,
            // One that is opened at the same moment by somebody else is met here, and looked at again.
            (
                "INSERT INTO account (account_id, currency, opening_balance_minor, balance_minor, opened_at)
                 VALUES ($1, $2, $3, $3, $4)",
                &[
                    (&new.account_id, Type::TEXT),
                    (&new.currency, Type::TEXT),
                    (&new.opening_balance_minor, Type::INT8),
                    (&now_ms, Type::INT8),
                ],
            ),
            (
                EVENT,
                &[
                    (&now_ms, Type::INT8),
                    (&"ACCOUNT_OPENED", Type::TEXT),
                    (&new.account_id, Type::TEXT),
                    (&None::<&str>, Type::TEXT),
                    (&None::<i64>, Type::INT8),
                    (&named(new.actor.as_deref()), Type::TEXT),
                    (&None::<&str>, Type::TEXT),
                ],
            ),
        ])
        .await?;
    Ok(CreateOutcome::Created(Account {
        account_id: new.account_id.clone(),
        currency: new.currency.clone(),
        opening_balance_minor: new.opening_balance_minor,
        balance_minor: new.opening_balance_minor,
        held_minor: 0,
        fence: 0,
    }))
}

/// The fact, whose place is the credit's id, and both legs under it, the account's first.
const CREDITED: &str = "WITH fact AS (
    INSERT INTO payment_event (at, kind, account_id, actor, reason) VALUES ($1, 'CREDITED', $2, $3, $4) RETURNING seq)
  INSERT INTO ledger_entry (credit_id, account_id, currency, amount_minor, at)
  SELECT fact.seq, leg.account_id, $6, leg.amount_minor, $1
    FROM fact, (VALUES (1, $2::text, $7::bigint), (2, $5::text, - $7::bigint)) leg (n, account_id, amount_minor)
   ORDER BY leg.n";

pub(super) async fn credit(
    transaction: Transaction,
    at: At<'_>,
    new: &NewCredit,
) -> Result<CreateOutcome<Account>, Stopped> {
    let hash = once::credit_hash(new);
    let key: [Param<'_>; 2] = [(&once::CREDIT, Type::TEXT), (&new.idempotency_key, Type::TEXT)];
    let id: [Param<'_>; 1] = [(&new.account_id, Type::TEXT)];
    let find = format!("SELECT {ACCOUNT_COLUMNS} FROM account a WHERE a.account_id = $1");
    // First the account's row lock; what follows sees all that was credited before.
    let (transaction, answers) = transaction
        .flight(&[
            ("SELECT 1 FROM account WHERE account_id = $1 FOR NO KEY UPDATE", &id),
            (KNOWN_KEY, &key),
            (&find, &id),
            ("SELECT pay_now_ms()", &[]),
        ])
        .await?;
    let [_, known, found, now] = answers.as_slice() else {
        return Err(odd("an account").into());
    };
    if let Some(before) = replayed(known, &hash)? {
        return undone(transaction, before).await;
    }
    let Some(before) = found.first().map(account) else {
        return undone(transaction, CreateOutcome::AccountNotFound).await;
    };
    let balance_minor = before.balance_minor.saturating_add(new.amount_minor);
    if balance_minor > AMOUNT_MAX_MINOR {
        return undone(transaction, CreateOutcome::BalanceTooLarge).await;
    }
    let after = Account {
        balance_minor,
        ..before
    };
    let now_ms = time(now)?;
    fault_point!(at.faults, "payment_resource.before_credit_commit");
    transaction
        .commit(&[
            TURNSTILE,
            (
                CREDITED,
                &[
                    (&now_ms, Type::INT8),
                    (&new.account_id, Type::TEXT),
                    (&named(new.actor.as_deref()), Type::TEXT),
                    (&new.reference, Type::TEXT),
                    (&format!("house:credits:{}", after.currency), Type::TEXT),
                    (&after.currency, Type::TEXT),
                    (&new.amount_minor, Type::INT8),
                ],
            ),
            (
                "UPDATE account SET balance_minor = balance_minor + $2 WHERE account_id = $1",
                &[(&new.account_id, Type::TEXT), (&new.amount_minor, Type::INT8)],
            ),
            (
                REMEMBER,
                &[
                    (&once::CREDIT, Type::TEXT),
                    (&new.idempotency_key, Type::TEXT),
                    (&hash, Type::TEXT),
                    (&json(&after), Type::TEXT),
                    (&now_ms, Type::INT8),
                ],
            ),
        ])
        .await?;
    Ok(CreateOutcome::Created(after))
}

/// As [`REMEMBER`], with the payout's place in the answer: it is given by a statement before it.
const REMEMBER_PAYOUT: &str = "INSERT INTO idempotency (route, key, body_hash, answer, at)
  SELECT $1, $2, $3, ($4::jsonb || jsonb_build_object('seq', p.seq))::text, $5 FROM payout p WHERE p.payout_id = $6";

pub(super) async fn create_payout(
    transaction: Transaction,
    at: At<'_>,
    new: &NewPayout,
) -> Result<CreateOutcome<Payout>, Stopped> {
    let hash = once::payout_hash(new);
    let payout_id = new.chosen_id.as_ref().unwrap_or(&new.fresh_id);
    let key: [Param<'_>; 2] = [(&once::PAYOUT, Type::TEXT), (&new.idempotency_key, Type::TEXT)];
    let (transaction, answers) = transaction
        .flight(&[
            (
                "SELECT currency FROM account WHERE account_id = $1",
                &[(&new.account_id, Type::TEXT)],
            ),
            ("SELECT 1 FROM payout WHERE payout_id = $1", &[(payout_id, Type::TEXT)]),
            // Last: whoever sees the payout of the same request, committed a moment ago, must see its key too.
            (KNOWN_KEY, &key),
            ("SELECT pay_now_ms()", &[]),
        ])
        .await?;
    let [from, taken, known, now] = answers.as_slice() else {
        return Err(odd("an account").into());
    };
    if let Some(before) = replayed(known, &hash)? {
        return undone(transaction, before).await;
    }
    let Some(currency) = from.first().map(|row| row.get::<_, String>(0)) else {
        return undone(transaction, CreateOutcome::AccountNotFound).await;
    };
    if currency != new.currency {
        return undone(transaction, CreateOutcome::CurrencyMismatch { currency }).await;
    }
    if !taken.is_empty() {
        let detail = format!("payout {payout_id} was asked for before, under another idempotency key");
        return undone(transaction, CreateOutcome::Conflict { detail }).await;
    }
    let now_ms = time(now)?;
    let mut made = Payout {
        seq: 0,
        payout_id: payout_id.clone(),
        account_id: new.account_id.clone(),
        amount_minor: new.amount_minor,
        currency,
        creditor: new.creditor.clone(),
        reference: new.reference.clone(),
        state: PayoutState::Pending,
        claim_token: None,
        rail_reference: None,
        failure_reason: None,
        created_at_ms: now_ms,
        updated_at_ms: now_ms,
        ambiguous_since_ms: None,
        escalated_at_ms: None,
        version: 1,
    };
    fault_point!(at.faults, "payment_resource.before_payout_commit");
    let (step, kind) = (Step::Create.as_str(), Step::Create.as_str().to_ascii_uppercase());
    let actor = named(new.actor.as_deref());
    let answers = transaction
        .commit(&[
            TURNSTILE,
            (
                "INSERT INTO payout (payout_id, account_id, amount_minor, currency, creditor, reference, state,
                                     created_at, updated_at)
                 VALUES ($1, $2, $3, $4, $5, $6, 'PENDING', $7, $7) RETURNING seq",
                &[
                    (payout_id, Type::TEXT),
                    (&new.account_id, Type::TEXT),
                    (&new.amount_minor, Type::INT8),
                    (&new.currency, Type::TEXT),
                    (&json(&new.creditor), Type::TEXT),
                    (&new.reference, Type::TEXT),
                    (&now_ms, Type::INT8),
                ],
            ),
            (
                "INSERT INTO payout_transition (payout_id, step, to_state, actor, at) VALUES ($1, $2, 'PENDING', $3, $4)",
                &[
                    (payout_id, Type::TEXT),
                    (&step, Type::TEXT),
                    (&actor, Type::TEXT),
                    (&now_ms, Type::INT8),
                ],
            ),
            (
                EVENT,
                &[
                    (&now_ms, Type::INT8),
                    (&kind, Type::TEXT),
                    (&new.account_id, Type::TEXT),
                    (payout_id, Type::TEXT),
                    (&None::<i64>, Type::INT8),
                    (&actor, Type::TEXT),
                    (&None::<&str>, Type::TEXT),
                ],
            ),
            (
                REMEMBER_PAYOUT,
                &[
                    (&once::PAYOUT, Type::TEXT),
                    (&new.idempotency_key, Type::TEXT),
                    (&hash, Type::TEXT),
                    (&json(&made), Type::TEXT),
                    (&now_ms, Type::INT8),
                    (payout_id, Type::TEXT),
                ],
            ),
        ])
        .await?;
    let seq = answers
        .get(1)
        .and_then(|rows| rows.first())
        .ok_or_else(|| odd("a payout"))?;
    made.seq = unsigned(seq.get(0));
    Ok(CreateOutcome::Created(made))
}

fn time(now: &[Row]) -> Result<i64, StoreError> {
    now.first().map(|row| row.get(0)).ok_or_else(|| odd("the time"))
}

/// What the idempotency key says: nothing yet, the same request before, or another one.
fn replayed<T: DeserializeOwned>(known: &[Row], hash: &str) -> Result<Option<CreateOutcome<T>>, StoreError> {
    known
        .first()
        .map(|row| once::replayed(row.get(0), row.get(1), hash))
        .transpose()
        .map_err(|error| damaged(format!("a remembered answer: {error}")))
}
