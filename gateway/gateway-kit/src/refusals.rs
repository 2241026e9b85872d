//! The last writes that a fence refused (C4.6).
//!
//! Owns: a bounded list of `FENCED_OUT` answers of this process, for whoever asks what became of a stale worker. A refused
//! write changes nothing (INV-05), so no table can tell of it.
//! Does not own: the decision; the count (`lock_fenced_out_total`); the log line, which outlives the process.
//! On failure: there is none; the oldest one goes when the list is full.

use crate::ApiError;
use crate::instant::rfc3339;
use http_contract::refusal::RefusalRow;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// How many are remembered: about 300 kB.
pub(crate) const CAPACITY: usize = 1024;

/// What the gateway knows of the request that was refused.
pub(crate) struct Refused<'a> {
    pub wall_ms: i64,
    pub method: &'a str,
    /// The template of the route.
    pub route: &'a str,
    /// The path as it was asked for.
    pub path: &'a str,
    pub actor: Option<String>,
    pub trace_id: String,
}

#[derive(Debug, Default)]
struct List {
    rows: VecDeque<RefusalRow>,
    last: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<List>);

impl Refusals {
    /// Remembers a refusal, and answers how.
    pub(crate) fn note(&self, of: Refused<'_>, error: &ApiError) -> RefusalRow {
        let field = |name: &str| error.known(name);
        let text = |name: &str| field(name).and_then(Value::as_str).map(str::to_owned);
        let row = RefusalRow {
            seq: 0,
            at: rfc3339(of.wall_ms),
            request: format!("{} {}", of.method, of.route),
            payout_id: text("payout_id").or_else(|| in_path(of.route, of.path, "{payout_id}")),
            account_id: text("account_id").or_else(|| in_path(of.route, of.path, "{account_id}")),
            actor: of.actor,
            reason: text("reason"),
            presented_token: field("presented_token").and_then(Value::as_u64),
            highest_token: field("highest_token").and_then(Value::as_u64),
            trace_id: of.trace_id,
        };
        // Pushed and popped in one step each, so a panic elsewhere leaves it whole.
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.last += 1;
        let seq = list.last;
        if list.rows.len() == CAPACITY {
            list.rows.pop_front();
        }
        let row = RefusalRow { seq, ..row };
        list.rows.push_back(row.clone());
        row
    }

    /// The newest `limit` of a payout (of all without one), oldest first.
    pub(crate) fn read(&self, payout_id: Option<&str>, limit: usize) -> Vec<RefusalRow> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<RefusalRow> = list
            .rows
            .iter()
            .rev()
            .filter(|row| payout_id.is_none_or(|payout| row.payout_id.as_deref() == Some(payout)))
            .take(limit)
            .cloned()
            .collect();
        rows.reverse();
        rows
    }
}

/// The part of a path that stands where the template has this name.
fn in_path(route: &str, path: &str, name: &str) -> Option<String> {
    let place = route.split('/').position(|part| part == name)?;
    // Ids of payouts and accounts are of characters that need no encoding.
    path.split('/').nth(place).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_contract::Code;

    fn refused(path: &str) -> Refused<'_> {
        Refused {
            wall_ms: 0,
            method: "POST",
            route: "/v1/payouts/{payout_id}/claim",
            path,
            actor: Some("W1".to_owned()),
            trace_id: "ab".to_owned(),
        }
    }

    fn error() -> ApiError {
        ApiError::new(Code::FencedOut, "stale")
            .field("reason", "stale")
            .field("presented_token", 33)
            .field("highest_token", 34)
    }

    #[test]
    fn the_newest_refusals_are_remembered_and_no_more() {
        let refusals = Refusals::default();
        for n in 0..CAPACITY + 3 {
            refusals.note(refused(&format!("/v1/payouts/P{}/claim", n % 2)), &error());
        }
        let all = refusals.read(None, usize::MAX);
        assert_eq!((all.len(), all[0].seq), (CAPACITY, 4));
        let of_one = refusals.read(Some("P1"), 2);
        assert_eq!(of_one.iter().map(|row| row.seq).collect::<Vec<_>>(), [1024, 1026]);
        assert_eq!(
            (
                of_one[0].presented_token,
                of_one[0].highest_token,
                of_one[0].reason.as_deref()
            ),
            (Some(33), Some(34), Some("stale"))
        );
    }

    #[test]
    fn what_the_path_does_not_say_the_refusal_says() {
        let refusals = Refusals::default();
        let mut submit = refused("/v1/rail/submissions");
        submit.route = "/v1/rail/submissions";
        refusals.note(submit, &error().about("payout_id", "P7").about("account_id", "A"));
        let rows = refusals.read(Some("P7"), 10);
        assert_eq!((rows.len(), rows[0].account_id.as_deref()), (1, Some("A")));
        assert!(
            !error()
                .about("payout_id", "P7")
                .problem("t")
                .fields
                .contains_key("payout_id")
        );
    }
}
