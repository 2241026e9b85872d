//! The invariants of the requirements, and the lock's contract as its clients saw it, each a pure function over a run's
//! [`Evidence`].
//!
//! Owns: the closed list with its sentences, and what a verdict is. One file per invariant.
//! Does not own: collecting what is judged.
//! On failure: a verdict that looked at nothing has failed; nothing here can be skipped silently.

mod inv01;
mod inv02;
mod inv03;
mod inv04;
mod inv05;
mod inv06;
mod inv07;
mod inv08;
pub(crate) mod lock_delay;
mod lock_history;
mod lock_lease;
pub(crate) mod sample;

use crate::model::Evidence;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The invariants INV-01 to INV-08.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Invariant {
    /// One unexpired grant per key.
    #[serde(rename = "INV-01")]
    Inv01,
    /// One execution per payout.
    #[serde(rename = "INV-02")]
    Inv02,
    /// The ledger holds together.
    #[serde(rename = "INV-03")]
    Inv03,
    /// Tokens rise.
    #[serde(rename = "INV-04")]
    Inv04,
    /// A stale write changes nothing.
    #[serde(rename = "INV-05")]
    Inv05,
    /// Every write has its grant.
    #[serde(rename = "INV-06")]
    Inv06,
    /// Every write has a token.
    #[serde(rename = "INV-07")]
    Inv07,
    /// Lawful, attributed, finished.
    #[serde(rename = "INV-08")]
    Inv08,
    /// The lock histories are those of a lock: judged beside the invariants of the requirements, because a client can
    /// see what no table shows.
    #[serde(rename = "LOCK-HISTORY")]
    LockHistory,
    /// The lease contract: nobody expired early, nobody kept past the bound.
    #[serde(rename = "LOCK-LEASE")]
    LockLease,
    /// The lock delay: what was lost uncleanly stays closed for as long as was asked. Judged where a client asked for one.
    #[serde(rename = "LOCK-DELAY")]
    LockDelay,
}

impl Invariant {
    /// INV-01 to INV-08, in order.
    pub const ALL: [Self; 8] = [
        Self::Inv01,
        Self::Inv02,
        Self::Inv03,
        Self::Inv04,
        Self::Inv05,
        Self::Inv06,
        Self::Inv07,
        Self::Inv08,
    ];

    /// Everything that every run is judged by: the invariants, then what the clients saw of the locks. A run whose clients
    /// asked for lock delays is judged by [`Self::LockDelay`] too.
    pub const EVERY: [Self; 10] = [
        Self::Inv01,
        Self::Inv02,
        Self::Inv03,
        Self::Inv04,
        Self::Inv05,
        Self::Inv06,
        Self::Inv07,
        Self::Inv08,
        Self::LockHistory,
        Self::LockLease,
    ];

    /// Its id.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Inv01 => "INV-01",
            Self::Inv02 => "INV-02",
            Self::Inv03 => "INV-03",
            Self::Inv04 => "INV-04",
            Self::Inv05 => "INV-05",
            Self::Inv06 => "INV-06",
            Self::Inv07 => "INV-07",
            Self::Inv08 => "INV-08",
            Self::LockHistory => "LOCK-HISTORY",
            Self::LockLease => "LOCK-LEASE",
            Self::LockDelay => "LOCK-DELAY",
        }
    }

    /// What it says, in one sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Inv01 => "never two unexpired grants on one key",
            Self::Inv02 => "at most one execution at the rail per payout",
            Self::Inv03 => "a posted payout has its two ledger legs, no other has any; balances add up",
            Self::Inv04 => "the tokens of a key strictly increase in grant order",
            Self::Inv05 => "a write with a stale token changes zero rows, at both fence points",
            Self::Inv06 => "no claim, submission or post without a grant of that token on that key",
            Self::Inv07 => "no side effect without an explicit token",
            Self::Inv08 => "every payout's path is lawful and attributed, and nothing is stuck",
            Self::LockHistory => {
                "what the clients saw of each key is what one lock would have answered, by search and by token order"
            }
            Self::LockLease => "no lease ends before its promise, none is kept past the bound",
            Self::LockDelay => {
                "a key that was lost uncleanly is granted to nobody before the delay that was asked for is over"
            }
        }
    }

    /// Judges the evidence.
    #[must_use]
    pub fn check(self, evidence: &Evidence) -> Verdict {
        let mut verdict = Verdict::new(self);
        match self {
            Self::Inv01 => inv01::check(evidence, &mut verdict),
            Self::Inv02 => inv02::check(evidence, &mut verdict),
            Self::Inv03 => inv03::check(evidence, &mut verdict),
            Self::Inv04 => inv04::check(evidence, &mut verdict),
            Self::Inv05 => inv05::check(evidence, &mut verdict),
            Self::Inv06 => inv06::check(evidence, &mut verdict),
            Self::Inv07 => inv07::check(evidence, &mut verdict),
            Self::Inv08 => inv08::check(evidence, &mut verdict),
            Self::LockHistory => lock_history::check(evidence, &mut verdict),
            Self::LockLease => lock_lease::check(evidence, &mut verdict),
            Self::LockDelay => lock_delay::check(evidence, &mut verdict),
        }
        verdict
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// Judges everything. The lock delay only where a client asked for one: a verdict that could not have looked at anything
/// is none, and is not there to be taken for one that held.
#[must_use]
pub fn check_all(evidence: &Evidence) -> Vec<Verdict> {
    let delays = lock_delay::was_asked_for(evidence).then_some(Invariant::LockDelay);
    Invariant::EVERY
        .into_iter()
        .chain(delays)
        .map(|invariant| invariant.check(evidence))
        .collect()
}

/// Adds a run's verdicts to a sum, which gets those that it did not have yet.
pub fn absorb_all(sum: &mut Vec<Verdict>, verdicts: &[Verdict], run: &str) {
    for verdict in verdicts {
        match sum.iter_mut().find(|total| total.invariant == verdict.invariant) {
            Some(total) => total.absorb(verdict, run),
            None => {
                let mut total = Verdict::new(verdict.invariant);
                total.absorb(verdict, run);
                sum.push(total);
            }
        }
    }
}

/// What an invariant's check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which invariant.
    pub invariant: Invariant,
    /// How many facts it looked at. Zero is a failure: a check of nothing proves nothing.
    pub facts: u64,
    /// Where it was broken, one sentence each.
    pub violations: Vec<String>,
    /// What could not be judged, one sentence each. It is no violation, and it is not held either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_checked: Vec<String>,
}

impl Verdict {
    /// Nothing looked at yet.
    #[must_use]
    pub const fn new(invariant: Invariant) -> Self {
        Self {
            invariant,
            facts: 0,
            violations: Vec::new(),
            not_checked: Vec::new(),
        }
    }

    /// A fact was looked at.
    pub fn fact(&mut self) {
        self.facts += 1;
    }

    /// A fact was looked at; it must be so, else this is how it was broken.
    pub fn demand(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        self.facts += 1;
        if !holds {
            self.violations.push(otherwise());
        }
    }

    /// Whether it was broken somewhere.
    #[must_use]
    pub fn broken(&self) -> bool {
        !self.violations.is_empty()
    }

    /// Whether it looked at something, at all of it, and found it in order.
    #[must_use]
    pub fn held(&self) -> bool {
        self.facts > 0 && !self.broken() && self.not_checked.is_empty()
    }

    /// Adds another run's verdict on the same invariant. A run whose verdict looked at nothing stays a failure.
    pub fn absorb(&mut self, other: &Self, run: &str) {
        self.facts += other.facts;
        self.violations
            .extend(other.violations.iter().map(|violation| format!("{run}: {violation}")));
        self.not_checked
            .extend(other.not_checked.iter().map(|what| format!("{run}: {what}")));
        if other.facts == 0 {
            self.violations.push(format!("{run}: no facts to look at"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_history_passes_every_invariant_and_each_looks_at_facts() {
        for verdict in check_all(&sample::good()) {
            assert!(verdict.held(), "{verdict:?}");
        }
    }

    /// A run in which the first grant was ended by somebody else while its holder stood still, who gave up long after the
    /// key was granted again: an operator's revoke, or the end of its session.
    fn ended_by_another(kind: &str, then: &str, reason: &str) -> Evidence {
        let mut evidence = sample::good();
        evidence.lock_events[2].kind = kind.to_owned();
        evidence.lock_events[3].kind = then.to_owned();
        let mut given_up = sample::call("W1", "release", 910, 915);
        given_up.key = Some(crate::model::lock_key("A1"));
        given_up.token = Some(5);
        given_up.outcome = crate::history::Outcome::Refused;
        given_up.code = Some(format!("LOCK_LOST {reason}"));
        evidence.calls.push(given_up);
        evidence
    }

    #[test]
    fn a_holder_that_learns_late_of_a_revoke_or_of_its_sessions_end_breaks_nothing() {
        for evidence in [
            ended_by_another("REVOKED", "SESSION_EXPIRED", "revoked"),
            ended_by_another("RELEASED", "SESSION_CLOSED", "session_lost"),
        ] {
            for invariant in Invariant::EVERY {
                let verdict = invariant.check(&evidence);
                assert!(verdict.held(), "{verdict:?}");
            }
            let delay = Invariant::LockDelay.check(&evidence);
            assert!(!delay.broken(), "{delay:?}");
        }
    }

    #[test]
    fn no_evidence_is_no_proof() {
        for verdict in check_all(&Evidence::default()) {
            assert!(!verdict.held() && !verdict.broken(), "{verdict:?}");
        }
    }

    #[test]
    fn a_sum_has_the_verdicts_that_only_some_of_its_runs_have() {
        let mut sum = Invariant::EVERY.map(Verdict::new).to_vec();
        let all = check_all(&sample::good());
        absorb_all(&mut sum, &all[..Invariant::EVERY.len()], "without delays");
        absorb_all(&mut sum, &all, "with delays");
        assert_eq!(sum.len(), Invariant::EVERY.len() + 1);
        assert!(sum.iter().all(Verdict::held), "{sum:?}");
    }

    #[test]
    fn a_run_without_facts_spoils_the_sum() {
        let mut sum = Verdict::new(Invariant::Inv02);
        sum.absorb(&Invariant::Inv02.check(&sample::good()), "a");
        assert!(sum.held());
        sum.absorb(&Verdict::new(Invariant::Inv02), "b");
        assert!(!sum.held());
    }
}
