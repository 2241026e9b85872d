//! INV-04: the tokens of a key strictly increase in grant order, across restart, failover and restore.
//!
//! Two independent orders must agree: the store's own (the audit trail) and real time as the clients saw it (a grant
//! whose answer was there before another was asked for has the lower token; a grant returned before an earlier token's
//! release began can only be right if that one had ended by itself).

use super::Verdict;
use crate::history::{Call, Outcome};
use crate::model::Evidence;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    store_order(evidence, verdict);
    client_order(evidence, verdict);
}

fn store_order(evidence: &Evidence, verdict: &mut Verdict) {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    let taken_back = evidence.taken_back();
    let mut events: Vec<_> = evidence.lock_events.iter().collect();
    events.sort_by_key(|event| event.seq);
    for event in events {
        let (Some(key), Some(token)) = (event.lock_key.as_deref(), event.token) else {
            continue;
        };
        match event.kind.as_str() {
            "GRANTED" => {
                let before = last.insert(key, token);
                verdict.demand(before.is_none_or(|before| before < token), || {
                    format!(
                        "event {}: {key} granted under token {token} after {}",
                        event.seq,
                        before.unwrap_or(0)
                    )
                });
                verdict.demand(!taken_back.contains(&(key, token)), || {
                    format!(
                        "event {}: {key} granted under token {token}, which it was granted under before a restore",
                        event.seq
                    )
                });
            }
            // The row of a revoke shows the token it minted or the one it broke; the higher one counts.
            "REVOKED" => {
                let highest = last.entry(key).or_default();
                *highest = (*highest).max(token);
            }
            _ => {}
        }
    }
}

fn client_order(evidence: &Evidence, verdict: &mut Verdict) {
    // One grant may be answered several times (the same request again): the first answer counts.
    let mut grants: BTreeMap<&str, BTreeMap<u64, &Call>> = BTreeMap::new();
    let mut released: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    let mut acknowledged: BTreeSet<(&str, u64)> = BTreeSet::new();
    for call in &evidence.calls {
        let (Some(key), Some(token)) = (call.key.as_deref(), call.token) else {
            continue;
        };
        match call.verb.as_str() {
            "acquire" if call.outcome == Outcome::Ok => {
                let first = grants.entry(key).or_default().entry(token).or_insert(call);
                if call.ended_us() < first.ended_us() {
                    *first = call;
                }
            }
            // One whose answer was lost may have been done, and so may one that was refused only here because the lease
            // had run out: the grant can have ended as soon as the first of them was sent.
            "release" if call.outcome != Outcome::Refused || given_up(call) => {
                let began = released.entry((key, token)).or_insert(call.invoked_us);
                *began = (*began).min(call.invoked_us);
                if call.outcome == Outcome::Ok {
                    acknowledged.insert((key, token));
                }
            }
            _ => {}
        }
    }
    // Whoever closed a session gave back what it held. Its own client may learn of that, and give up, long after.
    let closed: BTreeSet<&str> = evidence
        .lock_events
        .iter()
        .filter(|event| event.kind == "SESSION_CLOSED")
        .filter_map(|event| event.session_id.as_deref())
        .collect();
    let closed_under_its_holder = evidence
        .lock_events
        .iter()
        .filter(|event| event.kind == "GRANTED")
        .filter(|event| {
            event
                .session_id
                .as_deref()
                .is_some_and(|session| closed.contains(session))
        })
        .filter_map(|event| Some((event.lock_key.as_deref()?, event.token?)))
        .filter(|grant| !acknowledged.contains(grant));
    // A restore that took a grant back has ended it, whatever its holder still believes.
    let ended_by_itself: BTreeSet<(&str, u64)> = evidence
        .lost_events
        .iter()
        .chain(&evidence.lock_events)
        .filter(|event| matches!(event.kind.as_str(), "EXPIRED" | "REVOKED"))
        .filter_map(|event| Some((event.lock_key.as_deref()?, event.token?)))
        .chain(evidence.taken_back())
        .chain(closed_under_its_holder)
        .collect();
    for (key, by_token) in grants {
        let in_order: Vec<_> = by_token.into_iter().collect();
        for pair in in_order.windows(2) {
            let ((lower, earlier), (higher, later)) = (pair[0], pair[1]);
            verdict.demand(later.ended_us() >= earlier.invoked_us, || {
                format!("{key}: token {higher} was answered before {lower} was even asked for")
            });
            if let Some(began) = released.get(&(key, lower)) {
                verdict.demand(
                    later.ended_us() >= *began || ended_by_itself.contains(&(key, lower)),
                    || format!("{key}: token {higher} was granted before {lower} was released"),
                );
            }
        }
    }
}

/// A release that the client itself refused because it had lost the lock; the server is told all the same.
fn given_up(call: &Call) -> bool {
    call.code.as_deref().is_some_and(|code| code.starts_with("LOCK_LOST"))
}

#[cfg(test)]
mod tests {
    use crate::history::Outcome;
    use crate::invariant::{Invariant, sample};

    #[test]
    fn a_token_that_comes_again_or_falls_is_caught() {
        for wrong in [5, 4] {
            let mut evidence = sample::good();
            let second = evidence
                .lock_events
                .iter()
                .rposition(|event| event.kind == "GRANTED" && event.lock_key.as_deref() == Some("payout:A1"))
                .unwrap();
            evidence.lock_events[second].token = Some(wrong);
            assert!(Invariant::Inv04.check(&evidence).broken(), "token {wrong}");
        }
    }

    #[test]
    fn a_token_that_comes_again_after_a_restore_is_caught() {
        let mut evidence = sample::good();
        let granted = evidence.lock_events.iter().find(|event| event.kind == "GRANTED");
        evidence.lost_events = granted.cloned().into_iter().collect();
        assert!(Invariant::Inv04.check(&evidence).broken());
    }

    #[test]
    fn clients_who_saw_the_tokens_the_other_way_round_are_believed() {
        let mut evidence = sample::good();
        evidence.lock_events.clear();
        for call in evidence.calls.iter_mut().filter(|call| call.verb == "acquire") {
            // The one answered first now shows the higher token.
            call.token = call.token.map(|token| 100 - token);
        }
        assert!(Invariant::Inv04.check(&evidence).broken());
    }

    #[test]
    fn a_release_whose_answer_was_lost_counts_from_when_it_was_sent() {
        let mut evidence = sample::good();
        evidence.lock_events.retain(|event| event.kind == "GRANTED");
        for (at, outcome) in [(450, Outcome::Unknown), (1_000, Outcome::Ok)] {
            let mut release = sample::call("W1", "release", at, at + 10);
            release.key = Some("payout:A1".to_owned());
            release.token = Some(5);
            release.outcome = outcome;
            evidence.calls.push(release);
        }
        assert!(!Invariant::Inv04.check(&evidence).broken());
    }

    #[test]
    fn a_grant_before_the_release_of_the_one_before_is_caught() {
        let mut evidence = sample::good();
        evidence.lock_events.retain(|event| event.kind == "GRANTED");
        let mut release = sample::call("W1", "release", 1_000, 1_010);
        release.key = Some("payout:A1".to_owned());
        release.token = Some(5);
        evidence.calls.push(release);
        assert!(Invariant::Inv04.check(&evidence).broken());
    }
}
