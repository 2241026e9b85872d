//! The rows, as values.

use crate::PayoutState;
use lock_api::FencingToken;
use serde::{Deserialize, Serialize};

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its id.
    pub account_id: String,
    /// ISO 4217 code.
    pub currency: String,
    /// What it opened with.
    pub opening_balance_minor: i64,
    /// Opening balance plus all its ledger entries.
    pub balance_minor: i64,
    /// The amounts of its payouts in CLAIMED and RAIL_AMBIGUOUS.
    pub held_minor: i64,
    /// The mark of fence point (a).
    pub fence: u64,
}

/// Who receives a payout. Text is kept and compared byte for byte, whatever its Unicode form (case P12).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Creditor {
    /// Name.
    pub name: String,
    /// Account at the receiving bank.
    pub account: String,
}

/// A payout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payout {
    /// Its place in the order of creation: what a list's cursor points at.
    pub seq: u64,
    /// Its id.
    pub payout_id: String,
    /// From which account.
    pub account_id: String,
    /// How much.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// To whom.
    pub creditor: Creditor,
    /// Free text for the creditor.
    pub reference: Option<String>,
    /// Where it stands.
    pub state: PayoutState,
    /// The token of the latest claim.
    pub claim_token: Option<u64>,
    /// The rail's reference, once paid.
    pub rail_reference: Option<String>,
    /// Why it failed.
    pub failure_reason: Option<String>,
    /// Wall time of its creation, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// Wall time of its latest change.
    pub updated_at_ms: i64,
    /// Since when it is, or was, ambiguous.
    pub ambiguous_since_ms: Option<i64>,
    /// When it was escalated to a human.
    pub escalated_at_ms: Option<i64>,
    /// Rises with every change, from 1.
    pub version: u64,
}

/// A step of a payout's history. Never changed, never deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransitionRow {
    /// Its place in the order of all transitions.
    pub seq: u64,
    /// Which payout.
    pub payout_id: String,
    /// From which state; none for the creation.
    pub from_state: Option<PayoutState>,
    /// To which state.
    pub to_state: PayoutState,
    /// Under which token.
    pub token: Option<u64>,
    /// By whom.
    pub actor: String,
    /// Wall time in milliseconds since 1970.
    pub at_ms: i64,
    /// What else was recorded, as JSON text.
    pub detail: Option<String>,
}

/// A ledger leg. Never changed, never deleted (FR-25).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LedgerRow {
    /// Its place in the order of all entries.
    pub entry_id: u64,
    /// Which payout; none for a credit.
    pub payout_id: Option<String>,
    /// Which account, or a house account.
    pub account_id: String,
    /// Signed amount.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// Under which token; none for a credit.
    pub token: Option<u64>,
    /// Wall time in milliseconds since 1970.
    pub at_ms: i64,
    /// The rail's reference of the payout, where there is one.
    pub rail_reference: Option<String>,
}

/// A fact of the audit trail (FR-30). Never changed, never deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRow {
    /// Its place in the order of all facts.
    pub seq: u64,
    /// Wall time in milliseconds since 1970.
    pub at_ms: i64,
    /// What happened.
    pub kind: String,
    /// On which account.
    pub account_id: Option<String>,
    /// To which payout.
    pub payout_id: Option<String>,
    /// Under which token.
    pub token: Option<u64>,
    /// By whom.
    pub actor: String,
    /// Why, or what else was recorded.
    pub reason: Option<String>,
}

/// P1: an account to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewAccount {
    /// Its id.
    pub account_id: String,
    /// ISO 4217 code.
    pub currency: String,
    /// What it opens with.
    pub opening_balance_minor: i64,
    /// By whom.
    pub actor: Option<String>,
}

/// P1: money from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewCredit {
    /// Makes a repeated request recognisable.
    pub idempotency_key: String,
    /// To which account.
    pub account_id: String,
    /// How much.
    pub amount_minor: i64,
    /// What for.
    pub reference: String,
    /// By whom.
    pub actor: Option<String>,
}

/// P2: a payout to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewPayout {
    /// Makes a repeated request recognisable.
    pub idempotency_key: String,
    /// The id the caller chose; none when one is to be made.
    pub chosen_id: Option<String>,
    /// The id to use where none was chosen.
    pub fresh_id: String,
    /// From which account.
    pub account_id: String,
    /// How much.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// To whom.
    pub creditor: Creditor,
    /// Free text for the creditor.
    pub reference: Option<String>,
    /// By whom.
    pub actor: Option<String>,
}

/// P10: a barrier below a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaiseFence {
    /// On which account.
    pub account_id: String,
    /// The token below which nothing may write any more.
    pub token: FencingToken,
    /// By whom.
    pub actor: Option<String>,
}

/// P3: which payouts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PayoutQuery {
    /// In this state.
    pub state: Option<PayoutState>,
    /// Of this account.
    pub account_id: Option<String>,
    /// Made after this `seq`.
    pub after: u64,
    /// At most this many.
    pub limit: u32,
}

/// How many payouts stand where, and how long the oldest has waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// How many payouts are in each state, every state once.
    pub by_state: Vec<(PayoutState, u64)>,
    /// When the oldest payout was made that is CLAIMED, or is PENDING and has funds: what is left is a backlog. One without
    /// funds rests lawfully (C1.8).
    pub oldest_open_ms: Option<i64>,
    /// Since when the oldest payout in RAIL_AMBIGUOUS is ambiguous.
    pub oldest_ambiguous_ms: Option<i64>,
    /// How many payouts in RAIL_AMBIGUOUS have been escalated.
    pub escalated: u64,
    /// What the clock that dates the rows read meanwhile: on PostgreSQL the database's, in files this host's.
    pub now_ms: i64,
}

/// P9: whether the ledger holds together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// What is wrong, one sentence each; at most [`VerifyReport::VIOLATIONS_MAX`].
    pub violations: Vec<String>,
    /// How many accounts were looked at.
    pub accounts: u64,
    /// How many payouts were looked at.
    pub payouts: u64,
    /// How many ledger entries were looked at.
    pub entries: u64,
}

impl VerifyReport {
    /// The most violations that are told of one kind.
    pub const VIOLATIONS_MAX: u32 = 100;
}
