//! The data are older than they were: a snapshot restored.

use super::super::fault::{Fault, Ground, SHOWS_WITHIN};
use super::super::lineage::{Before, clear, turns, verdict};
use crate::evidence::keep_lost;
use crate::model::LockEvent;
use crate::servers::etcd::EtcdCluster;
use crate::stack::{Hurt, LOCK_SERVER, NodeState, RunError, Step, await_node, eventually};
use serde::Deserialize;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Grants that are lost by a restore, besides those that dlock's workers lose by it.
const LOST_GRANTS: usize = 5;

/// lockdb is as it was some grants ago.
pub(super) struct SnapshotRestored {
    cluster: EtcdCluster,
    prefix: String,
    before: RefCell<Option<Before>>,
    lost: Cell<(usize, usize)>,
}

/// A fact as the store on etcd writes it down.
#[derive(Deserialize)]
struct Written {
    kind: String,
    key: Option<String>,
    session: Option<String>,
    token: Option<u64>,
    /// The token is the record's own revision and this.
    minted: Option<u64>,
    actor: Option<String>,
    reason: Option<String>,
}

impl SnapshotRestored {
    /// # Errors
    /// When the stack's lock store is not on etcd.
    pub(super) fn of(ground: &Ground<'_>, cluster: EtcdCluster) -> Result<Box<dyn Fault>, RunError> {
        let lock = ground.stack.spec().stores.lock.as_ref();
        let prefix = lock.and_then(|at| at.settings.get("lock.store.prefix")).cloned();
        let prefix = prefix.ok_or_else(|| RunError::Other("the stack has no lock.store.prefix".to_owned()))?;
        Ok(Box::new(Self {
            cluster,
            prefix,
            before: RefCell::default(),
            lost: Cell::default(),
        }))
    }

    /// The facts that the store has now.
    async fn facts(&self) -> Result<Vec<LockEvent>, RunError> {
        let from = format!("{}/e/", self.prefix);
        let printed = self
            .cluster
            .etcdctl(0, &["get", "--prefix", &from, "-w", "fields"])
            .await?;
        facts_in(&printed)
    }

    /// The facts once nothing is added to them any more.
    async fn facts_at_rest(&self, ground: &Ground<'_>) -> Result<Vec<LockEvent>, RunError> {
        let last = RefCell::new(self.facts().await?);
        eventually(ground.stack.host(), "the facts at rest", SHOWS_WITHIN, async || {
            let now = self.facts().await?;
            let rest = now.len() == last.borrow().len();
            *last.borrow_mut() = now;
            Ok(rest.then_some(()))
        })
        .await?;
        Ok(last.into_inner())
    }
}

/// Reads what etcdctl prints as fields: a name and a value a line.
fn facts_in(printed: &str) -> Result<Vec<LockEvent>, RunError> {
    let odd = |what: &str| RunError::Other(format!("a fact of etcd cannot be read: {what}"));
    let text = |value: &str| serde_json::from_str::<String>(value).map_err(|error| odd(&format!("{value}: {error}")));
    let (mut facts, mut seq, mut revision) = (Vec::new(), 0, 0);
    for line in printed.lines() {
        let Some((name, value)) = line.split_once(" : ") else {
            continue;
        };
        match name {
            "\"Key\"" => {
                let key = text(value)?;
                let number = key.rsplit('/').next().and_then(|number| number.parse().ok());
                seq = number.ok_or_else(|| odd(&key))?;
            }
            "\"ModRevision\"" => revision = value.parse().map_err(|_| odd(value))?,
            "\"Value\"" => {
                let fact: Written = serde_json::from_str(&text(value)?).map_err(|error| odd(&error.to_string()))?;
                facts.push(LockEvent {
                    seq,
                    kind: fact.kind,
                    lock_key: fact.key,
                    session_id: fact.session,
                    token: fact.minted.map(|above| revision + above).or(fact.token),
                    actor: fact.actor,
                    reason: fact.reason,
                    ..LockEvent::default()
                });
            }
            _ => {}
        }
    }
    Ok(facts)
}

impl Fault for SnapshotRestored {
    fn target(&self) -> String {
        self.prefix.clone()
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let (stack, host) = (ground.stack, ground.stack.host());
            let saved = self.facts().await?;
            self.cluster.save(0).await?;
            turns(ground, LOST_GRANTS).await?;
            *self.before.borrow_mut() = Some(Before::read(ground).await?);
            // Nobody mints while what is about to be lost is read, so that all of it is known to the judge.
            stack.hurt(LOCK_SERVER, Hurt::Pause)?;
            await_node(stack, LOCK_SERVER, "stopped", SHOWS_WITHIN, |state| {
                state == NodeState::Stopped
            })
            .await?;
            let had = self.facts_at_rest(ground).await;
            let restored = match &had {
                Ok(_) => self.cluster.restore(host).await,
                Err(_) => Ok(()),
            };
            let left = self.facts().await;
            stack.hurt(LOCK_SERVER, Hurt::Resume)?;
            restored?;
            let left: BTreeSet<u64> = left?.iter().map(|fact| fact.seq).collect();
            if left.len() < saved.len() {
                return Err(RunError::Other(format!(
                    "{} facts of {} came back from the snapshot",
                    left.len(),
                    saved.len()
                )));
            }
            let mut lost = had?;
            lost.retain(|fact| !left.contains(&fact.seq));
            let grants = lost.iter().filter(|fact| fact.kind == "GRANTED").count();
            self.lost.set((lost.len(), grants));
            keep_lost(stack.dir(), &lost)
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let (facts, grants) = self.lost.get();
            let seen = verdict(ground, &self.before).await?;
            Ok(format!("{facts} facts with {grants} grants are forgotten; {seen}"))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { clear(ground).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_etcdctl_prints_them() {
        let printed = "\"ClusterID\" : 1\n\"Key\" : \"lab/x/e/00000000000000000007\"\n\"CreateRevision\" : 40\n\
                       \"ModRevision\" : 41\n\"Version\" : 1\n\
                       \"Value\" : \"{\\\"at\\\":5,\\\"kind\\\":\\\"GRANTED\\\",\\\"key\\\":\\\"a\\\",\\\"minted\\\":2}\"\n\
                       \"Lease\" : 0\n\"More\" : false\n";
        let facts = facts_in(printed).unwrap();
        assert_eq!(facts.len(), 1);
        assert_eq!((facts[0].seq, facts[0].token), (7, Some(43)));
        assert_eq!(facts[0].lock_key.as_deref(), Some("a"));
        assert!(facts_in("\"Key\" : \"odd\"\n").is_err());
    }
}
