//! One command under its lock, from its start until nothing of it is left.
//!
//! ```text
//! wait for: its end │ a signal (forwarded) │ the lock lost                    │ the command stopped (^Z)
//!                                          └→ SIGTERM → grace → SIGKILL       └→ stop as well → SIGCONT → lock? ─ held → go on
//!                                                                                                            └─ lost → SIGKILL
//! ```

use super::Args;
use super::processes::{Before, Family};
use super::say::say;
use super::signals::{ENDING, Signals};
use super::terminal::{self, Terminal};
use crate::exit::{CANNOT_RUN, Failure, INTERNAL, LOST, NOT_FOUND, OK, SIGNALLED};
use futures_util::FutureExt;
use futures_util::future::FusedFuture;
use host_kit::Clock;
use lock_api::{LockError, LockKey, LockLost, YieldAsked};
use lock_client::HeldLock;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// How often those who were told to end are looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How long to wait for those to end that were killed.
const PASS: Duration = Duration::from_millis(1);

/// How often the deadline is written down.
const NOTE_DEADLINE: Duration = Duration::from_millis(100);

/// How long to wait for the reason of a loss: longer than the client looks for it.
pub(super) const REASON_MAX: Duration = Duration::from_secs(5);

/// How long to look for the rest after the last SIGKILL to somebody new. Only processes that the kernel cannot end are left
/// by then.
const REAP_MAX: Duration = Duration::from_secs(1);

/// How long to kill those that start others as fast as they are killed.
const KILL_MAX: Duration = Duration::from_secs(10);

/// A command that runs while its lock is held.
pub(super) struct Watch<'a> {
    key: &'a LockKey,
    held: &'a HeldLock,
    /// Between SIGTERM and SIGKILL.
    grace: Duration,
    child: Child,
    family: Family,
    terminal: Option<Terminal>,
    /// SIGTSTP was handed on: when the command stops, this process stops too.
    told_to_stop: bool,
    /// What the command is sent when somebody asks for the lock.
    on_yield: Option<Signal>,
    clock: Clock,
    /// The lock's deadline on boot time, as it was last seen: how late a loss is noticed depends on it.
    deadline: Duration,
}

/// How the command changed.
enum Change {
    Ended(ExitStatus),
    Stopped(Signal),
    Nothing,
}

impl<'a> Watch<'a> {
    /// Starts the command, in a group of its own.
    pub fn start(args: &Args, key: &'a LockKey, held: &'a HeldLock, grace: Duration) -> Result<Self, Failure> {
        let (program, arguments) = args.command.split_first().ok_or_else(|| Failure::usage("no command"))?;
        let before = Before::now();
        if let Err(error) = set_child_subreaper(true) {
            say!("dlock: descendants that leave the command's group will not be found: {error}");
        }
        let started = Command::new(program)
            .args(arguments)
            .env("DLOCK_KEY", key.as_str())
            .env("DLOCK_TOKEN", held.token().to_string())
            .process_group(0)
            .spawn();
        let child = started.map_err(|error| {
            let is_missing = error.kind() == ErrorKind::NotFound;
            let code = if is_missing { NOT_FOUND } else { CANNOT_RUN };
            Failure::new(code, format!("{}: {error}", program.display()))
        })?;
        let id = i32::try_from(child.id())
            .map_err(|_| Failure::new(INTERNAL, "the command's process id is out of range"))?;
        let family = Family::new(Pid::from_raw(id), before);
        let mut terminal = Terminal::on_stdin(family.command);
        if terminal.as_mut().is_some_and(Terminal::lend) {
            // It may have read too early and been stopped for it.
            family.signal(Signal::SIGCONT);
        }
        let mut watch = Self {
            key,
            held,
            grace,
            child,
            family,
            terminal,
            told_to_stop: false,
            on_yield: args.on_yield,
            clock: Clock::system(),
            deadline: Duration::ZERO,
        };
        watch.note_deadline();
        Ok(watch)
    }

    /// Waits for the end of the command, whichever way it comes, and sees to it that nothing of it is left.
    pub async fn run_to_its_end(mut self, signals: &mut Signals) -> crate::Outcome {
        let code = self.watch(signals).await;
        drop(self.child.try_wait());
        self.family.reap();
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
        code
    }

    async fn watch(&mut self, signals: &mut Signals) -> crate::Outcome {
        let must_stop = self.held.must_stop();
        tokio::pin!(must_stop);
        // Once: from then on it is never ready again.
        let asked = self.held.asked_to_yield().fuse();
        tokio::pin!(asked);
        let mut note = tokio::time::interval(NOTE_DEADLINE);
        loop {
            tokio::select! {
                biased;
                () = &mut must_stop => {
                    // Whoever was stopped, or asleep, at the deadline has less time left than planned, or none.
                    let late = self.clock.boot().saturating_sub(self.deadline);
                    return Ok(self.lost(self.grace.saturating_sub(late)).await);
                }
                signal = signals.next() => match signal {
                    Signal::SIGCHLD => {
                        self.family.reap();
                        match self.change()? {
                            Change::Ended(status) => return Ok(self.left_behind(status).await),
                            Change::Stopped(by) if !self.stopped(by, signals).await => {
                                // It never runs again.
                                return Ok(self.lost(Duration::ZERO).await);
                            }
                            Change::Stopped(_) | Change::Nothing => {}
                        }
                    }
                    Signal::SIGTSTP if !terminal::is_job() => {}
                    Signal::SIGTSTP => {
                        self.told_to_stop = true;
                        self.family.signal(Signal::SIGTSTP);
                    }
                    Signal::SIGCONT => self.go_on(),
                    signal => self.hand_on(signal),
                },
                asked = &mut asked, if !asked.is_terminated() => self.asked_to_yield(&asked),
                _ = note.tick() => self.note_deadline(),
            }
        }
    }

    fn hand_on(&self, signal: Signal) {
        self.family.signal(signal);
        if ENDING.contains(&signal) {
            // A stopped process sees it only when it goes on.
            self.family.signal(Signal::SIGCONT);
        }
    }

    /// Somebody asks for the lock: the command is told, where it is to be, and decides itself.
    fn asked_to_yield(&self, asked: &YieldAsked) {
        let YieldAsked { by, reason, .. } = asked;
        let told = self.on_yield.map_or_else(
            || "the command goes on (--on-yield)".to_owned(),
            |signal| format!("the command is sent {signal}"),
        );
        say!("dlock: {}: {by} asks for the lock ({reason}); {told}", self.key);
        if let Some(signal) = self.on_yield {
            self.hand_on(signal);
        }
    }

    fn note_deadline(&mut self) {
        let remaining = self.held.remaining();
        if !remaining.is_zero() {
            self.deadline = self.clock.boot() + remaining;
        }
    }

    fn change(&mut self) -> Result<Change, Failure> {
        let ended = self.child.try_wait();
        if let Some(status) =
            ended.map_err(|error| Failure::new(INTERNAL, format!("waiting for the command: {error}")))?
        {
            return Ok(Change::Ended(status));
        }
        let stopped = waitid(
            Id::Pid(self.family.command),
            WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG,
        );
        Ok(match stopped {
            Ok(WaitStatus::Stopped(_, by)) => Change::Stopped(by),
            _ => Change::Nothing,
        })
    }

    /// The command was stopped. As part of a shell's job this process stops too, so that the shell notices, and nobody
    /// renews the lock meanwhile. Answers whether the command may go on as far as the lock is concerned.
    async fn stopped(&mut self, by: Signal, signals: &mut Signals) -> bool {
        let wants_the_terminal = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        if wants_the_terminal && self.terminal.as_mut().is_some_and(Terminal::lend) {
            // `fg` of a job that ran in the background tells nobody.
            self.family.signal(Signal::SIGCONT);
            return true;
        }
        let stops_us = self.terminal.is_some() || (by == Signal::SIGTSTP && self.told_to_stop);
        self.told_to_stop = false;
        if !stops_us {
            return true;
        }
        if !terminal::is_job() {
            if by == Signal::SIGTSTP {
                // No shell could continue it: a terminal does not stop such a process.
                self.family.signal(Signal::SIGCONT);
            }
            return true;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
        let left = Duration::from_secs(self.held.remaining().as_secs());
        say!(
            "dlock: stopped, and nobody renews {} meanwhile: if this goes on later than in {}, the command is killed instead",
            self.key,
            humantime::format_duration(left)
        );
        terminal::stop(by, self.terminal.is_some() && by != Signal::SIGSTOP);
        let may_go_on = tokio::select! {
            biased;
            () = self.held.must_stop() => false,
            holds = self.still_holds(signals) => holds,
        };
        if may_go_on {
            self.go_on();
        }
        may_go_on
    }

    /// Asks the server too: the lock may have been revoked meanwhile. Where no server answers, the deadline decides.
    async fn still_holds(&self, signals: &mut Signals) -> bool {
        signals.continued().await;
        self.held.check_still_held().is_ok()
            && !matches!(self.held.renew().await, Err(LockError::Lost(_)))
            && self.held.check_still_held().is_ok()
    }

    fn go_on(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.lend();
        }
        self.family.signal(Signal::SIGCONT);
    }

    /// The lock was lost. The command is ended at once; why, is told as soon as it is known.
    async fn lost(&mut self, grace: Duration) -> u8 {
        let (key, held) = (self.key, self.held);
        let told = async {
            match tokio::time::timeout(REASON_MAX, held.lost()).await {
                Ok(lost) => lost_code(key, &lost),
                Err(_) => {
                    say!("dlock: {key}: lock lost; the command is ended");
                    LOST
                }
            }
        };
        let ((), code) = tokio::join!(self.end(grace), told);
        code
    }

    /// The command has ended. Whatever it left would go on without the lock: it is ended first, and a loss meanwhile
    /// makes that quicker.
    async fn left_behind(&self, status: ExitStatus) -> u8 {
        if !self.family.is_gone() {
            // None of them may live long enough to be named.
            let ids = self.family.ids();
            let named = if ids.is_empty() {
                String::new()
            } else {
                format!(" ({})", ids.join(", "))
            };
            say!(
                "dlock: the command left processes behind{named}; they are ended before {} is given back",
                self.key
            );
            let left = self.held.remaining();
            tokio::select! {
                () = self.end(self.grace.min(left)) => {}
                () = self.held.must_stop() => self.end(Duration::ZERO).await,
            }
        }
        code_of(status)
    }

    /// SIGTERM, time to comply, SIGKILL, until nobody is left. Without time SIGKILL is the first they see: whoever is
    /// stopped never goes on.
    async fn end(&self, grace: Duration) {
        if !grace.is_zero() {
            self.family.signal_all(Signal::SIGTERM);
            // A stopped process sees SIGTERM only when it goes on.
            self.family.signal_all(Signal::SIGCONT);
            let gone = async {
                while !self.family.is_gone() {
                    tokio::time::sleep(LOOK).await;
                }
            };
            if tokio::time::timeout(grace, gone).await.is_ok() {
                return;
            }
        }
        if !self.killed().await {
            say!("dlock: could not be ended: process {}", self.family.ids().join(", "));
        }
    }

    /// Kills until nobody is left. Answers whether that is so.
    async fn killed(&self) -> bool {
        let mut killed = BTreeSet::new();
        let from = self.clock.boot();
        let mut last_new = from;
        loop {
            let is_new = self.family.kill_all(&mut killed);
            if self.family.is_gone() {
                return true;
            }
            let now = self.clock.boot();
            if is_new {
                last_new = now;
            }
            if now.saturating_sub(last_new) > REAP_MAX || now.saturating_sub(from) > KILL_MAX {
                return false;
            }
            if is_new {
                // It may have started another one at the very moment, which does the same before long.
                tokio::task::yield_now().await;
            } else {
                tokio::time::sleep(PASS).await;
            }
        }
    }
}

pub(super) fn lost_code(key: &LockKey, lost: &LockLost) -> u8 {
    say!("dlock: {key}: {lost}; the command is ended");
    LOST
}

fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => signalled(signal),
        (None, None) => OK,
    }
}

/// The exit code for an end by this signal.
pub(super) fn signalled(signal: i32) -> u8 {
    SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX - SIGNALLED))
}
