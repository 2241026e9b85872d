//! The clock of the payment row.
//!
//! Owns: marking what has been ambiguous for longer than `executor.ambiguous-sla`, once, and refreshing the gauges.
//! Does not own: resolving anything. Look-ups go on after an escalation; only P8 ends the ambiguity.
//! On failure: logged, and tried again at the next tick; a flag that comes a tick late hurts nobody.
//! Ages are judged by the clock that dates the rows, watched against the boot clock: a clock that is set escalates nothing
//! that is young (case P31). Over a restart the watch begins anew, and the recorded instants alone count.
//! Messages: to itself `TickDue`, `Counted`, `Ticked`.

use crate::metrics::{Metrics, SURVEY};
use actor_kit::{Ask, Behaviour, Cx, Receive, Reply};
use host_kit::WallAges;
use lock_api::StoreError;
use payment_store::{PaymentStore, Tally};
use std::sync::Arc;
use std::time::Duration;

struct TickDue;

impl Ask for TickDue {
    type Answer = ();
    const NAME: &'static str = "TickDue";
}

/// What was counted, and the boot times before and after.
struct Counted(Result<Tally, StoreError>, Duration, Duration);

impl Ask for Counted {
    type Answer = ();
    const NAME: &'static str = "Counted";
}

struct Ticked(Result<(Vec<String>, Tally), StoreError>);

impl Ask for Ticked {
    type Answer = ();
    const NAME: &'static str = "Ticked";
}

/// How often it looks.
const TICK: Duration = Duration::from_secs(1);

/// After how many ticks the log says again that the fence is off.
const SHOUT_EVERY: u64 = 30;

/// How many payouts one transaction marks; the rest waits for the next tick.
const ESCALATE_MAX: u32 = 500;

/// The actor.
pub struct SlaClock {
    store: Arc<dyn PaymentStore>,
    metrics: Metrics,
    /// Whether fence point (a) stands; while it does not, the log says so again and again (FR-29).
    fencing_enforced: bool,
    /// After how long an ambiguity is a human's.
    sla: Duration,
    /// The deadline of its own store calls.
    within: Duration,
    ages: WallAges,
    ticks: u64,
    escalated: u64,
    failed: u64,
}

impl std::fmt::Debug for SlaClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlaClock")
            .field("sla", &self.sla)
            .finish_non_exhaustive()
    }
}

impl SlaClock {
    pub(crate) fn new(
        store: Arc<dyn PaymentStore>,
        metrics: Metrics,
        fencing_enforced: bool,
        sla: Duration,
        within: Duration,
    ) -> Self {
        Self {
            store,
            metrics,
            fencing_enforced,
            sla,
            within,
            ages: WallAges::new(),
            ticks: 0,
            escalated: 0,
            failed: 0,
        }
    }
}

impl Behaviour for SlaClock {
    const KIND: &'static str = "sla_clock";

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        self.metrics.sla(self.sla);
        cx.notify(TickDue);
    }

    fn observe(&self) -> serde_json::Value {
        serde_json::json!({
            "sla_ms": u64::try_from(self.sla.as_millis()).unwrap_or(u64::MAX),
            "ticks": self.ticks, "escalated": self.escalated, "failed": self.failed,
        })
    }
}

impl Receive<TickDue> for SlaClock {
    fn receive(&mut self, _: TickDue, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let (store, within, clock) = (self.store.clone(), self.within, cx.clock().clone());
        cx.pipe(
            async move {
                let from = clock.boot();
                let tally = store.tally(within).await;
                (tally, from, clock.boot())
            },
            |(tally, from, to)| Counted(tally, from, to),
        );
    }
}

impl Receive<Counted> for SlaClock {
    fn receive(&mut self, Counted(tally, from, to): Counted, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let tally = match tally {
            Ok(tally) => tally,
            Err(error) => return cx.notify(Ticked(Err(error))),
        };
        let by_ms = self.ages.look(tally.now_ms, from, to);
        if by_ms != 0 {
            tracing::warn!(event = "wall_clock_set", by_ms);
        }
        // No write, so no commit, while there is nothing that could be due.
        if tally.oldest_ambiguous_ms.is_none() {
            return cx.notify(Ticked(Ok((Vec::new(), tally))));
        }
        let sla_ms = i64::try_from(self.sla.as_millis()).unwrap_or(i64::MAX);
        let since_max_ms = self.ages.instant_of_age(tally.now_ms, sla_ms);
        let (store, within) = (self.store.clone(), self.within);
        cx.pipe(
            async move {
                let escalated = store.escalate(since_max_ms, ESCALATE_MAX, within).await?;
                Ok((escalated, store.tally(within).await?))
            },
            Ticked,
        );
    }
}

impl Receive<Ticked> for SlaClock {
    fn receive(&mut self, Ticked(tick): Ticked, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        if !self.fencing_enforced && self.ticks.is_multiple_of(SHOUT_EVERY) {
            tracing::error!(
                event = "fencing_off",
                point = crate::POINT,
                "fence point (a) is switched off"
            );
        }
        self.ticks += 1;
        match tick {
            Ok((escalated, tally)) => {
                for payout_id in &escalated {
                    tracing::warn!(event = "payout_escalated", payout_id);
                }
                self.escalated += escalated.len() as u64;
                self.metrics.show(&tally, &self.ages);
            }
            Err(error) => {
                self.failed += 1;
                self.metrics.store_failed(SURVEY);
                tracing::warn!(event = "sla_tick_failed", %error);
            }
        }
        cx.notify_later(TickDue, TICK);
    }
}
