//! Signals that reach this process: most are on their way to the command.

use crate::exit::{Failure, INTERNAL};
use futures_util::FutureExt;
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Signals in the order in which they were noticed.
pub(super) struct Signals {
    noticed: mpsc::UnboundedReceiver<Signal>,
    /// Came while something else was waited for.
    kept: VecDeque<Signal>,
}

/// What is listened to. SIGKILL and SIGSTOP cannot be seen; SIGCHLD is about the command itself; SIGTSTP and SIGCONT are this
/// process's own business too.
const LISTENED: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

/// Long enough for the runtime to look for signals once.
const LOOK: Duration = Duration::from_millis(1);

/// Those that somebody sends so that the command ends.
pub(super) const ENDING: &[Signal] = &[Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Those that this process was started to ignore, as `nohup` does it with SIGHUP. They are not listened to, so they stay
/// ignored, by this process and by its command, which inherits that. None where `/proc` does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Whether a signal is in a mask as `/proc` writes it.
const fn is_in(mask: u64, signal: Signal) -> bool {
    (mask >> (signal as u32 - 1)) & 1 == 1
}

/// A signal by its name, with or without SIG, that a process can answer to.
pub(super) fn named(name: &str) -> Result<Signal, String> {
    let name = name.to_ascii_uppercase();
    let full = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name));
    match full.parse() {
        Ok(Signal::SIGKILL | Signal::SIGSTOP) => {
            Err("must be a signal that the command can handle, such as TERM".to_owned())
        }
        Ok(signal) => Ok(signal),
        Err(_) => Err("must be the name of a signal, such as TERM".to_owned()),
    }
}

impl Signals {
    pub fn listen() -> Result<Self, Failure> {
        let (tell, noticed) = mpsc::unbounded_channel();
        let ignored = ignored();
        // What a stop and an end are noticed by is needed whatever whoever started this process thinks of it.
        let is_needed = |signal| matches!(signal, Signal::SIGCHLD | Signal::SIGCONT);
        let listened = LISTENED
            .iter()
            .filter(|signal| is_needed(**signal) || !is_in(ignored, **signal));
        for listened in listened {
            let mut stream = signal(SignalKind::from_raw(*listened as i32))
                .map_err(|error| Failure::new(INTERNAL, format!("{listened} cannot be awaited: {error}")))?;
            let tell = tell.clone();
            actix_rt::spawn(async move { while stream.recv().await.is_some() && tell.send(*listened).is_ok() {} });
        }
        let kept = VecDeque::new();
        Ok(Self { noticed, kept })
    }

    pub async fn next(&mut self) -> Signal {
        match self.kept.pop_front() {
            Some(signal) => signal,
            None => self.noticed().await,
        }
    }

    async fn noticed(&mut self) -> Signal {
        match self.noticed.recv().await {
            Some(signal) => signal,
            // The senders live as long as the process.
            None => std::future::pending().await,
        }
    }

    /// SIGCONT; whatever comes before it is kept for later.
    pub async fn continued(&mut self) {
        loop {
            match self.noticed().await {
                Signal::SIGCONT => return,
                other => self.kept.push_back(other),
            }
        }
    }

    /// The next signal that would end a process that does not handle it; one that would stop it, stops it.
    pub async fn ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGWINCH | Signal::SIGCONT | Signal::SIGCHLD => {}
                Signal::SIGTSTP => super::terminal::stop_if_a_job(),
                signal => return signal,
            }
        }
    }

    /// As [`Signals::ending`], if such a signal has come by now. The runtime notices a signal only when it waits for
    /// something, so this waits for a moment: a command is started once, and never after such a signal.
    pub async fn ending_already(&mut self) -> Option<Signal> {
        tokio::time::sleep(LOOK).await;
        // Those who pass a noticed signal on run before this does again.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        self.ending().now_or_never()
    }
}
