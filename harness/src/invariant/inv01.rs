//! INV-01: at every instant at most one unexpired grant per key, as the store records it.
//!
//! Reads the audit trail in its own order: a grant begins with GRANTED and ends with RELEASED, EXPIRED or REVOKED of
//! its key, or with its session. What is released is released for the session that it was granted to.

use super::Verdict;
use crate::model::Evidence;
use std::collections::BTreeMap;

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    let mut live: BTreeMap<&str, (u64, Option<&str>)> = BTreeMap::new();
    let mut events: Vec<_> = evidence.lock_events.iter().collect();
    events.sort_by_key(|event| event.seq);
    for event in events {
        match (event.kind.as_str(), event.lock_key.as_deref()) {
            ("GRANTED", Some(key)) => {
                let token = event.token.unwrap_or(0);
                let before = live.insert(key, (token, event.session_id.as_deref()));
                verdict.demand(before.is_none(), || {
                    let held = before.map_or(0, |(held, _)| held);
                    format!(
                        "event {}: {key} granted under token {token} while held under {held}",
                        event.seq
                    )
                });
            }
            // What ends an earlier grant does not end a later one.
            ("RELEASED" | "EXPIRED" | "REVOKED", Some(key)) => {
                if let ("RELEASED", Some((token, Some(session))), Some(by)) =
                    (event.kind.as_str(), live.get(key), event.session_id.as_deref())
                    && event.token == Some(*token)
                {
                    verdict.demand(by == *session, || {
                        format!(
                            "event {}: {key}, token {token} of {session}, was released by {by}",
                            event.seq
                        )
                    });
                }
                live.retain(|held, (token, _)| *held != key || event.token.is_some_and(|ended| ended != *token));
            }
            ("SESSION_CLOSED" | "SESSION_EXPIRED", _) => {
                live.retain(|_, (_, session)| session.is_none() || *session != event.session_id.as_deref());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::invariant::{Invariant, sample};

    #[test]
    fn a_second_grant_beside_a_live_one_is_caught() {
        let mut evidence = sample::good();
        // W2's grant comes before W1's lease was written off.
        let second = evidence
            .lock_events
            .iter()
            .rposition(|event| event.kind == "GRANTED" && event.lock_key.as_deref() == Some("payout:A1"))
            .unwrap();
        evidence.lock_events[second].seq = 2;
        assert!(Invariant::Inv01.check(&evidence).broken());
    }
}
