//! The history of revisions and the room it takes: compacted, written anew, full.

use super::super::fault::{Fault, Ground, SHOWS_WITHIN};
use super::super::lineage::refused;
use crate::servers::etcd::{ETCDCTL, EtcdCluster};
use crate::stack::{RunError, Step, eventually};
use std::cell::{Cell, RefCell};

/// The revision that the cluster is at.
async fn revision(ground: &Ground<'_>, cluster: &EtcdCluster) -> Result<u64, RunError> {
    eventually(
        ground.stack.host(),
        "the cluster's revision",
        SHOWS_WITHIN,
        async || {
            let status = cluster.status(0).await;
            Ok(status.and_then(|status| status["header"]["revision"].as_u64()))
        },
    )
    .await
}

async fn db_size(ground: &Ground<'_>, cluster: &EtcdCluster, member: usize) -> Result<u64, RunError> {
    eventually(ground.stack.host(), "a member's size", SHOWS_WITHIN, async || {
        let status = cluster.status(member).await;
        Ok(status.and_then(|status| status["dbSize"].as_u64()))
    })
    .await
}

/// The word of etcdctl that says what went wrong.
fn error_in(printed: &str) -> String {
    let line = printed.lines().rev().find(|line| line.contains("rror"));
    let line = line.unwrap_or(printed).trim();
    // A line of its log is JSON with the error inside.
    let said = serde_json::from_str::<serde_json::Value>(line).ok();
    said.and_then(|said| Some(said.get("error")?.as_str()?.to_owned()))
        .unwrap_or_else(|| line.to_owned())
}

/// All revisions but the last are gone.
pub(super) struct Compaction {
    cluster: EtcdCluster,
    at: Cell<u64>,
}

impl Compaction {
    pub(super) const fn of(cluster: EtcdCluster) -> Self {
        Self {
            cluster,
            at: Cell::new(0),
        }
    }
}

async fn compact(ground: &Ground<'_>, cluster: &EtcdCluster) -> Result<u64, RunError> {
    let at = revision(ground, cluster).await?;
    let revision = at.to_string();
    match cluster.etcdctl(0, &["compaction", &revision, "--physical"]).await {
        Ok(_) => Ok(at),
        // Somebody else did, up to the same revision.
        Err(error) if error.to_string().contains("has been compacted") => Ok(at),
        Err(error) => Err(error),
    }
}

impl Fault for Compaction {
    fn target(&self) -> String {
        "etcd".to_owned()
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            self.at.set(compact(ground, &self.cluster).await?);
            Ok(())
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let before = self.at.get().saturating_sub(1).max(1);
            let ask = [ETCDCTL, "get", "dlock-chaos", &format!("--rev={before}")];
            let what = "an old revision refused";
            let said = eventually(ground.stack.host(), what, SHOWS_WITHIN, async || {
                let (code, printed) = self.cluster.members[0].exec("", &ask).await?;
                Ok((code != 0 && printed.contains("compacted")).then_some(printed))
            })
            .await?;
            Ok(format!(
                "compacted to revision {}; of revision {before} it says: {}",
                self.at.get(),
                error_in(&said)
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { self.cluster.healthy(ground.stack.host()).await })
    }
}

async fn defragment(ground: &Ground<'_>, cluster: &EtcdCluster) -> Result<Vec<String>, RunError> {
    let mut said = Vec::new();
    for member in 0..cluster.members.len() {
        let before = db_size(ground, cluster, member).await?;
        cluster.etcdctl(member, &["defrag", "--command-timeout=30s"]).await?;
        let after = db_size(ground, cluster, member).await?;
        said.push(format!("{} {before} → {after} bytes", cluster.members[member].name));
    }
    Ok(said)
}

/// Every member writes its database anew.
pub(super) struct Defragmentation {
    cluster: EtcdCluster,
    said: RefCell<Vec<String>>,
}

impl Defragmentation {
    pub(super) const fn of(cluster: EtcdCluster) -> Self {
        Self {
            cluster,
            said: RefCell::new(Vec::new()),
        }
    }
}

impl Fault for Defragmentation {
    fn target(&self) -> String {
        "etcd".to_owned()
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            *self.said.borrow_mut() = defragment(ground, &self.cluster).await?;
            Ok(())
        })
    }

    fn observe<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            Ok(format!(
                "each member said that it was done: {}",
                self.said.borrow().join(", ")
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { self.cluster.healthy(ground.stack.host()).await })
    }
}

/// What is written to fill the database: one value, again and again, below etcd's bound of 1.5 MiB for a request.
const FILLER_BYTES: usize = 1_400_000;
const FILLER: &str = "dlock-chaos-filler";

/// The database is full.
pub(super) struct SpaceAlarm {
    cluster: EtcdCluster,
    quota_mib: u32,
    refused: RefCell<String>,
}

impl SpaceAlarm {
    /// # Errors
    /// When the quota is etcd's own, which is too much to be written.
    pub(super) fn of(cluster: EtcdCluster) -> Result<Box<dyn Fault>, RunError> {
        let quota_mib = cluster.options.quota_mib.ok_or_else(|| {
            RunError::Other(
                "this fault needs a cluster with a small quota: start it with one (ServerOptions::for_faults)"
                    .to_owned(),
            )
        })?;
        Ok(Box::new(Self {
            cluster,
            quota_mib,
            refused: RefCell::default(),
        }))
    }
}

impl Fault for SpaceAlarm {
    fn target(&self) -> String {
        "etcd".to_owned()
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let value = vec![b'x'; FILLER_BYTES];
            // Twice what fits, should some of it be written over free pages.
            let times = 2 * (usize::try_from(self.quota_mib).unwrap_or(1) << 20) / FILLER_BYTES;
            for _ in 0..times {
                let put = [ETCDCTL, "put", FILLER];
                let (code, printed) = self.cluster.members[0].exec_with("", &put, Some(&value)).await?;
                if printed.contains("space exceeded") {
                    *self.refused.borrow_mut() = error_in(&printed);
                    return Ok(());
                }
                if code != 0 {
                    return Err(RunError::Other(format!("filling the database: {printed}")));
                }
            }
            Err(RunError::Other(format!("{times} values did not fill the database")))
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let what = "the alarm NOSPACE";
            let alarms = eventually(ground.stack.host(), what, SHOWS_WITHIN, async || {
                let listed = self.cluster.etcdctl(0, &["alarm", "list"]).await?;
                Ok(listed.contains("NOSPACE").then_some(listed))
            })
            .await?;
            let said = refused(ground).await?;
            Ok(format!(
                "a write is refused: {}; {} alarm(s) NOSPACE; {said}",
                self.refused.borrow(),
                alarms.matches("NOSPACE").count()
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            self.cluster.etcdctl(0, &["del", FILLER]).await?;
            compact(ground, &self.cluster).await?;
            defragment(ground, &self.cluster).await?;
            eventually(ground.stack.host(), "no alarm", SHOWS_WITHIN, async || {
                self.cluster.etcdctl(0, &["alarm", "disarm"]).await?;
                let listed = self.cluster.etcdctl(0, &["alarm", "list"]).await?;
                Ok((!listed.contains("NOSPACE")).then_some(()))
            })
            .await
        })
    }
}
