//! Faults of actors, by the debug control of a lab build: any actor by its path, paused or made to panic.
//!
//! Owns: finding one that lives (chosen by the run's seed), striking it, seeing it struck in the tree and in the log.
//! Does not own: the supervision that brings it back. On failure: an actor that never lives, or never shows what was done
//! to it, fails the fault. The stack needs `debug.control` in its settings ([`StackSpec::controlled`]).
//!
//! [`StackSpec::controlled`]: crate::stack::StackSpec::controlled

use super::catalogue::Entry;
use super::fault::{Fault, Ground, Kind, Level, SHOWS_WITHIN, StoreKind};
use super::own::{Does, KEPT_WAITING_MS, Own};
use crate::stack::{LOCK_SERVER, PAYMENT_RESOURCE, RAIL_PROXY, RunError, Step, eventually};
use http_client::{CallError, Caller, ClientOptions};
use http_contract::Code;
use http_contract::payment::PayoutState;
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// How long a pause is asked for. It is ended by a resume; this is for a harness that has died.
const PAUSE_MS: u64 = 120_000;
/// How long one call to the debug control may take.
const CALL_WITHIN: Duration = Duration::from_secs(5);

/// What is done to an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hurt {
    Pause,
    Panic,
}

/// Which actors are meant: their kind, and where they live.
#[derive(Clone, Copy, Debug)]
struct Whose {
    kind: &'static str,
    /// The component; none for the workers.
    node: Option<&'static str>,
    /// Lives only while a payout is under way: the fault brings one.
    passing: bool,
}

const fn of(node: &'static str, kind: &'static str) -> Whose {
    Whose {
        kind,
        node: Some(node),
        passing: false,
    }
}

const fn passing(node: &'static str, kind: &'static str) -> Whose {
    Whose {
        passing: true,
        ..of(node, kind)
    }
}

const fn workers(kind: &'static str) -> Whose {
    Whose {
        kind,
        node: None,
        passing: false,
    }
}

const LEASE_CLOCK: Whose = of(LOCK_SERVER, "lease_clock");
const LEASE: Whose = passing(LOCK_SERVER, "lease");
const SESSION: Whose = of(LOCK_SERVER, "session");
const PAYOUTS: Whose = of(PAYMENT_RESOURCE, "payouts");
const PAYOUT: Whose = passing(PAYMENT_RESOURCE, "payout");
const SLA_CLOCK: Whose = of(PAYMENT_RESOURCE, "sla_clock");
const DESK: Whose = of(RAIL_PROXY, "rail_desk");
const SUBMISSION: Whose = passing(RAIL_PROXY, "rail_submission");
const WORKER: Whose = workers("worker");
const POLLER: Whose = workers("poller");
const RECONCILER: Whose = workers("reconciler");
const LOCK_CLIENT: Whose = workers("lock_client");

macro_rules! entries {
    ($(($pause:literal, $panic:literal, $whose:ident, $what:literal)),* $(,)?) => {
        &[$(
            Entry {
                kind: kind($pause, concat!($what, " is paused: its mailbox, its timers and what it waits for stand still"), RESUMED),
                make: |_| made($pause, $whose, Hurt::Pause),
            },
            Entry {
                kind: kind($panic, concat!($what, " panics"), BUILT_ANEW),
                make: |_| made($panic, $whose, Hurt::Panic),
            },
        )*]
    };
}

const RESUMED: &str = "resumed by the debug control";
const BUILT_ANEW: &str = "its supervisor builds it anew";

const fn kind(name: &'static str, what: &'static str, undo: &'static str) -> Kind {
    Kind {
        name,
        level: Level::Actor,
        what,
        undo,
        on: &StoreKind::ALL,
    }
}

/// The entries of this level.
pub const ENTRIES: &[Entry] = entries![
    (
        "actor.lease_clock_pause",
        "actor.lease_clock_panic",
        LEASE_CLOCK,
        "the lock server's lease clock, parent of its leases and sessions,"
    ),
    (
        "actor.lease_pause",
        "actor.lease_panic",
        LEASE,
        "the lease of a key in use"
    ),
    (
        "actor.session_pause",
        "actor.session_panic",
        SESSION,
        "the session of a worker"
    ),
    (
        "actor.payouts_pause",
        "actor.payouts_panic",
        PAYOUTS,
        "the payment resource's supervisor of payouts"
    ),
    (
        "actor.payout_pause",
        "actor.payout_panic",
        PAYOUT,
        "the actor of a payout under way"
    ),
    (
        "actor.sla_clock_pause",
        "actor.sla_clock_panic",
        SLA_CLOCK,
        "the payment resource's clock of escalations"
    ),
    (
        "actor.submission_desk_pause",
        "actor.submission_desk_panic",
        DESK,
        "the rail proxy's desk, parent of its submissions,"
    ),
    (
        "actor.submission_pause",
        "actor.submission_panic",
        SUBMISSION,
        "a submission while the rail has it"
    ),
    ("actor.worker_pause", "actor.worker_panic", WORKER, "a slot of a worker"),
    ("actor.poller_pause", "actor.poller_panic", POLLER, "a worker's poller"),
    (
        "actor.reconciler_pause",
        "actor.reconciler_panic",
        RECONCILER,
        "a worker's reconciler"
    ),
    (
        "actor.lock_client_pause",
        "actor.lock_client_panic",
        LOCK_CLIENT,
        "the lock client in a worker"
    ),
];

fn made(name: &'static str, whose: Whose, hurt: Hurt) -> Result<Box<dyn Fault>, RunError> {
    Ok(Box::new(ActorFault {
        name,
        whose,
        hurt,
        struck: RefCell::default(),
        own: RefCell::default(),
    }))
}

struct ActorFault {
    name: &'static str,
    whose: Whose,
    hurt: Hurt,
    /// What was struck.
    struck: RefCell<Option<Struck>>,
    /// Its own payouts, for an actor that lives only as long as one is under way; the last one is under way now.
    own: RefCell<Vec<Rc<Own>>>,
}

#[derive(Clone, Debug)]
struct Struck {
    node: String,
    path: String,
    /// How often it had been built anew, and had been seen to panic, before.
    restarts: u64,
    panics: usize,
}

/// An actor as the tree shows it.
#[derive(Clone, Debug, Deserialize)]
struct Shown {
    path: String,
    kind: String,
    mailbox_depth: u64,
    restarts: u64,
    paused_for_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Tree {
    actors: Vec<Shown>,
}

fn caller(ground: &Ground<'_>, node: &str) -> Result<Caller, RunError> {
    Ok(Caller::new(
        http_client::client(&ClientOptions::default()),
        ground.stack.url(node)?,
        CALL_WITHIN,
    ))
}

async fn tree(ground: &Ground<'_>, node: &str) -> Result<Vec<Shown>, CallError> {
    let caller = caller(ground, node).map_err(|error| CallError::NotSent(error.to_string()))?;
    let tree: Tree = caller.get_json("/debug/actors", &ground.apis.trace()).await?;
    Ok(tree.actors)
}

/// Tells the debug control something about an actor. False when there is no such actor any more.
async fn control(ground: &Ground<'_>, node: &str, path: &str, verb: &str, body: &Value) -> Result<bool, RunError> {
    let encoded = http_client::path_segment(path);
    let route = format!("/debug/actors/{encoded}/{verb}");
    let what = format!("{verb} of {path}");
    let answer: Result<Value, CallError> = caller(ground, node)?
        .post_json(&route, body, &ground.apis.trace())
        .await;
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(Code::NotFound) => {
            // The route is missing, or the actor is: only the second is nobody's mistake.
            if error
                .problem()
                .is_some_and(|problem| problem.detail.contains("there is no actor"))
            {
                Ok(false)
            } else {
                Err(RunError::Other(format!("{what}: {node} has no debug.control")))
            }
        }
        Err(error) => Err(RunError::call(what)(error)),
    }
}

/// How often the log of a node says that this actor panicked.
fn panics(ground: &Ground<'_>, node: &str, path: &str) -> Result<usize, RunError> {
    let log = ground.stack.log(node)?;
    let said = log
        .iter()
        .filter(|line| line["event"] == "actor_panicked" && line["actor"] == path);
    Ok(said.count())
}

impl ActorFault {
    fn struck(&self) -> Result<Struck, RunError> {
        let struck = self.struck.borrow().clone();
        struck.ok_or_else(|| RunError::Other(format!("{} has struck nobody", self.name)))
    }

    /// Where such actors may live now.
    fn nodes(&self, ground: &Ground<'_>) -> Result<Vec<String>, RunError> {
        if let Some(node) = self.whose.node {
            return Ok(vec![node.to_owned()]);
        }
        let mut alive = Vec::new();
        for worker in ground.stack.workers() {
            if !ground.stack.state(&worker)?.ended() {
                alive.push(worker);
            }
        }
        Ok(alive)
    }

    /// Those that live now, with what is of the fault's own payout alone where it has one.
    async fn living(&self, ground: &Ground<'_>) -> Result<Vec<(String, Shown)>, RunError> {
        let own = self.own.borrow().last().cloned();
        let mut living = Vec::new();
        for node in self.nodes(ground)? {
            let shown = tree(ground, &node).await.unwrap_or_default();
            living.extend(
                shown
                    .into_iter()
                    .filter(|actor| actor.kind == self.whose.kind)
                    .filter(|actor| {
                        own.as_ref()
                            .is_none_or(|own| actor.path.contains(&own.payout) || actor.path.contains(&own.account))
                    })
                    .map(|actor| (node.clone(), actor)),
            );
        }
        Ok(living)
    }

    /// Brings a payout of the fault's own, where there is none, or the last one got away.
    async fn bring_one(&self, ground: &Ground<'_>) -> Result<(), RunError> {
        let last = self.own.borrow().last().cloned();
        if let Some(last) = last {
            let got_away = last
                .look(ground)
                .await
                .is_some_and(|payout| !matches!(payout.state, PayoutState::Pending | PayoutState::Claimed));
            if !got_away {
                return Ok(());
            }
        }
        let own = Rc::new(Own::new(ground, self.name));
        own.ask(ground, &[Does::after("latency", KEPT_WAITING_MS)]).await?;
        self.own.borrow_mut().push(own);
        Ok(())
    }

    /// Strikes one that lives. None when there is none, or it has gone in between.
    async fn strike(&self, ground: &Ground<'_>) -> Result<Option<Struck>, RunError> {
        if self.whose.passing {
            self.bring_one(ground).await?;
        }
        let living = self.living(ground).await?;
        let Ok(count) = u64::try_from(living.len()) else {
            return Ok(None);
        };
        if count == 0 {
            return Ok(None);
        }
        let chosen = usize::try_from(ground.random.below(count)).unwrap_or(0);
        let (node, actor) = &living[chosen];
        let struck = Struck {
            node: node.clone(),
            path: actor.path.clone(),
            restarts: actor.restarts,
            panics: panics(ground, node, &actor.path)?,
        };
        let (verb, body) = match self.hurt {
            Hurt::Pause => ("pause", json!({ "for_ms": PAUSE_MS })),
            Hurt::Panic => ("panic", json!({})),
        };
        let told = control(ground, node, &actor.path, verb, &body).await?;
        Ok(told.then_some(struck))
    }

    /// What the tree or the log says of it now.
    async fn seen(&self, ground: &Ground<'_>, struck: &Struck) -> Result<Option<String>, RunError> {
        let Struck { node, path, .. } = struck;
        let Ok(shown) = tree(ground, node).await else {
            return Ok(None);
        };
        let actor = shown.iter().find(|actor| actor.path == *path);
        Ok(match self.hurt {
            Hurt::Pause => actor.and_then(|actor| {
                let left = actor.paused_for_ms?;
                let waiting = actor.mailbox_depth;
                Some(format!(
                    "the tree shows {path} paused for {left} ms more, {waiting} messages waiting"
                ))
            }),
            Hurt::Panic if panics(ground, node, path)? > struck.panics => match actor {
                Some(actor) if actor.restarts > struck.restarts => Some(format!(
                    "{path} panicked, and the tree counts {} restarts",
                    actor.restarts
                )),
                Some(_) => None,
                None => Some(format!("{path} panicked, and has ended")),
            },
            Hurt::Panic => None,
        })
    }
}

impl Fault for ActorFault {
    fn target(&self) -> String {
        self.struck
            .borrow()
            .as_ref()
            .map_or_else(|| self.whose.kind.to_owned(), |struck| struck.path.clone())
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let what = format!("a living {} to be struck", self.whose.kind);
            let struck = eventually(ground.stack.host(), &what, SHOWS_WITHIN, async || {
                self.strike(ground).await
            })
            .await?;
            *self.struck.borrow_mut() = Some(struck);
            Ok(())
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let struck = self.struck()?;
            let what = format!("{} to show in {}", self.name, struck.path);
            eventually(ground.stack.host(), &what, SHOWS_WITHIN, async || {
                self.seen(ground, &struck).await
            })
            .await
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            for own in self.own.take() {
                own.withdraw(ground).await?;
            }
            if self.hurt == Hurt::Pause {
                let struck = self.struck()?;
                // One that has ended meanwhile with its parent needs no resume.
                control(ground, &struck.node, &struck.path, "resume", &json!({})).await?;
            }
            Ok(())
        })
    }
}
