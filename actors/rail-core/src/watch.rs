//! The watch: looks over the store from time to time, for the metrics and for what two files may have missed together.
//!
//! Owns: when it looks. Does not own: what it finds. On failure: it looks again at its next time.
//! Messages: `Survey` → `Surveyed`.

use crate::metrics::RailMetrics;
use actor_kit::{Ask, Behaviour, Cx, Receive, Reply};
use host_kit::WallAges;
use lock_api::StoreError;
use rail_store::{Gauges, RailStore};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// How often it looks.
const SURVEY_EVERY: Duration = Duration::from_secs(5);

/// Looks over the store.
pub struct RailWatch {
    store: Arc<dyn RailStore>,
    metrics: RailMetrics,
    within: Duration,
    ages: WallAges,
    seen: Option<Gauges>,
}

impl RailWatch {
    /// Watches this store, each look within `within`.
    #[must_use]
    pub fn new(store: Arc<dyn RailStore>, metrics: RailMetrics, within: Duration) -> Self {
        Self {
            store,
            metrics,
            within,
            ages: WallAges::new(),
            seen: None,
        }
    }
}

pub(crate) struct Survey;
pub(crate) struct Surveyed(Result<Gauges, StoreError>);

impl Ask for Survey {
    type Answer = ();
    const NAME: &'static str = "Survey";
}

impl Ask for Surveyed {
    type Answer = ();
    const NAME: &'static str = "Surveyed";
}

impl Behaviour for RailWatch {
    const KIND: &'static str = "rail_watch";
    const MAILBOX_CAPACITY: usize = 16;

    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        cx.notify(Survey);
    }

    fn observe(&self) -> serde_json::Value {
        json!({
            "exceptions_open": self.seen.map(|seen| seen.exceptions_open),
            "ambiguous_since_ms": self.seen.and_then(|seen| seen.ambiguous_since).map(|at| at.0),
        })
    }
}

impl Receive<Survey> for RailWatch {
    fn receive(&mut self, _: Survey, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        let (store, within) = (self.store.clone(), self.within);
        cx.pipe(async move { store.survey(within).await }, Surveyed);
    }
}

impl Receive<Surveyed> for RailWatch {
    fn receive(&mut self, Surveyed(seen): Surveyed, _: Reply<()>, cx: &mut Cx<'_, Self>) {
        match seen {
            Ok(gauges) => {
                // A clock that is set makes nothing older (case P31).
                let (now_ms, boot) = (cx.clock().wall_ms(), cx.clock().boot());
                self.ages.look(now_ms, boot, boot);
                self.metrics.surveyed(&gauges, now_ms, &self.ages);
                self.seen = Some(gauges);
            }
            Err(error) => {
                self.metrics.store_failed("survey");
                tracing::warn!(event = "survey_failed", %error);
            }
        }
        let _ = cx.notify_later(Survey, SURVEY_EVERY);
    }
}
