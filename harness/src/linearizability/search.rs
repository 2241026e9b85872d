//! The search for an order: Wing and Gong's, with the memory of Lowe.
//!
//! A state is which calls have taken effect, how many grants were made and whether the last one still holds. Two things
//! keep it small without losing an order: tokens rise, so the next grant is always the one with the next token; and a
//! call that changes nothing may take effect as soon as it fits, for that never hinders another.

use super::timeline::{Grant, KeyHistory, Release};
use std::collections::HashSet;

/// How many states a search may visit before it is given up.
pub const STEPS_MAX: u64 = 2_000_000;

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is an order.
    Order,
    /// There is none; where the longest try ended, in one sentence.
    None(String),
    /// Given up after so many states: nothing is known.
    NotChecked(u64),
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    /// The grant of this number in token order.
    Grant(usize),
    /// An acknowledged release of that number in the history.
    Release(usize),
    /// It was held, by this token where one is named.
    Kept(Option<u64>),
}

#[derive(Clone, Copy, Debug)]
struct Op {
    asked_us: u64,
    answered_us: u64,
    effect: Effect,
}

#[derive(Clone, Debug)]
struct State {
    done: Vec<u64>,
    count: usize,
    granted: usize,
    held: bool,
}

impl State {
    fn is_done(&self, op: usize) -> bool {
        self.done[op / 64] >> (op % 64) & 1 == 1
    }

    fn take(&mut self, op: usize) {
        self.done[op / 64] |= 1 << (op % 64);
        self.count += 1;
    }
}

/// Looks for an order of this key's calls that one lock would have answered so. `steps_max` bounds the states visited.
#[must_use]
pub fn search(history: &KeyHistory, steps_max: u64) -> Found {
    let ops = ops(history);
    let mut open = vec![State {
        done: vec![0; ops.len().div_ceil(64)],
        count: 0,
        granted: 0,
        held: false,
    }];
    let mut seen = HashSet::new();
    let (mut steps, mut farthest, mut stuck) = (0, 0, None);
    while let Some(mut state) = open.pop() {
        steps += 1;
        if steps > steps_max {
            return Found::NotChecked(steps_max);
        }
        let (candidates, deadline) = look_around(history, &ops, &mut state);
        if state.count == ops.len() {
            return Found::Order;
        }
        if state.count >= farthest {
            farthest = state.count;
            stuck = candidates.first().map(|op| (ops[*op], state.clone()));
        }
        for next in steps_from(history, &ops, &state, &candidates, deadline) {
            if seen.insert((next.done.clone(), next.granted, next.held)) {
                open.push(next);
            }
        }
    }
    Found::None(stuck.map_or_else(|| "no order at all".to_owned(), |(op, state)| told(history, op, &state)))
}

fn ops(history: &KeyHistory) -> Vec<Op> {
    let grants = history.grants.iter().enumerate().filter_map(|(n, grant)| {
        Some(Op {
            asked_us: grant.asked_us,
            answered_us: grant.answered_us?,
            effect: Effect::Grant(n),
        })
    });
    let releases = history.releases.iter().enumerate().map(|(n, release)| Op {
        asked_us: release.asked_us,
        answered_us: release.answered_us,
        effect: Effect::Release(n),
    });
    let kept = history.kept.iter().map(|kept| Op {
        asked_us: kept.asked_us,
        answered_us: kept.answered_us,
        effect: Effect::Kept(kept.token),
    });
    let mut ops: Vec<Op> = grants.chain(releases).chain(kept).collect();
    ops.sort_by_key(|op| op.asked_us);
    ops
}

/// Takes every call that changes nothing and fits now; answers the calls that could be next, and the moment before which
/// the next effect must happen.
fn look_around(history: &KeyHistory, ops: &[Op], state: &mut State) -> (Vec<usize>, u64) {
    loop {
        let (mut candidates, mut deadline) = (Vec::new(), u64::MAX);
        for (n, op) in ops.iter().enumerate() {
            if op.asked_us > deadline {
                break;
            }
            if !state.is_done(n) {
                deadline = deadline.min(op.answered_us);
                candidates.push(n);
            }
        }
        let holder = holder(history, state);
        let last = state.granted.checked_sub(1).map(|n| &history.grants[n]);
        let fits: Vec<usize> = candidates
            .iter()
            .copied()
            .filter(|n| match ops[*n].effect {
                Effect::Kept(None) => holder.is_some(),
                Effect::Kept(token) => holder == token,
                // Asked again after its answer was lost: free already, after this very grant.
                Effect::Release(n) => holder.is_none() && last.is_some_and(|grant| is_of(&history.releases[n], grant)),
                Effect::Grant(_) => false,
            })
            .collect();
        if fits.is_empty() {
            return (candidates, deadline);
        }
        for n in fits {
            state.take(n);
        }
    }
}

/// Whether it gives back this very grant, asked for by the client that was granted it where one is known.
fn is_of(release: &Release, grant: &Grant) -> bool {
    release.token == grant.token && grant.client.as_ref().is_none_or(|client| *client == release.client)
}

fn holder(history: &KeyHistory, state: &State) -> Option<u64> {
    let n = state.granted.checked_sub(1)?;
    state.held.then(|| history.grants[n].token)
}

fn steps_from(history: &KeyHistory, ops: &[Op], state: &State, candidates: &[usize], deadline: u64) -> Vec<State> {
    let mut next = Vec::new();
    if state.held {
        let grant = &history.grants[state.granted - 1];
        for n in candidates {
            if let Effect::Release(release) = ops[*n].effect
                && is_of(&history.releases[release], grant)
            {
                let mut after = state.clone();
                after.take(*n);
                after.held = false;
                next.push(after);
            }
        }
        if grant.ends_from_us.is_some_and(|from| from <= deadline) {
            let mut after = state.clone();
            after.held = false;
            next.push(after);
        }
    } else if let Some(grant) = history.grants.get(state.granted) {
        let rises = state.granted == 0 || history.grants[state.granted - 1].token < grant.token;
        let op = candidates
            .iter()
            .find(|n| matches!(ops[**n].effect, Effect::Grant(number) if number == state.granted));
        if rises && (op.is_some() || grant.answered_us.is_none() && grant.asked_us <= deadline) {
            let mut after = state.clone();
            if let Some(n) = op {
                after.take(*n);
            }
            after.granted += 1;
            after.held = true;
            next.push(after);
        }
    }
    next
}

fn told(history: &KeyHistory, op: Op, state: &State) -> String {
    let what = match op.effect {
        Effect::Grant(n) => format!("the grant of token {}", history.grants[n].token),
        Effect::Release(n) => format!("the release of token {}", history.releases[n].token),
        Effect::Kept(None) => "a refusal as busy".to_owned(),
        Effect::Kept(Some(token)) => format!("a lease of token {token}"),
    };
    let now = match (holder(history, state), state.granted.checked_sub(1)) {
        (Some(token), _) => format!("held under {token}"),
        (None, Some(n)) => format!("free after {}", history.grants[n].token),
        (None, None) => "never held".to_owned(),
    };
    format!(
        "{what} (asked at {} µs, answered at {} µs) fits nowhere: at best the key is {now} then",
        op.asked_us, op.answered_us
    )
}
