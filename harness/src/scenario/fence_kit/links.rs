//! What is done to the links of a half while it goes on: a wire lies on each, and each is hurt in a lane of its own.
//!
//! ```text
//! W1 … W6 ──▶ lock server        every kind of the catalogue that strikes a worker's link
//!         ──▶ table              the same but messages: the wire does not read PostgreSQL's
//!         ──▶ fence proxy        every kind; every other one keeps requests back and delivers them late
//! fence proxy ──▶ service        every kind but the request sent twice, and late by less than the service's word
//! ```
//! Where the kit is off, workers reach the service itself, over links that are hurt as those to the proxy are.
//!
//! **What is left out, and why.** A fence in front of a service sees what it passes on, and nothing after it. A request that
//! is sent again *behind* it, when its first answer has let a newer token through, is a stale write that nothing in front of
//! the service can see; one that is delivered later than `--settled-after` is one that the service has given its word against.
//! Neither is promised (`docs/fence-kit.md`), so neither is done between the proxy and the service.
//!
//! Owns: which link is hurt when, and how; what of it was seen. Does not own: wires.
//! On failure: a link that does not answer again once it is whole is a failed check.

use super::PROXY;
use crate::chaos::link::{COPY_WITHIN, HELD_LATE, JITTER, TRICKLE_BYTES_PER_S, answers_again};
use crate::scenario::random::shuffled;
use crate::stack::{LOCK_SERVER, RunError};
use crate::wire::{Counts, End, Flow, Line, Messages, Mode, Probed, Wire, Wires, probe};
use futures_util::future::join_all;
use host_kit::{Host, Random};
use serde::Serialize;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The node name of the table.
pub(super) const TABLE: &str = "table";
/// The node name of the service.
pub(super) const SERVICE: &str = "service";

/// How long a link may take to answer again once it is whole: the proxy may be starting anew.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);
/// How often is looked whether a fault has met somebody.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long one question through a link waits.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// How long the caller of a held request is left waiting.
const HELD_SILENT: Duration = Duration::from_millis(300);
/// How long after its caller has gone a request that is held between the proxy and the service is delivered, at most. With
/// the half second that the service takes, and what the machine takes, it is within what the service promises
/// (`SETTLED_AFTER`).
const HELD_LATE_BEHIND: Duration = Duration::from_millis(500);

/// How it is seen that a fault met somebody.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// This number of the wire rose.
    Rose(fn(&Counts) -> u64),
    /// A question through the wire is refused.
    Refused,
}

/// A kind of fault, under its name in the catalogue.
#[derive(Clone, Copy, Debug)]
struct Fault {
    name: &'static str,
    mode: Mode,
    sign: Sign,
}

const fn rose(name: &'static str, mode: Mode, number: fn(&Counts) -> u64) -> Fault {
    Fault {
        name,
        mode,
        sign: Sign::Rose(number),
    }
}

const fn hold(late: Duration) -> Fault {
    let silent = HELD_SILENT;
    rose(
        "link.hold_request",
        Mode::messages(Messages::Hold { silent, late }),
        |n| n.held,
    )
}

/// Lines and directions: whatever is spoken.
const BYTES: [Fault; 10] = [
    Fault {
        name: "link.refuse",
        mode: Mode::line(Line::Refused),
        sign: Sign::Refused,
    },
    rose("link.cut", Mode::line(Line::Cut), |n| n.cut),
    rose("link.reset", Mode::line(Line::Reset), |n| n.resets),
    rose("link.half_open", Mode::line(Line::HalfOpen(End::Caller)), |n| {
        n.half_open
    }),
    rose("link.swallow", Mode::both(Flow::Swallow), |n| {
        n.swallowed_request_bytes + n.swallowed_answer_bytes
    }),
    rose("link.swallow_requests", Mode::requests(Flow::Swallow), |n| {
        n.swallowed_request_bytes
    }),
    rose("link.swallow_answers", Mode::answers(Flow::Swallow), |n| {
        n.swallowed_answer_bytes
    }),
    rose("link.delay", Mode::both(Flow::Delay(Duration::from_millis(120))), |n| {
        n.late
    }),
    rose("link.jitter", Mode::both(Flow::Jitter(JITTER)), |n| n.late),
    rose("link.trickle", Mode::both(Flow::Trickle(TRICKLE_BYTES_PER_S)), |n| {
        n.slowed
    }),
];

/// Messages, where the wire reads them.
const DROP_ANSWER: Fault = rose("link.drop_answer", Mode::messages(Messages::DropAnswer), |n| {
    n.dropped_answers
});
/// Each request that is read to its end is sent once more, some of them when the fault has ended.
const DUPLICATE: Fault = rose(
    "link.duplicate_request",
    Mode::messages(Messages::Duplicate { within: COPY_WITHIN }),
    |n| n.requests,
);

/// How the links to one node are hurt, one fault at a time.
#[derive(Debug)]
pub(super) struct Lane {
    to: &'static str,
    faults: Vec<Fault>,
    /// Every other fault is this one.
    mostly: Option<Fault>,
    /// How many of the links each strikes.
    at_once: usize,
    /// How long each lasts, at least and at most.
    lasts: (Duration, Duration),
    /// The pause after it, at most.
    gap: Duration,
}

/// The lanes of a half whose workers send their requests to `resource`.
pub(super) fn lanes(resource: &'static str) -> Vec<Lane> {
    let ms = Duration::from_millis;
    let every = || [&BYTES[..], &[DROP_ANSWER, DUPLICATE]].concat();
    let mut lanes = vec![
        Lane {
            to: LOCK_SERVER,
            faults: [&every()[..], &[hold(HELD_LATE)]].concat(),
            mostly: None,
            at_once: 2,
            // Some outlast a lease.
            lasts: (ms(400), ms(2_000)),
            gap: ms(600),
        },
        Lane {
            to: TABLE,
            faults: BYTES.to_vec(),
            mostly: None,
            // A holder that was stopped in its transaction is refused only over a connection that lives.
            at_once: 1,
            lasts: (ms(300), ms(800)),
            gap: ms(1_200),
        },
        Lane {
            to: resource,
            faults: every(),
            mostly: Some(hold(HELD_LATE)),
            // Half of them: the others overtake.
            at_once: 3,
            lasts: (ms(400), ms(900)),
            gap: ms(200),
        },
    ];
    if resource == PROXY {
        lanes.push(Lane {
            to: SERVICE,
            faults: [&BYTES[..], &[DROP_ANSWER, hold(HELD_LATE_BEHIND)]].concat(),
            mostly: None,
            at_once: 1,
            lasts: (ms(150), ms(500)),
            // Each leaves keys in doubt, for as long as the service's word says.
            gap: ms(2_000),
        });
    }
    lanes
}

/// One fault as it came.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Struck {
    kind: &'static str,
    links: Vec<String>,
    /// Those where it met somebody.
    seen: Vec<String>,
    injected_ms: u64,
    undone_ms: u64,
    /// From its undoing to the first answer through each of the links.
    answers_after_ms: u64,
}

/// What a lane came to.
#[derive(Debug)]
pub(super) struct Hurt {
    /// Where its links lead.
    pub(super) to: &'static str,
    /// Every fault, in order.
    pub(super) struck: Vec<Struck>,
    /// The link that did not answer again.
    pub(super) ill: Option<String>,
}

impl Hurt {
    /// How often each kind met somebody.
    pub(super) fn seen(&self) -> BTreeMap<&'static str, u64> {
        let mut seen = BTreeMap::new();
        for fault in self.struck.iter().filter(|fault| !fault.seen.is_empty()) {
            *seen.entry(fault.kind).or_default() += 1;
        }
        seen
    }

    /// How many met nobody.
    pub(super) fn unseen(&self) -> usize {
        self.struck.iter().filter(|fault| fault.seen.is_empty()).count()
    }

    /// The longest time from an undoing to an answer.
    pub(super) fn longest_ms(&self) -> u64 {
        self.struck
            .iter()
            .map(|fault| fault.answers_after_ms)
            .max()
            .unwrap_or(0)
    }
}

/// What lanes have come to before they began.
pub(super) fn none(lanes: &[Lane]) -> Vec<Hurt> {
    let none = |lane: &Lane| Hurt {
        to: lane.to,
        struck: Vec::new(),
        ill: None,
    };
    lanes.iter().map(none).collect()
}

/// Hurts links until the time is up, as the seed says, and adds what came of it. When it answers, every link is whole.
pub(super) async fn strike(
    lanes: &[Lane],
    wires: &Wires,
    host: &Host,
    seed: u64,
    began: Duration,
    lasting: Duration,
    hurt: &mut [Hurt],
) -> Result<(), RunError> {
    let end = host.clock.mono() + lasting;
    let work = (0_u64..).zip(lanes).zip(hurt).map(|((n, lane), hurt)| {
        // Draws of its own: how fast one lane goes does not change what another draws.
        let random = Random::seeded(seed ^ 0x6c69_6e6b ^ (n << 32));
        async move { lane.go(wires, host, &random, (began, end), hurt).await }
    });
    let done = join_all(work).await.into_iter().collect();
    wires.mend();
    done
}

impl Lane {
    async fn go(
        &self,
        wires: &Wires,
        host: &Host,
        random: &Random,
        (began, end): (Duration, Duration),
        hurt: &mut Hurt,
    ) -> Result<(), RunError> {
        let clock = &host.clock;
        let ms = |at: Duration| u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let mut bag = Vec::new();
        while clock.mono() < end && hurt.ill.is_none() {
            let often = self.mostly.filter(|_| hurt.struck.len().is_multiple_of(2));
            if often.is_none() && bag.is_empty() {
                bag = shuffled(&self.faults, random);
            }
            let mut links = shuffled(&wires.to(self.to), random);
            links.truncate(self.at_once);
            let Some(fault) = often.or_else(|| bag.pop()) else {
                break;
            };
            let before: Vec<Counts> = links.iter().map(|wire| wire.counts()).collect();
            let injected = clock.mono();
            for wire in &links {
                wire.set(fault.mode);
            }
            let (least, most) = self.lasts;
            let lasts = least + random.up_to(most.saturating_sub(least));
            clock.sleep(lasts.min(end.saturating_sub(injected))).await;
            let mut seen = fault.met(&links, &before).await;
            // Where nothing passed meanwhile it stays until something does, or for as long again as it may.
            while seen.is_empty() && clock.mono() < end.min(injected + lasts + most) {
                clock.sleep(LOOK_EVERY).await;
                seen = fault.met(&links, &before).await;
            }
            for wire in &links {
                wire.set(Mode::PASS);
            }
            let undone = clock.mono();
            for wire in &links {
                match answers_again(host, wire, PROBE_WITHIN, WHOLE_WITHIN).await {
                    Ok(()) => {}
                    Err(RunError::NeverCame { .. }) => hurt.ill = Some(wire.name().to_owned()),
                    Err(error) => return Err(error),
                }
            }
            hurt.struck.push(Struck {
                kind: fault.name,
                links: links.iter().map(|wire| wire.name().to_owned()).collect(),
                seen,
                injected_ms: ms(injected.saturating_sub(began)),
                undone_ms: ms(undone.saturating_sub(began)),
                answers_after_ms: ms(clock.mono().saturating_sub(undone)),
            });
            clock.sleep(random.up_to(self.gap)).await;
        }
        Ok(())
    }
}

impl Fault {
    /// The links where it met somebody.
    async fn met(&self, links: &[Rc<Wire>], before: &[Counts]) -> Vec<String> {
        let mut met = Vec::new();
        for (wire, before) in links.iter().zip(before) {
            if self.sign.shows(wire, before).await {
                met.push(wire.name().to_owned());
            }
        }
        met
    }
}

impl Sign {
    async fn shows(self, wire: &Rc<Wire>, before: &Counts) -> bool {
        match self {
            Self::Rose(number) => number(&wire.counts()) > number(before),
            Self::Refused => probe(wire, PROBE_WITHIN).await == Probed::Refused,
        }
    }
}

/// What the wires that lead to a node have done, added up.
pub(super) fn sum(wires: &Wires, to: &str) -> Counts {
    let mut sum = Counts::default();
    for wire in wires.to(to) {
        sum += wire.counts();
    }
    sum
}

/// The same in words.
pub(super) fn in_words(n: &Counts) -> String {
    format!(
        "connections cut {}, reset {}, left half-open {}; bytes swallowed {}; reads late {}; requests sent twice {} \
         ({} of the copies turned away), kept back {}, delivered when their callers had gone {} ({} turned away); answers thrown \
         away {}",
        n.cut,
        n.resets,
        n.half_open,
        n.swallowed_request_bytes + n.swallowed_answer_bytes,
        n.late,
        n.duplicated,
        n.duplicates_turned_away,
        n.held,
        n.delivered_late,
        n.late_turned_away,
        n.dropped_answers
    )
}

#[cfg(test)]
mod tests {
    use super::super::SETTLED_AFTER;
    use super::*;
    use crate::chaos::catalogue;
    use crate::chaos::fault::Level;
    use std::collections::BTreeSet;

    #[test]
    fn every_fault_is_one_of_the_catalogue_and_every_one_of_a_workers_link_is_done_to_the_proxy() {
        let mut names = BTreeSet::new();
        for lane in lanes(PROXY) {
            for fault in lane.faults.iter().chain(&lane.mostly) {
                let entry = catalogue::named(fault.name).unwrap();
                assert_eq!(entry.kind.level, Level::Link, "{}", fault.name);
                assert!(fault.mode != Mode::PASS);
                if lane.to == PROXY {
                    names.insert(fault.name);
                }
            }
        }
        let of_a_link = catalogue::all()
            .into_iter()
            .map(|entry| entry.kind.name)
            .filter(|name| {
                // Those of particular nodes have their names.
                let plain = ["partition", "rail", "lockdb", "paydb"];
                name.strip_prefix("link.")
                    .is_some_and(|rest| !plain.iter().any(|node| rest.starts_with(node)))
            });
        assert_eq!(names, of_a_link.collect());
    }

    #[test]
    fn behind_the_proxy_nothing_is_sent_twice_and_nothing_is_later_than_the_services_word() {
        let lanes = lanes(PROXY);
        let behind = lanes.iter().find(|lane| lane.to == SERVICE).unwrap();
        for fault in behind.faults.iter().chain(&behind.mostly) {
            match fault.mode.messages {
                Messages::Duplicate { .. } => panic!("{}", fault.name),
                // The service takes half a second at most; a busy machine as much again.
                Messages::Hold { late, .. } => assert!(late + Duration::from_secs(1) < SETTLED_AFTER),
                Messages::AsSent | Messages::DropAnswer => {}
            }
        }
    }
}
