//! The fence kit in random chaos: a table of PostgreSQL and an HTTP service, neither of which knows locks, written by
//! holders of real locks that are paused past their lease and killed at random, while the lock server stands still, the
//! fencing proxy is killed, and the links between all of them are cut, silent and slow, send requests twice and deliver them
//! late. With the kit on nothing stale is written; with it off something is, or the run proves nothing.
//!
//! ```text
//! workers ─acquire─ lock server (paused)
//!    │ ├─ write under the token ─▶ table: dlock_fence + trigger         off: the bare table
//!    │ └─ POST X-Fencing-Token ─▶ dlock fence-proxy (killed) ─▶ service  off: the service itself
//!    └ paused past the lease, killed and started anew, as the seed says
//! each line is a wire, hurt in a lane of its own (`links`)
//! ```
//!
//! Owns: the workload, its processes, what is done to them and to their links, its checks.
//! Does not own: the worker's program, a hidden verb of the binary; the kit; wires.
//! On failure: what could not be run is an error; a stale write behind the kit is a failed check.

mod links;
mod service;
mod table;

use crate::evidence::{Apis, collect_locks};
use crate::invariant::{Invariant, Verdict};
use crate::report::{Check, Measured, ScenarioReport, StepTaken};
use crate::scenario::Setup;
use crate::servers::backends::{LockBackend, PayBackend};
use crate::stack::{Hurt, LOCK_SERVER, RunError, Stack, StackSpec, eventually, variable};
use crate::wire::{Counts, Protocol, Wires};
use host_kit::{Random, Reserved};
use links::{SERVICE, TABLE};
use lock_api::LockKey;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use service::{Effect, Service};
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;
use table::Table;

/// The verb of the binary that is one worker.
pub const WORKER_VERB: &str = "fence-kit-worker";
/// Processes that write.
const WORKERS: usize = 6;
/// Keys they write under: few, so that a paused holder is overtaken.
const KEYS: u64 = 3;
/// How long a worker is paused: well past its lease of 1.5 s.
const PAUSED: Duration = Duration::from_millis(2_200);
/// How many are paused at most: the others have to overtake them.
const STOPPED_MAX: usize = 3;
/// What the service promises the proxy: no effect later than this after its connection was closed. It holds a request for
/// half a second at most, and what lies on the way between them is late by as much (`links`).
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// How long after the last fault the workers may take to write again. Generous: the machine may be busy.
const WRITES_WITHIN: Duration = Duration::from_secs(60);
/// A half that has not shown yet what it is for goes on, at most so often and each time at most so long.
const MORE_ROUNDS: u64 = 4;
const MORE: Duration = Duration::from_secs(8);
/// How often is looked whether they do.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long what is still on its way when the links are whole may take to arrive.
const ARRIVES_WITHIN: Duration = Duration::from_secs(1);
/// How long the proxy may take to listen.
const UP_WITHIN: Duration = Duration::from_secs(60);

/// The verdicts that have anything to look at here.
const JUDGED: [Invariant; 2] = [Invariant::Inv01, Invariant::Inv04];

/// What is asked of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long each half goes on.
    pub lasting: Duration,
    /// With the kit, without it, or both.
    pub fences: Vec<Fence>,
    /// The kit's script for PostgreSQL.
    pub install: &'static str,
}

/// Whether the kit stands before the table and the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// It does.
    On,
    /// It does not.
    Off,
}

impl Fence {
    /// As a word of a command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {}", self.as_str())
    }
}

/// The key number `n`: the lock's, the table's and the path's.
#[must_use]
pub fn key(n: u64) -> String {
    format!("accounts/{n}")
}

/// What one half came to.
#[derive(Debug, Default)]
struct Outcome {
    table: Vec<Effect>,
    service: Vec<Effect>,
    /// What the workers were answered, by kind.
    answers: BTreeMap<String, u64>,
    done: BTreeMap<&'static str, u64>,
    /// What was done to the links, and what their wires made of it.
    links: Vec<(links::Hurt, Counts)>,
    /// From the last fault to a write of the table and an effect of the service.
    writes_again: Option<Duration>,
}

/// Effects under a token below one that had its effect before.
fn stale(effects: &[Effect]) -> usize {
    let mut highest = BTreeMap::<&str, u64>::new();
    let mut stale = 0;
    for (key, token) in effects {
        let known = highest.entry(key).or_default();
        stale += usize::from(token < known);
        *known = (*known).max(*token);
    }
    stale
}

/// Runs it.
///
/// # Errors
/// When it cannot be run: without a PostgreSQL for the table, for one.
pub async fn run(setup: &Setup, plan: &Plan) -> Result<ScenarioReport, RunError> {
    let clock = &setup.lab.host().clock;
    let began = clock.mono();
    let mut report = ScenarioReport::new(
        "FENCE-KIT",
        "a table and a service that know no locks, their writers paused and killed, their links cut at random",
        setup.seed,
    );
    report.verdicts = JUDGED.map(Verdict::new).to_vec();
    for fence in &plan.fences {
        let (outcome, verdicts) = half(setup, plan, *fence).await?;
        for (sum, verdict) in report.verdicts.iter_mut().zip(&verdicts) {
            sum.absorb(verdict, &fence.to_string());
        }
        let at_ms = u64::try_from(clock.mono().saturating_sub(began).as_millis()).unwrap_or(u64::MAX);
        let (table, service) = (stale(&outcome.table), stale(&outcome.service));
        report.steps.push(StepTaken {
            at_ms,
            text: format!(
                "{fence}: table {table} stale of {} writes, service {service} stale of {} effects; {:?}; told and refused {:?}",
                outcome.table.len(),
                outcome.service.len(),
                outcome.done,
                outcome.answers
            ),
        });
        for (hurt, counts) in &outcome.links {
            report.steps.push(StepTaken {
                at_ms,
                text: format!(
                    "{fence}: links to the {}: {:?}, {} met nobody; {}",
                    hurt.to,
                    hurt.seen(),
                    hurt.unseen(),
                    links::in_words(counts)
                ),
            });
            report.measured.push(Measured {
                what: format!(
                    "{fence}: longest until the {} answered through a link that was whole again",
                    hurt.to
                ),
                ms: hurt.longest_ms(),
                wanted_ms: None,
            });
        }
        if let Some(after) = outcome.writes_again {
            report.measured.push(Measured {
                what: format!("{fence}: from the last fault to a write of the table and an effect of the service"),
                ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
                wanted_ms: None,
            });
        }
        let mut check = |what: &str, expected: String, measured: String| {
            report.checks.push(Check {
                what: format!("{fence}: {what}"),
                expected,
                measured,
            });
        };
        let told = |kind: &str| outcome.answers.get(kind).is_some_and(|count| *count > 0);
        let mut holds = |what: &str, holds: bool| check(what, true.to_string(), holds.to_string());
        holds(
            "the table was written, the service did something",
            !outcome.table.is_empty() && !outcome.service.is_empty(),
        );
        holds(
            "workers were paused past their lease",
            outcome.done.contains_key("worker paused"),
        );
        for (hurt, _) in &outcome.links {
            holds(&format!("links to the {} were hurt", hurt.to), !hurt.seen().is_empty());
        }
        holds(
            "every link answered again",
            outcome.links.iter().all(|(hurt, _)| hurt.ill.is_none()),
        );
        holds(
            "the table was written and the service did something after the last fault",
            outcome.writes_again.is_some(),
        );
        let late = resource_of(*fence, &outcome.links);
        holds(
            "requests were delivered after their callers had gone",
            late.delivered_late > 0,
        );
        match fence {
            Fence::On => {
                holds("stale writes were refused by the table", told("table LK001"));
                holds("stale requests were refused by the proxy", told("refused FENCED_OUT"));
                holds(
                    "some that were delivered after their callers had gone were turned away",
                    late.late_turned_away > 0,
                );
                check("stale writes of the table", "0".to_owned(), table.to_string());
                check("stale effects of the service", "0".to_owned(), service.to_string());
            }
            // The control: without it the run shows nothing.
            Fence::Off => {
                holds("the table has stale writes, else this run is void", table > 0);
                holds("the service has stale effects, else this run is void", service > 0);
            }
        }
        let dir = dir_of(setup, *fence).display().to_string();
        if report.dir.is_empty() {
            report.dir = dir;
        } else {
            report.more_dirs.push(dir);
        }
    }
    report.took_ms = u64::try_from(clock.mono().saturating_sub(began).as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

/// Where workers send their requests.
const fn resource(fence: Fence) -> &'static str {
    match fence {
        Fence::On => PROXY,
        Fence::Off => SERVICE,
    }
}

/// What the wires to it have done.
fn resource_of(fence: Fence, links: &[(links::Hurt, Counts)]) -> Counts {
    let of = links.iter().find(|(hurt, _)| hurt.to == resource(fence));
    of.map(|(_, counts)| *counts).unwrap_or_default()
}

fn dir_of(setup: &Setup, fence: Fence) -> PathBuf {
    setup.root.join(format!("fence-kit-{}", fence.as_str()))
}

/// The database of the table: where the run's paydb or lock store is.
fn database(setup: &Setup) -> Result<&str, RunError> {
    match (&setup.backends.pay, &setup.backends.lock) {
        (PayBackend::Pg(url), _) | (_, LockBackend::Pg(url)) => Ok(url),
        _ => Err(RunError::Other(
            "fence-kit needs a PostgreSQL for its table: --pay-store pg, --store pg, or a URL".to_owned(),
        )),
    }
}

async fn half(setup: &Setup, plan: &Plan, fence: Fence) -> Result<(Outcome, Vec<Verdict>), RunError> {
    let host = setup.lab.host();
    let dir = dir_of(setup, fence);
    let spec = StackSpec {
        stores: setup.backends.fresh().await?,
        ..StackSpec::quick()
    };
    let stack = setup.lab.lock_server(&dir, spec).await?;
    let schema = format!("fence_kit_{}_{:x}", fence.as_str(), host.random.u64());
    let table = Table::make(database(setup)?, &schema, KEYS, fence, plan.install).await?;
    let service = Service::serve(&host.clock).await?;
    let proxy = (fence == Fence::On).then(Reserved::loopback).transpose();
    let mut crew = Crew {
        setup,
        dir: dir.clone(),
        lock_server: stack.links().lock_server,
        settings: stack.spec().settings.clone(),
        database: table.url.clone(),
        service: service.address.clone(),
        proxy: proxy.map_err(RunError::io("keeping a port"))?,
        wires: Rc::new(Wires::new(setup.seed)),
        fence,
        children: BTreeMap::new(),
        stopped: BTreeMap::new(),
        started: 0,
    };
    crew.start_proxy().await?;
    for n in 1..=WORKERS {
        crew.start_worker(&format!("W{n}"))?;
    }
    (setup.say)(&format!("{fence}: {WORKERS} processes write"));
    let mut outcome = Outcome::default();
    let lanes = links::lanes(resource(fence));
    let wires = Rc::clone(&crew.wires);
    let (began, mut hurt) = (host.clock.mono(), links::none(&lanes));
    for round in 0..=MORE_ROUNDS {
        let lasting = if round == 0 {
            plan.lasting
        } else {
            MORE.min(plan.lasting)
        };
        let seed = setup.seed.wrapping_add(round);
        let (disturbed, struck) = futures_util::future::join(
            disturb(&mut crew, &stack, seed, lasting, &mut outcome.done),
            links::strike(&lanes, &wires, host, seed, began, lasting, &mut hurt),
        )
        .await;
        disturbed?;
        struck?;
        if shown(fence, &dir, &table, &service, &wires).await? {
            break;
        }
    }
    outcome.writes_again = calm(&mut crew, &table, &service).await?;
    let answers = dir.clone();
    drop(crew);
    super::keep(
        stack.dir(),
        "link-faults.json",
        &hurt.iter().flat_map(|hurt| &hurt.struck).collect::<Vec<_>>(),
    )?;
    outcome.links = hurt
        .into_iter()
        .map(|hurt| {
            let counts = links::sum(&wires, hurt.to);
            (hurt, counts)
        })
        .collect();
    outcome.answers = answered(&answers)?;
    outcome.table = table.effects().await?;
    outcome.service = service.effects();
    table.drop_schema().await?;
    let evidence = collect_locks(&Apis::new(&stack.links(), host), Vec::new()).await?;
    super::keep(stack.dir(), "evidence.json", &evidence)?;
    let verdicts = JUDGED.map(|invariant| invariant.check(&evidence)).to_vec();
    stack.stop().await?;
    Ok((outcome, verdicts))
}

/// Whether a half has met what it is for: stale writes that were refused, late requests among them; or that were not.
async fn shown(fence: Fence, dir: &Path, table: &Table, service: &Service, wires: &Wires) -> Result<bool, RunError> {
    let late = links::sum(wires, resource(fence));
    let answers = answered(dir)?;
    Ok(match fence {
        Fence::On => {
            late.late_turned_away > 0
                && answers.contains_key("table LK001")
                && answers.contains_key("refused FENCED_OUT")
        }
        Fence::Off => late.delivered_late > 0 && stale(&table.effects().await?) > 0 && stale(&service.effects()) > 0,
    })
}

/// What is done to the processes until the time is up, as the seed says.
async fn disturb(
    crew: &mut Crew<'_>,
    stack: &impl Stack,
    seed: u64,
    lasting: Duration,
    done: &mut BTreeMap<&'static str, u64>,
) -> Result<(), RunError> {
    let host = crew.setup.lab.host();
    let (clock, apis) = (host.clock.clone(), Apis::new(&stack.links(), host));
    let random = Random::seeded(seed ^ 0x6665_6e63_6500);
    let end = clock.mono() + lasting;
    while clock.mono() < end {
        clock.sleep(random.up_to(Duration::from_millis(300))).await;
        crew.revive()?;
        let now = clock.mono();
        crew.wake(now)?;
        let mut worker = format!("W{}", 1 + random.below(WORKERS as u64));
        let what = match random.below(20) {
            0..=15 if crew.stopped.len() < STOPPED_MAX => {
                if random.chance(0.7)
                    && let Some(holder) = holder(&apis, &key(random.below(KEYS))).await
                {
                    worker = holder;
                }
                if crew.stopped.contains_key(&worker) {
                    continue;
                }
                crew.signal(&worker, Signal::SIGSTOP)?;
                crew.stopped
                    .insert(worker, clock.mono() + PAUSED + random.up_to(PAUSED / 2));
                "worker paused"
            }
            16 | 17 => {
                crew.end(&worker);
                crew.stopped.remove(&worker);
                crew.start_worker(&worker)?;
                "worker killed"
            }
            18 => {
                stack.hurt(LOCK_SERVER, Hurt::Pause)?;
                clock.sleep(random.up_to(Duration::from_millis(1_500))).await;
                stack.hurt(LOCK_SERVER, Hurt::Resume)?;
                "lock server paused"
            }
            19 if crew.fence == Fence::On => {
                crew.end(PROXY);
                crew.start_proxy().await?;
                "proxy killed"
            }
            _ => continue,
        };
        *done.entry(what).or_default() += 1;
    }
    Ok(())
}

/// Nothing is done any more: who was stopped has time to write what it had in mind, and what is on its way to arrive. Answers
/// after how long both the table and the service had something new; nothing where they had not.
async fn calm(crew: &mut Crew<'_>, table: &Table, service: &Service) -> Result<Option<Duration>, RunError> {
    let host = crew.setup.lab.host();
    let clock = &host.clock;
    let began = clock.mono();
    let written = async || Ok::<_, RunError>((table.effects().await?.len(), service.effects().len()));
    let before = written().await?;
    clock.sleep(PAUSED).await;
    crew.wake(Duration::MAX)?;
    clock.sleep(ARRIVES_WITHIN).await;
    while clock.mono().saturating_sub(began) < WRITES_WITHIN {
        crew.revive()?;
        let now = written().await?;
        if now.0 > before.0 && now.1 > before.1 {
            return Ok(Some(clock.mono().saturating_sub(began)));
        }
        clock.sleep(LOOK_EVERY).await;
    }
    Ok(None)
}

/// Who holds a key, as the lock server has it.
async fn holder(apis: &Apis, key: &str) -> Option<String> {
    let key = LockKey::new(key).ok()?;
    let view = apis.locks.lock(&key, &apis.trace()).await.ok()?;
    Some(view.holder?.owner)
}

const PROXY: &str = "fence-proxy";

/// The processes of one half. Dropped, they are killed.
struct Crew<'a> {
    setup: &'a Setup,
    dir: PathBuf,
    lock_server: String,
    settings: BTreeMap<String, String>,
    database: String,
    /// The service itself.
    service: String,
    /// Where the proxy listens, each time it is started; none where nothing is fenced.
    proxy: Option<Reserved>,
    wires: Rc<Wires>,
    fence: Fence,
    children: BTreeMap<String, Child>,
    /// Until when the stopped ones are.
    stopped: BTreeMap<String, Duration>,
    started: u64,
}

impl Crew<'_> {
    fn spawn(&mut self, name: &str, command: &mut Command) -> Result<(), RunError> {
        for (inherited, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
            command.env_remove(inherited);
        }
        for (setting, value) in &self.settings {
            command.env(variable(setting), value);
        }
        let file = |kind: &str| {
            let path = self.dir.join(format!("{name}-{}.{kind}", self.started));
            std::fs::File::create(&path).map_err(RunError::io(format!("making {}", path.display())))
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(file("out")?)
            .stderr(file("log")?)
            .process_group(0)
            .spawn()
            .map_err(RunError::io(format!("starting {name}")))?;
        self.started += 1;
        self.setup.lab.reap_group(child.id());
        self.children.insert(name.to_owned(), child);
        Ok(())
    }

    fn start_worker(&mut self, name: &str) -> Result<(), RunError> {
        let failed = || RunError::io(format!("laying the wires of {name}"));
        let wires = Rc::clone(&self.wires);
        let lock_server = wires.http(name, LOCK_SERVER, &self.lock_server).map_err(failed())?;
        let database = wires.store(name, TABLE, &self.database).map_err(failed())?;
        let proxy = self.proxy.as_ref().map(|kept| kept.address().to_string());
        let target = proxy.as_ref().unwrap_or(&self.service);
        let link = Wires::link(name, resource(self.fence));
        let service = wires.lay(&link, target, Protocol::Http).map_err(failed())?;
        let mut command = Command::new(self.setup.lab.exe());
        command
            .arg(WORKER_VERB)
            .args(["--lock-server", &lock_server])
            .args(["--owner", name])
            .args(["--database", &database])
            .args(["--service", &service.address().to_string()])
            .args(["--keys", &KEYS.to_string()])
            .args(["--fence", self.fence.as_str()])
            .args(["--seed", &(self.setup.seed ^ self.started).to_string()]);
        self.spawn(name, &mut command)
    }

    /// Starts the proxy, where there is one, and waits until it listens.
    async fn start_proxy(&mut self) -> Result<(), RunError> {
        let Some(listen) = self.proxy.as_ref().map(|kept| kept.address().to_string()) else {
            return Ok(());
        };
        let link = Wires::link(PROXY, SERVICE);
        let upstream = self
            .wires
            .lay(&link, &self.service, Protocol::Http)
            .map_err(RunError::io(format!("laying a wire {link}")))?;
        let mut command = Command::new(self.setup.lab.exe());
        command
            .arg("fence-proxy")
            .args(["--listen", &listen])
            .args(["--admin", "127.0.0.1:0"])
            .args(["--upstream", &format!("http://{}", upstream.address())])
            .arg("--store")
            .arg(format!("sqlite:{}", self.dir.join("fence.db").display()))
            .args(["--key-prefix-segments", "2"])
            .args(["--timeout", "300ms"])
            .args(["--settled-after", &format!("{}ms", SETTLED_AFTER.as_millis())]);
        let out = self.dir.join(format!("{PROXY}-{}.out", self.started));
        self.spawn(PROXY, &mut command)?;
        let host = self.setup.lab.host();
        eventually(host, "the proxy to listen", UP_WITHIN, async || {
            let said = std::fs::read_to_string(&out).unwrap_or_default();
            Ok(said.lines().any(|line| line.contains("\"proxying\"")).then_some(()))
        })
        .await
    }

    /// Lets those run on whose time has come.
    fn wake(&mut self, now: Duration) -> Result<(), RunError> {
        let due: Vec<String> = self
            .stopped
            .extract_if(.., |_, until| *until <= now)
            .map(|(worker, _)| worker)
            .collect();
        due.iter().try_for_each(|worker| self.signal(worker, Signal::SIGCONT))
    }

    fn signal(&self, name: &str, signal: Signal) -> Result<(), RunError> {
        let Some(child) = self.children.get(name) else {
            return Ok(());
        };
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("the kernel's process ids fit in 31 bits"));
        kill(pid, signal).map_err(|errno| RunError::Io(format!("{signal} to {name}"), errno.into()))
    }

    /// Starts those workers anew that have ended: their client or their database had been away for too long.
    fn revive(&mut self) -> Result<(), RunError> {
        let ended = |(name, child): (&String, &mut Child)| {
            let ended = name.starts_with('W') && matches!(child.try_wait(), Ok(Some(_)));
            ended.then(|| name.clone())
        };
        let ended: Vec<String> = self.children.iter_mut().filter_map(ended).collect();
        for name in ended {
            self.end(&name);
            self.start_worker(&name)?;
        }
        Ok(())
    }

    fn end(&mut self, name: &str) {
        if let Some(mut child) = self.children.remove(name) {
            // A stopped process dies of it too.
            if let Err(error) = child.kill().and_then(|()| child.wait().map(drop)) {
                tracing::warn!(event = "kill_failed", %error);
            }
            self.setup.lab.reaped(child.id());
        }
    }
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        let names: Vec<String> = self.children.keys().cloned().collect();
        for name in names {
            self.end(&name);
        }
    }
}

/// What the workers wrote down of their answers, one a line; and what the proxy did of its refusals, which is also those that
/// nobody waited for.
fn answered(dir: &Path) -> Result<BTreeMap<String, u64>, RunError> {
    let failed = || RunError::io(format!("reading {}", dir.display()));
    let mut answers = BTreeMap::new();
    for entry in std::fs::read_dir(dir).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if name.starts_with('W') && name.ends_with(".out") {
            for line in std::fs::read_to_string(&path).map_err(failed())?.lines() {
                *answers.entry(line.to_owned()).or_default() += 1;
            }
        }
        if name.starts_with(PROXY) && name.ends_with(".out") {
            let said = std::fs::read_to_string(&path).map_err(failed())?;
            let events = said
                .lines()
                .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            for event in events.filter(|event| event["event"] == "fence_refused") {
                let code = event["code"].as_str().unwrap_or_default();
                *answers.entry(format!("refused {code}")).or_default() += 1;
            }
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::stale;

    #[test]
    fn what_comes_after_a_higher_token_of_its_key_is_stale() {
        let effects = |all: &[(&str, u64)]| {
            all.iter()
                .map(|(key, token)| ((*key).to_owned(), *token))
                .collect::<Vec<_>>()
        };
        assert_eq!(stale(&effects(&[("a", 1), ("a", 1), ("b", 1), ("a", 3)])), 0);
        assert_eq!(stale(&effects(&[("a", 2), ("b", 1), ("a", 1), ("a", 2), ("a", 1)])), 2);
    }
}
