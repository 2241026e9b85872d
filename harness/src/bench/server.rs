//! The lock server that is measured: a child of this process, or one that runs already.

use super::{BatchSizes, BenchPlan};
use crate::evidence::Apis;
use crate::servers::{Backends, Stores};
use crate::stack::processes::{Lab, ProcessStack, resident_kib};
use crate::stack::{LOCK_SERVER, Links, RunError, Stack, StackSpec};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) struct Server {
    child: Option<ProcessStack>,
    backends: Option<Backends>,
    apis: Apis,
    store: String,
}

impl Server {
    pub(super) async fn start(lab: &Lab, plan: &BenchPlan) -> Result<Self, RunError> {
        if let Some(url) = &plan.lock_server {
            let links = Links {
                lock_server: url.clone(),
                ..Links::default()
            };
            return Ok(Self {
                child: None,
                backends: None,
                apis: Apis::new(&links, lab.host()),
                store: format!("(running at {url})"),
            });
        }
        let backends = Backends::of(lab, plan.store.as_deref(), Some("sqlite")).await?;
        let stores = backends.fresh().await?;
        let spec = StackSpec {
            stores: Stores {
                lock: stores.lock,
                ..Stores::default()
            },
            payment_fencing: true,
            rail_fencing: true,
            wired: None,
            settings: plan.settings.clone(),
        };
        let child = lab.lock_server(&plan.dir, spec).await?;
        Ok(Self {
            apis: Apis::new(&child.links(), lab.host()),
            store: backends.describe_lock().to_owned(),
            backends: Some(backends),
            child: Some(child),
        })
    }

    pub(super) fn store(&self) -> String {
        self.store.clone()
    }

    pub(super) const fn apis(&self) -> &Apis {
        &self.apis
    }

    /// The server's resident memory, where it is a child.
    pub(super) fn rss_kib(&self) -> Option<u64> {
        resident_kib(self.child.as_ref()?.pid(LOCK_SERVER).ok()?)
    }

    pub(super) async fn stop(self) -> Result<(), RunError> {
        let stopped = match self.child {
            Some(child) => child.stop().await,
            None => Ok(()),
        };
        if let Some(backends) = self.backends {
            backends.clean_up().await;
        }
        stopped
    }

    /// Sum and count of `lock_store_batch_size` per operation, as they stand now.
    pub(super) async fn batch_totals(&self) -> BTreeMap<String, (f64, f64)> {
        let caller = self.apis.locks.caller();
        match caller.text("/metrics", &self.apis.trace()).await {
            Ok(text) => totals(&text),
            Err(error) => {
                tracing::warn!(event = "no_metrics", %error);
                BTreeMap::new()
            }
        }
    }
}

/// What was committed between two readings.
pub(super) fn between(before: &BTreeMap<String, (f64, f64)>, after: &BTreeMap<String, (f64, f64)>) -> Vec<BatchSizes> {
    after
        .iter()
        .filter_map(|(op, (sum, count))| {
            let (sum_before, count_before) = before.get(op).copied().unwrap_or_default();
            let batches = count - count_before;
            (batches > 0.0).then(|| BatchSizes {
                op: op.clone(),
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a positive whole number of the exposition format"
                )]
                batches: batches as u64,
                mean: (sum - sum_before) / batches,
            })
        })
        .collect()
}

fn totals(text: &str) -> BTreeMap<String, (f64, f64)> {
    let mut totals: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("lock_store_batch_size_") else {
            continue;
        };
        let Some((head, value)) = rest.rsplit_once(' ') else {
            continue;
        };
        let op = head
            .split_once("op=\"")
            .and_then(|(_, after)| after.split_once('"'))
            .map_or("all", |(op, _)| op);
        let Ok(value) = value.parse::<f64>() else { continue };
        let entry = totals.entry(op.to_owned()).or_default();
        if head.starts_with("sum") {
            entry.0 = value;
        } else if head.starts_with("count") {
            entry.1 = value;
        }
    }
    totals
}

/// How long the driver waits for one answer before it counts an error.
pub(super) const CALL_WITHIN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_are_read_from_the_exposition_format() {
        let before =
            totals("lock_store_batch_size_sum{op=\"acquire\"} 10\nlock_store_batch_size_count{op=\"acquire\"} 10\n");
        let after = totals(
            "# HELP x\nlock_store_batch_size_bucket{op=\"acquire\",le=\"1\"} 12\n\
             lock_store_batch_size_sum{op=\"acquire\"} 90\nlock_store_batch_size_count{op=\"acquire\"} 20\n",
        );
        let sizes = between(&before, &after);
        assert_eq!(sizes.len(), 1);
        assert_eq!((sizes[0].batches, sizes[0].mean), (10, 8.0));
    }
}
