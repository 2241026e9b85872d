//! What `dlock exec` itself says on standard error. A thread of its own writes it: standard error may be a pipe that nobody
//! reads, and that must hold up neither a renewal nor the end (case L34).

use crate::exit::{Failure, INTERNAL};
use host_kit::{Blocking, Host};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that wait to be written; further ones are dropped.
const LINES_MAX: usize = 64;

/// How long the end waits for the last lines to be written.
const FLUSH_WITHIN: Duration = Duration::from_millis(500);

enum Said {
    Line(String),
    /// Everything before it is written.
    End(SyncSender<()>),
}

static SAID: OnceLock<SyncSender<Said>> = OnceLock::new();

/// Starts the thread.
pub(super) fn begin() -> Result<(), Failure> {
    let Blocking::Threads(spawn) = &Host::system().blocking else {
        return Ok(());
    };
    let (said, lines) = sync_channel(LINES_MAX);
    spawn("dlock-exec-says", Box::new(move || write(&lines)))
        .map_err(|error| Failure::new(INTERNAL, format!("no thread for messages: {error}")))?;
    drop(SAID.set(said));
    Ok(())
}

fn write(lines: &Receiver<Said>) {
    while let Ok(said) = lines.recv() {
        match said {
            Said::Line(line) => drop(writeln!(std::io::stderr(), "{line}")),
            Said::End(done) => {
                let _ = done.try_send(());
            }
        }
    }
}

/// Hands a line over to be written.
pub(super) fn line(line: &str) {
    // Others' words are in it: an owner, a reason, what a server said.
    let line = gateway_kit::shown_lines(line).to_string();
    match SAID.get() {
        Some(said) => drop(said.try_send(Said::Line(line))),
        None => eprintln!("{line}"),
    }
}

/// Waits until what was said is written, or nobody seems to read it.
pub(super) fn flush() {
    let (done, written) = sync_channel(1);
    let Some(said) = SAID.get() else { return };
    if said.try_send(Said::End(done)).is_ok() {
        let _ = written.recv_timeout(FLUSH_WITHIN);
    }
}

macro_rules! say {
    ($($text:tt)*) => { $crate::exec::say::line(&format!($($text)*)) };
}
pub(super) use say;
