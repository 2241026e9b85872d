//! INV-03: every payout POSTED has exactly its two legs, sum zero; no other payout has any; the stored balance is the
//! opening balance plus the sum of the legs.

use super::Verdict;
use crate::model::{Evidence, LedgerEntry};
use money_kit::amount;
use std::collections::BTreeMap;

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    let mut legs: BTreeMap<&str, Vec<&LedgerEntry>> = BTreeMap::new();
    let mut moved: BTreeMap<&str, i128> = BTreeMap::new();
    for entry in &evidence.ledger {
        *moved.entry(&entry.account_id).or_default() += i128::from(entry.amount_minor);
        if let Some(payout) = entry.payout_id.as_deref() {
            legs.entry(payout).or_default().push(entry);
        }
    }
    for payout in &evidence.payouts {
        let id = &payout.payout_id;
        let own = legs.remove(id.as_str()).unwrap_or_default();
        if payout.state != "POSTED" {
            verdict.demand(own.is_empty(), || {
                format!("payout {id} is {} but has {} legs", payout.state, own.len())
            });
            continue;
        }
        verdict.demand(own.len() == 2, || {
            format!("payout {id} is POSTED with {} legs instead of 2", own.len())
        });
        let sum: i128 = own.iter().map(|leg| i128::from(leg.amount_minor)).sum();
        verdict.demand(sum == 0, || {
            format!("the legs of payout {id} add up to {}", amount(sum, &payout.currency))
        });
        let debited: i128 = own
            .iter()
            .filter(|leg| leg.account_id == payout.account_id)
            .map(|leg| i128::from(leg.amount_minor))
            .sum();
        verdict.demand(debited == -i128::from(payout.amount_minor), || {
            format!(
                "payout {id} over {} moved {} on {}",
                amount(payout.amount_minor, &payout.currency),
                amount(debited, &payout.currency),
                payout.account_id
            )
        });
    }
    for (payout, own) in legs {
        verdict.demand(false, || {
            format!("{} legs belong to {payout}, which is no payout", own.len())
        });
    }
    for account in &evidence.accounts {
        let entries = moved.get(account.account_id.as_str()).copied().unwrap_or(0);
        let expected = i128::from(account.opening_balance_minor) + entries;
        verdict.demand(i128::from(account.balance_minor) == expected, || {
            format!(
                "account {} stores {} but opening balance and entries make {}",
                account.account_id,
                amount(account.balance_minor, &account.currency),
                amount(expected, &account.currency)
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::{Invariant, sample};

    #[test]
    fn doubled_missing_and_crooked_legs_are_caught() {
        let mut doubled = sample::good();
        let again: Vec<_> = doubled.ledger.clone();
        doubled.ledger.extend(again);
        assert!(Invariant::Inv03.check(&doubled).broken());

        let mut missing = sample::good();
        missing.ledger.pop();
        assert!(Invariant::Inv03.check(&missing).broken());

        let mut crooked = sample::good();
        crooked.ledger[0].amount_minor -= 1;
        assert!(Invariant::Inv03.check(&crooked).broken());
    }

    #[test]
    fn legs_under_a_payout_that_is_not_posted_are_caught() {
        let mut evidence = sample::good();
        evidence.payouts[0].state = "CLAIMED".to_owned();
        assert_eq!(
            Invariant::Inv03.check(&evidence).violations,
            ["payout P1 is CLAIMED but has 2 legs"]
        );
    }

    #[test]
    fn a_balance_that_does_not_follow_is_caught() {
        let mut evidence = sample::good();
        evidence.accounts[0].balance_minor += 1;
        assert!(Invariant::Inv03.check(&evidence).broken());
    }
}
