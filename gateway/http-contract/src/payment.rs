//! Bodies of the payment resource, P1–P10 (C3.4).

use crate::present;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Where a payout stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PayoutState {
    /// Asked for, nothing done.
    Pending,
    /// Held by a claim: the money is set aside, a submission may be under way.
    Claimed,
    /// The rail's outcome is not known. Unsubmittable by any worker under any token (FR-23).
    RailAmbiguous,
    /// Paid: both ledger legs are written.
    Posted,
    /// Not paid: the hold is freed.
    Failed,
}

impl PayoutState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Pending,
        Self::Claimed,
        Self::RailAmbiguous,
        Self::Posted,
        Self::Failed,
    ];

    /// The state as it stands on the wire and in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Claimed => "CLAIMED",
            Self::RailAmbiguous => "RAIL_AMBIGUOUS",
            Self::Posted => "POSTED",
            Self::Failed => "FAILED",
        }
    }

    /// Reads what [`PayoutState::as_str`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for PayoutState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// P1: opens an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenAccountBody {
    /// Its id: 1–64 characters of `[A-Za-z0-9._:-]`, neither `.` nor `..`.
    pub account_id: String,
    /// ISO 4217 code.
    pub currency: String,
    /// What it opens with, in minor units, not negative.
    pub opening_balance_minor: i64,
}

/// P1: an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountAnswer {
    /// Its id.
    pub account_id: String,
    /// ISO 4217 code.
    pub currency: String,
    /// What it opened with, in minor units.
    pub opening_balance_minor: i64,
    /// Opening balance plus all its ledger entries.
    pub balance_minor: i64,
    /// Set aside by payouts in CLAIMED and RAIL_AMBIGUOUS.
    pub held_minor: i64,
    /// Balance less holds.
    pub available_minor: i64,
    /// The highest token that has written here; 0 before the first.
    pub fence: u64,
}

/// P1: adds money from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreditBody {
    /// How much, in minor units, above zero.
    pub amount_minor: i64,
    /// What for: at most 140 characters.
    pub reference: String,
}

/// Who receives a payout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Creditor {
    /// Name, at most 140 characters.
    pub name: String,
    /// Account at the receiving bank, at most 140 characters.
    pub account: String,
}

/// P2: asks for a payout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePayoutBody {
    /// An id of one's own, at most 35 characters of `[A-Za-z0-9._:-]`, neither `.` nor `..`; made where it is missing.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub payout_id: Option<String>,
    /// From which account.
    pub account_id: String,
    /// How much, in minor units, above zero.
    pub amount_minor: i64,
    /// ISO 4217 code, the account's.
    pub currency: String,
    /// To whom.
    pub creditor: Creditor,
    /// Free text for the creditor, at most 140 characters.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub reference: Option<String>,
}

/// P2–P8: a payout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PayoutAnswer {
    /// Its id.
    pub payout_id: String,
    /// From which account.
    pub account_id: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// To whom.
    pub creditor: Creditor,
    /// Free text.
    pub reference: Option<String>,
    /// Where it stands.
    pub state: PayoutState,
    /// The token of the latest claim.
    pub claim_token: Option<u64>,
    /// The rail's reference, once paid.
    pub rail_reference: Option<String>,
    /// Why it failed.
    pub failure_reason: Option<String>,
    /// When it was asked for (RFC 3339).
    pub created_at: String,
    /// When it last changed (RFC 3339).
    pub updated_at: String,
    /// Since when it is ambiguous (RFC 3339).
    pub ambiguous_since: Option<String>,
    /// When it was escalated to a human (RFC 3339).
    pub escalated_at: Option<String>,
    /// Rises with every change.
    pub version: u64,
}

/// P3: a step of a payout's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TransitionRow {
    /// Its place in the order of all transitions.
    pub seq: u64,
    /// Which payout.
    pub payout_id: String,
    /// From which state; null for its creation.
    pub from_state: Option<PayoutState>,
    /// To which state.
    pub to_state: PayoutState,
    /// Under which token.
    pub token: Option<u64>,
    /// By whom.
    pub actor: Option<String>,
    /// When (RFC 3339).
    pub at: String,
    /// What else was recorded.
    pub detail: Option<String>,
}

/// P4: claims a payout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// The version the worker re-read under its lock (FR-14).
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub expected_version: Option<u64>,
}

/// P5: posts a paid payout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PostBody {
    /// The reference the rail acknowledged with.
    pub rail_reference: String,
}

/// P6, P7: fails a payout or marks it ambiguous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReasonBody {
    /// Why: 1–140 characters.
    pub reason: String,
}

/// How an ambiguous payout is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Resolution {
    /// It was paid.
    Posted,
    /// It was not.
    Failed,
}

/// P8: resolves an ambiguous payout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveBody {
    /// How.
    pub outcome: Resolution,
    /// The rail's reference, where it was paid.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub rail_reference: Option<String>,
    /// By hand only, with `X-Operator`: why, 8–500 characters.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub reason: Option<String>,
}

/// P9: cancels a pending payout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelBody {
    /// Why: 8–500 characters.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub reason: Option<String>,
}

/// P9: a ledger leg.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerRow {
    /// Its place in the order of all entries.
    pub entry_id: u64,
    /// Which payout; null for a credit.
    pub payout_id: Option<String>,
    /// Which account, or a house account.
    pub account_id: String,
    /// Signed amount in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// Under which token; null for a credit.
    pub token: Option<u64>,
    /// When (RFC 3339).
    pub at: String,
    /// The rail's reference, where there is one.
    pub rail_reference: Option<String>,
}

/// P9: whether the ledger holds together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifyAnswer {
    /// True when nothing is wrong.
    pub ok: bool,
    /// What is wrong, one sentence each.
    pub violations: Vec<String>,
}

/// P10: the account's fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FenceAnswer {
    /// Which account.
    pub account_id: String,
    /// Its mark.
    pub fence: u64,
}

/// P9: a fact of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PaymentAuditRow {
    /// Its place in the order of all facts.
    pub seq: u64,
    /// When (RFC 3339).
    pub at: String,
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
