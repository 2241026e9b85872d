//! Starts and drains the actors of an executor process.

use crate::flow::{Desk, work};
use crate::history::History;
use crate::metrics::ExecutorMetrics;
use crate::poller::{Drain, Poller};
use crate::ports::{Payments, Rail};
use crate::reconciler::{DrainRounds, Reconciler};
use crate::worker::Worker;
use actor_kit::{AskError, Handle, Kit, TraceContext};
use lock_client::LockClient;
use std::rc::Rc;
use std::time::Duration;

/// What this process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roles {
    /// Pays.
    Pay,
    /// Reconciles.
    Reconcile,
    /// Both.
    Both,
}

impl Roles {
    /// The role by its name in `executor.role`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "pay" => Some(Self::Pay),
            "reconcile" => Some(Self::Reconcile),
            "both" => Some(Self::Both),
            _ => None,
        }
    }

    const fn pays(self) -> bool {
        matches!(self, Self::Pay | Self::Both)
    }

    const fn reconciles(self) -> bool {
        matches!(self, Self::Reconcile | Self::Both)
    }
}

/// The settings of an executor, by their names in C5.2.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// `executor.role`.
    pub roles: Roles,
    /// `executor.concurrency`: worker slots.
    pub concurrency: usize,
    /// `executor.poll.interval`.
    pub poll_interval: Duration,
    /// `executor.poll.batch`.
    pub poll_batch: u32,
    /// `executor.reconcile.interval`.
    pub reconcile_interval: Duration,
    /// `executor.rail-timeout`.
    pub rail_timeout: Duration,
    /// `rail.read-timeout`: how long an intent without an outcome is read back before it counts as ambiguous (C1.8).
    pub rail_read_timeout: Duration,
    /// `executor.ignore-lock-lost`: skips the look at the lock before a side effect. The negative control's worker; the
    /// token is presented all the same.
    #[cfg(feature = "lab")]
    pub ignore_lock_lost: bool,
}

/// The actors of one executor process.
#[derive(Clone, Debug)]
pub struct Executor {
    poller: Option<Handle<Poller>>,
    reconciler: Option<Handle<Reconciler>>,
    kit: Kit,
}

impl Executor {
    /// Starts them on the current `LocalSet`. They begin to work at once.
    #[must_use]
    pub fn start(
        config: &ExecutorConfig,
        kit: &Kit,
        payments: Rc<dyn Payments>,
        rail: Rc<dyn Rail>,
        locks: LockClient,
        history: History,
        metrics: ExecutorMetrics,
    ) -> Self {
        let desk = Rc::new(Desk {
            payments: payments.clone(),
            rail,
            locks,
            history,
            metrics,
            host: kit.host().clone(),
            work: work(kit),
            kit: kit.clone(),
            rail_timeout: config.rail_timeout,
            rail_read_timeout: config.rail_read_timeout,
            #[cfg(feature = "lab")]
            ignore_lock_lost: config.ignore_lock_lost,
        });
        let poller = config.roles.pays().then(|| {
            let (interval, batch) = (config.poll_interval, config.poll_batch);
            let poller = kit.spawn("poller", move || Poller::new(payments.clone(), interval, batch));
            for slot in 1..=config.concurrency {
                let (desk, poller) = (desk.clone(), poller.clone());
                kit.spawn(&format!("worker-{slot}"), move || {
                    Worker::new(slot, desk.clone(), poller.clone())
                });
            }
            poller
        });
        let reconciler = config.roles.reconciles().then(|| {
            let interval = config.reconcile_interval;
            kit.spawn("reconciler", move || Reconciler::new(desk.clone(), interval))
        });
        Self {
            poller,
            reconciler,
            kit: kit.clone(),
        }
    }

    /// Takes no more work, and returns when what is in hand is put down and its locks are released, or when `within` has
    /// passed: then the rest is left as it is recorded, and the next holder decides. True when all was put down.
    pub async fn drain(&self, within: Duration) -> bool {
        let trace = TraceContext::root(&self.kit.host().random);
        let paying = async {
            match &self.poller {
                Some(poller) => poller.ask(Drain, within, &trace).await,
                None => Ok(()),
            }
        };
        let reconciling = async {
            match &self.reconciler {
                Some(reconciler) => reconciler.ask(DrainRounds, within, &trace).await,
                None => Ok(()),
            }
        };
        let (paying, reconciling) = futures_util::future::join(paying, reconciling).await;
        let ended = |answer: Result<(), AskError>| matches!(answer, Ok(()) | Err(AskError::Stopped));
        ended(paying) && ended(reconciling)
    }
}
