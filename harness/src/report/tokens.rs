//! The tokens of each key in grant order.
//!
//! Owns: whether they rise, and when each was granted.
//! Does not own: the verdict (INV-04 judges the same trail by itself); drawing.
//! On failure: nothing can fail.

use super::timeline::RunClock;
use crate::model::Evidence;
use serde::Serialize;
use std::collections::BTreeMap;

/// The tokens of one key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyTokens {
    /// The lock key.
    pub key: String,
    /// How many grants.
    pub grants: usize,
    /// The first token.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Each above the one before.
    pub strictly_rising: bool,
    /// When, in milliseconds since the run's start, and which; times that cannot be placed are left out.
    #[serde(skip)]
    pub points: Vec<(f64, u64)>,
}

/// By key: those that do not rise first, then those with the most grants.
#[must_use]
pub fn of(evidence: &Evidence) -> Vec<KeyTokens> {
    let clock = RunClock::of(evidence);
    let mut keys: BTreeMap<&str, KeyTokens> = BTreeMap::new();
    let granted = evidence.lock_events.iter().filter(|event| event.kind == "GRANTED");
    for event in granted {
        let Some((key, token)) = event.lock_key.as_deref().zip(event.token) else {
            continue;
        };
        let found = keys.entry(key).or_insert_with(|| KeyTokens {
            key: key.to_owned(),
            grants: 0,
            first: token,
            last: 0,
            strictly_rising: true,
            points: Vec::new(),
        });
        found.strictly_rising &= found.grants == 0 || token > found.last;
        found.grants += 1;
        found.last = token;
        if let Some(at) = clock.wall(&event.at) {
            found.points.push((at, token));
        }
    }
    let mut keys: Vec<_> = keys.into_values().collect();
    keys.sort_by_key(|key| (key.strictly_rising, std::cmp::Reverse(key.grants)));
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LockEvent;

    fn granted(key: &str, token: u64) -> LockEvent {
        LockEvent {
            kind: "GRANTED".to_owned(),
            lock_key: Some(key.to_owned()),
            token: Some(token),
            ..LockEvent::default()
        }
    }

    #[test]
    fn a_token_that_falls_or_stays_is_said_and_comes_first() {
        let evidence = Evidence {
            lock_events: vec![
                granted("a", 1),
                granted("a", 2),
                granted("a", 3),
                granted("b", 5),
                granted("b", 5),
                granted("c", 9),
                granted("c", 4),
            ],
            ..Evidence::default()
        };
        let keys = of(&evidence);
        let found: Vec<_> = keys.iter().map(|key| (key.key.as_str(), key.strictly_rising)).collect();
        assert_eq!(found, [("b", false), ("c", false), ("a", true)]);
        assert_eq!((keys[2].first, keys[2].last, keys[2].grants), (1, 3, 3));
    }
}
