//! A stack of containers: each component and each worker in one of its own, around this machine's binary.
//!
//! ```text
//! harness ──published ports── edge ──▶ every component
//! worker ── inner ──▶ lock-server, payment-resource, rail-proxy ── inner ──▶ rail-stub
//!                          └── the network of its database, where that is a container too
//! ```
//!
//! Owns: starting them on networks of their own, awaiting readiness, freezing and killing them, taking one out of the
//! inner network, and that none outlives the harness.
//! Does not own: what runs in them; the containers of the databases.
//! On failure: as a stack of processes: what does not start is reported with the end of its log; everything is removed on
//! drop, and by the reaper when the harness itself is killed.

use super::node_log::NodeLog;
use super::{
    Hurt, LOCK_SERVER, Links, Network, NodeState, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB, RunError, Stack, StackSpec,
    Step, WorkerSpec, drain, eventually, parsed_log, variable, worker_arguments, worker_settings,
};
use crate::model::NodeEvent;
use crate::servers::Backends;
use crate::servers::backends::StoreAt;
use crate::servers::container::Container;
use crate::servers::docker::{ContainerSpec, Docker};
use crate::servers::inspector::{Inspector, Signal};
use crate::stack::processes::{Lab, READY_WITHIN, WORKER, stopped};
use actor_kit::TraceContext;
use host_kit::Host;
use http_client::{Caller, ClientOptions};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The images, in the order in which they are looked for, unless `DLOCK_RUNTIME_IMAGE` names one. The binary comes from
/// this machine, so the image needs a C library that is not older than this machine's.
const IMAGES: &[&str] = &["debian:12-slim", "dlock-offline/debian:12"];
/// Where components listen in their containers.
const PORT: u16 = 7400;
/// Where the binary is in their containers.
const DLOCK: &str = "/usr/local/bin/dlock";
/// How long one probe of readiness may take.
const PROBE_WITHIN: Duration = Duration::from_millis(500);
/// How long a drained container may take to end before it is killed.
const DRAIN_WITHIN: Duration = Duration::from_secs(20);
/// An exit code above this one is a signal's number more.
const SIGNALLED: i64 = 128;

#[derive(Debug)]
struct Node {
    container: Container,
    component: &'static str,
    /// The process of the init, as this machine numbers it.
    init: i64,
    frozen: bool,
    ended: Option<NodeState>,
}

/// A dlock of containers.
#[derive(Debug)]
pub struct ContainerStack {
    lab: Lab,
    docker: Docker,
    inspector: Inspector,
    image: String,
    /// Before every name of this stack: several stacks of one run have the same nodes.
    prefix: String,
    edge: String,
    inner: String,
    dir: PathBuf,
    /// Who owns that directory: what the containers write belongs to whoever runs the harness.
    user: String,
    spec: StackSpec,
    nodes: RefCell<BTreeMap<String, Node>>,
    links: RefCell<Links>,
    events: NodeLog,
}

/// What a container runs.
struct Start {
    component: &'static str,
    args: Vec<String>,
    settings: BTreeMap<String, String>,
    networks: BTreeSet<String>,
}

/// The name of a node in the inner network.
fn inside(node: &str) -> String {
    format!("{}-inner", node.to_ascii_lowercase())
}

fn url_inside(node: &str) -> String {
    format!("http://{}:{PORT}", inside(node))
}

impl ContainerStack {
    /// Starts a whole stack without workers. Its files are in `dir`, which every container sees under the same path.
    ///
    /// # Errors
    /// When Docker does not answer, an image is missing or a component does not become ready.
    pub async fn start(lab: &Lab, backends: &Backends, dir: &Path, spec: StackSpec) -> Result<Self, RunError> {
        std::fs::create_dir_all(dir).map_err(RunError::io(format!("making {}", dir.display())))?;
        let dir = dir
            .canonicalize()
            .map_err(RunError::io(format!("finding {}", dir.display())))?;
        let owner = std::fs::metadata(&dir).map_err(RunError::io(format!("reading {}", dir.display())))?;
        let user = format!("{}:{}", owner.uid(), owner.gid());
        let name = dir.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
        let prefix = name.unwrap_or_else(|| "stack".to_owned());
        let docker = Docker::connect(lab).await?;
        let stack = Self {
            image: docker.image("DLOCK_RUNTIME_IMAGE", IMAGES).await?,
            edge: docker.network(&format!("{prefix}-edge")).await?,
            inner: docker.network(&format!("{prefix}-inner")).await?,
            inspector: Inspector::start()?,
            lab: lab.clone(),
            docker,
            prefix,
            dir,
            user,
            spec,
            nodes: RefCell::default(),
            links: RefCell::default(),
            events: NodeLog::new(&lab.host().clock),
        };
        stack.start_components(backends).await?;
        Ok(stack)
    }

    async fn start_components(&self, backends: &Backends) -> Result<(), RunError> {
        let pay = self.dir.join("pay");
        std::fs::create_dir_all(&pay).map_err(RunError::io(format!("making {}", pay.display())))?;
        let at = |store: &Option<StoreAt>, embedded: String| {
            let store = store.clone().unwrap_or_else(|| StoreAt {
                url: embedded,
                ..StoreAt::default()
            });
            let (url, networks) = backends.inside(&store.url);
            (StoreAt { url, ..store }, networks)
        };
        let stores = &self.spec.stores;
        let lock = at(&stores.lock, format!("sqlite:{}", self.dir.join("lock.db").display()));
        let payment = at(&stores.payment, format!("sqlite:{}", pay.display()));
        let rail = at(&stores.rail, format!("sqlite:{}", pay.display()));
        let on = |component, (store, networks): (StoreAt, BTreeSet<String>), more: &[String]| {
            let mut settings = self.spec.settings.clone();
            settings.extend(store.settings);
            let mut args = vec!["--store".to_owned(), store.url];
            args.extend_from_slice(more);
            Start {
                component,
                args,
                settings,
                networks,
            }
        };
        let rail_stub = Start {
            component: RAIL_STUB,
            args: vec![
                "--ack-url".to_owned(),
                format!("{}/v1/rail/acks", url_inside(RAIL_PROXY)),
                "--book".to_owned(),
                self.dir.join("rail-book.jsonl").display().to_string(),
            ],
            settings: self.spec.settings.clone(),
            networks: BTreeSet::new(),
        };
        let rail_url = ["--rail".to_owned(), url_inside(RAIL_STUB)];
        let (lock_server, payments, rail_stub) = tokio::try_join!(
            self.launch(LOCK_SERVER, on(LOCK_SERVER, lock, &[])),
            self.launch(PAYMENT_RESOURCE, on(PAYMENT_RESOURCE, payment, &[])),
            self.launch(RAIL_STUB, rail_stub),
        )?;
        let rail_proxy = self.launch(RAIL_PROXY, on(RAIL_PROXY, rail, &rail_url)).await?;
        let missing = || RunError::Other("a component stands still at a fault point".to_owned());
        *self.links.borrow_mut() = Links {
            lock_server: lock_server.ok_or_else(missing)?,
            payments: payments.ok_or_else(missing)?,
            rail_proxy: rail_proxy.ok_or_else(missing)?,
            rail_stub: rail_stub.ok_or_else(missing)?,
        };
        Ok(())
    }

    /// Starts a container and answers its published address once it is ready; nothing when it has ended or stands still.
    async fn launch(&self, name: &str, start: Start) -> Result<Option<String>, RunError> {
        let mut env: Vec<String> = start
            .settings
            .iter()
            .map(|(setting, value)| format!("{}={value}", variable(setting)))
            .collect();
        for (on, setting) in [
            (self.spec.payment_fencing, "payment.fencing.enabled"),
            (self.spec.rail_fencing, "rail.fencing.enabled"),
        ] {
            if !on {
                env.push(format!("{}=false", variable(setting)));
            }
        }
        let mut cmd: Vec<String> = [DLOCK, start.component, "--listen"].map(str::to_owned).into();
        cmd.push(format!("0.0.0.0:{PORT}"));
        cmd.extend(start.args);
        let mut also_in = vec![(self.inner.clone(), inside(name))];
        // No name there that others use: who is cut off the inner network must not be found by way of the database's.
        let client = format!("{}-client", name.to_ascii_lowercase());
        also_in.extend(start.networks.into_iter().map(|network| (network, client.clone())));
        let dir = self.dir.display();
        let container = self
            .docker
            .start(ContainerSpec {
                name: format!("{}-{}", self.prefix, name.to_ascii_lowercase()),
                image: self.image.clone(),
                cmd,
                env,
                port: PORT,
                network: self.edge.clone(),
                also_in,
                binds: vec![
                    format!("{}:{DLOCK}:ro", self.lab.exe().display()),
                    format!("{dir}:{dir}"),
                ],
                user: self.user.clone(),
                // For the superuser alone, who cuts a direction; what runs is somebody else.
                capabilities: vec!["NET_ADMIN".to_owned()],
                init: true,
                ..ContainerSpec::default()
            })
            .await?;
        let init = self.inspector.inspect(&container)?.pid;
        let node = Node {
            container,
            component: start.component,
            init,
            frozen: false,
            ended: None,
        };
        self.nodes.borrow_mut().insert(name.to_owned(), node);
        self.events.started(name);
        self.ready(name).await
    }

    async fn ready(&self, name: &str) -> Result<Option<String>, RunError> {
        let host = self.host();
        let url = self.node(name, |node| {
            Ok(format!("http://127.0.0.1:{}", node.container.host_port()))
        })?;
        let caller = Caller::new(
            http_client::client(&ClientOptions::default()),
            url.as_str(),
            PROBE_WITHIN,
        );
        let what = format!("{name} ready");
        let ready = eventually(host, &what, READY_WITHIN, async || {
            if caller.probe("/readyz", &TraceContext::root(&host.random)).await.is_ok() {
                return Ok(Some(true));
            }
            match self.state(name)? {
                NodeState::Running => Ok(None),
                NodeState::Stopped | NodeState::Signalled(_) => Ok(Some(false)),
                NodeState::Exited(code) => Err(RunError::Other(format!("exit code {code}"))),
            }
        });
        match ready.await {
            Ok(ready) => Ok(ready.then_some(url)),
            Err(error) => {
                let container = self.container(name)?;
                Err(RunError::NotStarted {
                    node: name.to_owned(),
                    detail: format!("{error}; its log ends with:\n{}", container.log_tail().await.trim_end()),
                })
            }
        }
    }

    fn node<T>(&self, name: &str, f: impl FnOnce(&mut Node) -> Result<T, RunError>) -> Result<T, RunError> {
        let mut nodes = self.nodes.borrow_mut();
        let node = nodes
            .get_mut(name)
            .ok_or_else(|| RunError::Other(format!("there is no node {name}")))?;
        f(node)
    }

    fn container(&self, name: &str) -> Result<Container, RunError> {
        self.node(name, |node| Ok(node.container.clone()))
    }

    /// Has a node do something about the way to another one, as its superuser.
    async fn one_way(&self, from: &str, what: &str, to: &str) -> Result<(), RunError> {
        let address = self.container(to)?.address(&self.inner).await?;
        let command = [DLOCK, "one-way", what, &address];
        self.container(from)?.run("root", &command).await.map(drop)
    }

    fn look(&self, node: &mut Node) -> Result<NodeState, RunError> {
        if let Some(ended) = node.ended {
            return Ok(ended);
        }
        if node.frozen {
            return Ok(NodeState::Stopped);
        }
        // The kernel is asked first: it answers in microseconds, and this is asked a hundred times a second.
        match child_of(node.init) {
            Some(child) if stopped(child) => return Ok(NodeState::Stopped),
            Some(_) => return Ok(NodeState::Running),
            None => {}
        }
        let seen = self.inspector.inspect(&node.container)?;
        if seen.running {
            return Ok(NodeState::Running);
        }
        let number = |code: i64| i32::try_from(code).unwrap_or(i32::MAX);
        let ended = if seen.exit_code > SIGNALLED {
            NodeState::Signalled(number(seen.exit_code - SIGNALLED))
        } else {
            NodeState::Exited(number(seen.exit_code))
        };
        node.ended = Some(ended);
        Ok(ended)
    }
}

/// The process that the init of a container started, as this machine numbers it.
fn child_of(init: i64) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{init}/task/{init}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

impl Stack for ContainerStack {
    fn host(&self) -> &Host {
        self.lab.host()
    }

    fn links(&self) -> Links {
        self.links.borrow().clone()
    }

    fn spec(&self) -> &StackSpec {
        &self.spec
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn worker(&self, spec: WorkerSpec) -> Step<'_, ()> {
        Box::pin(async move {
            let links = Links {
                lock_server: url_inside(LOCK_SERVER),
                payments: url_inside(PAYMENT_RESOURCE),
                rail_proxy: url_inside(RAIL_PROXY),
                rail_stub: url_inside(RAIL_STUB),
            };
            let start = Start {
                component: WORKER,
                args: worker_arguments(&links, &spec),
                settings: worker_settings(&self.spec, &self.dir, &spec),
                networks: BTreeSet::new(),
            };
            self.launch(&spec.name, start).await.map(drop)
        })
    }

    fn workers(&self) -> Vec<String> {
        let nodes = self.nodes.borrow();
        let workers = nodes.iter().filter(|(_, node)| node.component == WORKER);
        workers.map(|(name, _)| name.clone()).collect()
    }

    fn hurt(&self, node: &str, hurt: Hurt) -> Result<(), RunError> {
        self.node(node, |found| {
            if self.look(found)?.ended() {
                return Err(RunError::Other(format!("{node} has ended already")));
            }
            let signal = match hurt {
                Hurt::Pause => Signal::Pause,
                Hurt::Resume if found.frozen => Signal::Unpause,
                // One that stopped itself at a fault point.
                Hurt::Resume => Signal::Named("CONT"),
                Hurt::Kill => Signal::Named("KILL"),
                Hurt::Terminate => Signal::Named("TERM"),
            };
            // A frozen process takes no signal before it is thawed.
            if found.frozen && matches!(hurt, Hurt::Kill | Hurt::Terminate) {
                self.inspector.signal(&found.container, Signal::Unpause)?;
                found.frozen = false;
            }
            if !(hurt == Hurt::Pause && found.frozen) {
                self.inspector.signal(&found.container, signal)?;
            }
            match hurt {
                Hurt::Pause => found.frozen = true,
                Hurt::Resume => found.frozen = false,
                Hurt::Kill | Hurt::Terminate => {}
            }
            Ok(())
        })?;
        self.events.hurt(node, hurt);
        Ok(())
    }

    fn state(&self, node: &str) -> Result<NodeState, RunError> {
        let state = self.node(node, |found| self.look(found))?;
        self.events.seen(node, state);
        Ok(state)
    }

    fn node_events(&self) -> Vec<NodeEvent> {
        self.events.events()
    }

    fn restart<'a>(&'a self, node: &'a str) -> Step<'a, ()> {
        Box::pin(async move {
            let container = self.node(node, |found| {
                let ended = self.look(found)?.ended();
                Ok(ended.then(|| found.container.clone()))
            })?;
            let container = container.ok_or_else(|| RunError::Other(format!("{node} has not ended")))?;
            container.restart().await?;
            let init = self.inspector.inspect(&container)?.pid;
            self.node(node, |found| {
                (found.init, found.ended, found.frozen) = (init, None, false);
                Ok(())
            })?;
            self.events.started(node);
            self.ready(node).await.map(drop)
        })
    }

    fn url(&self, node: &str) -> Result<String, RunError> {
        self.node(node, |found| {
            Ok(format!("http://127.0.0.1:{}", found.container.host_port()))
        })
    }

    fn log(&self, node: &str) -> Result<Vec<Value>, RunError> {
        let text = self.node(node, |found| self.inspector.log(&found.container))?;
        Ok(parsed_log(text.as_bytes()))
    }

    fn history_files(&self) -> Vec<PathBuf> {
        super::history_files_in(&self.dir)
    }

    fn network(&self) -> Option<&dyn Network> {
        Some(self)
    }

    fn stop(&self) -> Step<'_, ()> {
        Box::pin(async move {
            let nodes = self.nodes.borrow().keys().cloned().collect();
            drain(self, nodes, DRAIN_WITHIN).await
        })
    }
}

impl Network for ContainerStack {
    fn disconnect<'a>(&'a self, node: &'a str) -> Step<'a, ()> {
        Box::pin(async move {
            let container = self.container(node)?;
            container.leave(&self.inner).await
        })
    }

    fn connect<'a>(&'a self, node: &'a str) -> Step<'a, ()> {
        Box::pin(async move {
            let container = self.container(node)?;
            container.join(&self.inner, &inside(node)).await
        })
    }

    fn reaches<'a>(&'a self, from: &'a str, to: &'a str) -> Step<'a, bool> {
        Box::pin(async move {
            let container = self.container(from)?;
            let url = url_inside(to);
            let ask = [DLOCK, "healthcheck", &url, "--path", "/livez"];
            Ok(container.exec("", &ask).await?.0 == 0)
        })
    }

    fn cut_one_way<'a>(&'a self, from: &'a str, to: &'a str) -> Step<'a, ()> {
        Box::pin(self.one_way(from, "cut", to))
    }

    fn mend_one_way<'a>(&'a self, from: &'a str, to: &'a str) -> Step<'a, ()> {
        Box::pin(self.one_way(from, "mend", to))
    }

    fn arrives<'a>(&'a self, from: &'a str, to: &'a str) -> Step<'a, bool> {
        Box::pin(async move {
            let there = self.container(to)?;
            let hear = async {
                match there.exec("", &[DLOCK, "one-way", "hear"]).await? {
                    (0, _) => Ok(true),
                    (1, _) => Ok(false),
                    (code, said) => Err(RunError::Other(format!("listening in {to}: exit code {code}: {said}"))),
                }
            };
            let (heard, ()) = tokio::try_join!(hear, self.one_way(from, "say", to))?;
            Ok(heard)
        })
    }
}

impl Drop for ContainerStack {
    fn drop(&mut self) {
        for node in self.nodes.get_mut().values() {
            if let Err(error) = self.inspector.remove(&node.container) {
                tracing::warn!(event = "container_left", %error);
            }
        }
    }
}
