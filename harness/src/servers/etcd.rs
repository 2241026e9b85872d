//! etcd in containers: a cluster of any size.

use super::docker::{Container, ContainerSpec, Docker};
use crate::stack::{RunError, eventually};
use host_kit::Host;
use std::time::Duration;

/// The images, in the order in which they are looked for, unless `DLOCK_ETCD_IMAGE` names one.
const IMAGES: &[&str] = &["quay.io/coreos/etcd:v3.5.16", "dlock-offline/etcd:3.5"];
const READY_WITHIN: Duration = Duration::from_secs(60);
const ETCDCTL: &str = "/usr/local/bin/etcdctl";

/// A cluster. Its members talk to each other on a network of their own and to clients on another, so that a member can
/// be cut off from its peers while clients still reach it.
#[derive(Clone, Debug)]
pub struct EtcdCluster {
    /// Its members.
    pub members: Vec<Container>,
    peers: String,
}

impl EtcdCluster {
    /// Starts a cluster of this many members.
    ///
    /// # Errors
    /// When it does not become healthy.
    pub async fn start(docker: &Docker, host: &Host, size: usize) -> Result<Self, RunError> {
        let image = docker.image("DLOCK_ETCD_IMAGE", IMAGES).await?;
        let (clients, peers) = (
            docker.network("etcd-clients").await?,
            docker.network("etcd-peers").await?,
        );
        let names: Vec<String> = (1..=size).map(|n| format!("etcd{n}")).collect();
        let initial: Vec<String> = names
            .iter()
            .map(|name| format!("{name}=http://{name}.peer:2380"))
            .collect();
        let initial = initial.join(",");
        let mut members = Vec::new();
        for name in &names {
            let flags = [
                ("--name", name.clone()),
                ("--data-dir", "/etcd-data".to_owned()),
                ("--listen-client-urls", "http://0.0.0.0:2379".to_owned()),
                ("--advertise-client-urls", format!("http://{name}:2379")),
                ("--listen-peer-urls", "http://0.0.0.0:2380".to_owned()),
                ("--initial-advertise-peer-urls", format!("http://{name}.peer:2380")),
                ("--initial-cluster", initial.clone()),
                ("--initial-cluster-state", "new".to_owned()),
            ];
            let mut cmd = vec!["/usr/local/bin/etcd".to_owned()];
            cmd.extend(flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
            members.push(
                docker
                    .start(ContainerSpec {
                        name: name.clone(),
                        image: image.clone(),
                        cmd,
                        port: 2379,
                        network: clients.clone(),
                        also_in: vec![(peers.clone(), format!("{name}.peer"))],
                        ..ContainerSpec::default()
                    })
                    .await?,
            );
        }
        let cluster = Self { members, peers };
        cluster.healthy(host).await?;
        Ok(cluster)
    }

    /// Awaits that every member serves.
    ///
    /// # Errors
    /// When one does not, with the end of its log.
    pub async fn healthy(&self, host: &Host) -> Result<(), RunError> {
        for member in &self.members {
            let what = format!("{} healthy", member.name);
            let healthy = eventually(host, &what, READY_WITHIN, async || {
                let asked = member.exec("", &[ETCDCTL, "endpoint", "health"]).await;
                Ok(matches!(asked, Ok((0, _))).then_some(()))
            })
            .await;
            if let Err(error) = healthy {
                return Err(RunError::Other(format!(
                    "{error}; its log ends with:\n{}",
                    member.log_tail().await
                )));
            }
        }
        Ok(())
    }

    /// The URL of all members.
    #[must_use]
    pub fn url(&self) -> String {
        let endpoints: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("127.0.0.1:{}", member.host_port))
            .collect();
        format!("etcd://{}", endpoints.join(","))
    }

    /// The member that leads, as this member sees it. None while there is none, or while it does not answer.
    async fn leader_seen_by(&self, member: &Container) -> Option<usize> {
        let (0, printed) = member
            .exec(
                "",
                &[ETCDCTL, "endpoint", "status", "-w", "json", "--command-timeout=1s"],
            )
            .await
            .ok()?
        else {
            return None;
        };
        let line = printed.lines().find(|line| line.starts_with('['))?;
        let status: serde_json::Value = serde_json::from_str(line).ok()?;
        let status = status.get(0)?.get("Status")?;
        let (leader, own) = (
            status.get("leader")?.as_u64()?,
            status.get("header")?.get("member_id")?.as_u64()?,
        );
        (leader != 0 && leader == own).then_some(())?;
        self.members.iter().position(|other| other.name == member.name)
    }

    /// The member that leads, leaving out those that are not asked.
    ///
    /// # Errors
    /// When none does in time.
    pub async fn leader(&self, host: &Host, not: &[usize]) -> Result<usize, RunError> {
        eventually(host, "an etcd leader", READY_WITHIN, async || {
            for (n, member) in self.members.iter().enumerate() {
                if !not.contains(&n)
                    && let Some(leader) = self.leader_seen_by(member).await
                {
                    return Ok(Some(leader));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Cuts a member off from its peers; clients still reach it.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn cut_off(&self, member: usize) -> Result<(), RunError> {
        self.members[member].leave(&self.peers).await
    }

    /// Heals [`EtcdCluster::cut_off`].
    ///
    /// # Errors
    /// What the engine said.
    pub async fn heal(&self, member: usize) -> Result<(), RunError> {
        let alias = format!("{}.peer", self.members[member].name);
        self.members[member].join(&self.peers, &alias).await
    }
}
