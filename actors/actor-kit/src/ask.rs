//! Questions, their answers and their deadlines.

use crate::trace::About;
use futures_util::future::FutureExt;
use host_kit::Clock;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// A message, together with what it is answered. Events and orders have the answer `()`.
pub trait Ask: Send + 'static {
    /// What the asker gets.
    type Answer: Send + 'static;

    /// The message's name in traces and metrics: the contract's verb.
    const NAME: &'static str;

    /// Whether it is handled even though its asker has gone or its deadline has passed. For what must be recorded or
    /// undone whoever listens: an acquire that nobody waits for is skipped, a release never.
    const ALWAYS_HANDLED: bool = false;

    /// The token it carries, for the trace.
    fn token(&self) -> Option<u64> {
        None
    }

    /// What it is about, for the trace, where that is not what its actor is about. Asked for each message.
    fn about(&self) -> About {
        About::Nothing
    }
}

/// Why a question was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AskError {
    /// The mailbox is full: certainly not done, may be asked again later.
    #[error("the actor has too much to do; nothing was done")]
    Overloaded,
    /// The deadline passed before the answer. It may still happen: ambiguous.
    #[error("no answer within the deadline; it may still be done")]
    Deadline,
    /// The actor panicked or gave up the question while it worked on it: ambiguous.
    #[error("the actor failed before it answered; it may have been done")]
    Restarting,
    /// The actor has stopped before it took the message: certainly not done.
    #[error("the actor has stopped; nothing was done")]
    Stopped,
}

impl AskError {
    /// Whether what was asked for may have been done, or may still be done.
    #[must_use]
    pub const fn is_ambiguous(self) -> bool {
        matches!(self, Self::Deadline | Self::Restarting)
    }
}

thread_local! {
    /// The id of the reply that was last sent on this thread. Only the trace reads it, to tell an answer given inside the
    /// handler from one that comes later, without an allocation per message.
    static LAST_SENT: Cell<u64> = const { Cell::new(0) };
}

/// Whether the reply with this id was the last one sent on this thread.
pub(crate) fn was_just_sent(id: u64) -> bool {
    LAST_SENT.get() == id
}

/// The right to answer one question, once. May be kept, moved to another actor ([`crate::Handle::send_with`]) or into a
/// future. Dropped without an answer, the asker is told [`AskError::Restarting`].
#[derive(Debug)]
pub struct Reply<T> {
    to: Option<oneshot::Sender<Result<T, AskError>>>,
    deadline: Option<Duration>,
    id: u64,
}

impl<T> Reply<T> {
    pub(crate) const fn nobody() -> Self {
        Self {
            to: None,
            deadline: None,
            id: 0,
        }
    }

    pub(crate) fn with_id(deadline: Option<Duration>, id: u64) -> (Self, Answer<T>) {
        let (to, from) = oneshot::channel();
        (
            Self {
                to: Some(to),
                deadline,
                id,
            },
            Answer(from),
        )
    }

    /// A reply and the place where its answer arrives: for tests, and for questions that a behaviour makes up itself.
    /// `deadline` is a point of the clock's monotonic time.
    #[must_use]
    pub fn channel(deadline: Option<Duration>) -> (Self, Answer<T>) {
        Self::with_id(deadline, 0)
    }

    /// Answers. An asker that has gone is not told, and that is no error.
    pub fn send(mut self, answer: T) {
        if let Some(to) = self.to.take() {
            LAST_SENT.set(self.id);
            let _ = to.send(Ok(answer));
        }
    }

    /// Ends the question without an answer.
    pub(crate) fn refuse(mut self, why: AskError) {
        if let Some(to) = self.to.take() {
            let _ = to.send(Err(why));
        }
    }

    /// Whether somebody asked and has gone. Always false for a message that expects no answer.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.to.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Waits until the asker has gone; for ever when there is none. Cheaper than asking again and again.
    pub async fn abandoned(&mut self) {
        match &mut self.to {
            Some(to) => to.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Whether an answer is expected at all.
    #[must_use]
    pub const fn is_expected(&self) -> bool {
        self.to.is_some()
    }

    /// The point of the clock's monotonic time after which the asker no longer waits; none when nobody waits.
    #[must_use]
    pub const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// What is left until the deadline; zero when it has passed, [`Duration::MAX`] when there is none.
    #[must_use]
    pub fn remaining(&self, clock: &Clock) -> Duration {
        self.deadline
            .map_or(Duration::MAX, |deadline| deadline.saturating_sub(clock.mono()))
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            let _ = to.send(Err(AskError::Restarting));
        }
    }
}

/// Where the answer to a question arrives. Dropping it tells the actor that nobody waits any more.
#[derive(Debug)]
pub struct Answer<T>(oneshot::Receiver<Result<T, AskError>>);

impl<T> Future for Answer<T> {
    type Output = Result<T, AskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0
            .poll_unpin(cx)
            .map(|answer| answer.unwrap_or(Err(AskError::Restarting)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_dropped_says_that_it_may_have_been_done() {
        let (reply, answer) = Reply::<u8>::channel(None);
        drop(reply);
        let error = answer.now_or_never().unwrap().unwrap_err();
        assert_eq!(error, AskError::Restarting);
        assert!(error.is_ambiguous());
    }

    #[test]
    fn an_asker_that_has_gone_is_seen() {
        let (reply, answer) = Reply::<u8>::channel(None);
        assert!(!reply.is_abandoned());
        drop(answer);
        assert!(reply.is_abandoned());
        reply.send(1);
        assert!(!Reply::<()>::nobody().is_abandoned());
    }

    #[test]
    fn what_remains_follows_the_clock() {
        let hand = host_kit::ManualClock::new();
        let clock = hand.clock();
        let (reply, _answer) = Reply::<u8>::channel(Some(Duration::from_secs(2)));
        assert_eq!(reply.remaining(&clock), Duration::from_secs(2));
        hand.advance(Duration::from_secs(3));
        assert_eq!(reply.remaining(&clock), Duration::ZERO);
        assert_eq!(Reply::<()>::nobody().remaining(&clock), Duration::MAX);
    }
}
