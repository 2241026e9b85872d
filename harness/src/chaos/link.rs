//! Faults of links, by the wires of a stack: cut, silent, late, slow, and messages sent twice, late, or half.
//!
//! Owns: which wires a fault strikes, how its effect is seen (a probe of its own through each wire, and the wire's
//! numbers), and that each wire answers again after it.
//! Does not own: the wires. On failure: a stack without wires cannot have these faults.

use super::catalogue::Entry;
use super::fault::{Fault, Ground, Kind, Level, SHOWS_WITHIN, StoreKind};
use crate::stack::{LOCK_SERVER, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB, RunError, Step, eventually};
use crate::wire::wires::{LOCKDB, PAYDB};
use crate::wire::{Counts, End, Flow, Line, Messages, Mode, Probed, Wire, Wires, probe};
use host_kit::Host;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// By how much a delayed link is late, each way.
const DELAY: Duration = Duration::from_millis(150);
/// By how much at most a link with jitter is late, each way.
pub(crate) const JITTER: Duration = Duration::from_millis(250);
/// How fast a trickle flows: some requests and answers take longer than their callers wait, others do not.
pub(crate) const TRICKLE_BYTES_PER_S: u32 = 2_000;
/// How long after a request its copy follows, at most: a lease's length, so that it may come from a former holder.
pub(crate) const COPY_WITHIN: Duration = Duration::from_millis(1_500);
/// How long the caller of a held request is left waiting.
const HELD_SILENT: Duration = Duration::from_millis(600);
/// How long after its caller has gone a held request is delivered, at most: longer than a lease.
pub(crate) const HELD_LATE: Duration = Duration::from_secs(2);

/// How the effect is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// The probe is refused, closed or reset.
    Fails(Line),
    /// The probe hears nothing, and this number rises.
    Silence(Number),
    /// The probe is answered, and this number rises.
    Answer(Number),
    /// The probe is answered, no sooner than this.
    Slow(Duration),
    /// The probe is reset, and this number rises.
    NoAnswer(Number),
}

/// A number of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    SwallowedRequests,
    SwallowedAnswers,
    HalfOpen,
    Late,
    Slowed,
    Duplicated,
    DeliveredLate,
    Dropped,
}

impl Number {
    const fn of(self, counts: &Counts) -> u64 {
        match self {
            Self::SwallowedRequests => counts.swallowed_request_bytes,
            Self::SwallowedAnswers => counts.swallowed_answer_bytes,
            Self::HalfOpen => counts.half_open,
            Self::Late => counts.late,
            Self::Slowed => counts.slowed,
            Self::Duplicated => counts.duplicated,
            Self::DeliveredLate => counts.delivered_late,
            Self::Dropped => counts.dropped_answers,
        }
    }

    const fn says(self) -> &'static str {
        match self {
            Self::SwallowedRequests => "bytes of requests swallowed",
            Self::SwallowedAnswers => "bytes of answers swallowed",
            Self::HalfOpen => "connections left half-open",
            Self::Late => "reads forwarded late",
            Self::Slowed => "pauses of the trickle",
            Self::Duplicated => "requests answered twice",
            Self::DeliveredLate => "requests delivered after their callers had gone",
            Self::Dropped => "answers thrown away",
        }
    }
}

const fn kind(name: &'static str, what: &'static str, on: &'static [StoreKind]) -> Kind {
    Kind {
        name,
        level: Level::Link,
        what,
        undo: "the link is whole again; a connection that has lost bytes is reset",
        on,
    }
}

/// A fault of one of a worker's links, chosen by the run's seed.
macro_rules! worker_link {
    ($name:literal, $what:literal, $mode:expr, $sign:expr) => {
        Entry {
            kind: kind($name, $what, &StoreKind::ALL),
            make: |ground| made(a_worker_link(ground)?, $mode, $sign),
        }
    };
}

/// A fault of all links that lead to a node.
macro_rules! links_to {
    ($name:literal, $what:literal, $on:expr, $to:expr, $mode:expr, $sign:expr) => {
        Entry {
            kind: kind($name, $what, $on),
            make: |ground| made(wires(ground)?.to($to), $mode, $sign),
        }
    };
}

const SWALLOWS: Mode = Mode::both(Flow::Swallow);
const SWALLOWED: Sign = Sign::Silence(Number::SwallowedRequests);
const CUT: Mode = Mode::line(Line::Cut);
const FAILS_CUT: Sign = Sign::Fails(Line::Cut);

/// The entries of this level.
pub const ENTRIES: &[Entry] = &[
    worker_link!(
        "link.refuse",
        "nobody listens for a worker at a component: its connections are refused",
        Mode::line(Line::Refused),
        Sign::Fails(Line::Refused)
    ),
    worker_link!(
        "link.cut",
        "a worker's connections to a component are closed (FIN), new ones at once",
        CUT,
        FAILS_CUT
    ),
    worker_link!(
        "link.reset",
        "a worker's connections to a component are reset (RST), new ones at once",
        Mode::line(Line::Reset),
        Sign::Fails(Line::Reset)
    ),
    worker_link!(
        "link.swallow",
        "a worker and a component hear nothing of each other, and nobody tells them",
        SWALLOWS,
        SWALLOWED
    ),
    worker_link!(
        "link.swallow_requests",
        "a component hears nothing of a worker; what it says still arrives",
        Mode::requests(Flow::Swallow),
        SWALLOWED
    ),
    worker_link!(
        "link.swallow_answers",
        "a worker hears nothing of a component, which does all that it asks",
        Mode::answers(Flow::Swallow),
        Sign::Silence(Number::SwallowedAnswers)
    ),
    worker_link!(
        "link.half_open",
        "the component's side of a worker's connections is gone, the worker's stays open",
        Mode::line(Line::HalfOpen(End::Caller)),
        Sign::Silence(Number::HalfOpen)
    ),
    worker_link!(
        "link.delay",
        "a worker's requests and their answers take 150 ms longer each",
        Mode::both(Flow::Delay(DELAY)),
        Sign::Slow(DELAY.saturating_mul(2))
    ),
    worker_link!(
        "link.jitter",
        "a worker's requests and their answers take up to 250 ms longer each, by chance",
        Mode::both(Flow::Jitter(JITTER)),
        Sign::Answer(Number::Late)
    ),
    worker_link!(
        "link.trickle",
        "a worker and a component exchange 2,000 bytes per second each way",
        Mode::both(Flow::Trickle(TRICKLE_BYTES_PER_S)),
        Sign::Answer(Number::Slowed)
    ),
    worker_link!(
        "link.duplicate_request",
        "each request of a worker reaches the component twice, the second up to 1.5 s later",
        Mode::messages(Messages::Duplicate { within: COPY_WITHIN }),
        Sign::Answer(Number::Duplicated)
    ),
    worker_link!(
        "link.hold_request",
        "each request of a worker is kept back and delivered up to 2 s after the worker has given it up",
        Mode::messages(Messages::Hold {
            silent: HELD_SILENT,
            late: HELD_LATE,
        }),
        Sign::NoAnswer(Number::DeliveredLate)
    ),
    worker_link!(
        "link.drop_answer",
        "each request of a worker is done, its answer thrown away and the connection reset",
        Mode::messages(Messages::DropAnswer),
        Sign::NoAnswer(Number::Dropped)
    ),
    Entry {
        kind: kind(
            "link.partition_worker",
            "a worker and everything else hear nothing of each other",
            &StoreKind::ALL,
        ),
        make: |ground| made(wires(ground)?.of(&ground.worker()?), SWALLOWS, SWALLOWED),
    },
    links_to!(
        "link.partition_lock_server",
        "the lock server and all workers hear nothing of each other",
        &StoreKind::ALL,
        LOCK_SERVER,
        SWALLOWS,
        SWALLOWED
    ),
    // A request sent twice on the way to the rail is a second payment by itself: nothing of dlock could refuse it.
    links_to!(
        "link.rail_cut",
        "the rail proxy's connections to the rail are closed (FIN)",
        &StoreKind::ALL,
        RAIL_STUB,
        CUT,
        FAILS_CUT
    ),
    links_to!(
        "link.rail_swallow",
        "the rail hears nothing of the rail proxy: payouts become ambiguous",
        &StoreKind::ALL,
        RAIL_STUB,
        SWALLOWS,
        SWALLOWED
    ),
    links_to!(
        "link.rail_drop_answer",
        "the rail executes, its answers are thrown away: payouts become ambiguous",
        &StoreKind::ALL,
        RAIL_STUB,
        Mode::messages(Messages::DropAnswer),
        Sign::NoAnswer(Number::Dropped)
    ),
    links_to!(
        "link.lockdb_cut",
        "the lock server's connections to its store are closed (FIN), new ones at once",
        &[StoreKind::Pg, StoreKind::Etcd],
        LOCKDB,
        CUT,
        FAILS_CUT
    ),
    links_to!(
        "link.lockdb_swallow",
        "the lock server and its store hear nothing of each other",
        &[StoreKind::Pg, StoreKind::Etcd],
        LOCKDB,
        SWALLOWS,
        SWALLOWED
    ),
    links_to!(
        "link.paydb_cut",
        "the connections of both fence points to their store are closed (FIN), new ones at once",
        &[StoreKind::Pg],
        PAYDB,
        CUT,
        FAILS_CUT
    ),
];

fn wires<'a>(ground: &Ground<'a>) -> Result<&'a Wires, RunError> {
    let wires = ground.stack.wires();
    wires.ok_or_else(|| RunError::Other("the stack has no wires on its links".to_owned()))
}

fn a_worker_link(ground: &Ground<'_>) -> Result<Vec<Rc<Wire>>, RunError> {
    let worker = ground.worker()?;
    let to = ground.pick(&[LOCK_SERVER, PAYMENT_RESOURCE, RAIL_PROXY]);
    let name = Wires::link(&worker, to.unwrap_or(LOCK_SERVER));
    Ok(wires(ground)?.get(&name).into_iter().collect())
}

fn made(wires: Vec<Rc<Wire>>, mode: Mode, sign: Sign) -> Result<Box<dyn Fault>, RunError> {
    if wires.is_empty() {
        return Err(RunError::Other("the stack has no such link".to_owned()));
    }
    let struck = wires.into_iter().map(|wire| {
        let before = Cell::new(wire.counts());
        Struck { wire, before }
    });
    Ok(Box::new(LinkFault {
        struck: struck.collect(),
        mode,
        sign,
    }))
}

struct Struck {
    wire: Rc<Wire>,
    /// Its numbers before the fault.
    before: Cell<Counts>,
}

struct LinkFault {
    struck: Vec<Struck>,
    mode: Mode,
    sign: Sign,
}

impl Fault for LinkFault {
    fn target(&self) -> String {
        let names: Vec<&str> = self.struck.iter().map(|struck| struck.wire.name()).collect();
        names.join(", ")
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            for Struck { wire, before } in &self.struck {
                before.set(wire.counts());
                wire.set(self.mode);
            }
            Ok(())
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let mut seen = Vec::new();
            for struck in &self.struck {
                let what = struck.shows(ground, self.sign).await?;
                seen.push(match self.struck.len() {
                    1 => what,
                    _ => format!("{}: {what}", struck.wire.name()),
                });
            }
            Ok(seen.join("; "))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            for Struck { wire, .. } in &self.struck {
                wire.set(Mode::PASS);
            }
            for Struck { wire, .. } in &self.struck {
                answers_again(ground.stack.host(), wire, SHOWS_WITHIN, SHOWS_WITHIN).await?;
            }
            Ok(())
        })
    }
}

/// Awaits that a question through a wire is answered, each of them within `probe_within`.
///
/// # Errors
/// [`RunError::NeverCame`] when none is within `within`.
pub(crate) async fn answers_again(
    host: &Host,
    wire: &Rc<Wire>,
    probe_within: Duration,
    within: Duration,
) -> Result<(), RunError> {
    let what = format!("an answer through {}", wire.name());
    eventually(host, &what, within, async || {
        let probed = probe(wire, probe_within).await;
        Ok(matches!(probed, Probed::Answered { .. }).then_some(()))
    })
    .await
}

impl Struck {
    /// Awaits the sign on this wire. The probe's traffic shows it also where nobody else uses the link.
    async fn shows(&self, ground: &Ground<'_>, sign: Sign) -> Result<String, RunError> {
        match sign {
            Sign::Fails(line) => {
                let wanted = match line {
                    Line::Refused => Probed::Refused,
                    Line::Cut => Probed::Closed,
                    _ => Probed::Reset,
                };
                let what = format!("{wanted:?} at {}", self.wire.name());
                eventually(ground.stack.host(), &what, SHOWS_WITHIN, async || {
                    Ok((probe(&self.wire, SHOWS_WITHIN).await == wanted).then_some(()))
                })
                .await?;
                Ok(format!("a probe is {}", format!("{wanted:?}").to_lowercase()))
            }
            Sign::Silence(number) => {
                let before = number.of(&self.before.get());
                tokio::select! {
                    probed = probe(&self.wire, SHOWS_WITHIN) => Err(self.otherwise("silence", &probed)),
                    risen = self.risen(ground, number, before) => Ok(format!("a probe hears nothing; {}", risen?)),
                }
            }
            Sign::Answer(number) => {
                let before = number.of(&self.before.get());
                self.answered().await?;
                Ok(format!(
                    "a probe is answered; {}",
                    self.risen(ground, number, before).await?
                ))
            }
            Sign::Slow(least) => {
                let took = self.answered().await?;
                if took < least {
                    return Err(self.otherwise("a late answer", &took));
                }
                Ok(format!("a probe is answered after {} ms", took.as_millis()))
            }
            Sign::NoAnswer(number) => {
                let before = number.of(&self.before.get());
                match probe(&self.wire, SHOWS_WITHIN).await {
                    Probed::Reset => {}
                    probed => return Err(self.otherwise("a reset", &probed)),
                }
                Ok(format!(
                    "a probe is reset; {}",
                    self.risen(ground, number, before).await?
                ))
            }
        }
    }

    async fn answered(&self) -> Result<Duration, RunError> {
        match probe(&self.wire, SHOWS_WITHIN).await {
            Probed::Answered { took, .. } => Ok(took),
            probed => Err(self.otherwise("an answer", &probed)),
        }
    }

    /// Awaits that the number is above what it was.
    async fn risen(&self, ground: &Ground<'_>, number: Number, before: u64) -> Result<String, RunError> {
        let what = format!("{}: {}", self.wire.name(), number.says());
        eventually(ground.stack.host(), &what, SHOWS_WITHIN, async || {
            let more = number.of(&self.wire.counts()).saturating_sub(before);
            Ok((more > 0).then(|| format!("{}: {more}", number.says())))
        })
        .await
    }

    fn otherwise(&self, wanted: &str, seen: &dyn std::fmt::Debug) -> RunError {
        RunError::Other(format!("{}: {wanted} was expected, {seen:?} came", self.wire.name()))
    }
}
