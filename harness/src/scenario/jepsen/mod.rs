//! Jepsen's lock workload: a register that is read, incremented and written back under a lock, by processes that are
//! stopped between their read and their write for longer than their lease.
//!
//! ```text
//! W1 ─acquire T1─ read 7 ──SIGSTOP … lease over …                       SIGCONT ─ write 8 under T1 ─▶ ?
//! W2                                     acquire T2 ─ read 7 ─ write 8 under T2
//! ```
//! The same workers run against two registers. One takes every write: increments that were acknowledged are lost, which
//! no lock can prevent. The other keeps the highest token that it has seen and refuses a lower one: none is lost. A run
//! in which the first register lost nothing proves nothing, and says so.
//!
//! Owns: the workload, its registers (`register.rs`), its processes and what they come to.
//! Does not own: the worker's program, a hidden verb of the binary; the verdicts.
//! On failure: what could not be run is an error; a lost increment behind the fence is a failed check.

mod register;

use crate::evidence::{Apis, collect_locks};
use crate::history::{Call, read};
use crate::invariant::{Invariant, Verdict};
use crate::report::{Check, ScenarioReport, StepTaken};
use crate::scenario::{SETTLE_WITHIN, Setup};
use crate::stack::processes::stopped;
use crate::stack::variable;
use crate::stack::{Links, RunError, Stack, StackSpec, eventually};
use host_kit::Random;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use register::{Fence, Register, Told};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The verb of the binary that is one worker.
pub const WORKER_VERB: &str = "jepsen-worker";
/// Processes that increment.
const WORKERS: usize = 4;
/// Increments that each must have acknowledged.
const INCREMENTS: u64 = 8;
/// Reads after which the reader is stopped.
const PAUSES: usize = 3;
/// How long the whole of a workload may take. Generous: the machine may be busy.
const DONE_WITHIN: Duration = Duration::from_secs(180);
/// The verdicts that have anything to look at here.
const JUDGED: [Invariant; 4] = [
    Invariant::Inv01,
    Invariant::Inv04,
    Invariant::LockHistory,
    Invariant::LockLease,
];

/// What one workload came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    acknowledged: u64,
    /// Written, as far as anybody can tell, or not: the worker got no answer.
    unanswered: u64,
    refused: u64,
    value: u64,
    pauses: usize,
}

impl Outcome {
    const fn lost(&self) -> u64 {
        self.acknowledged.saturating_sub(self.value)
    }

    /// Whether every acknowledged increment is in the value, and nothing that was not asked for.
    const fn nothing_lost(&self) -> bool {
        self.acknowledged <= self.value && self.value <= self.acknowledged + self.unanswered
    }
}

/// Runs the workload against both registers, each with a lock server of its own.
///
/// # Errors
/// When it cannot be run.
pub async fn run(setup: &Setup) -> Result<ScenarioReport, RunError> {
    let began = setup.lab.host().clock.mono();
    let mut report = ScenarioReport {
        verdicts: JUDGED.map(Verdict::new).to_vec(),
        dir: dir_of(setup, Fence::On).display().to_string(),
        more_dirs: vec![dir_of(setup, Fence::Off).display().to_string()],
        ..ScenarioReport::new(
            "JEPSEN",
            "read-modify-write under the lock by processes that are stopped past their lease",
            setup.seed,
        )
    };
    for fence in [Fence::Off, Fence::On] {
        let (outcome, verdicts) = workload(setup, fence).await?;
        let elapsed = setup.lab.host().clock.mono().saturating_sub(began);
        report.steps.push(StepTaken {
            at_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            text: format!(
                "{fence}: {} increments acknowledged, {} refused as stale, {} without an answer; the register says {}, \
                 so {} are lost; {} pauses past the lease",
                outcome.acknowledged,
                outcome.refused,
                outcome.unanswered,
                outcome.value,
                outcome.lost(),
                outcome.pauses
            ),
        });
        let what = |text: &str| format!("{fence}: {text}");
        let mut check = |text: &str, holds: bool| {
            report.checks.push(Check {
                what: what(text),
                expected: true.to_string(),
                measured: holds.to_string(),
            });
        };
        match fence {
            // The control: without it the run shows nothing.
            Fence::Off => check(
                "acknowledged increments were lost, else this run is void",
                outcome.lost() > 0,
            ),
            Fence::On => {
                check(
                    "every acknowledged increment is in the register",
                    outcome.nothing_lost(),
                );
                check("stale writes were refused", outcome.refused > 0);
            }
        }
        for (sum, verdict) in report.verdicts.iter_mut().zip(&verdicts) {
            sum.absorb(verdict, &fence.to_string());
        }
    }
    let elapsed = setup.lab.host().clock.mono().saturating_sub(began);
    report.took_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

/// The processes of one workload. Dropped, they are killed.
struct Crew<'a> {
    setup: &'a Setup,
    children: RefCell<BTreeMap<String, Child>>,
}

impl Crew<'_> {
    fn start(&self, name: &str, dir: &Path, links: &Links, register: &str, spec: &StackSpec) -> Result<(), RunError> {
        let log = dir.join(format!("{name}.log"));
        let out = std::fs::File::create(&log).map_err(RunError::io(format!("making {}", log.display())))?;
        let mut command = Command::new(self.setup.lab.exe());
        command
            .arg(WORKER_VERB)
            .args(["--lock-server", &links.lock_server])
            .args(["--register", register])
            .args(["--owner", name])
            .args(["--increments", &INCREMENTS.to_string()])
            .arg("--history")
            .arg(history(dir, name));
        for (inherited, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
            command.env_remove(inherited);
        }
        for (setting, value) in &spec.settings {
            command.env(variable(setting), value);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(out)
            .process_group(0)
            .spawn()
            .map_err(RunError::io(format!("starting {name}")))?;
        self.setup.lab.reap_group(child.id());
        self.children.borrow_mut().insert(name.to_owned(), child);
        Ok(())
    }

    fn signal(&self, name: &str, signal: Signal) -> Result<u32, RunError> {
        let children = self.children.borrow();
        let child = children
            .get(name)
            .ok_or_else(|| RunError::Other(format!("there is no worker {name}")))?;
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("the kernel's process ids fit in 31 bits"));
        kill(pid, signal).map_err(|errno| RunError::Io(format!("{signal} to {name}"), errno.into()))?;
        Ok(child.id())
    }

    /// The first that ended in another way than with success; whether all have ended.
    fn all_ended(&self) -> Result<bool, RunError> {
        let mut all = true;
        for (name, child) in self.children.borrow_mut().iter_mut() {
            match child.try_wait().map_err(RunError::io(format!("waiting for {name}")))? {
                Some(status) if status.success() => {}
                Some(status) => return Err(RunError::Other(format!("{name} ended with {status}: see its log"))),
                None => all = false,
            }
        }
        Ok(all)
    }
}

impl Drop for Crew<'_> {
    fn drop(&mut self) {
        for child in self.children.get_mut().values_mut() {
            if !matches!(child.try_wait(), Ok(Some(_))) {
                // A stopped process dies of it too.
                let ended = child.kill().and_then(|()| child.wait());
                if let Err(error) = ended {
                    tracing::warn!(event = "kill_failed", %error);
                }
            }
            self.setup.lab.reaped(child.id());
        }
    }
}

fn history(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.history.jsonl"))
}

fn dir_of(setup: &Setup, fence: Fence) -> PathBuf {
    setup.root.join(format!("jepsen-{}", fence.id()))
}

async fn workload(setup: &Setup, fence: Fence) -> Result<(Outcome, Vec<Verdict>), RunError> {
    let host = setup.lab.host();
    let dir = dir_of(setup, fence);
    let spec = StackSpec {
        stores: setup.backends.fresh().await?,
        ..StackSpec::quick()
    };
    let stack = setup.lab.lock_server(&dir, spec).await?;
    let (register, mut told) = Register::serve(&dir.join("register.jsonl"), fence).await?;
    let crew = Crew {
        setup,
        children: RefCell::default(),
    };
    let names: Vec<String> = (1..=WORKERS).map(|n| format!("W{n}")).collect();
    for name in &names {
        crew.start(name, stack.dir(), &stack.links(), register.address(), stack.spec())?;
    }
    (setup.say)(&format!("{fence}: {WORKERS} processes increment"));

    let ended = eventually(host, "the workers to be done", DONE_WITHIN, async || {
        Ok(crew.all_ended()?.then_some(()))
    });
    let pauses = Cell::new(0);
    tokio::select! {
        result = direct(setup, &crew, &register, &mut told, &pauses) => result?,
        result = ended => result?,
    }
    let mut calls: Vec<Call> = Vec::new();
    for name in &names {
        calls.extend(read(&history(stack.dir(), name))?);
    }
    calls.sort_by_key(|call| call.invoked_us);
    let outcome = Outcome {
        value: register.value(),
        pauses: pauses.get(),
        ..counts(&calls)
    };
    let apis = Apis::new(&stack.links(), host);
    let evidence = collect_locks(&apis, calls).await?;
    super::keep(stack.dir(), "evidence.json", &evidence)?;
    let verdicts = JUDGED.map(|invariant| invariant.check(&evidence)).to_vec();
    stack.stop().await?;
    Ok((outcome, verdicts))
}

fn counts(calls: &[Call]) -> Outcome {
    use crate::history::Outcome as Answer;
    let writes = |answer| {
        calls
            .iter()
            .filter(|call| call.verb == "write" && call.outcome == answer)
            .count() as u64
    };
    Outcome {
        acknowledged: writes(Answer::Ok),
        unanswered: writes(Answer::Unknown),
        refused: writes(Answer::Refused),
        value: 0,
        pauses: 0,
    }
}

/// Stops some readers before they have their answer, and lets each go on once another has written.
async fn direct(
    setup: &Setup,
    crew: &Crew<'_>,
    register: &Register,
    told: &mut tokio::sync::mpsc::Receiver<Told>,
    pauses: &Cell<usize>,
) -> Result<(), RunError> {
    let random = Random::seeded(setup.seed);
    let mut until_next = 2 + random.below(3);
    let mut paused: Option<String> = None;
    while let Some(told) = told.recv().await {
        match told {
            Told::Reading { worker, token, go_on } => {
                let due = until_next == 0;
                if paused.is_none() && due && pauses.get() < PAUSES {
                    let pid = crew.signal(&worker, Signal::SIGSTOP)?;
                    eventually(setup.lab.host(), "a stopped worker", SETTLE_WITHIN, async || {
                        Ok(stopped(pid).then_some(()))
                    })
                    .await?;
                    (setup.say)(&format!(
                        "{worker} is stopped between its read and its write, under token {token}"
                    ));
                    paused = Some(worker);
                    pauses.set(pauses.get() + 1);
                    until_next = 2 + random.below(3);
                } else if paused.is_none() {
                    until_next = until_next.saturating_sub(1);
                }
                // Its answer waits for it in the socket, as old as its question. Whoever has gone hears nothing.
                let _ = go_on.send(());
            }
            Told::Wrote { worker, token } => {
                // Whatever its token: a lock that lets two in must not keep the run from showing it.
                if let Some(stopped) = &paused
                    && worker != *stopped
                {
                    crew.signal(stopped, Signal::SIGCONT)?;
                    (setup.say)(&format!("{worker} has written under token {token}; {stopped} goes on"));
                    paused = None;
                }
            }
        }
    }
    tracing::debug!(event = "register_closed", value = register.value());
    std::future::pending().await
}
