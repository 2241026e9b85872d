//! LOCK-HISTORY: what the clients saw of each key is what one lock would have answered.
//!
//! Two checks that share no code judge each key, and must agree; and the audit trail must know what clients were told:
//! every grant, and an end of every grant whose release was acknowledged.
//!
//! A restore that takes facts back makes the store forget the end of a grant, which is then held once more by nobody: no
//! lock would do that, and no search could find an order. Such a run is judged by the order of tokens and the trail alone,
//! what was taken back included.

use super::Verdict;
use crate::history::Outcome;
use crate::linearizability::{Found, STEPS_MAX, histories, search, token_order};
use crate::model::Evidence;
use std::collections::BTreeSet;

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    let restored = !evidence.lost_events.is_empty();
    for mut history in histories(evidence) {
        if restored {
            history.kept.clear();
        }
        verdict.facts += history.facts();
        let by_order = token_order(&history);
        if restored {
            verdict.violations.extend(by_order);
            continue;
        }
        let found = search(&history, STEPS_MAX);
        let key = &history.key;
        match &found {
            Found::Order if by_order.is_empty() => {}
            Found::Order => verdict.violations.push(format!(
                "{key}: the search finds an order, the order of tokens says there is none"
            )),
            Found::None(why) => {
                verdict
                    .violations
                    .push(format!("{key}: not the history of a lock: {why}"));
                if by_order.is_empty() {
                    verdict.violations.push(format!(
                        "{key}: the order of tokens finds nothing wrong, the search finds no order"
                    ));
                }
            }
            Found::NotChecked(steps) => verdict
                .not_checked
                .push(format!("{key}: the search was given up after {steps} states")),
        }
        verdict.violations.extend(by_order);
    }
    against_the_trail(evidence, verdict);
}

fn against_the_trail(evidence: &Evidence, verdict: &mut Verdict) {
    // Evidence without any trail is that of clients alone.
    if evidence.lock_events.is_empty() {
        return;
    }
    let granted = evidence.grants();
    let sessions: BTreeSet<&str> = evidence
        .lost_events
        .iter()
        .chain(&evidence.lock_events)
        .filter(|event| matches!(event.kind.as_str(), "SESSION_CLOSED" | "SESSION_EXPIRED"))
        .filter_map(|event| event.session_id.as_deref())
        .collect();
    let mut ended: BTreeSet<(&str, u64)> = BTreeSet::new();
    for event in evidence.lost_events.iter().chain(&evidence.lock_events) {
        let (Some(key), Some(token)) = (event.lock_key.as_deref(), event.token) else {
            continue;
        };
        let over = match event.kind.as_str() {
            "RELEASED" | "EXPIRED" | "REVOKED" => true,
            "GRANTED" => event.session_id.as_deref().is_some_and(|id| sessions.contains(id)),
            _ => false,
        };
        if over {
            ended.insert((key, token));
        }
    }
    for call in &evidence.calls {
        let (Some(key), Some(token), Outcome::Ok) = (call.key.as_deref(), call.token, call.outcome) else {
            continue;
        };
        match call.verb.as_str() {
            "acquire" => verdict.demand(granted.contains(&(key, token)), || {
                format!(
                    "{key}: {} was answered token {token}, which the trail never granted",
                    call.client
                )
            }),
            "release" => verdict.demand(
                ended.contains(&(key, token)) || !granted.contains(&(key, token)),
                || format!("{key}: the release of token {token} was acknowledged, but the trail knows no end of it"),
            ),
            _ => {}
        }
    }
    let askers: BTreeSet<(&str, &str)> = evidence
        .calls
        .iter()
        .filter(|call| call.verb == "acquire")
        .filter_map(|call| Some((call.client.as_str(), call.key.as_deref()?)))
        .collect();
    let clients: BTreeSet<&str> = askers.iter().map(|(client, _)| *client).collect();
    for event in evidence.lock_events.iter().filter(|event| event.kind == "GRANTED") {
        let (Some(key), Some(actor)) = (event.lock_key.as_deref(), event.actor.as_deref()) else {
            continue;
        };
        // Who recorded no acquire at all is no client of this run's histories.
        if clients.contains(actor) {
            verdict.demand(askers.contains(&(actor, key)), || {
                format!("{key}: granted to {actor}, who never asked for it")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::history::Outcome;
    use crate::invariant::{Invariant, sample};
    use crate::model::Evidence;

    /// The first grant of the key has no recorded end, and the answer to its release was lost.
    fn without_an_end() -> (Evidence, usize) {
        let mut evidence = sample::good();
        let first = evidence
            .lock_events
            .iter()
            .position(|event| event.kind == "GRANTED" && event.lock_key.as_deref() == Some("payout:A1"))
            .unwrap();
        let token = evidence.lock_events[first].token;
        evidence
            .lock_events
            .retain(|event| event.kind != "SESSION_EXPIRED" && (event.kind == "GRANTED" || event.token != token));
        let mut release = sample::call("W1", "release", 200, 250);
        (release.key, release.token, release.outcome) = (Some("payout:A1".to_owned()), token, Outcome::Unknown);
        evidence.calls.push(release);
        let first = evidence
            .lock_events
            .iter()
            .position(|event| event.kind == "GRANTED" && event.token == token)
            .unwrap();
        (evidence, first)
    }

    #[test]
    fn a_grant_whose_end_nobody_recorded_is_not_followed_by_another() {
        let (evidence, _) = without_an_end();
        assert!(Invariant::LockHistory.check(&evidence).broken());
    }

    #[test]
    fn a_grant_that_a_restore_took_back_has_ended() {
        let (mut evidence, first) = without_an_end();
        let forgotten = evidence.lock_events.remove(first);
        evidence.lost_events.push(forgotten);
        let verdict = Invariant::LockHistory.check(&evidence);
        assert!(!verdict.broken(), "{:?}", verdict.violations);
    }

    /// Between the last end of the key and the next question nobody held it.
    fn refused_while_free(code: &str) -> Evidence {
        let mut evidence = sample::good();
        let mut refused = sample::call("W1", "acquire", 546, 547);
        (refused.key, refused.outcome) = (Some("payout:A1".to_owned()), Outcome::Refused);
        refused.code = Some(code.to_owned());
        evidence.calls.push(refused);
        evidence
    }

    #[test]
    fn a_free_key_may_be_closed_but_not_busy() {
        let closed = Invariant::LockHistory.check(&refused_while_free("LOCK_DELAYED"));
        assert!(closed.held(), "{:?}", closed.violations);
        assert!(
            Invariant::LockHistory
                .check(&refused_while_free("HELD_BY_OTHER"))
                .broken()
        );
    }

    #[test]
    fn a_request_to_yield_ends_nothing() {
        let mut evidence = sample::good();
        let granted = evidence
            .lock_events
            .iter()
            .position(|event| event.kind == "GRANTED" && event.lock_key.as_deref() == Some("payout:A1"))
            .unwrap();
        let mut asked = evidence.lock_events[granted].clone();
        (asked.kind, asked.actor) = ("YIELD_REQUESTED".to_owned(), Some("ann".to_owned()));
        evidence.lock_events.insert(granted + 1, asked);
        for (event, seq) in evidence.lock_events.iter_mut().zip(1..) {
            event.seq = seq;
        }
        for verdict in crate::invariant::check_all(&evidence) {
            assert!(verdict.held(), "{verdict:?}");
        }
    }
}
