//! INV-02: at most one execution at the rail per payout.
//!
//! Reads the rail's own book, never the proxy's. The rail's totals must be accounted for by the references that were
//! asked for, the amount that left must be the payout's, a posted payout must have left once and a failed one never.

use super::Verdict;
use crate::model::Evidence;
use money_kit::amount;

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    for entry in &evidence.rail_book {
        let (reference, times) = (&entry.client_reference, entry.executions.len());
        verdict.demand(times <= 1, || format!("payout {reference} was executed {times} times"));
        let Some(payout) = evidence.payout(reference) else {
            verdict.demand(times == 0, || {
                format!("the rail executed {reference}, which is no payout")
            });
            continue;
        };
        for execution in &entry.executions {
            verdict.demand(execution.amount_minor == payout.amount_minor, || {
                format!(
                    "payout {reference}: {} left instead of {}",
                    amount(execution.amount_minor, &payout.currency),
                    amount(payout.amount_minor, &payout.currency)
                )
            });
        }
        match payout.state.as_str() {
            "POSTED" => verdict.demand(times >= 1, || format!("payout {reference} is POSTED but no money left")),
            "FAILED" => verdict.demand(times == 0, || format!("payout {reference} is FAILED but money left")),
            _ => {}
        }
    }
    if !evidence.rail_book.is_empty() {
        let known: usize = evidence.rail_book.iter().map(|entry| entry.executions.len()).sum();
        let executed = evidence.rail_stats.executed;
        verdict.demand(executed == known as u64, || {
            format!("the rail executed {executed} submissions, {known} of them for known payouts")
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::{Invariant, sample};

    #[test]
    fn a_second_execution_is_caught() {
        let mut evidence = sample::good();
        let again = evidence.rail_book[0].executions[0].clone();
        evidence.rail_book[0].executions.push(again);
        evidence.rail_stats.executed += 1;
        let verdict = Invariant::Inv02.check(&evidence);
        assert_eq!(verdict.violations, ["payout P1 was executed 2 times"]);
    }

    #[test]
    fn an_execution_nobody_asked_for_is_caught() {
        let mut evidence = sample::good();
        evidence.rail_stats.executed += 1;
        assert!(Invariant::Inv02.check(&evidence).broken());
    }

    #[test]
    fn a_wrong_amount_is_caught() {
        let mut evidence = sample::good();
        evidence.rail_book[0].executions[0].amount_minor += 1;
        assert!(Invariant::Inv02.check(&evidence).broken());
    }

    #[test]
    fn posted_without_an_execution_and_failed_with_one_are_caught() {
        let mut evidence = sample::good();
        let execution = evidence.rail_book[0].executions.pop().unwrap();
        evidence.rail_stats.executed -= 1;
        assert!(Invariant::Inv02.check(&evidence).broken());
        evidence.rail_book[1].executions.push(execution);
        evidence.rail_stats.executed += 1;
        assert!(
            Invariant::Inv02
                .check(&evidence)
                .violations
                .iter()
                .any(|v| v.contains("FAILED"))
        );
    }
}
