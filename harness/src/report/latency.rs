//! How long things took.
//!
//! Owns: percentiles of the load from its intended start, and of the clients' calls from their sending.
//! Does not own: drawing them.
//! On failure: nothing can fail; of nothing there are no percentiles.

use super::Timing;
use crate::history::{Call, Outcome};
use serde::Serialize;
use std::collections::BTreeMap;

/// Percentiles of one kind of thing, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// What.
    pub what: String,
    /// How many ended.
    pub count: usize,
    /// How many never did; they are in no percentile.
    pub unsettled: usize,
    /// Half of them took at most this.
    pub p50_ms: f64,
    /// Nine of ten.
    pub p90_ms: f64,
    /// Ninety-nine of a hundred.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Percentiles {
    fn of(what: &str, mut took_ms: Vec<f64>, unsettled: usize) -> Self {
        took_ms.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            // Nearest rank: the smallest of which at least so many of a hundred are not above it.
            let rank = (took_ms.len() * percent).div_ceil(100);
            took_ms.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self {
            what: what.to_owned(),
            count: took_ms.len(),
            unsettled,
            p50_ms: rank(50),
            p90_ms: rank(90),
            p99_ms: rank(99),
            max_ms: rank(100),
        }
    }
}

/// From intended start to settled, by kind.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "milliseconds of a run")]
pub fn of_load(timings: &[Timing]) -> Vec<Percentiles> {
    let mut kinds: BTreeMap<&str, (Vec<f64>, usize)> = BTreeMap::new();
    for timing in timings {
        let (took, unsettled) = kinds.entry(&timing.what).or_default();
        match timing.done_ms {
            Some(done) => took.push(done.saturating_sub(timing.intended_ms) as f64),
            None => *unsettled += 1,
        }
    }
    kinds
        .into_iter()
        .map(|(what, (took, unsettled))| Percentiles::of(what, took, unsettled))
        .collect()
}

/// One verb as its clients saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verb {
    /// Done.
    pub ok: usize,
    /// Refused.
    pub refused: usize,
    /// Without an answer that says.
    pub unknown: usize,
    /// Of those that were answered.
    pub took: Percentiles,
}

/// From sending to the answer, by verb.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "microseconds of a call")]
pub fn of_calls<'a>(calls: impl Iterator<Item = &'a Call>) -> Vec<Verb> {
    let mut verbs: BTreeMap<&str, (Verb, Vec<f64>)> = BTreeMap::new();
    for call in calls {
        let (verb, took) = verbs.entry(&call.verb).or_default();
        match call.outcome {
            Outcome::Ok => verb.ok += 1,
            Outcome::Refused => verb.refused += 1,
            Outcome::Unknown => verb.unknown += 1,
        }
        if let Some(answered) = call.answered_us {
            took.push(answered.saturating_sub(call.invoked_us) as f64 / 1_000.0);
        }
    }
    let whole = |(what, (verb, took)): (&str, (Verb, Vec<f64>))| Verb {
        took: Percentiles::of(what, took, 0),
        ..verb
    };
    verbs.into_iter().map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_counted_from_the_intended_start_and_the_unsettled_are_not_forgotten() {
        let mut timings: Vec<Timing> = (1..=100)
            .map(|n| Timing {
                what: "payout".to_owned(),
                intended_ms: 1_000,
                done_ms: Some(1_000 + n),
            })
            .collect();
        timings.push(Timing {
            what: "payout".to_owned(),
            intended_ms: 0,
            done_ms: None,
        });
        let found = &of_load(&timings)[0];
        assert_eq!((found.count, found.unsettled), (100, 1));
        assert_eq!(
            [found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms],
            [50.0, 90.0, 99.0, 100.0]
        );
        assert!(of_load(&[]).is_empty());
    }

    #[test]
    fn few_values_have_their_percentiles_among_them() {
        let found = Percentiles::of("x", vec![3.0, 1.0, 2.0], 0);
        assert_eq!([found.p50_ms, found.p99_ms, found.max_ms], [2.0, 3.0, 3.0]);
    }
}
