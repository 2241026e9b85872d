//! INV-07: no side effect without an explicit token.
//!
//! Over HTTP: every worker's step, submission and ledger leg carries one, and a call made without one was refused. (In
//! Rust it is a compile error; the compile-fail tests of `lock-api` show that.)

use super::Verdict;
use crate::history::Outcome;
use crate::model::Evidence;

/// The verbs that write under a grant.
const WRITES: [&str; 7] = ["claim", "submit", "post", "fail", "ambiguous", "resolve", "fence"];

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    for row in &evidence.transitions {
        // Creation and an operator's cancel of a pending payout are unfenced by design: no money can have moved.
        let unfenced = match row.from_state.as_deref() {
            None => true,
            Some(from) => from == "PENDING" && row.to_state == "FAILED",
        };
        if !unfenced {
            verdict.demand(row.token.is_some(), || {
                format!("{} → {} without a token", row.payout_id, row.to_state)
            });
        }
    }
    for row in &evidence.submissions {
        verdict.demand(row.token.is_some(), || {
            format!("submission {} without a token", row.submission_id)
        });
    }
    for entry in evidence.ledger.iter().filter(|entry| entry.payout_id.is_some()) {
        verdict.demand(entry.token.is_some(), || {
            format!("ledger entry {} without a token", entry.entry_id)
        });
    }
    for call in evidence
        .calls
        .iter()
        .filter(|call| WRITES.contains(&call.verb.as_str()))
    {
        verdict.demand(call.token.is_some() || call.outcome == Outcome::Refused, || {
            format!(
                "{} of {} by {} was not refused although it carried no token",
                call.verb,
                call.payout.as_deref().unwrap_or("?"),
                call.client
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::{Invariant, sample};

    #[test]
    fn a_row_of_each_kind_without_a_token_is_caught() {
        let mut step = sample::good();
        step.transitions[1].token = None;
        assert!(Invariant::Inv07.check(&step).broken());

        let mut submission = sample::good();
        submission.submissions[0].token = None;
        assert!(Invariant::Inv07.check(&submission).broken());

        let mut leg = sample::good();
        leg.ledger[0].token = None;
        assert!(Invariant::Inv07.check(&leg).broken());
    }

    #[test]
    fn an_accepted_call_without_a_token_is_caught() {
        let mut evidence = sample::good();
        let mut naked = sample::call("probe", "claim", 9_000, 9_010);
        naked.payout = Some("P1".to_owned());
        evidence.calls.push(naked);
        assert!(Invariant::Inv07.check(&evidence).broken());
    }
}
