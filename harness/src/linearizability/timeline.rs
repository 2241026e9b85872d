//! One key's history: grants in token order, refusals, releases and leases, from what clients saw and the audit trail.
//!
//! The trail contributes what no client can know: grants whose answer was lost, and how a lease ended that nobody gave
//! back.

use crate::history::{Call, Outcome};
use crate::model::{Evidence, LockEvent};
use std::collections::BTreeMap;

/// A grant of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its token.
    pub token: u64,
    /// Who got it; nobody who recorded it where the trail alone knows of it.
    pub client: Option<String>,
    /// The earliest moment at which it can have been made, boot microseconds.
    pub asked_us: u64,
    /// The latest: its answer was there. None where no client saw it.
    pub answered_us: Option<u64>,
    /// The earliest moment at which it can have ended without an acknowledged release; none when it cannot.
    pub ends_from_us: Option<u64>,
}

/// A release that was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Of which token.
    pub token: u64,
    /// By whom.
    pub client: String,
    /// When it was sent.
    pub asked_us: u64,
    /// When its answer was there.
    pub answered_us: u64,
}

/// An answer that shows who held the key at some moment between its question and itself, and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The token that was held; none when it was anybody's: a refusal as busy.
    pub token: Option<u64>,
    /// When it was asked.
    pub asked_us: u64,
    /// When it was answered.
    pub answered_us: u64,
}

/// What is known of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyHistory {
    /// The key.
    pub key: String,
    /// In the order of their tokens. A token that two clients were given is here twice.
    pub grants: Vec<Grant>,
    /// Acknowledged releases.
    pub releases: Vec<Release>,
    /// Refusals as busy and answers about leases.
    pub kept: Vec<Kept>,
}

impl KeyHistory {
    /// How many facts it consists of.
    #[must_use]
    pub fn facts(&self) -> u64 {
        (self.grants.len() + self.releases.len() + self.kept.len()) as u64
    }
}

/// The histories of all keys that a client saw.
#[must_use]
pub fn histories(evidence: &Evidence) -> Vec<KeyHistory> {
    let mut by_key: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &evidence.calls {
        if let Some(key) = call.key.as_deref()
            && matches!(call.verb.as_str(), "acquire" | "release" | "lease")
        {
            by_key.entry(key).or_default().push(call);
        }
    }
    let mut trail: BTreeMap<&str, Vec<&LockEvent>> = BTreeMap::new();
    // What a restore took back had happened all the same.
    for event in evidence.lost_events.iter().chain(&evidence.lock_events) {
        if let Some(key) = event.lock_key.as_deref() {
            trail.entry(key).or_default().push(event);
        }
    }
    let sessions = sessions_ended(evidence);
    let taken_back = evidence.taken_back();
    by_key
        .into_iter()
        .map(|(key, calls)| {
            let mut ends = ends(trail.remove(key).unwrap_or_default(), &sessions);
            for (token, end) in &mut ends {
                end.taken_back = taken_back.contains(&(key, *token));
            }
            one(key, &calls, &ends)
        })
        .collect()
}

/// How sessions ended that did.
fn sessions_ended(evidence: &Evidence) -> BTreeMap<&str, &str> {
    evidence
        .lost_events
        .iter()
        .chain(&evidence.lock_events)
        .filter(|event| matches!(event.kind.as_str(), "SESSION_CLOSED" | "SESSION_EXPIRED"))
        .filter_map(|event| Some((event.session_id.as_deref()?, event.kind.as_str())))
        .collect()
}

/// What the trail says of a token.
#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    granted: bool,
    expired: bool,
    /// Given back by its client.
    taken: bool,
    /// Revoked by an operator.
    revoked: bool,
    /// Its session was closed, which gives back whatever it holds; by its client or by an operator.
    closed: bool,
    /// A restore of the store took it back, and recorded nothing.
    taken_back: bool,
}

fn ends<'a>(trail: Vec<&'a LockEvent>, sessions: &BTreeMap<&str, &str>) -> BTreeMap<u64, Ended> {
    let mut ends: BTreeMap<u64, Ended> = BTreeMap::new();
    let mut last: Option<(u64, Option<&'a str>)> = None;
    for event in trail {
        let Some(token) = event.token else { continue };
        match event.kind.as_str() {
            "GRANTED" => {
                let end = ends.entry(token).or_default();
                end.granted = true;
                match event.session_id.as_deref().and_then(|session| sessions.get(session)) {
                    Some(&"SESSION_EXPIRED") => end.expired = true,
                    Some(_) => end.closed = true,
                    None => {}
                }
                last = Some((token, event.session_id.as_deref()));
            }
            "EXPIRED" => ends.entry(token).or_default().expired = true,
            "RELEASED" => ends.entry(token).or_default().taken = true,
            // Its row shows the token it broke or the higher one it minted: what was held before is what it ended.
            "REVOKED" => {
                ends.entry(token).or_default().revoked = true;
                if let Some((held, _)) = last {
                    ends.entry(held).or_default().revoked = true;
                }
            }
            _ => {}
        }
    }
    ends
}

fn one(key: &str, calls: &[&Call], ends: &BTreeMap<u64, Ended>) -> KeyHistory {
    let mut history = KeyHistory {
        key: key.to_owned(),
        grants: grants(calls, ends),
        releases: Vec::new(),
        kept: Vec::new(),
    };
    for call in calls {
        let (asked_us, answered_us) = (call.invoked_us, call.ended_us());
        match (call.verb.as_str(), call.outcome, call.token) {
            ("release", Outcome::Ok, Some(token)) => history.releases.push(Release {
                token,
                client: call.client.clone(),
                asked_us,
                answered_us,
            }),
            ("lease", _, Some(_)) => history.kept.push(Kept {
                token: call.token,
                asked_us,
                answered_us,
            }),
            ("acquire", Outcome::Refused, _) if busy(call) => history.kept.push(Kept {
                token: None,
                asked_us,
                answered_us,
            }),
            _ => {}
        }
    }
    for grant in &mut history.grants {
        grant.ends_from_us = ends_from(grant, calls, ends.is_empty(), ends.get(&grant.token).copied());
    }
    history
}

fn busy(call: &Call) -> bool {
    matches!(call.code.as_deref(), Some("HELD_BY_OTHER" | "CONTENTION_EXCEEDED"))
}

/// Refused although nobody held the key: it was closed after an unclean loss.
fn delayed(call: &Call) -> bool {
    call.code.as_deref() == Some("LOCK_DELAYED")
}

/// Grants as clients were answered them, and those of the trail that no client saw.
fn grants(calls: &[&Call], ends: &BTreeMap<u64, Ended>) -> Vec<Grant> {
    let mut grants: BTreeMap<(u64, Option<&str>), Grant> = BTreeMap::new();
    // A client that got no answer asks again under the same request: the grant may be as old as the first question.
    let mut unanswered: BTreeMap<&str, u64> = BTreeMap::new();
    let mut acquires: Vec<&&Call> = calls.iter().filter(|call| call.verb == "acquire").collect();
    acquires.sort_by_key(|call| call.invoked_us);
    for call in acquires {
        let client = call.client.as_str();
        match (call.outcome, call.token) {
            (Outcome::Ok, Some(token)) => {
                let first = unanswered.remove(client).unwrap_or(call.invoked_us);
                let grant = grants.entry((token, Some(client))).or_insert_with(|| Grant {
                    token,
                    client: Some(client.to_owned()),
                    asked_us: first,
                    answered_us: call.answered_us,
                    ends_from_us: None,
                });
                grant.asked_us = grant.asked_us.min(first);
                grant.answered_us = grant.answered_us.min(call.answered_us);
            }
            (Outcome::Refused, _) if busy(call) || delayed(call) => {
                unanswered.remove(client);
            }
            _ => {
                unanswered.entry(client).or_insert(call.invoked_us);
            }
        }
    }
    for (token, end) in ends {
        let seen = grants.keys().any(|(granted, _)| granted == token);
        if end.granted && !seen {
            let unseen = Grant {
                token: *token,
                client: None,
                asked_us: 0,
                answered_us: None,
                ends_from_us: None,
            };
            grants.insert((*token, None), unseen);
        }
    }
    grants.into_values().collect()
}

/// From when on the grant can have ended although no release was acknowledged.
fn ends_from(grant: &Grant, calls: &[&Call], no_trail: bool, ended: Option<Ended>) -> Option<u64> {
    let own = |call: &&&Call| call.token == Some(grant.token);
    let promised = calls
        .iter()
        .filter(own)
        .filter(|call| call.verb == "lease")
        .filter_map(|call| call.until_us)
        .max();
    let mut from = Vec::new();
    let releases: Vec<_> = calls.iter().filter(own).filter(|call| call.verb == "release").collect();
    // A release whose answer was lost may have been done; one of a lost lock is sent all the same, in the background.
    let given_up = releases
        .iter()
        .filter(|call| {
            call.outcome == Outcome::Unknown || call.code.as_deref().is_some_and(|code| code.starts_with("LOCK_LOST"))
        })
        .map(|call| call.invoked_us)
        .min();
    let acknowledged = releases.iter().any(|call| call.outcome == Outcome::Ok);
    if no_trail {
        from.extend(promised);
        from.extend(given_up);
    } else if let Some(ended) = ended {
        if ended.expired {
            from.push(promised.unwrap_or(grant.asked_us));
        }
        // Another's doing, of which the holder may learn, and give up, long after.
        if ended.revoked || ended.taken_back || (ended.closed && !acknowledged) {
            from.push(grant.asked_us);
        } else if ended.taken && !acknowledged {
            from.push(given_up.unwrap_or(grant.asked_us));
        } else if ended.taken {
            from.extend(given_up);
        }
    }
    if grant.client.is_none() {
        from.push(grant.asked_us);
    }
    from.into_iter().min()
}
