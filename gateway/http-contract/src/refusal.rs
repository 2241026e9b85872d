//! What a component refused to do under a token (`GET /v1/refusals`, C3.1).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request that was to be done under a token and was refused: who showed which token, and what stood against it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusalRow {
    /// Its place in the order of this process's refusals, from 1.
    pub seq: u64,
    /// When it was answered (RFC 3339).
    pub at: String,
    /// The HTTP method.
    pub method: String,
    /// The route with its placeholders, as in the document.
    pub route: String,
    /// The HTTP status.
    pub status: u16,
    /// Why, from the closed list of problem codes.
    pub code: String,
    /// What happened, in a sentence.
    pub detail: String,
    /// The trace it belongs to.
    pub trace_id: String,
    /// Who asked, as `X-Actor` said.
    #[serde(default)]
    pub actor: Option<String>,
    /// Who acted by hand, as `X-Operator` said.
    #[serde(default)]
    pub operator: Option<String>,
    /// The token that was shown, where it was one.
    #[serde(default)]
    pub presented_token: Option<u64>,
    /// The highest token that was known, where the code says it.
    #[serde(default)]
    pub highest_token: Option<u64>,
    /// The code's own reason, where it has one.
    #[serde(default)]
    pub reason: Option<String>,
    /// Which payout it was about.
    #[serde(default)]
    pub payout_id: Option<String>,
    /// Which account it was about.
    #[serde(default)]
    pub account_id: Option<String>,
    /// Which lock it was about.
    #[serde(default)]
    pub key: Option<String>,
}

/// The refusals that a process still remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusalsAnswer {
    /// Which component.
    pub component: String,
    /// Since when this process remembers (RFC 3339): its start.
    pub since: String,
    /// How many it has forgotten again because there were too many.
    pub forgotten: u64,
    /// The newest that fit the question, oldest first.
    pub items: Vec<RefusalRow>,
}
