//! INV-08: every payout's history is a path of the state machine, every step attributed to an actor, every worker's
//! step also to a token; nothing is stuck: after faults end, every funded payout reaches POSTED, FAILED or an escalated
//! RAIL_AMBIGUOUS.

use super::Verdict;
use crate::model::{Evidence, Transition};
use std::collections::BTreeMap;

/// The arrows of the state machine, written down here a second time on purpose: the judge does not ask the judged.
const ARROWS: [(&str, &str); 8] = [
    ("PENDING", "CLAIMED"),
    ("PENDING", "FAILED"),
    ("CLAIMED", "CLAIMED"),
    ("CLAIMED", "POSTED"),
    ("CLAIMED", "FAILED"),
    ("CLAIMED", "RAIL_AMBIGUOUS"),
    ("RAIL_AMBIGUOUS", "POSTED"),
    ("RAIL_AMBIGUOUS", "FAILED"),
];

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    let mut paths: BTreeMap<&str, Vec<&Transition>> = BTreeMap::new();
    for row in &evidence.transitions {
        paths.entry(&row.payout_id).or_default().push(row);
    }
    for payout in &evidence.payouts {
        let id = payout.payout_id.as_str();
        let mut path = paths.remove(id).unwrap_or_default();
        path.sort_by_key(|row| row.seq);
        let mut at = None;
        for row in path {
            let from = row.from_state.as_deref();
            verdict.demand(from == at, || {
                format!("{id}: step {} leaves {from:?}, but it stood at {at:?}", row.seq)
            });
            let lawful = match from {
                None => row.to_state == "PENDING",
                // An escalation is recorded as a step that changes no state.
                Some("RAIL_AMBIGUOUS") if row.to_state == "RAIL_AMBIGUOUS" => true,
                Some(from) => ARROWS.contains(&(from, row.to_state.as_str())),
            };
            verdict.demand(lawful, || {
                format!("{id}: {from:?} → {} is no arrow of the state machine", row.to_state)
            });
            verdict.demand(row.actor.as_deref().is_some_and(|actor| !actor.is_empty()), || {
                format!("{id}: step {} → {} is attributed to nobody", row.seq, row.to_state)
            });
            at = Some(row.to_state.as_str());
        }
        verdict.demand(at == Some(payout.state.as_str()), || {
            format!("{id} is {} but its history ends at {at:?}", payout.state)
        });
        let settled = match payout.state.as_str() {
            "POSTED" | "FAILED" => true,
            "RAIL_AMBIGUOUS" => payout.escalated_at.is_some(),
            "PENDING" => !funded(evidence, &payout.account_id, payout.amount_minor),
            _ => false,
        };
        verdict.demand(settled, || format!("{id} is stuck in {}", payout.state));
    }
    for (id, path) in paths {
        verdict.demand(false, || {
            format!("{} steps belong to {id}, which is no payout", path.len())
        });
    }
}

/// Whether the account could pay this much now: its balance less what ambiguous and claimed payouts hold.
fn funded(evidence: &Evidence, account_id: &str, amount_minor: i64) -> bool {
    let balance = evidence
        .accounts
        .iter()
        .find(|account| account.account_id == account_id)
        .map_or(0, |account| account.balance_minor);
    let held: i64 = evidence
        .payouts
        .iter()
        .filter(|payout| payout.account_id == account_id)
        .filter(|payout| matches!(payout.state.as_str(), "CLAIMED" | "RAIL_AMBIGUOUS"))
        .map(|payout| payout.amount_minor)
        .sum();
    balance - held >= amount_minor
}

#[cfg(test)]
mod tests {
    use crate::invariant::{Invariant, sample};

    #[test]
    fn an_unlawful_step_and_a_gap_are_caught() {
        let mut back = sample::good();
        let last = back.transitions.iter().rposition(|row| row.payout_id == "P1").unwrap();
        let mut step = back.transitions[last].clone();
        step.seq = 1_000;
        step.from_state = Some("POSTED".to_owned());
        step.to_state = "CLAIMED".to_owned();
        back.transitions.push(step);
        assert!(Invariant::Inv08.check(&back).broken());

        let mut gap = sample::good();
        gap.transitions.retain(|row| row.seq != 2);
        assert!(Invariant::Inv08.check(&gap).broken());
    }

    #[test]
    fn a_step_by_nobody_is_caught() {
        let mut evidence = sample::good();
        evidence.transitions[1].actor = None;
        assert!(Invariant::Inv08.check(&evidence).broken());
    }

    #[test]
    fn stuck_payouts_are_caught_and_lawful_rests_are_not() {
        let mut ambiguous = sample::good();
        let last = ambiguous
            .transitions
            .iter()
            .rposition(|row| row.payout_id == "P1")
            .unwrap();
        ambiguous.transitions[last].to_state = "RAIL_AMBIGUOUS".to_owned();
        ambiguous.payouts[0].state = "RAIL_AMBIGUOUS".to_owned();
        assert!(
            Invariant::Inv08
                .check(&ambiguous)
                .violations
                .iter()
                .any(|v| v.contains("stuck"))
        );
        ambiguous.payouts[0].escalated_at = Some("2026-01-01T05:00:00Z".to_owned());
        assert!(Invariant::Inv08.check(&ambiguous).held());

        let mut waiting = sample::good();
        let mut payout = waiting.payouts[0].clone();
        payout.payout_id = "P9".to_owned();
        payout.state = "PENDING".to_owned();
        let mut created = waiting.transitions[0].clone();
        created.payout_id = "P9".to_owned();
        waiting.transitions.push(created);
        waiting.payouts.push(payout);
        assert!(Invariant::Inv08.check(&waiting).broken(), "there is money for it");
        waiting.payouts.last_mut().unwrap().amount_minor = i64::MAX;
        assert!(Invariant::Inv08.check(&waiting).held(), "there is none");
    }
}
