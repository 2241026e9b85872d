//! What is done with whole messages as they pass.
//!
//! Owns: which bytes of a direction are forwarded, which are copied, kept back or thrown away.
//! Does not own: sockets, time.
//! On failure: a message too large to be kept is forwarded as it came, and counted.

use super::counters::Counters;
use super::framer::{Framer, Kind, Seen};
use super::mode::Messages;

/// The largest message that is copied or kept back, in bytes. Requests of the system are a thousandth of it.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// Forward these bytes.
    Forward(Vec<u8>),
    /// Send this whole request once more.
    Copy(Vec<u8>),
    /// Keep this whole request back; its connection is over.
    Held(Vec<u8>),
    /// The answer was thrown away; its connection is over.
    Dropped,
}

#[derive(Debug)]
enum Doing {
    Forward,
    Copy(Vec<u8>),
    Hold(Vec<u8>),
    Drop,
}

/// Follows one direction of one connection.
#[derive(Debug)]
pub(super) struct Intercept {
    framer: Framer,
    kind: Kind,
    doing: Doing,
}

impl Intercept {
    pub const fn new(framer: Framer, kind: Kind) -> Self {
        Self {
            framer,
            kind,
            doing: Doing::Forward,
        }
    }

    fn begin(&self, messages: Messages) -> Doing {
        match (self.kind, messages) {
            (Kind::Requests, Messages::Duplicate { .. }) => Doing::Copy(Vec::new()),
            (Kind::Requests, Messages::Hold { .. }) => Doing::Hold(Vec::new()),
            (Kind::Answers, Messages::DropAnswer) => Doing::Drop,
            _ => Doing::Forward,
        }
    }

    /// Takes bytes as they were read. Nothing follows a `Held` or a `Dropped`.
    pub fn take(&mut self, bytes: &[u8], messages: Messages, counters: &Counters) -> Vec<Todo> {
        let (mut todo, mut forward, mut at) = (Vec::new(), Vec::new(), 0);
        while at < bytes.len() {
            if self.framer.between() {
                self.doing = self.begin(messages);
            }
            let (n, seen) = self.framer.read(&bytes[at..]);
            let piece = &bytes[at..at + n];
            at += n;
            if seen == Seen::Opaque {
                self.let_go(&mut forward);
            }
            match &mut self.doing {
                Doing::Forward => forward.extend_from_slice(piece),
                Doing::Copy(copy) => {
                    forward.extend_from_slice(piece);
                    copy.extend_from_slice(piece);
                }
                Doing::Hold(kept) => kept.extend_from_slice(piece),
                Doing::Drop => counters.count(|n| n.swallowed_answer_bytes += super::counters::bytes(piece.len())),
            }
            if let Doing::Copy(kept) | Doing::Hold(kept) = &self.doing
                && kept.len() > MESSAGE_BYTES_MAX
            {
                counters.count(|n| n.passed_by += 1);
                self.let_go(&mut forward);
            }
            let Seen::Ended { interim } = seen else { continue };
            match self.kind {
                Kind::Requests => counters.count(|n| n.requests += 1),
                Kind::Answers if !interim => counters.count(|n| n.answers += 1),
                Kind::Answers => {}
            }
            match std::mem::replace(&mut self.doing, Doing::Forward) {
                Doing::Forward => {}
                Doing::Copy(copy) => todo.push(Todo::Copy(copy)),
                Doing::Hold(kept) => {
                    todo.insert(0, Todo::Forward(forward));
                    todo.push(Todo::Held(kept));
                    return todo;
                }
                Doing::Drop if interim => {}
                Doing::Drop => {
                    todo.push(Todo::Forward(forward));
                    todo.push(Todo::Dropped);
                    return todo;
                }
            }
        }
        todo.insert(0, Todo::Forward(forward));
        todo
    }

    /// Forwards what was kept back, and the rest of the message with it.
    fn let_go(&mut self, forward: &mut Vec<u8>) {
        if let Doing::Hold(kept) = &mut self.doing {
            forward.append(kept);
        }
        self.doing = Doing::Forward;
    }

    /// The stream has ended. Answers what was kept of a message that is not whole, and whether an answer was thrown away
    /// whose end this is.
    pub fn end(&mut self) -> (Vec<u8>, bool) {
        let mut kept = Vec::new();
        let dropped = matches!(self.doing, Doing::Drop) && self.framer.until_close();
        self.let_go(&mut kept);
        (kept, dropped)
    }
}
