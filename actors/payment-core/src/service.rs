//! What a gateway holds of this row.

use crate::metrics::Metrics;
use crate::payout::{Apply, StepError};
use crate::payouts::Payouts;
use crate::sla_clock::SlaClock;
use actor_kit::{Handle, Kit, TraceContext};
use payment_store::{Command, FenceOutcome, PaymentStore, StepOutcome};
use prometheus::Registry;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How much longer an asker waits than the store is given: what the store says about a deadline (certainly not done, or
/// not known) is worth more than the asker's own.
pub(crate) const ANSWER_GRACE: Duration = Duration::from_millis(200);

/// The payment row of one process: its actors, and the store for what concerns no single payout's order. Cheap to clone,
/// usable from any thread.
#[derive(Clone)]
pub struct Payments {
    payouts: Handle<Payouts>,
    store: Arc<dyn PaymentStore>,
    metrics: Metrics,
}

impl fmt::Debug for Payments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payments")
            .field("payouts", &self.payouts)
            .finish_non_exhaustive()
    }
}

impl Payments {
    /// Starts the actors on the current `LocalSet`. `within` bounds the store calls that nobody asked for.
    #[must_use]
    pub fn start(
        kit: &Kit,
        registry: &Registry,
        store: Arc<dyn PaymentStore>,
        fencing_enforced: bool,
        sla: Duration,
        within: Duration,
    ) -> Self {
        let metrics = Metrics::register(registry, fencing_enforced);
        let payouts = {
            let (store, metrics) = (store.clone(), metrics.clone());
            kit.spawn("payouts", move || Payouts::new(store.clone(), metrics.clone()))
        };
        {
            let (store, metrics) = (store.clone(), metrics.clone());
            kit.spawn("sla-clock", move || {
                SlaClock::new(store.clone(), metrics.clone(), fencing_enforced, sla, within)
            });
        }
        Self {
            payouts,
            store,
            metrics,
        }
    }

    /// P4–P9: one verb on one payout, after the verbs that this process was asked for before.
    ///
    /// # Errors
    /// [`StepError`], which says whether it may have been done.
    pub async fn apply(
        &self,
        command: Command,
        within: Duration,
        trace: &TraceContext,
    ) -> Result<StepOutcome, StepError> {
        self.payouts.ask(Apply(command), within + ANSWER_GRACE, trace).await?
    }

    /// The store, for what concerns no single payout's order: accounts, lists, exports.
    #[must_use]
    pub fn store(&self) -> &dyn PaymentStore {
        &*self.store
    }

    /// Whether the supervisor takes messages.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.payouts.is_alive()
    }

    /// Counts an account fence that was refused.
    pub fn note_fence(&self, outcome: &FenceOutcome) {
        if matches!(outcome, FenceOutcome::FencedOut { .. }) {
            self.metrics.fenced_out();
        }
    }
}
