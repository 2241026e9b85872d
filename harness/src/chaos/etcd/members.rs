//! Members of the cluster: the leader away, too many away, one replaced.

use super::super::fault::{Fault, Ground, SHOWS_WITHIN, unready};
use crate::servers::etcd::{ETCDCTL, EtcdCluster};
use crate::stack::{LOCK_SERVER, RunError, Step, eventually};
use std::cell::{Cell, RefCell};

/// How a member is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    Killed,
    Paused,
    CutOff,
}

impl Away {
    async fn take(self, cluster: &EtcdCluster, member: usize) -> Result<(), RunError> {
        match self {
            Self::Killed => cluster.members[member].kill().await,
            Self::Paused => cluster.members[member].pause().await,
            Self::CutOff => cluster.cut_off(member).await,
        }
    }

    async fn bring_back(self, cluster: &EtcdCluster, member: usize) -> Result<(), RunError> {
        match self {
            Self::Killed => cluster.members[member].restart().await,
            Self::Paused => cluster.members[member].resume().await,
            Self::CutOff => cluster.heal(member).await,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Paused => "paused",
            Self::CutOff => "cut off from its peers",
        }
    }
}

/// The leader is away.
pub(super) struct Leader {
    cluster: EtcdCluster,
    away: Away,
    leader: Cell<Option<usize>>,
}

fn name(cluster: &EtcdCluster, member: Option<usize>) -> String {
    member.map_or_else(|| "etcd".to_owned(), |member| cluster.members[member].name.clone())
}

impl Leader {
    pub(super) const fn by(away: Away, cluster: EtcdCluster) -> Self {
        Self {
            cluster,
            away,
            leader: Cell::new(None),
        }
    }
}

impl Fault for Leader {
    fn target(&self) -> String {
        name(&self.cluster, self.leader.get())
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let leader = self.cluster.leader(ground.stack.host(), &[]).await?;
            self.leader.set(Some(leader));
            self.away.take(&self.cluster, leader).await
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let left_out: Vec<usize> = self.leader.get().into_iter().collect();
            let next = self.cluster.leader(ground.stack.host(), &left_out).await?;
            let state = self.cluster.members[left_out[0]].state().await?;
            Ok(format!(
                "{} is {} (its container: {state}), {} leads instead",
                self.target(),
                self.away.word(),
                name(&self.cluster, Some(next))
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            if let Some(leader) = self.leader.get() {
                self.away.bring_back(&self.cluster, leader).await?;
            }
            self.cluster.healthy(ground.stack.host()).await
        })
    }
}

/// All but one are away.
pub(super) struct QuorumLost {
    cluster: EtcdCluster,
    away: Away,
    left: usize,
}

impl QuorumLost {
    /// Who stays, and how the others are away, is the seed's choice.
    pub(super) fn of(ground: &Ground<'_>, cluster: EtcdCluster) -> Self {
        let below = |n: usize| {
            let n = u64::try_from(n).unwrap_or(1);
            usize::try_from(ground.random.below(n)).unwrap_or(0)
        };
        Self {
            left: below(cluster.members.len()),
            away: [Away::Killed, Away::Paused][below(2)],
            cluster,
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.cluster.members.len()).filter(|member| *member != self.left)
    }
}

impl Fault for QuorumLost {
    fn target(&self) -> String {
        let names: Vec<String> = self.others().map(|n| name(&self.cluster, Some(n))).collect();
        names.join(", ")
    }

    fn inject<'a>(&'a self, _: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            for member in self.others() {
                self.away.take(&self.cluster, member).await?;
            }
            Ok(())
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let left = &self.cluster.members[self.left];
            let what = "the member that is left refuses";
            let ask = [ETCDCTL, "put", "dlock-chaos", "x", "--command-timeout=1s"];
            let said = eventually(ground.stack.host(), what, SHOWS_WITHIN, async || {
                let (code, printed) = left.exec("", &ask).await?;
                Ok((code != 0).then_some(printed))
            })
            .await?;
            let error = said.lines().rev().find(|line| line.contains("Error")).unwrap_or(&said);
            let unready = unready(ground, LOCK_SERVER).await?;
            Ok(format!(
                "{} are {}; {} takes no write: {}; {unready}",
                self.target(),
                self.away.word(),
                left.name,
                error.trim()
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            for member in self.others() {
                self.away.bring_back(&self.cluster, member).await?;
            }
            self.cluster.healthy(ground.stack.host()).await
        })
    }
}

/// A member is removed, and a new one takes its place.
pub(super) struct Replaced {
    cluster: EtcdCluster,
    member: Cell<Option<usize>>,
    /// The ids of the one that went and the one that came.
    ids: RefCell<(String, String)>,
}

impl Replaced {
    pub(super) fn of(cluster: EtcdCluster) -> Self {
        Self {
            cluster,
            member: Cell::new(None),
            ids: RefCell::default(),
        }
    }

    /// As the cluster writes ids, in hexadecimal.
    async fn id(&self, member: usize) -> Option<String> {
        let status = self.cluster.status(member).await?;
        Some(format!("{:x}", status["header"]["member_id"].as_u64()?))
    }
}

impl Fault for Replaced {
    fn target(&self) -> String {
        name(&self.cluster, self.member.get())
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            let host = ground.stack.host();
            let leader = self.cluster.leader(host, &[]).await?;
            let member = (leader + 1) % self.cluster.members.len();
            self.member.set(Some(member));
            let old = eventually(host, "the member's id", SHOWS_WITHIN, async || {
                Ok(self.id(member).await)
            })
            .await?;
            // A cluster that has just lost and found members takes no change of them for some seconds.
            let removed = async |args: &[&str]| {
                eventually(host, &args.join(" "), SHOWS_WITHIN, async || {
                    let leader = self.cluster.leader(host, &[member]).await?;
                    Ok(match self.cluster.etcdctl(leader, args).await {
                        Ok(printed) => Some(printed),
                        Err(error) => {
                            tracing::debug!(event = "member_change_refused", %error);
                            None
                        }
                    })
                })
                .await
            };
            removed(&["member", "remove", &old]).await?;
            let peers = format!("--peer-urls={}", EtcdCluster::peer_url(member));
            removed(&["member", "add", &self.target(), &peers]).await?;
            self.ids.borrow_mut().0 = old;
            self.cluster.join_anew(member).await
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let host = ground.stack.host();
            self.cluster.healthy(host).await?;
            let member = self.member.get().unwrap_or_default();
            let new = eventually(host, "the new member's id", SHOWS_WITHIN, async || {
                Ok(self.id(member).await)
            })
            .await?;
            self.ids.borrow_mut().1 = new;
            let ids = self.ids.borrow();
            Ok(format!(
                "{} was member {}; {} with no data of its own is member {} and healthy",
                self.target(),
                ids.0,
                self.target(),
                ids.1
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { self.cluster.healthy(ground.stack.host()).await })
    }
}
