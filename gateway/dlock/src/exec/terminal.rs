//! The terminal, and what a shell's job control asks of a process whose command is in a group of its own.
//!
//! Owns: which group is in the foreground while this process is; stopping this process's own job.
//! Does not own: whether the command may go on afterwards: that is the lock's.

use super::processes::{beside_us, is_alive, is_orphaned};
use super::say::say;
use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use std::io::{IsTerminal, stdin};

/// The terminal on standard input. A group in the background is stopped when it reads, so it is lent to the command's.
pub(super) struct Terminal {
    command: Pid,
    lent: bool,
}

impl Terminal {
    /// None where standard input is no terminal: then signals are all that reaches the command.
    pub fn on_stdin(command: Pid) -> Option<Self> {
        // Taking it back from the background would stop us if the signal were not blocked.
        let may_be_taken = stdin().is_terminal() && SigSet::from(Signal::SIGTTOU).thread_block().is_ok();
        may_be_taken.then_some(Self { command, lent: false })
    }

    /// Lends it if it is ours to lend: this process is in the foreground. Answers whether the command has it now.
    pub fn lend(&mut self) -> bool {
        let foreground = tcgetpgrp(stdin());
        if foreground == Ok(getpgrp()) {
            self.lent = tcsetpgrp(stdin(), self.command).is_ok();
            return self.lent;
        }
        foreground == Ok(self.command)
    }

    /// Takes it back, unless a shell has given it to somebody else meanwhile.
    pub fn take_back(&mut self) {
        if !std::mem::take(&mut self.lent) {
            return;
        }
        let is_ours = |foreground| foreground == self.command || !is_alive(foreground);
        if tcgetpgrp(stdin()).is_ok_and(is_ours)
            && let Err(error) = tcsetpgrp(stdin(), getpgrp())
        {
            say!("dlock: the terminal could not be taken back: {error}");
        }
    }
}

/// Whether this process is part of a job that somebody can continue once it is stopped.
pub(super) fn is_job() -> bool {
    !is_orphaned(getpgrp())
}

/// Stops this process until SIGCONT, as its command was stopped by `signal`. What a terminal sends is for the whole job:
/// a script that waits for this process has to stop with it, or the shell would not notice.
///
/// To be called where [`is_job`]: nobody would continue it elsewhere.
pub(super) fn stop(signal: Signal, whole_job: bool) {
    if whole_job {
        for other in beside_us(getpgrp()) {
            let _ = kill(other, signal);
        }
    }
    // Not the signal itself, which this process listens to.
    let _ = raise(Signal::SIGSTOP);
}

/// What SIGTSTP does to a process that does not listen to it.
pub(super) fn stop_if_a_job() {
    if is_job() {
        stop(Signal::SIGTSTP, false);
    }
}
