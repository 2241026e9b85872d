//! Faults of the lock: tokens, holders, leases, releases.

use super::{Mutation, Pick, one, places};
use crate::history::{Call, Outcome};
use crate::invariant::Invariant;
use crate::invariant::lock_delay::STAMPED_LATE_US;
use crate::model::{Evidence, LockEvent, wall_ms};

const fn mutation(name: &'static str, caught_by: Invariant, plant: fn(&mut Evidence, Pick<'_>) -> bool) -> Mutation {
    Mutation { name, caught_by, plant }
}

/// The faults of this file.
pub(super) const MUTATIONS: &[Mutation] = &[
    mutation(
        "a token granted twice, in the trail",
        Invariant::Inv04,
        |evidence, pick| retoken(evidence, pick, |before| before),
    ),
    mutation(
        "a token that falls, in the trail",
        Invariant::Inv04,
        |evidence, pick| retoken(evidence, pick, |before| before - 1),
    ),
    mutation(
        "a grant beside a live one, in the trail",
        Invariant::Inv01,
        |evidence, pick| {
            let Some((first, second)) = two_grants(evidence, pick) else {
                return false;
            };
            // Whatever ended the first one is gone, or came after the second.
            let (key, token) = (first.lock_key.clone(), first.token);
            let session = first.session_id.clone();
            evidence.lock_events.retain(|event| {
                !(event.seq < second.seq
                    && event.kind != "GRANTED"
                    && (event.lock_key == key && event.token == token
                        || event.kind.starts_with("SESSION_")
                            && event.kind != "SESSION_OPENED"
                            && event.session_id == session
                        || event.lock_key == key && event.kind == "REVOKED"))
            });
            true
        },
    ),
    mutation(
        "a grant released by another session, in the trail",
        Invariant::Inv01,
        |evidence, pick| {
            let released = one(&mut evidence.lock_events, pick, |event| event.kind == "RELEASED");
            released.is_some_and(|event| {
                event.session_id = Some("somebody else's".to_owned());
                true
            })
        },
    ),
    mutation(
        "two clients were given one token",
        Invariant::LockHistory,
        |evidence, pick| {
            let Some((earlier, later)) = two_acquires(evidence, pick) else {
                return false;
            };
            if evidence.calls[earlier].client == evidence.calls[later].client {
                return false;
            }
            evidence.calls[later].token = evidence.calls[earlier].token;
            true
        },
    ),
    mutation(
        "clients saw the tokens fall",
        Invariant::LockHistory,
        |evidence, pick| {
            let Some((earlier, later)) = two_acquires(evidence, pick) else {
                return false;
            };
            let (low, high) = (evidence.calls[earlier].token, evidence.calls[later].token);
            (evidence.calls[earlier].token, evidence.calls[later].token) = (high, low);
            true
        },
    ),
    mutation(
        "two holders at once, as the clients saw it",
        Invariant::LockHistory,
        |evidence, pick| {
            let Some((earlier, later)) = two_acquires(evidence, pick) else {
                return false;
            };
            // The later one was answered as soon as it was asked for, and that was right after the earlier.
            let at = evidence.calls[earlier].ended_us() + 1;
            evidence.calls[later].invoked_us = at;
            evidence.calls[later].answered_us = Some(at + 1);
            true
        },
    ),
    mutation(
        "a lease told after the next one was granted",
        Invariant::LockHistory,
        |evidence, pick| {
            let Some((earlier, later)) = two_acquires(evidence, pick) else {
                return false;
            };
            let after = evidence.calls[later].ended_us() + 1;
            let mut told = evidence.calls[earlier].clone();
            told.verb = "lease".to_owned();
            (told.invoked_us, told.answered_us, told.until_us) = (after, Some(after + 1), Some(after + 2));
            evidence.calls.push(told);
            true
        },
    ),
    mutation(
        "a release of another client's grant was accepted",
        Invariant::LockHistory,
        |evidence, pick| {
            let release = one(&mut evidence.calls, pick, |call| {
                call.verb == "release" && call.outcome == Outcome::Ok
            });
            release.is_some_and(|call| {
                call.client = "a stranger".to_owned();
                true
            })
        },
    ),
    mutation(
        "a release was acknowledged and nothing ended",
        Invariant::LockHistory,
        |evidence, pick| {
            let Some(release) = one(&mut evidence.calls, pick, |call| {
                call.verb == "release" && call.outcome == Outcome::Ok
            }) else {
                return false;
            };
            let (key, token) = (release.key.clone(), release.token);
            let Some(session) = session_of(evidence, key.as_deref(), token) else {
                return false;
            };
            evidence.lock_events.retain(|event| {
                event.kind == "GRANTED"
                    || !(event.lock_key == key && event.token == token
                        || event.kind.starts_with("SESSION_") && event.session_id.as_deref() == Some(&session)
                        || event.lock_key == key && event.kind == "REVOKED")
            });
            true
        },
    ),
    mutation(
        "refused as busy while the key was free",
        Invariant::LockHistory,
        |evidence, pick| {
            // After the last grant of a key was given back there is nobody.
            let places = places(&evidence.calls, |call| {
                call.verb == "release"
                    && call.outcome == Outcome::Ok
                    && evidence
                        .calls
                        .iter()
                        .all(|other| other.key != call.key || other.ended_us() <= call.ended_us())
                    && evidence
                        .lock_events
                        .iter()
                        .all(|event| event.kind != "GRANTED" || event.lock_key != call.key || event.token <= call.token)
            });
            if places.is_empty() {
                return false;
            }
            let release = &evidence.calls[places[pick(places.len())]];
            let after = release.ended_us() + 1;
            let refused = Call {
                verb: "acquire".to_owned(),
                token: None,
                invoked_us: after,
                answered_us: Some(after + 1),
                outcome: Outcome::Refused,
                code: Some("HELD_BY_OTHER".to_owned()),
                ..release.clone()
            };
            evidence.calls.push(refused);
            true
        },
    ),
    mutation(
        "a client holds a token that was never granted",
        Invariant::LockHistory,
        |evidence, pick| {
            let Some(acquire) = one(&mut evidence.calls, pick, acquired) else {
                return false;
            };
            let (key, token) = (acquire.key.clone(), acquire.token);
            let before = evidence.lock_events.len();
            evidence
                .lock_events
                .retain(|event| !(event.kind == "GRANTED" && event.lock_key == key && event.token == token));
            before != evidence.lock_events.len()
        },
    ),
    mutation(
        "a grant to a client that never asked for the key",
        Invariant::LockHistory,
        |evidence, pick| {
            let Some(client) = one(&mut evidence.calls, pick, acquired).map(|call| call.client.clone()) else {
                return false;
            };
            evidence.lock_events.push(LockEvent {
                seq: u64::MAX,
                kind: "GRANTED".to_owned(),
                lock_key: Some("payout:nobody-asked".to_owned()),
                token: Some(u64::MAX),
                actor: Some(client),
                ..LockEvent::default()
            });
            true
        },
    ),
    mutation(
        "a lease expired early: another had its grant before",
        Invariant::LockLease,
        |evidence, pick| {
            expired(evidence, pick, |evidence, token, key| {
                let Some(next) = evidence
                    .calls
                    .iter()
                    .filter(|call| acquired(call) && call.key == key && call.token > token)
                    .map(Call::ended_us)
                    .min()
                else {
                    return false;
                };
                promise(evidence, token, &key, next + 1)
            })
        },
    ),
    mutation(
        "a lease expired early: the trail wrote it off before",
        Invariant::LockLease,
        |evidence, pick| {
            expired(evidence, pick, |evidence, token, key| {
                let Some(now) = evidence.collected else { return false };
                promise(evidence, token, &key, now.boot_us)
            })
        },
    ),
    mutation(
        "a lease kept past the bound, then written off",
        Invariant::LockLease,
        |evidence, pick| {
            let Some(now) = &mut evidence.collected else {
                return false;
            };
            // Everything the trail says was an hour later than the clients' clock has it.
            now.boot_us += 2 * 3_600_000_000;
            expired(evidence, pick, |_, _, _| true)
        },
    ),
    mutation(
        "a lease kept past the bound, and to the end",
        Invariant::LockLease,
        |evidence, pick| {
            let Some(now) = &mut evidence.collected else {
                return false;
            };
            now.boot_us += 2 * 3_600_000_000;
            expired(evidence, pick, |evidence, token, key| {
                let Some(session) = session_of(evidence, key.as_deref(), token) else {
                    return false;
                };
                evidence.lock_events.retain(|event| {
                    event.kind == "GRANTED"
                        || !(event.lock_key == key && event.token == token
                            || event.kind.starts_with("SESSION_") && event.session_id.as_deref() == Some(&session))
                });
                true
            })
        },
    ),
    mutation(
        "granted 1 ms before the delay after a lease was over, as the clients saw it",
        Invariant::LockDelay,
        |evidence, pick| {
            expired(evidence, pick, |evidence, token, key| {
                let Some(next) = next_grant(evidence, token, key.as_deref()) else {
                    return false;
                };
                let had = evidence
                    .calls
                    .iter()
                    .filter(|call| acquired(call) && call.key == key && call.token == next.token)
                    .map(Call::ended_us)
                    .min();
                let promised = leases(evidence, token, &key).filter_map(|lease| lease.until_us).max();
                let (Some(had), Some(promised)) = (had, promised) else {
                    return false;
                };
                let passed = had.saturating_sub(promised);
                leases(evidence, token, &key).for_each(|lease| lease.delay_us = Some(passed + 1_000));
                true
            })
        },
    ),
    mutation(
        "granted within the delay after a revoke, in the trail",
        Invariant::LockDelay,
        |evidence, pick| {
            expired(evidence, pick, |evidence, token, key| {
                let Some(next) = next_grant(evidence, token, key.as_deref()) else {
                    return false;
                };
                let Some(end) = evidence
                    .lock_events
                    .iter_mut()
                    .find(|event| event.kind == "EXPIRED" && event.lock_key == key && event.token == token)
                else {
                    return false;
                };
                end.kind = "REVOKED".to_owned();
                let (Some(ended), Some(granted)) = (wall_ms(&end.at), wall_ms(&next.at)) else {
                    return false;
                };
                // By 1 ms more than the stamps may be off by, which are cut to milliseconds.
                let passed_us = granted.saturating_sub(ended).unsigned_abs() * 1_000;
                let delay = passed_us + STAMPED_LATE_US + 2_000;
                leases(evidence, token, &key).for_each(|lease| lease.delay_us = Some(delay));
                true
            })
        },
    ),
];

fn acquired(call: &Call) -> bool {
    call.verb == "acquire" && call.outcome == Outcome::Ok && call.key.is_some()
}

fn session_of(evidence: &Evidence, key: Option<&str>, token: Option<u64>) -> Option<String> {
    evidence
        .lock_events
        .iter()
        .find(|event| event.kind == "GRANTED" && event.lock_key.as_deref() == key && event.token == token)
        .and_then(|event| event.session_id.clone())
}

/// Two grants of one key that follow each other in the trail.
fn two_grants(evidence: &Evidence, pick: Pick<'_>) -> Option<(LockEvent, LockEvent)> {
    let granted: Vec<&LockEvent> = evidence
        .lock_events
        .iter()
        .filter(|event| event.kind == "GRANTED")
        .collect();
    let pairs: Vec<(&LockEvent, &LockEvent)> = granted
        .iter()
        .enumerate()
        .filter_map(|(n, first)| {
            let next = granted[n + 1..].iter().find(|next| next.lock_key == first.lock_key)?;
            Some((*first, *next))
        })
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let (first, second) = pairs[pick(pairs.len())];
    Some((first.clone(), second.clone()))
}

/// Gives the second of two grants another token, made of the first one's.
fn retoken(evidence: &mut Evidence, pick: Pick<'_>, token: fn(u64) -> u64) -> bool {
    let Some((first, second)) = two_grants(evidence, pick) else {
        return false;
    };
    for event in &mut evidence.lock_events {
        if event.seq == second.seq {
            event.token = first.token.map(token);
        }
    }
    true
}

/// Two acquires of one key whose tokens follow each other, the earlier one answered before the later one was asked for.
fn two_acquires(evidence: &Evidence, pick: Pick<'_>) -> Option<(usize, usize)> {
    let mut pairs = Vec::new();
    for earlier in places(&evidence.calls, acquired) {
        let first = &evidence.calls[earlier];
        let later = places(&evidence.calls, |call| {
            acquired(call) && call.key == first.key && call.token > first.token && call.invoked_us > first.ended_us()
        });
        pairs.extend(
            later
                .into_iter()
                .map(|later| (earlier, later))
                .min_by_key(|(_, later)| evidence.calls[*later].token),
        );
    }
    if pairs.is_empty() {
        return None;
    }
    Some(pairs[pick(pairs.len())])
}

/// Does something to a grant that expired and whose lease a client was told.
fn expired(
    evidence: &mut Evidence,
    pick: Pick<'_>,
    with: fn(&mut Evidence, Option<u64>, Option<String>) -> bool,
) -> bool {
    let places = places(&evidence.lock_events, |event| {
        event.kind == "EXPIRED"
            && evidence
                .calls
                .iter()
                .any(|call| call.verb == "lease" && call.key == event.lock_key && call.token == event.token)
            && evidence
                .calls
                .iter()
                .all(|call| call.verb != "release" || call.key != event.lock_key || call.token != event.token)
    });
    if places.is_empty() {
        return false;
    }
    let event = &evidence.lock_events[places[pick(places.len())]];
    let (token, key) = (event.token, event.lock_key.clone());
    with(evidence, token, key)
}

/// What a holder was told of its lease.
fn leases<'a>(
    evidence: &'a mut Evidence,
    token: Option<u64>,
    key: &'a Option<String>,
) -> impl Iterator<Item = &'a mut Call> {
    evidence
        .calls
        .iter_mut()
        .filter(move |call| call.verb == "lease" && call.token == token && call.key == *key)
}

/// The holder was promised its lease until then.
fn promise(evidence: &mut Evidence, token: Option<u64>, key: &Option<String>, until_us: u64) -> bool {
    leases(evidence, token, key).for_each(|lease| lease.until_us = Some(until_us));
    true
}

/// The grant of the key that follows this one in the trail.
fn next_grant(evidence: &Evidence, token: Option<u64>, key: Option<&str>) -> Option<LockEvent> {
    let mut grants = evidence
        .lock_events
        .iter()
        .filter(|event| event.kind == "GRANTED" && event.lock_key.as_deref() == key);
    grants.find(|event| event.token == token)?;
    grants.next().cloned()
}
