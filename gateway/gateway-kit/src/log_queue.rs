//! Log lines on their way to a pipe that somebody may not read (case L34).
//!
//! ```text
//! any thread ─→ queue (bounded) ─→ a thread of its own ─→ standard output or standard error
//! ```
//!
//! Owns: the lines that are not written yet, the thread that writes them, the count of those that found no room. Does not
//! own: what a line looks like.
//! On failure: whoever logs never waits. A line that finds no room is dropped and counted, and once lines move again one of
//! them says how many are missing. A stream that is closed swallows everything.
//!
//! `tracing-appender` does the same and was looked at: with a full queue it reports its own end on standard output, which
//! blocks for ever exactly where nobody reads, and at that end it gives up after a second what is not written.

use prometheus::IntCounter;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// The most bytes of lines that wait; about 6,000 lines.
const BYTES_MAX: usize = 2 << 20;

/// How long the end of a process waits for a stream that takes nothing. One that moves is waited for, up to [`END_MAX`].
const STALL_MAX: Duration = Duration::from_secs(1);

/// The longest that the end of a process waits for its last lines.
const END_MAX: u32 = 10;

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// A line has left the queue and is not written yet.
    writing: bool,
    written: u64,
}

/// A queue of lines, and who writes them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogQueue(Arc<Queue>);

struct Queue {
    waiting: Mutex<Waiting>,
    /// A line has come.
    come: Condvar,
    /// A line was written.
    gone: Condvar,
    dropped: AtomicU64,
    writer: OnceLock<ThreadId>,
}

/// The queue of this process, where logging was started.
static OF_PROCESS: OnceLock<LogQueue> = OnceLock::new();

/// How many lines found no room since the process began: a metric of the process, in each registry that takes it.
pub(crate) static LINES_DROPPED: LazyLock<IntCounter> = LazyLock::new(|| {
    let help = "Log lines that were dropped because nobody read the log.";
    IntCounter::new("log_lines_dropped_total", help).expect("a valid metric name")
});

/// Waits until what was logged is written. Where nobody reads it, not for long. To be called at the end of a process.
pub fn flush_logs() {
    if let Some(queue) = OF_PROCESS.get() {
        queue.flush();
    }
}

impl LogQueue {
    /// A queue that a thread of its own writes to `to`; `tell` logs that this many lines are missing, from that thread.
    pub(crate) fn start(to: impl Write + Send + 'static, tell: fn(u64)) -> std::io::Result<Self> {
        let queue = Self(Arc::new(Queue {
            waiting: Mutex::default(),
            come: Condvar::new(),
            gone: Condvar::new(),
            dropped: AtomicU64::new(0),
            writer: OnceLock::new(),
        }));
        let writing = queue.clone();
        #[allow(
            clippy::disallowed_methods,
            reason = "logging is of the process, begins before any host is there, and must wait for no other blocking work"
        )]
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writing.write(to, tell))?;
        Ok(queue)
    }

    /// Makes it the one that [`flush_logs`] and the metric are about.
    pub(crate) fn of_process(&self) {
        let _ = OF_PROCESS.set(self.clone());
    }

    fn locked(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line, or drops it. Never waits.
    pub(crate) fn push(&self, line: Vec<u8>) {
        let mut waiting = self.locked();
        // The writer's own line, that some are missing, is one more at most, and never missing itself.
        let of_writer = self.0.writer.get() == Some(&std::thread::current().id());
        if waiting.bytes + line.len() > BYTES_MAX && !of_writer {
            drop(waiting);
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            LINES_DROPPED.inc();
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        drop(waiting);
        self.0.come.notify_one();
    }

    fn write(&self, mut to: impl Write, tell: fn(u64)) {
        let _ = self.0.writer.set(std::thread::current().id());
        let mut told = 0;
        loop {
            let mut waiting = self.locked();
            while waiting.lines.is_empty() {
                waiting = self.0.come.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(line) = waiting.lines.pop_front() else {
                continue;
            };
            waiting.bytes -= line.len();
            waiting.writing = true;
            drop(waiting);
            // One write per line, so that lines do not mix with what others say on the same stream.
            let _ = to.write_all(&line).and_then(|()| to.flush());
            let dropped = self.0.dropped.load(Ordering::Relaxed);
            if dropped > told {
                tell(dropped - told);
                told = dropped;
            }
            let mut waiting = self.locked();
            waiting.writing = false;
            waiting.written += 1;
            drop(waiting);
            self.0.gone.notify_all();
        }
    }

    fn flush(&self) {
        let mut waiting = self.locked();
        for _ in 0..END_MAX {
            let before = waiting.written;
            let (still, timed_out) = self
                .0
                .gone
                .wait_timeout_while(waiting, STALL_MAX, |waiting| {
                    waiting.writing || !waiting.lines.is_empty()
                })
                .unwrap_or_else(PoisonError::into_inner);
            waiting = still;
            if !timed_out.timed_out() || waiting.written == before {
                return;
            }
        }
    }
}

/// One event's text, which goes into the queue as one line.
pub(crate) struct LineWriter {
    queue: LogQueue,
    line: Vec<u8>,
}

impl LineWriter {
    pub(crate) fn to(queue: &LogQueue) -> Self {
        Self {
            queue: queue.clone(),
            line: Vec::new(),
        }
    }
}

impl Write for LineWriter {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.line.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.queue.push(std::mem::take(&mut self.line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A pipe that takes what its other end asks for.
    struct Pipe(mpsc::SyncSender<Vec<u8>>);

    impl Write for Pipe {
        fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.send(data.to_vec());
            Ok(data.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn case_l34_what_finds_no_room_is_counted_and_said_once_lines_move_again() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let (pipe, reader) = mpsc::sync_channel(0);
        let queue = LogQueue::start(Pipe(pipe), |missing| {
            TOLD.fetch_add(missing, Ordering::Relaxed);
        })
        .unwrap();
        let line = vec![b'x'; BYTES_MAX / 8];
        for _ in 0..20 {
            queue.push(line.clone());
        }
        let dropped = queue.0.dropped.load(Ordering::Relaxed);
        assert!((11..=12).contains(&dropped), "{dropped} of 20 found no room");
        for _ in dropped..20 {
            assert_eq!(reader.recv().unwrap().len(), line.len());
        }
        queue.flush();
        assert_eq!(TOLD.load(Ordering::Relaxed), dropped);
        assert!(queue.locked().lines.is_empty());
    }
}
