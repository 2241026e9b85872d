//! The faults that can be asked for (FR-21, C3.6), and which of them a call meets.
//!
//! Owns: the rules and rates, and the choice. Does not own: what a fault does. On failure: a set of faults that cannot
//! be read leaves the old one in force.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many rules the stub keeps (NFR-11).
pub const RULES_MAX: usize = 10_000;

/// A way to behave badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Waits `latency_ms`, then executes and answers.
    Latency,
    /// Answers DECLINED and executes nothing.
    Decline,
    /// Executes and never answers.
    TimeoutExecuted,
    /// Neither executes nor answers.
    TimeoutNotExecuted,
    /// Never answers, and executes after `latency_ms`.
    LateExecution,
    /// Executes and closes without an answer.
    CloseAfterRead,
    /// Executes and resets the connection.
    ResetAfterRead,
    /// Executes, answers half, closes.
    HalfResponse,
    /// Executes and answers one byte every `latency_ms`.
    Trickle,
    /// Executes and answers 200 with what is no JSON.
    Garbage,
    /// Answers 500 and executes nothing.
    #[serde(rename = "status_500")]
    Status500,
    /// Answers 503 with `Retry-After` and executes nothing.
    #[serde(rename = "status_503")]
    Status503,
    /// Answers 307 to itself and executes nothing.
    #[serde(rename = "redirect_307")]
    Redirect307,
    /// Answers 308 to itself and executes nothing. Beyond the contract's list, for case P17.
    #[serde(rename = "redirect_308")]
    Redirect308,
    /// Executes, answers 100 Continue and closes. Beyond the contract's list, for case P17.
    #[serde(rename = "continue_100")]
    Continue100,
    /// Acks twice more through the ack URL.
    DuplicateAck,
    /// Contradicts its answer through the ack URL.
    ConflictingAck,
    /// Acks through the ack URL before it answers.
    AckBeforeAnswer,
    /// A lookup answers 500.
    LookupError,
    /// Lookups do not see the execution before `latency_ms` have passed.
    LookupLag,
}

/// What a fault is a choice of. A call meets at most one fault of each group, so that an ack fault can be combined with
/// a lost answer: that is how a late ack comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// When the call is handled.
    Delay,
    /// What becomes of it and of its answer.
    Answer,
    /// Which asynchronous acks follow.
    Ack,
    /// How a lookup fails.
    Lookup,
    /// When lookups see an execution.
    Visibility,
}

impl Fault {
    /// All of them, in the order in which rates are tried.
    pub const ALL: [Self; 20] = [
        Self::Latency,
        Self::Decline,
        Self::TimeoutExecuted,
        Self::TimeoutNotExecuted,
        Self::LateExecution,
        Self::CloseAfterRead,
        Self::ResetAfterRead,
        Self::HalfResponse,
        Self::Trickle,
        Self::Garbage,
        Self::Status500,
        Self::Status503,
        Self::Redirect307,
        Self::Redirect308,
        Self::Continue100,
        Self::DuplicateAck,
        Self::ConflictingAck,
        Self::AckBeforeAnswer,
        Self::LookupError,
        Self::LookupLag,
    ];

    /// What it is a choice of.
    #[must_use]
    pub const fn group(self) -> Group {
        match self {
            Self::Latency => Group::Delay,
            Self::DuplicateAck | Self::ConflictingAck | Self::AckBeforeAnswer => Group::Ack,
            Self::LookupError => Group::Lookup,
            Self::LookupLag => Group::Visibility,
            _ => Group::Answer,
        }
    }

    /// Milliseconds where a rule names none, and for faults by rate.
    const fn latency_ms_default(self) -> u64 {
        match self {
            Self::Trickle => 100,
            _ => 1_000,
        }
    }
}

/// A fault for the calls of one reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Whose calls.
    pub client_reference: String,
    /// Which fault.
    pub fault: Fault,
    /// For how many calls still; none for every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// The wait, where the fault has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<u64>,
    /// Why, where the fault is a decline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The faults in force, as `PUT /faults` sets and `GET /faults` shows them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// Probabilities, 0 to 1, for calls that meet no rule.
    #[serde(default)]
    pub rates: BTreeMap<Fault, f64>,
    /// Rules; the first that fits and has times left is met.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// A fault that a call meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// Which.
    pub fault: Fault,
    /// Its wait in milliseconds.
    pub latency_ms: u64,
    /// Its reason.
    pub reason: Option<String>,
}

/// A number from the seed and what it is drawn for. The same call meets the same faults again whatever else goes on at
/// the same time: chance hangs on the reference and on how many calls it had, not on the order of arrival.
pub fn draw(seed: u64, reference: &str, nth: u64, what: &str) -> ChaCha12Rng {
    // FNV-1a, so that the numbers are the same in every build.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let parts: [&[u8]; 4] = [
        &seed.to_le_bytes(),
        reference.as_bytes(),
        &nth.to_le_bytes(),
        what.as_bytes(),
    ];
    for part in parts {
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    ChaCha12Rng::seed_from_u64(hash)
}

impl Faults {
    /// Whether the set is one the stub can keep.
    ///
    /// # Errors
    /// The field and what it must be.
    pub fn check(&self) -> Result<(), String> {
        for (fault, rate) in &self.rates {
            if !(0.0..=1.0).contains(rate) {
                return Err(format!("rates.{fault:?} must be between 0 and 1"));
            }
        }
        if self.rules.len() > RULES_MAX {
            return Err(format!("rules must be at most {RULES_MAX}"));
        }
        Ok(())
    }

    /// The fault of `group` that the `nth` call of `reference` meets, and one time less of its rule.
    pub fn meet(&mut self, group: Group, seed: u64, reference: &str, nth: u64) -> Option<Met> {
        let rule = self.rules.iter_mut().find(|rule| {
            rule.client_reference == reference && rule.fault.group() == group && rule.times.is_none_or(|n| n > 0)
        });
        if let Some(rule) = rule {
            if let Some(times) = &mut rule.times {
                *times -= 1;
            }
            return Some(Met {
                fault: rule.fault,
                latency_ms: rule.latency_ms.unwrap_or(rule.fault.latency_ms_default()),
                reason: rule.reason.clone(),
            });
        }
        let by_rate = |fault: &Fault| {
            let rate = self.rates.get(fault).copied().unwrap_or(0.0);
            rate > 0.0 && draw(seed, reference, nth, &format!("{fault:?}")).random_bool(rate)
        };
        Fault::ALL
            .into_iter()
            .filter(|fault| fault.group() == group)
            .find(by_rate)
            .map(|fault| Met {
                fault,
                latency_ms: fault.latency_ms_default(),
                reason: None,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(fault: Fault, times: Option<u32>) -> Rule {
        Rule {
            client_reference: "p1".into(),
            fault,
            times,
            latency_ms: None,
            reason: None,
        }
    }

    #[test]
    fn a_rule_is_met_as_often_as_it_says_and_then_the_next() {
        let mut faults = Faults {
            rules: vec![
                rule(Fault::Garbage, Some(2)),
                rule(Fault::Status500, None),
                rule(Fault::DuplicateAck, Some(1)),
            ],
            ..Faults::default()
        };
        let met: Vec<_> = (0..4)
            .map(|n| faults.meet(Group::Answer, 0, "p1", n).map(|met| met.fault))
            .collect();
        assert_eq!(
            met,
            [Fault::Garbage, Fault::Garbage, Fault::Status500, Fault::Status500].map(Some)
        );
        assert_eq!(
            faults.meet(Group::Ack, 0, "p1", 0).map(|met| met.fault),
            Some(Fault::DuplicateAck)
        );
        assert_eq!(faults.meet(Group::Ack, 0, "p1", 1), None);
        assert_eq!(faults.meet(Group::Answer, 0, "p2", 0), None);
    }

    #[test]
    fn chance_hangs_on_the_seed_and_the_call_alone() {
        let seed = 42;
        println!("seed {seed}");
        let faults = Faults {
            rates: BTreeMap::from([(Fault::TimeoutExecuted, 0.3)]),
            ..Faults::default()
        };
        let meets = |seed: u64| {
            let mut faults = faults.clone();
            (0..1000)
                .map(|n| faults.meet(Group::Answer, seed, &format!("p{n}"), 0).is_some())
                .collect::<Vec<_>>()
        };
        let met = meets(seed);
        assert_eq!(met, meets(seed));
        assert_ne!(met, meets(seed + 1));
        let share = met.iter().filter(|met| **met).count();
        assert!((200..400).contains(&share), "{share} of 1000 at a rate of 0.3");
    }

    #[test]
    fn names_are_the_contracts() {
        let names: Vec<String> = Fault::ALL.iter().map(|f| serde_json::to_string(f).unwrap()).collect();
        for name in [
            "latency",
            "decline",
            "timeout_executed",
            "timeout_not_executed",
            "late_execution",
            "close_after_read",
            "reset_after_read",
            "half_response",
            "trickle",
            "garbage",
            "status_500",
            "status_503",
            "redirect_307",
            "duplicate_ack",
            "conflicting_ack",
            "ack_before_answer",
            "lookup_error",
            "lookup_lag",
        ] {
            assert!(
                names.contains(&format!("\"{name}\"")),
                "{name} is missing from {names:?}"
            );
        }
    }

    #[test]
    fn a_rate_out_of_bounds_is_refused() {
        for rate in [-0.1, 1.1, f64::NAN] {
            let faults = Faults {
                rates: BTreeMap::from([(Fault::Garbage, rate)]),
                ..Faults::default()
            };
            assert!(faults.check().is_err(), "{rate} was taken");
        }
    }
}
