//! etcd in containers: a cluster of any size.
//!
//! Owns: how members are started, found, cut off from each other, replaced and restored from a snapshot.
//! Does not own: what is done to hurt them.
//! On failure: [`RunError`] with the end of a member's log.

use super::container::Container;
use super::docker::{ContainerSpec, Docker};
use crate::stack::{RunError, eventually};
use host_kit::Host;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// The images, in the order in which they are looked for, unless `DLOCK_ETCD_IMAGE` names one.
const IMAGES: &[&str] = &["quay.io/coreos/etcd:v3.5.16", "dlock-offline/etcd:3.5"];
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The program in a member's image that asks it.
pub const ETCDCTL: &str = "/usr/local/bin/etcdctl";
const ETCDUTL: &str = "/usr/local/bin/etcdutl";

/// Where the data of all members are, a directory each, on a volume that they share: so that a snapshot that one has saved
/// can be restored by each.
const DATA: &str = "/etcd-data";

/// How a cluster is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdOptions {
    /// How many members. Faults of a cluster want three.
    pub members: usize,
    /// How many MiB a member's database may have before it takes no more writes; etcd's own bound where nothing is said.
    pub quota_mib: Option<u32>,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            members: 1,
            quota_mib: None,
        }
    }
}

/// A cluster. Its members talk to each other on a network of their own and to clients on another, so that a member can
/// be cut off from its peers while clients still reach it. Clones are the same one.
#[derive(Clone, Debug)]
pub struct EtcdCluster {
    /// Its members.
    pub members: Vec<Container>,
    /// How it was started.
    pub options: EtcdOptions,
    peers: String,
    /// How many data directories each member has had.
    data: Rc<RefCell<Vec<u32>>>,
}

fn name(member: usize) -> String {
    format!("etcd{}", member + 1)
}

impl EtcdCluster {
    /// Starts a cluster.
    ///
    /// # Errors
    /// When it does not become healthy.
    pub async fn start(docker: &Docker, host: &Host, options: &EtcdOptions) -> Result<Self, RunError> {
        let image = docker.image("DLOCK_ETCD_IMAGE", IMAGES).await?;
        let (clients, peers) = (
            docker.network("etcd-clients").await?,
            docker.network("etcd-peers").await?,
        );
        let volume = docker.volume("etcd-data", &[]).await?;
        let mut cluster = Self {
            members: Vec::new(),
            options: options.clone(),
            peers,
            data: Rc::new(RefCell::new(vec![1; options.members])),
        };
        for member in 0..options.members {
            let name = name(member);
            let spec = ContainerSpec {
                name: name.clone(),
                image: image.clone(),
                cmd: cluster.command(member, "new"),
                port: 2379,
                network: clients.clone(),
                also_in: vec![(cluster.peers.clone(), format!("{name}.peer"))],
                volumes: vec![(volume.clone(), DATA.to_owned())],
                ..ContainerSpec::default()
            };
            cluster.members.push(docker.start(spec).await?);
        }
        cluster.healthy(host).await?;
        Ok(cluster)
    }

    /// All members as `--initial-cluster` wants them.
    fn initial(&self) -> String {
        let members = (0..self.options.members).map(|member| format!("{}={}", name(member), Self::peer_url(member)));
        members.collect::<Vec<_>>().join(",")
    }

    /// Where the other members reach this one.
    #[must_use]
    pub fn peer_url(member: usize) -> String {
        format!("http://{}.peer:2380", name(member))
    }

    /// Where this member's data are in its container.
    fn data_dir(&self, member: usize) -> String {
        format!("{DATA}/{}-{}", name(member), self.data.borrow()[member])
    }

    fn command(&self, member: usize, state: &str) -> Vec<String> {
        let name = name(member);
        let mut flags = vec![
            ("--name", name.clone()),
            ("--data-dir", self.data_dir(member)),
            ("--listen-client-urls", "http://0.0.0.0:2379".to_owned()),
            ("--advertise-client-urls", format!("http://{name}:2379")),
            ("--listen-peer-urls", "http://0.0.0.0:2380".to_owned()),
            ("--initial-advertise-peer-urls", Self::peer_url(member)),
            ("--initial-cluster", self.initial()),
            ("--initial-cluster-state", state.to_owned()),
            ("--log-level", "warn".to_owned()),
        ];
        if let Some(mib) = self.options.quota_mib {
            flags.push(("--quota-backend-bytes", (u64::from(mib) << 20).to_string()));
        }
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        std::iter::once("/usr/local/bin/etcd".to_owned()).chain(flags).collect()
    }

    /// Runs etcdctl in a member, against that member. Answers what it printed.
    ///
    /// # Errors
    /// When it fails, with what it printed.
    pub async fn etcdctl(&self, member: usize, args: &[&str]) -> Result<String, RunError> {
        let mut command = vec![ETCDCTL];
        command.extend(args);
        self.members[member].run("", &command).await
    }

    /// Starts a new container in a member's place that has no data and joins the cluster. The others must know of it.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn join_anew(&self, member: usize) -> Result<(), RunError> {
        self.data.borrow_mut()[member] += 1;
        self.members[member].replace(self.command(member, "existing")).await
    }

    /// Saves a snapshot of what this member has, where [`EtcdCluster::restore`] finds it.
    ///
    /// # Errors
    /// When it fails.
    pub async fn save(&self, member: usize) -> Result<(), RunError> {
        let path = format!("{DATA}/saved");
        self.etcdctl(member, &["snapshot", "save", &path]).await.map(drop)
    }

    /// Ends all members and starts each again with what was saved.
    ///
    /// # Errors
    /// When it cannot be restored or does not become healthy.
    pub async fn restore(&self, host: &Host) -> Result<(), RunError> {
        for (n, member) in self.members.iter().enumerate() {
            self.data.borrow_mut()[n] += 1;
            let (saved, dir) = (format!("{DATA}/saved"), format!("--data-dir={}", self.data_dir(n)));
            let (own, initial) = (name(n), format!("--initial-cluster={}", self.initial()));
            let peer = format!("--initial-advertise-peer-urls={}", Self::peer_url(n));
            let named = ["--name", &own, &dir, &initial, &peer];
            let command = [&[ETCDUTL, "snapshot", "restore", &saved][..], &named].concat();
            member.run("", &command).await?;
        }
        for member in &self.members {
            member.kill().await?;
        }
        for (n, member) in self.members.iter().enumerate() {
            member.replace(self.command(n, "new")).await?;
        }
        self.healthy(host).await
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
            .map(|member| format!("127.0.0.1:{}", member.host_port()))
            .collect();
        format!("etcd://{}", endpoints.join(","))
    }

    /// What a member says of itself: `header`, `leader`, `dbSize`, …. None while it does not answer.
    pub async fn status(&self, member: usize) -> Option<serde_json::Value> {
        let ask = [ETCDCTL, "endpoint", "status", "-w", "json", "--command-timeout=1s"];
        let (0, printed) = self.members[member].exec("", &ask).await.ok()? else {
            return None;
        };
        let line = printed.lines().find(|line| line.starts_with('['))?;
        let status: serde_json::Value = serde_json::from_str(line).ok()?;
        status.get(0)?.get("Status").cloned()
    }

    /// Whether this member believes that it leads.
    async fn leads(&self, member: usize) -> bool {
        let Some(status) = self.status(member).await else {
            return false;
        };
        let (leader, own) = (status["leader"].as_u64(), status["header"]["member_id"].as_u64());
        leader.is_some_and(|leader| leader != 0) && leader == own
    }

    /// The member that leads, leaving out those that are not asked.
    ///
    /// # Errors
    /// When none does in time.
    pub async fn leader(&self, host: &Host, not: &[usize]) -> Result<usize, RunError> {
        eventually(host, "an etcd leader", READY_WITHIN, async || {
            for n in 0..self.members.len() {
                if !not.contains(&n) && self.leads(n).await {
                    return Ok(Some(n));
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
