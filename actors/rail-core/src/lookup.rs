//! Reconciling lookups (R3): what the rail knows about a payout, asked read-only.
//!
//! Owns: whether the clock that a lookup is dated with can be compared with what is recorded.
//! Does not own: what may be concluded (the store, under the row's lock).
//! On failure: a lookup without a readable answer is inconclusive, for ever; nothing is concluded from an error.

use crate::metrics::RailMetrics;
use crate::rail::{Rail, read_book};
use host_kit::{Clock, Host, fault_point};
use lock_api::{StoreError, UnixMillis};
use rail_store::{LookupOutcome, LookupRecord, RailStore};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How far the wall clock may move against the boot clock before it counts as set.
const DRIFT_MAX_MS: i64 = 1_000;

/// Looks payouts up at the rail. Cheap to clone.
#[derive(Clone)]
pub struct Reconciler {
    store: Arc<dyn RailStore>,
    rail: Arc<dyn Rail>,
    metrics: RailMetrics,
    host: Host,
    wall: Arc<Mutex<WallGuard>>,
    visibility_horizon: Duration,
    /// One call to the store.
    store_within: Duration,
    /// One lookup at the rail.
    rail_within: Duration,
}

impl Reconciler {
    /// Looks up at this rail with `rail.visibility-horizon`.
    #[must_use]
    pub fn new(
        store: Arc<dyn RailStore>,
        rail: Arc<dyn Rail>,
        metrics: RailMetrics,
        host: &Host,
        visibility_horizon: Duration,
        store_within: Duration,
        rail_within: Duration,
    ) -> Self {
        Self {
            store,
            rail,
            metrics,
            host: host.clone(),
            wall: Arc::new(Mutex::new(WallGuard::new(&host.clock))),
            visibility_horizon,
            store_within,
            rail_within,
        }
    }

    /// Asks the rail and records what it said. None where the payout has no submission, unless the database was restored
    /// and may have lost it: then the rail is asked by the payout's id, which is its reference (C1.2, case D13).
    ///
    /// # Errors
    /// [`StoreError`]; a rail that does not answer is no error.
    pub async fn look_up(&self, payout_id: &str) -> Result<Option<LookupOutcome>, StoreError> {
        self.ask_and_record(payout_id)
            .await
            .inspect_err(|_| self.metrics.store_failed("lookup"))
    }

    async fn ask_and_record(&self, payout_id: &str) -> Result<Option<LookupOutcome>, StoreError> {
        let submission = self.store.submission(payout_id.to_owned(), self.store_within).await?;
        let reference = match submission {
            Some(submission) => submission.client_reference,
            None if self.store.rail_unasked(payout_id.to_owned(), self.store_within).await? => payout_id.to_owned(),
            None => return Ok(None),
        };
        // Dated by its beginning: what the rail says is at least as new.
        let (asked_at, clock_trusted) = self
            .wall
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .now(&self.host.clock, self.visibility_horizon);
        fault_point!(self.host.faults, "rail_proxy.before_lookup");
        let reply = self.rail.look_up(reference.clone(), self.rail_within).await;
        fault_point!(self.host.faults, "rail_proxy.after_lookup");
        let lookup = LookupRecord {
            lookup_id: self.host.ids.prefixed("lookup"),
            submission_id: self.host.ids.prefixed("submission"),
            payout_id: payout_id.to_owned(),
            asked_at,
            clock_trusted,
            visibility_horizon_ms: u64::try_from(self.visibility_horizon.as_millis()).unwrap_or(u64::MAX),
            sighting: read_book(&reference, &reply),
        };
        fault_point!(self.host.faults, "rail_proxy.before_lookup_record");
        let outcome = self.store.record_lookup(lookup, self.store_within).await?;
        fault_point!(self.host.faults, "rail_proxy.after_lookup_record");
        if let Some(found) = &outcome {
            tracing::info!(
                event = "rail_looked_up",
                payout_id,
                verdict = found.verdict.as_str(),
                executions = found.executions
            );
        }
        if let Some(found) = outcome.as_ref().filter(|outcome| outcome.double_found) {
            tracing::error!(
                event = "double_payment_suspected",
                payout_id,
                executions = found.executions
            );
            self.metrics.duplicate();
        }
        Ok(outcome)
    }
}

/// Watches the wall clock against the boot clock. Recorded instants are wall time, so after somebody has set the clock
/// they say nothing for one whole horizon: a jump must never make silence conclusive.
#[derive(Debug)]
struct WallGuard {
    /// Wall time minus boot time, when last looked at.
    offset_ms: i64,
    /// The boot time from which instants can be compared again.
    trusted_from: Duration,
}

fn offset_ms(clock: &Clock) -> i64 {
    let boot = i64::try_from(clock.boot().as_millis()).unwrap_or(i64::MAX);
    clock.wall_ms().saturating_sub(boot)
}

impl WallGuard {
    fn new(clock: &Clock) -> Self {
        Self {
            offset_ms: offset_ms(clock),
            trusted_from: Duration::ZERO,
        }
    }

    /// The wall time, and whether it may be compared with what is recorded.
    fn now(&mut self, clock: &Clock, horizon: Duration) -> (UnixMillis, bool) {
        let offset = offset_ms(clock);
        if (offset - self.offset_ms).abs() > DRIFT_MAX_MS {
            tracing::warn!(event = "wall_clock_set", by_ms = offset - self.offset_ms);
            self.trusted_from = clock.boot() + horizon;
            self.offset_ms = offset;
        }
        (UnixMillis(clock.wall_ms()), clock.boot() >= self.trusted_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host_kit::ManualClock;

    #[test]
    fn a_clock_that_was_set_is_not_believed_for_one_horizon() {
        let hand = ManualClock::new();
        let clock = hand.clock();
        let horizon = Duration::from_secs(60);
        let mut guard = WallGuard::new(&clock);
        hand.advance(Duration::from_secs(10));
        assert!(guard.now(&clock, horizon).1);
        hand.jump_wall_ms(120_000);
        assert!(!guard.now(&clock, horizon).1, "a jump past the horizon was believed");
        hand.advance(Duration::from_secs(59));
        assert!(!guard.now(&clock, horizon).1);
        hand.advance(Duration::from_secs(1));
        assert!(guard.now(&clock, horizon).1);
        hand.suspend(Duration::from_secs(3600));
        assert!(guard.now(&clock, horizon).1, "a suspended host has set no clock");
    }
}
