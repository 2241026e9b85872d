//! Faults of the rail, by its own fault plan: late, silent, garbled, refused, contradicting answers and acks.
//!
//! Owns: which fault is planted, for a payout of the fault's own and for a share of the load; seeing it counted by the rail.
//! Does not own: what each does to a call (`rail-stub`); what a payout becomes of it.
//! On failure: a fault that the rail never met fails.

use super::catalogue::Entry;
use super::fault::{Fault, Ground, Kind, Level, SHOWS_WITHIN, StoreKind};
use super::own::{Does, Own, change_plan};
use crate::stack::{RAIL_STUB, RunError, Step, eventually};
use std::cell::{Cell, RefCell};

/// The share of other calls that meet the fault while it is in force.
const SHARE: f64 = 0.2;
/// How late a late execution and a lagging lookup of the fault's own payout come.
const LATE_MS: u64 = 300;

/// One kind: the rail's name for it, and what else its own payout meets, so that it matters.
#[derive(Clone, Copy, Debug)]
struct Rail {
    fault: &'static str,
    own: &'static [Does],
}

macro_rules! entries {
    ($(($name:literal, $fault:literal, [$($own:expr),*], $what:literal)),* $(,)?) => {
        &[$(Entry {
            kind: kind($name, $what),
            make: |ground| {
                const OWN: &[Does] = &[$($own),*];
                made($name, Rail { fault: $fault, own: OWN }, ground)
            },
        }),*]
    };
}

const fn kind(name: &'static str, what: &'static str) -> Kind {
    Kind {
        name,
        level: Level::Rail,
        what,
        undo: "the rail's fault plan without it",
        on: &StoreKind::ALL,
    }
}

/// The entries of this level.
pub const ENTRIES: &[Entry] = entries![
    (
        "rail.latency",
        "latency",
        [Does::after("latency", 1_000)],
        "the rail takes a second to answer"
    ),
    (
        "rail.decline",
        "decline",
        [Does::always("decline")],
        "the rail declines: the payout fails lawfully"
    ),
    (
        "rail.timeout_executed",
        "timeout_executed",
        [Does::always("timeout_executed")],
        "the rail executes and never answers"
    ),
    (
        "rail.timeout_not_executed",
        "timeout_not_executed",
        [Does::always("timeout_not_executed")],
        "the rail neither executes nor answers"
    ),
    (
        "rail.late_execution",
        "late_execution",
        [Does::after("late_execution", LATE_MS)],
        "the rail never answers and executes later"
    ),
    (
        "rail.close_after_read",
        "close_after_read",
        [Does::always("close_after_read")],
        "the rail executes and closes without an answer"
    ),
    (
        "rail.reset_after_read",
        "reset_after_read",
        [Does::always("reset_after_read")],
        "the rail executes and resets the connection"
    ),
    (
        "rail.half_response",
        "half_response",
        [Does::always("half_response")],
        "the rail executes, answers half and closes"
    ),
    (
        "rail.trickle",
        "trickle",
        [Does::always("trickle")],
        "the rail executes and answers a byte at a time"
    ),
    (
        "rail.garbage",
        "garbage",
        [Does::always("garbage")],
        "the rail executes and answers what is no JSON"
    ),
    (
        "rail.status_500",
        "status_500",
        [Does::always("status_500")],
        "the rail answers 500 and executes nothing"
    ),
    (
        "rail.status_503",
        "status_503",
        [Does::always("status_503")],
        "the rail answers 503 with Retry-After and executes nothing"
    ),
    (
        "rail.redirect_307",
        "redirect_307",
        [Does::always("redirect_307")],
        "the rail redirects to itself with 307 and executes nothing"
    ),
    (
        "rail.redirect_308",
        "redirect_308",
        [Does::always("redirect_308")],
        "the rail redirects to itself with 308 and executes nothing"
    ),
    (
        "rail.continue_100",
        "continue_100",
        [Does::always("continue_100")],
        "the rail executes, answers 100 Continue and closes"
    ),
    (
        "rail.duplicate_ack",
        "duplicate_ack",
        [Does::always("duplicate_ack")],
        "the rail acks twice more, asynchronously"
    ),
    (
        "rail.conflicting_ack",
        "conflicting_ack",
        [Does::always("conflicting_ack")],
        "the rail contradicts its answer in an asynchronous ack"
    ),
    (
        "rail.ack_before_answer",
        "ack_before_answer",
        [Does::always("ack_before_answer")],
        "the rail acks asynchronously before it answers"
    ),
    (
        "rail.lookup_error",
        "lookup_error",
        [Does::always("timeout_executed"), Does::always("lookup_error")],
        "lookups at the rail break down"
    ),
    (
        "rail.lookup_lag",
        "lookup_lag",
        [Does::always("timeout_executed"), Does::after("lookup_lag", LATE_MS)],
        "lookups at the rail do not see an execution at once"
    ),
];

fn made(name: &'static str, rail: Rail, ground: &Ground<'_>) -> Result<Box<dyn Fault>, RunError> {
    Ok(Box::new(RailFault {
        rail,
        own: Own::new(ground, name),
        before: Cell::new(0),
        exceptions_before: Cell::new(0),
        seen: RefCell::default(),
    }))
}

struct RailFault {
    rail: Rail,
    own: Own,
    /// How often the rail had met it before.
    before: Cell<u64>,
    exceptions_before: Cell<usize>,
    /// What was last seen of its own payout.
    seen: RefCell<String>,
}

impl RailFault {
    /// How often the rail has met it; none while it does not answer.
    async fn met(&self, ground: &Ground<'_>) -> Option<u64> {
        let stats = ground.apis.stub.stats(&ground.apis.trace()).await.ok()?;
        Some(stats.by_fault.get(self.rail.fault).copied().unwrap_or(0))
    }

    /// What waits for a human at the rail proxy about its own payout.
    async fn exceptions(&self, ground: &Ground<'_>) -> Option<usize> {
        let page = ground
            .apis
            .rail
            .exceptions(None, http_contract::PAGE_LIMIT_MAX, None, &ground.apis.trace())
            .await
            .ok()?;
        Some(page.items.iter().filter(|row| row.payout_id == self.own.payout).count())
    }

    /// A lookup is asked for as soon as there is something to look up: whether a reconciler runs is the run's matter.
    async fn look_up(&self, ground: &Ground<'_>) {
        let (rail, apis) = (&ground.apis.rail, ground.apis);
        if rail.submission(&self.own.payout, &apis.trace()).await.is_ok() {
            // What it answers is of no interest; that the rail is asked is.
            let _ = rail.lookup(&self.own.payout, SHOWS_WITHIN, &apis.trace()).await;
        }
    }
}

impl Fault for RailFault {
    fn target(&self) -> String {
        RAIL_STUB.to_owned()
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let met = eventually(ground.stack.host(), "the rail's totals", SHOWS_WITHIN, async || {
                Ok(self.met(ground).await)
            })
            .await?;
            self.before.set(met);
            self.exceptions_before
                .set(self.exceptions(ground).await.unwrap_or_default());
            change_plan(ground, |plan| {
                plan.rates.insert(self.rail.fault.to_owned(), SHARE);
            })
            .await?;
            self.own.ask(ground, self.rail.own).await
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let what = format!("the rail to meet {}", self.rail.fault);
            let met = eventually(ground.stack.host(), &what, SHOWS_WITHIN, async || {
                if self.rail.fault == "lookup_error" {
                    self.look_up(ground).await;
                }
                let Some(met) = self.met(ground).await.filter(|met| *met > self.before.get()) else {
                    return Ok(None);
                };
                // Its own payout has met it too once it is beyond the rail.
                let Some(payout) = self.own.look(ground).await else {
                    return Ok(None);
                };
                // Where paydb was restored, the rail has to be asked before anything is sent: a payout whose lookups break
                // down then rests claimed, and lawfully (D13).
                let rests = self.rail.fault == "lookup_error" && payout.state.as_str() == "CLAIMED";
                if matches!(payout.state.as_str(), "PENDING" | "CLAIMED") && !rests {
                    return Ok(None);
                }
                payout.state.as_str().clone_into(&mut self.seen.borrow_mut());
                if self.rail.fault == "conflicting_ack" {
                    // It comes after the answer and must end before a human.
                    let exceptions = self.exceptions(ground).await.unwrap_or_default();
                    if exceptions <= self.exceptions_before.get() {
                        return Ok(None);
                    }
                }
                Ok(Some(met - self.before.get()))
            })
            .await?;
            let exception = if self.rail.fault == "conflicting_ack" {
                ", an exception waits for a human"
            } else {
                ""
            };
            Ok(format!(
                "the rail met {} {met} times; {} is {}{exception}",
                self.rail.fault,
                self.own.payout,
                self.seen.borrow()
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            change_plan(ground, |plan| {
                plan.rates.remove(self.rail.fault);
            })
            .await?;
            self.own.withdraw(ground).await
        })
    }
}
