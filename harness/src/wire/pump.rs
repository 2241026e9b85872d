//! One direction of one connection.
//!
//! ```text
//! read ─▶ (swallowed?) ─▶ messages (intercept) ─▶ queue, each with its time ─▶ write, as slowly as told
//! ```
//!
//! Owns: reading, what is lost, what waits, when it is written. It looks at its mode before every step.
//! Does not own: the other direction, the line.
//! On failure: a socket that fails ends the connection with a reset, as does the end of a fault that has lost bytes.

use super::counters::{Counters, bytes};
use super::framer::Kind;
use super::intercept::{Intercept, Todo};
use super::link::Shared;
use super::mode::{Flow, Messages, Mode};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until};

/// How much is read at once.
pub const READ_BYTES: usize = 16 * 1024;
/// How many reads wait to be written; while there are so many, nothing is read.
pub const QUEUE_CHUNKS: usize = 32;
/// A trickle writes as much as flows in this time, and then waits for it.
const TRICKLE_EVERY: Duration = Duration::from_millis(100);

/// How a direction came to its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The stream has ended and the end was forwarded.
    Ended,
    /// Nothing sensible can follow: both ends are to be reset.
    Reset,
    /// A whole request is kept back.
    Held(Vec<u8>),
}

struct Chunk {
    at: Instant,
    bytes: Vec<u8>,
    written: usize,
}

pub(super) struct Pump {
    shared: Rc<Shared>,
    kind: Kind,
    intercept: Intercept,
    queue: VecDeque<Chunk>,
    /// When the next write may be, for a trickle.
    next_write: Instant,
    /// When the last read is due, so that nothing overtakes.
    last_due: Instant,
    /// Bytes were thrown away: the connection cannot go on.
    lost: bool,
    ended: bool,
    told_end: bool,
    after_flush: Option<Over>,
}

impl Pump {
    pub fn new(shared: &Rc<Shared>, kind: Kind, intercept: Intercept) -> Self {
        let now = Instant::now();
        Self {
            shared: Rc::clone(shared),
            kind,
            intercept,
            queue: VecDeque::new(),
            next_write: now,
            last_due: now,
            lost: false,
            ended: false,
            told_end: false,
            after_flush: None,
        }
    }

    const fn flow(&self, mode: &Mode) -> Flow {
        match self.kind {
            Kind::Requests => mode.requests,
            Kind::Answers => mode.answers,
        }
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Forwards until the direction is over.
    pub async fn run(mut self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Over {
        let (mut buffer, mut modes) = (vec![0; READ_BYTES], self.shared.mode.subscribe());
        loop {
            let mode = *modes.borrow_and_update();
            let flow = self.flow(&mode);
            if flow.loses() {
                self.throw_away();
                if flow == Flow::Fin && !self.told_end {
                    (self.told_end, self.lost) = (true, true);
                    // Who has gone already needs no FIN.
                    drop(to.shutdown().await);
                }
            } else if self.lost {
                return Over::Reset;
            }
            if self.queue.is_empty() && !self.lost {
                if let Some(over) = self.after_flush.take() {
                    return over;
                }
                if self.ended {
                    drop(to.shutdown().await);
                    return Over::Ended;
                }
            }
            let due = self
                .queue
                .front()
                .map_or(self.next_write, |chunk| chunk.at.max(self.next_write));
            let piece = self.piece(flow);
            let may_read = !self.ended && self.after_flush.is_none() && self.queue.len() < QUEUE_CHUNKS;
            tokio::select! {
                biased;
                changed = modes.changed() => if changed.is_err() {
                    return Over::Reset;
                },
                written = write(due, &mut to, piece), if !piece.is_empty() => match written {
                    Ok(n) if n > 0 => self.written(n, flow),
                    _ => return Over::Reset,
                },
                read = from.read(&mut buffer), if may_read => match read {
                    Ok(0) => self.end(flow),
                    Ok(n) => self.take(&buffer[..n], flow, mode.messages),
                    // A reset that is swallowed reaches nobody.
                    Err(_) if flow.loses() => (self.ended, self.lost) = (true, true),
                    Err(_) => return Over::Reset,
                },
            }
        }
    }

    /// What may be written next.
    fn piece(&self, flow: Flow) -> &[u8] {
        let Some(chunk) = self.queue.front() else { return &[] };
        let rest = &chunk.bytes[chunk.written..];
        match flow {
            Flow::Trickle(rate) => &rest[..rest.len().min(burst(rate))],
            _ => rest,
        }
    }

    fn written(&mut self, n: usize, flow: Flow) {
        let kind = self.kind;
        self.counters().count(|counts| match kind {
            Kind::Requests => counts.request_bytes += bytes(n),
            Kind::Answers => counts.answer_bytes += bytes(n),
        });
        if let Flow::Trickle(rate) = flow {
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            self.next_write = Instant::now() + Duration::from_secs(1) * n / rate.max(1);
            self.counters().count(|counts| counts.slowed += 1);
        }
        if let Some(chunk) = self.queue.front_mut() {
            chunk.written += n;
            if chunk.written == chunk.bytes.len() {
                self.queue.pop_front();
            }
        }
    }

    fn take(&mut self, read: &[u8], flow: Flow, messages: Messages) {
        if flow.loses() {
            self.lose(read.len());
            return;
        }
        for todo in self.intercept.take(read, messages, &self.shared.counters) {
            match todo {
                Todo::Forward(bytes) => self.queue_up(bytes, flow),
                Todo::Copy(request) => self.shared.copy(request, messages),
                Todo::Held(request) => {
                    self.counters().count(|counts| counts.held += 1);
                    self.after_flush = Some(Over::Held(request));
                }
                Todo::Dropped => self.dropped(),
            }
        }
    }

    fn dropped(&mut self) {
        self.counters().count(|counts| counts.dropped_answers += 1);
        self.after_flush = Some(Over::Reset);
    }

    fn queue_up(&mut self, bytes: Vec<u8>, flow: Flow) {
        if bytes.is_empty() {
            return;
        }
        let now = Instant::now();
        let later = match flow {
            Flow::Delay(by) => by,
            Flow::Jitter(up_to) => self.shared.random.up_to(up_to),
            _ => Duration::ZERO,
        };
        if !later.is_zero() {
            self.counters().count(|counts| counts.late += 1);
        }
        self.last_due = self.last_due.max(now + later);
        self.queue.push_back(Chunk {
            at: self.last_due,
            bytes,
            written: 0,
        });
    }

    fn end(&mut self, flow: Flow) {
        self.ended = true;
        if flow.loses() {
            self.lost = true;
            return;
        }
        let (kept, dropped) = self.intercept.end();
        self.queue_up(kept, flow);
        if dropped {
            self.dropped();
        }
    }

    /// What waits is lost with the rest.
    fn throw_away(&mut self) {
        let waiting: usize = self.queue.iter().map(|chunk| chunk.bytes.len() - chunk.written).sum();
        if waiting > 0 {
            self.queue.clear();
            self.lose(waiting);
        }
        if self.ended || self.after_flush.is_some() {
            (self.lost, self.after_flush) = (true, None);
        }
    }

    fn lose(&mut self, n: usize) {
        self.lost = true;
        let kind = self.kind;
        self.counters().count(|counts| match kind {
            Kind::Requests => counts.swallowed_request_bytes += bytes(n),
            Kind::Answers => counts.swallowed_answer_bytes += bytes(n),
        });
    }
}

fn burst(rate: u32) -> usize {
    let burst = u128::from(rate) * TRICKLE_EVERY.as_millis() / 1000;
    usize::try_from(burst).unwrap_or(usize::MAX).max(1)
}

/// Some bytes, once they are due. What is dropped before it is done has written nothing.
async fn write(due: Instant, to: &mut WriteHalf<'_>, bytes: &[u8]) -> std::io::Result<usize> {
    if due > Instant::now() {
        sleep_until(due).await;
    }
    to.write(bytes).await
}
