//! What each worker held and when, what struck it, and where it was turned away: the calls of a stack as lanes.
//!
//! Owns: grants as spans (from the answered acquire to its release, loss or expiry), pauses and faults as stretches,
//! refusals with the grant that superseded them.
//! Does not own: drawing them (`html/`).
//! On failure: nothing can fail. What a killed client never learned is taken from the lock service's trail, and ends
//! with the record where that is silent too.

use crate::chaos::fault::FaultRecord;
use crate::history::{Call, Outcome};
use crate::model::{Evidence, LockEvent, NodeChange, lock_key};
use crate::stack::{LOCK_SERVER, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB};
use serde::Serialize;
use std::collections::BTreeMap;

/// The client that is the harness itself: its probes are no worker's.
const HARNESS: &str = "harness";

/// Nodes that are no workers.
const COMPONENTS: [&str; 4] = [LOCK_SERVER, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB];

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Its holder gave it back.
    Released,
    /// Its holder learned that it was lost.
    Lost,
    /// The lock service ended it.
    Expired,
    /// An operator broke it.
    Revoked,
    /// The record ends before it does.
    Open,
}

impl End {
    /// In a word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Lost => "lost",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Open => "held at the end of the record",
        }
    }
}

/// A grant, from the answer to its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// The lock key.
    pub key: String,
    /// The token.
    pub token: u64,
    /// When the answer was there, in milliseconds since the run's start.
    pub from_ms: f64,
    /// When it ended.
    pub to_ms: f64,
    /// How.
    pub end: End,
}

/// A stretch in which something struck a lane.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stretch {
    /// What (`paused`, or the fault's kind).
    pub what: String,
    /// Since the run's start.
    pub from_ms: f64,
    /// Until it was undone.
    pub to_ms: f64,
}

/// A write that a fence point turned away.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refused {
    /// Who was turned away.
    pub worker: String,
    /// When the answer was there, in milliseconds since the run's start.
    pub at_ms: f64,
    /// What it tried.
    pub verb: String,
    /// On which payout.
    pub payout: Option<String>,
    /// The token it presented.
    pub presented: Option<u64>,
    /// The grant that had superseded it by then: the next higher token on the same key.
    pub superseded_by: Option<u64>,
    /// Who held that, or by whom it was revoked.
    pub superseded_by_holder: Option<String>,
}

/// One worker's, component's or link's lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// What it held.
    pub spans: Vec<Span>,
    /// What struck it.
    pub stretches: Vec<Stretch>,
    /// When it was killed.
    pub killed_ms: Vec<f64>,
    /// When it was turned away.
    pub refused: Vec<Refused>,
    /// How many times it asked for a lock and was refused.
    pub contended: usize,
}

impl Lane {
    /// When it first held something, was struck or was turned away.
    fn first_ms(&self) -> f64 {
        let spans = self.spans.iter().map(|span| span.from_ms);
        let stretches = self.stretches.iter().map(|stretch| stretch.from_ms);
        let refused = self.refused.iter().map(|refused| refused.at_ms);
        let all = spans.chain(stretches).chain(refused);
        all.chain(self.killed_ms.iter().copied()).fold(f64::MAX, f64::min)
    }
}

/// The lanes of a stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Workers in the order in which something first happened to them, then what else was struck.
    pub lanes: Vec<Lane>,
    /// Where the record ends.
    pub end_ms: f64,
    /// Refusals of the harness's own probes, which are no worker's.
    pub probes_refused: usize,
}

impl Timeline {
    /// The lanes of this evidence and these faults.
    #[must_use]
    pub fn of(evidence: &Evidence, faults: &[FaultRecord]) -> Self {
        let clock = RunClock::of(evidence);
        let end_ms = end_of(evidence, faults, &clock);
        let mut timeline = Self {
            lanes: Vec::new(),
            end_ms,
            probes_refused: 0,
        };
        let grants = Grants::of(evidence);
        let accounts = evidence.account_of();
        let releases = releases(&evidence.calls);
        for call in &evidence.calls {
            if call.client == HARNESS {
                timeline.probes_refused += usize::from(call.fenced_out());
                continue;
            }
            let lane = timeline.lane(&call.client);
            if call.verb == "acquire" && call.outcome == Outcome::Refused {
                lane.contended += 1;
            }
            if let (true, Some(token), Some(key), Some(at)) =
                (granted(call), call.token, call.key.as_deref(), call.answered_us)
            {
                let from_ms = clock.ms(at);
                let (end, to_ms) = grants.end(key, token, releases.get(&(call.client.as_str(), token)), &clock);
                lane.spans.push(Span {
                    key: key.to_owned(),
                    token,
                    from_ms,
                    to_ms: to_ms.unwrap_or(end_ms).max(from_ms),
                    end,
                });
            }
            if call.fenced_out() {
                let account = call.payout.as_deref().and_then(|payout| accounts.get(payout));
                let at_ms = clock.ms(call.answered_us.unwrap_or(call.invoked_us));
                let (superseded_by, superseded_by_holder) =
                    account.zip(call.token).map_or((None, None), |(account, token)| {
                        grants.superseded(&lock_key(account), token, at_ms, &clock)
                    });
                lane.refused.push(Refused {
                    worker: call.client.clone(),
                    at_ms,
                    verb: call.verb.clone(),
                    payout: call.payout.clone(),
                    presented: call.token,
                    superseded_by,
                    superseded_by_holder,
                });
            }
        }
        for fault in faults {
            #[allow(clippy::cast_precision_loss, reason = "milliseconds of a run")]
            let (from_ms, to_ms) = (fault.injected_ms as f64, fault.undone_ms as f64);
            timeline.lane(&fault.target).stretches.push(Stretch {
                what: fault.kind.clone(),
                from_ms,
                to_ms: to_ms.max(from_ms),
            });
        }
        timeline.processes(evidence, &clock);
        let calls = |name: &str| evidence.calls.iter().any(|call| call.client == name);
        let started = |name: &str| evidence.nodes.iter().any(|event| event.node == name);
        timeline.lanes.sort_by(|a, b| {
            let of_worker =
                |lane: &Lane| calls(&lane.name) || (started(&lane.name) && !COMPONENTS.contains(&lane.name.as_str()));
            let order = |lane: &Lane| (!of_worker(lane), lane.first_ms());
            let ((a_last, a_ms), (b_last, b_ms)) = (order(a), order(b));
            a_last.cmp(&b_last).then(a_ms.total_cmp(&b_ms))
        });
        timeline
    }

    /// All refusals of workers, in time order.
    #[must_use]
    pub fn refused(&self) -> Vec<&Refused> {
        let mut refused: Vec<_> = self.lanes.iter().flat_map(|lane| &lane.refused).collect();
        refused.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
        refused
    }

    fn lane(&mut self, name: &str) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.name == name);
        let at = at.unwrap_or_else(|| {
            self.lanes.push(Lane {
                name: name.to_owned(),
                ..Lane::default()
            });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// Pauses and deaths of processes, as far as no recorded fault tells of them already.
    fn processes(&mut self, evidence: &Evidence, clock: &RunClock) {
        let end_ms = self.end_ms;
        let mut stopped: BTreeMap<&str, f64> = BTreeMap::new();
        for event in &evidence.nodes {
            let at = clock.ms(event.at_us);
            if event.what == NodeChange::Stopped {
                stopped.entry(&event.node).or_insert(at);
                continue;
            }
            if event.what == NodeChange::Killed {
                self.lane(&event.node).killed_ms.push(at);
            }
            if event.what != NodeChange::AskedToEnd
                && let Some(from) = stopped.remove(event.node.as_str())
            {
                self.paused(&event.node, from, at);
            }
        }
        for (node, from) in stopped {
            self.paused(node, from, end_ms);
        }
    }

    fn paused(&mut self, node: &str, from_ms: f64, to_ms: f64) {
        let lane = self.lane(node);
        // A recorded fault that was injected just before says the same, and with its kind.
        let told = lane
            .stretches
            .iter()
            .any(|fault| fault.from_ms - 100.0 <= from_ms && from_ms <= fault.to_ms);
        if !told {
            lane.stretches.push(Stretch {
                what: "paused".to_owned(),
                from_ms,
                to_ms,
            });
        }
    }
}

fn granted(call: &Call) -> bool {
    call.verb == "acquire" && call.outcome == Outcome::Ok
}

/// The call by which each holder gave a token back or learned that it was lost.
fn releases(calls: &[Call]) -> BTreeMap<(&str, u64), &Call> {
    let ended = calls.iter().filter(|call| call.verb == "release");
    ended
        .filter_map(|call| Some(((call.client.as_str(), call.token?), call)))
        .collect()
}

/// Who was granted what, by key and token, with what the lock service recorded of each grant's end.
struct Grants<'a> {
    by_key: BTreeMap<&'a str, BTreeMap<u64, Option<String>>>,
    ends: BTreeMap<(&'a str, u64), &'a LockEvent>,
    granted: BTreeMap<(&'a str, u64), &'a LockEvent>,
}

impl<'a> Grants<'a> {
    fn of(evidence: &'a Evidence) -> Self {
        let mut grants = Self {
            by_key: BTreeMap::new(),
            ends: BTreeMap::new(),
            granted: BTreeMap::new(),
        };
        for event in &evidence.lock_events {
            let Some((key, token)) = event.lock_key.as_deref().zip(event.token) else {
                continue;
            };
            match event.kind.as_str() {
                "GRANTED" => {
                    grants.by_key.entry(key).or_default().insert(token, event.actor.clone());
                    grants.granted.insert((key, token), event);
                }
                "EXPIRED" | "REVOKED" | "RELEASED" => {
                    grants.ends.entry((key, token)).or_insert(event);
                }
                _ => {}
            }
        }
        for call in evidence.calls.iter().filter(|call| granted(call)) {
            if let Some((key, token)) = call.key.as_deref().zip(call.token) {
                grants
                    .by_key
                    .entry(key)
                    .or_default()
                    .insert(token, Some(call.client.clone()));
            }
        }
        grants
    }

    /// The next higher token of this key, and who held it.
    fn above(&self, key: &str, token: u64) -> Option<(u64, Option<String>)> {
        let (token, holder) = self.by_key.get(key)?.range(token + 1..).next()?;
        Some((*token, holder.clone()))
    }

    /// What had superseded this token by then: a grant and its holder, or a revoke, whose own token the trail does not
    /// tell.
    fn superseded(&self, key: &str, token: u64, by_ms: f64, clock: &RunClock) -> (Option<u64>, Option<String>) {
        let next = self.above(key, token).filter(|(next, _)| {
            let granted = self.granted.get(&(key, *next)).and_then(|event| clock.wall(&event.at));
            granted.is_none_or(|granted_ms| granted_ms <= by_ms)
        });
        if let Some((next, holder)) = next {
            return (Some(next), holder);
        }
        let revoked = self.ends.get(&(key, token)).filter(|event| event.kind == "REVOKED");
        let who =
            revoked.map(|event| format!("nobody: revoked by {}", event.actor.as_deref().unwrap_or("an operator")));
        (None, who)
    }

    fn end(&self, key: &str, token: u64, release: Option<&&Call>, clock: &RunClock) -> (End, Option<f64>) {
        let ended = self.ends.get(&(key, token));
        let recorded = ended.and_then(|event| clock.wall(&event.at));
        match (ended.map(|event| event.kind.as_str()), release) {
            (Some("EXPIRED"), _) if recorded.is_some() => (End::Expired, recorded),
            (Some("REVOKED"), _) if recorded.is_some() => (End::Revoked, recorded),
            (_, Some(call)) if call.outcome == Outcome::Ok => (End::Released, call.answered_us.map(|at| clock.ms(at))),
            (Some("RELEASED"), _) if recorded.is_some() => (End::Released, recorded),
            (_, Some(call)) => (End::Lost, Some(clock.ms(call.ended_us().min(call.invoked_us)))),
            // Nobody says how it ended; the next grant of its key says when at the latest.
            _ => {
                let next = self.above(key, token).map(|(next, _)| next);
                let next = next.and_then(|next| self.granted.get(&(key, next)));
                match next.and_then(|event| clock.wall(&event.at)) {
                    Some(at) => (End::Expired, Some(at)),
                    None => (End::Open, None),
                }
            }
        }
    }
}

/// The run's own time. The calls carry the boot clock; the trail carries the store's wall clock, which is laid over it
/// where both tell of the same grant.
pub(super) struct RunClock {
    began_us: u64,
    wall_zero_ms: Option<i64>,
}

impl RunClock {
    /// The time of this evidence. Evidence that does not say when it began begins with its first call.
    pub(super) fn of(evidence: &Evidence) -> Self {
        let first = evidence.calls.iter().map(|call| call.invoked_us).min();
        let mut clock = Self {
            began_us: if evidence.began_us == 0 {
                first.unwrap_or(0)
            } else {
                evidence.began_us
            },
            wall_zero_ms: None,
        };
        let answered: BTreeMap<(&str, u64), u64> = evidence
            .calls
            .iter()
            .filter(|call| granted(call))
            .filter_map(|call| Some(((call.key.as_deref()?, call.token?), call.answered_us?)))
            .collect();
        // The answer comes after the grant: the smallest difference is the nearest to none.
        let zeros = evidence.lock_events.iter().filter(|event| event.kind == "GRANTED");
        clock.wall_zero_ms = zeros
            .filter_map(|event| {
                let answered_us = answered.get(&(event.lock_key.as_deref()?, event.token?))?;
                let run_ms = i64::try_from(answered_us.saturating_sub(clock.began_us) / 1_000).ok()?;
                Some(wall_ms(&event.at)? - run_ms)
            })
            .max();
        clock
    }

    /// Milliseconds since the run's start.
    #[allow(clippy::cast_precision_loss, reason = "microseconds of a run")]
    pub(super) fn ms(&self, boot_us: u64) -> f64 {
        boot_us.saturating_sub(self.began_us) as f64 / 1_000.0
    }

    /// The same for a time that the store wrote.
    #[allow(clippy::cast_precision_loss, reason = "milliseconds of a run")]
    pub(super) fn wall(&self, at: &str) -> Option<f64> {
        Some((wall_ms(at)? - self.wall_zero_ms?).max(0) as f64)
    }
}

/// `2026-11-29T22:11:47.834Z` as milliseconds since 1970; every time on the wire has this form.
fn wall_ms(at: &str) -> Option<i64> {
    let (date, time) = at.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut time = time.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    // Days since 1970 of the Gregorian calendar, counted in years that begin in March.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + millis)
}

fn end_of(evidence: &Evidence, faults: &[FaultRecord], clock: &RunClock) -> f64 {
    let calls = evidence
        .calls
        .iter()
        .map(|call| clock.ms(call.answered_us.unwrap_or(call.invoked_us)));
    let nodes = evidence.nodes.iter().map(|event| clock.ms(event.at_us));
    #[allow(clippy::cast_precision_loss, reason = "milliseconds of a run")]
    let faults = faults.iter().map(|fault| (fault.undone_ms + fault.recovered_ms) as f64);
    calls.chain(nodes).chain(faults).fold(1.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeEvent, Payout};

    fn call(client: &str, verb: &str, at_ms: u64, token: Option<u64>, outcome: Outcome) -> Call {
        Call {
            client: client.to_owned(),
            verb: verb.to_owned(),
            key: matches!(verb, "acquire" | "release").then(|| "payout:alpha".to_owned()),
            token,
            payout: Some("P".to_owned()),
            invoked_us: 1_000_000 + at_ms * 1_000,
            answered_us: Some(1_001_000 + at_ms * 1_000),
            until_us: None,
            delay_us: None,
            outcome,
            code: (outcome == Outcome::Refused).then(|| "FENCED_OUT".to_owned()),
            reason: None,
        }
    }

    fn lock(seq: u64, at_ms: u64, kind: &str, token: u64, actor: &str) -> LockEvent {
        LockEvent {
            seq,
            at: format!("2026-01-01T00:00:{:02}.{:03}Z", at_ms / 1_000, at_ms % 1_000),
            kind: kind.to_owned(),
            lock_key: Some("payout:alpha".to_owned()),
            token: Some(token),
            actor: Some(actor.to_owned()),
            ..LockEvent::default()
        }
    }

    /// W1 is paused past its lease, W2 takes over, W1 is turned away.
    fn paused() -> Evidence {
        let node = |at_ms: u64, what| NodeEvent {
            node: "W1".to_owned(),
            at_us: 1_000_000 + at_ms * 1_000,
            what,
        };
        Evidence {
            began_us: 1_000_000,
            lock_events: vec![
                lock(1, 10, "GRANTED", 2, "W1"),
                lock(2, 1_500, "EXPIRED", 2, "W1"),
                lock(3, 1_600, "GRANTED", 3, "W2"),
                lock(4, 1_700, "RELEASED", 3, "W2"),
            ],
            payouts: vec![Payout {
                payout_id: "P".to_owned(),
                account_id: "alpha".to_owned(),
                ..Payout::default()
            }],
            calls: vec![
                call("W1", "acquire", 9, Some(2), Outcome::Ok),
                call("W2", "acquire", 1_599, Some(3), Outcome::Ok),
                call("W2", "release", 1_699, Some(3), Outcome::Ok),
                call("W1", "submit", 1_800, Some(2), Outcome::Refused),
            ],
            nodes: vec![
                node(50, NodeChange::Stopped),
                node(1_750, NodeChange::AskedToEnd),
                node(1_760, NodeChange::Resumed),
                node(1_900, NodeChange::Ended),
            ],
            ..Evidence::default()
        }
    }

    #[test]
    fn a_grant_ends_where_the_service_ended_it_and_a_refusal_names_who_superseded_it() {
        let timeline = Timeline::of(&paused(), &[]);
        let w1 = &timeline.lanes[0];
        assert_eq!(w1.name, "W1");
        assert_eq!((w1.spans[0].from_ms, w1.spans[0].to_ms), (10.0, 1_500.0));
        assert_eq!(w1.spans[0].end, End::Expired);
        assert_eq!(
            w1.stretches,
            [Stretch {
                what: "paused".to_owned(),
                from_ms: 50.0,
                to_ms: 1_760.0
            }]
        );
        let refused = timeline.refused();
        assert_eq!(refused.len(), 1);
        assert_eq!((refused[0].presented, refused[0].superseded_by), (Some(2), Some(3)));
        assert_eq!(refused[0].superseded_by_holder.as_deref(), Some("W2"));
        assert_eq!(timeline.lanes[1].spans[0].end, End::Released);
        assert_eq!(timeline.lanes[1].spans[0].to_ms, 1_700.0);
    }

    #[test]
    fn a_refusal_after_a_revoke_is_not_blamed_on_a_grant_that_came_later() {
        let mut evidence = paused();
        evidence.lock_events[1].kind = "REVOKED".to_owned();
        evidence.lock_events[1].actor = Some("operator".to_owned());
        evidence.calls[3].invoked_us = 1_000_000 + 1_550_000;
        evidence.calls[3].answered_us = Some(1_000_000 + 1_560_000);
        let timeline = Timeline::of(&evidence, &[]);
        let refused = timeline.refused()[0];
        assert_eq!(refused.superseded_by, None);
        assert_eq!(
            refused.superseded_by_holder.as_deref(),
            Some("nobody: revoked by operator")
        );
    }

    #[test]
    fn a_pause_that_is_a_recorded_fault_is_told_once() {
        let fault = FaultRecord {
            kind: "process.worker_pause".to_owned(),
            target: "W1".to_owned(),
            injected_ms: 50,
            observed: "stopped".to_owned(),
            undone_ms: 1_760,
            recovered_ms: 5,
        };
        let timeline = Timeline::of(&paused(), &[fault]);
        let told: Vec<_> = timeline.lanes[0]
            .stretches
            .iter()
            .map(|stretch| &stretch.what)
            .collect();
        assert_eq!(told, ["process.worker_pause"]);
    }

    #[test]
    fn without_the_services_word_a_grant_ends_with_the_record() {
        let mut evidence = paused();
        evidence.lock_events.clear();
        let timeline = Timeline::of(&evidence, &[]);
        assert_eq!(timeline.lanes[0].spans[0].end, End::Open);
        assert_eq!(timeline.lanes[0].spans[0].to_ms, timeline.end_ms);
    }

    #[test]
    fn times_of_the_wire_are_read() {
        assert_eq!(wall_ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(wall_ms("2000-02-29T12:00:00.5Z"), Some(951_825_600_500));
        assert_eq!(wall_ms("2026-11-29T22:11:47.834Z"), Some(1_795_990_307_834));
        assert_eq!(wall_ms("yesterday"), None);
    }

    #[test]
    fn nothing_makes_no_lane() {
        let timeline = Timeline::of(&Evidence::default(), &[]);
        assert!(timeline.lanes.is_empty() && timeline.end_ms > 0.0);
    }
}
