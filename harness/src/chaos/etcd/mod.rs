//! Faults of etcd, which holds lockdb of a run: members gone or cut off, the history cut or full, the data of before.
//!
//! Owns: the entries of this level.
//! Does not own: how members are started ([`crate::servers::etcd`]); whether dlock gets over it (the driver).
//! On failure: a cluster that the run has not started itself is hurt by nobody, and what needs three members says so.

mod history;
mod members;
mod moved;

use super::catalogue::Entry;
use super::fault::{Ground, Kind, Level, StoreKind};
use crate::servers::etcd::EtcdCluster;
use crate::stack::RunError;

const fn kind(name: &'static str, what: &'static str, undo: &'static str) -> Kind {
    Kind {
        name,
        level: Level::Etcd,
        what,
        undo,
        on: &[StoreKind::Etcd],
    }
}

/// The entries of this level.
pub const ENTRIES: &[Entry] = &[
    Entry {
        kind: kind(
            "etcd.leader_killed",
            "the member that leads is killed (SIGKILL)",
            "started again on its data and port",
        ),
        make: |ground| Ok(Box::new(members::Leader::by(members::Away::Killed, three(ground)?))),
    },
    Entry {
        kind: kind(
            "etcd.leader_paused",
            "the member that leads stands still until another one leads",
            "continued, and believes for a moment that it leads",
        ),
        make: |ground| Ok(Box::new(members::Leader::by(members::Away::Paused, three(ground)?))),
    },
    Entry {
        kind: kind(
            "etcd.leader_cut_off",
            "the member that leads is cut off from its peers while clients still reach it",
            "connected again",
        ),
        make: |ground| Ok(Box::new(members::Leader::by(members::Away::CutOff, three(ground)?))),
    },
    Entry {
        kind: kind(
            "etcd.quorum_lost",
            "two of three members are killed or stand still",
            "started again or continued",
        ),
        make: |ground| Ok(Box::new(members::QuorumLost::of(ground, three(ground)?))),
    },
    Entry {
        kind: kind(
            "etcd.member_replaced",
            "a member that does not lead is removed, and a new one without data takes its name and place",
            "nothing to take back: the new one has caught up",
        ),
        make: |ground| Ok(Box::new(members::Replaced::of(three(ground)?))),
    },
    Entry {
        kind: kind(
            "etcd.compaction",
            "all revisions but the last are compacted away, under every watch",
            "nothing to take back",
        ),
        make: |ground| Ok(Box::new(history::Compaction::of(cluster(ground)?))),
    },
    Entry {
        kind: kind(
            "etcd.defragmentation",
            "every member's database is written anew, one after the other; each answers nothing meanwhile",
            "nothing to take back",
        ),
        make: |ground| Ok(Box::new(history::Defragmentation::of(cluster(ground)?))),
    },
    Entry {
        kind: kind(
            "etcd.space_alarm",
            "the database is filled up to its quota: the cluster raises NOSPACE and takes no writes",
            "compacted, defragmented, the alarm disarmed",
        ),
        make: |ground| history::SpaceAlarm::of(cluster(ground)?),
    },
    Entry {
        kind: kind(
            "etcd.snapshot_restored",
            "every member is started again from a snapshot that is some grants old, under the running lock server",
            "nothing to take back; a doubt is ended by an operator who raises the floor",
        ),
        make: |ground| moved::SnapshotRestored::of(ground, cluster(ground)?),
    },
];

/// The cluster that this run has started itself.
fn cluster(ground: &Ground<'_>) -> Result<EtcdCluster, RunError> {
    ground.backends.etcd.clone().ok_or_else(|| {
        RunError::Other(
            "this fault hurts an etcd that the run has started itself, never one that a URL names: say --store etcd"
                .to_owned(),
        )
    })
}

/// As [`cluster`], where one member may be missing.
fn three(ground: &Ground<'_>) -> Result<EtcdCluster, RunError> {
    let cluster = cluster(ground)?;
    if cluster.members.len() < 3 {
        return Err(RunError::Other(format!(
            "this fault needs three members and the cluster has {}: start it with three (ServerOptions::for_faults)",
            cluster.members.len()
        )));
    }
    Ok(cluster)
}
