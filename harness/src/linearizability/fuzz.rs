//! The two checks against random histories: lawful ones are accepted; of any other, the search must say what trying all
//! orders says.

use super::{Found, Grant, Kept, KeyHistory, Release, STEPS_MAX, search, token_order};
use host_kit::{Host, Random};

/// The seed: a fresh one, or the one named to see a failure again.
fn seed() -> u64 {
    let named = std::env::var("DLOCK_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = named.unwrap_or_else(|| Host::system().random.below(u64::MAX));
    println!("DLOCK_FUZZ_SEED={seed}");
    seed
}

/// A lock that is used by some clients: each call takes effect at one moment, and was asked and answered around it.
fn lawful(random: &Random, calls: usize) -> KeyHistory {
    let mut history = KeyHistory {
        key: "k".to_owned(),
        ..KeyHistory::default()
    };
    let (mut now, mut token, mut holder) = (100, 0, None::<usize>);
    for _ in 0..calls {
        now += 1 + random.below(10);
        let asked_us = now - random.below(20);
        let answered_us = now + random.below(20);
        match holder {
            None => {
                token += 1 + random.below(3);
                // The answer of some is lost: only the trail knows of them.
                let seen = random.below(6) > 0;
                holder = Some(history.grants.len());
                history.grants.push(Grant {
                    token,
                    client: seen.then(|| format!("C{}", random.below(3))),
                    asked_us: if seen { asked_us } else { 0 },
                    answered_us: seen.then_some(answered_us),
                    ends_from_us: (!seen).then_some(0),
                });
            }
            Some(held) => {
                let grant = &mut history.grants[held];
                match (random.below(4), &grant.client) {
                    (0, Some(client)) => {
                        history.releases.push(Release {
                            token: grant.token,
                            client: client.clone(),
                            asked_us,
                            answered_us,
                        });
                        holder = None;
                    }
                    (1, _) => {
                        grant.ends_from_us = Some(now.saturating_sub(random.below(30)));
                        holder = None;
                    }
                    (2, Some(_)) => history.kept.push(Kept {
                        token: Some(grant.token),
                        asked_us,
                        answered_us,
                    }),
                    _ => history.kept.push(Kept {
                        token: None,
                        asked_us,
                        answered_us,
                    }),
                }
            }
        }
    }
    history
}

/// One thing of the history is changed, whatever that makes of it.
fn changed(random: &Random, history: &mut KeyHistory) {
    let grants = history.grants.len() as u64;
    let any = |len: u64| usize::try_from(random.below(len)).unwrap();
    match random.below(7) {
        0 if grants > 1 => {
            let (a, b) = (any(grants), any(grants));
            let token = history.grants[a].token;
            history.grants[a].token = history.grants[b].token;
            history.grants[b].token = token;
            history.grants.sort_by_key(|grant| grant.token);
        }
        1 if grants > 1 => {
            let n = any(grants - 1);
            // What the trail alone knows of was seen by no client, so no client can have been given it twice.
            if history.grants[n..=n + 1]
                .iter()
                .all(|grant| grant.answered_us.is_some())
            {
                history.grants[n + 1].token = history.grants[n].token;
            }
        }
        2 if grants > 0 => history.grants[any(grants)].ends_from_us = None,
        3 if grants > 0 => {
            let grant = &mut history.grants[any(grants)];
            let later = random.below(60);
            grant.asked_us += later;
            grant.answered_us = grant.answered_us.map(|at| at + later);
        }
        4 if !history.releases.is_empty() => {
            let n = any(history.releases.len() as u64);
            if random.below(2) == 0 {
                history.releases.remove(n);
            } else {
                "a stranger".clone_into(&mut history.releases[n].client);
            }
        }
        5 if !history.kept.is_empty() => {
            let n = any(history.kept.len() as u64);
            let later = random.below(60);
            history.kept[n].asked_us += later;
            history.kept[n].answered_us += later;
        }
        _ if grants > 0 => {
            let grant = &mut history.grants[any(grants)];
            grant.ends_from_us = grant.ends_from_us.map(|from| from + random.below(60));
        }
        _ => {}
    }
}

/// What can happen next, spelled out without any of the search's short cuts.
#[derive(Clone, Copy)]
enum Event {
    Grant(usize),
    Release(usize),
    Kept(usize),
    /// The grant of this number ends by itself; need not happen.
    End(usize),
}

/// Whether any order of all calls is that of a lock, by trying them all.
fn any_order(history: &KeyHistory) -> bool {
    let mut events: Vec<(u64, u64, Event)> = Vec::new();
    for (n, grant) in history.grants.iter().enumerate() {
        events.push((grant.asked_us, grant.answered_us.unwrap_or(u64::MAX), Event::Grant(n)));
        if let Some(from) = grant.ends_from_us {
            events.push((from, u64::MAX, Event::End(n)));
        }
    }
    for (n, release) in history.releases.iter().enumerate() {
        events.push((release.asked_us, release.answered_us, Event::Release(n)));
    }
    for (n, kept) in history.kept.iter().enumerate() {
        events.push((kept.asked_us, kept.answered_us, Event::Kept(n)));
    }
    try_all(history, &events, 0, None, None)
}

fn try_all(
    history: &KeyHistory,
    events: &[(u64, u64, Event)],
    done: u64,
    holder: Option<usize>,
    last: Option<usize>,
) -> bool {
    let undone = |n: &usize| done >> n & 1 == 0;
    let left: Vec<usize> = (0..events.len()).filter(undone).collect();
    if left.iter().all(|n| events[*n].1 == u64::MAX) {
        return true;
    }
    // Real time: what was answered before another was asked comes first.
    let deadline = left.iter().map(|n| events[*n].1).min().unwrap_or(u64::MAX);
    left.into_iter().filter(|n| events[*n].0 <= deadline).any(|n| {
        let token = |grant: usize| history.grants[grant].token;
        let next = match events[n].2 {
            // What the trail granted was granted: none is left out before a later one.
            Event::Grant(grant) => (holder.is_none()
                && last.map_or(0, |last| last + 1) == grant
                && last.is_none_or(|last| token(last) < token(grant)))
            .then_some((Some(grant), Some(grant))),
            Event::Release(n) => {
                let release = &history.releases[n];
                // The holder gives it back, or asks again for what is free since.
                holder.or(last).and_then(|grant| {
                    let grant = &history.grants[grant];
                    let own = grant.client.as_ref().is_none_or(|client| *client == release.client);
                    (grant.token == release.token && own).then_some((None, last))
                })
            }
            Event::Kept(n) => holder
                .filter(|held| history.kept[n].token.is_none_or(|wanted| wanted == token(*held)))
                .map(|held| (Some(held), last)),
            Event::End(grant) => (holder == Some(grant)).then_some((None, last)),
        };
        next.is_some_and(|(holder, last)| try_all(history, events, done | 1 << n, holder, last))
    })
}

#[test]
fn lawful_histories_are_accepted_by_both_checks() {
    let random = Random::seeded(seed());
    for calls in [0, 1, 2, 5, 10, 50, 400, 1_500] {
        for _ in 0..10 {
            let history = lawful(&random, calls);
            assert_eq!(search(&history, STEPS_MAX), Found::Order, "{history:#?}");
            assert_eq!(token_order(&history), Vec::<String>::new(), "{history:#?}");
        }
    }
}

#[test]
fn the_search_says_of_changed_histories_what_trying_all_orders_says() {
    let random = Random::seeded(seed());
    let (mut refused, mut harmless) = (0, 0);
    for _ in 0..3_000 {
        let mut history = lawful(&random, 9);
        assert!(any_order(&history), "{history:#?}");
        changed(&random, &mut history);
        let possible = any_order(&history);
        let found = search(&history, STEPS_MAX);
        assert_eq!(found == Found::Order, possible, "{found:?}: {history:#?}");
        // What is lawful is no offence to the order of tokens either.
        if possible {
            assert_eq!(token_order(&history), Vec::<String>::new(), "{history:#?}");
            harmless += 1;
        } else {
            refused += 1;
        }
    }
    println!("{refused} changed histories refused, {harmless} shown to be harmless");
    assert!(refused > 0 && harmless > 0);
}

#[test]
fn what_takes_too_long_is_not_checked() {
    let history = lawful(&Random::seeded(1), 100);
    assert_eq!(search(&history, 3), Found::NotChecked(3));
}
