//! The predicate: one comparison, and what to do with its answer.
//!
//! Owns: the four verdicts and the two rules, as types. Does not own: where a mark is kept, and that it is read under its
//! lock; whoever calls this does both in the transaction that writes.
//! On failure: it cannot fail.

use lock_api::FencingToken;
use std::fmt;

/// What a presented token is to a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Above the mark, or there is none yet: a newer holder. The write may be done and raises the mark to this token, in
    /// the same transaction.
    Advance,
    /// The mark's own token: the same holder goes on. The write may be done, the mark stays.
    Same,
    /// The mark's own token, which has had its one effect. Nothing may be done.
    Spent,
    /// Below the mark: a newer holder has been here. Nothing may be done.
    Stale,
}

impl Verdict {
    /// Whether the write may be done.
    #[must_use]
    pub const fn passes(self) -> bool {
        matches!(self, Self::Advance | Self::Same)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A rule: what the mark's own token may do. [`SameOrNewer`] or [`OncePerToken`], nothing else.
pub trait Rule: sealed::Sealed + fmt::Debug + Clone + Copy + Send + Sync + 'static {
    /// The verdict on the mark's own token.
    const AT_THE_MARK: Verdict;
    /// The rule as a value.
    const KIND: RuleKind;
}

/// A holder may do any number of effects under its token: files, rows, calls of one job. `presented >= mark` passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SameOrNewer;

/// A token may have one effect: a payment, a message. `presented > mark` passes. A repeat needs a new grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OncePerToken;

impl sealed::Sealed for SameOrNewer {}
impl sealed::Sealed for OncePerToken {}

impl Rule for SameOrNewer {
    const AT_THE_MARK: Verdict = Verdict::Same;
    const KIND: RuleKind = RuleKind::SameOrNewer;
}

impl Rule for OncePerToken {
    const AT_THE_MARK: Verdict = Verdict::Spent;
    const KIND: RuleKind = RuleKind::OncePerToken;
}

/// A rule that is known when the program runs and not before: of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleKind {
    /// [`SameOrNewer`].
    SameOrNewer,
    /// [`OncePerToken`].
    OncePerToken,
}

impl RuleKind {
    /// The verdict on the mark's own token.
    #[must_use]
    pub const fn at_the_mark(self) -> Verdict {
        match self {
            Self::SameOrNewer => SameOrNewer::AT_THE_MARK,
            Self::OncePerToken => OncePerToken::AT_THE_MARK,
        }
    }
}

/// Judges a presented token by the highest one that passed before; `None` where none did.
///
/// ```
/// use fence_kit::{OncePerToken, SameOrNewer, Verdict, judge};
/// let (old, new) = ("33".parse().unwrap(), "34".parse().unwrap());
/// assert_eq!(judge::<SameOrNewer>(Some(new), old), Verdict::Stale);
/// assert_eq!(judge::<SameOrNewer>(Some(new), new), Verdict::Same);
/// assert_eq!(judge::<OncePerToken>(Some(new), new), Verdict::Spent);
/// assert_eq!(judge::<OncePerToken>(Some(old), new), Verdict::Advance);
/// ```
/// ```compile_fail
/// fence_kit::judge(None, "33".parse().unwrap()); // which rule? There is no default.
/// ```
#[must_use]
pub fn judge<R: Rule>(mark: Option<FencingToken>, presented: FencingToken) -> Verdict {
    judge_by(R::KIND, mark, presented)
}

/// As [`judge`], with the rule as a value.
#[must_use]
pub fn judge_by(rule: RuleKind, mark: Option<FencingToken>, presented: FencingToken) -> Verdict {
    match mark {
        None => Verdict::Advance,
        Some(mark) if presented > mark => Verdict::Advance,
        Some(mark) if presented == mark => rule.at_the_mark(),
        Some(_) => Verdict::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(value: u64) -> FencingToken {
        value.to_string().parse().unwrap()
    }

    /// Every pair of a small range, none and both ends of the tokens among them, against the rule written as a comparison.
    #[test]
    fn exhaustively_each_pair_has_the_verdict_of_the_comparison() {
        const TOP: u64 = lock_api::TOKEN_MAX;
        let values: Vec<u64> = (1..=24).chain(TOP - 24..=TOP).collect();
        let mut seen = std::collections::BTreeMap::<Verdict, u32>::new();
        for presented in values.iter().copied() {
            for mark in std::iter::once(0).chain(values.iter().copied()) {
                let stored = (mark > 0).then(|| token(mark));
                let (many, once) = (
                    judge::<SameOrNewer>(stored, token(presented)),
                    judge::<OncePerToken>(stored, token(presented)),
                );
                assert_eq!(many.passes(), presented >= mark, "{presented} at {mark}");
                assert_eq!(once.passes(), presented > mark, "{presented} at {mark}");
                assert_eq!(many == Verdict::Advance, presented > mark);
                assert_eq!(once == Verdict::Stale, presented < mark);
                assert_eq!(once == Verdict::Spent, presented == mark);
                assert!(many != Verdict::Spent && once != Verdict::Same);
                for verdict in [many, once] {
                    *seen.entry(verdict).or_default() += 1;
                }
            }
        }
        assert_eq!(seen.len(), 4, "each verdict occurs: {seen:?}");
    }

    proptest! {
        /// Whatever order tokens arrive in, what passes never goes back, and under the strict rule never repeats.
        #[test]
        fn what_passes_never_goes_back(arrivals in prop::collection::vec(1_u64..40, 1..200)) {
            for rule in [RuleKind::SameOrNewer, RuleKind::OncePerToken] {
                let (mut mark, mut passed) = (None, Vec::new());
                for presented in arrivals.iter().copied().map(token) {
                    let verdict = judge_by(rule, mark, presented);
                    if verdict == Verdict::Advance {
                        mark = Some(presented);
                    }
                    if verdict.passes() {
                        passed.push(presented);
                    }
                }
                let strict = rule == RuleKind::OncePerToken;
                let in_order = passed.windows(2).all(|pair| pair[0] < pair[1] || (!strict && pair[0] == pair[1]));
                prop_assert!(in_order, "{:?}", passed);
                prop_assert_eq!(mark, arrivals.iter().max().copied().map(token));
                prop_assert_eq!(passed.last().copied(), mark);
            }
        }
    }
}
