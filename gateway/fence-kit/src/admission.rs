//! Whether a request may be begun, for a guard that stands before the effect and not inside it: the predicate, and the
//! requests that were begun and never answered.
//!
//! ```text
//! presented < announced ─→ stale      an older request unanswered ─→ in doubt      else ─→ go, the mark is this token
//! ```
//!
//! Owns: the decision. Does not own: the store, and that the facts are read in the transaction that writes the decision.
//! On failure: it cannot fail; what is not known is an open request, and that is in doubt.

use crate::predicate::{RuleKind, Verdict, judge_by};
use lock_api::FencingToken;

/// What is known of a key before a request is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The highest token under which a request was begun.
    pub mark: Option<FencingToken>,
    /// Whether a request under the mark's token was begun and was not proven to have never been sent.
    pub spent: bool,
    /// The highest token that was presented, begun or not. Never below the mark. A token below it is stale: its holder was
    /// replaced, whether or not the newer one could begin anything yet. Without it, an old holder could go on for ever
    /// while the newer one waits for it.
    pub announced: Option<FencingToken>,
    /// The lowest token of a request that was begun and has not been answered.
    pub lowest_open: Option<FencingToken>,
}

/// Why a token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleReason {
    /// A higher token has been here.
    Stale,
    /// The token has had its one effect.
    TokenSpent,
}

impl StaleReason {
    /// As it stands on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::TokenSpent => "token_spent",
        }
    }
}

/// What may become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may be begun: the mark becomes its token, and it is open until it is answered.
    Go,
    /// Its token is out. Nothing may be done, nothing changes.
    FencedOut {
        /// Why.
        reason: StaleReason,
        /// The highest token that is known.
        highest: FencingToken,
    },
    /// A request of a lower token was begun and not answered: it may still have its effect, after this one had its own.
    /// Nothing may be done; the token is announced.
    InDoubt {
        /// The lowest token of such a request.
        lowest_open: FencingToken,
    },
}

/// Decides. Pure.
#[must_use]
pub fn admit(rule: RuleKind, standing: Standing, presented: FencingToken) -> Decision {
    let highest = standing.announced.max(standing.mark);
    if let Some(highest) = highest.filter(|highest| presented < *highest) {
        return Decision::FencedOut {
            reason: StaleReason::Stale,
            highest,
        };
    }
    match judge_by(rule, standing.mark, presented) {
        Verdict::Stale => Decision::FencedOut {
            reason: StaleReason::Stale,
            highest: highest.unwrap_or(presented),
        },
        Verdict::Spent if standing.spent => Decision::FencedOut {
            reason: StaleReason::TokenSpent,
            highest: highest.unwrap_or(presented),
        },
        // Nothing was ever sent under it.
        Verdict::Spent | Verdict::Advance | Verdict::Same => match standing.lowest_open {
            Some(lowest_open) if lowest_open < presented => Decision::InDoubt { lowest_open },
            _ => Decision::Go,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(value: u64) -> FencingToken {
        value.to_string().parse().unwrap()
    }

    fn some(value: u64) -> Option<FencingToken> {
        (value > 0).then(|| token(value))
    }

    /// Every standing with tokens up to 4, every presented token, both rules.
    #[test]
    fn exhaustively_nothing_is_begun_against_the_rule() {
        let (mut went, mut refused, mut doubted, mut spent) = (0, 0, 0, 0);
        for rule in [RuleKind::SameOrNewer, RuleKind::OncePerToken] {
            for (mark, above, open) in (0..=4).flat_map(|m| (0..=2).flat_map(move |a| (0..=m).map(move |o| (m, a, o))))
            {
                for (is_spent, presented) in [true, false].into_iter().flat_map(|s| (1..=7).map(move |p| (s, p))) {
                    let standing = Standing {
                        mark: some(mark),
                        spent: is_spent,
                        announced: some(mark + above),
                        lowest_open: some(open),
                    };
                    let decision = admit(rule, standing, token(presented));
                    let case = format!("{rule:?} {standing:?} presented {presented}");
                    match decision {
                        Decision::Go => {
                            went += 1;
                            assert!(presented >= mark + above, "{case}");
                            assert!(open == 0 || open >= presented, "{case}");
                            assert!(rule == RuleKind::SameOrNewer || presented > mark || !is_spent, "{case}");
                        }
                        Decision::FencedOut { reason, highest } => {
                            refused += 1;
                            assert_eq!(highest, token(mark + above), "{case}");
                            match reason {
                                StaleReason::Stale => assert!(presented < mark + above, "{case}"),
                                StaleReason::TokenSpent => {
                                    spent += 1;
                                    assert!(
                                        presented == mark && is_spent && rule == RuleKind::OncePerToken,
                                        "{case}"
                                    );
                                }
                            }
                        }
                        Decision::InDoubt { lowest_open } => {
                            doubted += 1;
                            assert!(lowest_open < token(presented) && presented >= mark + above, "{case}");
                        }
                    }
                }
            }
        }
        assert!(
            went > 50 && refused > 50 && doubted > 50 && spent > 5,
            "{went} {refused} {doubted} {spent}"
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Present(u64),
        Answer(usize),
    }

    proptest! {
        /// Over any history of arrivals and answers: when a request is begun, no older one is open, and none that is
        /// older than anything presented before is begun.
        #[test]
        fn a_begun_request_has_no_older_one_beside_it(
            steps in prop::collection::vec(
                prop_oneof![(1_u64..12).prop_map(Step::Present), (0_usize..8).prop_map(Step::Answer)], 1..120),
            once in any::<bool>(),
        ) {
            let rule = if once { RuleKind::OncePerToken } else { RuleKind::SameOrNewer };
            let (mut standing, mut open, mut begun) = (Standing::default(), Vec::<FencingToken>::new(), Vec::new());
            let mut presented_max = 0;
            for step in steps {
                match step {
                    Step::Answer(at) => {
                        if !open.is_empty() {
                            open.remove(at % open.len());
                        }
                    }
                    Step::Present(value) => {
                        standing.lowest_open = open.iter().min().copied();
                        match admit(rule, standing, token(value)) {
                            Decision::Go => {
                                prop_assert!(value >= presented_max);
                                prop_assert!(open.iter().all(|other| *other >= token(value)));
                                prop_assert!(!once || !begun.contains(&value));
                                begun.push(value);
                                open.push(token(value));
                                standing.mark = Some(token(value));
                                standing.spent = true;
                                standing.announced = standing.announced.max(standing.mark);
                            }
                            Decision::InDoubt { .. } => {
                                prop_assert!(open.iter().any(|other| *other < token(value)));
                                standing.announced = standing.announced.max(Some(token(value)));
                            }
                            Decision::FencedOut { reason: StaleReason::Stale, highest } => {
                                prop_assert!(token(value) < highest && highest == token(presented_max));
                            }
                            Decision::FencedOut { reason: StaleReason::TokenSpent, .. } => {
                                prop_assert!(once && begun.contains(&value));
                            }
                        }
                        presented_max = presented_max.max(value);
                    }
                }
            }
        }
    }
}
