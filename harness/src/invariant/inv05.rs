//! INV-05: a write with a stale token changes zero rows, at both fence points.
//!
//! Two looks. The rows: at each point the tokens of an account's writes never fall in the order they were made, and the
//! mark is at least the highest of them. The clients: what was answered FENCED_OUT left no row under that token, unless
//! the same client had been let in with it before.

use super::Verdict;
use crate::history::{Call, Outcome};
use crate::model::Evidence;
use std::collections::BTreeMap;

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    payment_rows(evidence, verdict);
    rail_rows(evidence, verdict);
    for call in evidence.calls.iter().filter(|call| call.fenced_out()) {
        refusal(evidence, call, verdict);
    }
}

fn payment_rows(evidence: &Evidence, verdict: &mut Verdict) {
    let account_of = evidence.account_of();
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut rows: Vec<_> = evidence.transitions.iter().collect();
    rows.sort_by_key(|row| row.seq);
    for row in rows {
        let (Some(token), Some(account)) = (row.token, account_of.get(row.payout_id.as_str())) else {
            continue;
        };
        let mark = highest.entry(account).or_default();
        verdict.demand(token >= *mark, || {
            format!(
                "payment: {} → {} under token {token} on {account}, where {mark} had written before",
                row.payout_id, row.to_state
            )
        });
        *mark = (*mark).max(token);
    }
    for account in &evidence.accounts {
        if let Some(mark) = highest.get(account.account_id.as_str()) {
            verdict.demand(account.fence >= *mark, || {
                format!(
                    "payment: the fence of {} is {}, yet {mark} has written",
                    account.account_id, account.fence
                )
            });
        }
    }
}

fn rail_rows(evidence: &Evidence, verdict: &mut Verdict) {
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    // The rail proxy lists them in the order of their intents. Their instants are no order: two may share one.
    for row in &evidence.submissions {
        let Some(token) = row.token else { continue };
        let mark = highest.entry(&row.account_id).or_default();
        verdict.demand(token > *mark, || {
            format!(
                "rail: {} submitted under token {token} on {}, where {mark} had submitted before",
                row.payout_id, row.account_id
            )
        });
        *mark = (*mark).max(token);
    }
    for water in &evidence.high_water {
        if let Some(mark) = highest.get(water.account_id.as_str()) {
            verdict.demand(water.highest_token >= *mark, || {
                format!(
                    "rail: the mark of {} is {}, yet {mark} has submitted",
                    water.account_id, water.highest_token
                )
            });
        }
    }
}

fn refusal(evidence: &Evidence, refused: &Call, verdict: &mut Verdict) {
    let (Some(token), Some(payout)) = (refused.token, refused.payout.as_deref()) else {
        return;
    };
    let let_in_before = evidence.calls.iter().any(|call| {
        call.verb == refused.verb
            && call.token == Some(token)
            && call.payout.as_deref() == Some(payout)
            && call.outcome != Outcome::Refused
    });
    let rows = match refused.verb.as_str() {
        "submit" => evidence
            .submissions
            .iter()
            .filter(|row| {
                row.payout_id == payout && row.token == Some(token) && row.outcome.as_deref() != Some("NOT_SENT")
            })
            .count(),
        verb => {
            let Some(state) = reached_by(verb) else { return };
            evidence
                .transitions
                .iter()
                .filter(|row| row.payout_id == payout && row.token == Some(token) && row.to_state == state)
                .count()
        }
    };
    verdict.demand(rows == 0 || let_in_before, || {
        format!(
            "{} of {payout} under token {token} was answered FENCED_OUT but left {rows} row(s)",
            refused.verb
        )
    });
}

/// The state a verb of the payment resource leads to.
fn reached_by(verb: &str) -> Option<&'static str> {
    Some(match verb {
        "claim" => "CLAIMED",
        "post" => "POSTED",
        "fail" => "FAILED",
        "ambiguous" => "RAIL_AMBIGUOUS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::invariant::{Invariant, sample};

    #[test]
    fn a_payment_written_under_a_stale_token_is_caught() {
        let mut evidence = sample::good();
        let mut stale = evidence.transitions[1].clone();
        stale.seq = 1_000;
        evidence.transitions.push(stale);
        assert!(Invariant::Inv05.check(&evidence).broken());
    }

    #[test]
    fn a_submission_under_a_stale_token_is_caught() {
        let mut evidence = sample::good();
        let mut stale = evidence.submissions[0].clone();
        stale.submission_id = "S9".to_owned();
        stale.intent_at = "2026-01-01T01:00:00Z".to_owned();
        stale.token = Some(5);
        evidence.submissions.push(stale);
        assert!(Invariant::Inv05.check(&evidence).broken());
    }

    /// An intent of exactly 49 s stood behind one of 49.472 s when the instants were compared as texts.
    #[test]
    fn submissions_are_ordered_as_they_are_listed_not_by_the_text_of_their_instants() {
        let mut evidence = sample::good();
        let mut next = evidence.submissions[0].clone();
        evidence.submissions[0].intent_at = "2026-11-29T20:24:49Z".to_owned();
        next.submission_id = "S9".to_owned();
        next.payout_id = "P9".to_owned();
        next.intent_at = "2026-11-29T20:24:49.472Z".to_owned();
        next.token = evidence.submissions[0].token.map(|token| token + 1);
        evidence.submissions.insert(1, next);
        evidence.high_water[0].highest_token += 1;
        let verdict = Invariant::Inv05.check(&evidence);
        assert!(!verdict.broken(), "{:?}", verdict.violations);
    }

    #[test]
    fn a_mark_below_what_it_let_through_is_caught() {
        let mut evidence = sample::good();
        evidence.accounts[0].fence = 5;
        assert!(Invariant::Inv05.check(&evidence).broken());
        let mut evidence = sample::good();
        evidence.high_water[0].highest_token = 5;
        assert!(Invariant::Inv05.check(&evidence).broken());
    }

    #[test]
    fn a_refusal_that_left_a_row_is_caught() {
        for verb in ["claim", "post", "submit"] {
            let mut evidence = sample::good();
            for call in evidence.calls.iter_mut().filter(|call| call.verb == verb) {
                call.outcome = crate::history::Outcome::Refused;
                call.code = Some("FENCED_OUT".to_owned());
            }
            assert!(Invariant::Inv05.check(&evidence).broken(), "{verb}");
        }
    }
}
