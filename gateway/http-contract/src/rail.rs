//! Bodies of the rail proxy, R1–R7 (C3.5), and of the rail itself (C3.6).

use crate::payment::Creditor;
use crate::present;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What became of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Outcome {
    /// The rail executed it.
    Acked,
    /// The rail refused it.
    Declined,
    /// Not known.
    Timeout,
    /// The rail never received it, by lookup.
    NotReceived,
    /// Never sent and never to be sent.
    NotSent,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [
        Self::Acked,
        Self::Declined,
        Self::Timeout,
        Self::NotReceived,
        Self::NotSent,
    ];

    /// The outcome as it stands on the wire and in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "ACKED",
            Self::Declined => "DECLINED",
            Self::Timeout => "TIMEOUT",
            Self::NotReceived => "NOT_RECEIVED",
            Self::NotSent => "NOT_SENT",
        }
    }

    /// Reads what [`Outcome::as_str`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }
}

/// R1: submits a claimed payout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitBody {
    /// Which payout.
    pub payout_id: String,
    /// From which account.
    pub account_id: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// To whom.
    pub creditor: Creditor,
}

/// R1: the rail's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmitAnswer {
    /// The submission.
    pub submission_id: String,
    /// `ACKED` or `DECLINED`; on a replay whatever is recorded now.
    pub outcome: Outcome,
    /// The rail's reference, where it acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail_reference: Option<String>,
    /// The rail's reason, where it declined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decline_reason: Option<String>,
}

/// R2: a row of `rail_submission`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmissionRow {
    /// Its id.
    pub submission_id: String,
    /// Which payout.
    pub payout_id: String,
    /// From which account.
    pub account_id: String,
    /// Under which token.
    pub token: u64,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// What the rail knows it by.
    pub client_reference: String,
    /// When the intent was committed (RFC 3339).
    pub intent_at: String,
    /// When it was about to leave for the rail (RFC 3339); null: it never left.
    pub forwarded_at: Option<String>,
    /// What became of it; null: not known yet.
    pub outcome: Option<Outcome>,
    /// By whom it was submitted.
    pub actor: Option<String>,
    /// Why the outcome is not known.
    pub cause: Option<String>,
    /// The rail's reference.
    pub rail_reference: Option<String>,
    /// The rail's reason.
    pub decline_reason: Option<String>,
    /// When the outcome was recorded (RFC 3339).
    pub outcome_at: Option<String>,
    /// Whether the fence stood when it was made.
    pub fencing_enforced: bool,
}

/// What the rail says when asked (R3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// It was executed.
    Executed,
    /// It was declined.
    Declined,
    /// It was never received, and nothing will come.
    NotReceived,
    /// Nothing can be concluded.
    Inconclusive,
}

impl Verdict {
    /// The verdict as it stands on the wire and in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "EXECUTED",
            Self::Declined => "DECLINED",
            Self::NotReceived => "NOT_RECEIVED",
            Self::Inconclusive => "INCONCLUSIVE",
        }
    }
}

/// R3: what the lookup found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LookupAnswer {
    /// What can be concluded.
    pub verdict: Verdict,
    /// How many executions the rail reports.
    pub executions: u64,
    /// The submission as it is now recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<SubmissionRow>,
}

/// How an asynchronous ack reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum AckOutcome {
    /// Executed.
    Acked,
    /// Refused.
    Declined,
}

/// R4: an asynchronous ack of the rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AckBody {
    /// What the rail knows the submission by.
    pub client_reference: String,
    /// What became of it.
    pub outcome: AckOutcome,
    /// The rail's reference, where it executed.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub rail_reference: Option<String>,
    /// The rail's reason, where it refused.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub decline_reason: Option<String>,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
}

/// What an ack did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AckRecorded {
    /// It became the outcome.
    Outcome,
    /// It says again what is recorded.
    Duplicate,
    /// It contradicts what is recorded: kept for a human, changed nothing.
    Anomaly,
}

/// R4: what the ack did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AckAnswer {
    /// What it did.
    pub recorded: AckRecorded,
}

/// R5, R7: an account's mark at the rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HighWaterAnswer {
    /// Which account.
    pub account_id: String,
    /// The highest token that has submitted; 0 before the first.
    pub highest_token: u64,
    /// When it last rose (RFC 3339).
    #[serde(default)]
    pub updated_at: Option<String>,
}

/// R6: raises the mark below the token and reads the payout's submission in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmissionFenceBody {
    /// Insert a final NOT_SENT where there is no submission, for a payout that can never be submitted.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool, required = false)]
    pub forbid: Option<bool>,
}

/// R6: what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmissionFenceAnswer {
    /// The payout's submission, null where there is none.
    pub submission: Option<SubmissionRow>,
    /// The account's mark afterwards.
    pub highest_token: u64,
}

/// R7: something for a human.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExceptionRow {
    /// Its place in the list, and its name for R8.
    #[serde(default)]
    pub exception_id: u64,
    /// Which payout.
    pub payout_id: String,
    /// When (RFC 3339).
    pub at: String,
    /// What kind.
    pub kind: String,
    /// What was seen.
    pub detail: String,
    /// Who closed it.
    pub closed_by: Option<String>,
    /// When it was closed (RFC 3339). Null where a program before paydb's version 3 closed it.
    #[serde(default)]
    pub closed_at: Option<String>,
    /// Why it was closed.
    #[serde(default)]
    pub closed_reason: Option<String>,
}

/// R8: closes an exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloseExceptionBody {
    /// What was found and done, 8 to 500 characters.
    pub reason: String,
}

/// R3: a row of `rail_lookup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LookupRow {
    /// When the rail was asked (RFC 3339).
    pub at: String,
    /// What could be concluded: `EXECUTED`, `DECLINED`, `NOT_RECEIVED`, `INCONCLUSIVE`.
    pub verdict: String,
    /// How many executions the rail reported.
    pub executions: u64,
    /// The rail's reference.
    pub rail_reference: Option<String>,
}

/// The rail's own answer to `GET /submissions` (C3.6). Read leniently: the rail is not ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailBook {
    /// Which reference was asked for.
    pub client_reference: String,
    /// Every execution.
    #[serde(default)]
    pub executions: Vec<RailExecution>,
    /// Every refusal.
    #[serde(default)]
    pub declined: Vec<RailDecline>,
    /// How many submissions of it were read.
    #[serde(default)]
    pub bodies_read: u64,
    /// The rail promises that nothing more will execute for this reference.
    #[serde(default, rename = "final")]
    pub is_final: bool,
}

/// An execution in the rail's own book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailExecution {
    /// The rail's reference.
    pub rail_reference: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// When (RFC 3339).
    pub at: String,
}

/// A refusal in the rail's own book.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailDecline {
    /// The rail's reason.
    pub reason: String,
    /// When (RFC 3339).
    pub at: String,
}

/// Faults to be injected at the rail stub (`PUT /faults`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultPlan {
    /// Probability by fault name.
    #[serde(default)]
    pub rates: BTreeMap<String, f64>,
    /// Faults for single references, before rates.
    #[serde(default)]
    pub rules: Vec<FaultRule>,
}

/// A fault for one reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultRule {
    /// Which reference.
    pub client_reference: String,
    /// Which fault.
    pub fault: String,
    /// How many times; always where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// How late, where the fault has a delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// Why, where the fault has a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What the rail stub counted (`GET /stats`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailStats {
    /// Submissions whose body was read.
    pub bodies_read: u64,
    /// Executions.
    pub executed: u64,
    /// Refusals.
    pub declined: u64,
    /// How often each fault was injected.
    #[serde(default)]
    pub by_fault: BTreeMap<String, u64>,
}
