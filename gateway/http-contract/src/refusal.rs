//! Writes that a fence refused, as a gateway remembers them (C4.6).

use serde::{Deserialize, Serialize};

/// A write that was answered `FENCED_OUT`: it changed nothing, so no table holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalRow {
    /// Its place in the order of this process's refusals.
    pub seq: u64,
    /// When (RFC 3339).
    pub at: String,
    /// What was asked for: method and route.
    pub request: String,
    /// For which payout, where it was for one.
    pub payout_id: Option<String>,
    /// On which account, where the request named one.
    pub account_id: Option<String>,
    /// By whom.
    pub actor: Option<String>,
    /// Why: `stale`, `token_spent`, …
    pub reason: Option<String>,
    /// The token that was shown.
    pub presented_token: Option<u64>,
    /// The account's mark.
    pub highest_token: Option<u64>,
    /// In which trace.
    pub trace_id: String,
}

/// The answer of `GET /refusals`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalsAnswer {
    /// Who answers.
    pub component: String,
    /// How many refusals this process remembers at most; older ones are in its log.
    pub capacity: u64,
    /// Those asked for, oldest first.
    pub items: Vec<RefusalRow>,
}
