//! Faults of the money: executions, legs, stale writes, writes without grant or token, paths.

use super::{Mutation, Pick, one, places};
use crate::history::{Call, Outcome};
use crate::invariant::Invariant;
use crate::model::{Evidence, Transition};

const fn mutation(name: &'static str, caught_by: Invariant, plant: fn(&mut Evidence, Pick<'_>) -> bool) -> Mutation {
    Mutation { name, caught_by, plant }
}

/// The faults of this file.
pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("money left twice", Invariant::Inv02, |evidence, pick| {
        let entry = one(&mut evidence.rail_book, pick, |entry| !entry.executions.is_empty());
        let done = entry.is_some_and(|entry| {
            let again = entry.executions[0].clone();
            entry.executions.push(again);
            true
        });
        evidence.rail_stats.executed += 1;
        done
    }),
    mutation("money left that nobody asked for", Invariant::Inv02, |evidence, _| {
        evidence.rail_stats.executed += 1;
        true
    }),
    mutation("another amount left", Invariant::Inv02, |evidence, pick| {
        let entry = one(&mut evidence.rail_book, pick, |entry| !entry.executions.is_empty());
        entry.is_some_and(|entry| {
            entry.executions[0].amount_minor += 1;
            true
        })
    }),
    mutation("posted, and no money left", Invariant::Inv02, |evidence, pick| {
        let entry = one(&mut evidence.rail_book, pick, |entry| !entry.executions.is_empty());
        let done = entry.is_some_and(|entry| {
            entry.executions.clear();
            true
        });
        evidence.rail_stats.executed = evidence.rail_stats.executed.saturating_sub(1);
        done
    }),
    mutation("failed, and money left", Invariant::Inv02, |evidence, pick| {
        let Some(execution) = evidence
            .rail_book
            .iter()
            .find_map(|entry| entry.executions.first().cloned())
        else {
            return false;
        };
        let Some(failed) = one(&mut evidence.payouts, pick, |payout| payout.state == "FAILED") else {
            return false;
        };
        let id = failed.payout_id.clone();
        evidence.rail_stats.executed += 1;
        evidence
            .rail_book
            .iter_mut()
            .filter(|entry| entry.client_reference == id)
            .for_each(|entry| entry.executions.push(execution.clone()));
        true
    }),
    mutation("one leg is missing", Invariant::Inv03, |evidence, pick| {
        let legs = places(&evidence.ledger, |leg| leg.payout_id.is_some());
        if legs.is_empty() {
            return false;
        }
        evidence.ledger.remove(legs[pick(legs.len())]);
        true
    }),
    mutation("the legs were written twice", Invariant::Inv03, |evidence, pick| {
        let Some(leg) = one(&mut evidence.ledger, pick, |leg| leg.payout_id.is_some()) else {
            return false;
        };
        let id = leg.payout_id.clone();
        let again: Vec<_> = evidence
            .ledger
            .iter()
            .filter(|leg| leg.payout_id == id)
            .cloned()
            .collect();
        evidence.ledger.extend(again);
        true
    }),
    mutation("the legs do not add up to zero", Invariant::Inv03, |evidence, pick| {
        let leg = one(&mut evidence.ledger, pick, |leg| leg.payout_id.is_some());
        leg.is_some_and(|leg| {
            leg.amount_minor -= 1;
            true
        })
    }),
    mutation("legs without POSTED", Invariant::Inv03, |evidence, pick| {
        let posted = one(&mut evidence.payouts, pick, |payout| payout.state == "POSTED");
        posted.is_some_and(|payout| {
            payout.state = "CLAIMED".to_owned();
            true
        })
    }),
    mutation(
        "a balance that does not follow from the legs",
        Invariant::Inv03,
        |evidence, pick| {
            let account = one(&mut evidence.accounts, pick, |_| true);
            account.is_some_and(|account| {
                account.balance_minor += 1;
                true
            })
        },
    ),
    mutation("a claim under a stale token", Invariant::Inv05, |evidence, pick| {
        stale_step(evidence, pick, "CLAIMED")
    }),
    mutation("a post under a stale token", Invariant::Inv05, |evidence, pick| {
        stale_step(evidence, pick, "POSTED")
    }),
    mutation(
        "a submission under a stale token",
        Invariant::Inv05,
        |evidence, pick| {
            let Some(row) = one(&mut evidence.submissions, pick, |_| true) else {
                return false;
            };
            let mut stale = row.clone();
            stale.submission_id = "a stale one".to_owned();
            stale.token = stale.token.map(|token| token - 1);
            evidence.submissions.push(stale);
            true
        },
    ),
    mutation(
        "the payment's fence below a token that wrote",
        Invariant::Inv05,
        |evidence, pick| {
            let account = one(&mut evidence.accounts, pick, |account| account.fence > 0);
            account.is_some_and(|account| {
                account.fence = 0;
                true
            })
        },
    ),
    mutation(
        "the rail's mark below a token that submitted",
        Invariant::Inv05,
        |evidence, pick| {
            let water = one(&mut evidence.high_water, pick, |water| water.highest_token > 0);
            water.is_some_and(|water| {
                water.highest_token = 0;
                true
            })
        },
    ),
    mutation(
        "a claim was refused as stale and left its row",
        Invariant::Inv05,
        |evidence, pick| refused_with_a_row(evidence, pick, "claim"),
    ),
    mutation(
        "a submit was refused as stale and left its row",
        Invariant::Inv05,
        |evidence, pick| refused_with_a_row(evidence, pick, "submit"),
    ),
    mutation(
        "a post was refused as stale and left its row",
        Invariant::Inv05,
        |evidence, pick| refused_with_a_row(evidence, pick, "post"),
    ),
    mutation(
        "a step without a grant of its token",
        Invariant::Inv06,
        |evidence, pick| {
            let row = one(&mut evidence.transitions, pick, |row| row.token.is_some());
            row.is_some_and(|row| {
                row.token = Some(u64::MAX);
                true
            })
        },
    ),
    mutation(
        "a submission without a grant of its token",
        Invariant::Inv06,
        |evidence, pick| {
            let row = one(&mut evidence.submissions, pick, |row| row.token.is_some());
            row.is_some_and(|row| {
                row.token = Some(u64::MAX);
                true
            })
        },
    ),
    mutation(
        "a leg without a grant of its token",
        Invariant::Inv06,
        |evidence, pick| {
            let row = one(&mut evidence.ledger, pick, |row| {
                row.token.is_some() && row.payout_id.is_some()
            });
            row.is_some_and(|row| {
                row.token = Some(u64::MAX);
                true
            })
        },
    ),
    mutation(
        "a step under a grant of another key",
        Invariant::Inv06,
        |evidence, _| {
            for event in &mut evidence.lock_events {
                event.lock_key = event.lock_key.take().map(|_| "payout:another".to_owned());
            }
            true
        },
    ),
    mutation("a step without a token", Invariant::Inv07, |evidence, pick| {
        let row = one(&mut evidence.transitions, pick, |row| {
            row.token.is_some() && row.from_state.as_deref() != Some("PENDING")
        });
        row.is_some_and(|row| {
            row.token = None;
            true
        })
    }),
    mutation("a submission without a token", Invariant::Inv07, |evidence, pick| {
        let row = one(&mut evidence.submissions, pick, |_| true);
        row.is_some_and(|row| {
            row.token = None;
            true
        })
    }),
    mutation("a leg without a token", Invariant::Inv07, |evidence, pick| {
        let row = one(&mut evidence.ledger, pick, |row| row.payout_id.is_some());
        row.is_some_and(|row| {
            row.token = None;
            true
        })
    }),
    mutation(
        "a call without a token was accepted",
        Invariant::Inv07,
        |evidence, pick| {
            let call = one(&mut evidence.calls, pick, |call| {
                call.verb == "claim" && call.outcome == Outcome::Ok
            });
            call.is_some_and(|call| {
                call.token = None;
                true
            })
        },
    ),
    mutation("an unlawful step", Invariant::Inv08, |evidence, pick| {
        let Some(last) = one(&mut evidence.transitions, pick, |row| row.to_state == "POSTED") else {
            return false;
        };
        let mut back = last.clone();
        back.from_state = Some("POSTED".to_owned());
        "CLAIMED".clone_into(&mut back.to_state);
        append(evidence, back);
        true
    }),
    mutation("a step is missing from a path", Invariant::Inv08, |evidence, pick| {
        let rows = places(&evidence.transitions, |row| {
            row.from_state.as_deref() == Some("PENDING")
        });
        if rows.is_empty() {
            return false;
        }
        evidence.transitions.remove(rows[pick(rows.len())]);
        true
    }),
    mutation("a step is attributed to nobody", Invariant::Inv08, |evidence, pick| {
        let row = one(&mut evidence.transitions, pick, |_| true);
        row.is_some_and(|row| {
            row.actor = None;
            true
        })
    }),
    mutation("a payout is stuck CLAIMED", Invariant::Inv08, |evidence, pick| {
        stuck(evidence, pick, "CLAIMED")
    }),
    mutation(
        "a payout is stuck RAIL_AMBIGUOUS, not escalated",
        Invariant::Inv08,
        |evidence, pick| stuck(evidence, pick, "RAIL_AMBIGUOUS"),
    ),
    mutation(
        "a funded payout is stuck PENDING",
        Invariant::Inv08,
        |evidence, pick| {
            let Some(payout) = one(&mut evidence.payouts, pick, |payout| payout.amount_minor > 0) else {
                return false;
            };
            let mut waiting = payout.clone();
            "waiting".clone_into(&mut waiting.payout_id);
            "PENDING".clone_into(&mut waiting.state);
            waiting.amount_minor = 1;
            evidence.payouts.push(waiting);
            append(
                evidence,
                Transition {
                    payout_id: "waiting".to_owned(),
                    to_state: "PENDING".to_owned(),
                    actor: Some("creator".to_owned()),
                    ..Transition::default()
                },
            );
            true
        },
    ),
];

fn append(evidence: &mut Evidence, mut row: Transition) {
    row.seq = evidence.transitions.iter().map(|row| row.seq).max().unwrap_or(0) + 1;
    evidence.transitions.push(row);
}

/// The same step once more, later, under a token below the highest that wrote.
fn stale_step(evidence: &mut Evidence, pick: Pick<'_>, to: &str) -> bool {
    let Some(row) = one(&mut evidence.transitions, pick, |row| {
        row.to_state == to && row.token.is_some()
    }) else {
        return false;
    };
    let mut stale = row.clone();
    stale.token = stale.token.map(|token| token - 1);
    append(evidence, stale);
    true
}

/// Every call of this verb for one payout and token was answered FENCED_OUT; the row that it left stays.
fn refused_with_a_row(evidence: &mut Evidence, pick: Pick<'_>, verb: &str) -> bool {
    let Some(call) = one(&mut evidence.calls, pick, |call| {
        call.verb == verb && call.outcome == Outcome::Ok && call.payout.is_some()
    }) else {
        return false;
    };
    let (payout, token) = (call.payout.clone(), call.token);
    let same = |call: &&mut Call| call.verb == verb && call.payout == payout && call.token == token;
    for call in evidence.calls.iter_mut().filter(same) {
        call.outcome = Outcome::Refused;
        call.code = Some("FENCED_OUT".to_owned());
    }
    true
}

/// A settled payout never got past this state.
fn stuck(evidence: &mut Evidence, pick: Pick<'_>, state: &str) -> bool {
    let Some(payout) = one(&mut evidence.payouts, pick, |payout| {
        matches!(payout.state.as_str(), "POSTED" | "FAILED")
    }) else {
        return false;
    };
    state.clone_into(&mut payout.state);
    payout.escalated_at = None;
    let id = payout.payout_id.clone();
    let last = evidence
        .transitions
        .iter_mut()
        .filter(|row| row.payout_id == id)
        .max_by_key(|row| row.seq);
    last.is_some_and(|row| {
        state.clone_into(&mut row.to_state);
        true
    })
}
