//! INV-06: no claim, submission or post exists without a grant of that token on that account's key in the grant
//! history. (Every other tokened step is held to it too.)

use super::Verdict;
use crate::model::{Evidence, lock_key};

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    let grants = evidence.grants();
    let account_of = evidence.account_of();
    for row in &evidence.transitions {
        let (Some(token), Some(account)) = (row.token, account_of.get(row.payout_id.as_str())) else {
            continue;
        };
        let key = lock_key(account);
        verdict.demand(grants.contains(&(key.as_str(), token)), || {
            format!(
                "{} → {} under token {token}, which was never granted on {key}",
                row.payout_id, row.to_state
            )
        });
    }
    for row in &evidence.submissions {
        let Some(token) = row.token else { continue };
        let key = lock_key(&row.account_id);
        verdict.demand(grants.contains(&(key.as_str(), token)), || {
            format!(
                "submission {} of {} under token {token}, which was never granted on {key}",
                row.submission_id, row.payout_id
            )
        });
    }
    for entry in &evidence.ledger {
        let (Some(token), Some(account)) = (
            entry.token,
            entry.payout_id.as_deref().and_then(|payout| account_of.get(payout)),
        ) else {
            continue;
        };
        let key = lock_key(account);
        verdict.demand(grants.contains(&(key.as_str(), token)), || {
            format!(
                "ledger entry {} under token {token}, which was never granted on {key}",
                entry.entry_id
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::{Invariant, sample};

    #[test]
    fn a_row_of_each_kind_without_its_grant_is_caught() {
        let mut claim = sample::good();
        claim.transitions[1].token = Some(77);
        assert!(Invariant::Inv06.check(&claim).broken());

        let mut submission = sample::good();
        submission.submissions[0].token = Some(77);
        assert!(Invariant::Inv06.check(&submission).broken());

        let mut leg = sample::good();
        leg.ledger[0].token = Some(77);
        assert!(Invariant::Inv06.check(&leg).broken());
    }

    #[test]
    fn a_grant_on_another_key_does_not_count() {
        let mut evidence = sample::good();
        for event in &mut evidence.lock_events {
            event.lock_key = event.lock_key.take().map(|_| "payout:A9".to_owned());
        }
        assert!(Invariant::Inv06.check(&evidence).broken());
    }
}
