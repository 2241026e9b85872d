//! How answers leave: in pieces, as the reader takes them, and no more of them at once than a bound of bytes allows.
//!
//! ```text
//! handler (lists: in turn, a few at once) → answer → bound of bytes (reads and writes apart) → pieces → socket
//! ```
//!
//! Owns: the bound on bytes that wait for their readers, the turns of lists, answers to HEAD.
//! Does not own: what is answered; the socket, whose time-out cuts a reader that takes nothing (`http.write-timeout`).
//! On failure: an answer to a read that does not fit is replaced by 503 OVERLOADED. A write is refused before it begins where
//! its caller does not take the answers to earlier ones; what was done is always answered. Writes have a bound of their own,
//! which no list can fill.

use crate::ApiError;
use crate::shares::{Caller, Full, Seat, Shares};
use actix_web::body::{BodySize, MessageBody};
use actix_web::web::Bytes;
use http_contract::Code;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is handed to the connection at once: it keeps no more than that and its own buffer for a reader that takes nothing.
const PIECE_BYTES: usize = 16 * 1024;

/// Answers up to this size are not counted: a connection's buffer holds them anyway.
const SMALL_BYTES: usize = 4 * 1024;

/// How many lists are read at once at most; of one caller half of them. Further ones wait their turn.
pub(super) const LISTS_AT_ONCE: usize = 4;

/// The bounds of a gateway.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    reads: Shares,
    writes: Shares,
    pub(super) lists: Turns,
}

impl Answers {
    /// With room for `bytes` of answers to reads, and as many to writes, and so many lists at once.
    pub(super) fn new(bytes: usize, lists_at_once: usize) -> Self {
        let bound = |what| Shares::halves(what, "http.answer-bytes-max", bytes);
        Self {
            reads: bound("bytes of answers that nobody has taken"),
            writes: bound("bytes of answers to writes that nobody has taken"),
            lists: Turns::new(lists_at_once),
        }
    }

    /// The whole bound, and what one caller gets of it, in bytes.
    pub(super) fn bounds(&self) -> (usize, usize) {
        self.reads.bounds()
    }

    /// Whether a write may begin.
    pub(super) fn may_write(&self, caller: Caller) -> Result<(), Full> {
        self.writes.room(caller)
    }

    /// Whether a list may be read.
    pub(super) fn may_read(&self, caller: Caller) -> Result<(), Full> {
        self.reads.room(caller)
    }

    /// An answer as it leaves.
    pub(super) fn leaving(&self, caller: Caller, writes: bool, answer: Bytes) -> Result<Leaving, Full> {
        let seat = match answer.len() {
            ..=SMALL_BYTES => None,
            bytes if writes => Some(self.writes.take_anyway(caller, bytes)),
            bytes => Some(self.reads.take(caller, bytes)?),
        };
        Ok(Leaving {
            size: answer.len() as u64,
            rest: answer,
            _seat: seat,
        })
    }
}

/// An answer of a known size on its way to its reader.
#[derive(Debug)]
pub(super) struct Leaving {
    size: u64,
    rest: Bytes,
    _seat: Option<Seat>,
}

impl MessageBody for Leaving {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.size)
    }

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        let piece = self.rest.len().min(PIECE_BYTES);
        Poll::Ready((piece > 0).then(|| Ok(self.rest.split_to(piece))))
    }
}

/// The answer to HEAD: of the size that GET would have, and nothing.
#[derive(Debug)]
pub(super) struct HeadOnly(pub(super) BodySize);

impl MessageBody for HeadOnly {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        self.0
    }

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        Poll::Ready(None)
    }
}

/// Turns for what is large to read: a few at once, of one caller half of them, first come first served.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    at_once: usize,
    share: usize,
    by_caller: Arc<Mutex<HashMap<Caller, Weak<Semaphore>>>>,
}

/// A turn; the next one's when it goes.
#[derive(Debug)]
pub(super) struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Turns {
    fn new(at_once: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(at_once)),
            at_once,
            share: at_once.div_ceil(2),
            by_caller: Arc::default(),
        }
    }

    fn of_caller(&self, caller: Caller) -> Arc<Semaphore> {
        let mut by_caller = self.by_caller.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = by_caller.get(&caller).and_then(Weak::upgrade) {
            return own;
        }
        // Whoever has no request under way any more is forgotten.
        by_caller.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(self.share));
        by_caller.insert(caller, Arc::downgrade(&own));
        own
    }

    /// Waits for a turn, no longer than `within`.
    pub(super) async fn next(&self, caller: Caller, within: Duration) -> Result<Turn, ApiError> {
        let own = self.of_caller(caller);
        let waiting = async {
            // Nobody closes these.
            let own = own.acquire_owned().await.ok()?;
            let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(Turn { _own: own, _all: all })
        };
        match tokio::time::timeout(within, waiting).await {
            Ok(Some(turn)) => Ok(turn),
            _ => Err(ApiError::new(
                Code::Overloaded,
                format!(
                    "too many lists and exports are read: at most {} at once, half of them by one caller; nothing was done",
                    self.at_once
                ),
            )
            .retry_after(Duration::from_secs(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn caller(n: u8) -> Caller {
        Caller::at(IpAddr::from([10, 0, 0, n]))
    }

    #[tokio::test(start_paused = true)]
    async fn case_s2_lists_take_turns_and_one_caller_never_has_all_of_them() {
        let turns = Turns::new(4);
        let within = Duration::from_secs(1);
        let _one = turns.next(caller(1), within).await.unwrap();
        let two = turns.next(caller(1), within).await.unwrap();
        assert_eq!(
            turns.next(caller(1), within).await.unwrap_err().code(),
            Code::Overloaded
        );
        let _other = turns.next(caller(2), within).await.unwrap();
        drop(two);
        let _again = turns.next(caller(1), within).await.unwrap();
    }

    #[test]
    fn case_s2_an_answer_leaves_in_pieces_and_is_counted_until_the_last_one() {
        let answers = Answers::new(100_000, 4);
        let body = Bytes::from(vec![7; 40_000]);
        let mut leaving = answers.leaving(caller(1), false, body.clone()).unwrap();
        assert!(matches!(leaving.size(), BodySize::Sized(40_000)));
        assert!(
            answers.leaving(caller(1), false, body.clone()).is_err(),
            "beyond a caller's half"
        );
        let written = answers.leaving(caller(1), true, body.clone()).unwrap();
        assert!(answers.may_write(caller(1)).is_ok(), "writes have their own bound");
        let more = answers.leaving(caller(1), true, body.clone()).unwrap();
        assert!(answers.may_write(caller(1)).is_err() && answers.may_write(caller(2)).is_ok());
        drop((written, more));
        assert!(
            answers.leaving(caller(1), false, Bytes::from_static(b"{}")).is_ok(),
            "a probe always fits"
        );
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut got = Vec::new();
        while let Poll::Ready(Some(Ok(piece))) = Pin::new(&mut leaving).poll_next(&mut cx) {
            assert!(piece.len() <= PIECE_BYTES);
            got.extend_from_slice(&piece);
        }
        assert_eq!(got, body);
        drop(leaving);
        assert_eq!(answers.reads.taken(), 0);
    }
}
