//! A stack: one whole dlock, running somewhere, that scenarios use and hurt.
//!
//! Owns: what a scenario may ask of any stack (start a worker, hurt a node, await its state, read what it left), so
//! that the same scenario runs on child processes and on containers, and inside one simulated process later.
//! Does not own: what a scenario does; how a kind of stack does it (`processes.rs`,
//! `containers.rs`).
//! On failure: [`RunError`]: the run could not be made. That is never a verdict.

pub mod containers;
mod node_log;
pub mod one_way;
pub mod processes;
mod reaper;

use crate::history::Call;
use crate::model::NodeEvent;
use crate::servers::Stores;
use crate::wire::Wires;
use futures_util::future::LocalBoxFuture;
use host_kit::Host;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Something of the machine.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// A node did not start.
    #[error("{node} did not start: {detail}")]
    NotStarted {
        /// Which.
        node: String,
        /// What was seen.
        detail: String,
    },
    /// A state was awaited in vain.
    #[error("{what}: not within {within:?}")]
    NeverCame {
        /// What was awaited.
        what: String,
        /// For how long.
        within: Duration,
    },
    /// A call failed that must not.
    #[error("{what}: {error}")]
    Call {
        /// Which call.
        what: String,
        /// How.
        error: http_client::CallError,
    },
    /// A history could not be read.
    #[error(transparent)]
    History(#[from] crate::history::HistoryError),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl RunError {
    /// An operating system's error with what was being done.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io(what, error)
    }

    /// A failed call with what was being done.
    pub fn call(what: impl Into<String>) -> impl FnOnce(http_client::CallError) -> Self {
        let what = what.into();
        move |error| Self::Call { what, error }
    }
}

/// A future of a stack.
pub type Step<'a, T> = LocalBoxFuture<'a, Result<T, RunError>>;

/// Where the components of a stack listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// The lock server.
    pub lock_server: String,
    /// The payment resource.
    pub payments: String,
    /// The rail proxy.
    pub rail_proxy: String,
    /// The rail itself.
    pub rail_stub: String,
}

/// What a stack is asked to be. Settings carry the names of the configuration; what is not named has its default.
#[derive(Clone, Debug)]
pub struct StackSpec {
    /// Where its stores are; embedded, in a directory of its own, where nothing is said.
    pub stores: Stores,
    /// Fence point (a) stands.
    pub payment_fencing: bool,
    /// Fence point (c) stands.
    pub rail_fencing: bool,
    /// A wire lies on each link between its components, their stores and its workers; its chances hang on this seed.
    pub wired: Option<u64>,
    /// Everything else, for every component.
    pub settings: BTreeMap<String, String>,
}

impl StackSpec {
    /// A lab stack: both fences on, and times short enough that a pause past the lease takes a second or two.
    #[must_use]
    pub fn quick() -> Self {
        let settings = [
            ("lock.session.ttl", "1500ms"),
            ("lock.grant.ttl", "1500ms"),
            ("lock.heartbeat.interval", "300ms"),
            ("lock.client.safety-margin", "200ms"),
            ("rail.read-timeout", "600ms"),
            ("executor.rail-timeout", "1200ms"),
            ("rail.visibility-horizon", "800ms"),
            ("executor.poll.interval", "100ms"),
            ("executor.reconcile.interval", "200ms"),
            ("executor.ambiguous-sla", "3s"),
            // A machine that compiles beside the run keeps a database waiting; no scenario wants a call given up for that.
            ("lock.store.timeout", "4s"),
            ("payment.store.timeout", "4s"),
            ("rail.store.timeout", "4s"),
        ];
        Self {
            stores: Stores::default(),
            payment_fencing: true,
            rail_fencing: true,
            wired: None,
            settings: settings
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    /// The same for a scenario in which the rail keeps its answer back from nobody: a slow machine is then not taken for
    /// a silent rail, which would turn a payment into an ambiguous one.
    #[must_use]
    pub fn patient(self) -> Self {
        self.with("rail.read-timeout", "10s")
            .with("executor.rail-timeout", "20s")
            .with("rail.visibility-horizon", "15s")
    }

    /// The same with the debug control, by which actors are paused and made to panic.
    #[must_use]
    pub fn controlled(self) -> Self {
        self.with("debug.endpoints", "true").with("debug.control", "true")
    }

    /// The same with one setting changed.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same with a wire on every link, so that links can be hurt. The harness itself still asks directly.
    #[must_use]
    pub const fn wired(mut self, seed: u64) -> Self {
        self.wired = Some(seed);
        self
    }

    /// The same with these switches.
    #[must_use]
    pub const fn fencing(mut self, payment: bool, rail: bool) -> Self {
        self.payment_fencing = payment;
        self.rail_fencing = rail;
        self
    }
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Pays.
    Pay,
    /// Resolves ambiguous payouts.
    Reconcile,
    /// Both.
    Both,
}

impl Role {
    /// As the command line names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pay => "pay",
            Self::Reconcile => "reconcile",
            Self::Both => "both",
        }
    }
}

/// A worker to be started.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// Its name, the owner of its session; each start of a stack's worker has its own.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// Where its operator's endpoints listen; a free port where nothing is said.
    pub listen: Option<String>,
    /// Whether it writes what it sees, for the verdicts.
    pub history: bool,
    /// Settings of its own, over the stack's.
    pub settings: BTreeMap<String, String>,
}

impl WorkerSpec {
    /// A worker that does one payout at a time.
    #[must_use]
    pub fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.to_owned(),
            role,
            listen: None,
            history: true,
            settings: BTreeMap::from([("executor.concurrency".to_owned(), "1".to_owned())]),
        }
    }

    /// The same with one setting changed.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same, told to do something at a fault point (`executor.before_claim`, `kill`).
    #[must_use]
    pub fn fault(self, point: &str, action: &str) -> Self {
        self.with("debug.fault-points", &format!("{point}={action}"))
    }
}

/// The lock server's node name.
pub const LOCK_SERVER: &str = "lock-server";
/// The payment resource's node name.
pub const PAYMENT_RESOURCE: &str = "payment-resource";
/// The rail proxy's node name.
pub const RAIL_PROXY: &str = "rail-proxy";
/// The rail stub's node name.
pub const RAIL_STUB: &str = "rail-stub";

/// What can be done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurt {
    /// Stopped where it stands (SIGSTOP).
    Pause,
    /// Runs on (SIGCONT).
    Resume,
    /// Gone at once (SIGKILL).
    Kill,
    /// Asked to end (SIGTERM): drains and exits.
    Terminate,
}

/// What a node can be seen to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Running or waiting.
    Running,
    /// Stopped by a signal.
    Stopped,
    /// Ended by itself with this code.
    Exited(i32),
    /// Ended by this signal.
    Signalled(i32),
}

impl NodeState {
    /// Whether it has ended.
    #[must_use]
    pub const fn ended(self) -> bool {
        matches!(self, Self::Exited(_) | Self::Signalled(_))
    }
}

/// One whole dlock that scenarios use and hurt.
pub trait Stack {
    /// The harness's own clock, randomness and ids.
    fn host(&self) -> &Host;
    /// Where its components listen.
    fn links(&self) -> Links;
    /// The wires on its links, where it was asked for them.
    fn wires(&self) -> Option<&Wires> {
        None
    }
    /// What it was asked to be.
    fn spec(&self) -> &StackSpec;
    /// Where histories and evidence of this stack are kept.
    fn dir(&self) -> &Path;
    /// Starts a worker and returns once it is ready, or has ended, or stands still at a fault point.
    fn worker(&self, spec: WorkerSpec) -> Step<'_, ()>;
    /// The names of all workers that were ever started.
    fn workers(&self) -> Vec<String>;
    /// Does something to a node.
    ///
    /// # Errors
    /// When there is no such node or it has ended.
    fn hurt(&self, node: &str, hurt: Hurt) -> Result<(), RunError>;

    /// As [`Stack::hurt`], for a node that may end at any moment: a drained one is gone within a millisecond, between two
    /// signals.
    ///
    /// # Errors
    /// As [`Stack::hurt`], unless the node has ended.
    fn hurt_unless_ended(&self, node: &str, hurt: Hurt) -> Result<(), RunError> {
        match self.hurt(node, hurt) {
            Err(_) if self.state(node)?.ended() => Ok(()),
            result => result,
        }
    }
    /// What the node is now.
    ///
    /// # Errors
    /// When there is no such node.
    fn state(&self, node: &str) -> Result<NodeState, RunError>;
    /// Starts a component again that has ended, on the same address and store.
    fn restart<'a>(&'a self, node: &'a str) -> Step<'a, ()>;
    /// As [`Stack::restart`], with these settings over the ones it was first started with, for this start alone. Returns
    /// once it is ready, or has ended or stands still at a fault point.
    ///
    /// # Errors
    /// When it does not start, or this kind of stack cannot do it.
    fn restart_with<'a>(&'a self, node: &'a str, settings: BTreeMap<String, String>) -> Step<'a, ()> {
        let _ = settings;
        Box::pin(async move {
            Err(RunError::Other(format!(
                "{node} cannot be given other settings in this kind of stack"
            )))
        })
    }
    /// Where a node listens, a worker's operator endpoints included.
    ///
    /// # Errors
    /// When there is no such node or it has never been ready.
    fn url(&self, node: &str) -> Result<String, RunError> {
        let links = self.links();
        match node {
            LOCK_SERVER => Ok(links.lock_server),
            PAYMENT_RESOURCE => Ok(links.payments),
            RAIL_PROXY => Ok(links.rail_proxy),
            RAIL_STUB => Ok(links.rail_stub),
            _ => Err(RunError::Other(format!("nothing is known of where {node} listens"))),
        }
    }
    /// What the node logged so far, one JSON object a line.
    ///
    /// # Errors
    /// When there is no such node or its log cannot be read.
    fn log(&self, node: &str) -> Result<Vec<serde_json::Value>, RunError>;
    /// What was done to its nodes and what was seen of them so far, in time order.
    fn node_events(&self) -> Vec<NodeEvent>;
    /// The history files of its workers.
    fn history_files(&self) -> Vec<PathBuf>;
    /// Its network, where nodes can be taken out of one.
    fn network(&self) -> Option<&dyn Network> {
        None
    }
    /// Ends everything, politely first, and returns once it has ended.
    fn stop(&self) -> Step<'_, ()>;
}

/// A network that nodes of a stack can be taken out of.
pub trait Network {
    /// Takes a node out: nothing of the stack reaches it, nor it anything. The harness still does.
    fn disconnect<'a>(&'a self, node: &'a str) -> Step<'a, ()>;
    /// Puts it back.
    fn connect<'a>(&'a self, node: &'a str) -> Step<'a, ()>;
    /// Whether one node gets an answer from another over that network.
    fn reaches<'a>(&'a self, from: &'a str, to: &'a str) -> Step<'a, bool>;
    /// Loses whatever one node sends another one, without a word; the other direction goes on.
    fn cut_one_way<'a>(&'a self, from: &'a str, to: &'a str) -> Step<'a, ()>;
    /// Loses it no more.
    fn mend_one_way<'a>(&'a self, from: &'a str, to: &'a str) -> Step<'a, ()>;
    /// Whether what one node sends another one arrives there, answered or not.
    fn arrives<'a>(&'a self, from: &'a str, to: &'a str) -> Step<'a, bool>;
}

/// The arguments of a worker that finds the components there.
fn worker_arguments(links: &Links, spec: &WorkerSpec) -> Vec<String> {
    [
        ("--lock-server", links.lock_server.as_str()),
        ("--payments", &links.payments),
        ("--rail-proxy", &links.rail_proxy),
        ("--owner", &spec.name),
        ("--role", spec.role.as_str()),
    ]
    .into_iter()
    .flat_map(|(flag, value)| [flag.to_owned(), value.to_owned()])
    .collect()
}

/// The settings of a worker of such a stack, whose files are in `dir`.
fn worker_settings(stack: &StackSpec, dir: &Path, spec: &WorkerSpec) -> BTreeMap<String, String> {
    let mut settings = stack.settings.clone();
    settings.extend(spec.settings.clone());
    if spec.history {
        let file = dir.join(format!("{}.history.jsonl", spec.name));
        settings.insert("debug.history-file".to_owned(), file.display().to_string());
    }
    settings
}

/// A setting's name as an environment variable (C5.2).
pub(crate) fn variable(setting: &str) -> String {
    format!("DLOCK_{}", setting.to_uppercase().replace(['.', '-'], "_"))
}

/// The lines of a log that are JSON.
fn parsed_log(text: &[u8]) -> Vec<serde_json::Value> {
    text.split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

/// The history files in a directory.
fn history_files_in(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.to_string_lossy().ends_with(".history.jsonl"))
                .collect()
        })
        .unwrap_or_default();
    files.sort();
    files
}

/// How often a state is looked at while it is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Awaits that `look` finds something, with a bound.
///
/// # Errors
/// [`RunError::NeverCame`] after `within`, or whatever `look` failed with.
pub async fn eventually<T>(
    host: &Host,
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>, RunError>,
) -> Result<T, RunError> {
    let end = host.clock.mono() + within;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if host.clock.mono() >= end {
            return Err(RunError::NeverCame {
                what: what.to_owned(),
                within,
            });
        }
        host.clock.sleep(LOOK_EVERY).await;
    }
}

/// Asks these nodes to end (SIGTERM) and awaits that all have. One that is stopped, or stops itself on its way at a fault
/// point it comes by only now, is continued as often as it takes.
///
/// # Errors
/// [`RunError::NeverCame`] naming a node that has not ended within `within`; else when one cannot be told or looked at.
pub async fn ask_to_end(stack: &dyn Stack, nodes: &[String], within: Duration) -> Result<(), RunError> {
    for node in nodes {
        stack.hurt_unless_ended(node, Hurt::Terminate)?;
        stack.hurt_unless_ended(node, Hurt::Resume)?;
    }
    for node in nodes {
        eventually(stack.host(), &format!("{node} ended"), within, async || {
            let state = stack.state(node)?;
            if state == NodeState::Stopped {
                stack.hurt_unless_ended(node, Hurt::Resume)?;
            }
            Ok(state.ended().then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Asks these nodes to end, and kills those that have not ended within `within`.
///
/// # Errors
/// When a node cannot be told or looked at.
async fn drain(stack: &dyn Stack, nodes: Vec<String>, within: Duration) -> Result<(), RunError> {
    // Workers first, so that they can still release what they hold.
    let workers = stack.workers();
    let components = nodes.into_iter().filter(|name| !workers.contains(name)).collect();
    for group in [workers.clone(), components] {
        if let Err(error) = ask_to_end(stack, &group, within).await {
            tracing::warn!(event = "drain_too_slow", %error);
            for name in &group {
                stack.hurt_unless_ended(name, Hurt::Kill)?;
            }
        }
    }
    Ok(())
}

/// Awaits that a node is as demanded, with a bound.
///
/// # Errors
/// [`RunError::NeverCame`] after `within`.
pub async fn await_node(
    stack: &dyn Stack,
    node: &str,
    what: &str,
    within: Duration,
    is: impl Fn(NodeState) -> bool,
) -> Result<NodeState, RunError> {
    eventually(stack.host(), &format!("{node} {what}"), within, async || {
        Ok(Some(stack.state(node)?).filter(|state| is(*state)))
    })
    .await
}

/// Everything the stack's workers saw.
///
/// # Errors
/// When a history cannot be read.
pub fn histories(stack: &dyn Stack) -> Result<Vec<Call>, RunError> {
    let mut calls = Vec::new();
    for path in stack.history_files() {
        // A worker that was killed before its first call has left no file.
        if path.exists() {
            calls.extend(crate::history::read(&path)?);
        }
    }
    calls.sort_by_key(|call| call.invoked_us);
    Ok(calls)
}
