//! Random faults under load: many workers, payouts on a schedule, faults drawn from the catalogue, a quiet period, the
//! verdicts; then the same driver with the fences off, which must lose money or the run proves nothing.
//!
//! ```text
//! load    ─payout─payout─payout─…──────────────────────────┐
//! faults  ─healthy─fault─healthy─fault─…  (a shuffled bag) ─┤ quiet: all settled ─▶ verdicts
//! workers ─stalls at steps of their own, some heedless──────┘
//! ```
//!
//! Every other worker is heedless: they do not look at their lock before a side effect, and each worker's whole
//! process stalls past its lease at steps that the seed chooses. So it is the fences that are tried, not the workers'
//! good manners. Half of the others ask for a lock delay, and stall as soon as the heedless, so that LOCK-DELAY has
//! something to look at. The heedless ask for none: what they write late is to come after the next holder has begun.

use super::{CURRENCY, Cx, Setup, StackKind};
use crate::chaos::catalogue::{self, Entry};
use crate::chaos::driver::{Lived, live};
use crate::chaos::fault::{FaultRecord, Ground, StoreKind};
use crate::invariant::Invariant;
use crate::model::Evidence;
use crate::report::{Control, Measured, ScenarioReport, Timing};
use crate::stack::{Hurt, NodeState, Role, RunError, StackSpec, WorkerSpec, eventually};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use host_kit::Random;
use http_client::PayoutFilter;
use http_contract::payment::PayoutState;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the payouts may take to be settled once the faults have ended.
const QUIET_WITHIN: Duration = Duration::from_secs(300);
/// The longest a fault is held after its effect was seen.
const HOLD_AT_MOST: Duration = Duration::from_secs(4);
/// The longest pause between two faults.
const GAP_AT_MOST: Duration = Duration::from_secs(1);
/// How long a worker stands still at a step: well past its lease.
const STANDS_STILL: Duration = Duration::from_millis(4_500);
/// How often is looked for workers that stand still.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A worker stops at each of its steps within so many payouts; one that is heedless or asks for a lock delay sooner, so that
/// a short run tries the fences and the delays too.
const STALL_WITHIN: u64 = 8;
const SOON_STALL_WITHIN: u64 = 2;
/// The lock delay of the workers that ask for one.
const LOCK_DELAY: &str = "4s";
/// What every account begins with: more than all payouts together take.
const OPENING_MINOR: i64 = 1_000_000_000;
/// Before the number of each payout of the load.
const PAYOUT: &str = "random-";
/// The steps at which workers stop themselves, the whole process, heartbeats too.
const STALLS: [&str; 3] = [
    "executor.before_claim",
    "executor.before_submit",
    "executor.before_post",
];

/// What is asked of a random run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many workers.
    pub workers: usize,
    /// How many accounts the payouts are spread over; fewer make more contention.
    pub accounts: usize,
    /// How many payouts are asked for, at even distances.
    pub payouts: u32,
    /// How long faults are injected.
    pub lasting: Duration,
    /// Goes on past [`Self::lasting`] until every kind of the run was injected once.
    pub every_kind: bool,
    /// Only these kinds; all that are available where it is empty.
    pub kinds: Vec<String>,
    /// Both fences on.
    pub fenced: bool,
}

impl Plan {
    /// The negative control to this run: the same driver with the fences off, and no fault but paused workers.
    #[must_use]
    pub fn control(&self) -> Self {
        Self {
            workers: self.workers.min(6),
            accounts: self.accounts.min(6),
            payouts: self.payouts.clamp(24, 60),
            lasting: self.lasting.min(Duration::from_secs(30)),
            every_kind: false,
            kinds: vec!["process.worker_pause".to_owned()],
            fenced: false,
        }
    }

    /// The kinds of this run.
    ///
    /// # Errors
    /// When a kind is unknown or cannot be injected with this store.
    pub fn entries(&self, store: StoreKind, stack: StackKind) -> Result<Vec<Entry>, RunError> {
        if self.kinds.is_empty() {
            return Ok(catalogue::available(store, stack));
        }
        self.kinds
            .iter()
            .map(|name| {
                let entry = catalogue::named(name).ok_or_else(|| {
                    RunError::Other(format!("--fault {name}: no such kind; see dlock scenario faults"))
                })?;
                if catalogue::is_available(&entry.kind, store, stack) {
                    Ok(entry)
                } else {
                    let store = store.as_str();
                    Err(RunError::Other(format!(
                        "--fault {name}: not available on {store} with such a stack"
                    )))
                }
            })
            .collect()
    }
}

/// The stack of such a run.
#[must_use]
pub fn spec(plan: &Plan, seed: u64) -> StackSpec {
    StackSpec::quick()
        .wired(seed)
        .controlled()
        // A machine that is busy with a dozen workers answers late; that alone should cost nobody its lease.
        .with("lock.session.ttl", "2500ms")
        .with("lock.grant.ttl", "2500ms")
        .with("lock.heartbeat.interval", "500ms")
        // A dozen workers that each ask ten times a second for work would leave a small machine no time to do it.
        .with("executor.poll.interval", "400ms")
        .with("executor.reconcile.interval", "800ms")
        .with("rail.read-timeout", "1500ms")
        .with("executor.rail-timeout", "3s")
        .with("rail.visibility-horizon", "2s")
        // What the rail cannot tell (a proxy that died between its note and the rail's reading) ends with a human, and
        // within the quiet period.
        .with("executor.ambiguous-sla", "20s")
        .with("lock.store.timeout", "2s")
        .with("payment.store.timeout", "2s")
        .with("rail.store.timeout", "2s")
        .fencing(plan.fenced, plan.fenced)
}

/// What became of a run, and what it left.
#[derive(Debug)]
pub struct Ran {
    /// The report.
    pub report: ScenarioReport,
    /// Everything the verdicts read.
    pub evidence: Evidence,
}

/// Runs it on a stack of its own.
///
/// # Errors
/// When it cannot be run: a kind is unknown, a server does not start, an effect never shows.
pub async fn run(setup: &Setup, plan: &Plan) -> Result<Ran, RunError> {
    let store = setup.backends.kind();
    let entries = plan.entries(store, setup.stack)?;
    let name = if plan.fenced { "random" } else { "random-control" };
    setup
        .run(name, spec(plan, setup.seed), async |cx| {
            run_on(cx, setup, plan, &entries, store).await
        })
        .await
}

async fn run_on(cx: Cx<'_>, setup: &Setup, plan: &Plan, entries: &[Entry], store: StoreKind) -> Result<Ran, RunError> {
    for n in 0..plan.accounts {
        cx.account(&account(n), OPENING_MINOR).await?;
    }
    for n in 0..plan.workers {
        cx.stack.worker(worker(n, plan, &cx.random)).await?;
    }
    cx.step(format!(
        "{} workers, {} accounts, {} payouts over {:?}, {} kinds of fault on {}",
        plan.workers,
        plan.accounts,
        plan.payouts,
        plan.lasting,
        entries.len(),
        store.as_str()
    ));
    let ground = Ground {
        stack: cx.stack,
        apis: &cx.apis,
        backends: &setup.backends,
        store,
        // Draws of its own: what the load draws meanwhile must not change which faults come.
        random: &Random::seeded(cx.seed ^ 0x0066_6175_6c74),
    };
    let work = async {
        let (load, faults) = futures_util::future::join(load(&cx, plan), inject(&cx, &ground, plan, entries)).await;
        let done = (load?, faults?);
        settled(&cx).await?;
        Ok::<_, RunError>(done)
    };
    let (intended, (faults, ill)) = tokio::select! {
        biased;
        done = work => done?,
        never = wake(&cx) => match never? {},
    };
    let title = if plan.fenced {
        "random faults under load, both fences on"
    } else {
        "the same driver with both fences off"
    };
    let (mut report, evidence) = cx.finish("random", title).await?;
    judge(&mut report, &evidence, plan, faults, ill);
    report.timings = timings(&evidence, &intended);
    Ok(Ran { report, evidence })
}

fn account(n: usize) -> String {
    format!("account-{n:02}")
}

/// Worker number `n`, with the stalls that the seed gives it.
fn worker(n: usize, plan: &Plan, random: &Random) -> WorkerSpec {
    let heedless = !plan.fenced || n.is_multiple_of(2);
    let delayed = asks_for_a_delay(n, plan);
    let within = if heedless || delayed {
        SOON_STALL_WITHIN
    } else {
        STALL_WITHIN
    };
    let stalls = STALLS.map(|point| format!("{point}=stop@{}", 1 + random.below(within)));
    let worker = WorkerSpec::new(&format!("W{}", n + 1), Role::Both)
        .with("debug.fault-points", &stalls.join(","))
        .with("executor.ignore-lock-lost", if heedless { "true" } else { "false" });
    if delayed {
        worker.with("executor.lock-delay", LOCK_DELAY)
    } else {
        worker
    }
}

/// Whether worker number `n` asks for a lock delay: half of those that are not heedless.
const fn asks_for_a_delay(n: usize, plan: &Plan) -> bool {
    plan.fenced && n % 4 == 1
}

/// Lets workers run on that have stood still for long enough: those that stopped themselves at a step, and those that a
/// fault has stopped, which it will find running.
async fn wake(cx: &Cx<'_>) -> Result<std::convert::Infallible, RunError> {
    let clock = &cx.host().clock;
    let mut still: BTreeMap<String, Duration> = BTreeMap::new();
    loop {
        for worker in cx.stack.workers() {
            if cx.stack.state(&worker)? != NodeState::Stopped {
                still.remove(&worker);
                continue;
            }
            let since = *still.entry(worker.clone()).or_insert_with(|| clock.mono());
            if clock.mono().saturating_sub(since) >= STANDS_STILL {
                cx.stack.hurt_unless_ended(&worker, Hurt::Resume)?;
                still.remove(&worker);
            }
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

/// Asks for the payouts at their times, whatever becomes of those before. Answers those times, in milliseconds since the
/// run's start.
async fn load(cx: &Cx<'_>, plan: &Plan) -> Result<Vec<(String, u64)>, RunError> {
    let clock = &cx.host().clock;
    let began = clock.mono();
    let every = plan.lasting / plan.payouts.max(1);
    let mut intended = Vec::new();
    let mut asked = FuturesUnordered::new();
    for n in 0..plan.payouts {
        let due = began + every * n;
        let account = account(usize::try_from(cx.random.below(plan.accounts as u64)).unwrap_or(0));
        let amount = 100 + i64::try_from(cx.random.below(9_900)).unwrap_or(0);
        let payout = format!("{PAYOUT}{n:05}");
        let due_ms = u64::try_from(due.saturating_sub(cx.began).as_millis()).unwrap_or(u64::MAX);
        intended.push((payout.clone(), due_ms));
        asked.push(async move {
            clock.sleep(due.saturating_sub(clock.mono())).await;
            cx.payout(&payout, &account, amount).await
        });
    }
    while let Some(answered) = asked.next().await {
        answered?;
    }
    Ok(intended)
}

/// Injects faults from a shuffled bag until the time is up (and, where it is wanted, every kind was there). Answers what
/// became of each, and what did not get well again.
async fn inject(
    cx: &Cx<'_>,
    ground: &Ground<'_>,
    plan: &Plan,
    entries: &[Entry],
) -> Result<(Vec<FaultRecord>, Option<String>), RunError> {
    let clock = &cx.host().clock;
    let end = clock.mono() + plan.lasting;
    let (mut records, mut bag) = (Vec::new(), Vec::new());
    loop {
        let all_seen = records.len() >= entries.len();
        if entries.is_empty() || (clock.mono() >= end && (all_seen || !plan.every_kind)) {
            return Ok((records, None));
        }
        if bag.is_empty() {
            bag = shuffled(entries, ground.random);
        }
        let Some(entry) = bag.pop() else { continue };
        let hold = ground.random.up_to(HOLD_AT_MOST);
        let Lived { record, ill } = live(ground, &entry, hold, cx.began).await?;
        cx.step(format!(
            "{} on {}: {}; healthy {} ms after its undoing",
            record.kind, record.target, record.observed, record.recovered_ms
        ));
        records.push(record);
        if ill.is_some() {
            return Ok((records, ill));
        }
        clock.sleep(ground.random.up_to(GAP_AT_MOST)).await;
    }
}

/// These in an order that the seed gives.
pub(super) fn shuffled<T: Clone>(entries: &[T], random: &Random) -> Vec<T> {
    let mut rest = entries.to_vec();
    let mut bag = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let at = usize::try_from(random.below(rest.len() as u64)).unwrap_or(0);
        bag.push(rest.swap_remove(at));
    }
    bag
}

/// Awaits that every payout has come to its end. One that does not is INV-08's to judge.
async fn settled(cx: &Cx<'_>) -> Result<(), RunError> {
    let trace = cx.apis.trace();
    cx.apis
        .stub
        .clear_faults(&trace)
        .await
        .map_err(RunError::call("ending the rail's faults"))?;
    let open = Cell::new(0);
    let quiet = eventually(cx.host(), "all payouts settled", QUIET_WITHIN, async || {
        open.set(0);
        for state in [PayoutState::Pending, PayoutState::Claimed, PayoutState::RailAmbiguous] {
            let filter = PayoutFilter {
                state: Some(state),
                ..PayoutFilter::default()
            };
            let page = cx.apis.payments.payouts(&filter, 1000, None, &trace).await;
            // A component that comes back from a fault may refuse once more.
            let Ok(page) = page else { return Ok(None) };
            let waits = page.items.iter().filter(|payout| payout.escalated_at.is_none()).count();
            open.set(open.get() + waits);
        }
        Ok((open.get() == 0).then_some(()))
    });
    match quiet.await {
        Ok(()) => cx.step("every payout has come to its end"),
        Err(RunError::NeverCame { .. }) => cx.step(format!("{} payouts are not settled", open.get())),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Adds what this scenario expects to what every scenario is judged by.
fn judge(report: &mut ScenarioReport, evidence: &Evidence, plan: &Plan, faults: Vec<FaultRecord>, ill: Option<String>) {
    let settled = evidence
        .payouts
        .iter()
        // Some faults bring a payout of their own; those are judged with all others, by INV-08.
        .filter(|payout| payout.payout_id.starts_with(PAYOUT))
        .filter(|payout| matches!(payout.state.as_str(), "POSTED" | "FAILED") || payout.escalated_at.is_some())
        .count();
    report.compare(
        "payouts settled, or with a human where the rail cannot tell",
        plan.payouts as usize,
        settled,
    );
    report.compare("after every fault the stack was healthy again", None, ill);
    if plan.fenced {
        let refused = (report.refusals.payment > 0, report.refusals.rail > 0);
        report.compare(
            "stale writes were refused at the payment resource, at the rail proxy",
            (true, true),
            refused,
        );
    }
    if (0..plan.workers).any(|n| asks_for_a_delay(n, plan)) {
        let judged = report
            .verdicts
            .iter()
            .any(|verdict| verdict.invariant == Invariant::LockDelay);
        report.compare("lock delays were asked for, and are judged", true, judged);
    }
    if let Some(longest) = faults.iter().max_by_key(|fault| fault.recovered_ms) {
        report.measured.push(Measured {
            what: format!("longest recovery, after {}", longest.kind),
            ms: longest.recovered_ms,
            wanted_ms: None,
        });
    }
    report.faults = faults;
}

/// From when each payout was to be asked for to when it had come to its end.
fn timings(evidence: &Evidence, intended: &[(String, u64)]) -> Vec<Timing> {
    let mut done: BTreeMap<&str, u64> = BTreeMap::new();
    let ended = evidence
        .transitions
        .iter()
        .filter(|row| matches!(row.to_state.as_str(), "POSTED" | "FAILED"));
    for row in ended {
        let at = evidence.collected.and_then(|collected| collected.boot_us_of(&row.at));
        if let Some(at) = at {
            done.insert(&row.payout_id, at.saturating_sub(evidence.began_us) / 1_000);
        }
    }
    intended
        .iter()
        .map(|(payout, intended_ms)| Timing {
            what: "payout".to_owned(),
            intended_ms: *intended_ms,
            done_ms: done.get(payout.as_str()).copied(),
        })
        .collect()
}

/// What the negative control lost.
#[must_use]
pub fn control(evidence: &Evidence) -> Control {
    let (again, lost_minor) = evidence.paid_again();
    let executions: usize = evidence.rail_book.iter().map(|entry| entry.executions.len()).sum();
    Control {
        lost_minor,
        currency: CURRENCY.to_owned(),
        executions: executions as u64,
        payouts_paid_twice: again as u64,
        what: format!(
            "the same driver with both fences off: {} payouts, workers paused past their leases",
            evidence.payouts.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(kinds: &[&str]) -> Plan {
        Plan {
            workers: 12,
            accounts: 8,
            payouts: 100,
            lasting: Duration::from_secs(60),
            every_kind: false,
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            fenced: true,
        }
    }

    #[test]
    fn the_bag_holds_every_kind_once_and_the_seed_gives_its_order() {
        let entries = catalogue::available(StoreKind::Sqlite, StackKind::Processes);
        let names = |seed| -> Vec<&str> {
            let bag = shuffled(&entries, &Random::seeded(seed));
            bag.iter().map(|entry| entry.kind.name).collect()
        };
        let (mut first, again) = (names(1), names(1));
        assert_eq!(first, again);
        assert_ne!(first, names(2));
        let mut all: Vec<&str> = entries.iter().map(|entry| entry.kind.name).collect();
        first.sort_unstable();
        all.sort_unstable();
        assert_eq!(first, all);
    }

    #[test]
    fn a_kind_that_is_not_there_is_named() {
        let error = plan(&["process.worker_pause", "x.y"])
            .entries(StoreKind::Pg, StackKind::Processes)
            .unwrap_err();
        assert!(error.to_string().contains("x.y"), "{error}");
    }

    #[test]
    fn the_control_is_the_same_driver_without_fences_and_its_workers_are_all_heedless() {
        let control = plan(&[]).control();
        assert!(!control.fenced && !spec(&control, 7).payment_fencing && !spec(&control, 7).rail_fencing);
        let random = Random::seeded(7);
        for n in 0..control.workers {
            let settings = worker(n, &control, &random).settings;
            assert_eq!(settings["executor.ignore-lock-lost"], "true");
            assert!(!settings.contains_key("executor.lock-delay"));
        }
        let heedful = worker(1, &plan(&[]), &random);
        assert_eq!(heedful.settings["executor.ignore-lock-lost"], "false");
        assert!(heedful.settings["debug.fault-points"].contains("executor.before_submit=stop@"));
    }

    #[test]
    fn some_who_heed_their_locks_ask_for_a_delay_and_no_heedless_one_does() {
        let random = Random::seeded(7);
        let asked: Vec<bool> = (0..8)
            .map(|n| worker(n, &plan(&[]), &random).settings)
            .map(|settings| {
                let asks = settings.contains_key("executor.lock-delay");
                assert!(!asks || settings["executor.ignore-lock-lost"] == "false");
                asks
            })
            .collect();
        assert_eq!(asked.iter().filter(|asks| **asks).count(), 2);
    }
}
