//! Requests that are made once per idempotency key (P1, P2): what their bodies and answers are kept as.

use crate::{CreateOutcome, Creditor, NewCredit, NewPayout};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

/// Under which name credits are remembered.
pub(crate) const CREDIT: &str = "POST /v1/accounts/{account_id}/credit";
/// Under which name payouts are remembered.
pub(crate) const PAYOUT: &str = "POST /v1/payouts";

pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values with text keys are always JSON")
}

pub(crate) fn creditor(text: &str) -> serde_json::Result<Creditor> {
    serde_json::from_str(text)
}

pub(crate) fn credit_hash(new: &NewCredit) -> String {
    hash_of(&(&new.account_id, new.amount_minor, &new.reference))
}

pub(crate) fn payout_hash(new: &NewPayout) -> String {
    hash_of(&(
        &new.chosen_id,
        &new.account_id,
        new.amount_minor,
        &new.currency,
        &new.creditor,
        &new.reference,
    ))
}

/// Text counts byte for byte: two Unicode forms of one name are two bodies.
fn hash_of(body: &impl Serialize) -> String {
    hex::encode(Sha256::digest(json(body)))
}

/// What a key that is known says: the same request before, or another one.
pub(crate) fn replayed<T: DeserializeOwned>(
    known_hash: &str,
    answer: &str,
    hash: &str,
) -> serde_json::Result<CreateOutcome<T>> {
    if known_hash == hash {
        serde_json::from_str(answer).map(CreateOutcome::Existing)
    } else {
        Ok(CreateOutcome::KeyReused)
    }
}
