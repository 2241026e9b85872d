//! LOCK-DELAY: a key that was lost uncleanly is granted to nobody before the delay that the lost grant had asked for is over.
//!
//! The trail has no column for the delay: who asked for one is known from the clients' histories, where it stands with
//! each lease. A loss is unclean where the trail ends the grant by EXPIRED, REVOKED or SESSION_EXPIRED; a release and the
//! close of a session, asked for or not, begin no delay and are no fact of this verdict. Each unclean loss that another
//! grant of the key followed is judged by two bounds:
//!
//! - By the clients' clock, to the microsecond, where the lease ran out: it cannot have ended before what its holder was
//!   promised, so nobody has the next grant in hand before that promise and the delay.
//! - By the store's own stamps: the row of the next grant is no earlier than the row of the loss and the delay, but for
//!   [`STAMPED_LATE_US`].
//!
//! What a restore of the store took back is not judged: the store that grants next has never known it.

use super::Verdict;
use crate::model::{Evidence, LockEvent, wall_ms};
use std::collections::BTreeMap;

/// How much later than it began to count a delay the store may have stamped the loss. On PostgreSQL the delay counts from
/// the statement that ends the grant, and its row is stamped when that transaction's turn to write rows has come: within
/// `lock.store.timeout`, which is so long in the harness's runs. The other stores stamp with the instant they count from.
pub(crate) const STAMPED_LATE_US: u64 = 2_000_000;

/// What its holder was told of a grant.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// The delay that it asked for.
    delay_us: u64,
    /// Its lease may not end before.
    promised_us: u64,
}

/// A grant of a key, as far as the trail has come.
#[derive(Clone, Copy, Debug)]
struct Grant<'a> {
    token: u64,
    session: Option<&'a str>,
    /// What ended it.
    end: Option<&'a LockEvent>,
}

impl Grant<'_> {
    fn is_ended_by(&self, event: &LockEvent) -> bool {
        match event.kind.as_str() {
            "RELEASED" | "EXPIRED" => event.token == Some(self.token),
            // The row of a revoke may show the token that it minted instead of the one it broke.
            "REVOKED" => event.token.is_none_or(|token| token >= self.token),
            "SESSION_CLOSED" | "SESSION_EXPIRED" => {
                self.session.is_some() && event.session_id.as_deref() == self.session
            }
            _ => false,
        }
    }
}

/// Whether a client asked for a delay: without one there is nothing to be judged here.
pub(super) fn was_asked_for(evidence: &Evidence) -> bool {
    evidence.calls.iter().any(|call| call.delay_us.is_some())
}

pub(super) fn check(evidence: &Evidence, verdict: &mut Verdict) {
    let taken_back = evidence.taken_back();
    let mut asked: BTreeMap<(&str, u64), Asked> = BTreeMap::new();
    // When a client had each grant in hand.
    let mut had: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for call in &evidence.calls {
        let (Some(key), Some(token)) = (call.key.as_deref(), call.token) else {
            continue;
        };
        match (call.verb.as_str(), call.until_us) {
            ("lease", Some(until)) => {
                let asked = asked.entry((key, token)).or_default();
                asked.delay_us = asked.delay_us.max(call.delay_us.unwrap_or(0));
                asked.promised_us = asked.promised_us.max(until);
            }
            ("acquire", _) => {
                let at = had.entry((key, token)).or_insert(u64::MAX);
                *at = (*at).min(call.ended_us());
            }
            _ => {}
        }
    }
    let mut grants: BTreeMap<&str, Grant<'_>> = BTreeMap::new();
    let mut events: Vec<_> = evidence.lock_events.iter().collect();
    events.sort_by_key(|event| event.seq);
    for event in events {
        if let ("GRANTED", Some(key), Some(token)) = (event.kind.as_str(), event.lock_key.as_deref(), event.token) {
            let next = Grant {
                token,
                session: event.session_id.as_deref(),
                end: None,
            };
            let Some(before) = grants.insert(key, next) else {
                continue;
            };
            let lost = (key, before.token);
            if let (Some(end), Some(asked)) = (before.end, asked.get(&lost).filter(|asked| asked.delay_us > 0))
                && !taken_back.contains(&lost)
            {
                judge(lost, *asked, end, event, had.get(&(key, token)).copied(), verdict);
            }
            continue;
        }
        for (key, grant) in &mut grants {
            let is_of_key = event.lock_key.as_deref().is_none_or(|of| of == *key);
            if grant.end.is_none() && is_of_key && grant.is_ended_by(event) {
                grant.end = Some(event);
            }
        }
    }
}

/// One loss, and the grant that followed it.
fn judge(
    (key, token): (&str, u64),
    asked: Asked,
    end: &LockEvent,
    next: &LockEvent,
    had_us: Option<u64>,
    verdict: &mut Verdict,
) {
    let ran_out = matches!(end.kind.as_str(), "EXPIRED" | "SESSION_EXPIRED");
    if !ran_out && end.kind != "REVOKED" {
        return;
    }
    let (higher, delay_ms) = (next.token.unwrap_or(0), asked.delay_us / 1_000);
    if let Some(had_us) = had_us.filter(|_| ran_out) {
        let open_us = asked.promised_us.saturating_add(asked.delay_us);
        verdict.demand(had_us >= open_us, || {
            format!(
                "{key}: token {higher} was granted {} ms before the delay of {delay_ms} ms after the lease of {token} was over",
                (open_us - had_us).div_ceil(1_000)
            )
        });
    }
    let (Some(ended_ms), Some(granted_ms)) = (wall_ms(&end.at), wall_ms(&next.at)) else {
        verdict
            .not_checked
            .push(format!("{key}: events {} and {} have no instants", end.seq, next.seq));
        return;
    };
    let passed_ms = granted_ms.saturating_sub(ended_ms);
    let least_ms = asked.delay_us.saturating_sub(STAMPED_LATE_US).div_ceil(1_000);
    // The stamps are cut to milliseconds: each may hide less than one.
    let least_ms = i64::try_from(least_ms).unwrap_or(i64::MAX).saturating_sub(1);
    verdict.demand(passed_ms >= least_ms, || {
        format!(
            "{key}: token {higher} was granted {passed_ms} ms after {token} {}, which had asked for a delay of {delay_ms} ms",
            end.kind
        )
    });
}

#[cfg(test)]
mod tests {
    use super::STAMPED_LATE_US;
    use crate::invariant::{Invariant, Verdict, check_all, sample};
    use crate::model::Evidence;

    const DELAY_US: u64 = 5_000_000;

    /// The first grant asked for a delay and ended so; the next one was in hand `after_us` after its promise and delay, and
    /// stamped `stamped_ms` after its end.
    fn lost(kind: &str, after_us: i64, stamped_ms: u64) -> Evidence {
        let mut evidence = sample::good();
        evidence.lock_events[2].kind = kind.to_owned();
        let open_us = 400 + DELAY_US;
        for call in &mut evidence.calls {
            match (call.verb.as_str(), call.token) {
                ("lease", Some(5)) => call.delay_us = Some(DELAY_US),
                ("acquire", Some(6)) => call.answered_us = open_us.checked_add_signed(after_us),
                _ => {}
            }
        }
        for event in &mut evidence.lock_events[4..] {
            event.at = format!("2026-01-01T00:00:{:02}.{:03}Z", stamped_ms / 1_000, stamped_ms % 1_000);
        }
        evidence
    }

    fn judged(evidence: &Evidence) -> Verdict {
        Invariant::LockDelay.check(evidence)
    }

    #[test]
    fn the_next_grant_of_a_lease_that_ran_out_comes_after_promise_and_delay() {
        assert!(judged(&lost("EXPIRED", 0, 5_000)).held());
        let early = judged(&lost("EXPIRED", -1, 5_000));
        assert_eq!(early.violations.len(), 1, "{:?}", early.violations);
        assert!(
            early.violations[0].contains("1 ms before the delay of 5000 ms"),
            "{:?}",
            early.violations
        );
    }

    #[test]
    fn the_rows_are_as_far_apart_as_the_delay_but_for_what_a_row_may_be_stamped_late() {
        let least_ms = (DELAY_US - STAMPED_LATE_US) / 1_000 - 1;
        for kind in ["EXPIRED", "REVOKED"] {
            let held = judged(&lost(kind, 0, least_ms));
            assert!(held.held(), "{:?}", held.violations);
            assert!(judged(&lost(kind, 0, least_ms - 1)).broken());
        }
    }

    #[test]
    fn a_revoke_may_come_before_the_lease_has_run_out_and_may_show_what_it_minted() {
        let mut evidence = lost("REVOKED", -300_000, 5_000);
        assert!(judged(&evidence).held());
        for (event, token) in [(2, 6), (4, 7)] {
            evidence.lock_events[event].token = Some(token);
        }
        assert!(judged(&evidence).held());
    }

    #[test]
    fn a_session_that_expired_took_its_grants_with_it() {
        let mut evidence = lost("EXPIRED", 0, 2_000);
        evidence.lock_events.remove(2);
        assert!(judged(&evidence).broken());
    }

    #[test]
    fn a_clean_end_begins_no_delay_and_is_no_proof_of_one() {
        for clean in ["RELEASED", "SESSION_CLOSED"] {
            let mut evidence = lost(clean, -DELAY_US.cast_signed(), 0);
            // It had been asked to yield.
            let mut asked = evidence.lock_events[1].clone();
            asked.kind = "YIELD_REQUESTED".to_owned();
            evidence.lock_events.insert(2, asked);
            for (event, seq) in evidence.lock_events.iter_mut().zip(1..) {
                event.seq = seq;
            }
            let verdict = judged(&evidence);
            assert!(!verdict.broken() && !verdict.held(), "{verdict:?}");
        }
    }

    #[test]
    fn what_a_restore_took_back_closes_nothing() {
        let mut evidence = lost("EXPIRED", -1, 0);
        assert!(judged(&evidence).broken());
        evidence.lost_events.push(evidence.lock_events[1].clone());
        assert!(!judged(&evidence).broken());
    }

    #[test]
    fn it_is_judged_where_somebody_asked_for_a_delay() {
        let judged = |evidence: &Evidence| {
            check_all(evidence)
                .iter()
                .any(|one| one.invariant == Invariant::LockDelay)
        };
        let mut evidence = sample::good();
        assert!(judged(&evidence));
        for call in &mut evidence.calls {
            call.delay_us = None;
        }
        assert!(!judged(&evidence));
    }
}
