//! LOCK-LEASE: no lease ends before its promise, none is kept past the bound.
//!
//! A lease was promised until a moment: its acquire, renewal or heartbeat was sent at `s` and answered with what is left
//! of it, `t`, so it may not end before `s + t` unless it was released, revoked or its session closed. Early is seen in two
//! ways: another client had its grant in hand before that moment; or the trail wrote EXPIRED before it. Late: EXPIRED
//! came, or has not come at all, longer than [`LATE_MAX_US`] after the last renewal that can have reached the server had
//! run out.

use super::Verdict;
use crate::history::{Call, Outcome};
use crate::model::{Evidence, LockEvent};
use std::collections::BTreeMap;

/// How much later than its lease a grant may be written off. A lease is a lower bound, and a server that was down or
/// frozen gives every lease its full time again when it comes back; this is what a run's faults may take.
pub(crate) const LATE_MAX_US: u64 = 60_000_000;

/// What two clocks of one machine may differ by, read a moment apart.
const CLOCKS_US: u64 = 100_000;

/// What is known of one lease.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    /// It may not end before.
    promised_us: u64,
    /// It has run out by then, even if a last renewal reached the server whose answer was lost.
    over_us: u64,
}

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    let mut leases: BTreeMap<(&str, u64), Lease> = BTreeMap::new();
    for call in evidence.calls.iter().filter(|call| call.verb == "lease") {
        let (Some(key), Some(token), Some(until)) = (call.key.as_deref(), call.token, call.until_us) else {
            continue;
        };
        let length = until.saturating_sub(call.invoked_us);
        let lease = leases.entry((key, token)).or_default();
        lease.promised_us = lease.promised_us.max(until);
        lease.over_us = lease
            .over_us
            .max(call.ended_us().saturating_add(length.saturating_mul(2)));
    }
    let successors = successors(&evidence.calls);
    let mut trail: BTreeMap<(&str, u64), Vec<&LockEvent>> = BTreeMap::new();
    for event in &evidence.lock_events {
        if let (Some(key), Some(token)) = (event.lock_key.as_deref(), event.token) {
            trail.entry((key, token)).or_default().push(event);
        }
    }
    for ((key, token), lease) in leases {
        let events = trail.remove(&(key, token)).unwrap_or_default();
        not_early(evidence, (key, token), lease, &events, &successors, verdict);
        not_late(evidence, (key, token), lease, &events, verdict);
    }
}

/// Of each key, the grants that clients had in hand: token and when.
fn successors(calls: &[Call]) -> BTreeMap<&str, BTreeMap<u64, u64>> {
    let mut grants: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    for call in calls {
        if let ("acquire", Outcome::Ok, Some(key), Some(token)) =
            (call.verb.as_str(), call.outcome, call.key.as_deref(), call.token)
        {
            let at = grants.entry(key).or_default().entry(token).or_insert(u64::MAX);
            *at = (*at).min(call.ended_us());
        }
    }
    grants
}

/// Whether it was ended on purpose: released, by its holder or for it, revoked, or closed with its session.
fn ended_on_purpose(evidence: &Evidence, (key, token): (&str, u64), events: &[&LockEvent]) -> bool {
    let released = evidence.calls.iter().any(|call| {
        call.verb == "release"
            && call.key.as_deref() == Some(key)
            && call.token == Some(token)
            && (call.outcome != Outcome::Refused
                || call.code.as_deref().is_some_and(|code| code.starts_with("LOCK_LOST")))
    });
    let session = events
        .iter()
        .find(|event| event.kind == "GRANTED")
        .and_then(|event| event.session_id.as_deref());
    let granted_at = events
        .iter()
        .find(|event| event.kind == "GRANTED")
        .map(|event| event.seq);
    let next_at = evidence
        .lock_events
        .iter()
        .filter(|event| event.kind == "GRANTED" && event.lock_key.as_deref() == Some(key))
        .map(|event| event.seq)
        .filter(|seq| granted_at.is_some_and(|at| *seq > at))
        .min();
    released
        || events
            .iter()
            .any(|event| matches!(event.kind.as_str(), "RELEASED" | "REVOKED"))
        || evidence.lock_events.iter().any(|event| match event.kind.as_str() {
            "SESSION_CLOSED" => session.is_some() && event.session_id.as_deref() == session,
            // The row of a revoke may show the token that it minted instead of the one it broke. That of a later grant
            // ended this one no more.
            "REVOKED" => {
                event.lock_key.as_deref() == Some(key)
                    && granted_at.is_some_and(|seq| event.seq > seq)
                    && next_at.is_none_or(|seq| event.seq < seq)
            }
            _ => false,
        })
}

fn not_early(
    evidence: &Evidence,
    (key, token): (&str, u64),
    lease: Lease,
    events: &[&LockEvent],
    successors: &BTreeMap<&str, BTreeMap<u64, u64>>,
    verdict: &mut Verdict,
) {
    let next = successors.get(key).and_then(|grants| grants.range(token + 1..).next());
    if let Some((higher, at)) = next {
        let fine = *at >= lease.promised_us || ended_on_purpose(evidence, (key, token), events);
        verdict.demand(fine, || {
            format!(
                "{key}: token {higher} was granted {} ms before the lease of {token} had run out",
                (lease.promised_us - at).div_ceil(1000)
            )
        });
    } else {
        verdict.fact();
    }
    for event in events.iter().filter(|event| event.kind == "EXPIRED") {
        if let Some(at) = evidence.collected.and_then(|now| now.boot_us_of(&event.at)) {
            verdict.demand(at.saturating_add(CLOCKS_US) >= lease.promised_us, || {
                format!(
                    "{key}: token {token} expired {} ms before its lease had run out",
                    (lease.promised_us - at).div_ceil(1000)
                )
            });
        }
    }
}

fn not_late(
    evidence: &Evidence,
    (key, token): (&str, u64),
    lease: Lease,
    events: &[&LockEvent],
    verdict: &mut Verdict,
) {
    let Some(now) = evidence.collected else { return };
    let bound = lease.over_us.saturating_add(LATE_MAX_US);
    let expired = events.iter().find(|event| event.kind == "EXPIRED");
    if let Some(at) = expired.and_then(|event| now.boot_us_of(&event.at)) {
        verdict.demand(at <= bound, || {
            format!(
                "{key}: token {token} was kept for {} s after its lease had run out",
                at.saturating_sub(lease.over_us) / 1_000_000
            )
        });
        return;
    }
    let ended = expired.is_some()
        || ended_on_purpose(evidence, (key, token), events)
        || events.is_empty()
        || evidence.lock_events.iter().any(|event| {
            event.kind == "SESSION_EXPIRED"
                && events
                    .iter()
                    .any(|own| own.kind == "GRANTED" && own.session_id == event.session_id)
        });
    verdict.demand(ended || now.boot_us <= bound, || {
        format!(
            "{key}: token {token} is still kept {} s after its lease had run out",
            now.boot_us.saturating_sub(lease.over_us) / 1_000_000
        )
    });
}

#[cfg(test)]
mod tests {
    use crate::invariant::{Invariant, sample};

    #[test]
    fn the_revoke_of_a_later_grant_does_not_excuse_the_early_end_of_one_before_it() {
        let mut evidence = sample::good();
        for call in &mut evidence.calls {
            // 1 µs longer than until the next grant was in hand.
            if (call.verb.as_str(), call.token) == ("lease", Some(5)) {
                call.until_us = Some(506);
            }
        }
        assert!(Invariant::LockLease.check(&evidence).broken());
        "REVOKED".clone_into(&mut evidence.lock_events[5].kind);
        assert!(Invariant::LockLease.check(&evidence).broken());
    }
}
